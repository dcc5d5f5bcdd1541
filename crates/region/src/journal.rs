//! The journal: a file with two halves, written in turn.
//!
//! A change is in the journal, and so in the kernel's memory, before its reply: it survives the
//! death of the daemon. A sync of the file makes it survive a power cut. When one half is full,
//! changes go to the other one, and the objects of the full half are written to regions. Then that
//! half is free. Room is reserved before an object is locked, so a change that waits for room holds
//! up no other object, and the thread that makes room never waits for it.

use crate::block_device::LogFile;
use crate::class::BLOCK;
use crate::generation::make_generation;
use crate::journal_record::{JournalChange, JournalRecord, decode_half_head, encode_half_head};
use crate::region_head::RegionKey;
use crate::signal::Signal;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use tatami_wire::{Errno, Timestamp};

/// Where records begin in a half.
const RECORDS_AT: u64 = BLOCK as u64;

/// Whether a half takes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HalfState {
    /// It has nothing that is needed.
    Free,
    /// New changes go there.
    Active,
    /// Only changes that have reserved room go there; then its objects must be written.
    Closing,
}

#[derive(Debug)]
struct Half {
    state: HalfState,
    generation: u64,
    /// Where its next record goes.
    end: u64,
    /// Room that changes have reserved and not used yet.
    reserved: u64,
    /// Up to where it is on disk.
    synced: u64,
}

#[derive(Debug)]
struct JournalState {
    halves: [Half; 2],
    active: usize,
    seq: u64,
    /// A sync of the file is under way.
    is_syncing: bool,
    /// A write or sync failed: what the file has is not known any more.
    failed: bool,
}

impl JournalState {
    /// Returns generation and end of both halves.
    fn find_ends(&self) -> [(u64, u64); 2] {
        [0, 1].map(|half| (self.halves[half].generation, self.halves[half].end))
    }

    /// Whether the halves are on disk up to these ends. One that was begun anew meanwhile is:
    /// regions have what it had.
    fn has_synced(&self, ends: [(u64, u64); 2]) -> bool {
        let is_synced = |(half, (generation, end)): (&Half, (u64, u64))| {
            half.generation != generation || half.synced >= end
        };
        self.halves.iter().zip(ends).all(is_synced)
    }
}

/// See the module.
pub struct Journal {
    file: Box<dyn LogFile>,
    device: u128,
    half_len: u64,
    state: Mutex<JournalState>,
    room: Condvar,
    sync_ended: Condvar,
    /// Raised when the objects of a half must be written.
    must_write: Arc<Signal>,
}

/// Room for one record. A drop gives it back.
pub struct JournalRoom<'a> {
    journal: &'a Journal,
    half: usize,
    len: u64,
}

impl Drop for JournalRoom<'_> {
    fn drop(&mut self) {
        let mut state = self.journal.state.lock();
        let half = &mut state.halves[self.half];
        half.reserved -= self.len;
        if half.state == HalfState::Closing && half.reserved == 0 {
            self.journal.must_write.raise();
        }
    }
}

/// A record that was read, with its bytes.
pub struct ReadRecord {
    /// See [`JournalRecord::seq`].
    pub seq: u64,
    /// The object.
    pub key: RegionKey,
    /// When it was changed.
    pub time: Timestamp,
    /// The half that has it, from 0.
    half: usize,
    /// Where the record is in the bytes of the half.
    at: usize,
}

/// All records of both halves, in the order of their numbers.
pub struct ReadJournal {
    halves: [Vec<u8>; 2],
    generations: [u64; 2],
    /// In order.
    pub records: Vec<ReadRecord>,
    /// A record that was synced cannot be read, or the head of a half.
    pub is_damaged: bool,
    /// A half was never begun for this device.
    pub has_blank_half: bool,
}

/// What a new journal goes on from.
#[derive(Clone, Copy, Debug)]
pub struct JournalStart {
    /// The random number of the device.
    pub device: u128,
    /// Records are numbered behind it.
    pub last_seq: u64,
    /// The half of the file that was begun first.
    pub older_half: usize,
}

