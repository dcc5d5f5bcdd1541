//! Names: look up, create, move, remove.

use crate::filesystem::FileSystem;
use crate::open::OpenKind;
use crate::{attr, caller};
use tatami_client::Removed;
use tatami_fuse::Request;
use tatami_wire::meta::InodeTemplate;
use tatami_wire::{Attr, Cred, Errno, Ino, InodeKind};

impl FileSystem {
    /// LOOKUP.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn lookup(&self, request: &Request<'_>, name: &[u8]) -> Result<Attr, Errno> {
        let parent = Ino(request.header.node);
        self.open_inodes.record_lookup(parent);
        let walk = self.walk_cache.take_walk(request.header.pid, parent);
        let found = caller::run_as_caller(request, |cred| self.client.lookup(cred, parent, name));
        if let Some(walk) = walk {
            self.walk_cache.resume_walk(walk);
        }
        let attr = found?;
        let attr = match attr.kind {
            InodeKind::File => self.with_local_state(&Cred::ROOT, attr)?,
            _ => attr,
        };
        // The size may be stale. It is only requested if the caller asks for attributes.
        if !attr.maybe_written_elsewhere {
            self.attr_cache.cache_looked_up_attr(&attr, request.header.pid);
        }
        Ok(attr)
    }

    /// Runs `make` for the caller. The caller's groups decide whether a new file may have setgid.
    /// There is no refusal that would trigger a retry with the groups.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn create_as_caller<R>(
        &self,
        request: &Request<'_>,
        mode: u16,
        mut make: impl FnMut(&Cred) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        if mode & 0o2000 != 0 {
            return make(&caller::full_credentials(request));
        }
        caller::run_as_caller(request, make)
    }

    /// MKNOD, MKDIR, SYMLINK.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn make_inode(
        &self,
        request: &Request<'_>,
        name: &[u8],
        node: InodeTemplate,
        mode: u32,
        umask: u32,
    ) -> Result<Attr, Errno> {
        let parent = Ino(request.header.node);
        let (mode, umask) = ((mode & 0o7777) as u16, (umask & 0o777) as u16);
        let made = self.create_as_caller(request, mode, |cred| {
            self.client.create(cred, parent, name, node.clone(), mode, umask, true, None)
        });
        self.attr_cache.count_change();
        let made = made?;
        self.attr_cache.cache_attr(&made.attr);
        Ok(made.attr)
    }

    /// Returns the kind of inode for MKNOD.
    ///
    /// # Errors
    /// `EINVAL` for a kind that mknod(2) does not create.
    pub(crate) fn new_node(&self, mode: u32, rdev: u32) -> Result<InodeTemplate, Errno> {
        match InodeKind::from_mode(mode) {
            Some(InodeKind::File) => Ok(InodeTemplate::File(self.client.new_layout())),
            Some(InodeKind::Fifo) => Ok(InodeTemplate::Fifo),
            Some(InodeKind::Socket) => Ok(InodeTemplate::Socket),
            Some(InodeKind::CharDev) => Ok(InodeTemplate::CharDev(rdev.into())),
            Some(InodeKind::BlockDev) => Ok(InodeTemplate::BlockDev(rdev.into())),
            Some(InodeKind::Dir | InodeKind::Symlink) | None => Err(Errno::EINVAL),
        }
    }

    /// LINK.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn link(&self, request: &Request<'_>, ino: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let parent = Ino(request.header.node);
        let linked =
            caller::run_as_caller(request, |cred| self.client.link(cred, ino, parent, name));
        self.attr_cache.count_change();
        let attr = linked?;
        self.with_local_state(&Cred::ROOT, attr)
    }

    /// UNLINK and RMDIR.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn remove_entry(
        &self,
        request: &Request<'_>,
        name: &[u8],
        sort: OpenKind,
    ) -> Result<(), Errno> {
        let parent = Ino(request.header.node);
        // Held until the reply, so that no inode is opened between this check and the removal.
        let removal = self.open_inodes.begin_removal(&[sort]);
        let keep = removal.must_keep();
        let removed = caller::run_as_caller(request, |cred| match sort {
            OpenKind::File => self.client.unlink(cred, parent, name, keep),
            OpenKind::Dir => self.client.rmdir(cred, parent, name, keep),
        });
        self.attr_cache.count_change();
        let removed = removed?;
        self.release_removed(removed, keep);
        Ok(())
    }

    /// RENAME.
    ///
    /// # Errors
    /// Those of the shard; `EINVAL` for flags that Tatami does not support.
    pub(crate) fn rename(
        &self,
        request: &Request<'_>,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let parent = Ino(request.header.node);
        let mode = attr::parse_rename_flags(flags)?;
        // As in `remove`. A replaced target may be of either kind.
        let removal = self.open_inodes.begin_removal(&[OpenKind::File, OpenKind::Dir]);
        let keep = removal.must_keep();
        let removed = caller::run_as_caller(request, |cred| {
            self.client.rename(cred, parent, name, new_parent, new_name, mode, keep)
        });
        self.attr_cache.count_change();
        let removed = removed?;
        self.release_removed(removed, keep);
        Ok(())
    }

    /// Releases an inode that was kept although it is not open here. It was kept because any open
    /// inode might have been the removed one.
    fn release_removed(&self, removed: Removed, keep: bool) {
        let known = removed.ino.and_then(|ino| self.attr_cache.forget_inode(ino));
        if let Some(attr) = known.filter(|attr| removed.last && attr.kind == InodeKind::Dir) {
            self.removed_dirs.record_removed(attr);
        }
        let Removed { ino: Some(ino), last: true } = removed else {
            return;
        };
        if keep
            && !self.open_inodes.mark_kept(ino)
            && let Err(error) = self.client.release_inode(ino)
        {
            tracing::warn!(%ino, %error, "the shard keeps a removed inode");
        }
    }
}
