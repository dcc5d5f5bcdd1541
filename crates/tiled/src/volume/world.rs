//! The cached state of a volume's file at a handle: the published tiles of the shard, and the
//! journals of the writers.
//!
//! Before each read the handle checks the ranks of its own open: a few loads for each rank of this
//! node, one request for each other node. It asks for the changes of other opens, and for the
//! shard's tiles, when a view epoch begins.

use super::begin::distinct;
use super::joined::Numbered;
use super::roll::{Fetched, Roll};
use super::{Base, Told, Volume};
use crate::error::{ACCEPT_LOSS, Context, Error, Result};
use crate::journal::{self, Trouble};
use crate::plain::read_full;
use crate::reader::Source;
use crate::shared::Words;
use crate::token::Token;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use tatami_client::DataFile;
use tatami_layout::{Cut, Index, PieceTiles};
use tatami_wire::tiles::{Growth, Page, PieceInfo};
use tatami_wire::{NodeId, Piece};

/// Attempts to read a consistent state while other ranks replace their pieces.
const TRIES: usize = 100;
/// Pieces kept open for reading.
const FILES_MAX: usize = 256;

/// The state of this rank's own piece, which needs no journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'a> {
    pub(super) piece: u32,
    pub(super) changes: u64,
    pub(super) tiles: &'a PieceTiles,
}

/// The position of the rank table of this node, and of this rank in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnSeat {
    /// Number of the object.
    pub(super) roll: u32,
    pub(super) slot: usize,
    /// Number of slots.
    pub(super) slots: usize,
}

/// A rank of this handle's open.
#[derive(Debug)]
struct Seat {
    roll: usize,
    slot: usize,
    /// Its piece, and the changes of its journal that were read.
    piece: u32,
    seen: u64,
}

/// A piece that another process may still write: of a rank of another open.
#[derive(Debug)]
struct Foreign {
    piece: u32,
    tiles: Option<PieceTiles>,
    journal: Option<journal::Reader>,
}

/// The cached state of the file.
pub(super) struct World {
    volume: Arc<Volume>,
    /// First piece of this handle's open, and its pieces; none for a reader.
    first: u32,
    count: u32,
    rank: Option<u32>,
    seats: Vec<Seat>,
    rolls: Vec<Roll>,
    /// The rank table of each node of the open: its number, the node, and its slots.
    places: Vec<(u32, (NodeId, usize))>,
    doubtful: bool,
    version: Option<u64>,
    nodes: BTreeMap<u32, NodeId>,
    closed: Vec<(u32, PieceTiles)>,
    cuts: Vec<Cut>,
    foreign: Vec<Foreign>,
    journals: BTreeMap<u32, journal::Reader>,
    base_size: u64,
    base: Option<Base>,
    own: Option<(u32, u64)>,
    index: Index,
    /// How often the index was built.
    built: u64,
    files: BTreeMap<Piece, DataFile>,
}

impl World {
    /// A cache with nothing in it. A rank that writes is `rank` of the open.
    pub(super) fn new(volume: Arc<Volume>, token: &Token, rank: Option<u32>) -> World {
        World {
            volume,
            first: token.first,
            count: if token.first == 0 { 0 } else { token.ranks + token.nodes },
            rank,
            seats: Vec::new(),
            rolls: Vec::new(),
            places: Vec::new(),
            doubtful: true,
            version: None,
            nodes: BTreeMap::new(),
            closed: Vec::new(),
            cuts: Vec::new(),
            foreign: Vec::new(),
            journals: BTreeMap::new(),
            base_size: 0,
            base: None,
            own: None,
            index: Index::new(Vec::new(), Vec::new(), 0),
            built: 0,
            files: BTreeMap::new(),
        }
    }

