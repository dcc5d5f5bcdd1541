//! Finds the bytes of a request that the writer's own piece has, to rewrite them in place.

use std::cmp::Reverse;

use crate::index::{PieceId, TileIndex};
use crate::sweep::{TileSpan, select_winners, tile_spans};
use crate::tile::Tile;
use crate::view::View;

/// Tiles that are searched one by one before they are indexed.
const RECENT: usize = 64;
/// Indexes of about one size that are merged into one.
const FANOUT: usize = 8;

/// A stretch of a request and its place in the writer's own piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnExtent {
    /// First stream byte.
    pub stream: u64,
    /// Number of stream bytes, never 0.
    pub len: u64,
    /// Where the bytes lie in the piece, and the stamp of their tile; `None` when the piece
    /// does not have them.
    pub at: Option<(u64, u64)>,
}

/// Indexes of all tiles but the last few. Several of about one size are merged, so that there are
/// O(log) of them and each tile is indexed O(log) times (a log-structured merge tree).
#[derive(Clone, Debug, Default)]
pub(crate) struct OldTileIndexes {
    levels: Vec<TileLevel>,
}

#[derive(Clone, Debug)]
struct TileLevel {
    /// Where its tiles end in the list of tiles.
    end: usize,
    index: TileIndex,
}

impl OldTileIndexes {
    fn tile_count(&self) -> usize {
        self.levels.last().map_or(0, |l| l.end)
    }

    /// Indexes tiles that are old enough; the caller calls this after each new tile. Tiles but for
    /// the last do not change; tiles that were removed from the end are noticed here.
    pub fn index_old_tiles(&mut self, views: &[View], tiles: &[Tile]) {
        if tiles.len() <= self.tile_count() {
            self.levels.clear();
        }
        let end = tiles.len() - 1;
        let mut start = self.tile_count();
        if end - start < RECENT {
            return;
        }
        // The last levels of about one size become one, when there are enough of them.
        loop {
            let size = |n: usize| {
                let before = n.checked_sub(1).map_or(0, |n| self.levels[n].end);
                self.levels[n].end - before
            };
            let alike = (0..self.levels.len())
                .rev()
                .take_while(|&n| size(n) < (end - start) * FANOUT)
                .count();
            if alike + 1 < FANOUT {
                break;
            }
            self.levels.truncate(self.levels.len() - alike);
            start = self.tile_count();
        }
        let own = |tile: &Tile| (views[tile.view as usize].clone(), *tile);
        let index = TileIndex::from_tiles(PieceId::default(), tiles[start..end].iter().map(own));
        self.levels.push(TileLevel { end, index });
    }
}

/// A tile that may have bytes of a request.
struct OwnCandidate<'a> {
    view: &'a View,
    tile: Tile,
    /// The highest wins.
    order: (u64, usize, Reverse<u32>),
}

fn collect_own_candidates<'a>(
    (views, tiles): (&'a [View], &'a [Tile]),
    older: &'a OldTileIndexes,
    view: &View,
    (stream, end): (u64, u64),
) -> Vec<OwnCandidate<'a>> {
    let file = (view.offset_of(stream), view.offset_of(end - 1).saturating_add(1));
    let number = views.iter().rposition(|v| v == view).map(|n| n as u32);
    let meets = |tile: &Tile, of: &View| match number {
        Some(number) if number == tile.view => tile.start < end && stream < tile.end(),
        _ => of.offset_of(tile.start) < file.1 && file.0 <= of.offset_of(tile.end() - 1),
    };
    let levels = older.levels.len();
    let mut all = Vec::new();
    for (n, tile) in tiles.iter().enumerate().skip(older.tile_count()) {
        let of = &views[tile.view as usize];
        if meets(tile, of) {
            all.push(OwnCandidate {
                view: of,
                tile: *tile,
                order: (tile.stamp, levels + n, Reverse(0)),
            });
        }
    }
    for (level, older) in older.levels.iter().enumerate() {
        older.index.visit_tiles(file.0, file.1, |item, of, tile| {
            let met = match of == view {
                true => tile.start < end && stream < tile.end(),
                false => true,
            };
            if met {
                let order = (tile.stamp, level, Reverse(item));
                all.push(OwnCandidate { view: of, tile: *tile, order });
            }
        });
    }
    all.sort_unstable_by_key(|c| Reverse(c.order));
    all
}

/// Returns the places of the stream bytes `stream .. stream + len` of `view` in the piece that has
/// these views and tiles.
pub(crate) fn find_own_extents(
    piece: (&[View], &[Tile]),
    older: &OldTileIndexes,
    view: &View,
    stream: u64,
    len: u64,
) -> Vec<OwnExtent> {
    // A view has no more bytes than the file may have.
    let len = len.min((1 << 63) - stream.min(1 << 63));
    let mut own = Vec::new();
    if len == 0 {
        return own;
    }
    let end = stream + len;
    let among = collect_own_candidates(piece, older, view, (stream, end));
    if among.iter().all(|c| c.view == view) {
        // All candidates have the view of the request, so the stream alone decides: no detour by
        // the file.
        let found = among.iter().zip(0..).flat_map(|(c, of)| {
            let (first, end) = (c.tile.bytes_before(stream).0, c.tile.bytes_before(end).0);
            c.tile.stream_runs(first, end).map(move |(offset, len, at)| TileSpan {
                offset,
                len,
                at,
                tile: of,
            })
        });
        append_owners(&mut own, &among, found.collect(), (stream, end), 0);
        return own;
    }
    let mut done = stream;
    for (offset, run) in view.extents(stream, len) {
        let found = among.iter().zip(0..).flat_map(|(c, of)| {
            tile_spans(c.view, &c.tile, offset, offset + run)
                .map(move |(offset, len, at)| TileSpan { offset, len, at, tile: of })
        });
        append_owners(
            &mut own,
            &among,
            found.collect(),
            (offset, offset + run),
            done.wrapping_sub(offset),
        );
        done += run;
    }
    own
}

/// Adds the owner of each byte of a range that lies `way` bytes before its place in the stream.
fn append_owners(
    own: &mut Vec<OwnExtent>,
    among: &[OwnCandidate<'_>],
    found: Vec<TileSpan>,
    (from, to): (u64, u64),
    way: u64,
) {
    let mut at = from;
    for span in select_winners(found, |a, b| a < b) {
        append_own_extent(
            own,
            OwnExtent { stream: at.wrapping_add(way), len: span.offset - at, at: None },
        );
        let stamp = among[span.tile as usize].tile.stamp;
        let place = Some((span.at, stamp));
        append_own_extent(
            own,
            OwnExtent { stream: span.offset.wrapping_add(way), len: span.len, at: place },
        );
        at = span.offset + span.len;
    }
    append_own_extent(own, OwnExtent { stream: at.wrapping_add(way), len: to - at, at: None });
}

/// Appends a stretch, or extends the last one where the new one continues it.
fn append_own_extent(own: &mut Vec<OwnExtent>, new: OwnExtent) {
    if new.len == 0 {
        return;
    }
    if let Some(last) = own.last_mut() {
        let goes_on = match (last.at, new.at) {
            (None, None) => true,
            (Some((at, stamp)), Some((next, same))) => at + last.len == next && stamp == same,
            _ => false,
        };
        if goes_on {
            last.len += new.len;
            return;
        }
    }
    own.push(new);
}
