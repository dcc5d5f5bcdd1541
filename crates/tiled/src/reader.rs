//! Reading: stream bytes are looked up in the index, and what lies together in
//! a piece is read together.

use crate::error::Result;
use crate::hints::Hints;
use crate::memory::Buffer;
use tatami_layout::{FoundRun, Index, Piece, View};

/// A gap that is read along rather than asked around, bytes.
const GAP: u64 = 8192;

/// What is read: pieces, and an index that tells what they hold.
pub trait Source {
    /// Which piece has which byte.
    fn index(&self) -> &Index;

    /// Fills `bytes` with those of a piece from `at` on.
    ///
    /// # Errors
    /// Those of the disk.
    fn read(&mut self, piece: Piece, bytes: &mut [u8], at: u64) -> Result<()>;
}

/// The reader of one handle, with its buffers.
#[derive(Debug)]
pub struct Reader {
    batch: u64,
    gap: u64,
    dense: Vec<u8>,
    sieve: Vec<u8>,
}

/// A stretch of a piece and where its bytes go.
#[derive(Clone, Copy, Debug)]
struct Want {
    piece: Piece,
    at: u64,
    len: u64,
    to: u64,
}

impl Reader {
    /// A reader with nothing in its buffers.
    pub fn new(hints: &Hints) -> Reader {
        let gap = if hints.sieve { GAP } else { 0 };
        Reader { batch: hints.read_buffer as u64, gap, dense: Vec::new(), sieve: Vec::new() }
    }

