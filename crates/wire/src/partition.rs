//! Partitions of a directory's entries over shards (GIGA+ splitting).
//!
//! Entries are ordered by a hash of their name. A *partition* has the names of one range of hashes.
//! A range begins at a binary fraction of the hash space. Its shard is the same fraction of the
//! ring further than the directory's owner shard. A growing partition splits into [`FAN_OUT`]
//! partitions, or fewer if there are not enough shards. The first of them stays on its shard. So
//! the possible prefix lengths of ranges follow from the number of shards alone. From a few
//! partitions' ranges a client can derive which others must exist.
//!
//! A partition has a number like an inode: the directory's number, with the partition's shard as
//! the owner shard. The first partition has the directory's own number.

use crate::{Ino, ShardId, ShardMap, VolumeId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Number of partitions after a split of one.
pub const FAN_OUT: u32 = 16;

/// Number of bits of a name's hash.
const HASH_BITS: u32 = 63;

/// Returns the seed for the hashes of names.
pub fn name_seed(volume: VolumeId) -> u64 {
    xxh3_64(&volume.0)
}

/// Returns the position of a name in its directory: a 63-bit hash, never 0. The cookie 0 means the
/// start of a listing.
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    (xxh3_64_with_seed(name, seed) >> 1).max(1)
}

/// A range of name hashes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct HashRange {
    /// The lowest hash (0 stands for no name).
    pub from: u64,
    /// Number of leading bits of the hash that select the range; 0 for all names.
    pub bits: u8,
}

impl HashRange {
    /// All names.
    pub const ALL: HashRange = HashRange { from: 0, bits: 0 };

    /// Returns the range with this prefix length that has this hash.
    pub fn around_hash(hash: u64, bits: u8) -> HashRange {
        HashRange { from: range_start(hash, bits), bits }
    }

    /// Checks that such a range can exist.
    pub fn is_valid(self) -> bool {
        u32::from(self.bits) <= HASH_BITS
            && self.from >> HASH_BITS == 0
            && range_start(self.from, self.bits) == self.from
    }

    /// Checks whether the range has this hash.
    pub fn contains(self, hash: u64) -> bool {
        range_start(hash, self.bits) == self.from
    }

    /// Returns the highest hash of the range.
    pub fn last_hash(self) -> u64 {
        self.from | low_bits_mask(self.bits)
    }

    /// Checks whether the range ends at the highest hash.
    pub fn is_last(self) -> bool {
        self.last_hash() == low_bits_mask(0)
    }
}

/// Returns a mask of the hash bits below the prefix.
fn low_bits_mask(bits: u8) -> u64 {
    (1u64 << HASH_BITS.saturating_sub(u32::from(bits))) - 1
}

/// Returns the first hash of the range with this prefix length that has this hash.
fn range_start(hash: u64, bits: u8) -> u64 {
    hash & !low_bits_mask(bits)
}

/// The mapping of partitions to shards.
impl ShardMap {
    /// Returns the number of bits of a shard number.
    fn shard_bits(&self) -> u8 {
        self.shard_count().trailing_zeros() as u8
    }

    /// Returns the prefix length after a split of a range with this prefix length. `None` if no
    /// more shards are left to split over.
    pub fn bits_after_split(&self, bits: u8) -> Option<u8> {
        let most = self.shard_bits();
        (bits < most).then(|| most.min(bits + FAN_OUT.trailing_zeros() as u8))
    }

    /// Returns the prefix length of the range that begins here, when it was created.
    pub(crate) fn bits_at_creation(&self, from: u64) -> u8 {
        let mut bits = 0;
        while range_start(from, bits) != from
            && let Some(finer) = self.bits_after_split(bits)
        {
            bits = finer;
        }
        bits
    }

    fn ring_steps(&self, from: u64) -> u64 {
        from >> (HASH_BITS - u32::from(self.shard_bits()))
    }

    /// Returns the number of the partition of `dir` with the range that begins at `from`.
    pub fn partition_number(&self, dir: Ino, from: u64) -> Ino {
        Ino::new(
            self.shard_after(dir.owner_shard(), self.ring_steps(from)),
            dir.allocating_shard(),
            dir.counter(),
        )
    }

    /// Returns the directory of the partition `part` with the range that begins at `from`.
    pub fn directory_of_range(&self, part: Ino, from: u64) -> Ino {
        let back = self.shard_count() as u64 - self.ring_steps(from);
        Ino::new(
            self.shard_after(part.owner_shard(), back),
            part.allocating_shard(),
            part.counter(),
        )
    }

    /// Returns the directory of the partition `part`.
    pub fn directory_of(&self, part: Ino) -> Ino {
        let (birth, counter) = (part.allocating_shard(), part.counter());
        match Ino::new(ShardId(0), birth, counter) {
            Ino::ROOT => Ino::ROOT,
            _ => self.directory_number(birth, counter),
        }
    }

    /// Checks whether more than one executor serves the shards over which the partition `part`
    /// could spread.
    pub fn spans_nodes(&self, part: Ino, range: HashRange) -> bool {
        self.run_length(part.owner_shard())
            < self.shard_count() >> range.bits.min(self.shard_bits())
    }

    /// Returns the ranges that splits of the partition with the range `range` created.
    pub fn split_off_ranges(&self, range: HashRange) -> Vec<HashRange> {
        let (mut bits, mut all) = (self.bits_at_creation(range.from), Vec::new());
        while bits < range.bits
            && let Some(finer) = self.bits_after_split(bits)
        {
            all.extend(self.split_range(HashRange { bits, ..range }, finer).skip(1));
            bits = finer;
        }
        all
    }

