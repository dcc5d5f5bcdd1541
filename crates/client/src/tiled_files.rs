//! The tiles of open files, as their shards have reported them: which object has which byte.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use tatami_layout::{PieceTiles, TileCut, TileIndex};
use tatami_wire::tiles::{PieceGrowth, PieceInfo, TilePage};
use tatami_wire::{Errno, Ino, NodeId, Piece};

/// Pieces, tiles and cuts of one file.
#[derive(Clone, Debug)]
pub struct Tiles {
    /// Goes up with every change of the other fields.
    pub version: u64,
    /// Each piece, by number: the node that stores it, whether it grows, and how many bytes of its
    /// object the tiles refer to.
    pub pieces: BTreeMap<u32, PlacedPiece>,
    /// The node and number of the base.
    pub base: (NodeId, Piece),
    /// Bytes that the base has at least; 0 where it does not extend beyond the tiles, and nothing
    /// is known.
    pub base_size: u64,
    /// Storage of all pieces, in units of 512 bytes.
    pub blocks: u64,
    /// Which object has which byte. The base is not in it: it has the bytes that no tile covers.
    pub index: TileIndex,
}

/// The place of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedPiece {
    /// The node that stores its objects.
    pub node: NodeId,
    /// Whether its tiles may still grow.
    pub growth: PieceGrowth,
    /// Bytes that its object has at least.
    pub len: u64,
    /// Lowest offset in the file, in bytes, that it covers.
    pub from: u64,
}

impl Tiles {
    /// Returns the objects that the file has besides the base, and the least length of each.
    pub fn objects(&self) -> impl Iterator<Item = ((NodeId, Piece), u64)> + '_ {
        self.pieces.iter().flat_map(|(number, piece)| {
            let bytes = ((piece.node, Piece::of_bytes(*number)), piece.len);
            let journal = (piece.growth != PieceGrowth::Closed)
                .then_some(((piece.node, Piece::of_journal(*number)), 0));
            std::iter::once(bytes).chain(journal)
        })
    }

    /// Returns the size of the file with a base of `base` bytes.
    pub fn size(&self, base: u64) -> u64 {
        self.index.size().max(base)
    }

    pub(crate) fn from_page(page: TilePage, base: (NodeId, Piece)) -> Result<Tiles, Errno> {
        let mut pieces = BTreeMap::new();
        let mut decoded = Vec::with_capacity(page.pieces.len());
        for PieceInfo { piece, node, growth, tiles } in page.pieces {
            let (mut len, mut from) = (0, 0);
            if !tiles.is_empty() {
                let tiles = PieceTiles::decode(&tiles).map_err(|_| Errno::EIO)?;
                len = tiles.tiles().iter().map(|t| t.at.saturating_add(t.len)).max().unwrap_or(0);
                let views = tiles.views();
                let starts = tiles
                    .tiles()
                    .iter()
                    .filter_map(|tile| Some(views.get(tile.view as usize)?.offset_of(tile.start)));
                from = starts.min().unwrap_or(0);
                decoded.push((Piece::of_bytes(piece), tiles));
            }
            pieces.insert(piece, PlacedPiece { node, growth, len, from });
        }
        let cuts =
            page.cuts.iter().map(|cut| TileCut { stamp: cut.stamp, size: cut.size }).collect();
        // The base itself was cut at each truncation, so the index cuts only the tiles.
        let index = TileIndex::with_base(decoded, cuts, 0, u64::MAX);
        let TilePage { version, blocks, base_size, .. } = page;
        // A writer of a tiled file reports the length of the whole file. Only a length beyond the
        // tiles is surely that of the base.
        let base_size = if base_size > index.size() { base_size } else { 0 };
        Ok(Tiles { version, pieces, base, base_size, blocks, index })
    }
}

/// The tiles of one file, shared by all its handles.
#[derive(Default)]
pub(crate) struct SharedTiles {
    pub(crate) known: Mutex<Option<(u64, Arc<Tiles>)>>,
}

/// The tiles of all open files.
#[derive(Default)]
pub(crate) struct TiledFiles {
    pub(crate) open: Mutex<HashMap<Ino, Weak<SharedTiles>>>,
}

impl TiledFiles {
    /// Returns the state that all handles of `ino` share.
    pub(crate) fn get_shared(&self, ino: Ino) -> Arc<SharedTiles> {
        let mut open = self.open.lock();
        if let Some(shared) = open.get(&ino).and_then(Weak::upgrade) {
            return shared;
        }
        if open.len() >= 1024 && open.len().is_power_of_two() {
            open.retain(|_, shared| shared.strong_count() > 0);
        }
        let shared = Arc::new(SharedTiles::default());
        open.insert(ino, Arc::downgrade(&shared));
        shared
    }
}
