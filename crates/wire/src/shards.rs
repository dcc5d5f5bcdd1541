//! The shard map: which executor serves which shard.

use crate::{ExecutorId, Ino, ShardId};
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// Most shards of a volume: the limit of inode numbers.
pub const SHARDS_MAX: usize = 4096;

/// The ring of a volume's shards, each with the executor that serves it. The number of shards is a
/// power of two and is fixed when the volume is created. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    epoch: u64,
    executors: Arc<[ExecutorId]>,
    /// For each shard, the number of its migrations.
    moves: Arc<[u32]>,
    /// For each shard, the number of consecutive shards from it, around the ring, that its executor
    /// serves.
    runs: Arc<[u16]>,
    one_executor: bool,
}

impl ShardMap {
    /// Returns the map of `epoch`, with the executor of each shard, by number. `None` unless the
    /// number of shards is a power of two and at most [`SHARDS_MAX`].
    pub fn new(epoch: u64, executors: &[ExecutorId]) -> Option<ShardMap> {
        ShardMap::with_moves(epoch, executors, &vec![0; executors.len()])
    }

    /// Like [`ShardMap::new`], with the number of migrations of each shard. `None` also if the
    /// lengths differ.
    pub fn with_moves(epoch: u64, executors: &[ExecutorId], moves: &[u32]) -> Option<ShardMap> {
        let alone = executors.iter().all(|one| Some(one) == executors.first());
        let right = executors.len().is_power_of_two() && executors.len() <= SHARDS_MAX;
        (right && executors.len() == moves.len()).then(|| ShardMap {
            epoch,
            executors: executors.into(),
            moves: moves.into(),
            runs: compute_runs(executors).into(),
            one_executor: alone,
        })
    }

    /// Returns a map of one shard: the map of a volume that cannot grow.
    pub fn with_one_shard(executor: ExecutorId) -> ShardMap {
        let (executors, moves, runs) = ([executor].into(), [0].into(), [1].into());
        ShardMap { epoch: 1, executors, moves, runs, one_executor: true }
    }

    /// Returns a map with a block of consecutive shards for each of `executors`, in order and of
    /// about equal size. `None` as for [`ShardMap::new`], or without executors.
    pub fn with_even_blocks(
        epoch: u64,
        count: usize,
        executors: &[ExecutorId],
    ) -> Option<ShardMap> {
        let of = |shard: usize| executors.get(shard * executors.len() / count).copied();
        ShardMap::new(epoch, &(0..count).map(of).collect::<Option<Vec<_>>>()?)
    }

    /// Increases with every change of the map.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.executors.len()
    }

    /// Checks whether one executor serves all shards.
    pub fn has_one_executor(&self) -> bool {
        self.one_executor
    }

    /// Returns the executor that serves `shard`; `None` if the shard does not exist.
    pub fn owner(&self, shard: ShardId) -> Option<ExecutorId> {
        self.executors.get(usize::from(shard.0)).copied()
    }

    /// Returns the executor and the number of migrations of each shard.
    pub fn owners_and_moves(&self) -> (&[ExecutorId], &[u32]) {
        (&self.executors, &self.moves)
    }

    /// Returns a digest of the shards of `executor` and their migrations. It differs if the set
    /// differs.
    pub fn digest_shards(&self, executor: ExecutorId) -> u64 {
        let mut hash = Xxh3Default::new();
        for shard in self.shards_of(executor) {
            hash.update(&shard.0.to_le_bytes());
            hash.update(&self.moves[usize::from(shard.0)].to_le_bytes());
        }
        hash.digest()
    }

    /// Returns the shards of `executor`, by number.
    pub fn shards_of(&self, executor: ExecutorId) -> impl Iterator<Item = ShardId> {
        (0..)
            .map(ShardId)
            .zip(self.executors.iter())
            .filter(move |(_, n)| **n == executor)
            .map(|(s, _)| s)
    }

    /// Returns each executor of the map once, with its first shard. Requests for all shards of an
    /// executor go to that shard.
    pub fn first_shards(&self) -> Vec<(ShardId, ExecutorId)> {
        first_shards(&self.executors)
    }

    /// Returns the number of a directory that `birth` allocates. A hash picks the owner shard from
    /// all shards.
    pub fn directory_number(&self, birth: ShardId, counter: u64) -> Ino {
        let rest = Ino::new(ShardId(0), birth, counter).0;
        let home = xxh3_64(&rest.to_be_bytes()) & (self.executors.len() as u64 - 1);
        Ino::new(ShardId(home as u16), birth, counter)
    }

    /// Returns the number of consecutive shards from `shard`, around the ring, that its executor
    /// serves.
    pub fn run_length(&self, shard: ShardId) -> usize {
        self.runs.get(usize::from(shard.0)).map_or(0, |run| usize::from(*run))
    }

    /// Returns the shard `steps` positions further on the ring.
    pub fn shard_after(&self, shard: ShardId, steps: u64) -> ShardId {
        let place = (u64::from(shard.0) + steps) & (self.executors.len() as u64 - 1);
        ShardId(place as u16)
    }
}

