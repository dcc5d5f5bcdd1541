//! The index of a file: the tiles of all its pieces, and which piece has which byte.

use std::cmp::Reverse;

use crate::runs::PlacedRun;
use crate::sweep::{TileSpan, select_winners, tile_spans};
use crate::tile::Tile;
use crate::tree::{OffsetRange, TileTree};
use crate::tree_builder::{TileTreeBuilder, Twig};
use crate::view::{MAX_OFFSET, View};
use crate::whole::Piece;

/// The number of a piece within its file. Piece 0 is the base.
pub type PieceId = Piece;

/// The base: the piece in which file offset and place are the same.
pub const BASE: PieceId = Piece(0);

/// A truncation: tiles with a stamp of at most `stamp`, and the base, have nothing at or beyond
/// `size`. After the last cut the file is at least `size` bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileCut {
    /// Time of the truncation, in microseconds since 1970.
    pub stamp: u64,
    /// The size of the file after it, in bytes.
    pub size: u64,
}

/// A stretch of a request and where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundExtent {
    /// File offset of the first byte.
    pub file_offset: u64,
    /// Number of bytes, never 0: of the file from [`TileIndex::lookup`], of the stream
    /// from [`TileIndex::lookup_view`].
    pub len: u64,
    /// The piece; `None` is a hole, which reads as zeros.
    pub piece: Option<PieceId>,
    /// Where the first byte lies in the piece; the others follow it. 0 in a hole.
    pub at: u64,
}

/// One tile, as the index keeps it.
#[derive(Clone, Debug)]
pub(crate) struct IndexedTile {
    pub piece: PieceId,
    view: View,
    /// Its `view` is a number that tiles of equal views share.
    tile: Tile,
    /// First file offset, and the end. A cut removed all bytes at and beyond `hi`.
    pub lo: u64,
    pub hi: u64,
    /// Proved: no other tile has any of its bytes.
    pub alone: bool,
}

/// A tile by its view: finds the tiles of a request that comes with the same view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ViewTile {
    view: u64,
    start: u64,
    item: u32,
}

/// Most tiles of a small request; [`TileIndex::lookup_run`] gives up on more.
const FEW: usize = 16;

/// The part of a file range that a tile has.
enum TileShare {
    Nothing,
    /// All of it as one run, which begins there in the piece.
    All(u64),
    /// Anything else.
    Part,
}

/// Which piece has which byte of a file.
#[derive(Clone, Debug)]
pub struct TileIndex {
    /// By precedence: the first wins over all others.
    items: Vec<IndexedTile>,
    tree: TileTree,
    /// Sorted.
    view_tiles: Vec<ViewTile>,
    /// Bytes of the base that the cuts left.
    pub(crate) base: u64,
    pub(crate) size: u64,
}

impl TileIndex {
    /// The index of these tiles of one piece.
    pub(crate) fn from_tiles(
        piece: PieceId,
        tiles: impl Iterator<Item = (View, Tile)>,
    ) -> TileIndex {
        let items = tiles.filter_map(|(view, tile)| IndexedTile::new(piece, view, tile, u64::MAX));
        TileIndex::from_items(items.map(|i| (0, i)).collect())
    }

    /// The index of these tiles, each with the rank of its writer. The base is empty.
    pub(crate) fn from_items(mut items: Vec<(u32, IndexedTile)>) -> TileIndex {
        // Reverse first, so that of equal keys the later tile comes first.
        items.reverse();
        items.sort_by_key(|(rank, i)| (Reverse(i.tile.stamp), *rank, Reverse(i.piece)));
        let items: Vec<IndexedTile> = items.into_iter().map(|(_, item)| item).collect();
        let size = items.iter().map(|i| i.hi).max().unwrap_or(0);
        let mut new =
            TileIndex { items, tree: TileTree::Nothing, view_tiles: Vec::new(), base: 0, size };
        new.number_views();
        new.build_tree();
        new
    }

