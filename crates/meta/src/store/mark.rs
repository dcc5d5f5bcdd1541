//! The mark beside the logs (a checkpoint record): the newest log, up to where it was synced, and
//! whether the store was closed. It distinguishes a log that has lost records from one that always
//! ended there.
//!
//! ```text
//! mark := slot, zeros up to 512, slot
//! slot := "TATAMI-Y" │ sequence u64 │ boot u64 │ log u64 │ end u64 │ flags u64 │ checksum u64
//! ```
//!
//! Numbers are little-endian; flags are 1 for closed and 2 for lost; the checksum is xxh3 of the 48
//! bytes before it. The two slots are written alternately, and the one with the higher sequence
//! counts: a torn write leaves the other one.
//!
//! The mark is written after each sync of the log, and not synced itself: that would be a second
//! fsync for each sync. So after a power cut it lags behind, by at most the time that the kernel
//! keeps a dirty page. The log's own batches lag behind by one sync. Either may state less than the
//! truth, never more. The mark is synced when the store is opened and closed.

use super::log::LogExtent;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const CLOSED: u64 = 1;
const LOST: u64 = 2;
const MAGIC: [u8; 8] = *b"TATAMI-Y";
const SLOT: usize = 56;
/// Bytes from one slot to the next: each lies in a sector of its own, so one torn write damages one
/// slot only.
const SECTOR: u64 = 512;

/// The content of a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkContent {
    /// The boot of the machine in which the store was opened last.
    pub boot: u64,
    /// The newest log; 0 when there was none yet.
    pub log: u64,
    /// Up to where that log was synced.
    pub end: u64,
    /// The store was closed there: nothing follows.
    pub closed: bool,
    /// A loss was accepted, and the counters that the lost records may have raised may not be
    /// raised yet.
    pub lost: bool,
}

impl MarkContent {
    /// Returns the damage of the newest log `number`, if it has lost anything; `boot` is the
    /// machine's current boot, or 0.
    pub fn find_damage(&self, number: u64, found: &LogExtent, boot: u64) -> Option<&'static str> {
        let is_newest = self.log == number;
        // After a clean close nothing may be missing, and nothing may follow.
        if is_newest && self.closed && found.end != self.end {
            return Some("the store was closed, and the log ends elsewhere");
        }
        // Either source may lag behind, neither is ahead: the larger one is a safe lower bound.
        let synced = if is_newest { found.synced.max(self.end) } else { found.synced };
        if found.end < synced {
            return Some("a batch that was synced does not read");
        }
        // Without a power cut all written bytes are there, except for the end of the last batch.
        let no_power_cut = boot != 0 && self.boot == boot;
        (no_power_cut && found.behind.is_some())
            .then_some("a batch does not read, and later ones do")
    }
}

/// A mark that is kept up to date.
pub(super) struct LogMark {
    file: File,
    sequence: u64,
    last: MarkContent,
}

/// Returns the path of the mark.
pub(super) fn mark_path(dir: &Path) -> PathBuf {
    dir.join("mark")
}

/// Returns the content of the mark. `None` where there is none, or neither of its slots is valid.
///
/// # Errors
/// Those of the disk.
pub(super) fn read_mark(dir: &Path) -> io::Result<Option<MarkContent>> {
    let bytes = match std::fs::read(mark_path(dir)) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let slots = [0, SECTOR as usize].into_iter().filter_map(|at| decode_slot(bytes.get(at..)?));
    Ok(slots.max_by_key(|(sequence, _)| *sequence).map(|(_, marked)| marked))
}

impl LogMark {
    /// Replaces the mark durably, so that no power cut brings older content back.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open_mark(dir: &Path, marked: MarkContent) -> io::Result<LogMark> {
        let path = mark_path(dir);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut slots = vec![0; SECTOR as usize + SLOT];
        let _ = file.read_at(&mut slots, 0)?;
        let sequence = [0, SECTOR as usize].into_iter().filter_map(|at| decode_slot(&slots[at..]));
        let sequence = sequence.map(|(sequence, _)| sequence).max().unwrap_or(0);
        let mut mark = LogMark { file, sequence, last: marked };
        // Both slots, one after the other, each synced. Until the second is durable, the first
        // counts, and has the same content.
        for _ in 0..2 {
            mark.write_slot(marked)?;
            mark.file.sync_all()?;
        }
        // The file's name must be durable, too, or a power cut makes the log look unmarked.
        File::open(dir)?.sync_all()?;
        Ok(mark)
    }

    /// Records that the log is synced up to `end`. The record itself is not synced.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn record_sync(&mut self, log: u64, end: u64) -> io::Result<()> {
        assert!(!self.last.closed, "a batch follows the end of a closed store");
        assert!((log, end) >= (self.last.log, self.last.end), "the mark of a log goes back");
        let marked = MarkContent { log, end, closed: false, ..self.last };
        // Saves a system call a sync when nothing was written.
        if marked == self.last {
            return Ok(());
        }
        self.write_slot(marked)
    }

    /// Records durably that the store is closed without loss.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn close(&mut self) -> io::Result<()> {
        self.write_slot(MarkContent { closed: true, lost: false, ..self.last })?;
        self.file.sync_data()
    }

    fn write_slot(&mut self, marked: MarkContent) -> io::Result<()> {
        self.sequence += 1;
        let slot = encode_slot(self.sequence, marked);
        assert_eq!(
            decode_slot(&slot),
            Some((self.sequence, marked)),
            "a slot of the mark reads otherwise than it was written"
        );
        // The slots alternate: a torn write damages the older content only.
        self.file.write_all_at(&slot, self.sequence % 2 * SECTOR)?;
        self.last = marked;
        Ok(())
    }
}

