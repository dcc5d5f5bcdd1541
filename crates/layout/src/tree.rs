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
pub(crate) enum Node {
    Nothing,
    /// One tile.
    One(u32),
    /// Children in disjoint ranges.
    Ranges(Box<Ranges>),
    /// The child is searched by the remainder.
    Modulo(Box<Modulo>),
    /// All tiles below are of one view, and searched by its stream.
    Stream(Box<(View, Node)>),
    /// Children that may overlap one another.
    Overlay(Box<[Node]>),
    /// Tiles that nothing separates.
    Pile(Box<Pile>),
}

#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    /// Sorted; `bounds[i].1 <= bounds[i + 1].0`.
    pub bounds: Box<[(u64, u64)]>,
    pub nodes: Box<[Node]>,
}

#[derive(Clone, Debug)]
pub(crate) struct Modulo {
    pub period: u64,
    /// Below the period; a place `x` is searched by `(x - origin) mod period`.
    pub origin: u64,
    pub child: Node,
}

/// An interval tree: sorted by lower bound; the middle of a stretch is its root.
#[derive(Clone, Debug)]
pub(crate) struct Pile {
    pub entries: Box<[Entry]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub lo: u64,
    pub hi: u64,
    /// The highest `hi` of the stretch whose root the entry is.
    pub top: u64,
    pub item: u32,
}

/// A half-open range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub from: u64,
    pub to: u64,
}

impl Node {
    /// Calls `found` with each tile that may have bytes of the range, perhaps
    /// more than once. `at` is the range in the node's coordinates, `file` in the file's.
    pub fn visit(&self, at: Range, file: Range, found: &mut impl FnMut(u32)) {
        match self {
            Node::Nothing => {}
            Node::One(item) => found(*item),
            Node::Ranges(ranges) => {
                let first = ranges.bounds.partition_point(|b| b.1 <= at.from);
                for (bounds, node) in ranges.bounds.iter().zip(&ranges.nodes).skip(first) {
                    if bounds.0 >= at.to {
                        break;
                    }
                    let part = Range { from: at.from.max(bounds.0), to: at.to.min(bounds.1) };
                    node.visit(part, file, found);
                }
            }
            Node::Modulo(modulo) => {
                let (period, len) = (modulo.period, at.to - at.from);
                let from = match at.from % period {
                    rest if rest >= modulo.origin => rest - modulo.origin,
                    rest => rest + (period - modulo.origin),
                };
                if len >= period {
                    return modulo.child.visit(Range { from: 0, to: period }, file, found);
                }
                let to = from + len;
                modulo.child.visit(Range { from, to: to.min(period) }, file, found);
                if to > period {
                    modulo.child.visit(Range { from: 0, to: to - period }, file, found);
                }
            }
            Node::Stream(stream) => {
                let from = stream.0.stream_before(file.from).0;
                let to = stream.0.stream_before(file.to).0;
                if from < to {
                    stream.1.visit(Range { from, to }, file, found);
                }
            }
            Node::Overlay(nodes) => {
                for node in nodes {
                    node.visit(at, file, found);
                }
            }
            Node::Pile(pile) => search(&pile.entries, at, found),
        }
    }
}

impl Pile {
    /// Builds the interval tree of ranges and their tiles.
    pub fn new(mut ranges: Vec<(u64, u64, u32)>) -> Pile {
        ranges.sort_unstable();
        let mut entries: Box<[Entry]> =
            ranges.into_iter().map(|(lo, hi, item)| Entry { lo, hi, top: hi, item }).collect();
        raise(&mut entries);
        Pile { entries }
    }
}

/// Sets `top` in a stretch, and returns that of its root.
fn raise(entries: &mut [Entry]) -> u64 {
    let Some(middle) = entries.len().checked_sub(1).map(|last| last.div_ceil(2)) else { return 0 };
    let below = raise(&mut entries[..middle]);
    let above = raise(&mut entries[middle + 1..]);
    let root = &mut entries[middle];
    root.top = root.hi.max(below).max(above);
    root.top
}

fn search(entries: &[Entry], at: Range, found: &mut impl FnMut(u32)) {
    let Some(middle) = entries.len().checked_sub(1).map(|last| last.div_ceil(2)) else { return };
    let root = entries[middle];
    if root.top <= at.from {
        return;
    }
    search(&entries[..middle], at, found);
    if root.lo < at.to {
        if at.from < root.hi {
            found(root.item);
        }
        search(&entries[middle + 1..], at, found);
    }
}