    /// Calls `met` with each tile that may have bytes of the file range `from .. to`: its number
    /// (the lower of two wins), its view and the tile.
    pub(crate) fn visit_tiles<'a>(
        &'a self,
        from: u64,
        to: u64,
        mut met: impl FnMut(u32, &'a View, &'a Tile),
    ) {
        let mut found = Vec::new();
        self.collect_candidates(from, to, &mut found);
        for i in found {
            let item = &self.items[i as usize];
            met(i, &item.view, &item.tile);
        }
    }

    /// Records the tiles of each view, and gives equal views one number.
    fn number_views(&mut self) {
        self.view_tiles = (0u32..)
            .zip(&self.items)
            .map(|(item, i)| ViewTile { view: i.view.hash(), start: i.tile.start, item })
            .collect();
        self.view_tiles.sort_unstable();
        let mut same: Option<(View, u32)> = None;
        let mut numbers = 0;
        for known in &self.view_tiles {
            let item = &mut self.items[known.item as usize];
            let number = match &same {
                Some((view, number)) if *view == item.view => *number,
                _ => {
                    numbers += 1;
                    numbers
                }
            };
            item.tile.view = number;
            match &same {
                // One copy of a view is enough for all.
                Some((view, same)) if *same == number => item.view = view.clone(),
                _ => same = Some((item.view.clone(), number)),
            }
        }
    }

    fn build_tree(&mut self) {
        let items = &self.items;
        let of = |i: u32| {
            let item = &items[i as usize];
            (item.tile.view, item.view.clone(), item.tile)
        };
        let twigs = (0u32..)
            .zip(items)
            .map(|(i, t)| Twig::from_file_range(i, &t.view, &t.tile, t.lo, t.hi));
        let mut grower = TileTreeBuilder::new(&of, items.len());
        let tree = grower.build_tree(twigs.collect());
        let alone = grower.alone;
        self.tree = tree;
        for (item, alone) in self.items.iter_mut().zip(alone) {
            item.alone = alone;
        }
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns where the bytes `offset .. offset + len` of the file are: in file order, without
    /// gaps, up to the end of the file.
    pub fn lookup(&self, offset: u64, len: u64) -> Vec<FoundExtent> {
        let mut out = Vec::new();
        self.resolve_range(offset, offset.saturating_add(len).min(self.size), &mut out);
        out
    }

    /// Returns where the stream bytes `stream .. stream + len` of `view` are: in stream order,
    /// without gaps, up to the end of the file. Bytes that are contiguous in the stream and in a
    /// piece are one result, even if they are not contiguous in the file.
    pub fn lookup_view(&self, view: &View, stream: u64, len: u64) -> Vec<FoundExtent> {
        let mut out = Vec::new();
        let len = self.readable_len(view, stream, len);
        let mut done = 0;
        // A tile of this view that is alone answers without the tree, whatever its number of
        // blocks.
        while let Some(found) = self.lookup_same_view(view, stream + done, len - done) {
            done += found.len;
            append_found(&mut out, found);
        }
        let mut near = None;
        for (offset, len) in view.extents(stream + done, len - done) {
            self.resolve_near(offset, offset + len, &mut near, &mut out);
        }
        out
    }

    /// Returns the longest run of the stream from `stream` on that one piece is known to have,
    /// written through the same view. `None` where only a search would show it.
    pub fn lookup_whole(&self, view: &View, stream: u64) -> Option<FoundExtent> {
        let len = self.readable_len(view, stream, u64::MAX);
        self.lookup_same_view(view, stream, len)
    }

    /// Returns where the bytes `from .. to` of the file are, if they are one run of one piece or of
    /// a hole. Most small requests are, and need no list. `None` otherwise, and in doubt.
    pub fn lookup_run(&self, from: u64, to: u64) -> Option<FoundExtent> {
        if from >= to || to > self.size {
            return None;
        }
        let (mut few, mut count) = ([0; FEW], 0);
        let range = OffsetRange { from, to };
        self.tree.visit_tiles(range, range, &mut |item| {
            if count > FEW || few[..count.min(FEW)].contains(&item) {
                return;
            }
            if let Some(place) = few.get_mut(count) {
                *place = item;
            }
            count += 1;
        });
        // Items are numbered by precedence: the first one that has the range wins.
        let few = few.get_mut(..count)?;
        few.sort_unstable();
        let len = to - from;
        for item in few.iter().map(|i| &self.items[*i as usize]) {
            match item.classify_range(from, to) {
                TileShare::Nothing => {}
                TileShare::Part => return None,
                TileShare::All(at) => {
                    return Some(FoundExtent {
                        file_offset: from,
                        len,
                        piece: Some(item.piece),
                        at,
                    });
                }
            }
        }
        match (to <= self.base, from >= self.base) {
            (true, _) => Some(FoundExtent { file_offset: from, len, piece: Some(BASE), at: from }),
            (_, true) => Some(FoundExtent { file_offset: from, len, piece: None, at: 0 }),
            _ => None,
        }
    }

    /// Returns how many of `len` stream bytes lie before the end of the file.
    pub(crate) fn readable_len(&self, view: &View, stream: u64, len: u64) -> u64 {
        let len = len.min(u64::MAX - stream);
        len.min(view.stream_before(self.size).0.saturating_sub(stream))
    }

    pub(crate) fn item(&self, number: u32) -> &IndexedTile {
        &self.items[number as usize]
    }

    /// Returns the run of a tile of the same view that overlaps no other tile.
    pub(crate) fn lookup_same_view(
        &self,
        view: &View,
        stream: u64,
        len: u64,
    ) -> Option<FoundExtent> {
        if len == 0 {
            return None;
        }
        let hash = view.hash();
        let next = self.view_tiles.partition_point(|k| (k.view, k.start) <= (hash, stream));
        let known = self.view_tiles[..next].last().filter(|k| k.view == hash)?;
        let item = &self.items[known.item as usize];
        let (k, inside) = item.tile.bytes_before(stream);
        // Only a tile that is alone may answer: no other tile can win over it.
        if !item.alone || !inside || item.view != *view {
            return None;
        }
        let run = item.tile.run_from(k);
        let file_offset = view.offset_of(stream);
        let mut len = len.min(run);
        if view.offset_of(stream + len - 1) >= item.hi {
            len = view.stream_before(item.hi).0.saturating_sub(stream);
        }
        let (piece, at) = (Some(item.piece), item.tile.at + k);
        (len > 0).then_some(FoundExtent { file_offset, len, piece, at })
    }

    /// Resolves a range that probably lies near the one before, in tile `near`.
    fn resolve_near(
        &self,
        offset: u64,
        end: u64,
        near: &mut Option<u32>,
        out: &mut Vec<FoundExtent>,
    ) {
        let mut offset = offset;
        while offset < end {
            if let Some(item) = near.map(|i| &self.items[i as usize])
                && let Some((at, run)) = item.locate_byte(offset, end)
            {
                append_found(
                    out,
                    FoundExtent { file_offset: offset, len: run, piece: Some(item.piece), at },
                );
                offset += run;
                continue;
            }
            let mut found = Vec::new();
            self.collect_candidates(offset, end, &mut found);
            match found[..] {
                [one] if self.items[one as usize].alone && *near != Some(one) => *near = Some(one),
                _ => return self.resolve_among(offset, end, &found, out),
            }
            let item = &self.items[found[0] as usize];
            if item.locate_byte(offset, end).is_none() {
                return self.resolve_among(offset, end, &found, out);
            }
        }
    }

    /// Collects the tiles that may have bytes of a range, each once.
    pub(crate) fn collect_candidates(&self, offset: u64, end: u64, found: &mut Vec<u32>) {
        if offset < end {
            let range = OffsetRange { from: offset, to: end };
            self.tree.visit_tiles(range, range, &mut |item| found.push(item));
            if found.len() > 1 {
                found.sort_unstable();
                found.dedup();
            }
        }
    }

    fn resolve_range(&self, offset: u64, end: u64, out: &mut Vec<FoundExtent>) {
        let mut found = Vec::new();
        self.collect_candidates(offset, end, &mut found);
        self.resolve_among(offset, end, &found, out);
    }

    fn resolve_among(&self, offset: u64, end: u64, among: &[u32], out: &mut Vec<FoundExtent>) {
        let mut at = offset;
        let mut put = |span: TileSpan| {
            self.resolve_base(at, span.offset, out);
            let piece = Some(self.items[span.tile as usize].piece);
            append_found(
                out,
                FoundExtent { file_offset: span.offset, len: span.len, piece, at: span.at },
            );
            at = span.offset + span.len;
        };
        let mut found: Vec<TileSpan> = Vec::new();
        for &i in among {
            let item = &self.items[i as usize];
            let (from, to) = (item.lo.max(offset), item.hi.min(end));
            if from >= to {
                continue;
            }
            let spans = tile_spans(&item.view, &item.tile, from, to)
                .map(|(offset, len, at)| TileSpan { offset, len, at, tile: i });
            match among.len() {
                1 => spans.for_each(&mut put),
                _ => found.extend(spans),
            }
        }
        select_winners(found, |a, b| a < b).into_iter().for_each(&mut put);
        self.resolve_base(at, end, out);
    }

    /// Adds the bytes beneath the tiles: of the base, then of a hole.
    fn resolve_base(&self, from: u64, to: u64, out: &mut Vec<FoundExtent>) {
        let middle = self.base.clamp(from, to.max(from));
        if from < middle {
            append_found(
                out,
                FoundExtent { file_offset: from, len: middle - from, piece: Some(BASE), at: from },
            );
        }
        if middle < to {
            append_found(
                out,
                FoundExtent { file_offset: middle, len: to - middle, piece: None, at: 0 },
            );
        }
    }
}

