//! The state that the ranks of one open share, and the state that all opens of a container share:
//! words in two files.
//!
//! `o.<open>` is the rank table of an open: a header and a slot for each rank, in which the rank
//! counts its changes. A reader first loads the counts: one load per rank, no system call. Ranks
//! hold a shared lock (flock) on the table while they live; a lock without holder means that the
//! job is dead. Other machines that mount the file system may not know of the lock. There each rank
//! writes a heartbeat into its slot, and a job counts as dead if all of it ran here, or if no rank
//! has sent one for a whole lease.
//!
//! `shared` has the clock and the generation. The generation changes when an index is replaced or
//! an open begins.

use crate::heartbeat::{Heartbeat, LEASE};
use crate::journal::JournalError;
use crate::machine;
use crate::shared::SharedWords;
use crate::sharing::{self, SharingScope};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use tatami_layout::journal::Damage;

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIR1");
const SLOT: u64 = 64;
/// Offset in a slot of the machine and mount of the rank, followed by the time of its heartbeat.
const HEARTBEAT: u64 = 24;
/// Most ranks of one open: bounds the memory that a damaged table can make us reserve.
pub const RANKS_MAX: u32 = 1 << 22;

/// An unknown number of changes, because its word is damaged: the journal must be read.
pub const CHANGES_UNKNOWN: u64 = u64::MAX;
/// Bits of a slot's first word that hold the number of changes. Above them is a check; the highest
/// bit states that there is one.
const COUNT_BITS: u32 = 40;
const COUNTED: u64 = 1 << 63;

/// Returns the word for a number of changes. The word has its own check, because it alone decides
/// whether a journal must be read.
fn count_word(changes: u64) -> u64 {
    let count = changes & ((1 << COUNT_BITS) - 1);
    let check = u64::from(crc32c::crc32c(&count.to_le_bytes())) | 1;
    count | (check << COUNT_BITS) & !COUNTED | COUNTED
}

/// Decodes the number of changes in a word. The word of a rank without a journal is 0.
fn decode_count(word: u64) -> u64 {
    let count = word & ((1 << COUNT_BITS) - 1);
    if word == 0 || word == count_word(count) { count } else { CHANGES_UNKNOWN }
}

/// The header of a rank table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHeader {
    /// The number of the open.
    pub open: u64,
    /// Its processes.
    pub ranks: u32,
    /// The machine on which all of them run, or 0.
    pub machine: u32,
}

/// The rank table of an open.
#[derive(Debug)]
pub struct RankTable {
    /// The open.
    pub header: OpenHeader,
    words: SharedWords,
    scope: SharingScope,
}

/// The heartbeat of a rank, on a file system that other machines mount, too.
#[derive(Debug)]
pub struct RankHeartbeat {
    file: File,
    rank: u32,
    here: u32,
}

impl Heartbeat for RankHeartbeat {
    fn send_heartbeat(&self) {
        let mut beat = u64::from(self.here).to_le_bytes().to_vec();
        beat.extend(machine::now().to_le_bytes());
        // A write call, not a store into mapped memory: other machines must see it.
        if self.file.write_all_at(&beat, slot_offset(self.rank) + HEARTBEAT).is_ok() {
            let _ = rustix::fs::fdatasync(&self.file);
        }
    }
}

fn header_words(of: OpenHeader) -> [u64; 8] {
    let counts = u64::from(of.ranks) << 32 | u64::from(of.machine);
    let mut words = [MAGIC, of.open, counts, 0, 0, 0, 0, 0];
    let sum = words[..7].iter().fold(0, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()));
    words[7] = u64::from(sum);
    words
}

fn slot_offset(rank: u32) -> u64 {
    SLOT + u64::from(rank) * SLOT
}

impl RankTable {
    /// Creates the rank table of a new open in `file`, which is empty.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the disk.
    pub fn create(file: File, of: OpenHeader, reach: SharingScope) -> Result<RankTable, Errno> {
        crate::shared::reserve_blocks(&file, slot_offset(of.ranks))?;
        // The blocks first, then the header: a reader that finds the header may use all slots.
        let words =
            SharedWords::new(file, of.machine == machine::machine_id() && reach.shares_maps, true)?;
        words.store_record(0, &header_words(of))?;
        Ok(RankTable { header: of, words, scope: reach })
    }