    /// Returns the ranges with this prefix length that make up `range`.
    pub fn split_range(
        &self,
        range: HashRange,
        bits: u8,
    ) -> impl Iterator<Item = HashRange> + use<> {
        let step = low_bits_mask(bits) + 1;
        let from = range.from;
        (0..1u64 << bits.saturating_sub(range.bits))
            .map(move |n| HashRange { from: from + n * step, bits })
    }

    /// Returns the range that may have a hash which the partition with `range` does not have. The
    /// range is that of another partition as it was created.
    pub fn next_range(&self, range: HashRange, hash: u64) -> HashRange {
        let mut bits = self.bits_at_creation(range.from);
        if range_start(hash, bits) != range.from {
            return HashRange::ALL;
        }
        while let Some(finer) = self.bits_after_split(bits) {
            bits = finer;
            if range_start(hash, bits) != range.from {
                break;
            }
        }
        HashRange { from: range_start(hash, bits), bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition_map::PartitionMap;
    use crate::{ExecutorId, NodeId};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn map(count: usize) -> ShardMap {
        ShardMap::with_even_blocks(
            1,
            count,
            &[0, 1, 2].map(|n| ExecutorId::first_of_node(NodeId(n))),
        )
        .expect("a power of two")
    }

    #[test]
    fn partitions_split_as_long_as_there_are_shards() {
        let levels = |count| {
            let map = map(count);
            std::iter::successors(Some(0), |bits| map.bits_after_split(*bits)).collect::<Vec<_>>()
        };
        assert_eq!(levels(4096), [0, 4, 8, 12]);
        assert_eq!(levels(64), [0, 4, 6]);
        assert_eq!(levels(8), [0, 3]);
        let alone = ShardMap::with_one_shard(ExecutorId::first_of_node(NodeId(0)));
        assert_eq!(alone.bits_after_split(0), None);
        assert!(!alone.spans_nodes(Ino::ROOT, HashRange::ALL));
        let map = map(16);
        assert!(map.spans_nodes(Ino::ROOT, HashRange::ALL));
        assert!(!map.spans_nodes(Ino::ROOT, HashRange { from: 0, bits: 4 }));
    }

    /// Returns the partitions of a directory after random splits.
    fn split(map: &ShardMap, splits: &[prop::sample::Index]) -> BTreeMap<u64, u8> {
        let mut all = BTreeMap::from([(0, 0)]);
        for at in splits {
            let (from, bits) =
                all.iter().nth(at.index(all.len())).map(|(f, b)| (*f, *b)).expect("one");
            let range = HashRange { from, bits };
            if let Some(finer) = map.bits_after_split(bits) {
                all.extend(map.split_range(range, finer).map(|range| (range.from, range.bits)));
            }
        }
        all
    }

    proptest! {
        #[test]
        fn every_name_is_found_and_has_one_place(
            count in prop::sample::select(vec![4usize, 8, 16, 64, 4096]),
            splits in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            known in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            names in prop::collection::vec(any::<u64>(), 1..20),
            dir in 1u64..1000,
        ) {
            let map = map(count);
            let dir = map.directory_number(ShardId(3), dir);
            let all = split(&map, &splits);
            let ranges: Vec<_> = all.iter().map(|(from, bits)| HashRange { from: *from, bits: *bits }).collect();
            // The ranges cover all names, each once.
            prop_assert_eq!(ranges[0].from, 0);
            prop_assert!(ranges.windows(2).all(|w| w[0].last_hash() + 1 == w[1].from));
            prop_assert!(ranges.last().expect("one").is_last());
            // Each partition has a unique number, and the first one has the directory's.
            let numbers: std::collections::BTreeSet<_> =
                ranges.iter().map(|range| map.partition_number(dir, range.from)).collect();
            prop_assert_eq!(numbers.len(), ranges.len());
            prop_assert_eq!(map.partition_number(dir, 0), dir);
            for range in &ranges {
                let part = map.partition_number(dir, range.from);
                prop_assert_eq!(map.directory_of_range(part, range.from), dir);
                prop_assert_eq!(map.directory_of(part), dir);
                prop_assert!(range.is_valid());
            }
            // All others are derived from the first one.
            let mut found = vec![HashRange { from: 0, bits: all[&0] }];
            let mut at = 0;
            while at < found.len() {
                for range in map.split_off_ranges(found[at]) {
                    found.push(HashRange { bits: all[&range.from], ..range });
                }
                at += 1;
            }
            found.sort_unstable();
            prop_assert_eq!(&found, &ranges);
            // A client that knows some of them finds the right one after a few corrections.
            for hash in names {
                let hash = (hash >> 1).max(1);
                let mut parts = PartitionMap::default();
                for at in &known {
                    parts.record_range(ranges[at.index(ranges.len())]);
                }
                let mut asked = 0;
                loop {
                    let from = parts.locate_hash(&map, hash);
                    let range = HashRange { from, bits: all[&from] };
                    if range.contains(hash) {
                        break;
                    }
                    parts.record_range(range);
                    asked += 1;
                    prop_assert!(asked <= 4);
                }
                // A client without a cache finds it from any partition.
                let mut range = ranges[known.first().map_or(0, |at| at.index(ranges.len()))];
                let mut asked = 0;
                while !range.contains(hash) {
                    let from = map.next_range(range, hash).from;
                    range = HashRange { from, bits: all[&from] };
                    asked += 1;
                    prop_assert!(asked <= 5);
                }
            }
        }
    }
}
