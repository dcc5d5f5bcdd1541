//! The partition maps that servers have sent to this client.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::MetaOp;
use tatami_wire::partition::{HashRange, name_hash, name_seed};
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::{Ino, ShardMap, VolumeId};

/// The partition maps that servers have sent.
pub(crate) struct PartitionCache {
    pub(crate) seed: u64,
    /// Used for the number of shards, which never changes.
    pub(crate) shard_map: ShardMap,
    pub(crate) table: Mutex<PartitionTable>,
}

#[derive(Default)]
pub(crate) struct PartitionTable {
    pub(crate) directories: PartitionMaps,
    /// The parent of a directory that has been listed: only its first partition returns the parent.
    pub(crate) above: HashMap<Ino, Ino>,
    /// Directories whose attributes were asked for.
    pub(crate) asked: HashMap<Ino, AttrRequests>,
}

/// Requests for the attributes of a directory.
#[derive(Default)]
pub(crate) struct AttrRequests {
    /// Requests since its partitions were asked last.
    pub(crate) times: u32,
    /// The partitions are not asked again before this time, by [`uptime`](crate::uptime::uptime).
    pub(crate) not_before: Duration,
}

impl PartitionCache {
    pub(crate) fn new(volume: VolumeId, ring: ShardMap) -> PartitionCache {
        PartitionCache { seed: name_seed(volume), shard_map: ring, table: Mutex::default() }
    }

    /// Returns the operation with partitions in the place of directories; `None` where it stays the
    /// same.
    pub(crate) fn locate(&self, op: &MetaOp) -> Option<MetaOp> {
        let reported = self.table.lock();
        if reported.directories.is_empty() {
            return None;
        }
        let mut located = op.clone();
        reported.directories.locate_op(&self.shard_map, self.seed, &mut located);
        (located != *op).then_some(located)
    }

    /// Returns the partition that has a name of the directory, as far as known.
    pub(crate) fn partition_of_name(&self, dir: Ino, name: &[u8]) -> Ino {
        self.table.lock().directories.find_partition(
            &self.shard_map,
            dir,
            name_hash(self.seed, name),
        )
    }

    /// Returns the batch operation with a partition in the place of its directory.
    pub(crate) fn locate_batch_op(&self, operation: &BatchOp) -> BatchOp {
        let (mut operation, reported) = (operation.clone(), self.table.lock());
        reported.directories.locate_batch_op(&self.shard_map, self.seed, &mut operation);
        operation
    }

    pub(crate) fn record_partition(&self, part: Ino, range: HashRange) {
        self.table.lock().directories.record_partition(&self.shard_map, part, range);
    }

    pub(crate) fn forget_partitions(&self, op: &MetaOp) {
        self.table.lock().directories.forget_directories(self.seed, op);
    }
}
