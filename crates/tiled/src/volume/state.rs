//! The file state of a volume's file at a handle: the published tiles of the shard, and the
//! journals of the writers.
//!
//! Before each read the handle checks the ranks of its own open: a few loads for each rank of this
//! node, one request for each other node. It fetches the changes of other opens, and the
//! shard's tiles, when a view epoch begins.

use super::begin::distinct_nodes;
use super::joined::NumberedPiece;
use super::open_file::{BaseSource, OpenVolumeFile};
use super::rank_table::{FetchedWords, NodeRankTable};
use crate::error::{ACCEPT_LOSS, DaemonErrorContext, ErrorContext, Result, TiledError};
use crate::file_state::{BuiltIndex, FileState, open_cached};
use crate::journal::{self, JournalError};
use crate::marker::PieceName;
use crate::piece::OwnPieceState;
use crate::plain::read_full;
use crate::shared::SharedWords;
use crate::token::OpenToken;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tatami_client::DataFile;
use tatami_layout::{PieceTiles, TileCut, TileIndex};
use tatami_wire::tiles::{PieceGrowth, PieceInfo, TilePage};
use tatami_wire::{NodeId, Piece};

/// The position of the rank table of this node, and of this rank in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnRankPosition {
    /// Number of the object.
    pub(super) roll: u32,
    pub(super) slot: usize,
    /// Number of slots.
    pub(super) slots: usize,
}

/// A rank of this handle's open.
#[derive(Debug)]
struct RankPosition {
    roll: usize,
    slot: usize,
    /// Its piece, and the changes of its journal that were read.
    piece: u32,
    seen: u64,
}

/// A piece that another process may still write; it belongs to a rank of another open.
#[derive(Debug)]
struct OtherPiece {
    piece: u32,
    tiles: Option<PieceTiles>,
    journal: Option<journal::JournalReader>,
}

/// The cached state of the file.
pub struct VolumeState {
    volume: Arc<OpenVolumeFile>,
    /// First piece of this handle's open, and its pieces; none for a reader.
    first: u32,
    count: u32,
    rank: Option<u32>,
    rank_positions: Vec<RankPosition>,
    rank_tables: Vec<NodeRankTable>,
    /// The rank table of each node of the open: its number, the node, and its slots.
    table_places: Vec<(u32, (NodeId, usize))>,
    /// The node of the only rank table, where the pieces lie on all nodes in turn.
    table: Option<NodeId>,
    is_stale: bool,
    version: Option<u64>,
    nodes: BTreeMap<u32, NodeId>,
    closed: Vec<(u32, PieceTiles)>,
    cuts: Vec<TileCut>,
    other_pieces: Vec<OtherPiece>,
    journals: BTreeMap<u32, journal::JournalReader>,
    base_size: u64,
    base: Option<BaseSource>,
    built: BuiltIndex,
    files: BTreeMap<Piece, DataFile>,
}

impl VolumeState {
    /// Creates an empty cache. A rank that writes is `rank` of the open.
    pub(super) fn new(
        volume: Arc<OpenVolumeFile>,
        token: &OpenToken,
        rank: Option<u32>,
    ) -> VolumeState {
        VolumeState {
            volume,
            first: token.first,
            count: if token.first == 0 { 0 } else { token.ranks + token.nodes },
            rank,
            rank_positions: Vec::new(),
            rank_tables: Vec::new(),
            table_places: Vec::new(),
            table: None,
            is_stale: true,
            version: None,
            nodes: BTreeMap::new(),
            closed: Vec::new(),
            cuts: Vec::new(),
            other_pieces: Vec::new(),
            journals: BTreeMap::new(),
            base_size: 0,
            base: None,
            built: BuiltIndex::default(),
            files: BTreeMap::new(),
        }
    }

