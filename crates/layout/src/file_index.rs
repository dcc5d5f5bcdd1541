//! The index of a whole file: made of its pieces, its truncations and its base.

use crate::index::{IndexedTile, PieceId, TileCut, TileIndex};
use crate::piece::PieceTiles;

impl TileIndex {
    /// The index of a file with these pieces and truncations, and `base_size` bytes in its
    /// base. The base has stamp 0: all cuts apply to it.
    pub fn new(
        pieces: Vec<(PieceId, PieceTiles)>,
        cuts: Vec<TileCut>,
        base_size: u64,
    ) -> TileIndex {
        TileIndex::with_base(pieces, cuts, base_size, 0)
    }

    /// The same for a base that was itself truncated and written after that. Cuts with stamps up to
    /// and including `base_stamp` have been carried out on the base and no longer apply to it. (0:
    /// none.)
    pub fn with_base(
        pieces: Vec<(PieceId, PieceTiles)>,
        mut cuts: Vec<TileCut>,
        base_size: u64,
        base_stamp: u64,
    ) -> TileIndex {
        // The sort is stable: of cuts with equal stamps the later one in the list is the later cut.
        cuts.sort_by_key(|c| c.stamp);
        let mut size = cuts.last().map_or(0, |c| c.size);
        let mut least = u64::MAX;
        let mut limits: Vec<TileCut> = cuts;
        // A tile is subject to all cuts at or after its stamp, so each cut's limit is the least
        // size from it on.
        for cut in limits.iter_mut().rev() {
            least = least.min(cut.size);
            cut.size = least;
        }
        let limit = |stamp: u64| {
            limits.get(limits.partition_point(|c| c.stamp < stamp)).map_or(u64::MAX, |c| c.size)
        };
        let base_limit = match base_stamp {
            0 => limit(0),
            stamp => limit(stamp.saturating_add(1)),
        };
        let base = base_size.min(base_limit);
        size = size.max(base);
        let mut items: Vec<(u32, IndexedTile)> = Vec::new();
        for (piece, tiles) in pieces {
            for tile in tiles.tiles() {
                let view = tiles.views()[tile.view as usize].clone();
                items.extend(
                    IndexedTile::new(piece, view, *tile, limit(tile.stamp))
                        .map(|i| (tiles.rank(), i)),
                );
            }
        }
        let mut new = TileIndex::from_items(items);
        new.base = base;
        new.size = new.size.max(size);
        new
    }
}
