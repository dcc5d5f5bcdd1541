//! Files mapped into memory and shared with other processes, word by word.
//!
//! Nothing here is ever seen as bytes or as a slice: other processes store into the same pages, so
//! each access is an atomic word.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The first bytes of a file, shared with all processes that map it.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is memory that no thread owns; it is only touched as atomic words, and
// unmapped once.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`. All of them must exist, and must have their blocks
    /// when `writable`: a store cannot return an error. The file must not become shorter meanwhile.
    ///
    /// # Errors
    /// `EINVAL` for no bytes; the errors of mmap(2), `ENODEV` for a file system without mappings.
    pub fn new(file: impl AsFd, len: usize, writable: bool) -> Result<Mapping, Errno> {
        let protection = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)
        }?;
        let at = NonNull::new(at.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { at, len, writable })
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The word at byte `offset`; `None` where the offset is not aligned or passes the end.
    pub fn word_at(&self, offset: usize) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.len {
            return None;
        }
        // SAFETY: the 8 bytes lie in the mapping, which is page-aligned and lives as long as self;
        // all processes access them as atomics.
        Some(unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) })
    }

    /// Whether words may be stored.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Brings the stored words to the disk.
    ///
    /// # Errors
    /// Those of msync(2).
    pub fn flush(&self) -> Result<(), Errno> {
        // SAFETY: the range is the mapping.
        unsafe { rustix::mm::msync(self.at.as_ptr().cast(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; no reference into it outlives self.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
