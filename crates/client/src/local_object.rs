//! The bytes of an object of this node. The daemon hands over the open backing file, and the client
//! uses the disk directly.

use crate::cause::record_cause;
use crate::file_bytes::FileBytes;
use crate::object_handle::ObjectHandle;
use crate::waiting::lock_interruptibly;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tatami_wire::object::{AllocMode, ObjectOp, ObjectState, SeekTarget};
use tatami_wire::{Errno, Timestamp};

/// An object of this node.
pub(crate) struct LocalObject {
    object: ObjectHandle,
    /// The backing file, while it is open.
    file: Mutex<Option<Arc<OwnedFd>>>,
}

impl LocalObject {
    pub(crate) fn new(object: ObjectHandle) -> LocalObject {
        LocalObject { object, file: Mutex::new(None) }
    }

    fn create_local_file(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.local_file(true)?.ok_or_else(|| {
            record_cause(Errno::EIO, || {
                format!("node {}: the place of its objects is gone", self.object.node().0)
            });
            Errno::EIO
        })
    }
}

impl FileBytes for LocalObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let Some(file) = self.local_file(false)? else { return Ok(0) };
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&file, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(disk_error(e)),
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        write_fully(&*self.create_local_file()?, data, offset)
    }

    fn append(&self, data: &[u8]) -> Result<usize, Errno> {
        let file = self.create_local_file()?;
        let iov = libc::iovec { iov_base: data.as_ptr() as *mut _, iov_len: data.len() };
        // SAFETY: one iovec that covers `data`, which outlives the call and is only read.
        let n = unsafe { libc::pwritev2(file.as_raw_fd(), &iov, 1, 0, libc::RWF_APPEND) };
        if n < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(n as usize)
    }

    fn sync(&self, data_only: bool) -> Result<ObjectState, Errno> {
        // The daemon also syncs the name of a new object.
        self.object.request_state(&ObjectOp::Sync { data_only })
    }

    fn truncate(&self, size: u64) -> Result<ObjectState, Errno> {
        self.object.request_state(&ObjectOp::Truncate { size })
    }

    fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno> {
        let file = self.create_local_file()?;
        match rustix::fs::fallocate(&file, fallocate_flags(mode), offset, len) {
            Ok(()) => stat_file(&file),
            // The daemon writes zeros itself where the disk cannot.
            Err(rustix::io::Errno::OPNOTSUPP) => {
                self.object.request_state(&ObjectOp::Allocate { mode, offset, len })
            }
            Err(e) => Err(Errno(e.raw_os_error())),
        }
    }

    fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        let file = self.local_file(false)?.ok_or(Errno::ENXIO)?;
        let from = match what {
            SeekTarget::Data => SeekFrom::Data(offset),
            SeekTarget::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(&file, from).map_err(disk_error)
    }

    fn stat(&self) -> Result<ObjectState, Errno> {
        match self.local_file(false)? {
            Some(file) => stat_file(&file),
            None => Ok(ObjectState::default()),
        }
    }

    fn object(&self) -> Option<&ObjectHandle> {
        Some(&self.object)
    }

    fn has_local_file(&self) -> bool {
        true
    }

    fn local_file(&self, create: bool) -> Result<Option<Arc<OwnedFd>>, Errno> {
        let mut file = lock_interruptibly(&self.file)?;
        if file.is_none() {
            let (object, op) = (&self.object, ObjectOp::OpenFd { create });
            match object.with_valid_cap(|cap| {
                object.peer.with_data_connection(|connection| {
                    object.request_descriptor(connection, cap, &op)
                })?
            }) {
                Ok(fd) => *file = Some(Arc::new(fd)),
                Err(Errno::ENOENT) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(file.clone())
    }

    fn set_local_file(&self, file: Option<Arc<OwnedFd>>) {
        *self.file.lock() = file;
    }
}

pub(crate) fn disk_error(e: rustix::io::Errno) -> Errno {
    let errno = Errno(e.raw_os_error());
    record_cause(errno, || format!("the disk of this node: {errno}"));
    errno
}

/// Writes until all is written or an error stops it: then the number of written bytes counts, as in
/// write(2).
pub(crate) fn write_fully(file: &OwnedFd, data: &[u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(file, &data[done..], offset + done as u64) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) if done == 0 => return Err(disk_error(e)),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn fallocate_flags(mode: AllocMode) -> FallocateFlags {
    match mode {
        AllocMode::Extend => FallocateFlags::empty(),
        AllocMode::Keep => FallocateFlags::KEEP_SIZE,
        AllocMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        AllocMode::Zero => FallocateFlags::ZERO_RANGE,
        AllocMode::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

/// Returns size, storage and times of a backing file.
///
/// # Errors
/// Those of fstat(2).
pub fn stat_file(file: &OwnedFd) -> Result<ObjectState, Errno> {
    let stat = rustix::fs::fstat(file).map_err(disk_error)?;
    Ok(ObjectState {
        exists: true,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        mtime: Timestamp { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 },
        changed: Timestamp { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 },
        is_restarted: stat.st_mtime < tatami_tables::boot_seconds(),
    })
}
