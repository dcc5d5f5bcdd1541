//! The dispatch of the kernel's requests to their handlers.

use crate::site_attr::unpack_device;
use crate::site_tree::SiteTree;
use rustix::io::Errno;
use std::sync::Arc;
use tatami_fuse::{FuseAttr, FuseOp, Handler, Reply, Request};
use tatami_remote::NewSiteNode;

/// Returns the error number for the kernel.
fn number_of(errno: Errno) -> i32 {
    errno.raw_os_error()
}

fn reply_status(reply: Reply<'_>, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.send_success(),
        Err(errno) => reply.send_error(number_of(errno)),
    };
}

/// Replies to GETXATTR and LISTXATTR. With `size` 0, the reply is the length.
fn reply_xattr(reply: Reply<'_>, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(bytes) if size == 0 => reply.send_xattr_len(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.send_error(libc::ERANGE),
        Ok(bytes) => reply.send_data(&bytes),
        Err(errno) => reply.send_error(number_of(errno)),
    };
}

impl SiteTree {
    fn reply_entry(&self, reply: Reply<'_>, result: Result<FuseAttr, Errno>) {
        match result {
            Ok(attr) => {
                // The caller is gone, so the kernel does not know the inode.
                if !reply.send_entry(&attr, &self.timeouts) {
                    self.nodes.forget_lookups(attr.ino, 1);
                }
            }
            Err(errno) => {
                reply.send_error(number_of(errno));
            }
        }
    }

    fn reply_attr(&self, reply: Reply<'_>, is_statx: bool, result: Result<FuseAttr, Errno>) {
        match result {
            Ok(attr) if is_statx => reply.send_statx(&attr, self.timeouts.attr),
            Ok(attr) => reply.send_attr(&attr, self.timeouts.attr),
            Err(errno) => reply.send_error(number_of(errno)),
        };
    }

    fn write(&self, unique: u64, write: &SiteWrite<'_>) -> Result<(), Errno> {
        let file = self.files.find_file(write.handle)?;
        file.write_behind(&self.session, write.offset, write.data, write.clears_ids)?;
        // The caller wants the bytes on the disk before its call returns.
        if write.flags & libc::O_DSYNC != 0 {
            file.sync_file(&self.session, unique, write.flags & libc::O_SYNC != libc::O_SYNC)?;
        }
        Ok(())
    }
}

struct SiteWrite<'a> {
    handle: u64,
    offset: u64,
    data: &'a [u8],
    flags: i32,
    clears_ids: bool,
}

