//! Joins the writes that ranks of several nodes made under the byte view, when the file is closed.
//!
//! While the ranks write, each write is a tile with its own stamp: a rank would have to ask other
//! nodes to know that none of their writes came in between. At the end all tiles are known. Where
//! no other piece was written over the bytes of a piece meanwhile, the time of each write does not
//! matter, so all get the stamp of the last. Then writes that continue each other, or lie at equal
//! distances, are one tile.

use tatami_layout::{PieceTiles, Tile, TileCut, View};

/// Fewer tiles than this are left as they are.
const MANY: usize = 8;

/// A piece: its number, and its tiles.
pub(super) type NumberedPiece = (u32, PieceTiles);

/// The first and the last stamp of the tiles.
fn stamp_range(tiles: &PieceTiles) -> Option<(u64, u64)> {
    let all = || tiles.tiles().iter().map(|tile| tile.stamp);
    Some((all().min()?, all().max()?))
}

/// Reports whether the tiles might be fewer with one stamp.
pub(super) fn is_scattered(tiles: &PieceTiles) -> bool {
    let in_bytes = |tile: &Tile| {
        let view = tiles.views().get(tile.view as usize);
        view.is_some_and(View::is_default)
    };
    tiles.tiles().len() >= MANY
        && tiles.tiles().is_sorted_by_key(|tile| tile.stamp)
        && stamp_range(tiles).is_some_and(|(first, last)| first < last)
        && tiles.tiles().iter().all(in_bytes)
}

/// Joins the tiles of each of `pieces` where that changes no byte's owner. `others` are all further
/// pieces of the file; they no longer grow.
pub(super) fn join_tiles(pieces: &mut [NumberedPiece], others: &[NumberedPiece], cuts: &[TileCut]) {
    let mut all: Vec<PieceSpan> = Vec::new();
    for (number, tiles) in pieces.iter().chain(others) {
        let Some(stamps) = stamp_range(tiles) else { continue };
        all.extend(tiles.tiles().iter().filter_map(|tile| {
            let view = tiles.views().get(tile.view as usize)?;
            let (lo, hi) = (view.offset_of(tile.start), view.offset_of(tile.end() - 1));
            Some(PieceSpan { lo, hi, piece: *number, stamps })
        }));
    }
    all.sort_unstable_by_key(|span| span.lo);
    let met = overlapping_pieces(&all);
    for (number, tiles) in pieces.iter_mut().filter(|(_, tiles)| is_scattered(tiles)) {
        let Some((first, last)) = stamp_range(tiles) else { continue };
        // A cut between the stamps removes older tiles only, so a common stamp would change its
        // effect.
        let cut = cuts.iter().any(|cut| (first..=last).contains(&cut.stamp));
        if !cut
            && !met.contains(number)
            && let Some(joined) = with_one_stamp(tiles, last)
        {
            *tiles = joined;
        }
    }
}

/// The range of a tile in the file, from its first byte to its last, and the times of its piece's
/// writes.
#[derive(Clone, Copy)]
struct PieceSpan {
    lo: u64,
    hi: u64,
    piece: u32,
    stamps: (u64, u64),
}

impl PieceSpan {
    /// Reports whether the order of the two may change with the stamps of one of them.
    fn may_reorder(&self, other: &PieceSpan) -> bool {
        self.piece != other.piece
            && self.stamps.0 <= other.stamps.1
            && other.stamps.0 <= self.stamps.1
    }
}

/// Returns the pieces with a tile that may overlap a tile of another piece that was written in the
/// same time. `all` is in order of file offsets.
fn overlapping_pieces(all: &[PieceSpan]) -> std::collections::BTreeSet<u32> {
    let mut met = std::collections::BTreeSet::new();
    // Of each piece, the span with the furthest end among those that have begun.
    let mut open: Vec<PieceSpan> = Vec::new();
    for span in all {
        open.retain(|other| other.hi >= span.lo);
        for other in open.iter().filter(|other| other.may_reorder(span)) {
            met.extend([other.piece, span.piece]);
        }
        match open.iter_mut().find(|other| other.piece == span.piece) {
            Some(other) if other.hi >= span.hi => {}
            Some(other) => *other = *span,
            None => open.push(*span),
        }
    }
    met
}

