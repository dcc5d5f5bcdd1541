//! The cached state of a container at a reader: the index, the journals of opens that have not
//! ended, and the tile index that combines both.
//!
//! A refresh costs a load for the generation and one for each rank that has the file open for
//! writing. The rest is done only after a change.

use crate::container::{Container, Version};
use crate::error::{Context, Error, Result};
use crate::journal;
use crate::journal::Trouble;
use crate::marker::{self, Member, Name};
use crate::plain::read_full;
use crate::published::Published;
use crate::reach;
use crate::reader::Source;
use crate::roll::Roll;
use crate::roll::UNSURE;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::sync::Arc;
use tatami_layout::{BASE, Index, Piece, PieceTiles};

/// Attempts to read a consistent state while other processes replace the index.
const TRIES: usize = 100;
/// Most journals of an open that are watched.
const WATCHED_MAX: usize = 256;
/// Pieces kept open for reading.
const FILES_MAX: usize = 256;

/// An open that has not ended, or whose job is dead.
#[derive(Debug)]
struct Other {
    roll: Roll,
    /// The changes of each rank that were read.
    seen: Vec<u64>,
    /// The changes of each rank now.
    counts: Vec<u64>,
    journals: BTreeMap<u32, journal::Reader>,
    /// Journals of ranks that write in the same range as this one.
    watched: BTreeMap<u32, Watched>,
}

/// A journal that is searched for writes in a range.
#[derive(Debug)]
struct Watched {
    journal: journal::Reader,
    /// The changes that were read.
    changes: u64,
}

/// The state of this rank's own piece, which needs no journal.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    /// The piece.
    pub name: Name,
    /// How often it has changed.
    pub changes: u64,
    /// Its tiles.
    pub tiles: &'a PieceTiles,
}

/// The cached state of a container.
#[derive(Debug)]
pub struct World {
    container: Arc<Container>,
    generation: Option<u64>,
    opens_seen: Option<u64>,
    version: Option<Version>,
    published: Published,
    entries: BTreeMap<Name, usize>,
    others: Vec<Other>,
    own: Option<(Name, u64)>,
    base: u64,
    names: Vec<Name>,
    index: Index,
    /// How often the index was built.
    built: u64,
    files: BTreeMap<Piece, Arc<File>>,
}

impl World {
    /// A cache of `container`, with nothing in it.
    pub fn new(container: Arc<Container>) -> World {
        World {
            container,
            generation: None,
            opens_seen: None,
            version: None,
            published: Published::default(),
            entries: BTreeMap::new(),
            others: Vec::new(),
            own: None,
            base: 0,
            names: Vec::new(),
            index: Index::new(Vec::new(), Vec::new(), 0),
            built: 0,
            files: BTreeMap::new(),
        }
    }

    /// The piece of each byte, as of the last refresh.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// A number that changes with [`World::index`].
    pub fn built(&self) -> u64 {
        self.built
    }

    /// The index file, as of the last refresh.
    pub fn published(&self) -> &Published {
        &self.published
    }

    /// Opens whose journals were read.
    pub fn opens(&self) -> impl Iterator<Item = &Roll> {
        self.others.iter().map(|other| &other.roll)
    }

    /// The names of the pieces, from piece 1 on.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// The name of a piece; `None` for the base.
    pub fn name(&self, piece: Piece) -> Option<Name> {
        self.names.get((piece.0 as usize).checked_sub(1)?).copied()
    }

    /// Invalidates the cache, for file systems on which memory is not shared.
    pub fn doubt(&mut self) {
        self.generation = None;
    }

    /// Refreshes the cache. `own` is this rank's piece.
    ///
    /// # Errors
    /// Those of the disk; `EIO` for a damaged index.
    pub fn look(&mut self, own: Option<Own<'_>>) -> Result<()> {
        let container = self.container.clone();
        let context = |e: Errno| Err(e).context("read", container.path());
        for _ in 0..TRIES {
            // The generation is loaded before the state: a change meanwhile makes the next refresh
            // read again.
            let generation = container.common().generation().or_else(context)?;
            let mut changed = false;
            if self.generation != Some(generation) {
                changed = true;
                if !self.scan()? {
                    continue;
                }
                self.generation = Some(generation);
            }
            match self.poll(own.map(|own| own.name))? {
                Some(any) => changed |= any,
                None => {
                    self.generation = None;
                    continue;
                }
            }
            if changed || self.own != own.map(|own| (own.name, own.changes)) {
                self.build(own);
            }
            return Ok(());
        }
        let why = "its roll tells of a journal that is not there, or it changes all the time";
        Err(Error::because("read", container.path(), Errno::AGAIN, why))
    }

