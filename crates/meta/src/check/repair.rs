//! Repairs of records that do not agree between nodes, for the client that has compared them. See
//! [`tatami_wire::mend`].
//!
//! Each repair reads all records that it depends on before it writes. It runs like any operation on
//! several nodes: the records that it has read elsewhere are locked, so all of them are current
//! when it takes effect.

use crate::check::parts;
use crate::check::problem::uncount_entry;
use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, tag};
use crate::operation::Txn;
use crate::record::EntryRecord;
use crate::store::Store;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::meta::{Bytes, MetaReply};
use tatami_wire::partition::HashRange;
use tatami_wire::repair::{EntryLocation, LOCATED_ENTRIES_MAX, LocatedEntry, Repair};
use tatami_wire::{Errno, Ino};

/// Returns the entries of this node that lead to these inodes.
pub(crate) fn list_names_of<S: Store>(txn: &Txn<'_, S>, inos: &[Ino]) -> MetaOutcome<MetaReply> {
    if inos.len() > LOCATED_ENTRIES_MAX {
        return Err(Errno::E2BIG.into());
    }
    let wanted: BTreeSet<Ino> = inos.iter().copied().collect();
    let (mut names, mut more) = (Vec::new(), false);
    txn.scan_records(&[tag::ENTRY], &[tag::ENTRY], &mut |key, value| {
        if let (Some(ParsedKey::Entry { parent, name, .. }), Ok(EntryRecord { ino, kind })) =
            (keys::parse(key), EntryRecord::decode(value))
            && wanted.contains(&ino)
        {
            more = names.len() >= LOCATED_ENTRIES_MAX;
            if more {
                return Ok(ControlFlow::Break(()));
            }
            let place = EntryLocation { partition: parent, name: Bytes::from(name) };
            names.push(LocatedEntry { ino, kind, location: place });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::LocatedEntries { names, more })
}

/// Makes the given repair. Returns whether the records were as described.
pub(crate) fn repair_records<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    mend: &Repair,
) -> MetaOutcome<MetaReply> {
    let mended = match mend {
        Repair::FixEntry(place) => repair_entry(txn, ino, place)?,
        Repair::RemoveDuplicateEntry { place, stays } => remove_extra_name(txn, ino, place, stays)?,
        Repair::SetBackPointer(place) => repair_parent(txn, ino, place)?,
        Repair::FixRoot => ino == Ino::ROOT && set_parent(txn, ino, ino)?,
        Repair::SetLinkCount { version, nlink } => repair_link_count(txn, ino, *version, *nlink)?,
        Repair::RemoveDuplicateRecord => remove_duplicate(txn, ino)?,
        Repair::RemoveInode { version } => remove_unused(txn, ino, *version)?,
        Repair::MoveToLostFound { version, lost, from } => {
            move_to_lost_found(txn, ino, *version, *lost, from.as_ref())?
        }
        Repair::RecreatePartition { range, like } => {
            parts::recreate_partition(txn, ino, *range, *like)?
        }
        Repair::EmptyPartition => parts::empty_partition(txn, ino)?,
    };
    Ok(MetaReply::Repaired(mended))
}

/// Returns the inode, if there is one that can have a name.
fn find_nameable<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
    match txn.find_inode(ino) {
        Ok(found) => Ok(found.filter(|inode| !inode.is_later_partition())),
        // Of a shard that never existed.
        Err(OperationFailure::Errno(Errno::ESTALE)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Returns the inode, if it has this version.
fn find_unchanged<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    version: u64,
) -> MetaOutcome<Option<Arc<Inode>>> {
    Ok(find_nameable(txn, ino)?.filter(|inode| inode.version == version))
}

/// Returns the entry at this place, if it leads to `ino`.
fn find_entry_to<S: Store>(
    txn: &mut Txn<'_, S>,
    place: &EntryLocation,
    ino: Ino,
) -> MetaOutcome<Option<EntryRecord>> {
    Ok(txn.load_entry(place.partition, &place.name)?.filter(|entry| entry.ino == ino))
}

fn repair_entry<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    place: &EntryLocation,
) -> MetaOutcome<bool> {
    let Some(entry) = find_entry_to(txn, place, ino)? else { return Ok(false) };
    let key = txn.entry_key(place.partition, &place.name);
    match find_nameable(txn, ino)? {
        None if entry.is_dir() && has_partitions(txn, ino)? => return Err(Errno::ENOTEMPTY.into()),
        None => {
            txn.delete_record(key);
            uncount_entry(txn, place.partition, entry.is_dir())?;
        }
        Some(inode) if inode.kind != entry.kind => {
            let right = EntryRecord { ino, kind: inode.kind };
            txn.put_record(key, right.encode());
            let dir = txn.edit_inode(place.partition)?;
            dir.nlink = dir.nlink.saturating_sub(u32::from(entry.is_dir()));
            dir.nlink = dir.nlink.saturating_add(u32::from(right.is_dir()));
        }
        Some(_) => return Ok(false),
    }
    Ok(true)
}

/// Returns whether a missing directory has partitions besides the first: then its entries are not
/// lost.
fn has_partitions<S: Store>(txn: &mut Txn<'_, S>, dir: Ino) -> MetaOutcome<bool> {
    let map = txn.state.map();
    if map.owner(dir.owner_shard()).is_none() || map.directory_of(dir) != dir {
        return Ok(false);
    }
    let Some(bits) = map.bits_after_split(0) else { return Ok(false) };
    let ranges = map.split_range(HashRange::ALL, bits).skip(1);
    let parts: Vec<Ino> = ranges.map(|range| map.partition_number(dir, range.from)).collect();
    txn.require_inodes(&parts)?;
    for part in parts {
        if txn.find_inode(part)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn remove_extra_name<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    place: &EntryLocation,
    stays: &EntryLocation,
) -> MetaOutcome<bool> {
    let is_dir = find_nameable(txn, ino)?.is_some_and(|inode| inode.is_dir());
    // The root needs no name.
    let named = ino == Ino::ROOT || place != stays && find_entry_to(txn, stays, ino)?.is_some();
    if !is_dir || !named || find_entry_to(txn, place, ino)?.is_none() {
        return Ok(false);
    }
    txn.detach_entry(place.partition, &place.name, ino)?;
    Ok(true)
}

fn repair_parent<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    place: &EntryLocation,
) -> MetaOutcome<bool> {
    if ino == Ino::ROOT || find_entry_to(txn, place, ino)?.is_none() {
        return Ok(false);
    }
    let dir = txn.state.map().directory_of(place.partition);
    set_parent(txn, ino, dir)
}

fn set_parent<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, dir: Ino) -> MetaOutcome<bool> {
    if !find_nameable(txn, ino)?.is_some_and(|inode| inode.is_dir() && inode.parent != dir) {
        return Ok(false);
    }
    txn.move_to(ino, dir)?;
    Ok(true)
}

