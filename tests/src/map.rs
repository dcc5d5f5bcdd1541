//! A file mapped into memory, for tests of mmap(2).

use std::fs::File;

/// A mapping. Dropping it unmaps it.
pub struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    /// `MAP_SHARED`: stores go to the file.
    pub fn shared(file: &File, len: usize) -> Map {
        Map::new(file, len, rustix::mm::MapFlags::SHARED)
    }

    /// `MAP_PRIVATE`: stores stay in this process.
    pub fn private(file: &File, len: usize) -> Map {
        Map::new(file, len, rustix::mm::MapFlags::PRIVATE)
    }

    fn new(file: &File, len: usize, flags: rustix::mm::MapFlags) -> Map {
        use rustix::mm::ProtFlags;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nothing else uses.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) };
        Map { at: at.expect("mmap").cast(), len }
    }

    /// The mapped bytes. Tests do not shorten the file below them.
    #[allow(clippy::mut_from_ref)] // shared memory is its purpose
    pub fn bytes(&self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long and lives as long as `self`;
        // tests use one such slice at a time.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Syncs the whole mapping with msync(MS_SYNC).
    pub fn sync(&self) {
        // SAFETY: the range is the mapping's own.
        unsafe { rustix::mm::msync(self.at.cast(), self.len, rustix::mm::MsyncFlags::SYNC) }
            .expect("msync");
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the value is dropped, so no reference into the mapping is left.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }
}
