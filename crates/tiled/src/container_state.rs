//! The cached state of a container at a reader: the index, the journals of opens that have not
//! ended, and the tile index that combines both.
//!
//! A refresh costs a load for the generation and one for each rank that has the file open for
//! writing. The rest is done only after a change.

use crate::container::{Container, IndexVersion};
use crate::error::{ErrorContext, Result};
use crate::file_state::{BuiltIndex, FileState, open_cached};
use crate::journal::{self, JournalError};
use crate::marker::{self, PieceName};
use crate::piece::OwnPieceState;
use crate::plain::read_full;
use crate::published::PublishedIndex;
use crate::rank_table::{CHANGES_UNKNOWN, RankTable};
use crate::sharing;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::Arc;
use tatami_layout::{BASE, Piece, PieceTiles, TileIndex};

/// Most journals of an open that are watched.
const WATCHED_MAX: usize = 256;

/// An open that has not ended, or whose job is dead.
#[derive(Debug)]
struct OtherOpen {
    roll: RankTable,
    /// The changes of each rank that were read.
    seen: Vec<u64>,
    /// The changes of each rank now.
    counts: Vec<u64>,
    journals: BTreeMap<u32, journal::JournalReader>,
    /// Journals of ranks that write in the same range as this one.
    watched: BTreeMap<u32, WatchedJournal>,
}

/// A journal that is searched for writes in a range.
#[derive(Debug)]
struct WatchedJournal {
    journal: journal::JournalReader,
    /// The changes that were read.
    changes: u64,
}

/// The cached state of a container.
#[derive(Debug)]
pub struct ContainerState {
    container: Arc<Container>,
    generation: Option<u64>,
    opens_seen: Option<u64>,
    version: Option<IndexVersion>,
    published: PublishedIndex,
    entries: BTreeMap<PieceName, usize>,
    other_opens: Vec<OtherOpen>,
    base: u64,
    names: Vec<PieceName>,
    built: BuiltIndex,
    files: BTreeMap<Piece, File>,
}

impl ContainerState {
    /// A cache of `container`, with nothing in it.
    pub fn new(container: Arc<Container>) -> ContainerState {
        ContainerState {
            container,
            generation: None,
            opens_seen: None,
            version: None,
            published: PublishedIndex::default(),
            entries: BTreeMap::new(),
            other_opens: Vec::new(),
            base: 0,
            names: Vec::new(),
            built: BuiltIndex::default(),
            files: BTreeMap::new(),
        }
    }

    /// The index file, as of the last refresh.
    pub fn published(&self) -> &PublishedIndex {
        &self.published
    }

    /// Opens whose journals were read.
    pub fn opens(&self) -> impl Iterator<Item = &RankTable> {
        self.other_opens.iter().map(|other| &other.roll)
    }

    /// The names of the pieces, from piece 1 on.
    pub fn names(&self) -> &[PieceName] {
        &self.names
    }

    /// The name of a piece; `None` for the base.
    pub fn piece_name(&self, piece: Piece) -> Option<PieceName> {
        self.names.get((piece.0 as usize).checked_sub(1)?).copied()
    }

    /// Adds new opens and drops those that have ended.
    fn find_opens(&mut self) -> Result<()> {
        let opens = self.container.list_opens()?;
        self.other_opens.retain(|other| opens.contains(&other.roll.header.open));
        for open in opens {
            if self.other_opens.iter().any(|other| other.roll.header.open == open) {
                continue;
            }
            if let Some(roll) = self.container.open_rank_table(open)? {
                let ranks = roll.header.ranks as usize;
                let (seen, counts) = (vec![0; ranks], vec![0; ranks]);
                let (journals, watched) = (BTreeMap::new(), BTreeMap::new());
                self.other_opens.push(OtherOpen { roll, seen, counts, journals, watched });
            }
        }
        Ok(())
    }