    /// Locates the ranks of the open, from the token or the shard; returns the position of this
    /// rank in the rank table of its node.
    ///
    /// # Errors
    /// Those of the shard; `ESTALE` where the open has ended.
    pub(super) fn take_seats(&mut self, token: &Token) -> Result<OwnSeat> {
        let path = self.volume.path.clone();
        let stale = || Error::because("open", &path, Errno::STALE, "the open is over");
        let ranks = token.first..token.first.saturating_add(token.ranks);
        let mut homes = token.volume.as_ref().map_or(&[][..], |opened| &opened.homes).to_vec();
        if homes.len() != ranks.len() {
            let page = self.page()?;
            self.take_page(page)?;
            let known = ranks.clone().map(|piece| self.nodes.get(&piece).copied());
            homes = known.collect::<Option<Vec<NodeId>>>().ok_or_else(stale)?;
        }
        let all = distinct(homes.iter().copied());
        let mut slots = vec![0; all.len()];
        for (piece, home) in ranks.clone().zip(&homes) {
            let roll = all.iter().position(|node| node == home).ok_or_else(stale)?;
            self.nodes.insert(piece, *home);
            self.seats.push(Seat { roll, slot: slots[roll], piece, seen: 0 });
            slots[roll] += 1;
        }
        let rank = self.rank.ok_or_else(stale)?;
        let seat = self.seats.get(rank as usize).ok_or_else(stale)?;
        if homes.get(rank as usize) != Some(&self.volume.session.node) {
            let why = "the mount at this path is not that of the node on which the open began";
            return Err(Error::because("open", &self.volume.path, Errno::XDEV, why));
        }
        let own = (ranks.end + seat.roll as u32, seat.slot, slots[seat.roll]);
        self.places = (ranks.end..).zip(all.into_iter().zip(slots)).collect();
        Ok(OwnSeat { roll: own.0, slot: own.1, slots: own.2 })
    }

    /// The ranks of the node whose roll is `roll`, in order.
    pub(super) fn ranks_of(&self, roll: u32) -> impl Iterator<Item = u32> {
        let place = self.places.iter().position(|(number, _)| *number == roll);
        let ranks = (0..).zip(&self.seats).filter(move |(_, seat)| Some(seat.roll) == place);
        ranks.map(|(rank, _)| rank)
    }

    /// Has the rolls of all nodes at hand, which a rank needs that reads.
    fn open_rolls(&mut self) -> Result<()> {
        while let Some((number, (node, slots))) = self.places.get(self.rolls.len()).copied() {
            let (object, path) = (Piece::bytes_of(number), &self.volume.path);
            let words: Box<dyn journal::Load> =
                match (node == self.volume.session.node, self.volume.own_roll_file()) {
                    (true, known) => {
                        let file = match known {
                            Some(file) => file.try_clone().context("open", path)?,
                            None => {
                                let made = self.volume.local(object, true)?;
                                made.ok_or_else(|| Error::new("open", path, Errno::STALE))?
                            }
                        };
                        crate::shared::reserve(&file, super::roll::len(slots))
                            .context("open", path)?;
                        Box::new(Words::new(file, true, false).context("open", path)?)
                    }
                    (false, _) => Box::new(Fetched::new(self.volume.object(node, object)?)),
                };
            self.rolls.push(Roll::new(words, slots));
        }
        Ok(())
    }

    /// Returns the number of a piece of the index; `None` for the base.
    pub(super) fn number(piece: Piece) -> Option<u32> {
        (piece != Piece::BASE).then(|| piece.number())
    }

    /// Returns the pieces of the file that no longer grow, and its cuts, as of now; `None` where
    /// another open adds to a piece.
    ///
    /// # Errors
    /// Those of the shard.
    pub(super) fn closed_besides(&mut self) -> Result<Option<(Vec<Numbered>, Vec<Cut>)>> {
        let page = self.page()?;
        self.take_page(page)?;
        self.doubtful = true;
        let alone = self.foreign.is_empty();
        Ok(alone.then(|| (self.closed.clone(), self.cuts.clone())))
    }

    /// Invalidates the cached answers of the shard.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// The last known cut, 0 for none: new bytes must have a later stamp.
    pub(super) fn last_cut(&self) -> u64 {
        self.cuts.iter().map(|cut| cut.stamp).max().unwrap_or(0)
    }

