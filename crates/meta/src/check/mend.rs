//! Repairs of records that do not agree between nodes, for the client that has compared them. See
//! [`tatami_wire::mend`].
//!
//! Each repair reads all records that it depends on before it writes. It runs like any operation on
//! several nodes: the records that it has read elsewhere are locked, so all of them are current
//! when it takes effect.

use super::{parts, uncount};
use crate::error::{Failure, Outcome};
use crate::inode::Inode;
use crate::keys::{self, Parsed, tag};
use crate::record::Entry;
use crate::store::Store;
use crate::txn::Txn;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::mend::{Mend, NAMED_MAX, Named, Place};
use tatami_wire::meta::{Bytes, MetaReply};
use tatami_wire::partition::Range;
use tatami_wire::{Errno, Ino};

/// Returns the entries of this node that lead to these inodes.
pub(crate) fn names_of<S: Store>(txn: &Txn<'_, S>, inos: &[Ino]) -> Outcome<MetaReply> {
    if inos.len() > NAMED_MAX {
        return Err(Errno::E2BIG.into());
    }
    let wanted: BTreeSet<Ino> = inos.iter().copied().collect();
    let (mut names, mut more) = (Vec::new(), false);
    txn.scan(&[tag::ENTRY], &[tag::ENTRY], &mut |key, value| {
        if let (Some(Parsed::Entry { parent, name, .. }), Ok(Entry { ino, kind })) =
            (keys::parse(key), Entry::decode(value))
            && wanted.contains(&ino)
        {
            more = names.len() >= NAMED_MAX;
            if more {
                return Ok(ControlFlow::Break(()));
            }
            let place = Place { part: parent, name: Bytes::from(name) };
            names.push(Named { ino, kind, place });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::Named { names, more })
}

/// Makes the given repair. Returns whether the records were as described.
pub(crate) fn mend<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, mend: &Mend) -> Outcome<MetaReply> {
    let mended = match mend {
        Mend::Entry(place) => entry(txn, ino, place)?,
        Mend::Unname { place, stays } => unname(txn, ino, place, stays)?,
        Mend::Lies(place) => lies(txn, ino, place)?,
        Mend::Root => ino == Ino::ROOT && set_parent(txn, ino, ino)?,
        Mend::Links { version, nlink } => links(txn, ino, *version, *nlink)?,
        Mend::Twin => twin(txn, ino)?,
        Mend::Remove { version } => remove(txn, ino, *version)?,
        Mend::Rescue { version, lost, from } => rescue(txn, ino, *version, *lost, from.as_ref())?,
        Mend::Part { range, like } => parts::make_anew(txn, ino, *range, *like)?,
        Mend::Empty => parts::empty(txn, ino)?,
    };
    Ok(MetaReply::Mended(mended))
}

/// Returns the inode, if there is one that can have a name.
fn named<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<Option<Arc<Inode>>> {
    match txn.find(ino) {
        Ok(found) => Ok(found.filter(|inode| !inode.is_part())),
        // Of a shard that never existed.
        Err(Failure::Errno(Errno::ESTALE)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Returns the inode, if it has this version.
fn unchanged<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    version: u64,
) -> Outcome<Option<Arc<Inode>>> {
    Ok(named(txn, ino)?.filter(|inode| inode.version == version))
}

/// Returns the entry at this place, if it leads to `ino`.
fn leads<S: Store>(txn: &mut Txn<'_, S>, place: &Place, ino: Ino) -> Outcome<Option<Entry>> {
    Ok(txn.entry(place.part, &place.name)?.filter(|entry| entry.ino == ino))
}

fn entry<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, place: &Place) -> Outcome<bool> {
    let Some(entry) = leads(txn, place, ino)? else { return Ok(false) };
    let key = txn.entry_key(place.part, &place.name);
    match named(txn, ino)? {
        None if entry.is_dir() && has_parts(txn, ino)? => return Err(Errno::ENOTEMPTY.into()),
        None => {
            txn.delete(key);
            uncount(txn, place.part, entry.is_dir())?;
        }
        Some(inode) if inode.kind != entry.kind => {
            let right = Entry { ino, kind: inode.kind };
            txn.put(key, right.encode());
            let dir = txn.edit(place.part)?;
            dir.nlink = dir.nlink.saturating_sub(u32::from(entry.is_dir()));
            dir.nlink = dir.nlink.saturating_add(u32::from(right.is_dir()));
        }
        Some(_) => return Ok(false),
    }
    Ok(true)
}

/// Returns whether a missing directory has partitions besides the first: then its entries are not
/// lost.
fn has_parts<S: Store>(txn: &mut Txn<'_, S>, dir: Ino) -> Outcome<bool> {
    let map = txn.state.map();
    if map.owner(dir.shard()).is_none() || map.directory_of(dir) != dir {
        return Ok(false);
    }
    let Some(bits) = map.finer(0) else { return Ok(false) };
    let ranges = map.parts(Range::ALL, bits).skip(1);
    let parts: Vec<Ino> = ranges.map(|range| map.partition(dir, range.from)).collect();
    txn.need_inodes(&parts)?;
    for part in parts {
        if txn.find(part)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn unname<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, place: &Place, stays: &Place) -> Outcome<bool> {
    let is_dir = named(txn, ino)?.is_some_and(|inode| inode.is_dir());
    // The root needs no name.
    let named = ino == Ino::ROOT || place != stays && leads(txn, stays, ino)?.is_some();
    if !is_dir || !named || leads(txn, place, ino)?.is_none() {
        return Ok(false);
    }
    txn.detach(place.part, &place.name, ino)?;
    Ok(true)
}

fn lies<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, place: &Place) -> Outcome<bool> {
    if ino == Ino::ROOT || leads(txn, place, ino)?.is_none() {
        return Ok(false);
    }
    let dir = txn.state.map().directory_of(place.part);
    set_parent(txn, ino, dir)
}

fn set_parent<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, dir: Ino) -> Outcome<bool> {
    if !named(txn, ino)?.is_some_and(|inode| inode.is_dir() && inode.parent != dir) {
        return Ok(false);
    }
    txn.move_to(ino, dir)?;
    Ok(true)
}

fn links<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, version: u64, nlink: u32) -> Outcome<bool> {
    let Some(inode) = unchanged(txn, ino, version)? else { return Ok(false) };
    // A directory's own node counts its contents.
    let may_be = match inode.is_dir() {
        true => (inode.nlink, nlink) == (0, 2),
        false => nlink > 0 || inode.keepers > 0,
    };
    if !may_be || inode.nlink == nlink {
        return Ok(false);
    }
    txn.edit(ino)?.nlink = nlink;
    Ok(true)
}