/// Returns the same tiles with one stamp; `None` where they are no fewer.
fn with_one_stamp(tiles: &PieceTiles, stamp: u64) -> Option<PieceTiles> {
    let mut new = PieceTiles::new(tiles.rank());
    let view = new.add_view(&View::all_bytes()).ok()?;
    for tile in tiles.tiles() {
        // The new view starts at the beginning of the file. The old one may have a displacement.
        let start = tiles.views().get(tile.view as usize)?.offset_of(tile.start);
        // Only `append` joins writes; a strided tile stays as it is.
        if tile.is_contiguous() {
            new.append(stamp, view, start, tile.len, tile.at).ok()?;
        } else {
            new.push(Tile { stamp, view, start, ..*tile }).ok()?;
        }
    }
    (new.tiles().len() < tiles.tiles().len()).then_some(new)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed unwrap is a failed test
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tatami_layout::{Piece, Shape, TileIndex};

    fn piece(number: u32, writes: &[(u64, u64, u64)]) -> NumberedPiece {
        piece_from(number, 0, writes)
    }

    /// A piece whose view shows the file from `disp` on. `writes` are stamp, offset in the view and
    /// length.
    fn piece_from(number: u32, disp: u64, writes: &[(u64, u64, u64)]) -> NumberedPiece {
        let mut tiles = PieceTiles::new(number);
        let contiguous = View::new(disp, 1, Shape::bytes(1).unwrap()).unwrap();
        assert!(contiguous.is_default());
        let view = tiles.add_view(&contiguous).unwrap();
        let mut at = 0;
        for (stamp, offset, len) in writes {
            tiles.append(*stamp, view, *offset, *len, at).unwrap();
            at += len;
        }
        (number, tiles)
    }

    /// The owner of each of the first bytes, and its place.
    fn bytes(pieces: &[NumberedPiece], cuts: &[TileCut]) -> Vec<Option<(Piece, u64)>> {
        let all = pieces.iter().map(|(number, tiles)| (Piece::of_bytes(*number), tiles.clone()));
        let index = TileIndex::with_base(all.collect(), cuts.to_vec(), 0, u64::MAX);
        let mut found = vec![None; 400];
        for part in index.lookup(0, 400) {
            for k in 0..part.len {
                found[(part.file_offset + k) as usize] = part.piece.map(|p| (p, part.at + k));
            }
        }
        found
    }

    #[test]
    fn writes_in_turn_to_places_of_ones_own_become_one_tile() {
        let of = |rank: u64| {
            let writes: Vec<_> =
                (0..100).map(|k| (1000 + 4 * k + rank, 40 * k + 10 * rank, 10)).collect();
            piece(rank as u32 + 1, &writes)
        };
        let mut pieces: Vec<_> = (0..4).map(of).collect();
        let old = piece(9, &[(500, 0, 4000)]);
        let before = bytes(&[&pieces[..], std::slice::from_ref(&old)].concat(), &[]);
        join_tiles(&mut pieces, std::slice::from_ref(&old), &[]);
        for (_, tiles) in &pieces {
            assert_eq!(tiles.tiles().len(), 1, "{tiles:?}");
        }
        assert_eq!(bytes(&[&pieces[..], &[old]].concat(), &[]), before);
    }

    proptest! {
        #[test]
        fn nobody_loses_a_byte(
            writes in prop::collection::vec((0u32..4, 0u64..300, 1u64..40, any::<bool>()), 1..120),
            cut in prop::option::of((0u64..130, 0u64..400)),
            disps in prop::collection::vec(0u64..50, 5),
            apart: bool,
        ) {
            let mut of: Vec<Vec<(u64, u64, u64)>> = vec![Vec::new(); 5];
            let mut ends = [0; 4];
            for (stamp, (rank, offset, len, next)) in (1..).zip(writes) {
                // Mostly continues the last write, mostly not where others write.
                let offset = if next || apart { ends[rank as usize] } else { offset };
                let len = if apart { len.min(10) } else { len };
                let offset = if apart { 100 * u64::from(rank) + offset % 90 } else { offset };
                ends[rank as usize] = offset + len;
                of[rank as usize].push((stamp, offset, len));
            }
            let mut pieces: Vec<NumberedPiece> =
                (1..).zip(&of).zip(disps).map(|((number, writes), disp)| piece_from(number, disp, writes)).collect();
            let cuts: Vec<TileCut> = cut.iter().map(|(stamp, size)| TileCut { stamp: *stamp, size: *size }).collect();
            let before = bytes(&pieces, &cuts);
            join_tiles(&mut pieces, &[], &cuts);
            prop_assert_eq!(bytes(&pieces, &cuts), before);
        }
    }
}
