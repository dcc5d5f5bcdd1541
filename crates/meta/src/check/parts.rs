//! Partitions whose record is lost, and those that their directory does not know.

use super::uncount;
use crate::error::{Failure, Outcome};
use crate::inode::Inode;
use crate::keys::{self, Key, Parsed, tag};
use crate::record::Entry;
use crate::store::Store;
use crate::txn::Txn;
use std::ops::ControlFlow;
use tatami_wire::Ino;
use tatami_wire::mend::{EMPTIED_MAX, PARTED_MAX, Parted};
use tatami_wire::meta::MetaReply;
use tatami_wire::partition::Range;

/// Most records that are read for one answer.
const LOOK_MAX: usize = 256 * 1024;

/// Returns the directories of this node that are split, and the partitions of this node.
pub(crate) fn parts<S: Store>(txn: &Txn<'_, S>, after: Ino) -> Outcome<MetaReply> {
    let (mut parts, mut looked, mut next) = (Vec::new(), 0, None);
    txn.scan(&keys::inode(after), &[tag::INODE], &mut |key, value| {
        let Some(Parsed::Inode(ino)) = keys::parse(key) else {
            return Ok(ControlFlow::Continue(()));
        };
        looked += 1;
        if ino <= after {
            return Ok(ControlFlow::Continue(()));
        }
        if let Ok(inode) = Inode::decode(value)
            && inode.is_parted()
        {
            let changing = txn.state.locks.against_reading(key).is_some();
            parts.push(Parted { ino, range: inode.range, entries: inode.size, changing });
        }
        if parts.len() >= PARTED_MAX || looked >= LOOK_MAX {
            next = Some(ino);
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::Parts { parts, next })
}

/// Makes a new record for a partition.
pub(super) fn make_anew<S: Store>(
    txn: &mut Txn<'_, S>,
    part: Ino,
    range: Range,
    like: Ino,
) -> Outcome<bool> {
    if !range.is_valid() || range.bits == 0 || part == like {
        return Ok(false);
    }
    let unreadable = match txn.find(part) {
        Ok(Some(_)) => return Ok(false),
        Ok(None) => false,
        Err(Failure::Damaged(_)) => true,
        Err(failure) => return Err(failure),
    };
    let Some(other) = txn.find(like)?.filter(|i| i.is_dir() && i.is_parted() && i.nlink > 0) else {
        return Ok(false);
    };
    let map = txn.state.map();
    let dir = map.whole(like, other.range.from);
    let belongs = match range.from {
        0 => other.is_part(),
        from => map.split_off(other.range).iter().any(|range| range.from == from),
    };
    if !belongs || map.partition(dir, range.from) != part || map.directory_of(part) != dir {
        return Ok(false);
    }
    txn.need_room()?;
    let (mut size, mut subdirs) = (0, 0);
    let prefix = keys::of_ino(tag::ENTRY, part);
    // Entries that a transaction is about to write would be counted wrongly.
    txn.may_list(&keys::entries_from(part, 0), &keys::entries_from(part, u64::MAX))?;
    txn.scan(&prefix, &prefix, &mut |_, value| {
        size += 1;
        subdirs += u32::from(Entry::decode(value).is_ok_and(|entry| entry.is_dir()));
        Ok(ControlFlow::Continue(()))
    })?;
    let inode = Inode {
        nlink: 2 + subdirs,
        size,
        version: other.version + 1,
        // The parent of a directory is found by the directory's name.
        parent: if range.from == 0 { Ino(0) } else { dir },
        keepers: 0,
        writers: 0,
        xattr_list: 0,
        xattr_bytes: 0,
        range,
        ..(*other).clone()
    };
    txn.add_part(part, inode);
    if unreadable && range.from == 0 {
        // It was counted.
        txn.correct_count(-1);
    }
    Ok(true)
}

/// Returns entries of a partition, at most [`EMPTIED_MAX`], with their names.
fn some_entries<S: Store>(txn: &Txn<'_, S>, part: Ino) -> Outcome<Vec<(Key, Vec<u8>, Entry)>> {
    let prefix = keys::of_ino(tag::ENTRY, part);
    let mut entries = Vec::new();
    txn.scan(&prefix, &prefix, &mut |key, value| {
        if let Some(Parsed::Entry { name, .. }) = keys::parse(key) {
            entries.push((key.to_vec(), name.to_vec(), Entry::decode(value)?));
        }
        let go_on = entries.len() < EMPTIED_MAX;
        Ok(if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(entries)
}

/// Moves entries of a partition to the partition where its directory has such names; removes it
/// when it has none left.
pub(super) fn empty<S: Store>(txn: &mut Txn<'_, S>, part: Ino) -> Outcome<bool> {
    let Some(inode) = txn.find(part)?.filter(|inode| inode.is_part()) else { return Ok(false) };
    let dir = txn.state.map().whole(part, inode.range.from);
    if txn.find(dir)?.is_none_or(|inode| !inode.is_dir() || inode.nlink == 0) {
        return Ok(false);
    }
    txn.may_list(&keys::entries_from(part, 0), &keys::entries_from(part, u64::MAX))?;
    let entries = some_entries(txn, part)?;
    if entries.is_empty() {
        if txn.part_with(dir, inode.range.from)?.0 == part {
            return Ok(false);
        }
        txn.remove_part(part)?;
        return Ok(true);
    }
    txn.need_room()?;
    for (key, name, entry) in entries {
        let (to, _) = txn.part_of(dir, &name)?;
        if to == part {
            return Ok(false);
        }
        // The directory's own entry wins over a stray one of the same name.
        if txn.entry(to, &name)?.is_none() {
            let new = txn.entry_key(to, &name);
            txn.put(new, entry.encode());
            let to = txn.edit(to)?;
            to.size += 1;
            to.nlink = to.nlink.saturating_add(u32::from(entry.is_dir()));
        }
        txn.delete(key);
        uncount(txn, part, entry.is_dir())?;
    }
    Ok(true)
}