fn encode_slot(sequence: u64, marked: MarkContent) -> [u8; SLOT] {
    let MarkContent { boot, log, end, closed, lost } = marked;
    let flags = if closed { CLOSED } else { 0 } | if lost { LOST } else { 0 };
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&MAGIC);
    let fields = [sequence, boot, log, end, flags];
    for (at, field) in (8..).step_by(8).zip(fields) {
        slot[at..at + 8].copy_from_slice(&field.to_le_bytes());
    }
    let sum = xxh3_64(&slot[..SLOT - 8]);
    slot[SLOT - 8..].copy_from_slice(&sum.to_le_bytes());
    slot
}

/// Returns the sequence and the content of a slot, if it is valid.
fn decode_slot(bytes: &[u8]) -> Option<(u64, MarkContent)> {
    let (slot, _) = bytes.split_first_chunk::<SLOT>()?;
    let (body, sum) = slot.split_at(SLOT - 8);
    if sum != xxh3_64(body).to_le_bytes() || body[..8] != MAGIC {
        return None;
    }
    let field = |n: usize| body[8 * n..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let (boot, log, end) = (field(2), field(3), field(4));
    let (closed, lost) = (field(5) & CLOSED != 0, field(5) & LOST != 0);
    Some((field(1), MarkContent { boot, log, end, closed, lost }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_whatever_becomes_of_the_slot_that_is_written() {
        let dir = tempfile::tempdir().expect("directory");
        assert_eq!(read_mark(dir.path()).expect("reads"), None);
        let first = MarkContent { boot: 7, log: 1, end: 36, ..MarkContent::default() };
        let mut mark = LogMark::open_mark(dir.path(), first).expect("begins");
        assert_eq!(read_mark(dir.path()).expect("reads"), Some(first));
        for end in [100, 200, 300] {
            let before = std::fs::read(mark_path(dir.path())).expect("read");
            mark.record_sync(1, end).expect("notes");
            let now = MarkContent { end, ..first };
            assert_eq!(read_mark(dir.path()).expect("reads"), Some(now));
            // Half of the written bytes got to the disk.
            let whole = std::fs::read(mark_path(dir.path())).expect("read");
            let mut torn = whole.clone();
            for (n, byte) in torn.iter_mut().enumerate().filter(|(n, _)| n % 512 >= 28) {
                *byte = before.get(n).copied().unwrap_or(0);
            }
            std::fs::write(mark_path(dir.path()), &torn).expect("write");
            let then = read_mark(dir.path()).expect("reads").expect("one of both");
            assert!(then == now || then.end < end, "{then:?}");
            std::fs::write(mark_path(dir.path()), &whole).expect("write");
        }
        mark.close().expect("closes");
        let closed = MarkContent { end: 300, closed: true, ..first };
        assert_eq!(read_mark(dir.path()).expect("reads"), Some(closed));
        drop(mark);
        // Both slots of the closed store are open again.
        let again = MarkContent { boot: 8, closed: false, ..closed };
        drop(LogMark::open_mark(dir.path(), again).expect("begins"));
        let bytes = std::fs::read(mark_path(dir.path())).expect("read");
        for at in [0, 512] {
            assert_eq!(decode_slot(&bytes[at..]).expect("whole").1, again);
        }
    }

    #[test]
    fn a_flipped_bit_leaves_what_the_other_slot_says_and_two_leave_nothing() {
        let dir = tempfile::tempdir().expect("directory");
        let first = MarkContent { boot: 7, log: 1, end: 36, ..MarkContent::default() };
        let mut mark = LogMark::open_mark(dir.path(), first).expect("begins");
        mark.record_sync(1, 100).expect("notes");
        let whole = std::fs::read(mark_path(dir.path())).expect("read");
        for bit in 0..SLOT * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(mark_path(dir.path()), &bytes).expect("write");
            let said = read_mark(dir.path()).expect("reads").expect("the other slot");
            assert!(said.end == 36 || said.end == 100);
            bytes[SECTOR as usize + bit / 8] ^= 1 << (bit % 8);
            std::fs::write(mark_path(dir.path()), &bytes).expect("write");
            assert_eq!(read_mark(dir.path()).expect("reads"), None);
        }
    }
}
