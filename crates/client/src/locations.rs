//! Data locations: which node has which bytes of a file. They are given as patterns, not block by
//! block, because the pieces of a regular job have a million blocks or more at equal distances.

use crate::{Client, Tiles};
use std::collections::BTreeMap;
use tatami_wire::{Attr, Errno, NodeId, Piece};

/// Most patterns of one file that are returned.
pub const PATTERNS_MAX: usize = 4096;
/// Most runs of one file that are examined to find them.
const RUNS_MAX: u64 = 16 << 20;
/// Bytes of a tiled file that are examined at a time.
const LOOK: u64 = 4 << 20;

/// Bytes of a file at equal distances, and the object in which they are contiguous (in the base:
/// where they have the same offsets as in the file).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPattern {
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes in all.
    pub len: u64,
    /// Number of bytes of each block; the last may have fewer.
    pub block: u64,
    /// From the start of one block to that of the next; `len` for a single one.
    pub stride: u64,
    /// Number of blocks; 0 where they are not at equal distances, and not given one by one.
    pub count: u64,
    /// The node.
    pub node: NodeId,
    /// Which object of the file.
    pub piece: u32,
    /// First byte in the object.
    pub at: u64,
}

/// Returns on which nodes the bytes of the file with these attributes are, in the order in which
/// they begin. A tiled file with more than [`PATTERNS_MAX`] patterns is described object by object:
/// with the offset of the first byte and the number of bytes that were written there, whether or
/// not later tiles cover them.
///
/// # Errors
/// Those of [`Client::fetch_tiles`].
pub fn find_locations(client: &Client, attr: &Attr) -> Result<Vec<DataPattern>, Errno> {
    if attr.layout.is_tiled() {
        let tiles = client.fetch_tiles(attr.ino)?;
        return Ok(find_tile_patterns(&tiles, attr.size));
    }
    let objects = attr.layout.all_objects().filter(|_| attr.size > 0);
    Ok(objects.map(|(node, piece)| DataPattern::from_run(node, piece, 0, attr.size, 0)).collect())
}

impl DataPattern {
    fn from_run(node: NodeId, piece: Piece, offset: u64, len: u64, at: u64) -> DataPattern {
        let (block, stride, count) = (len, len, 1);
        DataPattern { offset, len, block, stride, count, node, piece: piece.0, at }
    }

    /// Adds a later run of the same object, if it is one more block. In the base, blocks are not
    /// contiguous but have the same offsets as in the file.
    fn try_extend(&mut self, run: &DataPattern, in_base: bool) -> bool {
        let stride = if self.count == 1 { run.offset - self.offset } else { self.stride };
        let goes_on = in_base || run.at == self.at + self.len;
        let whole = self.len == self.block * self.count;
        let fits = run.offset == self.offset + stride * self.count && run.len <= self.block;
        if goes_on && whole && fits {
            self.stride = stride;
            self.count += 1;
            self.len += run.len;
            return true;
        }
        false
    }
}

/// Finds patterns in runs that come in file order.
#[derive(Default)]
struct PatternFinder {
    /// The last run: the next one may extend it.
    last: Option<DataPattern>,
    open: BTreeMap<u32, DataPattern>,
    done: Vec<DataPattern>,
    runs: u64,
    /// Number of the base.
    base: Piece,
}

impl PatternFinder {
    fn add_run(&mut self, run: DataPattern) {
        if let Some(last) = &mut self.last
            && last.piece == run.piece
            && last.offset + last.len == run.offset
            && last.at + last.len == run.at
        {
            last.len += run.len;
            return;
        }
        if let Some(last) = self.last.replace(run) {
            self.place_run(last);
        }
    }

    fn place_run(&mut self, mut run: DataPattern) {
        (run.block, run.stride) = (run.len, run.len);
        self.runs += 1;
        let Some(open) = self.open.get_mut(&run.piece) else {
            self.open.insert(run.piece, run);
            return;
        };
        if !open.try_extend(&run, run.piece == self.base.0) {
            self.done.push(std::mem::replace(open, run));
        }
    }

    fn is_over_limit(&self) -> bool {
        self.done.len() + self.open.len() > PATTERNS_MAX || self.runs > RUNS_MAX
    }

    fn into_patterns(mut self) -> Vec<DataPattern> {
        if let Some(last) = self.last.take() {
            self.place_run(last);
        }
        self.done.extend(self.open.into_values());
        self.done.sort_by_key(|pattern| pattern.offset);
        self.done
    }
}

