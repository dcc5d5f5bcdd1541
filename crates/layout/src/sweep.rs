//! Stretches of several tiles over one range, and the one that wins at each byte.

use std::collections::BinaryHeap;

use crate::tile::Tile;
use crate::view::View;

/// A run that is contiguous in the file and in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileSpan {
    pub offset: u64,
    pub len: u64,
    /// Where it lies in the piece.
    pub at: u64,
    /// The number of its tile.
    pub tile: u32,
}

/// Returns the runs of `tile` within the file range `from .. to`: file offset, length, place in the
/// piece; in file order.
pub(crate) fn tile_spans<'a>(
    view: &'a View,
    tile: &Tile,
    from: u64,
    to: u64,
) -> impl Iterator<Item = (u64, u64, u64)> + use<'a> {
    let first = tile.bytes_before(view.stream_before(from).0).0;
    let end = tile.bytes_before(view.stream_before(to).0).0;
    tile.stream_runs(first, end).flat_map(move |(stream, len, at)| {
        let mut done = 0;
        view.extents(stream, len).map(move |(offset, len)| {
            let span = (offset, len, at + done);
            done += len;
            span
        })
    })
}

/// Selects the winning parts of spans that may overlap, in file order. `wins(a, b)` reports whether
/// tile `a` wins over tile `b`; spans of one tile do not overlap.
pub(crate) fn select_winners(
    mut spans: Vec<TileSpan>,
    wins: impl Fn(u32, u32) -> bool,
) -> Vec<TileSpan> {
    spans.sort_unstable_by_key(|s| s.offset);
    if spans.windows(2).all(|w| w[0].offset + w[0].len <= w[1].offset) {
        // A sweep line over the starts and ends: the heap has the open spans, the winner on top.
        return spans;
    }
    let mut order: Vec<u32> = spans.iter().map(|s| s.tile).collect();
    order.sort_unstable();
    order.dedup();
    order.sort_by(
        |&a, &b| if wins(a, b) { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less },
    );
    let mut place: Vec<(u32, u32)> = order.iter().zip(0..).map(|(&of, n)| (of, n)).collect();
    place.sort_unstable();
    let mut out: Vec<TileSpan> = Vec::new();
    let mut live: BinaryHeap<(u32, usize)> = BinaryHeap::new();
    let (mut next, mut at) = (0, 0);
    loop {
        while next < spans.len() && spans[next].offset <= at {
            let rank = place.partition_point(|p| p.0 < spans[next].tile);
            live.push((place[rank].1, next));
            next += 1;
        }
        let Some(&(_, top)) = live.peek() else {
            match spans.get(next) {
                Some(span) => at = span.offset,
                None => return out,
            }
            continue;
        };
        let span = spans[top];
        if span.offset + span.len <= at {
            live.pop();
            continue;
        }
        let until = spans.get(next).map_or(u64::MAX, |s| s.offset).min(span.offset + span.len);
        let won =
            TileSpan { offset: at, len: until - at, at: span.at + (at - span.offset), ..span };
        match out.last_mut() {
            Some(last)
                if last.tile == won.tile
                    && last.offset + last.len == at
                    && last.at + last.len == won.at =>
            {
                last.len += won.len;
            }
            _ => out.push(won),
        }
        at = until;
    }
}
