//! Resolves a request through one view of bytes that were written through others. The result is
//! strided runs: from a place in a piece to a place in the reader's memory.
//!
//! Where a reader's blocks and a writer's both repeat, their intersection repeats with the least
//! common multiple of their strides. So one period is resolved, not a million blocks.

use crate::index::{FoundExtent, IndexedTile, PieceId, TileIndex};
use crate::runs::PlacedRun;
use crate::view::View;

/// Most strided runs of the reader's view that are compared with the tiles at once.
const MAX_RUNS: usize = 1 << 16;
/// Runs of a tile that are skipped one by one before the tile is searched again.
const SKIPS_MAX: usize = 8;
/// Results that are searched backwards for one that a new block continues.
const LOOK_BACK: usize = 16;

/// Blocks of a request at equal distances, which lie at equal distances in a piece: block `i` is
/// `block` bytes long, belongs at `to + i · to_stride` of the request and lies at `at + i ·
/// at_stride` of the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRun {
    /// The piece; `None` is a hole, which reads as zeros.
    pub piece: Option<PieceId>,
    /// Where the first block lies in the piece. 0 in a hole.
    pub at: u64,
    /// From block to block in the piece; of no meaning for a single block.
    pub at_stride: u64,
    /// Where the first block belongs, in bytes of data from the beginning of the request.
    pub to: u64,
    /// From block to block in the request; of no meaning for a single block.
    pub to_stride: u64,
    /// Bytes in a block, never 0.
    pub block: u64,
    /// Number of blocks, never 0.
    pub count: u64,
}

impl TileIndex {
    /// Returns where the stream bytes `stream .. stream + len` of `view` are, up to the end of the
    /// file, like [`TileIndex::lookup_view`], but as strided runs in no order, each byte once. The
    /// intersection of two regular views is a few runs, however many blocks they have.
    pub fn lookup_runs(&self, view: &View, stream: u64, len: u64) -> Vec<FoundRun> {
        let mut out = FoundRuns::default();
        let len = self.readable_len(view, stream, len);
        let mut done = 0;
        while let Some(found) = self.lookup_same_view(view, stream + done, len - done) {
            out.add_found(&found, done);
            done += found.len;
        }
        if done == len {
            return out.0;
        }
        if let Some(mut rest) = self.intersect_tiles(view, stream + done, len - done, done) {
            out.0.append(&mut rest.0);
            return out.0;
        }
        for found in self.lookup_view(view, stream + done, len - done) {
            out.add_found(&found, done);
            done += found.len;
        }
        out.0
    }

    /// Resolves a request by tiles that overlap no other; `None` unless these have all of it.
    fn intersect_tiles(&self, view: &View, stream: u64, len: u64, to: u64) -> Option<FoundRuns> {
        let mut mine = Vec::new();
        let mut place = to;
        for run in view.strided_runs(stream, len) {
            let placed = PlacedRun::from_run(run, place);
            place += placed.len();
            mine.push(placed);
            if mine.len() > MAX_RUNS {
                return None;
            }
        }
        let (lo, hi) = (mine.first()?.from, mine.last()?.end());
        let mut out = FoundRuns::default();
        let mut tiles = Vec::new();
        self.collect_candidates(lo, hi, &mut tiles);
        for i in tiles {
            let item = self.item(i);
            if !item.alone {
                return None;
            }
            let piece = item.piece;
            intersect_runs(&mine, item, (lo, hi), &mut |run| {
                out.add_run(FoundRun { piece: Some(piece), ..run })
            });
        }
        let found: u64 = out.0.iter().map(|r| r.block * r.count).sum();
        (found == len).then_some(out)
    }
}

/// Emits the intersection of a request's runs and a tile.
fn intersect_runs(
    mine: &[PlacedRun],
    item: &IndexedTile,
    (lo, hi): (u64, u64),
    emit: &mut impl FnMut(FoundRun),
) {
    let mut mine = mine;
    let (lo, hi) = (lo.max(item.lo), hi.min(item.hi));
    let mut theirs = item.placed_runs(lo, hi);
    let mut passed = 0;
    let mut next = theirs.next();
    while let Some(b) = next {
        mine = &mine[mine.partition_point(|a| a.end() <= b.from)..];
        let Some(a) = mine.first() else { return };
        if b.end() <= a.from {
            passed += 1;
            if passed == SKIPS_MAX {
                passed = 0;
                theirs = item.placed_runs(a.from, hi);
            }
            next = theirs.next();
            continue;
        }
        let within = (a.from.max(b.from), a.end().min(b.end()));
        intersect_periodic(a, &b, within, emit);
        if a.end() < b.end() {
            mine = &mine[1..];
        } else {
            next = theirs.next();
        }
    }
}

