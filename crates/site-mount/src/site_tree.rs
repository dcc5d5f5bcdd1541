//! The calls on names, attributes and open files of a mount.

use crate::site_attr::UserMap;
use crate::site_dirs::OpenSiteDir;
use crate::site_files::{FileTable, OpenSiteFile};
use crate::site_nodes::{KnownNode, NodeTable, fingerprint_of};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tatami_fuse::abi::fopen;
use tatami_fuse::request::FuseSetAttr;
use tatami_fuse::{CacheTimeouts, DirEntries, FuseAttr, OpenReply, StatFs};
use tatami_remote::{
    MountBytes, MountCall, MountSession, NewSiteNode, RemoteReply, SiteAttr, SiteEntry,
};

/// Offsets of a directory after "." and "..".
const DOTS: u64 = 2;
/// The bits of the type in `st_mode`.
const KIND_DIR: u32 = libc::S_IFDIR;

/// A directory of another site as a file system.
pub(crate) struct SiteTree {
    pub(crate) session: Arc<MountSession>,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) files: Arc<FileTable>,
    dirs: Mutex<HashMap<u64, Arc<OpenSiteDir>>>,
    users: UserMap,
    pub(crate) timeouts: CacheTimeouts,
    numbers: AtomicU64,
}

fn entry_of(reply: MountBytes) -> Result<SiteEntry, Errno> {
    match reply.0 {
        RemoteReply::Entry(entry) => Ok(entry),
        _ => Err(Errno::PROTO),
    }
}

fn number_of(reply: MountBytes) -> Result<u64, Errno> {
    match reply.0 {
        RemoteReply::Size(size) => Ok(size),
        _ => Err(Errno::PROTO),
    }
}

impl SiteTree {
    pub(crate) fn new(
        session: Arc<MountSession>,
        root: &SiteAttr,
        users: UserMap,
        timeouts: CacheTimeouts,
    ) -> SiteTree {
        let nodes = Arc::new(NodeTable::new(root));
        let files = Arc::new(FileTable::new(nodes.clone()));
        session.watch_files(files.clone());
        let (dirs, numbers) = (Mutex::default(), AtomicU64::new(1));
        SiteTree { session, nodes, files, dirs, users, timeouts, numbers }
    }

    fn choose_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn shown(&self, node: &KnownNode, attr: &SiteAttr) -> FuseAttr {
        self.users.attr_for_kernel(node.number, attr)
    }

    fn note_entry(&self, dir: u64, name: &[u8], entry: &SiteEntry) -> FuseAttr {
        let node = self.nodes.note_lookup(dir, name, &entry.attr);
        self.shown(&node, &entry.attr)
    }

    /// Searches for a name.
    pub(crate) fn look_up(&self, unique: u64, dir: u64, name: &[u8]) -> Result<FuseAttr, Errno> {
        let at = self.nodes.locate_dir(dir)?;
        let call = MountCall::Lookup { dir: at, name: name.to_vec().into() };
        let entry = entry_of(self.session.call(unique, call)?)?;
        Ok(self.note_entry(dir, name, &entry))
    }

    /// Returns the attributes of an inode. An open file is asked first: it has them also after its
    /// last name was removed.
    pub(crate) fn read_attr(&self, unique: u64, number: u64) -> Result<FuseAttr, Errno> {
        let node = self.nodes.find_node(number)?;
        let (file, place) = (node.any_file(), self.nodes.locate_node(&node));
        if file.is_none() {
            place.as_ref().map_err(|errno| *errno)?;
        }
        let call = MountCall::ReadAttr { node: place.unwrap_or_default(), file };
        let entry = entry_of(self.session.call(unique, call)?)?;
        node.size.store(entry.attr.size, Ordering::Relaxed);
        Ok(self.shown(&node, &entry.attr))
    }

