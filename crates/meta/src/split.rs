//! Splits a partition of a directory (GIGA+), and lists the partitions.

use crate::error::Outcome;
use crate::inode::Inode;
use crate::keys::{self, Parsed, tag};
use crate::record::Entry;
use crate::store::Store;
use crate::txn::Txn;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_wire::meta::{MetaReply, Partition};
use tatami_wire::partition::Range;
use tatami_wire::{Errno, Ino, Kind};

/// Most bytes of entries that are moved at once: the partition is locked meanwhile.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most that an entry takes in a message besides its name.
const ENTRY_BYTES: usize = 48;

/// The entries of one new partition.
#[derive(Default)]
struct Share {
    entries: Vec<(u64, Vec<u8>, Entry)>,
    subdirs: u32,
}

/// Splits a partition with more entries than `above`: most of them move to new partitions on other
/// shards. Their inodes stay where they are.
pub(crate) fn split<S: Store>(txn: &mut Txn<'_, S>, part: Ino, above: u64) -> Outcome<MetaReply> {
    let inode = txn.inode(part)?;
    let range = inode.range;
    let is_open = inode.is_dir() && inode.nlink > 0 && inode.size > above;
    let Some(bits) = txn.state.map().finer(range.bits).filter(|_| is_open) else {
        return Ok(MetaReply::Done);
    };
    // The partition has moved, or all its shards are on one node: then a split gains nothing.
    if !txn.is_here(part) || !txn.state.map().spans_nodes(part, range) {
        return Ok(MetaReply::Done);
    }
    // Entries that a transaction is about to change must not move: wait for it.
    txn.may_list(&keys::entries_from(part, 0), &keys::entries_from(part, u64::MAX))?;
    let Some(shares) = shares(txn, part, bits)? else { return Ok(MetaReply::Done) };
    let dir = txn.whole(part, &inode);
    let ranges: Vec<_> = txn.state.map().parts(range, bits).collect();
    let mut left = (inode.size, inode.nlink);
    // The first range stays in the old partition.
    for range in ranges.into_iter().skip(1) {
        let share = shares.get(&range.from);
        let to = txn.state.map().partition(dir, range.from);
        let (size, subdirs) = share.map_or((0, 0), |s| (s.entries.len() as u64, s.subdirs));
        left = (left.0.saturating_sub(size), left.1.saturating_sub(subdirs));
        txn.add_part(to, new_part(&inode, dir, range, size, subdirs));
        for (hash, name, entry) in share.map_or(&[][..], |share| &share.entries) {
            txn.delete(keys::entry(part, *hash, name));
            txn.put(keys::entry(to, *hash, name), entry.encode());
        }
    }
    // The new range, in the old partition's record, sends clients on to the new partitions
    // (GIGA+ correction).
    let inode = txn.edit(part)?;
    (inode.size, inode.nlink) = left;
    inode.range = Range { bits, ..range };
    Ok(MetaReply::Done)
}

/// Returns the entries by the start of their future range; `None` where there are too many.
fn shares<S: Store>(
    txn: &Txn<'_, S>,
    part: Ino,
    bits: u8,
) -> Outcome<Option<BTreeMap<u64, Share>>> {
    let (mut shares, mut bytes) = (BTreeMap::<u64, Share>::new(), 0);
    let prefix = keys::of_ino(tag::ENTRY, part);
    txn.scan(&prefix, &prefix, &mut |key, value| {
        let Some(Parsed::Entry { hash, name, .. }) = keys::parse(key) else {
            return Ok(ControlFlow::Continue(()));
        };
        bytes += name.len() + ENTRY_BYTES;
        if bytes > BYTES_MAX {
            return Ok(ControlFlow::Break(()));
        }
        let entry = Entry::decode(value)?;
        let share = shares.entry(Range::around(hash, bits).from).or_default();
        share.subdirs += u32::from(entry.kind == Kind::Dir);
        share.entries.push((hash, name.to_vec(), entry));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((bytes <= BYTES_MAX).then_some(shares))
}

/// Returns the record of a partition that is split off another one.
fn new_part(old: &Inode, dir: Ino, range: Range, size: u64, subdirs: u32) -> Inode {
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
pub(crate) fn partitions<S: Store>(txn: &mut Txn<'_, S>, dir: Ino) -> Outcome<MetaReply> {
    let inode = txn.own_inode(dir)?;
    if !inode.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    let mut parts = txn.other_parts(dir, &inode)?;
    parts.push((dir, inode));
    parts.sort_by_key(|(_, part)| part.range);
    let told = |(ino, part): (Ino, std::sync::Arc<Inode>)| Partition {
        range: part.range,
        shard: ino.shard(),
        entries: part.size,
    };
    Ok(MetaReply::Partitions(parts.into_iter().map(told).collect()))
}