    /// Locates the ranks of the open, from the token or the shard; returns the position of this
    /// rank in the rank table of its node.
    ///
    /// # Errors
    /// Those of the shard; `ESTALE` where the open has ended.
    pub(super) fn locate_ranks(&mut self, token: &OpenToken) -> Result<OwnRankPosition> {
        let path = self.volume.path.clone();
        let stale = || TiledError::with_detail("open", &path, Errno::STALE, "the open is over");
        let ranks = token.first..token.first.saturating_add(token.ranks);
        let mut homes = token.volume.as_ref().map_or(&[][..], |opened| &opened.rank_nodes).to_vec();
        if homes.len() != ranks.len() {
            let page = self.fetch_page()?;
            self.apply_page(page)?;
            let known = ranks.clone().map(|piece| self.nodes.get(&piece).copied());
            homes = known.collect::<Option<Vec<NodeId>>>().ok_or_else(stale)?;
        }
        self.table = token.volume.as_ref().and_then(|opened| opened.table);
        let all = match self.table {
            Some(node) => vec![node],
            None => distinct_nodes(homes.iter().copied()),
        };
        let mut slots = vec![0; all.len()];
        for (piece, home) in ranks.clone().zip(&homes) {
            let table = self.table.as_ref().unwrap_or(home);
            let roll = all.iter().position(|node| node == table).ok_or_else(stale)?;
            self.nodes.insert(piece, *home);
            self.rank_positions.push(RankPosition { roll, slot: slots[roll], piece, seen: 0 });
            slots[roll] += 1;
        }
        let rank = self.rank.ok_or_else(stale)?;
        let seat = self.rank_positions.get(rank as usize).ok_or_else(stale)?;
        if all.get(seat.roll) != Some(&self.volume.session.node) {
            let why = "the mount at this path is not that of the node on which the open began";
            return Err(TiledError::with_detail("open", &self.volume.path, Errno::XDEV, why));
        }
        let own = (ranks.end + seat.roll as u32, seat.slot, slots[seat.roll]);
        self.table_places = (ranks.end..).zip(all.into_iter().zip(slots)).collect();
        Ok(OwnRankPosition { roll: own.0, slot: own.1, slots: own.2 })
    }

    /// Returns the ranks of the node whose rank table has the number `roll`, in order.
    pub(super) fn ranks_of(&self, roll: u32) -> impl Iterator<Item = u32> {
        let place = self.table_places.iter().position(|(number, _)| *number == roll);
        let ranks =
            (0..).zip(&self.rank_positions).filter(move |(_, seat)| Some(seat.roll) == place);
        ranks.map(|(rank, _)| rank)
    }

    /// Opens the rank tables of all nodes, which a reading rank needs.
    fn open_rank_tables(&mut self) -> Result<()> {
        while let Some((number, (node, slots))) =
            self.table_places.get(self.rank_tables.len()).copied()
        {
            let (object, path) = (Piece::of_bytes(number), &self.volume.path);
            let words: Box<dyn journal::WordSource> =
                match (node == self.volume.session.node, self.volume.own_roll_file()) {
                    (true, known) => {
                        let file = match known {
                            Some(file) => file.try_clone().context("open", path)?,
                            None => {
                                let made = self.volume.open_local_object(object, true)?;
                                made.ok_or_else(|| TiledError::new("open", path, Errno::STALE))?
                            }
                        };
                        // Reserve the blocks before the mapping: a store into a mapped hole on a
                        // full disk would kill the process (SIGBUS).
                        crate::shared::reserve_blocks(&file, super::rank_table::table_len(slots))
                            .context("open", path)?;
                        Box::new(SharedWords::new(file, true, false).context("open", path)?)
                    }
                    (false, _) => {
                        Box::new(FetchedWords::new(self.volume.open_object(node, object)?))
                    }
                };
            self.rank_tables.push(NodeRankTable::new(words, slots));
        }
        Ok(())
    }

