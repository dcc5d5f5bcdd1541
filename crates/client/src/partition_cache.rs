//! The partition maps that servers have sent to this client.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::MetaOp;
use tatami_wire::partition::{HashRange, name_hash, name_seed};
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::{Attr, Ino, ShardMap, VolumeId};

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
    /// Directories whose attributes this client asks for again and again, because others change
    /// them.
    busy: HashMap<Ino, BusyDirectory>,
}

/// Oldest size, link count and times of a directory that others are changing.
const SUM_AGE: Duration = Duration::from_secs(1);
/// Requests for the attributes of a directory within [`SUM_AGE`], after which it counts as busy.
const BUSY_REQUESTS: u32 = 32;
/// Directories with fewer entries are never busy. Programs use small ones to agree on something,
/// and watch their times.
const SMALL_DIRECTORY: u64 = 64;
/// Most directories whose requests are counted.
const BUSY_MAX: usize = 1024;

/// A directory whose attributes are not delegated to this client.
struct BusyDirectory {
    /// The start of the time in which requests are counted, and their number.
    since: Duration,
    requests: u32,
    /// The attributes in the last reply, and when the request was sent.
    sum: Attr,
    sent: Duration,
}

impl BusyDirectory {
    fn sum_end(&self) -> Option<Duration> {
        (self.requests >= BUSY_REQUESTS).then(|| self.sent + SUM_AGE)
    }
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

    /// Records the attributes of a directory that no delegation covers, from a request that was
    /// sent at `sent`.
    pub(crate) fn record_sum(&self, sum: &Attr, sent: Duration) {
        let busy = &mut self.table.lock().busy;
        if sum.size < SMALL_DIRECTORY {
            busy.remove(&sum.ino);
            return;
        }
        if busy.len() >= BUSY_MAX && !busy.contains_key(&sum.ino) {
            busy.clear();
        }
        let dir = busy.entry(sum.ino).or_insert_with(|| BusyDirectory {
            since: sent,
            requests: 0,
            sum: sum.clone(),
            sent,
        });
        if sent > dir.since + SUM_AGE {
            // What was busy a moment ago still is.
            let is_still_busy = dir.requests >= BUSY_REQUESTS && sent < dir.since + SUM_AGE * 2;
            dir.requests = if is_still_busy { BUSY_REQUESTS } else { 0 };
            dir.since = sent;
        }
        dir.requests += 1;
        // Replies of several threads may come in another order than their requests.
        if sent >= dir.sent {
            (dir.sum, dir.sent) = (sum.clone(), sent);
        }
    }

    /// Returns attributes of a busy directory that are at most a second old.
    pub(crate) fn recent_sum(&self, dir: Ino, now: Duration) -> Option<Attr> {
        let table = self.table.lock();
        let busy = table.busy.get(&dir)?;
        (now < busy.sum_end()?).then(|| busy.sum.clone())
    }

    /// Returns until when the attributes of a busy directory may be used.
    pub(crate) fn recent_sum_end(&self, dir: Ino) -> Option<Duration> {
        self.table.lock().busy.get(&dir)?.sum_end()
    }

    /// Forgets the attributes of a busy directory.
    pub(crate) fn forget_sum(&self, dir: Ino) {
        self.table.lock().busy.remove(&dir);
    }

    pub(crate) fn record_partition(&self, part: Ino, range: HashRange) {
        self.table.lock().directories.record_partition(&self.shard_map, part, range);
    }

    pub(crate) fn forget_partitions(&self, op: &MetaOp) {
        self.table.lock().directories.forget_directories(self.seed, op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{ExecutorId, InodeKind, NodeId};

    const NOW: Duration = Duration::from_secs(1000);
    const DIR: Ino = Ino(9);

    fn sum(more: u64) -> Attr {
        let size = SMALL_DIRECTORY + more;
        Attr { size, ..Attr::with_defaults(DIR, InodeKind::Dir) }
    }

    fn cache() -> PartitionCache {
        let map = ShardMap::with_one_shard(ExecutorId::first_of_node(NodeId(0)));
        PartitionCache::new(VolumeId([1; 16]), map)
    }

    #[test]
    fn attributes_of_a_busy_directory_are_a_second_old_at_most() {
        let cache = cache();
        for size in 1..BUSY_REQUESTS {
            cache.record_sum(&sum(size.into()), NOW);
            assert_eq!(cache.recent_sum(DIR, NOW), None, "it is not busy");
        }
        cache.record_sum(&sum(99), NOW);
        cache.record_sum(&sum(7), NOW - Duration::from_millis(1));
        let almost = NOW + SUM_AGE - Duration::from_nanos(1);
        assert_eq!(cache.recent_sum(DIR, almost), Some(sum(99)));
        assert_eq!(cache.recent_sum(DIR, NOW + SUM_AGE), None);
        assert_eq!(cache.recent_sum_end(DIR), Some(NOW + SUM_AGE));
        assert_eq!(cache.recent_sum(Ino(8), NOW), None);
        // A second later it is busy at once, and after a pause it is not.
        let next = NOW + SUM_AGE * 3 / 2;
        cache.record_sum(&sum(5), next);
        assert_eq!(cache.recent_sum(DIR, next), Some(sum(5)));
        cache.record_sum(&sum(6), next + SUM_AGE * 2);
        assert_eq!(cache.recent_sum_end(DIR), None);
        cache.forget_sum(DIR);
        assert_eq!(cache.recent_sum(DIR, NOW), None);
    }

    #[test]
    fn a_small_directory_is_never_busy() {
        let cache = cache();
        (0..=BUSY_REQUESTS).for_each(|_| cache.record_sum(&sum(0), NOW));
        assert_eq!(cache.recent_sum(DIR, NOW), Some(sum(0)));
        let small = Attr { size: SMALL_DIRECTORY - 1, ..sum(0) };
        (0..=BUSY_REQUESTS).for_each(|_| cache.record_sum(&small, NOW));
        assert_eq!(cache.recent_sum(DIR, NOW), None);
    }

    #[test]
    fn a_directory_that_is_asked_for_now_and_then_is_not_busy() {
        let cache = cache();
        for n in 0..4 * BUSY_REQUESTS {
            let at = NOW + SUM_AGE * n / 4;
            cache.record_sum(&sum(n.into()), at);
            assert_eq!(cache.recent_sum(DIR, at), None);
        }
    }

    #[test]
    fn few_busy_directories_are_remembered() {
        let cache = cache();
        for n in 0..3 * BUSY_MAX as u64 {
            cache.record_sum(&Attr { ino: Ino(n), ..sum(1) }, NOW);
        }
        assert!(cache.table.lock().busy.len() <= BUSY_MAX);
    }
}
