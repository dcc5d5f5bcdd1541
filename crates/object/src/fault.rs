//! A disk that is full or fails on request, for tests of this crate and of those above.

use crate::disk::{Disk, KernelDisk};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use std::io;
use std::os::fd::BorrowedFd;
use tatami_wire::Errno;

/// A kind of call to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the methods of `Disk`
pub enum DiskCall {
    Read,
    Write,
    Append,
    Truncate,
    Allocate,
    CopyRange,
    Sync,
}

#[derive(Clone, Copy, Debug)]
struct PlannedFault {
    call: DiskCall,
    /// How many such calls succeed first.
    after: u32,
    /// How many fail then.
    times: u32,
    errno: Errno,
}

#[derive(Debug, Default)]
struct FaultPlan {
    faults: Vec<PlannedFault>,
    /// Bytes that may still be written.
    room: Option<u64>,
    /// Most bytes that one call moves.
    chunk: Option<usize>,
}

/// The kernel's disk with planned faults.
#[derive(Debug, Default)]
pub struct FaultyDisk {
    script: Mutex<FaultPlan>,
}

impl FaultyDisk {
    /// Returns a disk without faults.
    pub fn new() -> FaultyDisk {
        FaultyDisk::default()
    }

    /// Lets `after` calls of a kind pass, and then `times` calls fail with `errno`.
    pub fn plan_fault(&self, call: DiskCall, after: u32, times: u32, errno: Errno) {
        self.script.lock().faults.push(PlannedFault { call, after, times, errno });
    }

    /// From now on the disk takes `bytes` more bytes and is full after that: the call that reaches
    /// the end is cut short, the next gets `ENOSPC`. `None` ends the shortage.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.script.lock().room = bytes;
    }

    /// From now on no read, write, append or copy moves more than `bytes`.
    pub fn set_chunk(&self, bytes: Option<usize>) {
        self.script.lock().chunk = bytes;
    }

    fn check_fault(&self, call: DiskCall) -> io::Result<()> {
        let mut script = self.script.lock();
        for fault in script.faults.iter_mut().filter(|f| f.call == call) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                return Err(io::Error::from_raw_os_error(fault.errno.0));
            }
        }
        Ok(())
    }

    /// Returns how many of `wanted` bytes fit, and takes them from the room.
    fn take_room(&self, wanted: usize) -> io::Result<usize> {
        let mut script = self.script.lock();
        let mut fits = wanted.min(script.chunk.unwrap_or(usize::MAX));
        if let Some(room) = &mut script.room {
            fits = fits.min(usize::try_from(*room).unwrap_or(usize::MAX));
            if fits == 0 && wanted > 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            *room -= fits as u64;
        }
        Ok(fits)
    }
}

impl Disk for FaultyDisk {
    fn read_at(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check_fault(DiskCall::Read)?;
        let most = buf.len().min(self.script.lock().chunk.unwrap_or(usize::MAX));
        KernelDisk.read_at(fd, &mut buf[..most], offset)
    }

    fn write_at(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> io::Result<usize> {
        self.check_fault(DiskCall::Write)?;
        KernelDisk.write_at(fd, &data[..self.take_room(data.len())?], offset)
    }

    fn append(&self, fd: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
        self.check_fault(DiskCall::Append)?;
        KernelDisk.append(fd, &data[..self.take_room(data.len())?])
    }

    fn truncate(&self, fd: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        self.check_fault(DiskCall::Truncate)?;
        KernelDisk.truncate(fd, size)
    }

    fn allocate(
        &self,
        fd: BorrowedFd<'_>,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        self.check_fault(DiskCall::Allocate)?;
        KernelDisk.allocate(fd, mode, offset, len)
    }

    fn copy_range(
        &self,
        source: BorrowedFd<'_>,
        source_offset: u64,
        target: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> io::Result<usize> {
        self.check_fault(DiskCall::CopyRange)?;
        KernelDisk.copy_range(source, source_offset, target, offset, self.take_room(len)?)
    }

    fn sync(&self, fd: BorrowedFd<'_>, data_only: bool) -> io::Result<()> {
        self.check_fault(DiskCall::Sync)?;
        KernelDisk.sync(fd, data_only)
    }
}