    /// Returns the number of this rank's piece; `EBADF` for a reader.
    pub(super) fn own_piece(&self) -> Result<u32> {
        let own = self.rank.and_then(|rank| self.rank_positions.get(rank as usize));
        let reader = || TiledError::new("write", &self.volume.path, Errno::BADF);
        own.map(|own| own.piece).ok_or_else(reader)
    }

    /// Returns the node of this rank's piece.
    pub(super) fn own_piece_node(&self) -> Result<NodeId> {
        let piece = self.own_piece()?;
        Ok(self.nodes.get(&piece).copied().unwrap_or(self.volume.session.node))
    }

    /// Gives this rank another piece, which is empty, on `node`.
    pub(super) fn replace_own_piece(&mut self, piece: u32, node: NodeId) {
        self.nodes.insert(piece, node);
        let own = self.rank.and_then(|rank| self.rank_positions.get_mut(rank as usize));
        own.into_iter().for_each(|own| own.piece = piece);
        // The new piece has the name of the old one, and may get as many changes. Without a known
        // version the next refresh builds the index again in any case.
        (self.version, self.is_stale) = (None, true);
    }

    /// Reports whether another handle of this process has the file open for writing.
    pub(super) fn has_other_writers(&self) -> bool {
        let writers = self.volume.session.count_writers(self.volume.ino);
        writers > usize::from(self.rank.is_some())
    }

    /// Returns the pieces of the file that no longer grow, and its cuts, as of now; `None` where
    /// another open adds to a piece.
    ///
    /// # Errors
    /// Those of the shard.
    pub(super) fn closed_pieces(&mut self) -> Result<Option<(Vec<NumberedPiece>, Vec<TileCut>)>> {
        let page = self.fetch_page()?;
        self.apply_page(page)?;
        self.is_stale = true;
        let alone = self.other_pieces.is_empty();
        Ok(alone.then(|| (self.closed.clone(), self.cuts.clone())))
    }

    /// The last known cut, 0 for none: new bytes must have a later stamp.
    pub(super) fn last_cut(&self) -> u64 {
        self.cuts.iter().map(|cut| cut.stamp).max().unwrap_or(0)
    }

    fn fetch_page(&self) -> Result<TilePage> {
        let volume = &self.volume;
        volume.session.client.fetch_raw_tiles(volume.ino).daemon_context("read", &volume.path)
    }

    /// Fetches the state from the shard and the mount.
    fn fetch_shard_state(&mut self) -> Result<bool> {
        let volume = self.volume.clone();
        // The version comes before the tiles: a change in between makes the next refresh fetch them
        // again.
        let version = volume.session.client.fetch_tiles_version(volume.ino);
        let mut changed = self.version != Some(version.daemon_context("read", &volume.path)?);
        if changed {
            let page = self.fetch_page()?;
            self.apply_page(page)?;
        }
        let size = volume.current_size()?;
        changed |= self.base_size != size;
        self.base_size = size;
        // Open the base again before the next read: the open file may have older bytes cached.
        self.base = None;
        for i in 0..self.other_pieces.len() {
            changed = true;
            if self.other_pieces[i].journal.is_none() {
                self.other_pieces[i].journal = self.open_journal(self.other_pieces[i].piece)?;
            }
            if let Some(journal) = &mut self.other_pieces[i].journal {
                let read = journal.read_new_records();
                self.with_journal_context(self.other_pieces[i].piece, read)?;
            }
        }
        Ok(changed)
    }

