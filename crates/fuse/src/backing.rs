//! Backing files: files of a local disk that the kernel reads, writes and maps directly for a FUSE
//! file (passthrough, Linux 6.9).

use crate::device::Device;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// `_IOW(229, 1, struct fuse_backing_map)`
const BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `_IOW(229, 2, u32)`
const BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

/// `struct fuse_backing_map`
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// Number of a file that is registered with the kernel; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingId(pub i32);

impl Device {
    /// Registers `file`, so that replies to opens can name it. The kernel holds the file itself. So
    /// the caller may close `file`, which need not be open for writing even if writers use it. The
    /// caller must undo every registration by [`Device::close_backing`], at any time after the
    /// reply that names it.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN or without the flag `PASSTHROUGH`, `ELOOP` if the file's file
    /// system is stacked too high, `EOPNOTSUPP` or `EBADF` for a file that is not regular, `ENOTTY`
    /// or `EINVAL` for a kernel without passthrough.
    pub fn open_backing(&self, file: impl AsFd) -> Result<BackingId, Errno> {
        let map = BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the ioctl reads one fuse_backing_map, which lives past the call.
        match unsafe { libc::ioctl(self.raw_descriptor(), BACKING_OPEN, &raw const map) } {
            id if id > 0 => Ok(BackingId(id)),
            0 => Err(Errno::INVAL),
            _ => Err(last_error()),
        }
    }

    /// Undoes a registration. Files that were opened with it keep working.
    ///
    /// # Errors
    /// `ENOENT` for an unknown number.
    pub fn close_backing(&self, id: BackingId) -> Result<(), Errno> {
        let id = id.0 as u32;
        // SAFETY: the ioctl reads one u32, which lives past the call.
        match unsafe { libc::ioctl(self.raw_descriptor(), BACKING_CLOSE, &raw const id) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