    /// Reads the index and the list of opens. `false`: the index was replaced meanwhile.
    fn scan(&mut self) -> Result<bool> {
        // An open that ends moves its tiles from journals to the index. Only if the index is the
        // same before and after, no tile was missed or counted twice.
        let before = self.container.version()?;
        if self.version != Some(before) {
            self.published = self.container.read_index()?;
            self.entries = self.published.places();
            self.version = Some(before);
        }
        self.find_opens()?;
        self.base = self.container.base_size()?;
        let after = self.container.version()?;
        if after != before {
            self.version = None;
        }
        Ok(after == before)
    }

    /// Adds new opens and drops those that have ended.
    fn find_opens(&mut self) -> Result<()> {
        let members = self.container.members()?;
        let opens: Vec<u64> = members
            .iter()
            .filter_map(|member| if let Member::Roll(open) = member { Some(*open) } else { None })
            .collect();
        self.others.retain(|other| opens.contains(&other.roll.of.open));
        for open in opens {
            if self.others.iter().any(|other| other.roll.of.open == open) {
                continue;
            }
            if let Some(roll) = self.container.roll(open)? {
                let ranks = roll.of.ranks as usize;
                let (seen, counts) = (vec![0; ranks], vec![0; ranks]);
                let (journals, watched) = (BTreeMap::new(), BTreeMap::new());
                self.others.push(Other { roll, seen, counts, journals, watched });
            }
        }
        Ok(())
    }

    /// Makes sure that all opens of generation `generation` are known.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn see_opens(&mut self, generation: u64) -> Result<()> {
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
    pub fn is_overtaken(&mut self, own: Name, range: (u64, u64), since: u64) -> Result<bool> {
        let container = self.container.clone();
        let mut own_open = false;
        for other in &mut self.others {
            let of = other.roll.of;
            own_open |= of.open == own.open;
            for rank in (0..of.ranks).filter(|rank| Name { open: of.open, rank: *rank } != own) {
                // Ranks of another open have epochs of their own: their writes under a view may be
                // later, too.
                let reaches = match of.open == own.open {
                    true => other.roll.reaches(rank, range.0, range.1),
                    false => Ok(true),
                };
                if reaches.context("write", container.path())?
                    && other.wrote(&container, rank, range, since)?
                {
                    return Ok(true);
                }
            }
        }
        // If our own open is not listed, its rank table was not read, and nothing is known.
        Ok(!own_open)
    }

    /// Reads the journals where they have more than the index. `None`: a journal is gone, so the
    /// index must have been replaced.
    fn poll(&mut self, own: Option<Name>) -> Result<Option<bool>> {
        let container = &self.container;
        let mut changed = false;
        for other in &mut self.others {
            let open = other.roll.of.open;
            match other.roll.changes(&mut other.counts) {
                Err(errno) if reach::is_gone(errno) => return Ok(None),
                read => read.context("read", container.path())?,
            }
            for rank in 0..other.counts.len() {
                let (now, name) = (other.counts[rank], Name { open, rank: rank as u32 });
                // Skip journals without news, and the own piece, whose tiles are in memory.
                if now == other.seen[rank] && now != UNSURE || Some(name) == own {
                    continue;
                }
                changed = true;
                // The journal is ahead only if its count is higher than that of the published
                // piece.
                let known = self.entries.get(&name).map(|i| self.published.pieces[*i].changes);
                if now != UNSURE && known.is_some_and(|known| known >= now) {
                    other.journals.remove(&name.rank);
                    other.seen[rank] = now;
                    continue;
                }
                let here = other.roll.is_here();
                let journal = match other.journals.entry(name.rank) {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(new) => {
                        match open_journal(container, name, here, true)? {
                            Some(journal) => new.insert(journal),
                            // Its count is damaged, and was 0.
                            None if now == UNSURE => continue,
                            None => return Ok(None),
                        }
                    }
                };
                match journal.update() {
                    Err(Trouble::Disk(errno)) if reach::is_gone(errno) => return Ok(None),
                    read => read.context("read", &container.path().join(marker::journal(name)))?,
                }
                // The count was loaded before the journal, so the journal has at least these
                // changes.
                other.seen[rank] = now;
            }
        }
        Ok(Some(changed))
    }

