//! Builds the search tree over tiles, and proves which tiles overlap no other tile.

use std::sync::Arc;

use crate::shape_node::{ShapeList, ShapeNode};
use crate::tile::Tile;
use crate::tree::{ModuloNode, Pile, RangesNode, TileTree};
use crate::view::View;

/// Most parts that tiles may be divided into, beyond one for each tile.
const MAX_PARTS: usize = 1 << 18;
/// A part that repeats no more often than this may be divided into its copies.
const FEW_COPIES: u64 = 4;
/// Most groups of tiles with different strides that the tree keeps apart.
const MAX_GROUPS: usize = 16;

/// Where the bytes of a tile may be, in the coordinates of some node: within `lo .. hi`, and there
/// in the places that `inner` names. It covers all bytes of the tile, and perhaps more.
#[derive(Clone, Debug)]
pub(crate) struct Twig {
    item: u32,
    lo: u64,
    hi: u64,
    inner: TwigPattern,
}

#[derive(Clone, Debug)]
enum TwigPattern {
    /// Anywhere.
    Solid,
    /// In copies of `child`, `count` of them, the first at `phase`.
    Copies { child: ShapeNode, stride: u64, phase: u64, count: u64 },
    /// In the parts of a list at `base`, from number `from` up to `to`.
    Parts { list: Arc<ShapeList>, base: u64, from: usize, to: usize },
}

impl TwigPattern {
    fn from_part(kind: &ShapeNode, at: u64) -> TwigPattern {
        match kind {
            ShapeNode::Run(_) => TwigPattern::Solid,
            ShapeNode::Vector(v) => TwigPattern::Copies {
                child: v.child.clone(),
                stride: v.stride as u64,
                phase: at,
                count: v.count,
            },
            ShapeNode::List(l) => {
                TwigPattern::Parts { list: l.clone(), base: at, from: 0, to: l.parts.len() }
            }
        }
    }

    fn map_origin(&self, to: impl Fn(u64) -> u64) -> TwigPattern {
        let mut new = self.clone();
        match &mut new {
            TwigPattern::Solid => {}
            TwigPattern::Copies { phase, .. } => *phase = to(*phase),
            TwigPattern::Parts { base, .. } => *base = to(*base),
        }
        new
    }

    fn stride(&self) -> Option<u64> {
        match self {
            TwigPattern::Copies { stride, .. } => Some(*stride),
            _ => None,
        }
    }
}

impl Twig {
    /// The bytes of a tile in the file; all of them lie in `lo .. hi`.
    pub fn from_file_range(item: u32, view: &View, tile: &Tile, lo: u64, hi: u64) -> Twig {
        let inner = match view.is_default() {
            true => Twig::from_stream(item, tile).inner.map_origin(|start| view.offset_of(start)),
            false => pattern_of_view(view, tile),
        };
        Twig { item, lo, hi, inner }
    }

    /// The bytes of a tile in the stream of its view.
    fn from_stream(item: u32, tile: &Tile) -> Twig {
        let inner = match tile.is_contiguous() {
            true => TwigPattern::Solid,
            false => TwigPattern::Copies {
                child: ShapeNode::Run(tile.block),
                stride: tile.stride,
                phase: tile.start,
                count: tile.block_count(),
            },
        };
        Twig { item, lo: tile.start, hi: tile.end(), inner }
    }

    /// Divides the twig into its parts, where these are few.
    fn split_parts(&self, budget: &mut usize) -> Option<Vec<Twig>> {
        let mut new = Vec::new();
        let mut add = |kind: &ShapeNode, at: u64| {
            let (lo, hi) = (at.max(self.lo), (at + kind.facts().high as u64).min(self.hi));
            if lo < hi {
                new.push(Twig { item: self.item, lo, hi, inner: TwigPattern::from_part(kind, at) });
            }
        };
        match &self.inner {
            TwigPattern::Parts { list, base, from, to } if to - from <= *budget => {
                *budget -= to - from;
                for part in &list.parts[*from..*to] {
                    add(&part.kind, base + part.disp as u64);
                }
            }
            TwigPattern::Copies { child, stride, phase, count }
                if *count <= FEW_COPIES && *count as usize <= *budget =>
            {
                *budget -= *count as usize;
                for i in 0..*count {
                    add(child, phase + i * stride);
                }
            }
            _ => return None,
        }
        Some(new)
    }
}