    /// Reads what `into` can hold and the file has; bytes read.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(
        &mut self,
        world: &mut impl Source,
        view: &View,
        stream: u64,
        into: &mut Buffer<'_>,
    ) -> Result<u64> {
        let visible = view.stream_before(world.index().size()).0;
        let all = into.len().min(visible.saturating_sub(stream));
        let mut from = 0;
        while from < all {
            let (runs, len) = self.find(world, view, stream + from, all - from);
            if len == 0 {
                break;
            }
            let size = len as usize;
            if let Some(bytes) = into.dense_mut(from, size) {
                self.fill(world, runs, bytes)?;
            } else {
                let mut dense = std::mem::take(&mut self.dense);
                dense.resize(size, 0);
                let filled = self.fill(world, runs, &mut dense);
                into.scatter(from, &dense);
                self.dense = dense;
                filled?;
            }
            from += len;
        }
        Ok(from)
    }

    /// Where the next bytes are, and how many: as many as are read at a time, or
    /// more where they lie one behind the other.
    fn find(
        &self,
        world: &impl Source,
        view: &View,
        stream: u64,
        len: u64,
    ) -> (Vec<FoundRun>, u64) {
        let part = len.min(self.batch);
        let mut runs = world.index().lookup_runs(view, stream, part);
        let mut done: u64 = runs.iter().map(|run| run.block * run.count).sum();
        while let [whole] = &mut runs[..]
            && whole.count == 1
            && done < len
        {
            let part = (len - done).min(self.batch);
            match world.index().lookup_runs(view, stream + done, part)[..] {
                [next] if next.count == 1 && goes_on(whole, &next) => {
                    whole.block += next.block;
                    done += next.block;
                }
                _ => break,
            }
        }
        (runs, done)
    }

    fn fill(
        &mut self,
        world: &mut impl Source,
        mut runs: Vec<FoundRun>,
        bytes: &mut [u8],
    ) -> Result<()> {
        runs.sort_unstable_by_key(|run| (run.piece, run.at));
        let mut wants = Vec::new();
        let mut rest = &runs[..];
        while let Some(first) = rest.first() {
            let Some(piece) = first.piece else {
                for to in blocks(first).map(|(_, to)| to) {
                    bytes[to..][..first.block as usize].fill(0);
                }
                rest = &rest[1..];
                continue;
            };
            let (mut end, mut data, mut count) = (first.at, 0, 0);
            for run in rest {
                if run.piece != first.piece || run.at > end {
                    break;
                }
                end = end.max(run.at + (run.count - 1) * run.at_stride + run.block);
                data += run.count * run.block;
                count += 1;
            }
            let (group, others) = rest.split_at(count);
            // What is read in vain costs less than half of it would, and than asking block by block.
            let is_dense = if self.gap > 0 { data >= (end - first.at) / 2 } else { false };
            if is_dense && group.iter().any(|run| run.count > 1) {
                self.spread(world, piece, group, end, bytes)?;
            } else {
                for run in group {
                    let want = |(at, to)| Want { piece, at, len: run.block, to: to as u64 };
                    wants.extend(blocks(run).map(want));
                }
            }
            rest = others;
        }
        self.fetch_all(world, &mut wants, bytes)
    }

    /// Reads a stretch of a piece that ends at `end` at once and hands out the blocks of `runs`.
    fn spread(
        &mut self,
        world: &mut impl Source,
        piece: Piece,
        runs: &[FoundRun],
        end: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let start = runs[0].at;
        self.sieve.resize((end - start) as usize, 0);
        world.read(piece, &mut self.sieve, start)?;
        for run in runs {
            let len = run.block as usize;
            for (at, to) in blocks(run) {
                copy(&self.sieve[(at - start) as usize..][..len], &mut bytes[to..][..len]);
            }
        }
        Ok(())
    }

    /// Reads what lies near to each other together.
    fn fetch_all(
        &mut self,
        world: &mut impl Source,
        wants: &mut [Want],
        bytes: &mut [u8],
    ) -> Result<()> {
        if !wants.is_sorted_by_key(|want| (want.piece, want.at)) {
            wants.sort_unstable_by_key(|want| (want.piece, want.at));
        }
        let mut rest = &wants[..];
        while let Some(first) = rest.first() {
            let (mut end, mut count) = (first.at + first.len, 1);
            for next in &rest[1..] {
                let near = next.piece == first.piece && next.at <= end.saturating_add(self.gap);
                if !near || next.at + next.len - first.at > self.batch {
                    break;
                }
                end = end.max(next.at + next.len);
                count += 1;
            }
            self.fetch(world, &rest[..count], end, bytes)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Reads one run of a piece and hands its parts out.
    fn fetch(
        &mut self,
        world: &mut impl Source,
        wants: &[Want],
        end: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let first = wants[0];
        if wants.len() == 1 {
            let part = &mut bytes[first.to as usize..][..first.len as usize];
            return world.read(first.piece, part, first.at);
        }
        self.sieve.resize((end - first.at) as usize, 0);
        world.read(first.piece, &mut self.sieve, first.at)?;
        for want in wants {
            let from = &self.sieve[(want.at - first.at) as usize..][..want.len as usize];
            copy(from, &mut bytes[want.to as usize..][..want.len as usize]);
        }
        Ok(())
    }
}

/// Where the blocks of a run lie in the piece, and where they belong in the request.
fn blocks(run: &FoundRun) -> impl Iterator<Item = (u64, usize)> + use<> {
    let run = *run;
    (0..run.count).map(move |i| (run.at + i * run.at_stride, (run.to + i * run.to_stride) as usize))
}

/// Does `next`, found for the bytes that follow, lie right behind `run`?
fn goes_on(run: &FoundRun, next: &FoundRun) -> bool {
    run.piece == next.piece && (run.piece.is_none() || run.at + run.block == next.at)
}

/// Copies a block; the sizes of numbers without a call.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    fn fixed<const N: usize>(from: &[u8], to: &mut [u8]) -> bool {
        match (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
            (Some(from), Some(to)) => {
                *to = *from;
                true
            }
            _ => false,
        }
    }
    let done = match from.len() {
        4 => fixed::<4>(from, to),
        8 => fixed::<8>(from, to),
        16 => fixed::<16>(from, to),
        _ => false,
    };
    if !done {
        to.copy_from_slice(from);
    }
}
