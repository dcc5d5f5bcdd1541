//! One object with its backing file open, and the operations on it.

use crate::disk::Disk;
use crate::name::ObjectKey;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tatami_wire::object::{AllocMode, ObjectState, SeekTarget};
use tatami_wire::{Errno, FILE_SIZE_MAX, Timestamp};

/// Bytes moved at a time where the kernel cannot copy or zero by itself.
const FALLBACK_CHUNK: usize = 128 * 1024;

/// An object whose backing file is open for reading and writing.
///
/// It stays usable after the object was removed, like any open file.
#[derive(Debug)]
pub struct Object {
    pub(crate) key: ObjectKey,
    fd: OwnedFd,
    /// Guards the descriptor's position, which only appends and seeks use.
    position: Mutex<()>,
    /// The backing file's name is known to survive a power cut.
    pub(crate) name_durable: AtomicBool,
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Object {
    pub(crate) fn new(key: ObjectKey, fd: OwnedFd) -> Object {
        Object { key, fd, position: Mutex::new(()), name_durable: AtomicBool::new(false) }
    }

    /// Returns size and storage now.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn state(&self) -> Result<ObjectState, Errno> {
        Ok(state_from_stat(&rustix::fs::fstat(&self.fd).map_err(to_errno)?))
    }

    pub(crate) fn has_durable_name(&self) -> bool {
        // Acquire: pairs with the release after the sync of the directory.
        self.name_durable.load(Ordering::Acquire)
    }

    pub(crate) fn read_at(
        &self,
        disk: &dyn Disk,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buf.len() {
            match disk.read_at(self.as_fd(), &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        assert!(done <= buf.len(), "a call has moved more bytes than it was given");
        Ok(done)
    }

    pub(crate) fn write_at(&self, disk: &dyn Disk, data: &[u8], offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            match disk.write_at(self.as_fd(), &data[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        assert_eq!(done, data.len(), "a write succeeds without all of its bytes");
        Ok(())
    }

    /// Appends, and returns the offset of the first byte. Atomic with regard to other appends, also
    /// to those of processes that hold the backing file itself.
    pub(crate) fn append(&self, disk: &dyn Disk, data: &[u8]) -> Result<u64, Errno> {
        if data.is_empty() {
            return Ok(self.state()?.size);
        }
        let _position = self.position.lock();
        let mut start = None;
        let mut done = 0;
        while done < data.len() {
            match disk.append(self.as_fd(), &data[done..]) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => {
                    done += n;
                    // The kernel leaves the position behind the bytes that it appended, which is
                    // the only report of their offset. The lock keeps other appends of this
                    // descriptor from moving it in between.
                    let end = rustix::fs::tell(&self.fd).map_err(to_errno)?;
                    start.get_or_insert(end - n as u64);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        assert_eq!(done, data.len(), "a write succeeds without all of its bytes");
        Ok(start.expect("at least one call moved bytes"))
    }

    pub(crate) fn truncate(&self, disk: &dyn Disk, size: u64) -> Result<(), Errno> {
        Ok(disk.truncate(self.as_fd(), size)?)
    }

    pub(crate) fn allocate(
        &self,
        disk: &dyn Disk,
        mode: AllocMode,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let flags = match mode {
            AllocMode::Extend => FallocateFlags::empty(),
            AllocMode::Keep => FallocateFlags::KEEP_SIZE,
            AllocMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            AllocMode::Zero => FallocateFlags::ZERO_RANGE,
            AllocMode::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        match disk.allocate(self.as_fd(), flags, offset, len) {
            Err(e)
                if matches!(mode, AllocMode::Zero | AllocMode::ZeroKeep)
                    && Errno::from(&e) == Errno::EOPNOTSUPP =>
            {
                self.write_zeros(disk, offset, len, mode == AllocMode::Zero)
            }
            other => Ok(other?),
        }
    }

    /// Writes zeros where the file system lacks `FALLOC_FL_ZERO_RANGE`. Zeros past the end need no
    /// storage: the longer file has them by itself.
    fn write_zeros(&self, disk: &dyn Disk, offset: u64, len: u64, grow: bool) -> Result<(), Errno> {
        let size = self.state()?.size;
        let end = offset + len;
        let zeros = vec![0; FALLBACK_CHUNK];
        let mut at = offset;
        while at < end.min(size) {
            let n = usize::try_from(end.min(size) - at).unwrap_or(usize::MAX).min(zeros.len());
            self.write_at(disk, &zeros[..n], at)?;
            at += n as u64;
        }
        if grow && end > size {
            self.truncate(disk, end)?;
        }
        Ok(())
    }

    pub(crate) fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        let from = match what {
            SeekTarget::Data => SeekFrom::Data(offset),
            SeekTarget::Hole => SeekFrom::Hole(offset),
        };
        // A seek for data moves the position that appends read.
        let _position = self.position.lock();
        rustix::fs::seek(&self.fd, from).map_err(to_errno)
    }

    pub(crate) fn copy_from(
        &self,
        disk: &dyn Disk,
        source: &Object,
        source_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        let mut done = 0;
        while done < len {
            let (from, to) = (source_offset + done, offset + done);
            let n = usize::try_from(len - done).unwrap_or(usize::MAX).min(1 << 30);
            let moved = match disk.copy_range(source.as_fd(), from, self.as_fd(), to, n) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // Two disks, or a file system that cannot copy: the daemon copies.
                Err(e)
                    if matches!(
                        Errno::from(&e),
                        Errno::EXDEV | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL
                    ) =>
                {
                    let mut buffer = vec![0; n.min(FALLBACK_CHUNK)];
                    let n = source.read_at(disk, &mut buffer, from)?;
                    self.write_at(disk, &buffer[..n], to)?;
                    n
                }
                Err(e) => return Err(e.into()),
            };
            if moved == 0 {
                break;
            }
            done += moved as u64;
        }
        Ok(done)
    }
}

/// Checks that a signed offset can address the range.
pub(crate) fn check_range(offset: u64, len: u64) -> Result<(), Errno> {
    if offset > FILE_SIZE_MAX {
        return Err(Errno::EINVAL);
    }
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => Err(Errno::EFBIG),
    }
}

pub(crate) fn to_errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

pub(crate) fn state_from_stat(stat: &rustix::fs::Stat) -> ObjectState {
    ObjectState {
        exists: true,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        mtime: Timestamp { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 },
        changed: Timestamp { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 },
        is_restarted: stat.st_mtime < tatami_tables::boot_seconds(),
    }
}
