//! What ranks of several nodes wrote under the byte view, put together again when the file is closed.
//!
//! While they write, each write is a tile with a stamp of its own: to know that none of another node came in
//! between, a rank would have to ask. At the end all tiles are known. Where a piece has bytes over which nobody
//! else wrote meanwhile, it does not matter when each of them was written, so all get the stamp of the
//! last; and then what goes on where the last write ended, or at equal distances, is one tile.

use tatami_layout::{Cut, PieceTiles, Tile, View};

/// Fewer tiles than this are left as they are.
const MANY: usize = 8;

/// A piece: its number, and its tiles.
pub(super) type Numbered = (u32, PieceTiles);

/// The first and the last stamp of the tiles.
fn stamps(tiles: &PieceTiles) -> Option<(u64, u64)> {
    let all = || tiles.tiles().iter().map(|tile| tile.stamp);
    Some((all().min()?, all().max()?))
}

/// Might it have fewer tiles, with one stamp?
pub(super) fn is_scattered(tiles: &PieceTiles) -> bool {
    let in_bytes = |tile: &Tile| {
        let view = tiles.views().get(tile.view as usize);
        view.is_some_and(View::is_default)
    };
    tiles.tiles().len() >= MANY
        && tiles.tiles().is_sorted_by_key(|tile| tile.stamp)
        && stamps(tiles).is_some_and(|(first, last)| first < last)
        && tiles.tiles().iter().all(in_bytes)
}

/// Joins the tiles of those of `pieces` that can be without changing who has which byte. `others` are all
/// further pieces of the file, to which nobody adds.
pub(super) fn join(pieces: &mut [Numbered], others: &[Numbered], cuts: &[Cut]) {
    let mut all: Vec<Span> = Vec::new();
    for (number, tiles) in pieces.iter().chain(others) {
        let Some(stamps) = stamps(tiles) else { continue };
        all.extend(tiles.tiles().iter().filter_map(|tile| {
            let view = tiles.views().get(tile.view as usize)?;
            let (lo, hi) = (view.offset_of(tile.start), view.offset_of(tile.end() - 1));
            Some(Span { lo, hi, piece: *number, stamps })
        }));
    }
    all.sort_unstable_by_key(|span| span.lo);
    let met = met(&all);
    for (number, tiles) in pieces.iter_mut().filter(|(_, tiles)| is_scattered(tiles)) {
        let Some((first, last)) = stamps(tiles) else { continue };
        let cut = cuts.iter().any(|cut| (first..=last).contains(&cut.stamp));
        if !cut
            && !met.contains(number)
            && let Some(joined) = joined(tiles, last)
        {
            *tiles = joined;
        }
    }
}

/// Where in the file a tile lies, from its first byte to its last, and when its piece was written.
#[derive(Clone, Copy)]
struct Span {
    lo: u64,
    hi: u64,
    piece: u32,
    stamps: (u64, u64),
}

impl Span {
    /// Might their order by stamps change when the stamps of one of them do?
    fn concerns(&self, other: &Span) -> bool {
        self.piece != other.piece
            && self.stamps.0 <= other.stamps.1
            && other.stamps.0 <= self.stamps.1
    }
}

/// Pieces of which a tile may overlap one of another that was written in the same time. `all` in order of
/// their places.
fn met(all: &[Span]) -> std::collections::BTreeSet<u32> {
    let mut met = std::collections::BTreeSet::new();
    // Of each piece, the span that reaches furthest of those that have begun.
    let mut open: Vec<Span> = Vec::new();
    for span in all {
        open.retain(|other| other.hi >= span.lo);
        for other in open.iter().filter(|other| other.concerns(span)) {
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

/// The same tiles with one stamp; nothing where that makes them no fewer.
fn joined(tiles: &PieceTiles, stamp: u64) -> Option<PieceTiles> {
    let mut new = PieceTiles::new(tiles.rank());
    let view = new.add_view(&View::bytes()).ok()?;
    for tile in tiles.tiles() {
        if tile.is_contiguous() {
            new.append(stamp, view, tile.start, tile.len, tile.at).ok()?;
        } else {
            new.push(Tile { stamp, view, ..*tile }).ok()?;
        }
    }
    (new.tiles().len() < tiles.tiles().len()).then_some(new)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed unwrap is a failed test
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tatami_layout::{Index, Piece};

    fn piece(number: u32, writes: &[(u64, u64, u64)]) -> Numbered {
        let mut tiles = PieceTiles::new(number);
        let view = tiles.add_view(&View::bytes()).unwrap();
        let mut at = 0;
        for (stamp, offset, len) in writes {
            tiles.append(*stamp, view, *offset, *len, at).unwrap();
            at += len;
        }
        (number, tiles)
    }

    /// Who has each of the first bytes, and where.
    fn bytes(pieces: &[Numbered], cuts: &[Cut]) -> Vec<Option<(Piece, u64)>> {
        let all = pieces.iter().map(|(number, tiles)| (Piece::bytes_of(*number), tiles.clone()));
        let index = Index::with_base(all.collect(), cuts.to_vec(), 0, u64::MAX);
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
        join(&mut pieces, std::slice::from_ref(&old), &[]);
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
            apart: bool,
        ) {
            let mut of: Vec<Vec<(u64, u64, u64)>> = vec![Vec::new(); 5];
            let mut ends = [0; 4];
            for (stamp, (rank, offset, len, next)) in (1..).zip(writes) {
                // Mostly on from where it was, mostly not where others write.
                let offset = if next || apart { ends[rank as usize] } else { offset };
                let len = if apart { len.min(10) } else { len };
                let offset = if apart { 100 * u64::from(rank) + offset % 90 } else { offset };
                ends[rank as usize] = offset + len;
                of[rank as usize].push((stamp, offset, len));
            }
            let mut pieces: Vec<Numbered> =
                (1..).zip(&of).map(|(number, writes)| piece(number, writes)).collect();
            let cuts: Vec<Cut> = cut.iter().map(|(stamp, size)| Cut { stamp: *stamp, size: *size }).collect();
            let before = bytes(&pieces, &cuts);
            join(&mut pieces, &[], &cuts);
            prop_assert_eq!(bytes(&pieces, &cuts), before);
        }
    }
}