    /// Changes the attributes of an inode.
    pub(crate) fn set_attr(
        &self,
        unique: u64,
        number: u64,
        set: &FuseSetAttr,
    ) -> Result<FuseAttr, Errno> {
        let node = self.nodes.find_node(number)?;
        let file = set.handle.or_else(|| node.any_file());
        let place = self.nodes.locate_node(&node);
        if file.is_none() {
            place.as_ref().map_err(|errno| *errno)?;
        }
        let mut changes = self.users.set_for_site(set);
        if set.kill_suidgid && changes.mode.is_none() && changes.size.is_some() {
            let call = MountCall::ReadAttr { node: place.clone().unwrap_or_default(), file };
            let mode = entry_of(self.session.call(unique, call)?)?.attr.mode;
            changes.mode = (mode & 0o6000 != 0).then_some(mode & 0o1777);
        }
        let call = MountCall::SetAttr { node: place.unwrap_or_default(), file, set: changes };
        let changed = self.session.call(unique, call);
        if set.size.is_some() {
            node.note_change();
        }
        let entry = entry_of(changed?)?;
        node.size.store(entry.attr.size, Ordering::Relaxed);
        Ok(self.shown(&node, &entry.attr))
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn read_link(&self, unique: u64, number: u64) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.locate_node(&*self.nodes.find_node(number)?)?;
        let entry = entry_of(self.session.call(unique, MountCall::ReadAttr { node, file: None })?)?;
        entry.target.map(|target| target.into_vec()).ok_or(Errno::INVAL)
    }

    /// Makes a name.
    pub(crate) fn make_node(
        &self,
        unique: u64,
        dir: u64,
        name: &[u8],
        new: NewSiteNode,
    ) -> Result<FuseAttr, Errno> {
        let at = self.nodes.locate_dir(dir)?;
        let call = MountCall::Make { dir: at, name: name.to_vec().into(), new };
        let entry = entry_of(self.session.call(unique, call)?)?;
        Ok(self.note_entry(dir, name, &entry))
    }

    /// Gives an inode one more name.
    pub(crate) fn link_node(
        &self,
        unique: u64,
        number: u64,
        dir: u64,
        name: &[u8],
    ) -> Result<FuseAttr, Errno> {
        let node = self.nodes.locate_node(&*self.nodes.find_node(number)?)?;
        self.make_node(unique, dir, name, NewSiteNode::Same(node))
    }

    /// Removes a name.
    pub(crate) fn remove_name(
        &self,
        unique: u64,
        dir: u64,
        name: &[u8],
        is_dir: bool,
    ) -> Result<(), Errno> {
        let at = self.nodes.locate_dir(dir)?;
        let call = MountCall::Remove { dir: at, name: name.to_vec().into(), is_dir };
        self.session.call(unique, call)?;
        self.nodes.drop_name(dir, name);
        Ok(())
    }

