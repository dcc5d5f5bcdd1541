//! The journal of a piece: the places of its bytes, recorded while the piece is written, so that a
//! killed process loses nothing.
//!
//! It is a file of words. A header comes first, then records. A record never changes but for one
//! word, the length of its run of bytes. A run grows by one store into memory that is mapped from
//! the file, after the bytes are in the piece. That needs no system call, and kill(2) loses
//! nothing. docs/reference/formats.md draws the format.

use crate::piece_file::{AwayFile, JournalWords};
use crate::shared::SharedWords;
use rustix::io::Errno;
use std::fs::File;
use std::time::{Duration, Instant};
use tatami_layout::journal::{
    self, Damage, HEADER_WORDS, JournalHeader, JournalReplay, LENGTH_MAX, RecoveredTiles,
    TILE_WORDS,
};
use tatami_layout::{Appended, PieceTiles, Tile, View};

const HEADER: u64 = HEADER_WORDS as u64 * 8;
/// Attempts to read to the end of a journal that grows meanwhile.
const READ_ATTEMPTS: usize = 100;
/// How long a record of another machine may arrive after later ones. After that it counts as
/// damaged.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);
/// A journal grows by doubling; a step has between these numbers of bytes.
const STEP_MIN: u64 = 4096;
const STEP_MAX: u64 = 4 << 20;

/// Offset of the length in a tile's record.
const LENGTH: u64 = (TILE_WORDS as u64 - 1) * 8;

/// A journal that is written.
#[derive(Debug)]
pub struct JournalWriter {
    words: JournalWords,
    header: JournalHeader,
    used: u64,
    room: u64,
    views: usize,
    slots: Vec<u64>,
    /// Tiles from this number on are not recorded as they are, after an error of the disk.
    first_unrecorded: Option<usize>,
}

impl JournalWriter {
    /// Begins one in `file`, which is empty.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the disk.
    pub fn new(file: File, open: u64, rank: u32, mapped: bool) -> Result<JournalWriter, Errno> {
        JournalWriter::in_words(JournalWords::in_file(file, mapped, STEP_MIN)?, open, rank)
    }

    /// Begins one in an empty object of another node.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the node.
    pub fn new_away(object: AwayFile, open: u64, rank: u32) -> Result<JournalWriter, Errno> {
        let mut words = JournalWords::Away(object);
        words.grow_to(STEP_MIN)?;
        JournalWriter::in_words(words, open, rank)
    }