fn find_tile_patterns(tiles: &Tiles, size: u64) -> Vec<DataPattern> {
    let (node, base) = tiles.base;
    let (mut patterns, mut offset) = (PatternFinder { base, ..PatternFinder::default() }, 0);
    while offset < size && !patterns.is_over_limit() {
        let end = offset + LOOK.min(size - offset);
        let mut beneath = offset;
        for found in tiles.index.lookup(offset, end - offset) {
            let Some(piece) = found.piece else { continue };
            if beneath < found.file_offset {
                let len = found.file_offset - beneath;
                patterns.add_run(DataPattern::from_run(node, base, beneath, len, beneath));
            }
            beneath = found.file_offset + found.len;
            let place = tiles.pieces.get(&piece.number());
            let node = place.map_or(node, |place| place.node);
            patterns.add_run(DataPattern::from_run(
                node,
                piece,
                found.file_offset,
                found.len,
                found.at,
            ));
        }
        if beneath < end {
            patterns.add_run(DataPattern::from_run(node, base, beneath, end - beneath, beneath));
        }
        offset = end;
    }
    if !patterns.is_over_limit() {
        return patterns.into_patterns();
    }
    let objects = tiles.pieces.iter().filter(|(_, place)| place.len > 0);
    objects
        .map(|(number, place)| DataPattern {
            block: 0,
            stride: 0,
            count: 0,
            ..DataPattern::from_run(place.node, Piece::of_bytes(*number), place.from, place.len, 0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlacedPiece;
    use proptest::prelude::*;
    use tatami_layout::{PieceTiles, Stripes, TileIndex, View};
    use tatami_wire::tiles::PieceGrowth;

    fn tiles(pieces: Vec<PieceTiles>) -> Tiles {
        let growth = PieceGrowth::Closed;
        let place = |i| PlacedPiece { node: NodeId(i as u16), growth, len: 1, from: 0 };
        let numbered = || (0..pieces.len()).map(|i| (i as u32 + 1, place(i)));
        let base = (NodeId(9), Piece::BASE);
        let placed = numbered().collect();
        let indexed = (1..).map(Piece::of_bytes).zip(pieces.iter().cloned()).collect();
        let index = TileIndex::with_base(indexed, Vec::new(), 0, u64::MAX);
        Tiles { version: 1, pieces: placed, base, base_size: 0, blocks: 0, index }
    }

    fn striped(count: u64, unit: u64, size: u64) -> Tiles {
        let stripes = Stripes::new(count, unit).expect("stripes");
        tiles((0..count).map(|k| stripes.piece_tiles(k, size, 5).expect("tiles")).collect())
    }

    #[test]
    fn a_million_blocks_are_a_pattern_a_piece() {
        let size = (4 << 20) + 3;
        let reported = find_tile_patterns(&striped(2, 4, size), size);
        let short: Vec<_> = reported
            .iter()
            .map(|w| (w.offset, w.len, w.block, w.stride, w.count, w.node.0))
            .collect();
        let half = 2 << 20;
        assert_eq!(short, [(0, half + 3, 4, 8, half / 4 + 1, 0), (4, half, 4, 8, half / 4, 1)]);
    }

    #[test]
    fn what_has_no_pattern_is_told_by_object() {
        let mut piece = PieceTiles::new(0);
        let view = piece.add_view(&View::all_bytes()).expect("added");
        for i in 0..2 * PATTERNS_MAX as u64 {
            piece.append(5, view, i * i + 3 * i, 1, i).expect("appended");
        }
        let reported = find_tile_patterns(&tiles(vec![piece]), 1 << 28);
        assert_eq!(reported.len(), 1);
        assert_eq!((reported[0].count, reported[0].len, reported[0].offset), (0, 1, 0));
    }

    proptest! {
        /// Every byte is in one pattern, of the object that has it.
        #[test]
        fn patterns_are_what_the_index_says(
            writes in proptest::collection::vec((0usize..3, 0u64..120, 1u64..9, 1u64..5, 9u64..20), 0..9),
            size in 1u64..300,
        ) {
            let mut pieces: Vec<_> = (0..3).map(PieceTiles::new).collect();
            let mut ends = [0; 3];
            for (stamp, (rank, start, len, times, step)) in writes.into_iter().enumerate() {
                let view = pieces[rank].add_view(&View::all_bytes()).expect("added");
                for i in 0..times {
                    let at = ends[rank];
                    pieces[rank].append(stamp as u64 + 1, view, start + i * step, len, at).expect("appended");
                    ends[rank] += len;
                }
            }
            let tiles = tiles(pieces);
            let mut owners = vec![None; size as usize];
            for reported in find_tile_patterns(&tiles, size) {
                prop_assert!(reported.count > 0);
                let mut left = reported.len;
                for i in 0..reported.count {
                    for k in 0..reported.block.min(left) {
                        let byte = reported.offset + i * reported.stride + k;
                        let flat = reported.piece == 0;
                        let at = if flat { byte } else { reported.at + i * reported.block + k };
                        prop_assert_eq!(owners[byte as usize].replace((reported.piece, at)), None);
                    }
                    left -= reported.block.min(left);
                }
                prop_assert_eq!(left, 0);
            }
            for (byte, owner) in owners.iter().enumerate() {
                let found = tiles.index.lookup(byte as u64, 1);
                let right = found.first().and_then(|f| Some((f.piece?.0, f.at)));
                prop_assert_eq!(*owner, Some(right.unwrap_or((0, byte as u64))));
            }
        }
    }
}
