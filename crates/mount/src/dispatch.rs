//! The dispatch of the kernel's requests to their handlers.

use crate::attr;
use crate::caller;
use crate::errno::{inode_errno, to_kernel_errno};
use crate::file::CreatedFile;
use crate::file::WriteRequest;
use crate::filesystem::FileSystem;
use crate::open::OpenKind;
use crate::process_end;
use std::sync::Arc;
use tatami_fuse::{FuseOp, Handler, Reply, Request, StatFs};
use tatami_wire::meta::{Bytes, InodeTemplate};
use tatami_wire::{Attr, Errno, Ino, NAME_MAX};

const STATFS_BLOCK: u64 = 4096;

impl FileSystem {
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

    fn reply_entry(
        &self,
        r: &Request<'_>,
        name: &[u8],
        reply: Reply<'_>,
        result: Result<Attr, Errno>,
    ) {
        match result {
            Ok(attr) => {
                let times = self.cache_timeouts(Ino(r.header.node), name, &attr);
                reply.send_entry(&attr::to_fuse_attr(&attr), &times)
            }
            Err(e) => reply.send_error(to_kernel_errno(e)),
        };
    }

    fn reply_lookup(&self, r: &Request<'_>, name: &[u8], reply: Reply<'_>) {
        let found = self.lookup(r, name);
        if found == Err(Errno::ENOENT) {
            let time = self.timeouts.entry;
            if !time.is_zero() {
                reply.send_absent(time);
                return;
            }
        }
        self.reply_entry(r, name, reply, found);
    }
}

/// Replies with success or an error number.
fn reply_status(reply: Reply<'_>, result: Result<(), i32>) {
    match result {
        Ok(()) => reply.send_success(),
        Err(errno) => reply.send_error(errno),
    };
}

/// Replies to GETXATTR and LISTXATTR. With `size` 0, the reply is the length.
fn reply_xattr(reply: Reply<'_>, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(bytes) if size == 0 => reply.send_xattr_len(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.send_error(libc::ERANGE),
        Ok(bytes) => reply.send_data(&bytes),
        Err(e) => reply.send_error(inode_errno(e)),
    };
}

