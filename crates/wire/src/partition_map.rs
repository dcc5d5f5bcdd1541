//! Partition maps: the partitions of directories, as far as a client knows them.

use crate::batch::BatchOp;
use crate::meta::MetaOp;
use crate::partition::HashRange;
use crate::{Ino, ShardMap};
use std::collections::BTreeMap;

/// A client's cached partition map of one directory. It may be stale. Then the partition that does
/// not have a name replies with its range, and the client corrects its map (as in GIGA+).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionMap {
    /// The prefix length of each range, by its first hash.
    bits: BTreeMap<u64, u8>,
}

impl PartitionMap {
    /// Records that a partition with this range exists.
    pub fn record_range(&mut self, range: HashRange) {
        let bits = self.bits.entry(range.from).or_default();
        *bits = range.bits.max(*bits);
    }

    /// Returns the first hash of the range that should have this hash.
    pub fn locate_hash(&self, map: &ShardMap, hash: u64) -> u64 {
        let mut range = HashRange::ALL;
        loop {
            let known = self.bits.get(&range.from).copied().unwrap_or_default();
            range.bits = range.bits.max(known);
            if range.contains(hash) {
                return range.from;
            }
            let onward = map.next_range(range, hash);
            if onward == range || onward.bits <= map.bits_at_creation(range.from) {
                return range.from;
            }
            range = onward;
        }
    }
}

/// The partition maps of all directories.
#[derive(Clone, Debug, Default)]
pub struct PartitionMaps {
    maps: BTreeMap<Ino, PartitionMap>,
}

impl PartitionMaps {
    /// Most directories in the cache. A forgotten one costs a further request.
    const MAX: usize = 4096;

    /// Checks that no split directory is known.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// Replaces each directory of the operation by the partition that should have its name.
    pub fn locate_op(&self, map: &ShardMap, seed: u64, op: &mut MetaOp) {
        op.for_each_directory(seed, |dir, hash| self.locate_directory(map, dir, hash));
    }

    /// Like [`PartitionMaps::locate_op`], for an operation of a batch.
    pub fn locate_batch_op(&self, map: &ShardMap, seed: u64, operation: &mut BatchOp) {
        if !self.is_empty() {
            operation
                .for_each_directory(seed, &mut |dir, hash| self.locate_directory(map, dir, hash));
        }
    }

    /// Returns the partition of a directory that should have a name with this hash.
    pub fn find_partition(&self, map: &ShardMap, dir: Ino, hash: u64) -> Ino {
        match self.maps.get(&dir) {
            Some(parts) => map.partition_number(dir, parts.locate_hash(map, hash)),
            None => dir,
        }
    }

    fn locate_directory(&self, map: &ShardMap, dir: &mut Ino, hash: u64) {
        *dir = self.find_partition(map, *dir, hash);
    }

    /// Records the range of a partition.
    pub fn record_partition(&mut self, map: &ShardMap, part: Ino, range: HashRange) {
        let dir = map.directory_of_range(part, range.from);
        if self.maps.len() >= PartitionMaps::MAX && !self.maps.contains_key(&dir) {
            self.maps.clear();
        }
        self.maps.entry(dir).or_default().record_range(range);
    }

    /// Forgets the directories of an operation after a partition was missing. Returns true if there
    /// was one to forget; then the caller must locate the operation again.
    pub fn forget_directories(&mut self, seed: u64, op: &MetaOp) -> bool {
        let (mut op, mut forgotten) = (op.clone(), false);
        op.for_each_directory(seed, |dir, _| forgotten |= self.maps.remove(dir).is_some());
        forgotten
    }
}