fn compute_runs(executors: &[ExecutorId]) -> Vec<u16> {
    let count = executors.len();
    let mut runs = vec![1u16; count];
    // Two rounds, so that runs across the end are counted in full.
    for at in (0..2 * count.saturating_sub(1)).rev() {
        let (this, next) = (at % count, (at + 1) % count);
        if executors[this] == executors[next] {
            runs[this] = (runs[next] + 1).min(count as u16);
        }
    }
    runs
}

/// Like [`ShardMap::first_shards`], for a list of the executors of all shards.
pub fn first_shards(executors: &[ExecutorId]) -> Vec<(ShardId, ExecutorId)> {
    let mut leads: Vec<(ShardId, ExecutorId)> = Vec::new();
    for (shard, executor) in (0..).map(ShardId).zip(executors) {
        // Blocks are long, so the last executor nearly always matches.
        if leads.last().is_none_or(|(_, last)| last != executor)
            && leads.iter().all(|(_, known)| known != executor)
        {
            leads.push((shard, *executor));
        }
    }
    leads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    fn on(node: u16) -> ExecutorId {
        ExecutorId::first_of_node(NodeId(node))
    }

    #[test]
    fn a_map_knows_its_nodes() {
        let nodes = [on(3), ExecutorId { node: NodeId(3), index: 1 }, on(7)];
        let map = ShardMap::with_even_blocks(2, 16, &nodes).expect("a power of two");
        assert_eq!(
            map.first_shards(),
            [(ShardId(0), nodes[0]), (ShardId(6), nodes[1]), (ShardId(11), nodes[2])]
        );
        assert_eq!(map.shards_of(nodes[2]).count(), 5);
        assert_eq!((map.owner(ShardId(15)), map.owner(ShardId(16))), (Some(nodes[2]), None));
        assert!(!map.has_one_executor() && ShardMap::with_one_shard(nodes[0]).has_one_executor());
        assert_eq!(map.shard_after(ShardId(14), 5), ShardId(3));
        assert_eq!([5, 0, 15, 10].map(|shard| map.run_length(ShardId(shard))), [1, 6, 1, 1]);
        let round = ShardMap::new(1, &[0, 1, 1, 0].map(on)).expect("a power of two");
        assert_eq!([0, 1, 2, 3].map(|shard| round.run_length(ShardId(shard))), [1, 2, 1, 2]);
        let one = ShardMap::new(1, &[on(4); 8]).expect("a power of two");
        assert_eq!([0, 3, 7].map(|shard| one.run_length(ShardId(shard))), [8, 8, 8]);
        assert_eq!(ShardMap::with_even_blocks(1, 12, &nodes), None);
        assert_eq!(ShardMap::with_even_blocks(1, 16, &[]), None);
    }

    #[test]
    fn directories_are_dealt_out_to_all_shards() {
        let map = ShardMap::with_even_blocks(1, 64, &[on(0)]).expect("a power of two");
        let mut counts = [0; 64];
        for counter in 0..6400 {
            let ino = map.directory_number(ShardId(5), counter);
            assert_eq!((ino.allocating_shard(), ino.counter()), (ShardId(5), counter));
            counts[usize::from(ino.owner_shard().0)] += 1;
        }
        assert!(counts.iter().all(|n| (50..160).contains(n)), "{counts:?}");
    }
}
