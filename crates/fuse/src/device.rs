//! The device `/dev/fuse`, the channel between the kernel and this process.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Path of the device.
pub const PATH: &str = "/dev/fuse";

/// `_IOR(229, 0, u32)`
const CLONE: libc::c_ulong = 0x8004_e500;

/// An open descriptor of the device, bound to a mounted file system. A reply must use the
/// descriptor from which its request was read.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Opens the device. A mount binds it to a file system.
    ///
    /// # Errors
    /// Those of open(2): `ENOENT` without the kernel module, `EACCES`.
    pub fn open() -> Result<Device, Errno> {
        rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(Device)
    }

    /// Wraps a descriptor that is already bound.
    pub fn from_descriptor(fd: OwnedFd) -> Device {
        Device(fd)
    }

    /// Opens a further descriptor for the same file system. It has its own queue of requests under
    /// way, so that threads do not contend for one. Falls back to a duplicate if the kernel or
    /// permissions do not allow that.
    ///
    /// # Errors
    /// `EMFILE` and the like.
    pub fn open_clone(&self) -> Result<Device, Errno> {
        match Device::open() {
            Ok(device) => {
                let from = self.0.as_raw_fd() as u32;
                // SAFETY: the ioctl reads one u32, which lives past the call.
                match unsafe { libc::ioctl(device.0.as_raw_fd(), CLONE, &raw const from) } {
                    0 => Ok(device),
                    _ => self.duplicate_descriptor(),
                }
            }
            Err(_) => self.duplicate_descriptor(),
        }
    }

    fn duplicate_descriptor(&self) -> Result<Device, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0).map(Device)
    }

    /// Waits for a request and reads it into `buffer`. Returns its length.
    ///
    /// # Errors
    /// `ENODEV` after the unmount. `EINTR`, `EAGAIN` and `ENOENT` (the request was withdrawn) mean:
    /// try again.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    /// Writes one complete message.
    ///
    /// # Errors
    /// `ENOENT` if the caller does not wait for this reply any more; `EINVAL` for a reply that does
    /// not fit its request.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.0, parts)).map(|_| ())
    }

    /// Writes one complete message from the next `len` bytes of a pipe.
    ///
    /// # Errors
    /// Those of [`Device::write`]. Then the pipe may still hold the message or not.
    pub fn splice_from(&self, pipe: &OwnedFd, len: usize) -> Result<(), Errno> {
        rustix::pipe::splice(pipe, None, &self.0, None, len, SpliceFlags::empty()).map(|_| ())
    }

    pub(crate) fn raw_descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
