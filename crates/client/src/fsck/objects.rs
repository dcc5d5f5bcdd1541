//! The objects that a file must have, compared with those that exist.

use crate::Tiles;
use std::collections::BTreeMap;
use tatami_wire::{Attr, Kind, NodeId, Piece};

/// The location of an object.
pub(super) type At = (NodeId, Piece);

/// Returns the objects that an inode may have, and the least length of each.
pub(super) fn right(attr: &Attr, tiles: Option<&Tiles>) -> BTreeMap<At, u64> {
    if attr.kind != Kind::File {
        return BTreeMap::new();
    }
    // A client changes the object before the inode, so the object is at least as long as the inode
    // says.
    let least = match attr.layout.is_tiled() {
        true => tiles.map_or(0, |tiles| tiles.base_size),
        false => attr.size,
    };
    let base = attr.layout.pieces().map(|at| (at, least));
    base.chain(tiles.into_iter().flat_map(Tiles::objects)).collect()
}

/// Returns the size of a file with these objects, in bytes.
pub(super) fn size(attr: &Attr, tiles: Option<&Tiles>, objects: &BTreeMap<At, u64>) -> u64 {
    let base = attr.layout.file_size(|node, piece| size_of(objects, (node, piece)));
    tiles.map_or(base, |tiles| tiles.size(base))
}

/// Returns objects that are shorter than they must be, with both lengths.
pub(super) fn short<'a>(
    right: &'a BTreeMap<At, u64>,
    objects: &'a BTreeMap<At, u64>,
) -> impl Iterator<Item = (At, u64, u64)> + 'a {
    let lengths = right.iter().map(|(at, least)| (*at, size_of(objects, *at), *least));
    lengths.filter(|(_, len, least)| len < least)
}

/// Returns whether an inode, its tiles and the sizes of its objects agree.
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
