//! Reading: stream bytes are looked up in the index, and what lies together in
//! a piece is read together.

use crate::error::Result;
use crate::hints::Hints;
use crate::memory::Buffer;
use std::io::IoSliceMut;
use tatami_layout::{Found, FoundRun, Index, Piece, View};

/// A gap that is read along rather than asked around, bytes.
const GAP: u64 = 8192;

/// Blocks from here on are read straight to where they belong, many by one call. That takes about half the
/// CPU time of reading them into a buffer and copying them from there, for 256 bytes as for 2 KiB; smaller ones would
/// need too many calls.
const DIRECT: u64 = 256;
/// Bytes that are read at a time for scattered memory.
const SCATTER: u64 = 256 << 10;
/// Parts of such a call at most, as of IOV_MAX.
const PARTS: usize = 1024;

/// What is read: pieces, and an index that tells what they hold.
pub trait Source {
    /// Which piece has which byte.
    fn index(&self) -> &Index;

    /// Goes up with every change of the index.
    fn built(&self) -> u64;

    /// Fills `bytes` with those of a piece from `at` on.
    ///
    /// # Errors
    /// Those of the disk.
    fn read(&mut self, piece: Piece, bytes: &mut [u8], at: u64) -> Result<()>;

    /// Fills `parts`, one after the other, with the bytes of a piece from `at` on.
    ///
    /// # Errors
    /// Those of the disk.
    fn read_parts(
        &mut self,
        piece: Piece,
        parts: &mut [IoSliceMut<'_>],
        mut at: u64,
    ) -> Result<()> {
        for part in parts {
            self.read(piece, part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }
}

/// The reader of one handle, with its buffers.
#[derive(Debug)]
pub struct Reader {
    batch: u64,
    gap: u64,
    dense: Vec<u8>,
    sieve: Vec<u8>,
    whole: Option<Whole>,
}

/// A long run of a stream in one piece: who reads through the view that wrote looks it up once.
#[derive(Debug)]
struct Whole {
    /// Of which index ([`Source::built`]).
    built: u64,
    view: View,
    stream: u64,
    len: u64,
    piece: Piece,
    at: u64,
}

impl Whole {
    /// Where the piece has these stream bytes.
    fn at(&self, world: &impl Source, view: &View, stream: u64, len: u64) -> Option<u64> {
        let from = stream.checked_sub(self.stream)?;
        let has = self.built == world.built()
            && from <= self.len
            && len <= self.len - from
            && self.view == *view;
        has.then(|| self.at + from)
    }
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
        let (batch, dense, sieve) = (hints.read_buffer as u64, Vec::new(), Vec::new());
        Reader { batch, gap, dense, sieve, whole: None }
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
        if self.read_whole(world, view, stream, into)?
            || self.read_run(world, view, stream, into)?
        {
            return Ok(into.len());
        }
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
            } else if let [run] = runs[..]
                && run.count == 1
                && let Some(piece) = run.piece
            {
                self.scatter(world, (piece, run.at, len), from, into)?;
            } else {
                let mut dense = std::mem::take(&mut self.dense);
                let filled = self.fill(world, runs, room(&mut dense, size));
                into.scatter(from, &dense[..size]);
                self.dense = dense;
                filled?;
            }
            from += len;
        }
        Ok(from)
    }

    /// Reads all that `into` can hold, if it is dense and lies in one run of one piece.
    fn read_whole(
        &mut self,
        world: &mut impl Source,
        view: &View,
        stream: u64,
        into: &mut Buffer<'_>,
    ) -> Result<bool> {
        let len = into.len();
        let mut at = self.whole.as_ref().and_then(|whole| whole.at(world, view, stream, len));
        if at.is_none()
            && let Some(found) = world.index().lookup_whole(view, stream)
            && found.len >= len
            && let Some(piece) = found.piece
        {
            let (built, view) = (world.built(), view.clone());
            let Found { len, at: place, .. } = found;
            self.whole = Some(Whole { built, view, stream, len, piece, at: place });
            at = Some(place);
        }
        let (Some(at), Some(whole)) = (at, &self.whole) else { return Ok(false) };
        let Some(bytes) = usize::try_from(len).ok().and_then(|len| into.dense_mut(0, len)) else {
            return Ok(false);
        };
        world.read(whole.piece, bytes, at)?;
        Ok(true)
    }

    /// Reads all that `into` can hold, if it is dense and lies in one run of the file and of one piece.
    fn read_run(
        &mut self,
        world: &mut impl Source,
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
        let (Some(found), Some(bytes)) = (found, into.dense_mut(0, len as usize)) else {
            return Ok(false);
        };
        match found.piece {
            Some(piece) => world.read(piece, bytes, found.at)?,
            None => bytes.fill(0),
        }
        Ok(true)
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

    /// Reads a run of a piece into scattered memory, by parts that stay in the processor's cache.
    fn scatter(
        &mut self,
        world: &mut impl Source,
        (piece, at, len): (Piece, u64, u64),
        from: u64,
        into: &mut Buffer<'_>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let part = (len - done).min(SCATTER);
            let dense = room(&mut self.dense, part as usize);
            world.read(piece, dense, at + done)?;
            into.scatter(from + done, dense);
            done += part;
        }
        Ok(())
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
            let apart = |run: &FoundRun| run.block >= DIRECT || run.count == 1;
            if is_dense && !group.iter().all(apart) && group.iter().any(|run| run.count > 1) {
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
        let sieve = room(&mut self.sieve, (end - start) as usize);
        world.read(piece, sieve, start)?;
        for run in runs {
            let len = run.block as usize;
            for (at, to) in blocks(run) {
                copy(&sieve[(at - start) as usize..][..len], &mut bytes[to..][..len]);
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
            let direct = straight(rest);
            if direct > 1 {
                Reader::fetch_straight(world, &rest[..direct], bytes)?;
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
            self.fetch(world, &rest[..count], end, bytes)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Reads one run of a piece straight to where its parts belong.
    fn fetch_straight(world: &mut impl Source, wants: &[Want], bytes: &mut [u8]) -> Result<()> {
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
        let sieve = room(&mut self.sieve, (end - first.at) as usize);
        world.read(first.piece, sieve, first.at)?;
        for want in wants {
            let from = &sieve[(want.at - first.at) as usize..][..want.len as usize];
            copy(from, &mut bytes[want.to as usize..][..want.len as usize]);
        }
        Ok(())
    }
}

/// How many of the first of `wants` lie one behind the other in a piece, in the order in which they
/// are wanted, and are large enough to be read by one call without a buffer.
fn straight(wants: &[Want]) -> usize {
    let goes_on = |pair: &[Want]| {
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

/// The first `len` bytes of a buffer, which grows where it must.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
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