    /// Refreshes the cache. Asks for the size of the file unless its known part reaches `to`.
    ///
    /// # Errors
    /// Those of the shard, the nodes and the disk.
    pub(super) fn look(&mut self, own: Option<Own<'_>>, to: u64) -> Result<()> {
        let mut changed = false;
        for _ in 0..TRIES {
            if self.doubtful {
                changed |= self.refresh()?;
                self.doubtful = false;
            }
            changed |= self.poll()?;
            if self.doubtful {
                continue;
            }
            if changed || self.own != own.map(|own| (own.piece, own.changes)) {
                self.build(own);
            }
            if to > self.index.size() {
                let size = self.volume.size()?;
                if size != self.base_size {
                    self.base_size = size;
                    self.build(own);
                }
            }
            return Ok(());
        }
        Err(Error::new("read", &self.volume.path, Errno::AGAIN))
    }

    fn page(&self) -> Result<Page> {
        let volume = &self.volume;
        volume.session.client.raw_tiles(volume.ino).told("read", &volume.path)
    }

    /// Fetches the state from the shard and the mount.
    fn refresh(&mut self) -> Result<bool> {
        let volume = self.volume.clone();
        // The version comes before the tiles: a change in between makes the next refresh fetch them
        // again.
        let version = volume.session.client.tiles_version(volume.ino);
        let mut changed = self.version != Some(version.told("read", &volume.path)?);
        if changed {
            let page = self.page()?;
            self.take_page(page)?;
        }
        let size = volume.size()?;
        changed |= self.base_size != size;
        self.base_size = size;
        // Open the base again before the next read: the open file may have older bytes cached.
        self.base = None;
        for i in 0..self.foreign.len() {
            changed = true;
            if self.foreign[i].journal.is_none() {
                self.foreign[i].journal = self.journal(self.foreign[i].piece)?;
            }
            if let Some(journal) = &mut self.foreign[i].journal {
                let read = journal.update();
                self.tell_journal(self.foreign[i].piece, read)?;
            }
        }
        Ok(changed)
    }

    fn take_page(&mut self, page: Page) -> Result<()> {
        let path = self.volume.path.clone();
        let bad = |_| Error::because("read", &path, Errno::IO, "its tiles do not read");
        let mut foreign = std::mem::take(&mut self.foreign);
        self.closed.clear();
        self.nodes.clear();
        for PieceInfo { piece, node, growth, tiles } in page.pieces {
            self.nodes.insert(piece, node);
            let ours = piece >= self.first && piece - self.first < self.count
                || self.seats.iter().any(|seat| seat.piece == piece);
            // Living pieces of this open are read from their journals.
            if ours && growth != Growth::Closed {
                continue;
            }
            let tiles = match tiles.is_empty() {
                true => None,
                false => Some(PieceTiles::decode(&tiles).map_err(bad)?),
            };
            if growth == Growth::Closed {
                self.closed.extend(tiles.map(|tiles| (piece, tiles)));
            } else {
                let known = foreign.iter().position(|known| known.piece == piece);
                let journal = known.and_then(|at| foreign.swap_remove(at).journal);
                self.foreign.push(Foreign { piece, tiles, journal });
            }
        }
        let cut = |cut: tatami_wire::tiles::Cut| Cut { stamp: cut.stamp, size: cut.size };
        self.cuts = page.cuts.into_iter().map(cut).collect();
        self.version = Some(page.version);
        Ok(())
    }

    /// Opens the journal of a piece; `None` where there is none (yet, or any more).
    fn journal(&self, piece: u32) -> Result<Option<journal::Reader>> {
        let Some(node) = self.nodes.get(&piece) else { return Ok(None) };
        let object = Piece::journal_of(piece);
        let words: Box<dyn journal::Load> = match *node == self.volume.session.node {
            true => match self.volume.local(object, false)? {
                Some(file) => {
                    Box::new(Words::new(file, true, false).context("read", &self.volume.path)?)
                }
                None => return Ok(None),
            },
            false => Box::new(Fetched::new(self.volume.object(*node, object)?)),
        };
        self.tell_journal(piece, journal::Reader::of_any(words, false))
    }

