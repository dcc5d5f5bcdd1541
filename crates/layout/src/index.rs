//! The tiles of all pieces of a file: which piece has which byte.

use crate::piece::PieceTiles;
use crate::sweep::{Span, spans, sweep};
use crate::tile::Tile;
use crate::view::{MAX_OFFSET, View};
use crate::whole::Piece;

/// The number of a piece within its file. Piece 0 is the base.
pub type PieceId = Piece;

/// The piece in which file offset and place are the same.
pub const BASE: PieceId = Piece(0);

/// A truncation: tiles, and the base, with a stamp of at most `stamp` have nothing at or
/// beyond `size`. The file is at least `size` bytes long as of the last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// When, in microseconds since 1970.
    pub stamp: u64,
    /// The size that the file had then, in bytes.
    pub size: u64,
}

/// A stretch of a request and where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// File offset of the first byte.
    pub file_offset: u64,
    /// Number of bytes, never 0: of the file from [`Index::lookup`], of the stream
    /// from [`Index::lookup_view`].
    pub len: u64,
    /// The piece; `None` is a hole, which reads as zeros.
    pub piece: Option<PieceId>,
    /// Where the first byte lies in the piece; the others follow it. 0 in a hole.
    pub at: u64,
}

/// One tile, as the index keeps it.
#[derive(Clone, Debug)]
struct Item {
    piece: PieceId,
    view: View,
    tile: Tile,
    /// First file offset, and the end; beyond `hi` a cut took what there was.
    lo: u64,
    hi: u64,
}

/// Which piece has which byte of a file.
#[derive(Clone, Debug)]
pub struct Index {
    /// By precedence: the first wins over all others.
    items: Vec<Item>,
    /// What is left of the base, in bytes.
    base: u64,
    size: u64,
}

impl Index {
    /// The index of a file with these pieces and truncations, and `base_size` bytes in its
    /// base. The base has stamp 0: all cuts apply to it.
    pub fn new(pieces: Vec<(PieceId, PieceTiles)>, cuts: Vec<Cut>, base_size: u64) -> Index {
        Index::with_base(pieces, cuts, base_size, 0)
    }

    /// The same for a base that was itself truncated and written after that: cuts with stamps
    /// up to and with `base_stamp` have been carried out on it and do not
    /// apply to it any more. (0: none.)
    pub fn with_base(
        pieces: Vec<(PieceId, PieceTiles)>,
        mut cuts: Vec<Cut>,
        base_size: u64,
        base_stamp: u64,
    ) -> Index {
        // Stable: of cuts with equal stamps the one further on is the later.
        cuts.sort_by_key(|c| c.stamp);
        let mut size = cuts.last().map_or(0, |c| c.size);
        let mut least = u64::MAX;
        let mut limits: Vec<Cut> = cuts;
        for cut in limits.iter_mut().rev() {
            least = least.min(cut.size);
            cut.size = least;
        }
        let limit = |stamp: u64| {
            limits.get(limits.partition_point(|c| c.stamp < stamp)).map_or(u64::MAX, |c| c.size)
        };
        let base_limit = match base_stamp {
            0 => limit(0),
            stamp => limit(stamp.saturating_add(1)),
        };
        let base = base_size.min(base_limit);
        size = size.max(base);
        let mut items: Vec<(u64, u32, Item)> = Vec::new();
        for (piece, tiles) in &pieces {
            for tile in tiles.tiles() {
                let view = tiles.views()[tile.view as usize].clone();
                let lo = view.offset_of(tile.start);
                let hi = (view.offset_of(tile.end() - 1) + 1).min(limit(tile.stamp));
                if lo < hi {
                    let hi = last_end(&view, tile, hi);
                    size = size.max(hi);
                    items.push((
                        tile.stamp,
                        tiles.rank(),
                        Item { piece: *piece, view, tile: *tile, lo, hi },
                    ));
                }
            }
        }
        // From the end, so that the later one of equals comes first.
        items.reverse();
        items.sort_by(|a, b| (b.0, a.1, b.2.piece).cmp(&(a.0, b.1, a.2.piece)));
        let items = items.into_iter().map(|(_, _, item)| item).collect();
        Index { items, base, size }
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where the bytes `offset .. offset + len` of the file are: in file order,
    /// without gaps, up to the end of the file.
    pub fn lookup(&self, offset: u64, len: u64) -> Vec<Found> {
        let mut out = Vec::new();
        self.resolve(offset, offset.saturating_add(len).min(self.size), &mut out);
        out
    }

    /// Where the stream bytes `stream .. stream + len` of `view` are: in stream order, without
    /// gaps, up to the end of the file. Bytes that follow one another in the stream and in a
    /// piece are told as one, whether or not they do in the file.
    pub fn lookup_view(&self, view: &View, stream: u64, len: u64) -> Vec<Found> {
        let mut out = Vec::new();
        for (offset, len) in view.extents(stream, len) {
            let end = (offset + len).min(self.size);
            if offset < end {
                self.resolve(offset, end, &mut out);
            }
        }
        out
    }

    fn resolve(&self, offset: u64, end: u64, out: &mut Vec<Found>) {
        let mut at = offset;
        let mut found: Vec<Span> = Vec::new();
        for (i, item) in self.items.iter().enumerate() {
            let (from, to) = (item.lo.max(offset), item.hi.min(end));
            if from < to {
                let spans = spans(&item.view, &item.tile, from, to);
                found.extend(spans.map(|(offset, len, at)| Span { offset, len, at, of: i as u32 }));
            }
        }
        for span in sweep(found, |a, b| a < b) {
            self.beneath(at, span.offset, out);
            let piece = Some(self.items[span.of as usize].piece);
            join(out, Found { file_offset: span.offset, len: span.len, piece, at: span.at });
            at = span.offset + span.len;
        }
        self.beneath(at, end, out);
    }

    /// What lies beneath the tiles: base, then a hole.
    fn beneath(&self, from: u64, to: u64, out: &mut Vec<Found>) {
        let middle = self.base.clamp(from, to.max(from));
        if from < middle {
            join(out, Found { file_offset: from, len: middle - from, piece: Some(BASE), at: from });
        }
        if middle < to {
            join(out, Found { file_offset: middle, len: to - middle, piece: None, at: 0 });
        }
    }
}

/// The end of the last byte of `tile` before `limit`; the tile has one.
fn last_end(view: &View, tile: &Tile, limit: u64) -> u64 {
    let k = tile.before(view.stream_before(limit.min(MAX_OFFSET + 1)).0).0;
    match k {
        0 => limit,
        k => view.offset_of(tile.stream_at(k - 1)) + 1,
    }
}

/// Appends what follows, to the last one where it goes on.
fn join(out: &mut Vec<Found>, new: Found) {
    if let Some(last) = out.last_mut() {
        let goes_on =
            last.piece == new.piece && (new.piece.is_none() || last.at + last.len == new.at);
        if goes_on {
            last.len += new.len;
            return;
        }
    }
    out.push(new);
}