/// Returns the structure of the part of a view that a tile spans.
fn pattern_of_view(view: &View, tile: &Tile) -> TwigPattern {
    let (kind, mut at, period) = view.simplest_form();
    let (mut first, mut last) = (tile.start, tile.end() - 1);
    let size = kind.size();
    let (from, to) = (first / size, last / size);
    // Descend while the tile lies within one copy or one part, so that the structure is the
    // tightest one.
    at += from * period;
    if from != to {
        let count = to - from + 1;
        return TwigPattern::Copies { child: kind.clone(), stride: period, phase: at, count };
    }
    (first, last) = (first % size, last % size);
    let mut kind = kind;
    loop {
        match kind {
            ShapeNode::Run(_) => return TwigPattern::Solid,
            ShapeNode::Vector(v) => {
                let (size, stride) = (v.child.size(), v.stride as u64);
                let (from, to) = (first / size, last / size);
                at += from * stride;
                if from != to {
                    let count = to - from + 1;
                    return TwigPattern::Copies {
                        child: v.child.clone(),
                        stride,
                        phase: at,
                        count,
                    };
                }
                (first, last, kind) = (first % size, last % size, &v.child);
            }
            ShapeNode::List(l) => {
                let part = |k: u64| l.parts.partition_point(|p| p.start <= k) - 1;
                let (from, to) = (part(first), part(last));
                if from != to {
                    return TwigPattern::Parts { list: l.clone(), base: at, from, to: to + 1 };
                }
                let one = &l.parts[from];
                at += one.disp as u64;
                (first, last, kind) = (first - one.start, last - one.start, &one.kind);
            }
        }
    }
}

/// A tree being built.
pub(crate) struct TileTreeBuilder<'a> {
    /// View (by a number that equal views share) and tile of each item.
    pub items: &'a dyn Fn(u32) -> (u32, View, Tile),
    /// By item: whether the tree never holds it together with another one.
    pub alone: Vec<bool>,
    budget: usize,
}

/// Where in the tree a node is built.
#[derive(Clone, Copy)]
struct NodePosition {
    /// Nothing beside the node may overlap it.
    alone: bool,
    /// Coordinates are those of a view's stream.
    stream: bool,
    /// How many more groups may be kept apart.
    groups: usize,
}