impl IndexedTile {
    /// Makes the item of a tile whose bytes before `limit` survived the cuts; `None` where there
    /// are none.
    pub fn new(piece: PieceId, view: View, tile: Tile, limit: u64) -> Option<IndexedTile> {
        let lo = view.offset_of(tile.start);
        let hi = (view.offset_of(tile.end() - 1) + 1).min(limit);
        if lo >= hi {
            return None;
        }
        let hi = last_byte_end(&view, &tile, hi);
        Some(IndexedTile { piece, view, tile, lo, hi, alone: false })
    }

    /// The strided runs of the tile within the file range `from .. to`.
    pub fn placed_runs(&self, from: u64, to: u64) -> impl Iterator<Item = PlacedRun> + '_ {
        let first = self.tile.bytes_before(self.view.stream_before(from).0).0;
        let end = self.tile.bytes_before(self.view.stream_before(to).0).0;
        // Blocks of a tile over a contiguous view need not be visited one by one.
        let (head, middle) = match self.view.is_default() {
            true => self.tile.whole_blocks(first, end),
            false => (end, end),
        };
        let run = |(stream, len, at): (u64, u64, u64)| {
            let mut place = at;
            self.view.strided_runs(stream, len).map(move |run| {
                let placed = PlacedRun::from_run(run, place);
                place += placed.len();
                placed
            })
        };
        let blocks = (middle > head).then(|| PlacedRun {
            from: self.view.offset_of(self.tile.stream_at(head)),
            block: self.tile.block,
            stride: self.tile.stride,
            count: (middle - head) / self.tile.block,
            place: self.tile.at + head,
        });
        self.tile
            .stream_runs(first, head)
            .flat_map(run)
            .chain(blocks)
            .chain(self.tile.stream_runs(middle, end).flat_map(run))
    }

    fn classify_range(&self, from: u64, to: u64) -> TileShare {
        let (lo, hi) = (from.max(self.lo), to.min(self.hi));
        if lo >= hi {
            return TileShare::Nothing;
        }
        let (stream, visible, run) = self.view.run_at(lo);
        let (first, inside) = self.tile.bytes_before(stream);
        if visible && inside {
            let all = (lo, hi) == (from, to) && run.min(self.tile.run_from(first)) >= to - from;
            return if all { TileShare::All(self.tile.at + first) } else { TileShare::Part };
        }
        match self.tile.bytes_before(self.view.stream_before(hi).0).0 == first {
            true => TileShare::Nothing,
            false => TileShare::Part,
        }
    }

    /// Returns where the byte at `offset` lies in the piece, and how many bytes from there on,
    /// below `end`, are contiguous in file and piece; `None` when the tile does not have the byte.
    fn locate_byte(&self, offset: u64, end: u64) -> Option<(u64, u64)> {
        if offset < self.lo || offset >= self.hi {
            return None;
        }
        let (stream, visible, run) = self.view.run_at(offset);
        let (k, inside) = self.tile.bytes_before(stream);
        let run = run.min(self.tile.run_from(k)).min(end.min(self.hi) - offset);
        (visible && inside).then_some((self.tile.at + k, run))
    }
}

/// Returns the end of the last byte of `tile` before `limit`; the tile has such a byte.
fn last_byte_end(view: &View, tile: &Tile, limit: u64) -> u64 {
    let k = tile.bytes_before(view.stream_before(limit.min(MAX_OFFSET + 1)).0).0;
    match k {
        0 => limit,
        k => view.offset_of(tile.stream_at(k - 1)) + 1,
    }
}

/// Appends a result, or extends the last one where the new one continues it.
fn append_found(out: &mut Vec<FoundExtent>, new: FoundExtent) {
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
