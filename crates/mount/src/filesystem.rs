//! The dispatch of the kernel's requests to their handlers.

use crate::attr;
use crate::caller;
use crate::closings::Closings;
use crate::directory::OpenDir;
use crate::ending;
use crate::errno::{of_inode, to_kernel};
use crate::file::{OpenFile, Write};
use crate::gone::Gone;
use crate::handles::Handles;
use crate::known::Known;
use crate::locks::Waiting;
use crate::open::{OpenInodes, Sort};
use crate::spares::Spares;
use crate::stamps::Stamps;
use crate::walks::Walks;
use parking_lot::Mutex;
use std::sync::Arc;
use tatami_client::Client;
use tatami_fuse::{Device, Handler, Op, Reply, Request, StatFs, Validity};
use tatami_wire::meta::{Bytes, NewNode};
use tatami_wire::{Attr, Errno, Ino, NAME_MAX};

const STATFS_BLOCK: u64 = 4096;

/// A mounted volume.
pub(crate) struct FileSystem {
    pub(crate) client: Arc<Client>,
    pub(crate) device: Arc<Device>,
    /// The kernel may read and write local files itself.
    pub(crate) passthrough: bool,
    pub(crate) valid: Validity,
    /// The kernel may cache names and attributes that are delegated to this mount.
    pub(crate) keeps: bool,
    pub(crate) open: OpenInodes,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) dirs: Handles<OpenDir>,
    pub(crate) known: Known,
    pub(crate) walks: Walks,
    pub(crate) gone: Gone,
    pub(crate) stamps: Stamps,
    pub(crate) closings: Closings,
    pub(crate) spares: Spares,
    pub(crate) waiting: Waiting,
    /// The last known attributes of the root directory.
    pub(crate) root: Mutex<Option<Attr>>,
}

impl FileSystem {
    pub(crate) fn new(
        client: Arc<Client>,
        device: Arc<Device>,
        passthrough: bool,
        valid: Validity,
        keeps: bool,
    ) -> FileSystem {
        FileSystem {
            closings: Closings::new(client.clone()),
            client,
            device,
            passthrough,
            valid,
            keeps,
            open: OpenInodes::new(),
            files: Handles::new(),
            dirs: Handles::new(),
            known: Known::new(),
            walks: Walks::new(),
            gone: Gone::default(),
            stamps: Stamps::default(),
            spares: Spares::default(),
            waiting: Waiting::default(),
            root: Mutex::default(),
        }
    }

    fn statfs(&self) -> StatFs {
        let space = self.client.statfs();
        let free = space.available / STATFS_BLOCK;
        StatFs {
            blocks: space.total / STATFS_BLOCK,
            free: space.free / STATFS_BLOCK,
            available: free,
            // An inode needs no space of its own kind. One block for each is a fair estimate.
            files: space.inodes + free,
            files_free: free,
            block_size: STATFS_BLOCK as u32,
            name_max: NAME_MAX as u32,
        }
    }

    fn entry(&self, r: &Request<'_>, name: &[u8], reply: Reply<'_>, result: Result<Attr, Errno>) {
        match result {
            Ok(attr) => {
                let times = self.times(Ino(r.header.node), name, &attr);
                reply.entry(&attr::to_kernel(&attr), &times)
            }
            Err(e) => reply.error(to_kernel(e)),
        };
    }

    fn answer_lookup(&self, r: &Request<'_>, name: &[u8], reply: Reply<'_>) {
        let found = self.lookup(r, name);
        if found == Err(Errno::ENOENT) {
            let time = self.name_time(Ino(r.header.node), name, None);
            if !time.is_zero() {
                reply.absent(time);
                return;
            }
        }
        self.entry(r, name, reply, found);
    }
}

/// Replies with success or an error number.
fn done(reply: Reply<'_>, result: Result<(), i32>) {
    match result {
        Ok(()) => reply.done(),
        Err(errno) => reply.error(errno),
    };
}

/// Replies to GETXATTR and LISTXATTR. With `size` 0, the reply is the length.
fn bytes(reply: Reply<'_>, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(bytes) if size == 0 => reply.xattr_len(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(libc::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(e) => reply.error(of_inode(e)),
    };
}

