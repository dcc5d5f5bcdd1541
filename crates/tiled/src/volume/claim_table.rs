//! The claim table: the ranks of one node agree through it on the rank that requests the
//! descriptors of all.

use crate::mapping::Mapping;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a claim table.
pub(super) const TABLE: usize = 4096;
/// Opens that can be claimed at a time. If two opens share a word, an open may be claimed twice:
/// then the ranks request more than they need.
const PLACES: u64 = (TABLE / 8) as u64;
/// These seals keep every process from shortening the table. A shorter file would kill a process
/// that reads its mapping (SIGBUS).
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The opens for which some rank has sent the request to the daemon.
#[derive(Debug)]
pub(super) struct ClaimTable {
    pub(super) memory: Mapping,
    /// A wait for a rank of the group has timed out.
    pub(super) is_broken: AtomicBool,
}

impl ClaimTable {
    /// Creates a table, and the descriptor by which the other ranks open it.
    pub(super) fn create() -> Result<(ClaimTable, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("tatami-claims", flags)?;
        rustix::fs::ftruncate(&file, TABLE as u64)?;
        // The size comes first: the seals forbid any later change of it.
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let memory = Mapping::new(&file, TABLE, true)?;
        Ok((ClaimTable { memory, is_broken: AtomicBool::new(false) }, file))
    }

    /// Opens the table of another process.
    ///
    /// # Errors
    /// `EINVAL` for a file that is no claim table.
    pub(super) fn open(file: OwnedFd) -> Result<ClaimTable, Errno> {
        // Check the seals before the size: without them the sender could shorten the file after the
        // check.
        let is_sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALS);
        if !is_sealed || rustix::fs::fstat(&file)?.st_size != TABLE as i64 {
            return Err(Errno::INVAL);
        }
        let memory = Mapping::new(&file, TABLE, true)?;
        Ok(ClaimTable { memory, is_broken: AtomicBool::new(false) })
    }

    /// Claims an open for the caller; returns false where another rank has claimed it.
    pub(super) fn claim(&self, open: u64) -> bool {
        let place = (open % PLACES) as usize * 8;
        let Some(word) = self.memory.word_at(place) else { return true };
        // A swap, and no load and store: of several ranks that arrive at once, exactly one sees
        // another value.
        word.swap(open, Ordering::AcqRel) != open
    }

    pub(super) fn is_claimed(&self, open: u64) -> bool {
        let place = (open % PLACES) as usize * 8;
        self.memory.word_at(place).is_some_and(|word| word.load(Ordering::Acquire) == open)
    }
}