impl Handler for SiteTree {
    fn handle_request(self: &Arc<Self>, r: Request<'_>, reply: Reply<'_>) {
        let (unique, node) = (r.header.unique, r.header.node);
        match r.op {
            FuseOp::Lookup { name } => match self.look_up(unique, node, name) {
                Err(Errno::NOENT) => drop(reply.send_absent(self.timeouts.entry)),
                found => self.reply_entry(reply, found),
            },
            FuseOp::Forget { lookups } => {
                self.nodes.forget_lookups(node, lookups);
                reply.send_nothing();
            }
            FuseOp::BatchForget(inodes) => {
                inodes.iter().for_each(|(node, lookups)| self.nodes.forget_lookups(node, lookups));
                reply.send_nothing();
            }
            FuseOp::GetAttr { .. } => {
                self.reply_attr(reply, false, self.read_attr(unique, node));
            }
            FuseOp::Statx { .. } => self.reply_attr(reply, true, self.read_attr(unique, node)),
            FuseOp::SetAttr(set) => {
                self.reply_attr(reply, false, self.set_attr(unique, node, &set));
            }
            FuseOp::Readlink => {
                match self.read_link(unique, node) {
                    Ok(target) => reply.send_data(&target),
                    Err(errno) => reply.send_error(number_of(errno)),
                };
            }
            FuseOp::Symlink { name, target } => {
                let new = NewSiteNode::Link(target.to_vec().into());
                self.reply_entry(reply, self.make_node(unique, node, name, new));
            }
            FuseOp::Mknod { name, mode, rdev, .. } => {
                let new = NewSiteNode::Special(mode, unpack_device(rdev));
                self.reply_entry(reply, self.make_node(unique, node, name, new));
            }
            FuseOp::Mkdir { name, mode, .. } => {
                let made = self.make_node(unique, node, name, NewSiteNode::Dir(mode));
                self.reply_entry(reply, made);
            }
            FuseOp::Unlink { name } => {
                reply_status(reply, self.remove_name(unique, node, name, false));
            }
            FuseOp::Rmdir { name } => {
                reply_status(reply, self.remove_name(unique, node, name, true));
            }
            FuseOp::Rename { name, new_parent, new_name, flags } => {
                let renamed = self.rename(unique, (node, name), (new_parent, new_name), flags);
                reply_status(reply, renamed);
            }
            FuseOp::Link { ino, name } => {
                self.reply_entry(reply, self.link_node(unique, ino, node, name));
            }
            FuseOp::Open { flags, .. } => match self.open_file(unique, node, flags) {
                Ok(opened) => {
                    // The caller of open(2) is gone, so the kernel will send no RELEASE.
                    if !reply.send_open(&opened) {
                        self.release_file(opened.handle);
                    }
                }
                Err(errno) => drop(reply.send_error(number_of(errno))),
            },
            FuseOp::Create { name, flags, mode, .. } => {
                match self.create_file(unique, node, name, flags, mode) {
                    Ok((attr, opened)) => {
                        if !reply.send_created(&attr, &self.timeouts, &opened) {
                            self.release_file(opened.handle);
                            self.nodes.forget_lookups(attr.ino, 1);
                        }
                    }
                    Err(errno) => drop(reply.send_error(number_of(errno))),
                }
            }
            FuseOp::Read { handle, offset, size, .. } => match self.files.find_file(handle) {
                Ok(file) => {
                    reply.send_filled(size as usize, |into| {
                        file.read_at(&self.session, unique, offset, into).map_err(number_of)
                    });
                }
                Err(errno) => drop(reply.send_error(number_of(errno))),
            },
            FuseOp::Write { handle, offset, data, flags, kill_suidgid: clears_ids, .. } => {
                let write = SiteWrite { handle, offset, data, flags, clears_ids };
                match self.write(unique, &write) {
                    Ok(()) => reply.send_written(data.len() as u32),
                    Err(errno) => reply.send_error(number_of(errno)),
                };
            }
            FuseOp::Flush { handle, .. } => {
                let file = self.files.find_file(handle);
                reply_status(reply, file.and_then(|file| file.await_writes()));
            }
            FuseOp::Release { handle, .. } => {
                self.release_file(handle);
                reply.send_success();
            }
            FuseOp::Fsync { handle, data_only } => {
                let file = self.files.find_file(handle);
                let synced = file.and_then(|file| file.sync_file(&self.session, unique, data_only));
                reply_status(reply, synced);
            }
            FuseOp::Statfs => {
                match self.read_space(unique) {
                    Ok(space) => reply.send_statfs(&space),
                    Err(errno) => reply.send_error(number_of(errno)),
                };
            }
            FuseOp::OpenDir { .. } => {
                let opened = self.open_dir();
                if !reply.send_open(&opened) {
                    self.release_dir(opened.handle);
                }
            }
            FuseOp::ReadDir { handle, offset, size, plus } => {
                reply.send_directory(size as usize, |out| {
                    let place = (handle, offset);
                    self.read_dir(unique, node, place, plus, out).map_err(number_of)
                });
            }
            FuseOp::ReleaseDir { handle } => {
                self.release_dir(handle);
                reply.send_success();
            }
            FuseOp::FsyncDir { .. } => reply_status(reply, self.sync_dir(unique, node)),
            FuseOp::Access { mask } => {
                reply_status(reply, self.check_access(unique, node, mask));
            }
            FuseOp::GetXattr { name, size } => {
                reply_xattr(reply, size, self.read_xattrs(unique, node, Some(name)));
            }
            FuseOp::ListXattr { size } => {
                reply_xattr(reply, size, self.read_xattrs(unique, node, None));
            }
            FuseOp::SetXattr { name, value, flags } => {
                reply_status(reply, self.set_xattr(unique, node, name, Some((value, flags))));
            }
            FuseOp::RemoveXattr { name } => {
                reply_status(reply, self.set_xattr(unique, node, name, None));
            }
            FuseOp::Fallocate { handle, offset, len, mode } => {
                let file = self.files.find_file(handle);
                let allocated =
                    file.and_then(|file| self.allocate_range(unique, &file, (offset, len), mode));
                reply_status(reply, allocated);
            }
            FuseOp::Lseek { handle, offset, whence } => {
                let file = self.files.find_file(handle);
                match file.and_then(|file| self.seek_extent(unique, &file, offset, whence)) {
                    Ok(found) => reply.send_number(found),
                    Err(errno) => reply.send_error(number_of(errno)),
                };
            }
            FuseOp::CopyFileRange { handle, offset, to_handle, to_offset, len, wide, .. } => {
                let files = self.files.find_file(handle).and_then(|file| {
                    let to = self.files.find_file(to_handle)?;
                    self.copy_range(unique, (&file, offset), (&to, to_offset), len)
                });
                match files {
                    Ok(copied) if wide => reply.send_number(copied),
                    Ok(copied) => reply.send_written(copied as u32),
                    Err(errno) => reply.send_error(number_of(errno)),
                };
            }
            FuseOp::Destroy => reply.send_nothing(),
            // Locks are those of this machine: the kernel keeps them itself.
            FuseOp::GetLock(_)
            | FuseOp::SetLock { .. }
            | FuseOp::Tmpfile { .. }
            | FuseOp::SyncFs
            | FuseOp::Interrupt { .. }
            | FuseOp::Unknown => drop(reply.send_error(libc::ENOSYS)),
        }
    }

    fn interrupt_request(&self, unique: u64) -> bool {
        self.session.interrupt_call(unique);
        true
    }
}
