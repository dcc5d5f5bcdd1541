//! A file system of one file, with passthrough: the kernel reads, writes and maps the file on a
//! disk itself. No daemon, no names.
//!
//! The cost of a read or write here is the baseline for local files of a mount: the kernel's own
//! path from one file to another.

use crate::error::MountError;
use rustix::fs::Stat;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tatami_fuse::abi::{ROOT_ID, fopen};
use tatami_fuse::{Attr, BackingId, Device, Handler, Op, Opened, Reply, Request, StatFs, Validity};

/// The name of the file.
pub const NAME: &str = "file";
const FILE_ID: u64 = ROOT_ID + 1;

/// The file system with its file.
pub(crate) struct Bare {
    file: File,
    /// Unregistered at the end of the mount.
    backing: BackingId,
    valid: Validity,
}

impl Bare {
    /// Registers `path` with the kernel.
    ///
    /// # Errors
    /// A file that cannot be opened, and [`MountError::Bare`] if the kernel rejects it.
    pub(crate) fn new(device: &Device, path: &Path) -> Result<Bare, MountError> {
        let failed = |source| MountError::Bare { path: path.to_owned(), source };
        let file = File::options().read(true).write(true).open(path).map_err(failed)?;
        let backing = device.open_backing(&file).map_err(|e| failed(e.into()))?;
        Ok(Bare { file, backing, valid: Validity::default() })
    }

    fn attr(&self, node: u64) -> Result<Attr, i32> {
        if node == ROOT_ID {
            let mode = libc::S_IFDIR | 0o777;
            return Ok(Attr { ino: ROOT_ID, mode, nlink: 2, ..Attr::default() });
        }
        let stat: Stat = rustix::fs::fstat(&self.file).map_err(|e| e.raw_os_error())?;
        Ok(Attr {
            ino: FILE_ID,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            mode: stat.st_mode,
            nlink: 1,
            uid: stat.st_uid,
            gid: stat.st_gid,
            ..Attr::default()
        })
    }

    fn cut(&self, size: Option<u64>) -> Result<(), i32> {
        let cut = size.map_or(Ok(()), |size| rustix::fs::ftruncate(&self.file, size));
        cut.map_err(|e| e.raw_os_error())
    }
}

impl Handler for Bare {
    fn handle(self: &Arc<Self>, request: Request<'_>, reply: Reply<'_>) {
        let node = request.header.node;
        let attr = |reply: Reply<'_>, attr: Result<Attr, i32>| match attr {
            Ok(attr) => reply.attr(&attr, self.valid.attr),
            Err(errno) => reply.error(errno),
        };
        match request.op {
            Op::Lookup { name } if node == ROOT_ID && name == NAME.as_bytes() => {
                match self.attr(FILE_ID) {
                    Ok(attr) => reply.entry(&attr, &self.valid),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Lookup { .. } => reply.error(libc::ENOENT),
            Op::GetAttr { .. } => attr(reply, self.attr(node)),
            Op::SetAttr(set) if node == FILE_ID => {
                attr(reply, self.cut(set.size).and_then(|()| self.attr(node)))
            }
            Op::Open { .. } => {
                let flags = fopen::PASSTHROUGH | fopen::NOFLUSH;
                reply.opened(&Opened { handle: 0, flags, backing: self.backing.0 })
            }
            Op::Fsync { .. } => match self.file.sync_all() {
                Ok(()) => reply.done(),
                Err(error) => reply.error(error.raw_os_error().unwrap_or(libc::EIO)),
            },
            Op::Statfs => {
                reply.statfs(&StatFs { block_size: 4096, name_max: 255, ..StatFs::default() })
            }
            Op::GetXattr { .. } => reply.error(libc::ENODATA),
            Op::Release { .. } | Op::Flush { .. } => reply.done(),
            Op::Forget { .. } | Op::BatchForget | Op::Destroy => {
                reply.none();
                false
            }
            _ => reply.error(libc::ENOSYS),
        };
    }
}