    fn apply_page(&mut self, page: TilePage) -> Result<()> {
        let path = self.volume.path.clone();
        let bad = |_| TiledError::with_detail("read", &path, Errno::IO, "its tiles do not read");
        let mut foreign = std::mem::take(&mut self.other_pieces);
        self.closed.clear();
        self.nodes.clear();
        for PieceInfo { piece, node, growth, tiles } in page.pieces {
            self.nodes.insert(piece, node);
            let ours = piece >= self.first && piece - self.first < self.count
                || self.rank_positions.iter().any(|seat| seat.piece == piece);
            // Journals have the newest tiles of growing pieces of this open; the published ones may
            // be older.
            if ours && growth != PieceGrowth::Closed {
                continue;
            }
            let tiles = match tiles.is_empty() {
                true => None,
                false => Some(PieceTiles::decode(&tiles).map_err(bad)?),
            };
            if growth == PieceGrowth::Closed {
                self.closed.extend(tiles.map(|tiles| (piece, tiles)));
            } else {
                // Keep the open journal: a reader continues after the last record that it has read.
                let known = foreign.iter().position(|known| known.piece == piece);
                let journal = known.and_then(|at| foreign.swap_remove(at).journal);
                self.other_pieces.push(OtherPiece { piece, tiles, journal });
            }
        }
        let cut = |cut: tatami_wire::tiles::Cut| TileCut { stamp: cut.stamp, size: cut.size };
        self.cuts = page.cuts.into_iter().map(cut).collect();
        self.version = Some(page.version);
        Ok(())
    }

    /// Opens the journal of a piece; `None` where there is none (yet, or any more).
    fn open_journal(&self, piece: u32) -> Result<Option<journal::JournalReader>> {
        let Some(node) = self.nodes.get(&piece) else { return Ok(None) };
        let object = Piece::of_journal(piece);
        let words: Box<dyn journal::WordSource> = match *node == self.volume.session.node {
            true => match self.volume.open_local_object(object, false)? {
                Some(file) => Box::new(
                    SharedWords::new(file, true, false).context("read", &self.volume.path)?,
                ),
                None => return Ok(None),
            },
            false => Box::new(FetchedWords::new(self.volume.open_object(*node, object)?)),
        };
        self.with_journal_context(piece, journal::JournalReader::from_words(words, false))
    }

    /// Adds the piece and its node to an error of its journal.
    fn with_journal_context<T>(
        &self,
        piece: u32,
        read: std::result::Result<T, JournalError>,
    ) -> Result<T> {
        read.map_err(|trouble| {
            let (path, node) = (&self.volume.path, self.nodes.get(&piece).map_or(0, |node| node.0));
            match trouble {
                JournalError::Disk(errno) => TiledError::new("read", path, errno),
                JournalError::Damage(damage) => {
                    let journal = Piece::of_journal(piece);
                    let what = format!(
                        "the journal of piece {piece} (object {}, node {node}) is {damage}; {ACCEPT_LOSS}",
                        format_args!("{:016x}.{:08x}", self.volume.ino.0, journal.0)
                    );
                    TiledError::with_detail("read", path, Errno::IO, what)
                }
            }
        })
    }
}

impl FileState for VolumeState {
    fn path(&self) -> &Path {
        &self.volume.path
    }

    fn built(&self) -> &BuiltIndex {
        &self.built
    }

    fn is_own_piece(&self, piece: Piece, _own: PieceName) -> bool {
        piece != Piece::BASE && self.own_piece().is_ok_and(|own| own == piece.number())
    }

    fn invalidate_cache(&mut self) {
        self.is_stale = true;
    }

    fn refresh_published(&mut self) -> Result<Option<bool>> {
        // Another handle of this process may have changed the file without a sync of this one.
        if !self.is_stale && !self.has_other_writers() {
            return Ok(Some(false));
        }
        let changed = self.fetch_shard_state()?;
        self.is_stale = false;
        Ok(Some(changed))
    }

