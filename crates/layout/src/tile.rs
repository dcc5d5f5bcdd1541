//! A tile: one strided stretch of a view that lies in one run of a piece.

use thiserror::Error;

use crate::view::{MAX_OFFSET, View};

/// How many views one piece may refer to.
pub const MAX_VIEWS: usize = 1 << 20;

/// One strided stretch of a view, which lies in one run of a piece.
///
/// Its stream bytes are the blocks `[start + i · stride, + block)`, contiguous in the piece from
/// `at` on; `len` bytes in all, so that the last block may be a partial one. A contiguous stretch
/// has `block` = `stride` (the writer uses 1 for both), and only its `len` grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Time of the write by a hybrid logical clock, in microseconds since 1970. Of two tiles over a
    /// byte the higher stamp wins; of equal stamps the lower rank; of equal ranks the later piece,
    /// then the later tile.
    pub stamp: u64,
    /// Which view of [`crate::PieceTiles::views`].
    pub view: u32,
    /// First stream byte.
    pub start: u64,
    /// Bytes in a block.
    pub block: u64,
    /// From the beginning of a block to that of the next, at least `block`.
    pub stride: u64,
    /// Bytes in all.
    pub len: u64,
    /// Where the first byte lies in the piece.
    pub at: u64,
}

/// Why a tile cannot be one of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TileError {
    /// There is no such view, or too many.
    #[error("the tile refers to view {0}, which does not exist, or is one too many")]
    View(u32),
    /// Empty, blocks that overlap, or places past the end of the file or piece.
    #[error("the tile is empty, overlaps itself or ends too far out")]
    Range,
}

impl Tile {
    /// A stretch without gaps.
    pub fn contiguous(stamp: u64, view: u32, start: u64, len: u64, at: u64) -> Tile {
        Tile { stamp, view, start, block: 1, stride: 1, len, at }
    }

    /// Whether its stream bytes are one run.
    pub fn is_contiguous(&self) -> bool {
        self.block == self.stride || self.len <= self.block
    }

    /// Number of blocks, the last of which may be shorter than `block`.
    pub fn block_count(&self) -> u64 {
        self.len.div_ceil(self.block)
    }

    /// The stream byte after its last one.
    pub fn end(&self) -> u64 {
        let last = (self.len - 1) / self.block;
        self.start + last * self.stride + (self.len - last * self.block)
    }

    /// The stream byte that lies `k` bytes into the tile; `k` is below `len`.
    pub fn stream_at(&self, k: u64) -> u64 {
        self.start + k / self.block * self.stride + k % self.block
    }

    /// How many of its bytes lie before stream byte `s`, and whether `s` is one of them.
    pub fn bytes_before(&self, s: u64) -> (u64, bool) {
        if s < self.start {
            return (0, false);
        }
        let (block, rest) = ((s - self.start) / self.stride, (s - self.start) % self.stride);
        let before = block.saturating_mul(self.block).saturating_add(rest.min(self.block));
        (before.min(self.len), rest < self.block && before < self.len)
    }

    /// Whether it has any of the bytes `from .. to` of the file, seen through its view.
    pub(crate) fn overlaps_file_range(&self, view: &View, from: u64, to: u64) -> bool {
        let before = |offset: u64| self.bytes_before(view.stream_before(offset).0).0;
        before(from) < before(to)
    }

    /// Counts its bytes from byte `k` on that are one run of the stream.
    pub(crate) fn run_from(&self, k: u64) -> u64 {
        let left = self.len.saturating_sub(k);
        if self.block == self.stride { left } else { left.min(self.block - k % self.block) }
    }

    /// Returns the range of whole blocks among its bytes `from .. end`; none if it is contiguous.
    pub(crate) fn whole_blocks(&self, from: u64, end: u64) -> (u64, u64) {
        if self.block == self.stride {
            return (end, end);
        }
        let head = from.next_multiple_of(self.block).min(end);
        (head, head + (end - head) / self.block * self.block)
    }

    /// Returns the stream runs of its bytes `k .. end`: stream offset, length, place in the piece.
    pub(crate) fn stream_runs(
        &self,
        mut k: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
        let tile = *self;
        let end = end.min(self.len);
        std::iter::from_fn(move || {
            if k >= end {
                return None;
            }
            let len = tile.run_from(k).min(end - k);
            let run = (tile.stream_at(k), len, tile.at + k);
            k += len;
            Some(run)
        })
    }

    /// Checks that it may be a tile over `view`.
    pub(crate) fn validate_tile(&self, view: Option<&View>) -> Result<(), TileError> {
        let view = view.ok_or(TileError::View(self.view))?;
        if self.len == 0 || self.block == 0 || self.stride < self.block {
            return Err(TileError::Range);
        }
        let last = (self.len - 1) / self.block;
        let end = last
            .checked_mul(self.stride)
            .and_then(|way| way.checked_add(self.start))
            .and_then(|at| at.checked_add(self.len - last * self.block));
        let inside = end.is_some_and(|end| view.offset_of(end - 1) != u64::MAX);
        let fits = self.at.checked_add(self.len).is_some_and(|end| end <= MAX_OFFSET + 1);
        if inside && fits { Ok(()) } else { Err(TileError::Range) }
    }
}

/// How a write that follows a tile in the piece combines with it.
pub(crate) enum WriteFit {
    /// It continues the tile.
    Grows,
    /// It may be the second block of a pattern.
    Strides,
    /// The last block does not belong to the pattern, but may begin another one.
    Split,
    New,
}

impl Tile {
    /// Classifies a write at `stream`, which is not before the end of the tile.
    pub(crate) fn fit_write(&self, stream: u64, len: u64) -> WriteFit {
        if self.block == self.stride {
            return match stream - self.start {
                way if way == self.len => WriteFit::Grows,
                way if way > self.len && len <= self.len => WriteFit::Strides,
                _ => WriteFit::New,
            };
        }
        let (whole, rest) = (self.len / self.block, self.len % self.block);
        let next =
            whole.checked_mul(self.stride).and_then(|way| way.checked_add(self.start + rest));
        if next == Some(stream) && len <= self.block - rest {
            return WriteFit::Grows;
        }
        // Two blocks prove no pattern. A last block that is shorter, or longer than the block's
        // length, belongs to the new write.
        if rest > 0 || whole == 2 || stream == self.end() { WriteFit::Split } else { WriteFit::New }
    }

    /// Removes the last block and returns it.
    pub(crate) fn split_last(&mut self) -> Tile {
        let k = (self.len - 1) / self.block * self.block;
        let tail =
            Tile::contiguous(self.stamp, self.view, self.stream_at(k), self.len - k, self.at + k);
        self.truncate_to(k);
        tail
    }

    /// Keeps the first `len` bytes.
    pub(crate) fn truncate_to(&mut self, len: u64) {
        self.len = len;
        if len <= self.block {
            (self.block, self.stride) = (1, 1);
        }
    }
}
