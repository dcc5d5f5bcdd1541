//! A no-op file system of names only, in memory: no daemon, no bytes, no checks. A file has the
//! length that writes gave it, and all its bytes are zero.
//!
//! It negotiates the same features with the kernel as a volume, gets the same requests, and replies
//! as fast as possible. So the cost of an operation here is the baseline for every file system in a
//! process.

use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tatami_fuse::abi::{ROOT_ID, fopen};
use tatami_fuse::{
    CacheTimeouts, FuseAttr, FuseOp, FuseTime, Handler, OpenReply, Reply, Request, StatFs,
};

struct NullInode {
    attr: FuseAttr,
    parent: u64,
    entries: BTreeMap<Vec<u8>, u64>,
    /// The target of a symbolic link.
    target: Vec<u8>,
}

impl NullInode {
    fn new(attr: FuseAttr, parent: u64) -> NullInode {
        NullInode { attr, parent, entries: BTreeMap::new(), target: Vec::new() }
    }
}

/// What a read returns.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

struct NullTree {
    inodes: HashMap<u64, NullInode>,
    next: u64,
}

/// The file system with its names. Clones have the same names.
#[derive(Clone)]
pub struct NullFileSystem {
    tree: Arc<RwLock<NullTree>>,
    valid: CacheTimeouts,
}

fn current_time() -> FuseTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    FuseTime { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}

impl NullFileSystem {
    /// Returns an empty file system. The kernel keeps its names and attributes for `valid`.
    pub fn new(valid: Duration) -> NullFileSystem {
        let mode = libc::S_IFDIR | 0o777;
        let attr = FuseAttr { ino: ROOT_ID, mode, nlink: 2, ..FuseAttr::default() };
        let root = NullInode::new(attr, ROOT_ID);
        let tree = NullTree { inodes: HashMap::from([(ROOT_ID, root)]), next: ROOT_ID + 1 };
        let valid = CacheTimeouts { entry: valid, attr: valid };
        NullFileSystem { tree: Arc::new(RwLock::new(tree)), valid }
    }
}

impl NullTree {
    fn get_attr(&self, ino: u64) -> Result<FuseAttr, i32> {
        self.inodes.get(&ino).map(|i| i.attr).ok_or(libc::ENOENT)
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<FuseAttr, i32> {
        let parent = self.inodes.get(&parent).ok_or(libc::ENOENT)?;
        self.get_attr(*parent.entries.get(name).ok_or(libc::ENOENT)?)
    }

    fn add_inode(
        &mut self,
        request: &Request<'_>,
        name: &[u8],
        mode: u32,
    ) -> Result<FuseAttr, i32> {
        let parent = request.header.node;
        let ino = self.next;
        let dir = self.inodes.get_mut(&parent).ok_or(libc::ENOENT)?;
        if dir.entries.contains_key(name) {
            return Err(libc::EEXIST);
        }
        dir.entries.insert(name.to_vec(), ino);
        let (uid, gid, now) = (request.header.uid, request.header.gid, current_time());
        let nlink = if mode & libc::S_IFMT == libc::S_IFDIR { 2 } else { 1 };
        let attr = FuseAttr {
            ino,
            mode,
            nlink,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            ..FuseAttr::default()
        };
        self.next += 1;
        self.inodes.insert(ino, NullInode::new(attr, parent));
        Ok(attr)
    }

    fn add_symlink(
        &mut self,
        request: &Request<'_>,
        name: &[u8],
        target: &[u8],
    ) -> Result<FuseAttr, i32> {
        let mut attr = self.add_inode(request, name, libc::S_IFLNK | 0o777)?;
        attr.size = target.len() as u64;
        if let Some(inode) = self.inodes.get_mut(&attr.ino) {
            inode.attr = attr;
            inode.target = target.to_vec();
        }
        Ok(attr)
    }

    fn add_link(&mut self, parent: u64, name: &[u8], ino: u64) -> Result<FuseAttr, i32> {
        if self.lookup(parent, name).is_ok() {
            return Err(libc::EEXIST);
        }
        let dir = self.inodes.get_mut(&parent).ok_or(libc::ENOENT)?;
        dir.entries.insert(name.to_vec(), ino);
        let inode = self.inodes.get_mut(&ino).ok_or(libc::ENOENT)?;
        inode.attr.nlink += 1;
        Ok(inode.attr)
    }

    /// Gives the file at least this length.
    fn extend_file(&mut self, ino: u64, end: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.attr.size = inode.attr.size.max(end);
        }
    }

    fn remove_entry(&mut self, parent: u64, name: &[u8]) -> Result<(), i32> {
        let ino = self.lookup(parent, name)?.ino;
        if self.inodes.get(&ino).is_some_and(|i| !i.entries.is_empty()) {
            return Err(libc::ENOTEMPTY);
        }
        if let Some(dir) = self.inodes.get_mut(&parent) {
            dir.entries.remove(name);
        }
        match self.inodes.get_mut(&ino) {
            Some(inode)
                if inode.attr.nlink > 1 && inode.attr.mode & libc::S_IFMT != libc::S_IFDIR =>
            {
                inode.attr.nlink -= 1;
            }
            _ => drop(self.inodes.remove(&ino)),
        }
        Ok(())
    }

    fn rename(&mut self, from: u64, name: &[u8], to: u64, new_name: &[u8]) -> Result<(), i32> {
        let ino = self.lookup(from, name)?.ino;
        if self.lookup(to, new_name).is_ok_and(|there| there.ino != ino) {
            self.remove_entry(to, new_name)?;
        }
        self.inodes.get_mut(&from).ok_or(libc::ENOENT)?.entries.remove(name);
        let dir = self.inodes.get_mut(&to).ok_or(libc::ENOENT)?;
        dir.entries.insert(new_name.to_vec(), ino);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.parent = to;
        }
        Ok(())
    }
}