    fn build(&mut self, own: Option<Own<'_>>) {
        let mut pieces = Vec::new();
        let mut names = Vec::new();
        let mut add = |name: Name, tiles: PieceTiles| {
            if !tiles.tiles().is_empty() {
                names.push(name);
                pieces.push((Piece(names.len() as u32), tiles));
            }
        };
        let journal = |name: Name| {
            let other = self.others.iter().find(|other| other.roll.of.open == name.open)?;
            other.journals.get(&name.rank)
        };
        for entry in &self.published.pieces {
            // A journal, and the own piece, have all that the index has of the piece, and perhaps
            // more.
            if own.is_none_or(|own| own.name != entry.name) && journal(entry.name).is_none() {
                add(entry.name, entry.tiles.clone());
            }
        }
        for other in &self.others {
            for (rank, journal) in &other.journals {
                let name = Name { open: other.roll.of.open, rank: *rank };
                if own.is_none_or(|own| own.name != name) {
                    add(name, journal.piece());
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
        self.index = Index::new(pieces, self.published.cuts.clone(), self.base);
        self.own = own.map(|own| (own.name, own.changes));
        self.built += 1;
    }

    /// Returns the file of a piece, for reading.
    ///
    /// # Errors
    /// As for open(2).
    pub fn file(&mut self, piece: Piece) -> Result<Arc<File>> {
        if let Some(file) = self.files.get(&piece) {
            return Ok(file.clone());
        }
        let name = match self.name(piece) {
            None if piece == BASE => marker::BASE.to_owned(),
            None => return Err(Errno::NOENT).context("read", self.container.path()),
            Some(name) => marker::piece(name),
        };
        let file = self.container.open_file(&name, OFlags::RDONLY);
        let file = Arc::new(file.context("open", &self.container.path().join(&name))?);
        if self.files.len() >= FILES_MAX {
            self.files.pop_first();
        }
        self.files.insert(piece, file.clone());
        Ok(file)
    }
}

impl Source for World {
    fn index(&self) -> &Index {
        &self.index
    }

    fn built(&self) -> u64 {
        self.built
    }

    fn read(&mut self, piece: Piece, bytes: &mut [u8], at: u64) -> Result<()> {
        let file = self.file(piece)?;
        read_full(&file, bytes, at).context("read", self.container.path())
    }

    fn read_parts(
        &mut self,
        piece: Piece,
        mut parts: &mut [IoSliceMut<'_>],
        mut at: u64,
    ) -> Result<()> {
        let file = self.file(piece)?;
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
            self.read(piece, part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }
}

impl Other {
    /// As [`World::is_overtaken`], for one rank.
    fn wrote(
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
        let changes = self.roll.changes_of(rank).context("write", container.path())?;
        if changes == 0 {
            return Ok(false);
        }
        // Beyond the limit the answer is "in doubt", which costs one more tile and no wrong byte.
        let full = self.watched.len() >= WATCHED_MAX;
        let watched = match self.watched.entry(rank) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(_) if full => return Ok(true),
            std::collections::btree_map::Entry::Vacant(new) => {
                let name = Name { open: self.roll.of.open, rank };
                match open_journal(container, name, self.roll.is_here(), true) {
                    Ok(Some(journal)) => new.insert(Watched { journal, changes: 0 }),
                    // A damaged journal is reported to readers of the file; this rank's bytes are
                    // in its own journal.
                    Ok(None) => return Ok(true),
                    Err(error) if error.errno == Errno::IO => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
        };
        if watched.changes != changes || changes == UNSURE {
            match watched.journal.update() {
                Err(Trouble::Damage(_)) => return Ok(true),
                other => other.context("write", container.path())?,
            }
            watched.changes = changes;
        }
        Ok(watched.journal.wrote(from, to, since))
    }
}

/// Opens the journal of a piece; `None` where it is gone, or no journal (yet). `here`: all ranks
/// run on this machine; `lives`: a process may still write it.
///
/// # Errors
/// As for open(2); `EIO` where it is damaged.
pub fn open_journal(
    container: &Container,
    name: Name,
    here: bool,
    lives: bool,
) -> Result<Option<journal::Reader>> {
    let file = marker::journal(name);
    let path = container.path().join(&file);
    match container.open_file(&file, OFlags::RDONLY) {
        Ok(file) => {
            let comes = lives && !here && container.reach().remote && journal::is_new(&file);
            match journal::Reader::new(file, name.open, name.rank, here, comes) {
                Err(Trouble::Disk(errno)) if reach::is_gone(errno) => Ok(None),
                other => other.context("read", &path),
            }
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno).context("open", &path),
    }
}
