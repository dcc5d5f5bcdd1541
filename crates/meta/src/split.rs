//! Splits a partition of a directory (GIGA+), and lists the partitions.

use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, tag};
use crate::operation::Txn;
use crate::record::EntryRecord;
use crate::store::Store;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_wire::meta::{MetaReply, PartitionInfo};
use tatami_wire::partition::HashRange;
use tatami_wire::{Errno, Ino, InodeKind};

/// Most bytes of entries that are moved at once: the partition is locked meanwhile.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most that an entry takes in a message besides its name.
const ENTRY_BYTES: usize = 48;

/// The entries of one new partition.
#[derive(Default)]
struct PartitionShare {
    entries: Vec<(u64, Vec<u8>, EntryRecord)>,
    subdirs: u32,
}

/// Splits a partition with more entries than `above`: most of them move to new partitions on other
/// shards. Their inodes stay where they are.
pub(crate) fn split_partition<S: Store>(
    txn: &mut Txn<'_, S>,
    part: Ino,
    above: u64,
) -> MetaOutcome<MetaReply> {
    let inode = txn.load_inode(part)?;
    let range = inode.range;
    let is_open = inode.is_dir() && inode.nlink > 0 && inode.size > above;
    let Some(bits) = txn.state.map().bits_after_split(range.bits).filter(|_| is_open) else {
        return Ok(MetaReply::Done);
    };
    // The partition has moved, or all its shards are on one node: then a split gains nothing.
    if !txn.is_here(part) || !txn.state.map().spans_nodes(part, range) {
        return Ok(MetaReply::Done);
    }
    let dir = txn.whole_directory(part, &inode);
    let ranges: Vec<_> = txn.state.map().split_range(range, bits).collect();
    // Before the entries are read: the executors of the new partitions answer in a later round, and
    // then all of this runs again.
    let number = |range: &HashRange| txn.state.map().partition_number(dir, range.from);
    let others: Vec<_> = ranges.iter().skip(1).map(number).collect();
    txn.require_inodes(&others)?;
    // Entries that a transaction is about to change must not move: wait for it.
    txn.check_listable(&keys::entries_from(part, 0), &keys::entries_from(part, u64::MAX))?;
    let Some(shares) = collect_shares(txn, part, bits)? else { return Ok(MetaReply::Done) };
    let mut left = (inode.size, inode.nlink);
    // The first range stays in the old partition.
    for range in ranges.into_iter().skip(1) {
        let share = shares.get(&range.from);
        let to = txn.state.map().partition_number(dir, range.from);
        let (size, subdirs) = share.map_or((0, 0), |s| (s.entries.len() as u64, s.subdirs));
        left = (left.0.saturating_sub(size), left.1.saturating_sub(subdirs));
        txn.add_partition(to, new_partition(&inode, dir, range, size, subdirs));
        for (hash, name, entry) in share.map_or(&[][..], |share| &share.entries) {
            txn.delete_record(keys::entry(part, *hash, name));
            txn.put_record(keys::entry(to, *hash, name), entry.encode());
        }
    }
    // The new range, in the old partition's record, sends clients on to the new partitions
    // (GIGA+ correction).
    let inode = txn.edit_inode(part)?;
    (inode.size, inode.nlink) = left;
    inode.range = HashRange { bits, ..range };
    Ok(MetaReply::Done)
}

/// Returns the entries by the start of their future range; `None` where there are too many.
fn collect_shares<S: Store>(
    txn: &Txn<'_, S>,
    part: Ino,
    bits: u8,
) -> MetaOutcome<Option<BTreeMap<u64, PartitionShare>>> {
    let (mut shares, mut bytes) = (BTreeMap::<u64, PartitionShare>::new(), 0);
    let prefix = keys::inode_prefix(tag::ENTRY, part);
    txn.scan_records(&prefix, &prefix, &mut |key, value| {
        let Some(ParsedKey::Entry { hash, name, .. }) = keys::parse(key) else {
            return Ok(ControlFlow::Continue(()));
        };
        bytes += name.len() + ENTRY_BYTES;
        if bytes > BYTES_MAX {
            return Ok(ControlFlow::Break(()));
        }
        let entry = EntryRecord::decode(value)?;
        let share = shares.entry(HashRange::around_hash(hash, bits).from).or_default();
        share.subdirs += u32::from(entry.kind == InodeKind::Dir);
        share.entries.push((hash, name.to_vec(), entry));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((bytes <= BYTES_MAX).then_some(shares))
}

/// Returns the record of a partition that is split off another one.
fn new_partition(old: &Inode, dir: Ino, range: HashRange, size: u64, subdirs: u32) -> Inode {
    Inode {
        nlink: 2 + subdirs,
        size,
        version: 1,
        parent: dir,
        keepers: 0,
        xattr_list: 0,
        xattr_bytes: 0,
        range,
        ..old.clone()
    }
}

/// Lists the partitions of a directory.
pub(crate) fn list_partitions<S: Store>(txn: &mut Txn<'_, S>, dir: Ino) -> MetaOutcome<MetaReply> {
    let inode = txn.load_own_inode(dir)?;
    if !inode.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    let mut parts = txn.other_partitions(dir, &inode)?;
    parts.push((dir, inode));
    parts.sort_by_key(|(_, part)| part.range);
    let describe_partition = |(ino, part): (Ino, std::sync::Arc<Inode>)| PartitionInfo {
        range: part.range,
        shard: ino.owner_shard(),
        entries: part.size,
    };
    Ok(MetaReply::Partitions(parts.into_iter().map(describe_partition).collect()))
}
