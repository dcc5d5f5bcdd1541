//! Partitions whose record is lost, and those that their directory does not know.

use crate::check::problem::uncount_entry;
use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::record::EntryRecord;
use crate::store::Store;
use std::ops::ControlFlow;
use tatami_wire::Ino;
use tatami_wire::meta::MetaReply;
use tatami_wire::partition::HashRange;
use tatami_wire::repair::{EMPTIED_MAX, PARTITION_RECORDS_MAX, PartitionRecord};

/// Most records that are read for one answer.
const LOOK_MAX: usize = 256 * 1024;

/// Returns the directories of this node that are split, and the partitions of this node.
pub(crate) fn list_partitioned<S: Store>(txn: &Txn<'_, S>, after: Ino) -> MetaOutcome<MetaReply> {
    let (mut parts, mut looked, mut next) = (Vec::new(), 0, None);
    txn.scan_records(&keys::inode(after), &[tag::INODE], &mut |key, value| {
        let Some(ParsedKey::Inode(ino)) = keys::parse(key) else {
            return Ok(ControlFlow::Continue(()));
        };
        looked += 1;
        if ino <= after {
            return Ok(ControlFlow::Continue(()));
        }
        if let Ok(inode) = Inode::decode(value)
            && inode.is_partitioned()
        {
            let changing = txn.state.locks.read_blocker(key).is_some();
            parts.push(PartitionRecord { ino, range: inode.range, entries: inode.size, changing });
        }
        if parts.len() >= PARTITION_RECORDS_MAX || looked >= LOOK_MAX {
            next = Some(ino);
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::PartitionRecords { parts, next })
}

/// Makes a new record for a partition.
pub(super) fn recreate_partition<S: Store>(
    txn: &mut Txn<'_, S>,
    part: Ino,
    range: HashRange,
    like: Ino,
) -> MetaOutcome<bool> {
    if !range.is_valid() || range.bits == 0 || part == like {
        return Ok(false);
    }
    let unreadable = match txn.find_inode(part) {
        Ok(Some(_)) => return Ok(false),
        Ok(None) => false,
        Err(OperationFailure::Damaged(_)) => true,
        Err(failure) => return Err(failure),
    };
    let Some(other) =
        txn.find_inode(like)?.filter(|i| i.is_dir() && i.is_partitioned() && i.nlink > 0)
    else {
        return Ok(false);
    };
    let map = txn.state.map();
    let dir = map.directory_of_range(like, other.range.from);
    let belongs = match range.from {
        0 => other.is_later_partition(),
        from => map.split_off_ranges(other.range).iter().any(|range| range.from == from),
    };
    if !belongs || map.partition_number(dir, range.from) != part || map.directory_of(part) != dir {
        return Ok(false);
    }
    txn.require_room()?;
    let (mut size, mut subdirs) = (0, 0);
    let prefix = keys::inode_prefix(tag::ENTRY, part);
    // Entries that a transaction is about to write would be counted wrongly.
    txn.check_listable(&keys::entries_from(part, 0), &keys::entries_from(part, u64::MAX))?;
    txn.scan_records(&prefix, &prefix, &mut |_, value| {
        size += 1;
        subdirs += u32::from(EntryRecord::decode(value).is_ok_and(|entry| entry.is_dir()));
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
    txn.add_partition(part, inode);
    if unreadable && range.from == 0 {
        // It was counted.
        txn.correct_count(-1);
    }
    Ok(true)
}

/// Returns entries of a partition, at most [`EMPTIED_MAX`], with their names.
fn take_entries<S: Store>(
    txn: &Txn<'_, S>,
    part: Ino,
) -> MetaOutcome<Vec<(RecordKey, Vec<u8>, EntryRecord)>> {
    let prefix = keys::inode_prefix(tag::ENTRY, part);
    let mut entries = Vec::new();
    txn.scan_records(&prefix, &prefix, &mut |key, value| {
        if let Some(ParsedKey::Entry { name, .. }) = keys::parse(key) {
            entries.push((key.to_vec(), name.to_vec(), EntryRecord::decode(value)?));
        }
        let go_on = entries.len() < EMPTIED_MAX;
        Ok(if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(entries)
}

/// Moves entries of a partition to the partition where its directory has such names; removes it
/// when it has none left.
pub(super) fn empty_partition<S: Store>(txn: &mut Txn<'_, S>, part: Ino) -> MetaOutcome<bool> {
    let Some(inode) = txn.find_inode(part)?.filter(|inode| inode.is_later_partition()) else {
        return Ok(false);
    };
    let dir = txn.state.map().directory_of_range(part, inode.range.from);
    if txn.find_inode(dir)?.is_none_or(|inode| !inode.is_dir() || inode.nlink == 0) {
        return Ok(false);
    }
    txn.check_listable(&keys::entries_from(part, 0), &keys::entries_from(part, u64::MAX))?;
    let entries = take_entries(txn, part)?;
    if entries.is_empty() {
        if txn.partition_of_hash(dir, inode.range.from)?.0 == part {
            return Ok(false);
        }
        txn.remove_partition(part)?;
        return Ok(true);
    }
    txn.require_room()?;
    for (key, name, entry) in entries {
        let (to, _) = txn.partition_of_name(dir, &name)?;
        if to == part {
            return Ok(false);
        }
        // The directory's own entry wins over a stray one of the same name.
        if txn.load_entry(to, &name)?.is_none() {
            let new = txn.entry_key(to, &name);
            txn.put_record(new, entry.encode());
            let to = txn.edit_inode(to)?;
            to.size += 1;
            to.nlink = to.nlink.saturating_add(u32::from(entry.is_dir()));
        }
        txn.delete_record(key);
        uncount_entry(txn, part, entry.is_dir())?;
    }
    Ok(true)
}