/// Emits the intersection of two strided runs within a range of the file; `to` is of the first,
/// `at` of the second.
fn intersect_periodic(
    a: &PlacedRun,
    b: &PlacedRun,
    within: (u64, u64),
    emit: &mut impl FnMut(FoundRun),
) {
    let (from, to) = within;
    let period = match (a.count, b.count) {
        (1, 1) => None,
        (1, _) => Some(b.stride),
        (_, 1) => Some(a.stride),
        _ => least_common_multiple(a.stride, b.stride),
    };
    let Some((period, times)) = period.map(|p| (p, (to - from) / p)).filter(|p| p.1 >= 3) else {
        return intersect_blocks(a, b, within, emit);
    };
    // One period is intersected block by block and then repeated. Less than three periods would not
    // pay.
    intersect_blocks(a, b, (from, from + period), &mut |one| {
        emit(FoundRun {
            at_stride: b.data_len_in(period),
            to_stride: a.data_len_in(period),
            count: times,
            ..one
        });
    });
    intersect_blocks(a, b, (from + times * period, to), emit);
}

fn intersect_blocks(
    a: &PlacedRun,
    b: &PlacedRun,
    (from, to): (u64, u64),
    emit: &mut impl FnMut(FoundRun),
) {
    let mut pos = from;
    while pos < to {
        let (Some(mine), Some(theirs)) = (a.first_block_after(pos), b.first_block_after(pos))
        else {
            return;
        };
        let start = mine.0.max(theirs.0).max(pos);
        let end = (mine.0 + a.block).min(theirs.0 + b.block).min(to);
        if start < end {
            let block = end - start;
            emit(FoundRun {
                piece: None,
                at: theirs.1 + (start - theirs.0),
                at_stride: block,
                to: mine.1 + (start - mine.0),
                to_stride: block,
                block,
                count: 1,
            });
            pos = end;
        } else {
            pos = start;
        }
    }
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

/// Runs that are being combined.
#[derive(Default)]
struct FoundRuns(Vec<FoundRun>);

impl FoundRuns {
    fn add_found(&mut self, found: &FoundExtent, to: u64) {
        let FoundExtent { piece, at, len: block, .. } = *found;
        let (at_stride, to_stride) = (block, block);
        self.add_run(FoundRun { piece, at, at_stride, to, to_stride, block, count: 1 });
    }

    fn add_run(&mut self, mut new: FoundRun) {
        if new.at_stride == new.block && new.to_stride == new.block {
            new.block *= new.count;
            (new.at_stride, new.to_stride, new.count) = (new.block, new.block, 1);
        }
        let near = self.0.iter_mut().rev().take(LOOK_BACK);
        if new.count > 1
            || !near
                .into_iter()
                .find(|r| r.piece == new.piece)
                .is_some_and(|r| r.absorb_block(&new))
        {
            self.0.push(new);
        }
    }
}

impl FoundRun {
    /// Extends the run by one more block, if the block continues it.
    fn absorb_block(&mut self, next: &FoundRun) -> bool {
        let hole = self.piece.is_none();
        let one = self.count == 1;
        if one && next.to == self.to + self.block && (hole || next.at == self.at + self.block) {
            self.block += next.block;
            (self.at_stride, self.to_stride) = (self.block, self.block);
            return true;
        }
        if next.block != self.block || next.to < self.to || (!hole && next.at < self.at) {
            return false;
        }
        if one {
            self.to_stride = next.to - self.to;
            self.at_stride = if hole { 0 } else { next.at - self.at };
        } else if next.to != self.to + self.count * self.to_stride
            || (!hole && next.at != self.at + self.count * self.at_stride)
        {
            return false;
        }
        self.count += 1;
        true
    }
}
