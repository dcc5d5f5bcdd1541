//! Files mapped into memory and shared with other processes.
//!
//! Nothing here is ever seen as bytes or as a slice: other processes store into the same pages. An
//! access of this process is an atomic word, or a copy by the kernel.

use crate::store_guard::StoreGuard;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Most places of one [`Mapping::copy_into_places`]: as many as the kernel takes.
pub const PLACES_MAX: usize = 1024;

/// Maps a range of a file.
fn map_shared(
    file: impl AsFd,
    offset: u64,
    len: usize,
    writable: bool,
) -> Result<NonNull<u8>, Errno> {
    let protection = match writable {
        true => ProtFlags::READ | ProtFlags::WRITE,
        false => ProtFlags::READ,
    };
    // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
    let at = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset)
    }?;
    NonNull::new(at.cast()).ok_or(Errno::NOMEM)
}

/// A range of a file, shared with all processes that map it.
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
        let at = map_shared(file, 0, len, writable)?;
        Ok(Mapping { at, len, writable })
    }

    /// Maps `len` bytes of `file` from byte `offset` on, a multiple of the page size, for
    /// [`Mapping::copy_into_places`]. They need not exist.
    ///
    /// # Errors
    /// As for [`Mapping::new`].
    pub fn for_copies(file: impl AsFd, offset: u64, len: usize) -> Result<Mapping, Errno> {
        Ok(Mapping { at: map_shared(file, offset, len, true)?, len, writable: true })
    }

    /// Copies `bytes`, piece after piece, to `places` in the mapping: offsets and lengths, at most
    /// [`PLACES_MAX`]. The kernel copies, so a page that cannot be had (past the end of the file,
    /// or on a full disk) ends the copy and is no signal. Returns the number of bytes copied.
    ///
    /// # Errors
    /// `EFAULT`: the first page cannot be had. `EPERM`, `ENOSYS`: this machine forbids such copies.
    /// `EINVAL`: a place is not in the mapping, or there are more than bytes.
    pub fn copy_into_places(
        &self,
        places: &[(usize, usize)],
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let all = self.check_places(places, bytes)?;
        if places.len() > PLACES_MAX {
            return Err(Errno::INVAL);
        }
        let into: Vec<libc::iovec> = places
            .iter()
            .map(|(at, len)| libc::iovec {
                iov_base: self.at.as_ptr().wrapping_add(*at).cast(),
                iov_len: *len,
            })
            .collect();
        let from = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: all };
        // SAFETY: every place lies in the mapping, of which no reference exists. The kernel only
        // reads `bytes`.
        let copied = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                into.as_ptr(),
                into.len() as libc::c_ulong,
                &raw const from,
                1,
                0,
            )
        };
        match usize::try_from(copied) {
            Ok(copied) => Ok(copied),
            Err(_) => {
                let error = std::io::Error::last_os_error();
                Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
        }
    }

    /// Copies `bytes`, piece after piece, to `places` in the mapping, by stores of this thread.
    /// Returns whether all pages could be had; otherwise any of the pieces may be missing, and the
    /// mapping must not be used any more.
    ///
    /// # Errors
    /// `EINVAL`: a place is not in the mapping, or there are more than bytes. `EPERM`: this process
    /// does not guard its stores ([`guard_stores`](crate::guard_stores)).
    pub fn store_into_places(
        &mut self,
        places: &[(usize, usize)],
        bytes: &[u8],
    ) -> Result<bool, Errno> {
        self.check_places(places, bytes)?;
        let guard = StoreGuard::enter(self.at.as_ptr() as usize, self.len).ok_or(Errno::PERM)?;
        let mut from = bytes.as_ptr();
        for (at, len) in places {
            // SAFETY: the place lies in the mapping, of which no reference exists, and the bytes in
            // `bytes`. A page that cannot be had becomes one of the guard.
            unsafe {
                let to = self.at.as_ptr().add(*at);
                match len {
                    // One store, as the most common pieces are numbers.
                    8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
                    4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
                    len => std::ptr::copy_nonoverlapping(from, to, *len),
                }
                from = from.add(*len);
            }
        }
        Ok(guard.leave())
    }

    /// Returns the bytes of all places, which must lie in the mapping.
    fn check_places(&self, places: &[(usize, usize)], bytes: &[u8]) -> Result<usize, Errno> {
        let fits = |(at, len): &(usize, usize)| at.checked_add(*len).is_some_and(|e| e <= self.len);
        let add = |sum: usize, (_, len): &(usize, usize)| sum.checked_add(*len);
        let all = places.iter().try_fold(0, add).filter(|all| *all <= bytes.len());
        match self.writable && places.iter().all(fits) {
            true => all.ok_or(Errno::INVAL),
            false => Err(Errno::INVAL),
        }
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