    /// Makes sure that all opens of generation `generation` are known.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn discover_opens(&mut self, generation: u64) -> Result<()> {
        if self.generation == Some(generation) || self.opens_seen == Some(generation) {
            return Ok(());
        }
        self.find_opens()?;
        self.opens_seen = Some(generation);
        Ok(())
    }

    /// Reports whether another rank than `own` has written any of the bytes `from .. to`, with a
    /// stamp of `since` or later, and recorded it before this call. In doubt it has. (Under views,
    /// ranks of one open have the stamp of their epoch, which is before any `since` of that epoch.)
    ///
    /// The hulls in the rank table rule out ranks of the same open that write on one side of the
    /// range. Where ranks write in turn all hulls overlap, and the journals decide: they are
    /// mapped, so that this costs no system call. Bytes with an older stamp, and bytes that were
    /// published before `since`, are older than a write with the stamp `since` in any case.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn is_overtaken(&mut self, own: PieceName, range: (u64, u64), since: u64) -> Result<bool> {
        let container = self.container.clone();
        let mut own_open = false;
        for other in &mut self.other_opens {
            let of = other.roll.header;
            own_open |= of.open == own.open;
            for rank in (0..of.ranks).filter(|rank| PieceName { open: of.open, rank: *rank } != own)
            {
                // Ranks of another open have epochs of their own: their writes under a view may be
                // later, too.
                let reaches = match of.open == own.open {
                    true => other.roll.may_have_written(rank, range.0, range.1),
                    false => Ok(true),
                };
                if reaches.context("write", container.path())?
                    && other.has_written(&container, rank, range, since)?
                {
                    return Ok(true);
                }
            }
        }
        // If our own open is not listed, its rank table was not read, and nothing is known.
        Ok(!own_open)
    }

    /// Returns the file of a piece, for reading.
    fn open_piece(&mut self, piece: Piece) -> Result<&mut File> {
        let name = self.piece_name(piece);
        let container = &self.container;
        open_cached(&mut self.files, piece, || {
            let name = match name {
                None if piece == BASE => marker::BASE.to_owned(),
                None => return Err(Errno::NOENT).context("read", container.path()),
                Some(name) => marker::piece_name(name),
            };
            let file = container.open_file(&name, OFlags::RDONLY);
            file.context("open", &container.path().join(&name))
        })
    }
}

impl FileState for ContainerState {
    fn path(&self) -> &Path {
        self.container.path()
    }

    fn built(&self) -> &BuiltIndex {
        &self.built
    }

    fn is_own_piece(&self, piece: Piece, own: PieceName) -> bool {
        self.piece_name(piece) == Some(own)
    }

    fn invalidate_cache(&mut self) {
        self.generation = None;
    }

    fn refresh_published(&mut self) -> Result<Option<bool>> {
        // The generation is loaded before the state: a change meanwhile makes the next refresh
        // read again.
        let generation = self.container.clock().generation().context("read", self.path())?;
        if self.generation == Some(generation) {
            return Ok(Some(false));
        }
        // An open that ends moves its tiles from journals to the index. Only if the index is the
        // same before and after, no tile was missed or counted twice.
        let before = self.container.index_version()?;
        if self.version != Some(before) {
            self.published = self.container.read_index()?;
            self.entries = self.published.entry_positions();
            self.version = Some(before);
        }
        self.find_opens()?;
        self.base = self.container.base_size()?;
        if self.container.index_version()? != before {
            self.version = None;
            return Ok(None);
        }
        self.generation = Some(generation);
        Ok(Some(true))
    }

    fn poll_journals(&mut self, own: Option<PieceName>) -> Result<Option<bool>> {
        let container = &self.container;
        let mut changed = false;
        for other in &mut self.other_opens {
            let open = other.roll.header.open;
            match other.roll.load_changes(&mut other.counts) {
                Err(errno) if sharing::is_gone(errno) => return Ok(None),
                read => read.context("read", container.path())?,
            }
            for rank in 0..other.counts.len() {
                let (now, name) = (other.counts[rank], PieceName { open, rank: rank as u32 });
                // Skip journals without news, and the own piece, whose tiles are in memory.
                if now == other.seen[rank] && now != CHANGES_UNKNOWN || Some(name) == own {
                    continue;
                }
                changed = true;
                // The journal is ahead only if its count is higher than that of the published
                // piece.
                let known = self.entries.get(&name).map(|i| self.published.pieces[*i].changes);
                if now != CHANGES_UNKNOWN && known.is_some_and(|known| known >= now) {
                    other.journals.remove(&name.rank);
                    other.seen[rank] = now;
                    continue;
                }
                let here = other.roll.is_local();
                let journal = match other.journals.entry(name.rank) {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(new) => {
                        match open_journal(container, name, here, true)? {
                            Some(journal) => new.insert(journal),
                            // Its count is damaged, and was 0.
                            None if now == CHANGES_UNKNOWN => continue,
                            // The index must have been replaced.
                            None => return Ok(None),
                        }
                    }
                };
                match journal.read_new_records() {
                    Err(JournalError::Disk(errno)) if sharing::is_gone(errno) => return Ok(None),
                    read => {
                        read.context("read", &container.path().join(marker::journal_name(name)))?
                    }
                }
                // The count was loaded before the journal, so the journal has at least these
                // changes.
                other.seen[rank] = now;
            }
        }
        Ok(Some(changed))
    }

