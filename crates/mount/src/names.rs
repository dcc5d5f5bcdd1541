//! Names: look up, create, move, remove.

use crate::filesystem::FileSystem;
use crate::open::Sort;
use crate::{attr, caller};
use tatami_client::Removed;
use tatami_fuse::Request;
use tatami_wire::meta::NewNode;
use tatami_wire::{Attr, Cred, Errno, Ino, Kind};

impl FileSystem {
    /// LOOKUP.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn lookup(&self, request: &Request<'_>, name: &[u8]) -> Result<Attr, Errno> {
        let parent = Ino(request.header.node);
        self.open.note_lookup(parent);
        let walk = self.walks.follow(request.header.pid, parent);
        let found = caller::run(request, |cred| self.client.lookup(cred, parent, name));
        if let Some(walk) = walk {
            self.walks.resume(walk);
        }
        let attr = found?;
        let attr = match attr.kind {
            Kind::File => self.amended(&Cred::ROOT, attr)?,
            _ => attr,
        };
        // The size may be stale. It is only requested if the caller asks for attributes.
        if !attr.written_elsewhere {
            self.known.tell(&attr, request.header.pid);
        }
        Ok(attr)
    }

    /// Runs `make` for the caller. The caller's groups decide whether a new file may have setgid.
    /// There is no refusal that would trigger a retry with the groups.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn creating<R>(
        &self,
        request: &Request<'_>,
        mode: u16,
        mut make: impl FnMut(&Cred) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        if mode & 0o2000 != 0 {
            return make(&caller::with_groups(request));
        }
        caller::run(request, make)
    }

    /// MKNOD, MKDIR, SYMLINK.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn make(
        &self,
        request: &Request<'_>,
        name: &[u8],
        node: NewNode,
        mode: u32,
        umask: u32,
    ) -> Result<Attr, Errno> {
        let parent = Ino(request.header.node);
        let (mode, umask) = ((mode & 0o7777) as u16, (umask & 0o777) as u16);
        let made = self.creating(request, mode, |cred| {
            self.client.create(cred, parent, name, node.clone(), mode, umask, true, None)
        });
        self.known.changed();
        let made = made?;
        self.known.learn(&made.attr);
        Ok(made.attr)
    }

    /// Returns the kind of inode for MKNOD.
    ///
    /// # Errors
    /// `EINVAL` for a kind that mknod(2) does not create.
    pub(crate) fn new_node(&self, mode: u32, rdev: u32) -> Result<NewNode, Errno> {
        match Kind::from_mode(mode) {
            Some(Kind::File) => Ok(NewNode::File(self.client.new_layout())),
            Some(Kind::Fifo) => Ok(NewNode::Fifo),
            Some(Kind::Socket) => Ok(NewNode::Socket),
            Some(Kind::CharDev) => Ok(NewNode::CharDev(rdev.into())),
            Some(Kind::BlockDev) => Ok(NewNode::BlockDev(rdev.into())),
            Some(Kind::Dir | Kind::Symlink) | None => Err(Errno::EINVAL),
        }
    }

    /// LINK.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn link(&self, request: &Request<'_>, ino: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let parent = Ino(request.header.node);
        let linked = caller::run(request, |cred| self.client.link(cred, ino, parent, name));
        self.known.changed();
        let attr = linked?;
        self.amended(&Cred::ROOT, attr)
    }

    /// UNLINK and RMDIR.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn remove(
        &self,
        request: &Request<'_>,
        name: &[u8],
        sort: Sort,
    ) -> Result<(), Errno> {
        let parent = Ino(request.header.node);
        // Held until the reply, so that no inode is opened between this check and the removal.
        let removal = self.open.removal(&[sort]);
        let keep = removal.keep();
        let removed = caller::run(request, |cred| match sort {
            Sort::File => self.client.unlink(cred, parent, name, keep),
            Sort::Dir => self.client.rmdir(cred, parent, name, keep),
        });
        self.known.changed();
        let removed = removed?;
        self.after_removal(removed, keep);
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
        let mode = attr::rename_mode(flags)?;
        // As in `remove`. A replaced target may be of either kind.
        let removal = self.open.removal(&[Sort::File, Sort::Dir]);
        let keep = removal.keep();
        let removed = caller::run(request, |cred| {
            self.client.rename(cred, parent, name, new_parent, new_name, mode, keep)
        });
        self.known.changed();
        let removed = removed?;
        self.after_removal(removed, keep);
        Ok(())
    }

    /// Releases an inode that was kept although it is not open here. It was kept because any open
    /// inode might have been the removed one.
    fn after_removal(&self, removed: Removed, keep: bool) {
        let known = removed.ino.and_then(|ino| self.known.forget(ino));
        if let Some(attr) = known.filter(|attr| removed.last && attr.kind == Kind::Dir) {
            self.gone.note(attr);
        }
        let Removed { ino: Some(ino), last: true } = removed else {
            return;
        };
        if keep
            && !self.open.keep(ino)
            && let Err(error) = self.client.release(ino)
        {
            tracing::warn!(%ino, %error, "the shard keeps a removed inode");
        }
    }
}
