//! A file system of one file, with passthrough: the kernel reads, writes and maps the file on a
//! disk itself. No daemon, no names.
//!
//! The cost of a read or write here is the baseline for local files of a mount: the kernel's own
//! path from one file to another.

use crate::error::{BenchError, path_error};
use rustix::fs::Stat;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tatami_fuse::abi::{ROOT_ID, fopen};
use tatami_fuse::{
    BackingId, CacheTimeouts, Device, FuseAttr, FuseOp, Handler, OpenReply, Reply, Request, StatFs,
};

/// The name of the file.
pub const FILE_NAME: &str = "file";
const FILE_ID: u64 = ROOT_ID + 1;

/// The file system with its file.
pub struct PassthroughFileSystem {
    file: File,
    /// Unregistered at the end of the mount.
    backing: BackingId,
    valid: CacheTimeouts,
}

impl PassthroughFileSystem {
    /// Registers `path` with the kernel.
    ///
    /// # Errors
    /// A file that cannot be opened, or that the kernel rejects.
    pub fn new(device: &Device, path: &Path) -> Result<PassthroughFileSystem, BenchError> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(path_error("opening", path))?;
        let backing = device.open_backing(&file);
        let backing = backing.map_err(|e| path_error("registering", path)(e.into()))?;
        Ok(PassthroughFileSystem { file, backing, valid: CacheTimeouts::default() })
    }

    fn node_attr(&self, node: u64) -> Result<FuseAttr, i32> {
        if node == ROOT_ID {
            let mode = libc::S_IFDIR | 0o777;
            return Ok(FuseAttr { ino: ROOT_ID, mode, nlink: 2, ..FuseAttr::default() });
        }
        let stat: Stat = rustix::fs::fstat(&self.file).map_err(|e| e.raw_os_error())?;
        Ok(FuseAttr {
            ino: FILE_ID,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            mode: stat.st_mode,
            nlink: 1,
            uid: stat.st_uid,
            gid: stat.st_gid,
            ..FuseAttr::default()
        })
    }

    fn truncate_file(&self, size: Option<u64>) -> Result<(), i32> {
        let cut = size.map_or(Ok(()), |size| rustix::fs::ftruncate(&self.file, size));
        cut.map_err(|e| e.raw_os_error())
    }
}

impl Handler for PassthroughFileSystem {
    fn handle_request(self: &Arc<Self>, request: Request<'_>, reply: Reply<'_>) {
        let node = request.header.node;
        let attr = |reply: Reply<'_>, attr: Result<FuseAttr, i32>| match attr {
            Ok(attr) => reply.send_attr(&attr, self.valid.attr),
            Err(errno) => reply.send_error(errno),
        };
        match request.op {
            FuseOp::Lookup { name } if node == ROOT_ID && name == FILE_NAME.as_bytes() => {
                match self.node_attr(FILE_ID) {
                    Ok(attr) => reply.send_entry(&attr, &self.valid),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Lookup { .. } => reply.send_error(libc::ENOENT),
            FuseOp::GetAttr { .. } => attr(reply, self.node_attr(node)),
            FuseOp::SetAttr(set) if node == FILE_ID => {
                attr(reply, self.truncate_file(set.size).and_then(|()| self.node_attr(node)))
            }
            FuseOp::Open { .. } => {
                let flags = fopen::PASSTHROUGH | fopen::NOFLUSH;
                reply.send_open(&OpenReply { handle: 0, flags, backing: self.backing.0 })
            }
            FuseOp::Fsync { .. } => match self.file.sync_all() {
                Ok(()) => reply.send_success(),
                Err(error) => reply.send_error(error.raw_os_error().unwrap_or(libc::EIO)),
            },
            FuseOp::Statfs => {
                reply.send_statfs(&StatFs { block_size: 4096, name_max: 255, ..StatFs::default() })
            }
            FuseOp::GetXattr { .. } => reply.send_error(libc::ENODATA),
            FuseOp::Release { .. } | FuseOp::Flush { .. } => reply.send_success(),
            FuseOp::Forget { .. } | FuseOp::BatchForget(_) | FuseOp::Destroy => {
                reply.send_nothing();
                false
            }
            _ => reply.send_error(libc::ENOSYS),
        };
    }
}