impl<'a> TileTreeBuilder<'a> {
    pub fn new(items: &'a dyn Fn(u32) -> (u32, View, Tile), count: usize) -> TileTreeBuilder<'a> {
        TileTreeBuilder { items, alone: vec![true; count], budget: MAX_PARTS }
    }

    pub fn build_tree(&mut self, twigs: Vec<Twig>) -> TileTree {
        self.build_node(twigs, NodePosition { alone: true, stream: false, groups: MAX_GROUPS })
    }

    fn build_node(&mut self, mut twigs: Vec<Twig>, place: NodePosition) -> TileTree {
        let Some(first) = twigs.first() else { return TileTree::Nothing };
        let item = first.item;
        if twigs.iter().all(|t| t.item == item) {
            if !place.alone {
                self.alone[item as usize] = false;
            }
            return TileTree::One(item);
        }
        // The order of the attempts matters: ranges are the cheapest to search, the stream comes
        // next, then the remainder. Only then are twigs divided, because parts use up the budget.
        twigs.sort_unstable_by_key(|t| t.lo);
        let ends = component_ends(&twigs);
        if ends.len() > 1 {
            return self.build_ranges(twigs, &ends, place);
        }
        if !place.stream
            && let Some(node) = self.build_stream(&twigs, place)
        {
            return node;
        }
        if let Some(node) = self.build_modulo(&twigs, place) {
            return node;
        }
        if self.divide_twigs(&mut twigs) {
            return self.build_node(twigs, place);
        }
        self.build_groups(twigs, place)
    }

    fn build_ranges(
        &mut self,
        mut twigs: Vec<Twig>,
        ends: &[usize],
        place: NodePosition,
    ) -> TileTree {
        let mut bounds = Vec::with_capacity(ends.len());
        let mut nodes = Vec::with_capacity(ends.len());
        let mut parts = Vec::with_capacity(ends.len());
        for &end in ends.iter().rev().skip(1) {
            parts.push(twigs.split_off(end));
        }
        parts.push(twigs);
        for part in parts.into_iter().rev() {
            let hi = part.iter().map(|t| t.hi).max().unwrap_or(0);
            bounds.push((part[0].lo, hi));
            nodes.push(self.build_node(part, place));
        }
        TileTree::Ranges(Box::new(RangesNode { bounds: bounds.into(), nodes: nodes.into() }))
    }

    /// Searches by the stream where all tiles are of one view: the stream separates them best.
    fn build_stream(&mut self, twigs: &[Twig], place: NodePosition) -> Option<TileTree> {
        let (number, view, _) = (self.items)(twigs[0].item);
        if view.is_default() || twigs.iter().any(|t| (self.items)(t.item).0 != number) {
            return None;
        }
        let mut items: Vec<u32> = twigs.iter().map(|t| t.item).collect();
        items.sort_unstable();
        items.dedup();
        let twigs = items.iter().map(|&i| Twig::from_stream(i, &(self.items)(i).2)).collect();
        let child = self.build_node(twigs, NodePosition { stream: true, ..place });
        Some(TileTree::Stream(Box::new((view, child))))
    }

    /// Searches by the remainder where most twigs repeat with one stride and the others fit into
    /// it. The remainder separates them, or else the next stride further in.
    fn build_modulo(&mut self, twigs: &[Twig], place: NodePosition) -> Option<TileTree> {
        let period = twigs.iter().filter_map(|t| t.inner.stride()).max()?;
        let repeat = twigs.iter().filter(|t| t.inner.stride() == Some(period)).count();
        if repeat * 2 < twigs.len() {
            return None;
        }
        let mut arcs = Vec::with_capacity(twigs.len());
        for twig in twigs {
            arcs.push(match &twig.inner {
                TwigPattern::Copies { child, stride, phase, .. } if *stride == period => {
                    (phase % period, child.facts().high as u64)
                }
                _ => (twig.lo % period, twig.hi - twig.lo),
            });
        }
        let origin = find_gap(&arcs, period)?;
        let turned = |at: u64| match at % period {
            rest if rest >= origin => rest - origin,
            rest => rest + (period - origin),
        };
        let inside = twigs.iter().zip(&arcs).map(|(twig, &(_, span))| match &twig.inner {
            TwigPattern::Copies { child, stride, phase, .. } if *stride == period => {
                let lo = turned(*phase);
                Twig {
                    item: twig.item,
                    lo,
                    hi: lo + span,
                    inner: TwigPattern::from_part(child, lo),
                }
            }
            // The structure may begin before the range does, and then on the other side of the
            // origin. There it is given up: "anywhere" is always true.
            inner => {
                let lo = turned(twig.lo);
                let moved = |at: u64| (lo + at).checked_sub(twig.lo);
                let inner = match inner {
                    TwigPattern::Copies { phase, .. } if moved(*phase).is_none() => {
                        TwigPattern::Solid
                    }
                    TwigPattern::Parts { base, .. } if moved(*base).is_none() => TwigPattern::Solid,
                    inner => inner.map_origin(|at| moved(at).unwrap_or(lo)),
                };
                Twig { item: twig.item, lo, hi: lo + span, inner }
            }
        });
        let child = self.build_node(inside.collect(), place);
        Some(TileTree::Modulo(Box::new(ModuloNode { period, origin, child })))
    }

    /// Divides twigs that have few parts. Returns whether any was divided.
    fn divide_twigs(&mut self, twigs: &mut Vec<Twig>) -> bool {
        let mut new = Vec::new();
        let mut any = false;
        for twig in twigs.drain(..) {
            match twig.split_parts(&mut self.budget) {
                Some(parts) => {
                    any = true;
                    new.extend(parts);
                }
                None => new.push(twig),
            }
        }
        *twigs = new;
        any
    }

    /// Separates the twigs with the longest stride from the others. Twigs without strides become a
    /// pile.
    fn build_groups(&mut self, twigs: Vec<Twig>, place: NodePosition) -> TileTree {
        let stride = twigs.iter().filter_map(|t| t.inner.stride()).max();
        // The groups may overlap one another, so no tile below is proved to be alone.
        let place = NodePosition { alone: false, groups: place.groups.saturating_sub(1), ..place };
        let (long, others): (Vec<Twig>, Vec<Twig>) =
            twigs.into_iter().partition(|t| stride.is_some() && t.inner.stride() == stride);
        if long.is_empty() || others.is_empty() || place.groups == 0 {
            let ranges = long.iter().chain(&others).map(|t| {
                self.alone[t.item as usize] = false;
                (t.lo, t.hi, t.item)
            });
            return TileTree::Pile(Box::new(Pile::new(ranges.collect())));
        }
        TileTree::Overlay([self.build_node(long, place), self.build_node(others, place)].into())
    }
}

/// Returns where each connected part of sorted ranges ends.
fn component_ends(twigs: &[Twig]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut hi = 0;
    for (i, twig) in twigs.iter().enumerate() {
        if i > 0 && twig.lo >= hi {
            ends.push(i);
        }
        hi = hi.max(twig.hi);
    }
    ends.push(twigs.len());
    ends
}

/// Returns a place where a circle of length `period` may be cut without cutting an arc (place,
/// length).
fn find_gap(arcs: &[(u64, u64)], period: u64) -> Option<u64> {
    if arcs.iter().any(|a| a.1 > period) {
        return None;
    }
    let mut sorted = arcs.to_vec();
    sorted.sort_unstable();
    let around = sorted.iter().map(|a| (a.0 + a.1).saturating_sub(period)).max()?;
    let mut end = around;
    for &(at, span) in &sorted {
        if at >= end {
            return Some(at);
        }
        end = end.max(at + span);
    }
    None
}
