//! The reserve: disk blocks that are kept for the store, in a file without content. The file is
//! shortened when a log or a table finds the disk full.
//!
//! Users fill the disk with the bytes of files. The kernel writes many of those itself, so the
//! daemon cannot enforce a bound. Blocks that are allocated already cannot be taken by others.
//! Blocks that are given back for a log are allocated for that log at once.

use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::path::Path;

/// The file's name, in the directory of the store.
const RESERVE_FILE: &str = "reserve";
/// The reserve of a store is at most this share of its disk: one part in 16.
const DISK_SHARE: u64 = 16;
/// Most bytes that are given back for a log at a time.
const STEP_BYTES_MAX: u64 = 1 << 20;
/// Fewer bytes are not worth a system call.
const BYTES_MIN: u64 = 64 << 10;

/// The reserve of a store; see the module. Where the file cannot be made, it is empty.
#[derive(Default)]
pub(super) struct Reserve {
    file: Option<File>,
    /// Its bytes, all of them allocated.
    len: u64,
    /// The bytes that it should have.
    target: u64,
}

impl Reserve {
    /// Opens the reserve of the store in `dir`, of `bytes` on a disk of `total` bytes with `free`
    /// of them free.
    pub fn open(dir: &Path, bytes: u64, total: u64, free: u64) -> std::io::Result<Reserve> {
        let target = bytes.min(total / DISK_SHARE);
        let path = dir.join(RESERVE_FILE);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut reserve = Reserve { len: file.metadata()?.len(), file: Some(file), target };
        reserve.release_blocks(reserve.len.saturating_sub(target));
        reserve.refill_blocks(free);
        Ok(reserve)
    }

    /// Returns its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the bytes that are given back for a log at a time.
    pub fn step_bytes(&self) -> u64 {
        (self.target / 4).clamp(BYTES_MIN, STEP_BYTES_MAX)
    }

    /// Gives at most `bytes` back to the disk. Returns whether there were any.
    pub fn release_blocks(&mut self, bytes: u64) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.len > 0 && bytes > 0) else {
            return false;
        };
        let len = self.len.saturating_sub(bytes);
        if file.set_len(len).is_err() {
            return false;
        }
        assert!(len < self.len, "a reserve that is given back is no shorter");
        self.len = len;
        true
    }

    /// Takes the missing blocks, but at most half of the free ones.
    pub fn refill_blocks(&mut self, free: u64) {
        // Half, so that the other users of the disk keep some room.
        let bytes = (self.target.saturating_sub(self.len)).min(free / 2);
        let Some(file) = self.file.as_ref().filter(|_| bytes >= BYTES_MIN) else { return };
        match rustix::fs::fallocate(file, FallocateFlags::empty(), self.len, bytes) {
            Ok(()) => {
                self.len += bytes;
                assert!(self.len <= self.target, "a reserve is longer than it should be");
            }
            // A part may have been allocated. Where the disk cannot allocate ahead, there is no
            // reserve.
            Err(_) => _ = file.set_len(self.len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_gives_back_and_takes_back_within_its_bounds() {
        let dir = tempfile::tempdir().expect("directory");
        let on_disk = || std::fs::metadata(dir.path().join(RESERVE_FILE)).expect("is there").len();
        let mut reserve = Reserve::open(dir.path(), 4 * MIB, 1 << 40, 1 << 40).expect("opens");
        assert_eq!((reserve.len(), on_disk()), (4 * MIB, 4 * MIB));
        assert!(reserve.release_blocks(MIB) && reserve.release_blocks(2 * MIB));
        assert_eq!((reserve.len(), on_disk()), (MIB, MIB));
        reserve.refill_blocks(2 * MIB);
        assert_eq!(reserve.len(), 2 * MIB, "a half of what is free");
        reserve.refill_blocks(BYTES_MIN);
        assert_eq!(reserve.len(), 2 * MIB);
        assert!(reserve.release_blocks(u64::MAX));
        assert!(!reserve.release_blocks(1), "it is empty");
        drop(reserve);
        let reserve = Reserve::open(dir.path(), 4 * MIB, 32 * MIB, 1 << 40).expect("opens");
        assert_eq!(reserve.len(), 2 * MIB, "a sixteenth of the disk");
        drop(reserve);
        let reserve = Reserve::open(dir.path(), 0, 1 << 40, 1 << 40).expect("opens");
        assert_eq!((reserve.len(), on_disk()), (0, 0), "none is wanted any more");
    }
}