    /// Renames.
    pub(crate) fn rename(
        &self,
        unique: u64,
        (dir, name): (u64, &[u8]),
        (to, to_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        // An exchange that is repeated after a broken link would swap the names back.
        if flags & libc::RENAME_EXCHANGE != 0 {
            return Err(Errno::INVAL);
        }
        let call = MountCall::Rename {
            dir: self.nodes.locate_dir(dir)?,
            name: name.to_vec().into(),
            to: self.nodes.locate_dir(to)?,
            to_name: to_name.to_vec().into(),
            flags,
        };
        self.session.call(unique, call)?;
        self.nodes.move_name((dir, name), (to, to_name));
        Ok(())
    }

    /// Opens a file. What the kernel has kept of it stays, if nothing shows a change.
    pub(crate) fn open_file(
        &self,
        unique: u64,
        number: u64,
        flags: i32,
    ) -> Result<OpenReply, Errno> {
        let node = self.nodes.find_node(number)?;
        let file = self.choose_number();
        let call = MountCall::Open { file, node: self.nodes.locate_node(&node)?, flags };
        let (files, of_reply) = (self.files.clone(), node.clone());
        let (reply, _) = self.session.call_for(unique, call, &[], move |reply| {
            if reply.is_ok() {
                files.add_file(file, of_reply, flags);
            }
        })?;
        let RemoteReply::Opened { attr, is_settled } = reply else { return Err(Errno::PROTO) };
        node.size.store(attr.size, Ordering::Relaxed);
        let now = Some(fingerprint_of(&attr));
        let mut kept = node.kept.lock();
        let is_same = *kept == now;
        *kept = now.filter(|_| is_settled);
        let flags = if is_same { fopen::KEEP_CACHE } else { 0 };
        Ok(OpenReply { handle: file, flags, backing: 0 })
    }

    /// Makes or opens a file.
    pub(crate) fn create_file(
        &self,
        unique: u64,
        dir: u64,
        name: &[u8],
        flags: i32,
        mode: u32,
    ) -> Result<(FuseAttr, OpenReply), Errno> {
        let file = self.choose_number();
        let at = self.nodes.locate_dir(dir)?;
        let call = MountCall::Create { file, dir: at, name: name.to_vec().into(), flags, mode };
        let (files, nodes, owned) = (self.files.clone(), self.nodes.clone(), name.to_vec());
        let (reply, _) = self.session.call_for(unique, call, &[], move |reply| {
            if let Ok((RemoteReply::Opened { attr, .. }, _)) = reply {
                files.add_file(file, nodes.note_lookup(dir, &owned, attr), flags);
            }
        })?;
        let RemoteReply::Opened { attr, .. } = reply else { return Err(Errno::PROTO) };
        let node = self.files.find_file(file)?.node.clone();
        *node.kept.lock() = None;
        if flags & libc::O_TRUNC != 0 {
            node.note_change();
        }
        Ok((self.shown(&node, &attr), OpenReply { handle: file, flags: 0, backing: 0 }))
    }

    /// Closes a file, and does not wait.
    pub(crate) fn release_file(&self, number: u64) {
        self.files.remove_file(number);
        // Without a link the file was closed there.
        self.session.send_call(MountCall::Release { file: number }, &[], |_| {});
    }

    /// Reserves or frees room.
    pub(crate) fn allocate_range(
        &self,
        unique: u64,
        file: &OpenSiteFile,
        (offset, len): (u64, u64),
        mode: i32,
    ) -> Result<(), Errno> {
        let call = MountCall::Allocate { file: file.number, mode: mode as u32, offset, len };
        let allocated = self.session.call(unique, call);
        file.node.note_change();
        allocated.map(|_| ())
    }

    /// Searches for data or a hole.
    pub(crate) fn seek_extent(
        &self,
        unique: u64,
        file: &OpenSiteFile,
        offset: i64,
        whence: i32,
    ) -> Result<u64, Errno> {
        let is_hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let call = MountCall::Seek { file: file.number, offset, is_hole };
        number_of(self.session.call(unique, call)?)
    }

    /// Copies bytes between two files there.
    pub(crate) fn copy_range(
        &self,
        unique: u64,
        (file, offset): (&OpenSiteFile, u64),
        (to, to_offset): (&OpenSiteFile, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let (file, to_number) = (file.number, to.number);
        let call = MountCall::CopyRange { file, offset, to: to_number, to_offset, len };
        let copied = self.session.call(unique, call);
        to.node.note_change();
        number_of(copied?)
    }

    /// Returns the room of the file system.
    pub(crate) fn read_space(&self, unique: u64) -> Result<StatFs, Errno> {
        let (RemoteReply::Space(s), _) = self.session.call(unique, MountCall::ReadSpace)? else {
            return Err(Errno::PROTO);
        };
        Ok(StatFs {
            blocks: s.blocks,
            free: s.free,
            available: s.available,
            files: s.files,
            files_free: s.files_free,
            block_size: u32::try_from(s.block_size).unwrap_or(4096),
            name_max: u32::try_from(s.name_max).unwrap_or(255),
        })
    }

    /// Asks whether the user there may use an inode so.
    pub(crate) fn check_access(&self, unique: u64, number: u64, mask: u32) -> Result<(), Errno> {
        let node = self.nodes.locate_node(&*self.nodes.find_node(number)?)?;
        self.session.call(unique, MountCall::CheckAccess { node, mask }).map(|_| ())
    }

    /// Opens a directory. Its entries come with the first read.
    pub(crate) fn open_dir(&self) -> OpenReply {
        let handle = self.choose_number();
        self.dirs.lock().insert(handle, Arc::default());
        OpenReply { handle, flags: 0, backing: 0 }
    }

    /// Closes a directory.
    pub(crate) fn release_dir(&self, handle: u64) {
        let dir = self.dirs.lock().remove(&handle);
        if let Some(listing) = dir.and_then(|dir| dir.listing_to_end()) {
            // Without a link it has ended there.
            self.session.send_call(MountCall::EndList { listing }, &[], |_| {});
        }
    }

    /// Brings the names of a directory to the disk there.
    pub(crate) fn sync_dir(&self, unique: u64, number: u64) -> Result<(), Errno> {
        let dir = self.nodes.locate_dir(number)?;
        self.session.call(unique, MountCall::SyncDir { dir }).map(|_| ())
    }

    /// Fills `out` with the entries of a directory after `offset`.
    pub(crate) fn read_dir(
        &self,
        unique: u64,
        number: u64,
        (handle, offset): (u64, u64),
        plus: bool,
        out: &mut DirEntries<'_>,
    ) -> Result<(), Errno> {
        let open = self.dirs.lock().get(&handle).cloned().ok_or(Errno::BADF)?;
        if offset == 0 {
            open.rewind();
        }
        let dots = [(number, &b"."[..]), (self.nodes.parent_of(number), b"..")];
        for (at, (ino, name)) in dots.into_iter().enumerate() {
            let next = at as u64 + 1;
            let pushed = offset >= next
                || match plus {
                    true => out.push_without_attr(ino, next, KIND_DIR, name),
                    false => out.push(ino, next, KIND_DIR, name),
                };
            if !pushed {
                return Ok(());
            }
        }
        let dir = self.nodes.locate_dir(number)?;
        let index = offset.saturating_sub(DOTS) as usize;
        let mut push = |at: usize, entry: &SiteEntry| {
            let (next, name) = (at as u64 + 1 + DOTS, entry.name.as_slice());
            if !plus {
                return out.push(entry.attr.ino, next, entry.attr.mode, name);
            }
            let shown = self.note_entry(number, name, entry);
            let pushed = out.push_with_attr(&shown, &self.timeouts, next, name);
            if !pushed {
                self.nodes.forget_lookups(shown.ino, 1);
            }
            pushed
        };
        let choose = || self.choose_number();
        open.list_entries(&self.session, unique, &dir, index, &choose, &mut push)
    }

    /// Reads an extended attribute, or the list of their names.
    pub(crate) fn read_xattrs(
        &self,
        unique: u64,
        number: u64,
        name: Option<&[u8]>,
    ) -> Result<Vec<u8>, Errno> {
        if name.is_some_and(|name| !is_carried(name)) {
            return Err(Errno::OPNOTSUPP);
        }
        let node = self.nodes.locate_node(&*self.nodes.find_node(number)?)?;
        let call = match name {
            Some(name) => MountCall::ReadXattr { node, name: name.to_vec().into() },
            None => MountCall::ListXattrs { node },
        };
        match self.session.call(unique, call)? {
            (RemoteReply::Bytes { .. }, bytes) if name.is_some() => Ok(bytes),
            (RemoteReply::Bytes { .. }, bytes) => {
                let names = bytes.split_inclusive(|b| *b == 0).filter(|name| is_carried(name));
                Ok(names.flatten().copied().collect())
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// Sets an extended attribute; without a value, removes it.
    pub(crate) fn set_xattr(
        &self,
        unique: u64,
        number: u64,
        name: &[u8],
        value: Option<(&[u8], i32)>,
    ) -> Result<(), Errno> {
        if !is_carried(name) {
            return Err(Errno::OPNOTSUPP);
        }
        let node = self.nodes.locate_node(&*self.nodes.find_node(number)?)?;
        let name = name.to_vec().into();
        let call = match value {
            Some((value, flags)) => MountCall::SetXattr {
                node,
                name,
                value: value.to_vec().into(),
                flags: flags as u32,
            },
            None => MountCall::RemoveXattr { node, name },
        };
        self.session.call(unique, call).map(|_| ())
    }
}

/// Whether attributes of this name are those of users. Labels and access lists of another machine
/// have no meaning here, and `ls -l` would ask for them for each file.
fn is_carried(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}