    fn poll_journals(&mut self, _own: Option<PieceName>) -> Result<Option<bool>> {
        let path = self.volume.path.clone();
        let mut changed = false;
        self.open_rank_tables()?;
        // The counts are loaded before the journals, so each journal has at least the counted
        // changes.
        self.rank_tables
            .iter_mut()
            .try_for_each(NodeRankTable::refresh_slots)
            .context("read", &path)?;
        for rank in 0..self.rank_positions.len() {
            if Some(rank as u32) == self.rank {
                continue;
            }
            let seat = &self.rank_positions[rank];
            let slot = self.rank_tables[seat.roll].rank_slot(seat.slot).context("read", &path)?;
            let (old, seen) = (seat.piece, seat.seen);
            if slot.piece != 0 && slot.piece != old {
                // The writer published and closed its old piece before it changed the rank table,
                // so the shard has the tiles.
                self.journals.remove(&old);
                self.rank_positions[rank].piece = slot.piece;
                self.rank_positions[rank].seen = 0;
                return Ok(None);
            }
            if slot.changes == seen {
                continue;
            }
            changed = true;
            if !self.journals.contains_key(&old) {
                // The piece was closed or replaced meanwhile, so the shard has its tiles.
                let Some(journal) = self.open_journal(old)? else { return Ok(None) };
                self.journals.insert(old, journal);
            }
            if let Some(read) =
                self.journals.get_mut(&old).map(journal::JournalReader::read_new_records)
            {
                self.with_journal_context(old, read)?;
            }
            // Store the count only after the records are read: after an error the next refresh
            // reads them again.
            self.rank_positions[rank].seen = slot.changes;
        }
        Ok(Some(changed))
    }

    fn build_index(&mut self, own: Option<OwnPieceState<'_>>) {
        let mut pieces = Vec::new();
        let mut add = |piece: u32, tiles: PieceTiles| {
            if !tiles.tiles().is_empty() {
                pieces.push((Piece::of_bytes(piece), tiles));
            }
        };
        for (piece, tiles) in &self.closed {
            add(*piece, tiles.clone());
        }
        for OtherPiece { piece, tiles, journal } in &self.other_pieces {
            match (journal, tiles) {
                (Some(journal), _) => add(*piece, journal.to_piece_tiles()),
                (None, Some(tiles)) => add(*piece, tiles.clone()),
                (None, None) => {}
            }
        }
        for (piece, journal) in &self.journals {
            add(*piece, journal.to_piece_tiles());
        }
        if let (Some(own), Ok(piece)) = (own, self.own_piece()) {
            add(piece, own.tiles.clone());
        }
        // The mount shows the base after all cuts, so none applies to it any more.
        let index = TileIndex::with_base(pieces, self.cuts.clone(), self.base_size, u64::MAX);
        self.built.replace_index(index, own);
    }

    fn refresh_base(&mut self, to: u64) -> Result<bool> {
        if to <= self.index().size() {
            return Ok(false);
        }
        let size = self.volume.current_size()?;
        let changed = size != self.base_size;
        self.base_size = size;
        Ok(changed)
    }

    fn read_piece(&mut self, piece: Piece, bytes: &mut [u8], at: u64) -> Result<()> {
        let path = self.volume.path.clone();
        if piece == Piece::BASE {
            if self.base.is_none() {
                self.base = Some(self.volume.open_base()?);
            }
            return match self.base.as_ref() {
                Some(BaseSource::Mounted(file)) => {
                    read_full(file, bytes, at).context("read", &path)
                }
                Some(BaseSource::Object(object)) => {
                    let got = object.read_at(bytes, at).daemon_context("read", &path)?;
                    // The base may be shorter than the file: bytes beyond its end are a hole.
                    bytes[got..].fill(0);
                    Ok(())
                }
                None => Err(TiledError::new("read", &path, Errno::IO)),
            };
        }
        let (volume, nodes) = (&self.volume, &self.nodes);
        let file = open_cached(&mut self.files, piece, || {
            let node = nodes.get(&piece.number()).copied();
            let node = node.ok_or_else(|| TiledError::new("read", &path, Errno::IO))?;
            volume.open_object(node, piece)
        })?;
        match file.read_at(bytes, at).daemon_context("read", &path)? {
            // The bytes of a tile were written before the tile, so missing ones are lost.
            got if got < bytes.len() => Err(TiledError::with_detail(
                "read",
                &path,
                Errno::IO,
                "bytes of a piece are missing",
            )),
            _ => Ok(()),
        }
    }
}
