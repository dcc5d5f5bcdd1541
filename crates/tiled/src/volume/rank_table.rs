//! The rank table of an open on one node: words of an object of that node. Its ranks map them;
//! other nodes read them by request.
//!
//! A header (magic, nothing, clock, open) comes first, then a slot of 8 words for each of these
//! ranks, in the order of ranks: changes of its journal, the range of the file that it wrote under
//! the byte view (from and to), and the number of its piece if that is not the first one.
//!
//! The table of a container ([`crate::rank_table`]) has another format. It lies on a file system of
//! any kind, so it shows with locks and heartbeats which ranks are alive, and its counts have a
//! check. Here the shard knows which clients are alive.

use crate::journal::WordSource;
use crate::rank_table::SharedClock;
use crate::shared::{SharedWords, reserve_blocks};
use rustix::io::Errno;
use std::fs::File;
use tatami_client::DataFile;

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIR2");
const OPEN: u64 = 24;
const SLOT: u64 = 64;
const SLOT_WORDS: usize = (SLOT / 8) as usize;
/// Bytes asked of another node at a time.
const FETCH: usize = 64 << 10;

/// The contents of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RankSlot {
    /// Changes of the rank's journal so far.
    pub(super) changes: u64,
    hull: (u64, u64),
    /// Its piece, 0 for the one with which it began.
    pub(super) piece: u32,
}

/// Bytes of a table with this number of slots.
pub(super) fn table_len(slots: usize) -> u64 {
    slot_offset(slots)
}

fn slot_offset(slot: usize) -> u64 {
    SLOT + slot as u64 * SLOT
}

/// The rank table of this node, and this rank's slot in it.
#[derive(Debug)]
pub(super) struct OwnRankTable {
    /// The clock, which also owns the words.
    clock: SharedClock,
    slot: usize,
    slots: usize,
}

impl OwnRankTable {
    /// Uses the object in `file`, which the first rank on the node makes a rank table.
    pub(super) fn new(
        file: File,
        open: u64,
        slot: usize,
        slots: usize,
    ) -> Result<OwnRankTable, Errno> {
        reserve_blocks(&file, slot_offset(slots))?;
        let words = SharedWords::of_len(file, true, slot_offset(slots));
        if !words.is_mapped() {
            return Err(Errno::NODEV);
        }
        // Each rank of the node stores the same header, so their order does not matter.
        words.store(OPEN, open)?;
        words.store(0, MAGIC)?;
        Ok(OwnRankTable { clock: SharedClock::from_words(words), slot, slots })
    }

    fn store_word(&self, offset: u64, value: u64) -> Result<(), Errno> {
        self.clock.words().map_or(Err(Errno::IO), |words| words.store(offset, value))
    }

    /// The object.
    pub(super) fn file(&self) -> Option<&File> {
        self.clock.words().map(SharedWords::file)
    }

    pub(super) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    pub(super) fn set_changes(&self, changes: u64) -> Result<(), Errno> {
        self.store_word(slot_offset(self.slot), changes)
    }

    pub(super) fn set_hull(&self, hull: (u64, u64)) -> Result<(), Errno> {
        self.store_word(slot_offset(self.slot) + 8, hull.0)?;
        self.store_word(slot_offset(self.slot) + 16, hull.1)
    }

    /// Records that the rank has another piece, without changes yet.
    pub(super) fn set_piece(&self, piece: u32) -> Result<(), Errno> {
        // The count goes first: a reader must not take the old count for one of the new piece.
        self.store_word(slot_offset(self.slot), 0)?;
        self.store_word(slot_offset(self.slot) + 24, u64::from(piece))
    }

    /// Reports whether another rank of this node has written bytes under the byte view in `from ..
    /// to`.
    pub(super) fn others_wrote(&self, from: u64, to: u64) -> Result<bool, Errno> {
        let words = self.clock.words().ok_or(Errno::IO)?;
        for slot in (0..self.slots).filter(|slot| *slot != self.slot) {
            let (lo, hi) = read_slot(words, slot)?.hull;
            if lo < to && from < hi {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn read_slot(words: &dyn WordSource, slot: usize) -> Result<RankSlot, Errno> {
    let mut found = [0; SLOT_WORDS];
    words.load_words(slot_offset(slot), &mut found)?;
    Ok(RankSlot { changes: found[0], hull: (found[1], found[2]), piece: found[3] as u32 })
}

/// The rank table of a node, as a rank of the same open reads it.
#[derive(Debug)]
pub(super) struct NodeRankTable {
    words: Box<dyn WordSource>,
    slots: usize,
}

impl NodeRankTable {
    /// The table of this number of ranks in `words`.
    pub(super) fn new(words: Box<dyn WordSource>, slots: usize) -> NodeRankTable {
        NodeRankTable { words, slots }
    }

    /// Loads the table again.
    pub(super) fn refresh_slots(&mut self) -> Result<(), Errno> {
        self.words.refresh_from(0)?;
        self.words.ensure_loaded(slot_offset(self.slots))
    }

    /// A slot as of the last load.
    pub(super) fn rank_slot(&self, slot: usize) -> Result<RankSlot, Errno> {
        read_slot(&*self.words, slot)
    }
}

/// Words of an object on another node, read by request.
pub(super) struct FetchedWords {
    object: DataFile,
    bytes: Vec<u8>,
    ended: bool,
}

impl std::fmt::Debug for FetchedWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetched").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl FetchedWords {
    pub(super) fn new(object: DataFile) -> FetchedWords {
        FetchedWords { object, bytes: Vec::new(), ended: false }
    }

    fn fetch_more(&mut self) -> Result<(), Errno> {
        let before = self.bytes.len();
        self.bytes.resize(before + FETCH, 0);
        let got = match self.object.read_at(&mut self.bytes[before..], before as u64) {
            Err(tatami_wire::Errno::ENOENT) => Ok(0),
            other => other.map_err(crate::error::to_system_errno),
        };
        self.bytes.truncate(before + *got.as_ref().unwrap_or(&0));
        self.ended = got? < FETCH;
        Ok(())
    }
}

impl WordSource for FetchedWords {
    fn refresh_from(&mut self, from: u64) -> Result<(), Errno> {
        // Bytes before `from` never change, and need not be read again.
        self.bytes.truncate(usize::try_from(from).unwrap_or(usize::MAX));
        self.ended = false;
        self.fetch_more()
    }

    fn ensure_loaded(&mut self, len: u64) -> Result<(), Errno> {
        while (self.bytes.len() as u64) < len && !self.ended {
            self.fetch_more()?;
        }
        Ok(())
    }

    fn readable_len(&self) -> Result<u64, Errno> {
        Ok(self.bytes.len() as u64)
    }

    fn load_words(&self, offset: u64, words: &mut [u64]) -> Result<(), Errno> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let mut found = self.bytes[from..].as_chunks::<8>().0.iter();
        for word in words {
            *word = found.next().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        }
        Ok(())
    }
}
