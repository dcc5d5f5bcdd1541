//! The spread of a directory over the servers, seen from outside.

use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::partition::HashRange;
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::{ExecutorId, Ino, ShardMap};

/// A directory has spread when no server has more than this times its final share.
const SPREAD: f64 = 1.02;

pub(super) struct DirectorySpread {
    map: ShardMap,
    dir: Ino,
    /// The existing partitions, by the beginning of their range: number of bits, and whether they
    /// can split.
    parts: BTreeMap<u64, (u8, bool)>,
    /// The beginnings of the split ones.
    split: BTreeSet<u64>,
    /// The numbers of bits of the split ones.
    splitting: BTreeSet<u8>,
    /// Each server's share of all hashes.
    shares: Vec<f64>,
    /// The largest share after all possible splits.
    least: f64,
    /// Ranges with at most this many bits must split before the directory counts as spread.
    finest: u8,
}

/// Returns the server of a partition.
fn partition_server(map: &ShardMap, dir: Ino, from: u64) -> usize {
    let part = map.partition_number(dir, from);
    map.owner(part.owner_shard()).map_or(0, |server| usize::from(server.node.0))
}

fn range_share(bits: u8) -> f64 {
    0.5f64.powi(bits.into())
}

fn largest_share(shares: &[f64]) -> f64 {
    shares.iter().copied().fold(0.0, f64::max)
}

impl DirectorySpread {
    /// Plans the spread of a directory. Partitions with more than `above` entries split. About
    /// `follow` entries come after the directory counts as spread. Partitions that would split
    /// because of those entries must have split before, too.
    pub fn from_map(
        map: &ShardMap,
        dir: Ino,
        servers: u16,
        above: u64,
        follow: u64,
    ) -> DirectorySpread {
        let mut spread = DirectorySpread {
            map: map.clone(),
            dir,
            parts: BTreeMap::new(),
            split: BTreeSet::new(),
            splitting: BTreeSet::new(),
            shares: vec![0.0; servers.into()],
            least: 0.0,
            finest: 0,
        };
        spread.split_all();
        spread.least = largest_share(&spread.shares);
        spread.finest = spread.finest_needed();
        let splitting: BTreeSet<u8> = spread.splitting.clone();
        for bits in splitting {
            // By chance some partitions have more entries than others.
            if (above << bits) * 4 <= (spread.entries_needed(above) + follow) * 5 {
                spread.finest = spread.finest.max(bits);
            }
        }
        (spread.parts, spread.split) = (BTreeMap::new(), BTreeSet::new());
        spread.splitting.clear();
        spread.shares = vec![0.0; servers.into()];
        spread.add_partition(HashRange::ALL);
        spread
    }

    fn add_partition(&mut self, range: HashRange) {
        let splits = self.map.bits_after_split(range.bits).is_some()
            && self.map.spans_nodes(self.map.partition_number(self.dir, range.from), range);
        self.parts.insert(range.from, (range.bits, splits));
        self.shares[partition_server(&self.map, self.dir, range.from)] += range_share(range.bits);
    }

    /// Replaces a partition by its parts, if it can split.
    fn split_partition(&mut self, range: HashRange) {
        let Some(bits) = self.map.bits_after_split(range.bits) else { return };
        self.parts.remove(&range.from);
        self.shares[partition_server(&self.map, self.dir, range.from)] -= range_share(range.bits);
        self.split.insert(range.from);
        self.splitting.insert(range.bits);
        let map = self.map.clone();
        map.split_range(range, bits).for_each(|part| self.add_partition(part));
    }

    fn next_to_split(&self, from: u64) -> Option<HashRange> {
        let (from, (bits, _)) = self.parts.range(from..).find(|(_, (_, splits))| *splits)?;
        Some(HashRange { from: *from, bits: *bits })
    }

    fn split_all(&mut self) {
        self.add_partition(HashRange::ALL);
        while let Some(range) = self.next_to_split(0) {
            self.split_partition(range);
        }
    }