impl ReadJournal {
    /// Returns the change of a record.
    pub fn change_of(&self, record: &ReadRecord) -> Option<JournalChange<'_>> {
        let bytes = &self.halves[record.half][record.at..];
        let generation = self.generations[record.half];
        Some(JournalRecord::decode(bytes, generation, record.at as u64)?.0.change)
    }

    /// Returns the half that was begun first.
    pub fn find_older_half(&self) -> usize {
        self.records.first().map_or(0, |record| record.half)
    }

    /// Returns the highest number of a record; 0 without any.
    pub fn last_seq(&self) -> u64 {
        self.records.last().map_or(0, |record| record.seq)
    }
}

/// Reads both halves of a journal of `device`.
///
/// # Errors
/// Those of the file.
pub fn read_journal(file: &dyn LogFile, half_len: u64, device: u128) -> io::Result<ReadJournal> {
    let mut read = ReadJournal {
        halves: Default::default(),
        generations: [0; 2],
        records: Vec::new(),
        is_damaged: false,
        has_blank_half: false,
    };
    for half in 0..2 {
        let mut bytes = vec![0; half_len as usize];
        let len = file.read_at(&mut bytes, half as u64 * half_len)?;
        bytes.truncate(len);
        let block = bytes.get(..BLOCK).unwrap_or_default();
        let generation = match decode_half_head(block) {
            Some((of, generation)) if of == device => generation,
            found => {
                let is_blank = block.iter().all(|b| *b == 0);
                read.is_damaged |= found.is_none() && !is_blank;
                read.has_blank_half |= found.is_some() || is_blank;
                continue;
            }
        };
        let (records, damaged) = read_half(&bytes, generation, half);
        read.records.extend(records);
        read.is_damaged |= damaged;
        (read.halves[half], read.generations[half]) = (bytes, generation);
    }
    read.records.sort_by_key(|record| record.seq);
    Ok(read)
}

/// Returns the records of a half up to the first that is not whole, and whether that one had been
/// synced: a whole record behind it says so.
fn read_half(bytes: &[u8], generation: u64, half: usize) -> (Vec<ReadRecord>, bool) {
    let (mut records, mut at) = (Vec::new(), RECORDS_AT as usize);
    while let Some((record, len)) = JournalRecord::decode(&bytes[at..], generation, at as u64) {
        let JournalRecord { seq, key, time, .. } = record;
        records.push(ReadRecord { seq, key, time, half, at });
        at += len as usize;
        if at >= bytes.len() {
            return (records, false);
        }
    }
    let behind = (at + 8..bytes.len()).step_by(8);
    let was_synced = behind
        .filter_map(|next| JournalRecord::decode(&bytes[next..], generation, next as u64))
        .any(|(record, _)| record.synced > at as u64);
    (records, was_synced)
}

impl Journal {
    /// Begins an empty journal: nothing that the file has is needed.
    ///
    /// # Errors
    /// Those of the file.
    pub fn begin(
        file: Box<dyn LogFile>,
        half_len: u64,
        start: JournalStart,
        must_write: Arc<Signal>,
    ) -> io::Result<Journal> {
        let half = || Half {
            state: HalfState::Free,
            generation: make_generation(),
            end: RECORDS_AT,
            reserved: 0,
            synced: 0,
        };
        let JournalStart { device, last_seq, older_half } = start;
        let mut halves = [half(), half()];
        // The older half goes first, for good: the newer one may say that an object of the older
        // one was removed.
        for which in [older_half, 1 - older_half] {
            let head = encode_half_head(device, halves[which].generation);
            file.write_at([&head, &[]], which as u64 * half_len)?;
            file.sync()?;
        }
        halves[0].state = HalfState::Active;
        let (is_syncing, failed) = (false, false);
        let state = JournalState { halves, active: 0, seq: last_seq, is_syncing, failed };
        let (state, room, sync_ended) = (Mutex::new(state), Condvar::new(), Condvar::new());
        Ok(Journal { file, device, half_len, state, room, sync_ended, must_write })
    }

    fn write_half_head(&self, half: usize, generation: u64) -> io::Result<()> {
        let head = encode_half_head(self.device, generation);
        self.file.write_at([&head, &[]], half as u64 * self.half_len)
    }