    /// Adds the piece and its node to an error of its journal.
    fn tell_journal<T>(&self, piece: u32, read: std::result::Result<T, Trouble>) -> Result<T> {
        read.map_err(|trouble| {
            let (path, node) = (&self.volume.path, self.nodes.get(&piece).map_or(0, |node| node.0));
            match trouble {
                Trouble::Disk(errno) => Error::new("read", path, errno),
                Trouble::Damage(damage) => {
                    let journal = Piece::journal_of(piece);
                    let what = format!(
                        "the journal of piece {piece} (object {}, node {node}) is {damage}; {ACCEPT_LOSS}",
                        format_args!("{:016x}.{:08x}", self.volume.ino.0, journal.0)
                    );
                    Error::because("read", path, Errno::IO, what)
                }
            }
        })
    }

    /// Reads new records in the journals of the other ranks.
    fn poll(&mut self) -> Result<bool> {
        let path = self.volume.path.clone();
        let mut changed = false;
        self.open_rolls()?;
        // The counts are loaded before the journals, so each journal has at least the counted
        // changes.
        self.rolls.iter_mut().try_for_each(Roll::again).context("read", &path)?;
        for rank in 0..self.seats.len() {
            if Some(rank as u32) == self.rank {
                continue;
            }
            let seat = &self.seats[rank];
            let slot = self.rolls[seat.roll].slot(seat.slot).context("read", &path)?;
            let (old, seen) = (seat.piece, seat.seen);
            if slot.piece != 0 && slot.piece != old {
                // Its old piece was published and closed, so the shard has it.
                self.journals.remove(&old);
                self.seats[rank].piece = slot.piece;
                self.seats[rank].seen = 0;
                self.doubtful = true;
                return Ok(true);
            }
            if slot.changes == seen {
                continue;
            }
            changed = true;
            if !self.journals.contains_key(&old) {
                // The piece was closed or replaced meanwhile, so the shard has its tiles.
                let Some(journal) = self.journal(old)? else {
                    self.doubtful = true;
                    return Ok(true);
                };
                self.journals.insert(old, journal);
            }
            if let Some(read) = self.journals.get_mut(&old).map(journal::Reader::update) {
                self.tell_journal(old, read)?;
            }
            self.seats[rank].seen = slot.changes;
        }
        Ok(changed)
    }

    fn build(&mut self, own: Option<Own<'_>>) {
        let mut pieces = Vec::new();
        let mut add = |piece: u32, tiles: PieceTiles| {
            if !tiles.tiles().is_empty() {
                pieces.push((Piece::bytes_of(piece), tiles));
            }
        };
        for (piece, tiles) in &self.closed {
            add(*piece, tiles.clone());
        }
        for Foreign { piece, tiles, journal } in &self.foreign {
            match (journal, tiles) {
                (Some(journal), _) => add(*piece, journal.piece()),
                (None, Some(tiles)) => add(*piece, tiles.clone()),
                (None, None) => {}
            }
        }
        for (piece, journal) in &self.journals {
            add(*piece, journal.piece());
        }
        if let Some(own) = own {
            add(own.piece, own.tiles.clone());
        }
        // The mount shows the base after all cuts, so none applies to it any more.
        self.built += 1;
        self.index = Index::with_base(pieces, self.cuts.clone(), self.base_size, u64::MAX);
        self.own = own.map(|own| (own.piece, own.changes));
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
        let path = self.volume.path.clone();
        if piece == Piece::BASE {
            if self.base.is_none() {
                self.base = Some(self.volume.base()?);
            }
            return match self.base.as_ref() {
                Some(Base::Mounted(file)) => read_full(file, bytes, at).context("read", &path),
                Some(Base::Object(object)) => {
                    let got = object.read_at(bytes, at).told("read", &path)?;
                    bytes[got..].fill(0);
                    Ok(())
                }
                None => Err(Error::new("read", &path, Errno::IO)),
            };
        }
        if !self.files.contains_key(&piece) {
            let node = self.nodes.get(&piece.number()).copied();
            let node = node.ok_or_else(|| Error::new("read", &path, Errno::IO))?;
            if self.files.len() >= FILES_MAX {
                self.files.pop_first();
            }
            self.files.insert(piece, self.volume.object(node, piece)?);
        }
        match self.files[&piece].read_at(bytes, at).told("read", &path)? {
            // The bytes of a tile were written before the tile, so missing ones are lost.
            got if got < bytes.len() => {
                Err(Error::because("read", &path, Errno::IO, "bytes of a piece are missing"))
            }
            _ => Ok(()),
        }
    }
}