    fn build_index(&mut self, own: Option<OwnPieceState<'_>>) {
        let mut pieces = Vec::new();
        let mut names = Vec::new();
        let mut add = |name: PieceName, tiles: PieceTiles| {
            if !tiles.tiles().is_empty() {
                names.push(name);
                pieces.push((Piece(names.len() as u32), tiles));
            }
        };
        let journal = |name: PieceName| {
            let other =
                self.other_opens.iter().find(|other| other.roll.header.open == name.open)?;
            other.journals.get(&name.rank)
        };
        for entry in &self.published.pieces {
            // A journal, and the own piece, have all that the index has of the piece, and perhaps
            // more.
            if own.is_none_or(|own| own.name != entry.name) && journal(entry.name).is_none() {
                add(entry.name, entry.tiles.clone());
            }
        }
        for other in &self.other_opens {
            for (rank, journal) in &other.journals {
                let name = PieceName { open: other.roll.header.open, rank: *rank };
                if own.is_none_or(|own| own.name != name) {
                    add(name, journal.to_piece_tiles());
                }
            }
        }
        if let Some(own) = own {
            add(own.name, own.tiles.clone());
        }
        if names != self.names {
            // Numbers of pieces have changed, so cached descriptors may belong to other pieces.
            self.files.clear();
        }
        self.names = names;
        let index = TileIndex::new(pieces, self.published.cuts.clone(), self.base);
        self.built.replace_index(index, own);
    }

    fn read_piece(&mut self, piece: Piece, bytes: &mut [u8], at: u64) -> Result<()> {
        let file = self.open_piece(piece)?;
        read_full(file, bytes, at).context("read", self.container.path())
    }

    fn read_parts(
        &mut self,
        piece: Piece,
        mut parts: &mut [IoSliceMut<'_>],
        mut at: u64,
    ) -> Result<()> {
        let file = self.open_piece(piece)?;
        let read = loop {
            match rustix::io::preadv(&*file, parts, at) {
                Ok(n) => break n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("read", self.container.path()),
            }
        };
        at += read as u64;
        // preadv(2) may return early; read the rest part by part.
        IoSliceMut::advance_slices(&mut parts, read);
        for part in parts {
            self.read_piece(piece, part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }
}

impl OtherOpen {
    /// As [`ContainerState::is_overtaken`], for one rank.
    fn has_written(
        &mut self,
        container: &Container,
        rank: u32,
        (from, to): (u64, u64),
        since: u64,
    ) -> Result<bool> {
        // Without shared memory, reading the journal costs more than another tile.
        if !self.roll.is_mapped() {
            return Ok(true);
        }
        // The writer counts a change after it is in the journal, and sends messages after that.
        let changes = self.roll.load_rank_changes(rank).context("write", container.path())?;
        if changes == 0 {
            return Ok(false);
        }
        // Beyond the limit the answer is "in doubt", which costs one more tile and no wrong byte.
        let full = self.watched.len() >= WATCHED_MAX;
        let watched = match self.watched.entry(rank) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(_) if full => return Ok(true),
            std::collections::btree_map::Entry::Vacant(new) => {
                let name = PieceName { open: self.roll.header.open, rank };
                match open_journal(container, name, self.roll.is_local(), true) {
                    Ok(Some(journal)) => new.insert(WatchedJournal { journal, changes: 0 }),
                    // A damaged journal is reported to readers of the file; this rank's bytes are
                    // in its own journal.
                    Ok(None) => return Ok(true),
                    Err(error) if error.errno == Errno::IO => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
        };
        if watched.changes != changes || changes == CHANGES_UNKNOWN {
            match watched.journal.read_new_records() {
                Err(JournalError::Damage(_)) => return Ok(true),
                other => other.context("write", container.path())?,
            }
            watched.changes = changes;
        }
        Ok(watched.journal.has_written(from, to, since))
    }
}

/// Opens the journal of a piece; `None` where it is gone, or no journal (yet). `here`: all ranks
/// run on this machine; `lives`: a process may still write it.
///
/// # Errors
/// As for open(2); `EIO` where it is damaged.
pub fn open_journal(
    container: &Container,
    name: PieceName,
    here: bool,
    lives: bool,
) -> Result<Option<journal::JournalReader>> {
    let file = marker::journal_name(name);
    let path = container.path().join(&file);
    match container.open_file(&file, OFlags::RDONLY) {
        Ok(file) => {
            let comes = lives
                && !here
                && container.sharing_scope().remote
                && journal::is_recently_changed(&file);
            match journal::JournalReader::new(file, name.open, name.rank, here, comes) {
                Err(JournalError::Disk(errno)) if sharing::is_gone(errno) => Ok(None),
                other => other.context("read", &path),
            }
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno).context("open", &path),
    }
}
