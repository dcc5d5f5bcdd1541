//! The objects that a file must have, compared with those that exist.

use crate::Tiles;
use std::collections::BTreeMap;
use tatami_wire::{Attr, InodeKind, NodeId, Piece};

/// The location of an object.
pub(super) type ObjectLocation = (NodeId, Piece);

/// Returns the objects that an inode may have, and the least length of each.
pub(super) fn expected_objects(
    attr: &Attr,
    tiles: Option<&Tiles>,
) -> BTreeMap<ObjectLocation, u64> {
    if attr.kind != InodeKind::File {
        return BTreeMap::new();
    }
    // A client changes the object before the inode, so the object is at least as long as the inode
    // says.
    let least = match attr.layout.is_tiled() {
        true => tiles.map_or(0, |tiles| tiles.base_size),
        false => attr.size,
    };
    let base = attr.layout.all_objects().map(|at| (at, least));
    base.chain(tiles.into_iter().flat_map(Tiles::objects)).collect()
}

/// Returns the size of a file with these objects, in bytes.
pub(super) fn file_size(
    attr: &Attr,
    tiles: Option<&Tiles>,
    objects: &BTreeMap<ObjectLocation, u64>,
) -> u64 {
    if attr.layout.is_inline() {
        return attr.size;
    }
    let base = object_size(objects, (attr.layout.node(), attr.layout.base()));
    tiles.map_or(base, |tiles| tiles.size(base))
}

/// Returns objects that are shorter than they must be, with both lengths.
pub(super) fn short_objects<'a>(
    right: &'a BTreeMap<ObjectLocation, u64>,
    objects: &'a BTreeMap<ObjectLocation, u64>,
) -> impl Iterator<Item = (ObjectLocation, u64, u64)> + 'a {
    let lengths = right.iter().map(|(at, least)| (*at, object_size(objects, *at), *least));
    lengths.filter(|(_, len, least)| len < least)
}

/// Returns whether an inode, its tiles and the sizes of its objects agree.
pub(super) fn is_consistent(
    attr: Option<&Attr>,
    tiles: Option<&Tiles>,
    objects: &BTreeMap<ObjectLocation, u64>,
) -> bool {
    match attr {
        Some(attr) if attr.kind == InodeKind::File => {
            let right = expected_objects(attr, tiles);
            objects.keys().all(|at| right.contains_key(at))
                && short_objects(&right, objects).next().is_none()
                && file_size(attr, tiles, objects) == attr.size
        }
        _ => objects.is_empty(),
    }
}

fn object_size(objects: &BTreeMap<ObjectLocation, u64>, at: ObjectLocation) -> u64 {
    objects.get(&at).copied().unwrap_or(0)
}