fn repair_link_count<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    version: u64,
    nlink: u32,
) -> MetaOutcome<bool> {
    let Some(inode) = find_unchanged(txn, ino, version)? else { return Ok(false) };
    // A directory's own node counts its contents.
    let may_be = match inode.is_dir() {
        true => (inode.nlink, nlink) == (0, 2),
        false => nlink > 0 || inode.keepers > 0,
    };
    if !may_be || inode.nlink == nlink {
        return Ok(false);
    }
    txn.edit_inode(ino)?.nlink = nlink;
    Ok(true)
}

fn remove_duplicate<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<bool> {
    let (home, young) = (keys::inode(ino), keys::embedded_dir(ino));
    if txn.get(&home)?.is_none() || txn.get(&young)?.is_none() {
        return Ok(false);
    }
    // A relocation deletes the embedded record in the transaction that writes the other one, so
    // the record at the owner shard is the newer one.
    txn.drop_embedded(ino);
    Ok(true)
}

fn remove_unused<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, version: u64) -> MetaOutcome<bool> {
    let Some(inode) = find_unchanged(txn, ino, version)? else { return Ok(false) };
    let is_empty = !inode.is_dir() || inode.size == 0 && !inode.is_partitioned();
    if !inode.is_unreferenced() || !is_empty || ino == Ino::ROOT {
        return Ok(false);
    }
    txn.remove_inode(ino)?;
    Ok(true)
}

fn move_to_lost_found<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    version: u64,
    lost: Ino,
    from: Option<&EntryLocation>,
) -> MetaOutcome<bool> {
    let Some(inode) = find_unchanged(txn, ino, version)? else { return Ok(false) };
    let name = Repair::lost_name(ino).into_bytes();
    let (part, dir) = txn.partition_of_name(lost, &name)?;
    if ino == Ino::ROOT || ino == lost || !dir.is_dir() || dir.nlink == 0 {
        return Ok(false);
    }
    if txn.load_entry(part, &name)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    txn.require_room()?;
    match from {
        Some(place) if find_entry_to(txn, place, ino)?.is_some() => {
            txn.detach_entry(place.partition, &place.name, ino)?;
        }
        Some(_) => return Ok(false),
        // Its link count is wrong: it has no names.
        None if !inode.is_dir() => txn.edit_inode(ino)?.nlink = 0,
        None => {}
    }
    txn.attach_entry(part, &name, ino)?;
    Ok(true)
}