impl Handler for FileSystem {
    fn handle_request(self: &Arc<Self>, r: Request<'_>, reply: Reply<'_>) {
        tatami_client::clear_cause();
        let operation = process_end::begin_operation(&r);
        let node = Ino(r.header.node);
        match r.op {
            FuseOp::Lookup { name } => self.reply_lookup(&r, name, reply),
            FuseOp::GetAttr { .. } | FuseOp::Statx { .. } => {
                match self.get_attr(&r) {
                    Ok(attr) => {
                        let time = self.attr_timeout(&attr);
                        let attr = attr::to_fuse_attr(&attr);
                        match r.op {
                            FuseOp::Statx { .. } => reply.send_statx(&attr, time),
                            _ => reply.send_attr(&attr, time),
                        }
                    }
                    Err(e) => reply.send_error(inode_errno(e)),
                };
            }
            FuseOp::SetAttr(set) => {
                match self.set_attr(&r, &set) {
                    Ok(attr) => reply.send_attr(&attr::to_fuse_attr(&attr), self.timeouts.attr),
                    Err(e) => reply.send_error(inode_errno(e)),
                };
            }
            FuseOp::Readlink => {
                match caller::run_as_caller(&r, |cred| self.client.readlink(cred, node)) {
                    Ok(target) => reply.send_data(&target),
                    Err(e) => reply.send_error(inode_errno(e)),
                };
            }
            FuseOp::Symlink { name, target } => {
                let target = InodeTemplate::Symlink(Bytes::from(target));
                self.reply_entry(&r, name, reply, self.make_inode(&r, name, target, 0o777, 0));
            }
            FuseOp::Mknod { name, mode, umask, rdev } => {
                let made = self
                    .new_node(mode, rdev)
                    .and_then(|kind| self.make_inode(&r, name, kind, mode, umask));
                self.reply_entry(&r, name, reply, made);
            }
            FuseOp::Mkdir { name, mode, umask } => {
                self.reply_entry(
                    &r,
                    name,
                    reply,
                    self.make_inode(&r, name, InodeTemplate::Dir, mode, umask),
                );
            }
            FuseOp::Unlink { name } => {
                reply_status(
                    reply,
                    self.remove_entry(&r, name, OpenKind::File).map_err(to_kernel_errno),
                );
            }
            FuseOp::Rmdir { name } => reply_status(
                reply,
                self.remove_entry(&r, name, OpenKind::Dir).map_err(to_kernel_errno),
            ),
            FuseOp::Rename { name, new_parent, new_name, flags } => {
                let renamed = self.rename(&r, name, Ino(new_parent), new_name, flags);
                reply_status(reply, renamed.map_err(to_kernel_errno));
            }
            FuseOp::Link { ino, name } => {
                self.reply_entry(&r, name, reply, self.link(&r, Ino(ino), name));
            }
            FuseOp::Open { flags, .. } => match self.open(&r, flags) {
                Ok(opened) => {
                    // The caller of open(2) is gone, so the kernel will send no RELEASE.
                    if !reply.send_open(&opened) {
                        self.release(opened.handle);
                    }
                }
                Err(e) => {
                    reply.send_error(inode_errno(e));
                }
            },
            FuseOp::Create { name, flags, mode, umask } => {
                self.reply_created(
                    &r,
                    Some(name),
                    reply,
                    self.create(&r, name, flags, mode, umask),
                );
            }
            FuseOp::Tmpfile { flags, mode, umask } => {
                self.reply_created(&r, None, reply, self.tmpfile(&r, flags, mode, umask));
            }
            FuseOp::Read { handle, offset, size, .. } => {
                self.reply_read(reply, handle, offset, size as usize);
            }
            FuseOp::Write { handle, offset, data, flags, from_cache, kill_suidgid } => {
                let append = flags & libc::O_APPEND != 0 && !from_cache;
                let write = WriteRequest { handle, offset, data, append, kill_suidgid };
                match self.write_file(&write) {
                    Ok(len) => reply.send_written(len as u32),
                    Err(e) => reply.send_error(to_kernel_errno(e)),
                };
            }
            FuseOp::Flush { handle, owner } => {
                let flushed = self.flush(handle, owner);
                if operation.has_asker_ended() {
                    self.flush_later(handle, owner);
                }
                reply_status(reply, flushed.map_err(to_kernel_errno));
            }
            FuseOp::GetLock(asked) => {
                match self.get_lock(node, &asked) {
                    Ok(lock) => reply.send_lock(&lock),
                    Err(e) => reply.send_error(to_kernel_errno(e)),
                };
            }
            FuseOp::SetLock { lock, wait } => {
                self.set_lock(reply, r.header.unique, node, &lock, wait)
            }
            FuseOp::Release { handle, .. } => {
                self.release(handle);
                reply.send_success();
            }
            FuseOp::Fsync { handle, data_only } => {
                reply_status(reply, self.fsync(handle, data_only).map_err(to_kernel_errno));
            }
            FuseOp::FsyncDir { .. } => {
                reply_status(reply, self.client.sync_directory(node).map_err(to_kernel_errno));
            }
            FuseOp::SyncFs => {
                let written = self.spare_pool.sync_written();
                let synced = self.client.sync().and(written);
                reply_status(reply, synced.map_err(to_kernel_errno));
            }
            FuseOp::Statfs => {
                reply.send_statfs(&self.statfs());
            }
            FuseOp::OpenDir { .. } => {
                let opened = self.open_dir(&r);
                if !reply.send_open(&opened) {
                    self.release_dir(opened.handle);
                }
            }
            FuseOp::ReadDir { handle, offset, size, plus } => {
                reply.send_directory(size as usize, |out| {
                    self.read_dir(handle, offset, plus, out).map_err(to_kernel_errno)
                });
            }
            FuseOp::ReleaseDir { handle } => {
                self.release_dir(handle);
                reply.send_success();
            }
            FuseOp::SetXattr { name, value, flags } => {
                reply_status(reply, self.set_xattr(&r, name, value, flags).map_err(inode_errno));
            }
            FuseOp::GetXattr { name, size } => reply_xattr(reply, size, self.get_xattr(&r, name)),
            FuseOp::ListXattr { size } => reply_xattr(reply, size, self.list_xattr(&r)),
            FuseOp::RemoveXattr { name } => {
                reply_status(reply, self.remove_xattr(&r, name).map_err(inode_errno));
            }
            FuseOp::Fallocate { handle, offset, len, mode } => {
                reply_status(
                    reply,
                    self.allocate_range(handle, mode, offset, len).map_err(to_kernel_errno),
                );
            }
            FuseOp::Lseek { handle, offset, whence } => {
                match self.seek_extent(handle, offset, whence) {
                    Ok(found) => reply.send_number(found),
                    Err(e) => reply.send_error(to_kernel_errno(e)),
                };
            }
            FuseOp::CopyFileRange { handle, offset, to_handle, to_offset, len, wide, .. } => {
                match self.copy_range((handle, offset), (to_handle, to_offset), len) {
                    Ok(copied) if wide => reply.send_number(copied),
                    Ok(copied) => reply.send_written(copied as u32),
                    Err(e) => reply.send_error(to_kernel_errno(e)),
                };
            }
            FuseOp::Forget { .. } | FuseOp::BatchForget(_) | FuseOp::Destroy => {
                reply.send_nothing()
            }
            // The kernel checks permissions itself because of `default_permissions`.
            FuseOp::Access { .. } | FuseOp::Interrupt { .. } | FuseOp::Unknown => {
                reply.send_error(libc::ENOSYS);
            }
        }
    }

    /// Only waits for locks can be interrupted.
    fn interrupt_request(&self, unique: u64) -> bool {
        self.interrupt_lock(unique);
        true
    }
}

impl FileSystem {
    fn reply_created(
        &self,
        r: &Request<'_>,
        name: Option<&[u8]>,
        reply: Reply<'_>,
        result: Result<CreatedFile, Errno>,
    ) {
        match result {
            Ok(CreatedFile { attr, opened, is_new }) => {
                self.attr_cache.cache_looked_up_attr(&attr, r.header.pid);
                let parent = Ino(r.header.node);
                let mut times =
                    name.map_or(self.timeouts, |name| self.cache_timeouts(parent, name, &attr));
                if is_new {
                    times.attr = self.new_file_timeout(&attr);
                }
                if !reply.send_created(&attr::to_fuse_attr(&attr), &times, &opened) {
                    self.release(opened.handle);
                }
            }
            Err(e) => {
                reply.send_error(to_kernel_errno(e));
            }
        }
    }
}
