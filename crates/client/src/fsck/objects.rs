//! Which objects a file has, and whether those that are there are these.

use crate::Tiles;
use std::collections::BTreeMap;
use tatami_wire::{Attr, Kind, NodeId, Piece};

/// Where an object is.
pub(super) type At = (NodeId, Piece);

/// The objects that an inode may have, and how long each is at least.
pub(super) fn right(attr: &Attr, tiles: Option<&Tiles>) -> BTreeMap<At, u64> {
    if attr.kind != Kind::File {
        return BTreeMap::new();
    }
    // Who changes a file changes the object first, so it is as long as the inode says, at least.
    let least = match attr.layout.is_tiled() {
        true => tiles.map_or(0, |tiles| tiles.base_size),
        false => attr.size,
    };
    let base = attr.layout.pieces().map(|at| (at, least));
    base.chain(tiles.into_iter().flat_map(Tiles::objects)).collect()
}

/// The size of a file with these objects, in bytes.
pub(super) fn size(attr: &Attr, tiles: Option<&Tiles>, objects: &BTreeMap<At, u64>) -> u64 {
    let base = attr.layout.file_size(|node, piece| size_of(objects, (node, piece)));
    tiles.map_or(base, |tiles| tiles.size(base))
}

/// Objects that are shorter than what the tiles say of them, with both lengths.
pub(super) fn short<'a>(
    right: &'a BTreeMap<At, u64>,
    objects: &'a BTreeMap<At, u64>,
) -> impl Iterator<Item = (At, u64, u64)> + 'a {
    let lengths = right.iter().map(|(at, least)| (*at, size_of(objects, *at), *least));
    lengths.filter(|(_, len, least)| len < least)
}

/// Whether an inode, its tiles and the sizes of its objects agree.
pub(super) fn fits(
    attr: Option<&Attr>,
    tiles: Option<&Tiles>,
    objects: &BTreeMap<At, u64>,
) -> bool {
    match attr {
        Some(attr) if attr.kind == Kind::File => {
            let right = right(attr, tiles);
            objects.keys().all(|at| right.contains_key(at))
                && short(&right, objects).next().is_none()
                && size(attr, tiles, objects) == attr.size
        }
        _ => objects.is_empty(),
    }
}

fn size_of(objects: &BTreeMap<At, u64>, at: At) -> u64 {
    objects.get(&at).copied().unwrap_or(0)
}