    /// Opens the rank table of `open`; `None` where its header is not complete yet.
    ///
    /// # Errors
    /// Those of the disk; [`Damage`] for a file that is no rank table of that open.
    pub fn open(
        file: File,
        open: u64,
        writable: bool,
        reach: SharingScope,
    ) -> Result<Option<RankTable>, JournalError> {
        // The header, and a page of slots that no rank fills before the header is there.
        let mut found = [0; 512];
        let plain = SharedWords::new(file, false, writable)?;
        plain.load_words(0, &mut found)?;
        let of = OpenHeader { open, ranks: (found[2] >> 32) as u32, machine: found[2] as u32 };
        if found == [0; 512] || found[0] != 0 && found[7] == 0 {
            return Ok(None);
        }
        if found[..8] != header_words(of) || of.ranks > RANKS_MAX {
            return Err(Damage { at: 0, what: "it is no roll of this open" }.into());
        }
        let file = plain.into_file();
        let words = SharedWords::new(
            file,
            of.machine == machine::machine_id() && reach.shares_maps,
            writable,
        )?;
        Ok(Some(RankTable { header: of, words, scope: reach }))
    }

    /// Uses the file of a table with a damaged header: only its lock is reliable. It had at most
    /// `ranks`.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn without_header(
        file: File,
        open: u64,
        ranks: u32,
        reach: SharingScope,
    ) -> Result<RankTable, Errno> {
        let of = OpenHeader { open, ranks: ranks.min(RANKS_MAX), machine: 0 };
        Ok(RankTable { header: of, words: SharedWords::new(file, false, true)?, scope: reach })
    }

    /// Whether the table is memory that all ranks share.
    pub fn is_mapped(&self) -> bool {
        self.words.is_mapped()
    }

    /// Whether all ranks run on this machine, and share the memory of mapped files.
    pub fn is_local(&self) -> bool {
        self.header.machine == machine::machine_id() && self.scope.shares_maps
    }

    /// Marks this process as a member of the open, until the table is dropped.
    ///
    /// # Errors
    /// Those of flock(2); `EWOULDBLOCK` while another process recovers the open, as if it were
    /// dead.
    pub fn join_open(&self) -> Result<(), Errno> {
        match rustix::fs::flock(self.words.file(), FlockOperation::NonBlockingLockShared) {
            Err(errno) if self.scope.remote && sharing::has_no_locks(errno) => Ok(()),
            other => other,
        }
    }

    /// Starts the heartbeat of `rank`, this process, for other machines; `None` where there are
    /// none. The first heartbeat has been sent when this returns.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn start_heartbeat(&self, rank: u32) -> Result<Option<RankHeartbeat>, Errno> {
        if !self.scope.remote {
            return Ok(None);
        }
        let file = self.words.file().try_clone();
        let file = file.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let alive = RankHeartbeat { file, rank, here: self.scope.lock_domain };
        // The first one is sent before the rank writes: another machine must not find the open
        // without any.
        alive.send_heartbeat();
        Ok(Some(alive))
    }

    /// Reports whether all members of the open are dead. If so, no process can join it until this
    /// table is dropped.
    ///
    /// # Errors
    /// Those of flock(2), and of the disk.
    pub fn is_job_dead(&self) -> Result<bool, Errno> {
        let file = self.words.file();
        // The exclusive lock excludes the shared locks of all living ranks that share locks with
        // us, and keeps new ones out while the open is recovered.
        let locked = match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => true,
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) if self.scope.remote && sharing::has_no_locks(errno) => false,
            Err(errno) => return Err(errno),
        };
        if self.scope.remote && self.has_recent_heartbeat(machine::now(), locked)? {
            // Without this, ranks that join would be refused.
            if locked {
                rustix::fs::flock(file, FlockOperation::Unlock)?;
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// Reports whether a rank that does not share locks with us has sent a heartbeat within the
    /// lease before `now`. With `locked` no rank that shares locks with us is alive.
    fn has_recent_heartbeat(&self, now: u64, locked: bool) -> Result<bool, Errno> {
        let lease = u64::try_from(LEASE.as_micros()).unwrap_or(u64::MAX);
        let mut slots = vec![0u8; (u64::from(self.header.ranks) * SLOT) as usize];
        match self.words.file().read_at(&mut slots, SLOT) {
            Ok(read) => slots.truncate(read),
            Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        }
        let word = |slot: &[u8], at: usize| {
            let bytes = slot.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        Ok(slots.chunks_exact(SLOT as usize).any(|slot| {
            let (here, beat) = (word(slot, HEARTBEAT as usize), word(slot, HEARTBEAT as usize + 8));
            let known = locked && here == u64::from(self.scope.lock_domain);
            beat != 0 && !known && now < beat.saturating_add(lease)
        }))
    }

    /// Loads the changes of all ranks into `counts`, one per rank; [`CHANGES_UNKNOWN`] where a word
    /// is damaged.
    ///
    /// # Errors
    /// Those of the disk, where the roll is not mapped.
    pub fn load_changes(&self, counts: &mut [u64]) -> Result<(), Errno> {
        if self.words.is_mapped() {
            for (rank, count) in counts.iter_mut().enumerate() {
                *count = decode_count(self.words.load(slot_offset(rank as u32))?);
            }
            return Ok(());
        }
        // One read for all slots: each read is a system call here.
        let mut all = vec![0; counts.len() * 8];
        self.words.load_words(SLOT, &mut all)?;
        for (count, slot) in counts.iter_mut().zip(all.chunks_exact(8)) {
            *count = decode_count(slot[0]);
        }
        Ok(())
    }

    /// Loads the changes of the rank's journal; [`CHANGES_UNKNOWN`] where the word is damaged.
    ///
    /// # Errors
    /// Those of the disk, where the roll is not mapped.
    pub fn load_rank_changes(&self, rank: u32) -> Result<u64, Errno> {
        self.words.load(slot_offset(rank)).map(decode_count)
    }

    /// Reports whether the rank may have written bytes under the byte view in `from .. to`: they
    /// lie between its first and its last byte.
    ///
    /// # Errors
    /// Those of the disk, where the roll is not mapped.
    pub fn may_have_written(&self, rank: u32, from: u64, to: u64) -> Result<bool, Errno> {
        match self.load_hull(rank) {
            Ok((lo, hi)) => Ok(lo < to && from < hi),
            // The open has ended, and its tiles are in the index: assume the worst.
            Err(errno) if sharing::is_gone(errno) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    fn load_hull(&self, rank: u32) -> Result<(u64, u64), Errno> {
        // The writer stores `lo` before `hi`, so a table with a `hi` has a `lo`.
        let hi = self.words.load(slot_offset(rank) + 16)?;
        let lo = if hi == 0 { 0 } else { self.words.load(slot_offset(rank) + 8)? };
        Ok((lo, hi))
    }

    /// Records a larger hull of a rank. The rank calls this before it records tiles in the hull.
    ///
    /// # Errors
    /// Those of the disk, where the roll is not mapped.
    pub fn set_hull(&self, rank: u32, hull: (u64, u64)) -> Result<(), Errno> {
        self.words.store(slot_offset(rank) + 8, hull.0)?;
        self.words.store(slot_offset(rank) + 16, hull.1)
    }

    /// Records a change of the rank's journal.
    ///
    /// # Errors
    /// Those of the disk, where the roll is not mapped.
    pub fn set_changes(&self, rank: u32, changes: u64) -> Result<(), Errno> {
        self.words.store(slot_offset(rank), count_word(changes))
    }

    /// Brings it to the disk.
    ///
    /// # Errors
    /// Those of msync(2), fdatasync(2).
    pub fn flush(&self) -> Result<(), Errno> {
        self.words.flush()
    }
}

const GENERATION: u64 = 8;
const CLOCK: u64 = 16;
const SHARED_LEN: u64 = 4096;

/// The file `shared` of a container.
#[derive(Debug)]
pub struct SharedClock {
    words: Option<SharedWords>,
    mapped: bool,
    /// Where nothing is shared: the last stamp of this process for this handle.
    last: std::sync::atomic::AtomicU64,
}

impl SharedClock {
    /// Creates it in `file`, which is empty.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the disk.
    pub fn create(file: &File) -> Result<(), Errno> {
        crate::shared::reserve_blocks(file, SHARED_LEN)
    }

    /// Uses `file`. Without one this handle has a clock of its own and no generation. `mapped`: no
    /// other machine mounts the file system.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn new(file: Option<(File, bool)>, mapped: bool) -> Result<SharedClock, Errno> {
        let words = match file {
            Some((file, writable)) => Some(SharedWords::new(file, mapped, writable)?),
            None => None,
        };
        Ok(SharedClock { words, mapped, last: std::sync::atomic::AtomicU64::new(0) })
    }

    /// Uses the clock in mapped words, which may hold other data, too.
    pub fn from_words(words: SharedWords) -> SharedClock {
        SharedClock { words: Some(words), mapped: true, last: std::sync::atomic::AtomicU64::new(0) }
    }

    /// The words, if there are any.
    pub fn words(&self) -> Option<&SharedWords> {
        self.words.as_ref()
    }

    /// Returns a number that changes when an open begins or an index is replaced.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn generation(&self) -> Result<u64, Errno> {
        self.words.as_ref().map_or(Ok(0), |words| words.load(GENERATION))
    }

    /// Changes the generation.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn bump_generation(&self) -> Result<(), Errno> {
        match &self.words {
            // Two machines may increment at once and count one change only; a random number is
            // always new.
            Some(words) if !self.mapped => words.store(GENERATION, machine::draw_number()?),
            Some(words) => words.update_word(GENERATION, |old| old.wrapping_add(1)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Returns a stamp that is later than all stamps that were issued or observed here: the time,
    /// or one more than the last. (Hybrid logical clock, Kulkarni et al. 2014.)
    pub fn next_stamp(&self) -> u64 {
        use std::sync::atomic::Ordering;
        let now = machine::now();
        let next = |old: u64| now.max(old.saturating_add(1));
        let shared = self.words.as_ref().and_then(|words| self.advance_clock(words, next).ok());
        // The own clock advances, too: the shared one may be lost, or lag behind on another
        // machine.
        let own = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
            Some(shared.map_or_else(|| next(last), |old| next(old.max(last))))
        });
        let own = own.unwrap_or_else(|last| last);
        shared.map_or_else(|| next(own), |old| next(old.max(own)))
    }

    /// Makes all later stamps later than `stamp`.
    pub fn observe_stamp(&self, stamp: u64) {
        use std::sync::atomic::Ordering;
        self.last.fetch_max(stamp, Ordering::AcqRel);
        if let Some(words) = &self.words {
            // A shared clock that lags behind is no error: the process has its own.
            let _ = self.advance_clock(words, |old| old.max(stamp));
        }
    }

    /// Advances the shared clock; returns its old value. Among machines a step may be lost; then
    /// the time of each machine decides, with which each stamp begins.
    fn advance_clock(
        &self,
        words: &SharedWords,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, Errno> {
        if self.mapped {
            return words.update_word(CLOCK, change);
        }
        let old = words.load(CLOCK)?;
        if change(old) != old {
            words.store(CLOCK, change(old))?;
        }
        Ok(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_of_a_count_is_never_another_count() {
        for count in [0, 1, 77, (1 << COUNT_BITS) - 1] {
            let word = count_word(count);
            assert_eq!(decode_count(word), count);
            for bit in 0..64 {
                assert_eq!(decode_count(word ^ 1 << bit), CHANGES_UNKNOWN, "{count}, bit {bit}");
            }
        }
        assert_eq!((decode_count(0), decode_count(1)), (0, CHANGES_UNKNOWN));
    }

    fn made(dir: &std::path::Path) -> std::path::PathBuf {
        let path = dir.join("o");
        let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let of = OpenHeader { open: 7, ranks: 3, machine: machine::machine_id() };
        let reach = SharingScope { remote: false, shares_maps: true, lock_domain: 0 };
        let roll = RankTable::create(file.unwrap(), of, reach).unwrap();
        roll.set_changes(2, 5).unwrap();
        path
    }

    fn open(path: &std::path::Path) -> Result<Option<RankTable>, JournalError> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        RankTable::open(
            file,
            7,
            true,
            SharingScope { remote: false, shares_maps: true, lock_domain: 0 },
        )
    }

    #[test]
    fn a_flipped_bit_of_a_header_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = made(dir.path());
        let good = std::fs::read(&path).unwrap();
        for bit in 0..SLOT as usize * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(open(&path), Err(JournalError::Damage(_))), "bit {bit}");
        }
        let mut bytes = good.clone();
        bytes[..SLOT as usize].fill(0);
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(open(&path), Err(JournalError::Damage(_))), "without its header");
        std::fs::write(&path, vec![0; good.len()]).unwrap();
        assert!(matches!(open(&path), Ok(None)), "not there yet");
        std::fs::write(&path, good).unwrap();
        let mut counts = [0; 3];
        open(&path).unwrap().unwrap().load_changes(&mut counts).unwrap();
        assert_eq!(counts, [0, 0, 5]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_roll_or_an_error(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..700)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("o");
            std::fs::write(&path, bytes).unwrap();
            let _ = open(&path).map(|roll| roll.is_some());
        }
    }
}