impl Handler for FileSystem {
    fn handle(self: &Arc<Self>, r: Request<'_>, reply: Reply<'_>) {
        tatami_client::forget_cause();
        let operation = ending::begin_operation(&r);
        let node = Ino(r.header.node);
        match r.op {
            Op::Lookup { name } => self.answer_lookup(&r, name, reply),
            Op::GetAttr { .. } | Op::Statx { .. } => {
                match self.attr_asked(&r) {
                    Ok(attr) => {
                        let time = self.attr_time(&attr);
                        let attr = attr::to_kernel(&attr);
                        match r.op {
                            Op::Statx { .. } => reply.statx(&attr, time),
                            _ => reply.attr(&attr, time),
                        }
                    }
                    Err(e) => reply.error(of_inode(e)),
                };
            }
            Op::SetAttr(set) => {
                match self.set_attr(&r, &set) {
                    Ok(attr) => reply.attr(&attr::to_kernel(&attr), self.valid.attr),
                    Err(e) => reply.error(of_inode(e)),
                };
            }
            Op::Readlink => {
                match caller::run(&r, |cred| self.client.readlink(cred, node)) {
                    Ok(target) => reply.data(&target),
                    Err(e) => reply.error(of_inode(e)),
                };
            }
            Op::Symlink { name, target } => {
                let target = NewNode::Symlink(Bytes::from(target));
                self.entry(&r, name, reply, self.make(&r, name, target, 0o777, 0));
            }
            Op::Mknod { name, mode, umask, rdev } => {
                let made = self
                    .new_node(mode, rdev)
                    .and_then(|kind| self.make(&r, name, kind, mode, umask));
                self.entry(&r, name, reply, made);
            }
            Op::Mkdir { name, mode, umask } => {
                self.entry(&r, name, reply, self.make(&r, name, NewNode::Dir, mode, umask));
            }
            Op::Unlink { name } => {
                done(reply, self.remove(&r, name, Sort::File).map_err(to_kernel));
            }
            Op::Rmdir { name } => done(reply, self.remove(&r, name, Sort::Dir).map_err(to_kernel)),
            Op::Rename { name, new_parent, new_name, flags } => {
                let renamed = self.rename(&r, name, Ino(new_parent), new_name, flags);
                done(reply, renamed.map_err(to_kernel));
            }
            Op::Link { ino, name } => {
                self.entry(&r, name, reply, self.link(&r, Ino(ino), name));
            }
            Op::Open { flags, .. } => match self.open(&r, flags) {
                Ok(opened) => {
                    // The caller of open(2) is gone, so the kernel will send no RELEASE.
                    if !reply.opened(&opened) {
                        self.release(opened.handle);
                    }
                }
                Err(e) => {
                    reply.error(of_inode(e));
                }
            },
            Op::Create { name, flags, mode, umask } => {
                self.created(&r, Some(name), reply, self.create(&r, name, flags, mode, umask));
            }
            Op::Tmpfile { flags, mode, umask } => {
                self.created(&r, None, reply, self.tmpfile(&r, flags, mode, umask));
            }
            Op::Read { handle, offset, size, .. } => {
                self.answer_read(reply, handle, offset, size as usize);
            }
            Op::Write { handle, offset, data, flags, from_cache, kill_suidgid } => {
                let append = flags & libc::O_APPEND != 0 && !from_cache;
                let write = Write { handle, offset, data, append, kill_suidgid };
                match self.write(&write) {
                    Ok(len) => reply.written(len as u32),
                    Err(e) => reply.error(to_kernel(e)),
                };
            }
            Op::Flush { handle, owner } => {
                let flushed = self.flush(handle, owner);
                if operation.asker_ended() {
                    self.flush_later(handle, owner);
                }
                done(reply, flushed.map_err(to_kernel));
            }
            Op::GetLock(asked) => {
                match self.get_lock(node, &asked) {
                    Ok(lock) => reply.lock(&lock),
                    Err(e) => reply.error(to_kernel(e)),
                };
            }
            Op::SetLock { lock, wait } => self.lock(reply, r.header.unique, node, &lock, wait),
            Op::Release { handle, .. } => {
                self.release(handle);
                reply.done();
            }
            Op::Fsync { handle, data_only } => {
                done(reply, self.fsync(handle, data_only).map_err(to_kernel));
            }
            Op::FsyncDir { .. } => {
                done(reply, self.client.sync_directory(node).map_err(to_kernel));
            }
            Op::SyncFs => done(reply, self.client.sync().map_err(to_kernel)),
            Op::Statfs => {
                reply.statfs(&self.statfs());
            }
            Op::OpenDir { .. } => {
                let opened = self.open_dir(&r);
                if !reply.opened(&opened) {
                    self.release_dir(opened.handle);
                }
            }
            Op::ReadDir { handle, offset, size, plus } => {
                reply.directory(size as usize, |out| {
                    self.read_dir(handle, offset, plus, out).map_err(to_kernel)
                });
            }
            Op::ReleaseDir { handle } => {
                self.release_dir(handle);
                reply.done();
            }
            Op::SetXattr { name, value, flags } => {
                done(reply, self.set_xattr(&r, name, value, flags).map_err(of_inode));
            }
            Op::GetXattr { name, size } => bytes(reply, size, self.get_xattr(&r, name)),
            Op::ListXattr { size } => bytes(reply, size, self.list_xattr(&r)),
            Op::RemoveXattr { name } => {
                done(reply, self.remove_xattr(&r, name).map_err(of_inode));
            }
            Op::Fallocate { handle, offset, len, mode } => {
                done(reply, self.allocate(handle, mode, offset, len).map_err(to_kernel));
            }
            Op::Lseek { handle, offset, whence } => {
                match self.seek(handle, offset, whence) {
                    Ok(found) => reply.number(found),
                    Err(e) => reply.error(to_kernel(e)),
                };
            }
            Op::CopyFileRange { handle, offset, to_handle, to_offset, len, wide, .. } => {
                match self.copy((handle, offset), (to_handle, to_offset), len) {
                    Ok(copied) if wide => reply.number(copied),
                    Ok(copied) => reply.written(copied as u32),
                    Err(e) => reply.error(to_kernel(e)),
                };
            }
            Op::Forget { .. } | Op::BatchForget | Op::Destroy => reply.none(),
            // The kernel checks permissions itself because of `default_permissions`.
            Op::Access { .. } | Op::Interrupt { .. } | Op::Unknown => {
                reply.error(libc::ENOSYS);
            }
        }
    }

    /// Only waits for locks can be interrupted.
    fn interrupt(&self, unique: u64) -> bool {
        self.interrupt_lock(unique);
        true
    }
}

impl FileSystem {
    fn created(
        &self,
        r: &Request<'_>,
        name: Option<&[u8]>,
        reply: Reply<'_>,
        result: Result<(Attr, tatami_fuse::Opened), Errno>,
    ) {
        match result {
            Ok((attr, opened)) => {
                self.known.tell(&attr, r.header.pid);
                let parent = Ino(r.header.node);
                let times = name.map_or(self.valid, |name| self.times(parent, name, &attr));
                if !reply.created(&attr::to_kernel(&attr), &times, &opened) {
                    self.release(opened.handle);
                }
            }
            Err(e) => {
                reply.error(to_kernel(e));
            }
        }
    }
}
