//! The journal of a piece: where its bytes belong, kept while the piece is
//! written, so that a process that dies takes nothing along.
//!
//! A file of words. Behind a header come records that are never changed but
//! for one word: the length of the run of bytes that the record tells of.
//! A run grows by one store into memory that is mapped from the file, after
//! the bytes are in the piece. No system call, and kill(2) loses nothing.
//! What it looks like is drawn in docs/FORMAT.md.

use crate::shared::Words;
use rustix::io::Errno;
use std::fs::File;
use tatami_layout::journal::{self, HEADER_WORDS, TILE_WORDS, Told};
use tatami_layout::{Appended, PieceTiles, Tile, View};

const HEADER: u64 = HEADER_WORDS as u64 * 8;
/// Records of a view at most this long, in words, are read.
const LONGEST: u64 = 1 << 24;
/// A journal grows by doubling between these many bytes.
const STEP_MIN: u64 = 4096;
const STEP_MAX: u64 = 4 << 20;

/// Where the length stands in a tile's record.
const LENGTH: u64 = (TILE_WORDS as u64 - 1) * 8;

/// A journal that is written.
#[derive(Debug)]
pub struct Writer {
    words: Words,
    used: u64,
    room: u64,
    views: usize,
    slots: Vec<u64>,
    /// Tiles from this number on are not told as they are: an error of the disk came between.
    untold: Option<usize>,
}

impl Writer {
    /// Begins one in `file`, which is empty.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the disk.
    pub fn new(file: File, open: u64, rank: u32, mapped: bool) -> Result<Writer, Errno> {
        crate::shared::reserve(&file, STEP_MIN)?;
        let words = Words::new(file, mapped, true)?;
        words.store_record(0, &journal::header(open, rank))?;
        Ok(Writer {
            words,
            used: HEADER,
            room: STEP_MIN,
            views: 0,
            slots: Vec::new(),
            untold: None,
        })
    }

    /// Bytes of it that have a meaning.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Makes sure that the next change finds room, so that bytes are never
    /// written that cannot be told of.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the disk.
    pub fn make_room(&mut self, view: &View) -> Result<(), Errno> {
        // One write changes three tiles at most: the last, its last block, and what comes.
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
        self.words.grow(room)?;
        self.room = room;
        Ok(())
    }

    /// Tells of what `change` did to `piece`. The bytes must be in the piece file.
    ///
    /// # Errors
    /// Those of the disk, where the journal is not mapped. What could not be told is told with the next change.
    pub fn tell(&mut self, change: Appended, piece: &PieceTiles) -> Result<(), Errno> {
        let first = match change {
            Appended::Grown => piece.tiles().len().saturating_sub(1),
            Appended::Changed(first) => first,
        };
        let as_told = self.untold.is_none();
        let first = self.untold.map_or(first, |untold| untold.min(first));
        self.untold = Some(first);
        match (change, self.slots.last(), piece.tiles().last()) {
            (Appended::Grown, Some(at), Some(tile)) if as_told => {
                self.words.store(at + LENGTH, tile.len)?;
            }
            _ => self.tell_from(first, piece)?,
        }
        self.untold = None;
        Ok(())
    }

    /// Tells of views that are new, and of all tiles from number `first` on.
    fn tell_from(&mut self, first: usize, piece: &PieceTiles) -> Result<(), Errno> {
        while let Some(view) = piece.views().get(self.views) {
            self.add(&journal::view_record(view))?;
            self.views += 1;
        }
        // Those that replace others last: what they replace is true until then, so that nothing is missing in between.
        let known = self.slots.len();
        for (slot, tile) in piece.tiles().iter().enumerate().skip(known) {
            self.add_tile(slot, tile)?;
        }
        for (slot, tile) in piece.tiles().iter().enumerate().take(known).skip(first) {
            self.add_tile(slot, tile)?;
        }
        Ok(())
    }

    fn add_tile(&mut self, slot: usize, tile: &Tile) -> Result<(), Errno> {
        let at = self.used;
        self.add(&journal::tile_record(slot, tile))?;
        match self.slots.get_mut(slot) {
            Some(offset) => *offset = at,
            None => self.slots.push(at),
        }
        Ok(())
    }

