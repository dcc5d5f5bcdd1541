//! Patterns of patterns: tiles that together form one nested shape are stored as that shape.
//!
//! A tile has one level of repetition. A program that writes the rows of many planes at explicit
//! offsets leaves a tile for each plane. Together these tiles are one view, and the encoding stores
//! that view.

use crate::shape::Shape;
use crate::shape_node::{ShapeBody, ShapeError, ShapeNode};
use crate::tile::{MAX_VIEWS, Tile};
use crate::tile_code::encode_tile;
use crate::view::View;

/// Fewer tiles than this are left as they are.
const FEW: usize = 4;

/// Returns the same bytes at the same places with fewer tiles; `None` where that would take more
/// than half the bytes.
pub(crate) fn compact_tiles(views: &[View], tiles: &[Tile]) -> Option<(Vec<View>, Vec<Tile>)> {
    let mut new = (views.to_vec(), Vec::new());
    let mut rest = tiles;
    while let Some(first) = rest.first() {
        let view = &views[first.view as usize];
        let alike = match view.is_default() {
            true => {
                1 + rest.windows(2).take_while(|pair| continues_tile(&pair[0], &pair[1])).count()
            }
            false => 1,
        };
        let (group, others) = rest.split_at(alike);
        match fold_tiles(view, group, new.0.len()) {
            Some((view, tile)) => {
                new.0.push(view);
                new.1.push(tile);
            }
            None => new.1.extend(group),
        }
        rest = others;
    }
    (new.1.len() < tiles.len()).then_some(new)
}

/// Reports whether the second tile continues the first in view and piece.
fn continues_tile(first: &Tile, then: &Tile) -> bool {
    first.stamp == then.stamp
        && first.view == then.view
        && first.at + first.len == then.at
        && first.end() <= then.start
}

fn fold_tiles(view: &View, group: &[Tile], views: usize) -> Option<(View, Tile)> {
    if group.len() < FEW || views >= MAX_VIEWS {
        return None;
    }
    let (first, last) = (group.first()?, group.last()?);
    let disp = view.offset_of(first.start);
    let extent = view.offset_of(last.end() - 1) + 1 - disp;
    let body = ShapeBody::from_parts(shape_parts(group).ok()?).ok()?;
    let shape = Shape::from_body(0, i64::try_from(extent).ok()?, body).ok()?;
    let new = View::new(disp, 1, shape).ok()?;
    let len = group.iter().map(|t| t.len).sum();
    let tile = Tile::contiguous(first.stamp, u32::try_from(views).ok()?, 0, len, first.at);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for pair in group.windows(2) {
        encode_tile(&mut before, &pair[1], &pair[0]);
    }
    new.encode(&mut after);
    (after.len() * 2 <= before.len()).then_some((new, tile))
}

/// Returns the tiles as parts of a shape that begins with the first tile.
fn shape_parts(group: &[Tile]) -> Result<Vec<ShapeBody>, ShapeError> {
    let mut parts = Vec::with_capacity(group.len());
    for tile in group {
        let disp = tile.start - group[0].start;
        let place = |disp: u64, kind: ShapeNode| ShapeBody { disp: 0, kind }.shift_by(disp as i64);
        // Two blocks are only a guess from the last write, so they enter the pattern one by one.
        if tile.is_contiguous() || tile.block_count() == 2 {
            for (start, len, _) in tile.stream_runs(0, tile.len) {
                parts.push(place(start - group[0].start, ShapeNode::Run(len))?);
            }
            continue;
        }
        let (whole, rest) = (tile.len / tile.block, tile.len % tile.block);
        parts
            .push(place(disp, ShapeNode::Run(tile.block).repeat_part(whole, tile.stride as i64)?)?);
        if rest > 0 {
            parts.push(place(disp + whole * tile.stride, ShapeNode::Run(rest))?);
        }
    }
    Ok(parts)
}