fn twin<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<bool> {
    let (home, young) = (keys::inode(ino), keys::young(ino));
    if txn.get(&home)?.is_none() || txn.get(&young)?.is_none() {
        return Ok(false);
    }
    // A relocation deletes the embedded record in the transaction that writes the other one, so
    // the record at the owner shard is the newer one.
    txn.drop_young(ino);
    Ok(true)
}

fn remove<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, version: u64) -> Outcome<bool> {
    let Some(inode) = unchanged(txn, ino, version)? else { return Ok(false) };
    let is_empty = !inode.is_dir() || inode.size == 0 && !inode.is_parted();
    if !inode.is_dead() || !is_empty || ino == Ino::ROOT {
        return Ok(false);
    }
    txn.kill(ino)?;
    Ok(true)
}

fn rescue<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    version: u64,
    lost: Ino,
    from: Option<&Place>,
) -> Outcome<bool> {
    let Some(inode) = unchanged(txn, ino, version)? else { return Ok(false) };
    let name = Mend::lost_name(ino).into_bytes();
    let (part, dir) = txn.part_of(lost, &name)?;
    if ino == Ino::ROOT || ino == lost || !dir.is_dir() || dir.nlink == 0 {
        return Ok(false);
    }
    if txn.entry(part, &name)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    txn.need_room()?;
    match from {
        Some(place) if leads(txn, place, ino)?.is_some() => {
            txn.detach(place.part, &place.name, ino)?;
        }
        Some(_) => return Ok(false),
        // Its link count is wrong: it has no names.
        None if !inode.is_dir() => txn.edit(ino)?.nlink = 0,
        None => {}
    }
    txn.attach(part, &name, ino)?;
    Ok(true)
}