    fn add(&mut self, record: &[u64]) -> Result<(), Errno> {
        let len = record.len() as u64 * 8;
        if self.used + len + 8 > self.room {
            let room = (self.used + len + 8).next_multiple_of(STEP_MIN) + STEP_MIN;
            self.words.grow(room)?;
            self.room = room;
        }
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

/// Words that are read while somebody else may add to them.
pub trait Load: std::fmt::Debug + Send {
    /// Words from `from` on may have changed since they were looked at.
    ///
    /// # Errors
    /// Those of the disk, or of the node that has them.
    fn again(&mut self, from: u64) -> Result<(), Errno>;

    /// Makes the first `len` bytes readable, if they are there.
    ///
    /// # Errors
    /// As [`Load::again`].
    fn see(&mut self, len: u64) -> Result<(), Errno>;

    /// Bytes that can be loaded.
    ///
    /// # Errors
    /// As [`Load::again`].
    fn readable(&self) -> Result<u64, Errno>;

    /// Fills `words` from `offset` on; zeros past the end.
    ///
    /// # Errors
    /// As [`Load::again`].
    fn load_all(&self, offset: u64, words: &mut [u64]) -> Result<(), Errno>;

    /// One word; 0 past the end.
    ///
    /// # Errors
    /// As [`Load::again`].
    fn load(&self, offset: u64) -> Result<u64, Errno> {
        let mut word = [0];
        self.load_all(offset, &mut word)?;
        Ok(word[0])
    }
}

impl Load for Words {
    fn again(&mut self, _from: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn see(&mut self, len: u64) -> Result<(), Errno> {
        Words::see(self, len)
    }

    fn readable(&self) -> Result<u64, Errno> {
        Words::readable(self)
    }

    fn load_all(&self, offset: u64, words: &mut [u64]) -> Result<(), Errno> {
        Words::load_all(self, offset, words)
    }

    fn load(&self, offset: u64) -> Result<u64, Errno> {
        Words::load(self, offset)
    }
}

/// A journal that is read, while it is being written or after its writer died.
#[derive(Debug)]
pub struct Reader {
    words: Box<dyn Load>,
    rank: u32,
    at: u64,
    told: Told,
    /// Where the length of the last tile stands: the only one that still grows.
    last: Option<u64>,
}

impl Reader {
    /// Opens the journal `file` of a rank; nothing where it is none of this open's.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn new(file: File, open: u64, rank: u32, mapped: bool) -> Result<Option<Reader>, Errno> {
        let words = Words::new(file, mapped, false)?;
        let mut found = [0; HEADER_WORDS];
        words.load_all(0, &mut found)?;
        if found != journal::header(open, rank) {
            return Ok(None);
        }
        Ok(Some(Reader::at_start(Box::new(words), rank)))
    }

    /// Reads the journal in `words`, of any rank of any open; nothing where it is none (yet).
    ///
    /// # Errors
    /// Those of the disk, or of the node that has it.
    pub fn of_any(mut words: Box<dyn Load>) -> Result<Option<Reader>, Errno> {
        let mut found = [0; HEADER_WORDS];
        words.again(0)?;
        words.see(HEADER)?;
        words.load_all(0, &mut found)?;
        let (open, rank) = (found[1], found[2] as u32);
        let is_one = found == journal::header(open, rank);
        Ok(is_one.then(|| Reader::at_start(words, rank)))
    }

    fn at_start(words: Box<dyn Load>, rank: u32) -> Reader {
        Reader { words, rank, at: HEADER, told: Told::default(), last: None }
    }

    /// What the journal told when it was last looked at. Tiles that cannot be are left out.
    pub fn piece(&self) -> PieceTiles {
        self.told.piece(self.rank)
    }

    /// Does a tile with a stamp of `since` or later have any of the bytes `from .. to` of the file, as far as
    /// the journal told when it was last looked at?
    pub fn wrote(&self, from: u64, to: u64, since: u64) -> bool {
        self.told.wrote(from, to, since)
    }

    /// Looks again. A record that makes no sense ends the journal.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn update(&mut self) -> Result<(), Errno> {
        self.words.again(self.last.map_or(self.at, |last| last.min(self.at)))?;
        if let Some(at) = self.last {
            self.told.grow_last(self.words.load(at)?);
        }
        while self.record()? {}
        Ok(())
    }

    /// Takes the next record; tells whether there was one.
    fn record(&mut self) -> Result<bool, Errno> {
        self.words.see(self.at + 8)?;
        let first = self.words.load(self.at)?;
        let len = journal::record_len(first) as u64;
        if !(2..=LONGEST).contains(&len) {
            return Ok(false);
        }
        self.words.see(self.at + len * 8)?;
        if len > TILE_WORDS as u64 && self.words.readable()? < self.at + len * 8 {
            return Ok(false);
        }
        let mut record = vec![first; len as usize];
        self.words.load_all(self.at + 8, &mut record[1..])?;
        let Some(is_last_tile) = self.told.take(&record) else { return Ok(false) };
        if is_last_tile {
            self.last = Some(self.at + LENGTH);
        }
        self.at += len * 8;
        Ok(true)
    }
}
