//! Directories whose entries are in several partitions (GIGA+). See [`tatami_wire::partition`].
//!
//! A partition is stored like a directory: an inode record under its number, with its own counts,
//! times and version, and a copy of the permissions. So an operation on a name works in its
//! partition as in any directory.

use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys;
use crate::operation::Txn;
use crate::split_rule::LargePartitionChange;
use crate::store::Store;
use std::sync::Arc;
use tatami_wire::partition::HashRange;
use tatami_wire::{Attr, Errno, Ino};

/// A partition, or a directory that has all of its entries.
pub(crate) type PartitionInode = (Ino, Arc<Inode>);

impl<S: Store> Txn<'_, S> {
    /// Returns the directory of a partition.
    pub fn whole_directory(&self, part: Ino, inode: &Inode) -> Ino {
        if inode.is_later_partition() {
            self.state.map().directory_of_range(part, inode.range.from)
        } else {
            part
        }
    }

    /// Returns an inode that is meant by its own number, and not as a partition of another one.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn load_own_inode(&mut self, ino: Ino) -> MetaOutcome<Arc<Inode>> {
        let inode = self.load_inode(ino)?;
        if inode.is_later_partition() { Err(Errno::ESTALE.into()) } else { Ok(inode) }
    }

    /// Checks that the partition has the name.
    ///
    /// # Errors
    /// [`OperationFailure::WrongPartition`]
    pub fn check_name_range(&self, part: Ino, inode: &Inode, name: &[u8]) -> MetaOutcome<()> {
        if !inode.is_partitioned() || inode.range.contains(keys::name_hash(self.state.seed(), name))
        {
            return Ok(());
        }
        Err(OperationFailure::WrongPartition(part, inode.range))
    }

    /// Returns the partition that has the name, or will have it. `dir` is the directory, or the
    /// partition that a client takes for it.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn partition_of_name(&mut self, dir: Ino, name: &[u8]) -> MetaOutcome<PartitionInode> {
        self.partition_of_hash(dir, keys::name_hash(self.state.seed(), name))
    }

    /// As [`Txn::partition_of_name`], for names with this hash.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn partition_of_hash(&mut self, dir: Ino, hash: u64) -> MetaOutcome<PartitionInode> {
        let mut part = dir;
        // Each step leads to a smaller range, except for one back to the first partition.
        for _ in 0..u64::BITS {
            let inode = match self.find_inode(part)? {
                Some(inode) => inode,
                None if self.spread.is_none() => return Err(Errno::ESTALE.into()),
                // The client's partition does not exist (any more). The directory itself always
                // knows the way.
                None => match self.state.map().directory_of(part) {
                    whole if whole == part => return Err(Errno::ESTALE.into()),
                    whole => {
                        part = whole;
                        continue;
                    }
                },
            };
            if !inode.is_partitioned() || inode.range.contains(hash) {
                return Ok((part, inode));
            }
            // As in GIGA+: the range that a partition has shows where the split-off rest went.
            let map = self.state.map();
            let onward = map.next_range(inode.range, hash);
            part =
                map.partition_number(map.directory_of_range(part, inode.range.from), onward.from);
        }
        Err(Errno::ESTALE.into())
    }

    /// Returns all partitions of a directory but the first, which is the directory itself.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn other_partitions(
        &mut self,
        dir: Ino,
        inode: &Inode,
    ) -> MetaOutcome<Vec<PartitionInode>> {
        let mut all = Vec::new();
        let mut next = self.state.map().split_off_ranges(inode.range);
        while !next.is_empty() {
            let map = self.state.map().clone();
            let number = |range: &HashRange| map.partition_number(dir, range.from);
            let wanted: Vec<_> = next.iter().map(|range| keys::inode(number(range))).collect();
            // One request for all partitions of a level, instead of one a partition.
            self.require_records(&wanted.iter().collect::<Vec<_>>())?;
            let before = all.len();
            for range in &next {
                let part = number(range);
                all.push((part, self.load_inode(part)?));
            }
            let new = all[before..].iter();
            next = new.flat_map(|(_, inode)| map.split_off_ranges(inode.range)).collect();
        }
        Ok(all)
    }

    /// Returns the attributes of an inode; of a directory, the sum of all its partitions.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn summed_attr(&mut self, ino: Ino, inode: &Inode) -> MetaOutcome<Attr> {
        let mut attr = inode.to_attr(ino);
        if !inode.is_partitioned() {
            return Ok(attr);
        }
        for (number, part) in self.other_partitions(ino, inode)? {
            attr.add_partition(&part.to_attr(number));
        }
        Ok(attr)
    }

    /// Returns whether a directory has no entry in any partition.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn is_empty_dir(&mut self, dir: Ino, inode: &Inode) -> MetaOutcome<bool> {
        if inode.size > 0 || !inode.is_partitioned() {
            return Ok(inode.size == 0);
        }
        Ok(self.other_partitions(dir, inode)?.iter().all(|(_, part)| part.size == 0))
    }

    /// Merges the partitions of an empty directory into one.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn merge_partitions(&mut self, dir: Ino) -> MetaOutcome<()> {
        let inode = self.load_inode(dir)?;
        if !inode.is_partitioned() {
            return Ok(());
        }
        for (part, _) in self.other_partitions(dir, &inode)? {
            self.remove_partition(part)?;
        }
        self.edit_inode(dir)?.range = HashRange::ALL;
        Ok(())
    }

    /// Removes the record of a partition, which has no entry and is not the first one.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn remove_partition(&mut self, part: Ino) -> MetaOutcome<()> {
        self.load_for_edit(part)?;
        self.inodes.iter_mut().filter(|(ino, _)| *ino == part).for_each(|(_, i)| *i = None);
        self.changed.push(part);
        Ok(())
    }

    /// Copies a change of the directory's own record to all its other partitions; `copy` makes the
    /// change.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn update_partitions(
        &mut self,
        dir: Ino,
        copy: impl Fn(&Inode, &mut Inode),
    ) -> MetaOutcome<()> {
        if !self.inspect_inode(dir, Inode::is_partitioned)? {
            return Ok(());
        }
        let inode = self.load_inode(dir)?;
        for (part, _) in self.other_partitions(dir, &inode)? {
            copy(&inode, self.edit_inode(part)?);
        }
        Ok(())
    }

    /// Returns the directory of a partition.
    pub(super) fn directory_of(&mut self, part: Ino) -> MetaOutcome<Ino> {
        let from = self.inspect_inode(part, |inode| inode.range.from)?;
        Ok(if from == 0 { part } else { self.state.map().directory_of_range(part, from) })
    }

    /// Completes a new entry in `part`, which leads to `ino`. With `moves`, `ino` lay in another
    /// directory before.
    pub(super) fn complete_attach(&mut self, part: Ino, ino: Ino, moves: bool) -> MetaOutcome<()> {
        // A directory with entries lies at its owner shard.
        self.relocate_to_owner(part);
        if let Some(spread) = &mut self.spread
            && moves
            && self.new != Some(ino)
        {
            spread.moved.push(ino);
        }
        self.record_large_change(part, true)
    }

    /// Records a change of the entries of `part` for the rule of splits, if it is large enough.
    pub(super) fn record_large_change(&mut self, part: Ino, has_grown: bool) -> MetaOutcome<()> {
        let (entries, range) = self.inspect_inode(part, |inode| (inode.size, inode.range))?;
        // A split pays only if the new partition lies on another node.
        if entries > self.state.split_rule.limits.shared
            && self.state.map().spans_nodes(part, range)
        {
            let client = self.ctx.client;
            self.large = Some(LargePartitionChange { part, entries, has_grown, client });
        }
        Ok(())
    }

    /// Adds the record of a new partition.
    pub fn add_partition(&mut self, part: Ino, inode: Inode) {
        // The first partition is an inode, and is counted.
        self.inode_delta += i64::from(!inode.is_later_partition());
        self.changed.push(part);
        self.inodes.push((part, Some(inode)));
    }
}
