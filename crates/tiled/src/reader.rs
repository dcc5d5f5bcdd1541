//! Reading: looks stream bytes up in the index, and reads neighbours in a piece together.

use crate::error::Result;
use crate::file_state::FileState;
use crate::hints::Hints;
use crate::memory::Buffer;
use std::io::IoSliceMut;
use tatami_layout::{FoundExtent, FoundRun, Piece, View};

/// Bytes of a gap that are read along rather than skipped.
const GAP: u64 = 8192;

/// Blocks of this size and more are read straight to their destination, many by one call. That
/// takes about half the CPU time of reading them into a buffer and copying them, for 256 bytes as
/// for 2 KiB. Smaller blocks would need too many calls.
const DIRECT: u64 = 256;
/// Bytes that are read at a time for scattered memory.
const SCATTER: u64 = 256 << 10;
/// Most parts of such a call, as of IOV_MAX.
const PARTS: usize = 1024;

/// The reader of one handle, with its buffers.
#[derive(Debug)]
pub struct StreamReader {
    batch: u64,
    gap: u64,
    dense: Vec<u8>,
    sieve: Vec<u8>,
    whole: Option<WholeRun>,
}

/// A long run of a stream in one piece: a reader that uses the view of the writer looks it up once.
#[derive(Debug)]
struct WholeRun {
    /// The index it was found in ([`FileState::build_count`]).
    built: u64,
    view: View,
    stream: u64,
    len: u64,
    piece: Piece,
    at: u64,
}

impl WholeRun {
    /// Returns the place of these stream bytes in the piece.
    fn locate_stream(
        &self,
        world: &impl FileState,
        view: &View,
        stream: u64,
        len: u64,
    ) -> Option<u64> {
        // A new index may place the bytes elsewhere, so a run of an older index does not count.
        let from = stream.checked_sub(self.stream)?;
        let has = self.built == world.build_count()
            && from <= self.len
            && len <= self.len - from
            && self.view == *view;
        has.then(|| self.at + from)
    }
}

/// A stretch of a piece and its destination.
#[derive(Clone, Copy, Debug)]
struct PieceRead {
    piece: Piece,
    at: u64,
    len: u64,
    to: u64,
}

impl StreamReader {
    /// A reader with nothing in its buffers.
    pub fn new(hints: &Hints) -> StreamReader {
        let gap = if hints.sieve { GAP } else { 0 };
        let (batch, dense, sieve) = (hints.read_buffer as u64, Vec::new(), Vec::new());
        StreamReader { batch, gap, dense, sieve, whole: None }
    }