impl Handler for NullFileSystem {
    fn handle_request(self: &Arc<Self>, request: Request<'_>, reply: Reply<'_>) {
        let node = request.header.node;
        let entry = |reply: Reply<'_>, attr: Result<FuseAttr, i32>| match attr {
            Ok(attr) => reply.send_entry(&attr, &self.valid),
            Err(errno) => reply.send_error(errno),
        };
        let done = |reply: Reply<'_>, result: Result<(), i32>| match result {
            Ok(()) => reply.send_success(),
            Err(errno) => reply.send_error(errno),
        };
        match request.op {
            FuseOp::Lookup { name } => {
                let attr = self.tree.read().lookup(node, name);
                entry(reply, attr)
            }
            FuseOp::GetAttr { .. } => {
                let attr = self.tree.read().get_attr(node);
                match attr {
                    Ok(attr) => reply.send_attr(&attr, self.valid.attr),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::SetAttr(set) => {
                let attr = match self.tree.write().inodes.get_mut(&node) {
                    None => Err(libc::ENOENT),
                    Some(inode) => {
                        let attr = &mut inode.attr;
                        attr.size = set.size.unwrap_or(attr.size);
                        let kind = attr.mode & libc::S_IFMT;
                        attr.mode = set.mode.map_or(attr.mode, |m| kind | m & 0o7777);
                        Ok(*attr)
                    }
                };
                match attr {
                    Ok(attr) => reply.send_attr(&attr, self.valid.attr),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Create { name, mode, umask, .. } => {
                let made = self.tree.write().add_inode(&request, name, mode & !umask);
                match made {
                    Ok(attr) => {
                        let opened = OpenReply { handle: 0, flags: fopen::DIRECT_IO, backing: 0 };
                        reply.send_created(&attr, &self.valid, &opened)
                    }
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Mknod { name, mode, umask, .. } => {
                let made = self.tree.write().add_inode(&request, name, mode & !umask);
                entry(reply, made)
            }
            FuseOp::Mkdir { name, mode, umask } => {
                let mode = libc::S_IFDIR | mode & !umask;
                let made = self.tree.write().add_inode(&request, name, mode);
                entry(reply, made)
            }
            FuseOp::Symlink { name, target } => {
                let made = self.tree.write().add_symlink(&request, name, target);
                entry(reply, made)
            }
            FuseOp::Link { ino, name } => {
                let made = self.tree.write().add_link(node, name, ino);
                entry(reply, made)
            }
            FuseOp::Readlink => match self.tree.read().inodes.get(&node) {
                Some(inode) => reply.send_data(&inode.target),
                None => reply.send_error(libc::ENOENT),
            },
            FuseOp::Unlink { name } | FuseOp::Rmdir { name } => {
                let removed = self.tree.write().remove_entry(node, name);
                done(reply, removed)
            }
            FuseOp::Rename { name, new_parent, new_name, flags: 0 } => {
                let renamed = self.tree.write().rename(node, name, new_parent, new_name);
                done(reply, renamed)
            }
            FuseOp::Open { .. } | FuseOp::OpenDir { .. } => {
                reply.send_open(&OpenReply { handle: 0, flags: fopen::DIRECT_IO, backing: 0 })
            }
            FuseOp::ReadDir { offset, size, .. } => {
                let tree = self.tree.read();
                reply.send_directory(size as usize, |out| tree.list_entries(node, offset, out))
            }
            FuseOp::Write { offset, data, .. } => {
                self.tree.write().extend_file(node, offset + data.len() as u64);
                reply.send_written(data.len() as u32)
            }
            FuseOp::Read { offset, size, .. } => {
                let attr = self.tree.read().get_attr(node);
                let left = attr.map_or(0, |attr| attr.size.saturating_sub(offset));
                let len = left.min(u64::from(size)).min(ZEROS.len() as u64);
                reply.send_data(&ZEROS[..len as usize])
            }
            FuseOp::Statfs => {
                reply.send_statfs(&StatFs { block_size: 4096, name_max: 255, ..StatFs::default() })
            }
            FuseOp::GetXattr { .. } => reply.send_error(libc::ENODATA),
            FuseOp::Release { .. }
            | FuseOp::ReleaseDir { .. }
            | FuseOp::Flush { .. }
            | FuseOp::Fsync { .. }
            | FuseOp::FsyncDir { .. } => reply.send_success(),
            FuseOp::Forget { .. } | FuseOp::BatchForget(_) | FuseOp::Destroy => {
                reply.send_nothing();
                false
            }
            _ => reply.send_error(libc::ENOSYS),
        };
    }
}

impl NullTree {
    /// Lists a directory. Offsets are inode numbers plus 2, so names keep the order of their
    /// creation.
    fn list_entries(
        &self,
        dir: u64,
        offset: u64,
        out: &mut tatami_fuse::DirEntries<'_>,
    ) -> Result<(), i32> {
        let inode = self.inodes.get(&dir).ok_or(libc::ENOENT)?;
        let mut listed: Vec<(u64, &[u8])> =
            inode.entries.iter().map(|(name, ino)| (*ino + 2, name.as_slice())).collect();
        listed.sort_unstable();
        if offset < 1 && !out.push(dir, 1, libc::S_IFDIR, b".") {
            return Ok(());
        }
        if offset < 2 && !out.push(inode.parent, 2, libc::S_IFDIR, b"..") {
            return Ok(());
        }
        let from = listed.partition_point(|(next, _)| *next <= offset);
        for (next, name) in &listed[from..] {
            let mode = self.get_attr(next - 2)?.mode;
            if !out.push(next - 2, *next, mode, name) {
                break;
            }
        }
        Ok(())
    }
}
