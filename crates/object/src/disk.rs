//! The system calls that touch bytes on a disk, behind a trait, so that tests can use a disk that
//! is full or breaks (see [`crate::fault`]).

use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

/// The operations that an object store needs of a disk. Each method is one system call and may do
/// less than asked, like the call; the defaults are the kernel's.
pub trait Disk: Send + Sync {
    /// pread(2).
    ///
    /// # Errors
    /// Those of the call; likewise for the other methods.
    fn read_at(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(fd, buf, offset)?)
    }

    /// pwrite(2).
    ///
    /// # Errors
    /// Those of the call.
    fn write_at(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwrite(fd, data, offset)?)
    }

    /// pwritev2(2) with `RWF_APPEND`; leaves the descriptor's position behind the last byte
    /// written, which shows their offset.
    ///
    /// # Errors
    /// Those of the call.
    fn append(&self, fd: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::pwritev2(fd, &[IoSlice::new(data)], u64::MAX, ReadWriteFlags::APPEND)?)
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// Those of the call.
    fn truncate(&self, fd: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(fd, size)?)
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// Those of the call.
    fn allocate(
        &self,
        fd: BorrowedFd<'_>,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        Ok(rustix::fs::fallocate(fd, mode, offset, len)?)
    }

    /// copy_file_range(2).
    ///
    /// # Errors
    /// Those of the call.
    fn copy_range(
        &self,
        source: BorrowedFd<'_>,
        source_offset: u64,
        target: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> io::Result<usize> {
        let (mut from, mut to) = (source_offset, offset);
        Ok(rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), len)?)
    }

    /// fdatasync(2) with `data_only`, else fsync(2).
    ///
    /// # Errors
    /// Those of the call.
    fn sync(&self, fd: BorrowedFd<'_>, data_only: bool) -> io::Result<()> {
        match data_only {
            true => rustix::fs::fdatasync(fd)?,
            false => rustix::fs::fsync(fd)?,
        }
        Ok(())
    }
}

/// The disk as the kernel offers it.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelDisk;

impl Disk for KernelDisk {}