    /// Returns the longest record, in bytes.
    pub fn longest_record(&self) -> u64 {
        (self.half_len - RECORDS_AT) / 2
    }

    /// Reserves room for the record of a change. Waits while both halves are full.
    ///
    /// # Errors
    /// `EFBIG` for a record that is too long, `EIO` after a failure of the file.
    pub fn reserve_room(&self, len: u64) -> Result<JournalRoom<'_>, Errno> {
        if len > self.longest_record() {
            return Err(Errno::EFBIG);
        }
        let mut state = self.state.lock();
        loop {
            if state.failed {
                return Err(Errno::EIO);
            }
            let active = state.active;
            let half = &mut state.halves[active];
            if half.end + half.reserved + len <= self.half_len {
                half.reserved += len;
                return Ok(JournalRoom { journal: self, half: active, len });
            }
            let other = 1 - active;
            if state.halves[other].state == HalfState::Free {
                let generation = make_generation();
                if let Err(error) = self.write_half_head(other, generation) {
                    tracing::error!(%error, "the journal of regions could not be written");
                    state.failed = true;
                    continue;
                }
                let begun = HalfState::Active;
                state.halves[other] =
                    Half { state: begun, generation, end: RECORDS_AT, reserved: 0, synced: 0 };
                state.halves[active].state = HalfState::Closing;
                state.active = other;
                self.must_write.raise();
            } else {
                self.room.wait(&mut state);
            }
        }
    }

    /// Writes the record of a change to its room, and returns its number.
    ///
    /// # Errors
    /// `EIO` after a failure of the file, and its own.
    pub fn append(
        &self,
        room: &JournalRoom<'_>,
        key: RegionKey,
        time: Timestamp,
        change: JournalChange<'_>,
    ) -> Result<u64, Errno> {
        let len = change.record_len();
        assert!(len <= room.len, "a record is longer than its room");
        let state = &mut *self.state.lock();
        if state.failed {
            return Err(Errno::EIO);
        }
        let seq = state.seq + 1;
        let half = &mut state.halves[room.half];
        let record = JournalRecord { seq, synced: half.synced, key, time, change };
        let (head, payload) = record.encode(half.generation, half.end);
        let offset = room.half as u64 * self.half_len + half.end;
        // What is behind a shorter payload is overwritten by the next record, or of no generation.
        self.file.write_at([&head, payload], offset)?;
        half.end += len;
        state.seq = seq;
        Ok(seq)
    }

    /// Makes all records that were appended survive a power cut. Callers at the same time share a
    /// sync of the file: one calls it, and those that come meanwhile wait for the next one.
    ///
    /// # Errors
    /// Those of the file, from the first failure on.
    pub fn sync(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let wanted = state.find_ends();
        while !state.has_synced(wanted) {
            if state.failed {
                return Err(Errno::EIO);
            }
            if state.is_syncing {
                self.sync_ended.wait(&mut state);
                continue;
            }
            let ends = state.find_ends();
            state.is_syncing = true;
            let synced = MutexGuard::unlocked(&mut state, || self.file.sync());
            state.is_syncing = false;
            self.sync_ended.notify_all();
            if let Err(error) = synced {
                tracing::error!(%error, "the journal of regions could not be synced");
                state.failed = true;
                self.room.notify_all();
                return Err(error.into());
            }
            for (half, (generation, end)) in state.halves.iter_mut().zip(ends) {
                if half.generation == generation {
                    half.synced = half.synced.max(end);
                }
            }
        }
        if state.failed { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Returns the half that must be freed, once all changes that reserved room in it are there.
    pub fn find_closing(&self) -> Option<usize> {
        let state = self.state.lock();
        let closing = |half: &&Half| half.state == HalfState::Closing && half.reserved == 0;
        state.halves.iter().find(closing)?;
        state.halves.iter().position(|half| half.state == HalfState::Closing)
    }

    /// Frees a half: regions have all that its records say, for good.
    pub fn free_half(&self, half: usize) {
        self.state.lock().halves[half].state = HalfState::Free;
        self.room.notify_all();
    }

    /// Whether the file has failed.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Refuses all further changes: regions cannot be written.
    pub fn refuse_changes(&self) {
        self.state.lock().failed = true;
        self.room.notify_all();
    }
}
