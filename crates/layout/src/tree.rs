//! The search tree over the tiles of a file: which tiles may have a byte of a range.
//!
//! Tiles of many ranks lie interleaved: each spans the file from end to end, so no order by offset
//! separates them. Their period does. Where all tiles repeat with one stride, a place is looked up
//! by its remainder: each rank has its arc of the period, and the arcs are sorted and searched. The
//! next stride further in separates the tiles that share an arc: a block of a three-dimensional
//! array by planes, then rows, then bytes. No tile is ever expanded into its blocks. A tile that
//! ends up by itself overlaps no other: that is the proof.

use crate::view::View;

/// A node of the tree. Coordinates change on the way down: each kind states the coordinate by which
/// its children are searched.
#[derive(Clone, Debug)]
pub(crate) enum TileTree {
    Nothing,
    /// One tile.
    One(u32),
    /// Children in disjoint ranges.
    Ranges(Box<RangesNode>),
    /// The child is searched by the remainder.
    Modulo(Box<ModuloNode>),
    /// All tiles below are of one view, and searched by its stream.
    Stream(Box<(View, TileTree)>),
    /// Children that may overlap one another.
    Overlay(Box<[TileTree]>),
    /// Tiles that nothing separates.
    Pile(Box<Pile>),
}

#[derive(Clone, Debug)]
pub(crate) struct RangesNode {
    /// Sorted; `bounds[i].1 <= bounds[i + 1].0`.
    pub bounds: Box<[(u64, u64)]>,
    pub nodes: Box<[TileTree]>,
}

#[derive(Clone, Debug)]
pub(crate) struct ModuloNode {
    pub period: u64,
    /// Below the period; a place `x` is searched by `(x - origin) mod period`.
    pub origin: u64,
    pub child: TileTree,
}

/// An interval tree: sorted by lower bound; the middle of a stretch is its root.
#[derive(Clone, Debug)]
pub(crate) struct Pile {
    pub entries: Box<[PileEntry]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PileEntry {
    pub lo: u64,
    pub hi: u64,
    /// The highest `hi` of the stretch whose root the entry is.
    pub top: u64,
    pub item: u32,
}

/// A half-open range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffsetRange {
    pub from: u64,
    pub to: u64,
}

impl TileTree {
    /// Calls `found` with each tile that may have bytes of the range, perhaps
    /// more than once. `at` is the range in the node's coordinates, `file` in the file's.
    pub fn visit_tiles(&self, at: OffsetRange, file: OffsetRange, found: &mut impl FnMut(u32)) {
        match self {
            TileTree::Nothing => {}
            TileTree::One(item) => found(*item),
            TileTree::Ranges(ranges) => {
                let first = ranges.bounds.partition_point(|b| b.1 <= at.from);
                for (bounds, node) in ranges.bounds.iter().zip(&ranges.nodes).skip(first) {
                    if bounds.0 >= at.to {
                        break;
                    }
                    let part = OffsetRange { from: at.from.max(bounds.0), to: at.to.min(bounds.1) };
                    node.visit_tiles(part, file, found);
                }
            }
            TileTree::Modulo(modulo) => {
                let (period, len) = (modulo.period, at.to - at.from);
                let from = match at.from % period {
                    rest if rest >= modulo.origin => rest - modulo.origin,
                    rest => rest + (period - modulo.origin),
                };
                if len >= period {
                    return modulo.child.visit_tiles(
                        OffsetRange { from: 0, to: period },
                        file,
                        found,
                    );
                }
                let to = from + len;
                modulo.child.visit_tiles(OffsetRange { from, to: to.min(period) }, file, found);
                if to > period {
                    modulo.child.visit_tiles(OffsetRange { from: 0, to: to - period }, file, found);
                }
            }
            TileTree::Stream(stream) => {
                let from = stream.0.stream_before(file.from).0;
                let to = stream.0.stream_before(file.to).0;
                if from < to {
                    stream.1.visit_tiles(OffsetRange { from, to }, file, found);
                }
            }
            TileTree::Overlay(nodes) => {
                for node in nodes {
                    node.visit_tiles(at, file, found);
                }
            }
            TileTree::Pile(pile) => search_pile(&pile.entries, at, found),
        }
    }
}

impl Pile {
    /// Builds the interval tree of ranges and their tiles.
    pub fn new(mut ranges: Vec<(u64, u64, u32)>) -> Pile {
        ranges.sort_unstable();
        let mut entries: Box<[PileEntry]> =
            ranges.into_iter().map(|(lo, hi, item)| PileEntry { lo, hi, top: hi, item }).collect();
        raise_tops(&mut entries);
        Pile { entries }
    }
}

/// Sets `top` in a stretch, and returns that of its root.
fn raise_tops(entries: &mut [PileEntry]) -> u64 {
    let Some(middle) = entries.len().checked_sub(1).map(|last| last.div_ceil(2)) else { return 0 };
    let below = raise_tops(&mut entries[..middle]);
    let above = raise_tops(&mut entries[middle + 1..]);
    let root = &mut entries[middle];
    root.top = root.hi.max(below).max(above);
    root.top
}

fn search_pile(entries: &[PileEntry], at: OffsetRange, found: &mut impl FnMut(u32)) {
    let Some(middle) = entries.len().checked_sub(1).map(|last| last.div_ceil(2)) else { return };
    let root = entries[middle];
    if root.top <= at.from {
        return;
    }
    search_pile(&entries[..middle], at, found);
    if root.lo < at.to {
        if at.from < root.hi {
            found(root.item);
        }
        search_pile(&entries[middle + 1..], at, found);
    }
}