    /// Fills `into` as far as the file has bytes; returns the bytes read.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(
        &mut self,
        world: &mut impl FileState,
        view: &View,
        stream: u64,
        into: &mut Buffer<'_>,
    ) -> Result<u64> {
        // The two short cuts cover most requests without a list of runs.
        if self.read_whole(world, view, stream, into)?
            || self.read_run(world, view, stream, into)?
        {
            return Ok(into.len());
        }
        let visible = view.stream_before(world.index().size()).0;
        let all = into.len().min(visible.saturating_sub(stream));
        let mut from = 0;
        while from < all {
            let (runs, len) = self.find_runs(world, view, stream + from, all - from);
            if len == 0 {
                break;
            }
            let size = len as usize;
            if let Some(bytes) = into.dense_slice_mut(from, size) {
                self.fill_runs(world, runs, bytes)?;
            } else if let [run] = runs[..]
                && run.count == 1
                && let Some(piece) = run.piece
            {
                self.read_scattered(world, (piece, run.at, len), from, into)?;
            } else {
                let mut dense = std::mem::take(&mut self.dense);
                let filled = self.fill_runs(world, runs, grow_buffer(&mut dense, size));
                into.scatter(from, &dense[..size]);
                self.dense = dense;
                filled?;
            }
            from += len;
        }
        Ok(from)
    }

    /// Fills `into`, if it is dense and lies in one run of one piece. Returns whether it did.
    fn read_whole(
        &mut self,
        world: &mut impl FileState,
        view: &View,
        stream: u64,
        into: &mut Buffer<'_>,
    ) -> Result<bool> {
        let len = into.len();
        let mut at =
            self.whole.as_ref().and_then(|whole| whole.locate_stream(world, view, stream, len));
        if at.is_none()
            && let Some(found) = world.index().lookup_whole(view, stream)
            && found.len >= len
            && let Some(piece) = found.piece
        {
            let (built, view) = (world.build_count(), view.clone());
            let FoundExtent { len, at: place, .. } = found;
            self.whole = Some(WholeRun { built, view, stream, len, piece, at: place });
            at = Some(place);
        }
        let (Some(at), Some(whole)) = (at, &self.whole) else { return Ok(false) };
        let Some(bytes) = usize::try_from(len).ok().and_then(|len| into.dense_slice_mut(0, len))
        else {
            return Ok(false);
        };
        world.read_piece(whole.piece, bytes, at)?;
        Ok(true)
    }

    /// Fills `into`, if it is dense and lies in one run of the file and of one piece. Returns
    /// whether it did.
    fn read_run(
        &mut self,
        world: &mut impl FileState,
        view: &View,
        stream: u64,
        into: &mut Buffer<'_>,
    ) -> Result<bool> {
        let len = into.len();
        if !view.is_default() || len > self.batch {
            return Ok(false);
        }
        let from = view.offset_of(stream);
        let found = world.index().lookup_run(from, from.saturating_add(len));
        let (Some(found), Some(bytes)) = (found, into.dense_slice_mut(0, len as usize)) else {
            return Ok(false);
        };
        match found.piece {
            Some(piece) => world.read_piece(piece, bytes, found.at)?,
            None => bytes.fill(0),
        }
        Ok(true)
    }

    /// Finds the next bytes, and returns their number: one batch, or more where they are
    /// contiguous.
    fn find_runs(
        &self,
        world: &impl FileState,
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
                [next] if next.count == 1 && continues_run(whole, &next) => {
                    whole.block += next.block;
                    done += next.block;
                }
                _ => break,
            }
        }
        (runs, done)
    }

    /// Reads a run of a piece into scattered memory, by parts that stay in the processor's cache.
    fn read_scattered(
        &mut self,
        world: &mut impl FileState,
        (piece, at, len): (Piece, u64, u64),
        from: u64,
        into: &mut Buffer<'_>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let part = (len - done).min(SCATTER);
            let dense = grow_buffer(&mut self.dense, part as usize);
            world.read_piece(piece, dense, at + done)?;
            into.scatter(from + done, dense);
            done += part;
        }
        Ok(())
    }

    fn fill_runs(
        &mut self,
        world: &mut impl FileState,
        mut runs: Vec<FoundRun>,
        bytes: &mut [u8],
    ) -> Result<()> {
        // In the order of places, so that neighbours in a piece are read together.
        runs.sort_unstable_by_key(|run| (run.piece, run.at));
        let mut wants = Vec::new();
        let mut rest = &runs[..];
        while let Some(first) = rest.first() {
            let Some(piece) = first.piece else {
                for to in run_blocks(first).map(|(_, to)| to) {
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
            // Bytes that are read in vain cost less than half of the total, and less than a request
            // per block.
            let is_dense = if self.gap > 0 { data >= (end - first.at) / 2 } else { false };
            let apart = |run: &FoundRun| run.block >= DIRECT || run.count == 1;
            if is_dense && !group.iter().all(apart) && group.iter().any(|run| run.count > 1) {
                self.sieve_runs(world, piece, group, end, bytes)?;
            } else {
                for run in group {
                    let want = |(at, to)| PieceRead { piece, at, len: run.block, to: to as u64 };
                    wants.extend(run_blocks(run).map(want));
                }
            }
            rest = others;
        }
        self.fetch_all(world, &mut wants, bytes)
    }

    /// Reads a stretch of a piece that ends at `end` with one call, and copies the blocks of
    /// `runs`.
    fn sieve_runs(
        &mut self,
        world: &mut impl FileState,
        piece: Piece,
        runs: &[FoundRun],
        end: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let start = runs[0].at;
        let sieve = grow_buffer(&mut self.sieve, (end - start) as usize);
        world.read_piece(piece, sieve, start)?;
        for run in runs {
            let len = run.block as usize;
            for (at, to) in run_blocks(run) {
                copy_block(&sieve[(at - start) as usize..][..len], &mut bytes[to..][..len]);
            }
        }
        Ok(())
    }

    /// Reads neighbouring stretches together.
    fn fetch_all(
        &mut self,
        world: &mut impl FileState,
        wants: &mut [PieceRead],
        bytes: &mut [u8],
    ) -> Result<()> {
        // Most requests are in order already, and the check costs less than sorting.
        if !wants.is_sorted_by_key(|want| (want.piece, want.at)) {
            wants.sort_unstable_by_key(|want| (want.piece, want.at));
        }
        let mut rest = &wants[..];
        while let Some(first) = rest.first() {
            let direct = count_direct(rest);
            if direct > 1 {
                StreamReader::fetch_straight(world, &rest[..direct], bytes)?;
                rest = &rest[direct..];
                continue;
            }
            let (mut end, mut count) = (first.at + first.len, 1);
            for next in &rest[1..] {
                let near = next.piece == first.piece && next.at <= end.saturating_add(self.gap);
                if !near || next.at + next.len - first.at > self.batch {
                    break;
                }
                end = end.max(next.at + next.len);
                count += 1;
            }
            self.fetch_group(world, &rest[..count], end, bytes)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Reads one run of a piece straight into its destinations.
    fn fetch_straight(
        world: &mut impl FileState,
        wants: &[PieceRead],
        bytes: &mut [u8],
    ) -> Result<()> {
        let mut parts = Vec::with_capacity(wants.len());
        let (mut rest, mut before) = (&mut *bytes, 0);
        for want in wants {
            let (part, others) =
                rest[(want.to - before) as usize..].split_at_mut(want.len as usize);
            parts.push(IoSliceMut::new(part));
            (rest, before) = (others, want.to + want.len);
        }
        world.read_parts(wants[0].piece, &mut parts, wants[0].at)
    }

    /// Reads one run of a piece, and copies its parts.
    fn fetch_group(
        &mut self,
        world: &mut impl FileState,
        wants: &[PieceRead],
        end: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let first = wants[0];
        if wants.len() == 1 {
            let part = &mut bytes[first.to as usize..][..first.len as usize];
            return world.read_piece(first.piece, part, first.at);
        }
        let sieve = grow_buffer(&mut self.sieve, (end - first.at) as usize);
        world.read_piece(first.piece, sieve, first.at)?;
        for want in wants {
            let from = &sieve[(want.at - first.at) as usize..][..want.len as usize];
            copy_block(from, &mut bytes[want.to as usize..][..want.len as usize]);
        }
        Ok(())
    }
}

/// Counts the first of `wants` that are contiguous in a piece, in the order of their destinations,
/// and large enough to be read by one call without a buffer.
fn count_direct(wants: &[PieceRead]) -> usize {
    let goes_on = |pair: &[PieceRead]| {
        let (one, next) = (pair[0], pair[1]);
        next.piece == one.piece
            && next.at == one.at + one.len
            && next.to >= one.to + one.len
            && next.len >= DIRECT
    };
    match wants.first() {
        Some(first) if first.len >= DIRECT => {
            1 + wants.windows(2).take(PARTS - 1).take_while(|pair| goes_on(pair)).count()
        }
        _ => 0,
    }
}

/// Returns the first `len` bytes of a buffer, which grows if necessary.
fn grow_buffer(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Returns the place of each block of a run in the piece, and its destination in the request.
fn run_blocks(run: &FoundRun) -> impl Iterator<Item = (u64, usize)> + use<> {
    let run = *run;
    (0..run.count).map(move |i| (run.at + i * run.at_stride, (run.to + i * run.to_stride) as usize))
}

/// Reports whether `next`, found for the following bytes, lies right behind `run`.
fn continues_run(run: &FoundRun, next: &FoundRun) -> bool {
    run.piece == next.piece && (run.piece.is_none() || run.at + run.block == next.at)
}

/// Copies a block; blocks of the size of a number without a call.
#[inline]
fn copy_block(from: &[u8], to: &mut [u8]) {
    fn copy_fixed<const N: usize>(from: &[u8], to: &mut [u8]) -> bool {
        match (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
            (Some(from), Some(to)) => {
                *to = *from;
                true
            }
            _ => false,
        }
    }
    let done = match from.len() {
        4 => copy_fixed::<4>(from, to),
        8 => copy_fixed::<8>(from, to),
        16 => copy_fixed::<16>(from, to),
        _ => false,
    };
    if !done {
        to.copy_from_slice(from);
    }
}
