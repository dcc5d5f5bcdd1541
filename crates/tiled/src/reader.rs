//! Reading: stream bytes are looked up in the index, and what lies together in
//! a piece is read together.

use crate::error::{Context, Result};
use crate::hints::Hints;
use crate::memory::Buffer;
use crate::plain::read_full;
use crate::world::World;
use std::path::PathBuf;
use tatami_layout::{Found, Piece, View};

/// A gap that is read along rather than asked around, bytes.
const GAP: u64 = 8192;

/// The reader of one handle, with its buffers.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
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
    /// A reader of the file at `path`.
    pub fn new(path: PathBuf, hints: &Hints) -> Reader {
        let gap = if hints.sieve { GAP } else { 0 };
        Reader { path, batch: hints.read_buffer as u64, gap, dense: Vec::new(), sieve: Vec::new() }
    }

    /// Reads what `into` can hold and the file has; bytes read.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(
        &mut self,
        world: &mut World,
        view: &View,
        stream: u64,
        into: &mut Buffer<'_>,
    ) -> Result<u64> {
        let visible = view.stream_before(world.index().size()).0;
        let all = into.len().min(visible.saturating_sub(stream));
        let mut from = 0;
        while from < all {
            let (found, len) = self.find(world, view, stream + from, all - from);
            if len == 0 {
                break;
            }
            let size = len as usize;
            if let Some(bytes) = into.dense_mut(from, size) {
                self.fill(world, &found, bytes)?;
            } else {
                let mut dense = std::mem::take(&mut self.dense);
                dense.resize(size, 0);
                let filled = self.fill(world, &found, &mut dense);
                into.scatter(from, &dense);
                self.dense = dense;
                filled?;
            }
            from += len;
        }
        Ok(from)
    }

    /// Where the next bytes are: as many as are read at a time, or more where
    /// they lie in one run.
    fn find(&self, world: &World, view: &View, stream: u64, len: u64) -> (Vec<Found>, u64) {
        let mut found: Vec<Found> = Vec::new();
        let mut done = 0;
        while done < len && (done < self.batch || found.len() == 1) {
            let part = (len - done).min(self.batch);
            let more = world.index().lookup_view(view, stream + done, part);
            if more.is_empty() {
                break;
            }
            for new in more {
                done += new.len;
                match found.last_mut() {
                    Some(last) if last.piece == new.piece && last.at + last.len == new.at => {
                        last.len += new.len;
                    }
                    _ => found.push(new),
                }
            }
        }
        (found, done)
    }

    fn fill(&mut self, world: &mut World, found: &[Found], bytes: &mut [u8]) -> Result<()> {
        let mut wants = Vec::with_capacity(found.len());
        let mut to = 0;
        for found in found {
            match found.piece {
                Some(piece) => wants.push(Want { piece, at: found.at, len: found.len, to }),
                None => bytes[to as usize..][..found.len as usize].fill(0),
            }
            to += found.len;
        }
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
        world: &mut World,
        wants: &[Want],
        end: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let first = wants[0];
        let file = world.file(first.piece)?;
        if wants.len() == 1 {
            let part = &mut bytes[first.to as usize..][..first.len as usize];
            return read_full(&file, part, first.at).context("read", &self.path);
        }
        self.sieve.resize((end - first.at) as usize, 0);
        read_full(&file, &mut self.sieve, first.at).context("read", &self.path)?;
        for want in wants {
            let from = &self.sieve[(want.at - first.at) as usize..][..want.len as usize];
            copy(from, &mut bytes[want.to as usize..][..want.len as usize]);
        }
        Ok(())
    }
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