    fn in_words(words: JournalWords, open: u64, rank: u32) -> Result<JournalWriter, Errno> {
        let header = JournalHeader::new(open, rank);
        words.store_record(0, &header.words())?;
        Ok(JournalWriter {
            words,
            header,
            used: HEADER,
            room: STEP_MIN,
            views: 0,
            slots: Vec::new(),
            first_unrecorded: None,
        })
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Makes room for the next change, so that no bytes are written that cannot be recorded.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the disk.
    pub fn reserve_room(&mut self, view: &View) -> Result<(), Errno> {
        // One write changes three tiles at most: the last, its last block, and the new one.
        let tiles = (4 * TILE_WORDS * 8) as u64;
        if self.used + tiles + 64 <= self.room && self.views > 0 {
            return Ok(());
        }
        let mut bytes = Vec::new();
        view.encode(&mut bytes);
        let need = self.used + tiles + 64 + bytes.len() as u64;
        if need <= self.room {
            return Ok(());
        }
        let room = need.next_multiple_of(STEP_MIN) + self.room.clamp(STEP_MIN, STEP_MAX);
        self.words.grow_to(room)?;
        self.room = room;
        Ok(())
    }

    /// Records a change of `piece`. The bytes must be in the piece file.
    ///
    /// # Errors
    /// Those of the disk, where the journal is not mapped; `EFBIG` for a tile beyond
    /// [`LENGTH_MAX`]. A change that could not be recorded is recorded with the next one.
    pub fn record_change(&mut self, change: Appended, piece: &PieceTiles) -> Result<(), Errno> {
        let first = match change {
            Appended::Grown => piece.tiles().len().saturating_sub(1),
            Appended::Changed(first) => first,
        };
        let as_told = self.first_unrecorded.is_none();
        let first = self.first_unrecorded.map_or(first, |untold| untold.min(first));
        // Set before the attempt and cleared after it: an error in between leaves the mark.
        self.first_unrecorded = Some(first);
        if piece.tiles().iter().skip(first).any(|tile| tile.len > LENGTH_MAX) {
            return Err(Errno::FBIG);
        }
        match (change, self.slots.last(), piece.tiles().last()) {
            (Appended::Grown, Some(at), Some(tile)) if as_told => {
                assert!(*at + LENGTH < self.used, "a tile that grows has no record");
                self.words.store(at + LENGTH, self.header.length_word(*at, tile.len))?;
            }
            _ => self.record_tiles_from(first, piece)?,
        }
        self.first_unrecorded = None;
        Ok(())
    }

    /// Records new views, and all tiles from number `first` on.
    fn record_tiles_from(&mut self, first: usize, piece: &PieceTiles) -> Result<(), Errno> {
        while let Some(view) = piece.views().get(self.views) {
            self.append_record(&self.header.view_record(self.used, self.views, view))?;
            self.views += 1;
        }
        // Records that replace others come last. The replaced ones are true until then, so no byte
        // is missing in between.
        let known = self.slots.len();
        for (slot, tile) in piece.tiles().iter().enumerate().skip(known) {
            self.append_tile(slot, tile)?;
        }
        for (slot, tile) in piece.tiles().iter().enumerate().take(known).skip(first) {
            self.append_tile(slot, tile)?;
        }
        Ok(())
    }

    fn append_tile(&mut self, slot: usize, tile: &Tile) -> Result<(), Errno> {
        let at = self.used;
        self.append_record(&self.header.tile_record(at, slot, tile))?;
        match self.slots.get_mut(slot) {
            Some(offset) => *offset = at,
            None => self.slots.push(at),
        }
        Ok(())
    }

    fn append_record(&mut self, record: &[u64]) -> Result<(), Errno> {
        let len = record.len() as u64 * 8;
        if self.used + len + 8 > self.room {
            let room = (self.used + len + 8).next_multiple_of(STEP_MIN) + STEP_MIN;
            self.words.grow_to(room)?;
            self.room = room;
        }
        // The word behind it stays zero: a reader takes it for the end.
        assert!(self.used + len + 8 <= self.room, "a record ends beyond the reserved room");
        self.words.store_record(self.used, record)?;
        self.used += len;
        Ok(())
    }

    /// Brings it to the disk.
    ///
    /// # Errors
    /// Those of msync(2), fdatasync(2).
    pub fn flush(&self) -> Result<(), Errno> {
        self.words.flush()
    }
}

/// Words that are read while another process may add to them.
pub trait WordSource: std::fmt::Debug + Send {
    /// Drops cached words from `from` on, which may have changed since.
    ///
    /// # Errors
    /// Those of the disk, or of the node that has the words.
    fn refresh_from(&mut self, from: u64) -> Result<(), Errno>;

    /// Makes the first `len` bytes readable, if they are there.
    ///
    /// # Errors
    /// Those of the disk, or of the node that has the words.
    fn ensure_loaded(&mut self, len: u64) -> Result<(), Errno>;

    /// Bytes that can be loaded.
    ///
    /// # Errors
    /// Those of the disk, or of the node that has the words.
    fn readable_len(&self) -> Result<u64, Errno>;

    /// Fills `words` from `offset` on; zeros past the end.
    ///
    /// # Errors
    /// Those of the disk, or of the node that has the words.
    fn load_words(&self, offset: u64, words: &mut [u64]) -> Result<(), Errno>;