    /// Returns the number of bits of the ranges that split last before the directory counts as
    /// spread.
    fn finest_needed(&self) -> u8 {
        let mut coarse = DirectorySpread {
            map: self.map.clone(),
            parts: BTreeMap::new(),
            split: BTreeSet::new(),
            splitting: BTreeSet::new(),
            shares: vec![0.0; self.shares.len()],
            ..*self
        };
        coarse.add_partition(HashRange::ALL);
        let (mut bits, mut split) = (0, 0);
        while largest_share(&coarse.shares) > self.least * SPREAD
            && let Some(finer) = self.map.bits_after_split(bits)
        {
            let mut from = 0;
            while let Some(range) = coarse.next_to_split(from) {
                coarse.split_partition(range);
                from = range.last_hash() + 1;
            }
            (split, bits) = (bits, finer);
        }
        split
    }

    /// Returns the number of entries, about, after which the directory has spread, if partitions
    /// split above `above` entries.
    pub fn entries_needed(&self, above: u64) -> u64 {
        above << self.finest
    }

    /// Returns whether all servers have about their final share.
    pub fn is_balanced(&self) -> bool {
        largest_share(&self.shares) <= self.least * SPREAD
    }

    /// Returns whether no more partitions split for now.
    pub fn is_complete(&self) -> bool {
        let splits = |(bits, splits): &(u8, bool)| *splits && *bits <= self.finest;
        self.is_balanced() && !self.parts.values().any(splits)
    }

    /// Detects split partitions: all of their parts exist.
    pub fn detect_splits(&mut self, mut is_there: impl FnMut(ExecutorId, Ino) -> bool) {
        let mut at = 0;
        while let Some(range) = self.next_to_split(at) {
            at = range.last_hash() + 1;
            let Some(bits) = self.map.bits_after_split(range.bits) else { continue };
            let mut new = self.map.split_range(range, bits).skip(1);
            let split = new.all(|part| {
                let part = self.map.partition_number(self.dir, part.from);
                self.map.owner(part.owner_shard()).is_some_and(|node| is_there(node, part))
            });
            if split {
                self.split_partition(range);
            }
        }
    }

    /// Returns the partition map of a client that has looked up all names.
    pub fn known_partitions(&self) -> PartitionMaps {
        let mut reported = PartitionMaps::default();
        for from in &self.split {
            if let Some((bits, _)) = self.parts.get(from) {
                let part = self.map.partition_number(self.dir, *from);
                reported.record_partition(&self.map, part, HashRange { from: *from, bits: *bits });
            }
        }
        reported
    }

    /// Returns the largest share of a server, divided by an equal share.
    pub fn relative_largest(&self) -> f64 {
        largest_share(&self.shares) * self.shares.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::NodeId;
    use tatami_wire::ShardId;

    #[test]
    fn it_takes_as_many_entries_as_there_are_servers_to_reach() {
        let of = |servers: u16| {
            let all = (0..servers).map(|server| ExecutorId::first_of_node(NodeId(server)));
            let all: Vec<_> = all.collect();
            let map = ShardMap::with_even_blocks(1, 4096, &all).expect("a power of two");
            let dir = map.directory_number(ShardId(0), 77);
            DirectorySpread::from_map(&map, dir, servers, 1024, 0)
        };
        assert!(of(1).is_complete());
        let entries = [2, 16, 256, 1024].map(|servers| of(servers).entries_needed(1024));
        assert_eq!(entries, [1 << 10, 1 << 10, 1 << 14, 1 << 18]);
        let (map, dir) = (of(16).map.clone(), of(16).dir);
        assert_eq!(
            DirectorySpread::from_map(&map, dir, 16, 1024, 40_000).entries_needed(1024),
            1 << 14
        );
        let mut all = of(1024);
        assert_eq!((all.is_complete(), all.relative_largest()), (false, 1024.0));
        // One call may find several levels of splits.
        (0..3).for_each(|_| all.detect_splits(|_, _| true));
        assert!(all.is_complete());
        assert!((all.relative_largest() - 1.0).abs() < 1e-9);
        // 4,096 shards are not many for so many servers: some have five, some four.
        let mut odd = of(1000);
        (0..3).for_each(|_| odd.detect_splits(|_, _| true));
        assert!((1.2..1.25).contains(&odd.relative_largest()), "{}", odd.relative_largest());
    }
}