    /// One word; 0 past the end.
    ///
    /// # Errors
    /// Those of the disk, or of the node that has the words.
    fn load(&self, offset: u64) -> Result<u64, Errno> {
        let mut word = [0];
        self.load_words(offset, &mut word)?;
        Ok(word[0])
    }
}

impl WordSource for SharedWords {
    fn refresh_from(&mut self, _from: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn ensure_loaded(&mut self, len: u64) -> Result<(), Errno> {
        SharedWords::ensure_mapped(self, len)
    }

    fn readable_len(&self) -> Result<u64, Errno> {
        SharedWords::readable_len(self)
    }

    fn load_words(&self, offset: u64, words: &mut [u64]) -> Result<(), Errno> {
        SharedWords::load_words(self, offset, words)
    }

    fn load(&self, offset: u64) -> Result<u64, Errno> {
        SharedWords::load(self, offset)
    }
}

/// Why a journal cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// An error of the disk, or of the node that has the journal.
    #[error("{0}")]
    Disk(#[from] Errno),
    /// The journal differs from the one that its writer wrote.
    #[error("{0}")]
    Damage(#[from] Damage),
}

/// Reads a journal, while it is being written or after its writer died.
#[derive(Debug)]
pub struct JournalReader {
    words: Box<dyn WordSource>,
    header: JournalHeader,
    at: u64,
    replay: JournalReplay,
    /// Where the record of the last tile is: only that tile still grows.
    last_tile_at: Option<u64>,
    /// Whether the zeros at the end were searched for later records.
    searched: bool,
    /// Whether another machine writes it, so that words may arrive in any order.
    is_remote: bool,
    /// Since when, and where, it looks damaged.
    suspected: Option<(u64, Instant)>,
}

impl JournalReader {
    /// Opens the journal `file` of a rank; `None` where its header is not complete yet.
    /// `is_remote`: another machine may write it.
    ///
    /// # Errors
    /// Those of the disk; [`Damage`] for a file that is no journal of this rank.
    pub fn new(
        file: File,
        open: u64,
        rank: u32,
        mapped: bool,
        is_remote: bool,
    ) -> Result<Option<JournalReader>, JournalError> {
        let reader =
            JournalReader::from_words(Box::new(SharedWords::new(file, mapped, false)?), is_remote)?;
        match &reader {
            Some(reader) if (reader.header.open, reader.header.rank) != (open, rank) => {
                Err(Damage { at: 8, what: "it is the journal of another piece" }.into())
            }
            _ => Ok(reader),
        }
    }

    /// Reads the journal in `words`, of any rank of any open; `None` where there is none (yet).
    ///
    /// # Errors
    /// Those of the disk, or of the node that has the words; [`Damage`].
    pub fn from_words(
        mut words: Box<dyn WordSource>,
        is_remote: bool,
    ) -> Result<Option<JournalReader>, JournalError> {
        let mut header = read_header(&mut *words);
        if matches!(header, Err(JournalError::Damage(_))) {
            // Either it was written meanwhile, or it is damaged: a second look decides.
            header = read_header(&mut *words);
        }
        match header {
            // Words of another machine may still arrive, in any order.
            Err(JournalError::Damage(_)) if is_remote => Ok(None),
            header => Ok(header?.map(|header| JournalReader::at_start(words, header, is_remote))),
        }
    }

    fn at_start(
        words: Box<dyn WordSource>,
        header: JournalHeader,
        is_remote: bool,
    ) -> JournalReader {
        JournalReader {
            words,
            header,
            at: HEADER,
            replay: JournalReplay::new(header),
            last_tile_at: None,
            searched: false,
            is_remote,
            suspected: None,
        }
    }

    /// Returns the tiles as of the last update. Invalid tiles are left out.
    pub fn to_piece_tiles(&self) -> PieceTiles {
        self.replay.to_piece_tiles(self.header.rank)
    }

    /// Reports whether a tile with a stamp of `since` or later has any of the bytes `from .. to` of
    /// the file, as of the last update.
    pub fn has_written(&self, from: u64, to: u64, since: u64) -> bool {
        self.replay.has_written(from, to, since)
    }

    /// Reads new records and the length of the last tile.
    ///
    /// # Errors
    /// Those of the disk; [`Damage`] for an unreadable record that is not the torn end of the
    /// journal.
    pub fn read_new_records(&mut self) -> Result<(), JournalError> {
        let mut before = None;
        for _ in 0..READ_ATTEMPTS {
            let damage = match self.read_available().and_then(|()| self.check_end()) {
                Err(JournalError::Damage(damage)) => damage,
                other => {
                    self.suspected = None;
                    return other;
                }
            };
            // An unreadable record may have been incomplete when it was read, and the record behind
            // it complete when that was read. A record is stored before those that follow. So if a
            // second look finds it unreadable again, it stays so.
            if before == Some(damage.at) {
                let is_on_its_way = self.is_remote && !self.has_persisted(damage);
                return if is_on_its_way { Ok(()) } else { Err(damage.into()) };
            }
            before = Some(damage.at);
        }
        Ok(())
    }

    /// Reports whether it has looked damaged in this way for so long that no more words will
    /// arrive.
    fn has_persisted(&mut self, damage: Damage) -> bool {
        match self.suspected {
            Some((at, since)) if at == damage.at => since.elapsed() >= ARRIVAL_TIMEOUT,
            _ => {
                self.suspected = Some((damage.at, Instant::now()));
                false
            }
        }
    }

    fn read_available(&mut self) -> Result<(), JournalError> {
        self.words.refresh_from(self.last_tile_at.map_or(self.at, |last| last.min(self.at)))?;
        // The length of the last tile first: once a new record is applied, another tile is the last
        // one.
        if let Some(at) = self.last_tile_at {
            self.replay.update_last_length(at, self.words.load(at + LENGTH)?)?;
        }
        while self.read_record()? {}
        Ok(())
    }

    /// Reads the next record; returns whether there was one.
    fn read_record(&mut self) -> Result<bool, Errno> {
        self.words.ensure_loaded(self.at + 8)?;
        let first = self.words.load(self.at)?;
        let len = journal::record_len(first) as u64;
        // No record yet: its first word is stored last.
        if len < 2 {
            return Ok(false);
        }
        self.words.ensure_loaded(self.at + len * 8)?;
        // The length is not checked yet: it must not make us allocate more than the file has.
        if len > TILE_WORDS as u64 && self.words.readable_len()? < self.at + len * 8 {
            return Ok(false);
        }
        let mut record = vec![first; len as usize];
        self.words.load_words(self.at + 8, &mut record[1..])?;
        let Some(is_last_tile) = self.replay.apply_record(self.at, &record) else {
            return Ok(false);
        };
        if is_last_tile {
            self.last_tile_at = Some(self.at);
        }
        self.at += len * 8;
        Ok(true)
    }

    /// Checks that the rest is only the end of the journal. Zeros are searched once only: later,
    /// following words are new, and a reader of a growing journal must not read all of its room
    /// each time.
    fn check_end(&mut self) -> Result<(), JournalError> {
        if self.searched && self.words.load(self.at)? == 0 {
            return Ok(());
        }
        self.words.ensure_loaded(u64::MAX)?;
        self.header.check_end(self.at, &load_rest(&*self.words, self.at)?)?;
        self.searched = true;
        Ok(())
    }
}

/// Reads the header of the journal in `words`; `None` where nothing was written yet.
fn read_header(words: &mut dyn WordSource) -> Result<Option<JournalHeader>, JournalError> {
    let mut found = [0; HEADER_WORDS];
    words.refresh_from(0)?;
    words.ensure_loaded(HEADER)?;
    words.load_words(0, &mut found)?;
    let header = JournalHeader::read(&found)?;
    if header.is_none() {
        words.ensure_loaded(u64::MAX)?;
        let rest = load_rest(words, HEADER)?;
        if rest.iter().any(|word| *word != 0) {
            return Err(Damage { at: 0, what: "the header is missing" }.into());
        }
    }
    Ok(header)
}

/// The words from byte `at` on.
fn load_rest(words: &dyn WordSource, at: u64) -> Result<Vec<u64>, Errno> {
    let left = words.readable_len()?.saturating_sub(at) / 8;
    let mut rest = vec![0; usize::try_from(left).map_err(|_| Errno::FBIG)?];
    words.load_words(at, &mut rest)?;
    Ok(rest)
}

/// Reports whether the file was changed so recently that words of another machine may still arrive.
pub fn is_recently_changed(file: &File) -> bool {
    let age = file.metadata().and_then(|meta| meta.modified()).map(|at| at.elapsed());
    // A time in the future counts as recent.
    !age.is_ok_and(|age| age.is_ok_and(|age| age > ARRIVAL_TIMEOUT))
}

/// Recovers the whole records of the journal `file` of a rank whose piece is `len` bytes long.
///
/// # Errors
/// Those of the disk.
pub fn recover_journal(file: &mut File, rank: u32, len: u64) -> std::io::Result<RecoveredTiles> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(file, &mut bytes)?;
    Ok(journal::recover_records(&bytes, Some(rank), len))
}
