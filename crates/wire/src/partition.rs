//! Parts of a directory's entries, which lie on different shards.
//!
//! Entries are ordered by a hash of their name. A *partition* has those of one range of hashes: the range
//! begins at a binary fraction of all, and its place on the ring of shards is that fraction of the ring
//! further than the directory's home. A partition that grows splits into [`FAN_OUT`] (fewer where
//! there are no more shards to tell apart); the first of them stays where it was. So each number of bits by which
//! ranges are told apart follows from the number of shards alone, and who knows how far some partitions
//! have split knows which others there must be.
//!
//! A partition has a number like that of an inode: the directory's, with the partition's shard as
//! home. The directory's own number is that of the first one.

use crate::act::Act;
use crate::meta::MetaOp;
use crate::{Ino, ShardId, ShardMap, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Into so many partitions one splits.
pub const FAN_OUT: u32 = 16;

/// Number of bits of a name's hash.
const HASH_BITS: u32 = 63;

/// What the hashes of names are seeded with.
pub fn name_seed(volume: VolumeId) -> u64 {
    xxh3_64(&volume.0)
}

/// The place of a name in its directory: a 63-bit hash, never 0, because 0
/// stands for the start of a listing.
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    (xxh3_64_with_seed(name, seed) >> 1).max(1)
}

/// Which names a partition has.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Range {
    /// The lowest hash (0 stands for no name).
    pub from: u64,
    /// Number of leading bits of the hash that tell it from others: 0 where it has all names.
    pub bits: u8,
}

impl Range {
    /// All names.
    pub const ALL: Range = Range { from: 0, bits: 0 };

    /// The range with so many leading bits that has this hash.
    pub fn around(hash: u64, bits: u8) -> Range {
        Range { from: begin(hash, bits), bits }
    }

    /// Whether there is such a range.
    pub fn is_valid(self) -> bool {
        u32::from(self.bits) <= HASH_BITS
            && self.from >> HASH_BITS == 0
            && begin(self.from, self.bits) == self.from
    }

    /// Whether it has names with this hash.
    pub fn has(self, hash: u64) -> bool {
        begin(hash, self.bits) == self.from
    }

    /// The highest hash.
    pub fn last(self) -> u64 {
        self.from | low(self.bits)
    }

    /// Whether no range is above it.
    pub fn is_last(self) -> bool {
        self.last() == low(0)
    }
}

/// The bits of a hash below the leading ones.
fn low(bits: u8) -> u64 {
    (1u64 << HASH_BITS.saturating_sub(u32::from(bits))) - 1
}

/// Where the range with so many leading bits begins that has this hash.
fn begin(hash: u64, bits: u8) -> u64 {
    hash & !low(bits)
}

/// How partitions lie on the ring.
impl ShardMap {
    /// Bits that tell all shards apart.
    fn bits(&self) -> u8 {
        self.count().trailing_zeros() as u8
    }

    /// By how many bits ranges are told apart after a split of one with so many; `None` where there are no more
    /// shards to tell apart.
    pub fn finer(&self, bits: u8) -> Option<u8> {
        let most = self.bits();
        (bits < most).then(|| most.min(bits + FAN_OUT.trailing_zeros() as u8))
    }

    /// How many bits the range that begins there had when it came into being.
    fn made(&self, from: u64) -> u8 {
        let mut bits = 0;
        while begin(from, bits) != from
            && let Some(finer) = self.finer(bits)
        {
            bits = finer;
        }
        bits
    }

    fn steps(&self, from: u64) -> u64 {
        from >> (HASH_BITS - u32::from(self.bits()))
    }

    /// The number of the partition of `dir` whose range begins at `from`.
    pub fn partition(&self, dir: Ino, from: u64) -> Ino {
        Ino::new(self.further(dir.shard(), self.steps(from)), dir.birth(), dir.counter())
    }

    /// The directory of the partition `part`, whose range begins at `from`.
    pub fn whole(&self, part: Ino, from: u64) -> Ino {
        let back = self.count() as u64 - self.steps(from);
        Ino::new(self.further(part.shard(), back), part.birth(), part.counter())
    }

    /// The directory of the partition with the number `part`.
    pub fn directory_of(&self, part: Ino) -> Ino {
        let (birth, counter) = (part.birth(), part.counter());
        match Ino::new(ShardId(0), birth, counter) {
            Ino::ROOT => Ino::ROOT,
            _ => self.directory(birth, counter),
        }
    }

    /// Whether more than one node serves the shards over which the partition `part` could spread.
    pub fn spans_nodes(&self, part: Ino, range: Range) -> bool {
        self.run(part.shard()) < self.count() >> range.bits.min(self.bits())
    }

    /// The ranges that came into being by the splits of the partition that is `range` now.
    pub fn split_off(&self, range: Range) -> Vec<Range> {
        let (mut bits, mut all) = (self.made(range.from), Vec::new());
        while bits < range.bits
            && let Some(finer) = self.finer(bits)
        {
            all.extend(self.parts(Range { bits, ..range }, finer).skip(1));
            bits = finer;
        }
        all
    }

    /// The ranges with so many bits that make up `range`.
    pub fn parts(&self, range: Range, bits: u8) -> impl Iterator<Item = Range> + use<> {
        let step = low(bits) + 1;
        let from = range.from;
        (0..1u64 << bits.saturating_sub(range.bits))
            .map(move |n| Range { from: from + n * step, bits })
    }

    /// Where to look for a hash that the partition with `range` does not have: the range of
    /// another one, as it was when it came into being.
    pub fn onward(&self, range: Range, hash: u64) -> Range {
        let mut bits = self.made(range.from);
        if begin(hash, bits) != range.from {
            return Range::ALL;
        }
        while let Some(finer) = self.finer(bits) {
            bits = finer;
            if begin(hash, bits) != range.from {
                break;
            }
        }
        Range { from: begin(hash, bits), bits }
    }
}

/// What somebody has been told of the partitions of one directory. It may be old: then whoever is asked for a name
/// that he has not any more says what he has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitions {
    /// With how many bits each range is told apart, by its beginning.
    bits: BTreeMap<u64, u8>,
}

impl Partitions {
    /// Notes that there is a partition with this range.
    pub fn learn(&mut self, range: Range) {
        let bits = self.bits.entry(range.from).or_default();
        *bits = range.bits.max(*bits);
    }

    /// Where the range begins that a name with this hash is looked for in.
    pub fn find(&self, map: &ShardMap, hash: u64) -> u64 {
        let mut range = Range::ALL;
        loop {
            let known = self.bits.get(&range.from).copied().unwrap_or_default();
            range.bits = range.bits.max(known);
            if range.has(hash) {
                return range.from;
            }
            let onward = map.onward(range, hash);
            if onward == range || onward.bits <= map.made(range.from) {
                return range.from;
            }
            range = onward;
        }
    }
}

/// What somebody has been told of the partitions of all directories.
#[derive(Clone, Debug, Default)]
pub struct Directories {
    known: BTreeMap<Ino, Partitions>,
}

impl Directories {
    /// Directories that are remembered. Whoever is forgotten costs another question.
    const MAX: usize = 4096;

    /// Whether no directory is known to have split.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether the directory is known to have split.
    pub fn is_split(&self, dir: Ino) -> bool {
        self.known.contains_key(&dir)
    }

    /// Puts the partitions that are to be asked in the place of directories.
    pub fn locate(&self, map: &ShardMap, seed: u64, op: &mut MetaOp) {
        op.for_each_place(seed, |dir, hash| self.locate_one(map, dir, hash));
    }

    /// As [`Directories::locate`].
    pub fn locate_act(&self, map: &ShardMap, seed: u64, act: &mut Act) {
        if !self.is_empty() {
            act.for_each_place(seed, &mut |dir, hash| self.locate_one(map, dir, hash));
        }
    }

    /// The partition of a directory that is to be asked for a name with this hash.
    pub fn find(&self, map: &ShardMap, dir: Ino, hash: u64) -> Ino {
        match self.known.get(&dir) {
            Some(parts) => map.partition(dir, parts.find(map, hash)),
            None => dir,
        }
    }

    fn locate_one(&self, map: &ShardMap, dir: &mut Ino, hash: u64) {
        *dir = self.find(map, *dir, hash);
    }

    /// Notes which names a partition has.
    pub fn learn(&mut self, map: &ShardMap, part: Ino, range: Range) {
        let dir = map.whole(part, range.from);
        if self.known.len() >= Directories::MAX && !self.known.contains_key(&dir) {
            self.known.clear();
        }
        self.known.entry(dir).or_default().learn(range);
    }

    /// Forgets the directories of an operation that met a partition that is not there. Whether there was something to
    /// forget: then it is to be located anew.
    pub fn forget(&mut self, seed: u64, op: &MetaOp) -> bool {
        let (mut op, mut forgotten) = (op.clone(), false);
        op.for_each_place(seed, |dir, _| forgotten |= self.known.remove(dir).is_some());
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExecutorId, NodeId};
    use proptest::prelude::*;

    fn map(count: usize) -> ShardMap {
        ShardMap::even(1, count, &[0, 1, 2].map(|n| ExecutorId::first(NodeId(n))))
            .expect("a power of two")
    }

    #[test]
    fn partitions_split_as_long_as_there_are_shards() {
        let levels = |count| {
            let map = map(count);
            std::iter::successors(Some(0), |bits| map.finer(*bits)).collect::<Vec<_>>()
        };
        assert_eq!(levels(4096), [0, 4, 8, 12]);
        assert_eq!(levels(64), [0, 4, 6]);
        assert_eq!(levels(8), [0, 3]);
        let alone = ShardMap::single(ExecutorId::first(NodeId(0)));
        assert_eq!(alone.finer(0), None);
        assert!(!alone.spans_nodes(Ino::ROOT, Range::ALL));
        let map = map(16);
        assert!(map.spans_nodes(Ino::ROOT, Range::ALL));
        assert!(!map.spans_nodes(Ino::ROOT, Range { from: 0, bits: 4 }));
    }

    /// A directory that splits at random.
    fn split(map: &ShardMap, splits: &[prop::sample::Index]) -> BTreeMap<u64, u8> {
        let mut all = BTreeMap::from([(0, 0)]);
        for at in splits {
            let (from, bits) =
                all.iter().nth(at.index(all.len())).map(|(f, b)| (*f, *b)).expect("one");
            let range = Range { from, bits };
            if let Some(finer) = map.finer(bits) {
                all.extend(map.parts(range, finer).map(|range| (range.from, range.bits)));
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
            let dir = map.directory(ShardId(3), dir);
            let all = split(&map, &splits);
            let ranges: Vec<_> = all.iter().map(|(from, bits)| Range { from: *from, bits: *bits }).collect();
            // They cover all names, each once.
            prop_assert_eq!(ranges[0].from, 0);
            prop_assert!(ranges.windows(2).all(|w| w[0].last() + 1 == w[1].from));
            prop_assert!(ranges.last().expect("one").is_last());
            // Each has a number of its own, and the directory's is the first one's.
            let numbers: std::collections::BTreeSet<_> =
                ranges.iter().map(|range| map.partition(dir, range.from)).collect();
            prop_assert_eq!(numbers.len(), ranges.len());
            prop_assert_eq!(map.partition(dir, 0), dir);
            for range in &ranges {
                let part = map.partition(dir, range.from);
                prop_assert_eq!(map.whole(part, range.from), dir);
                prop_assert_eq!(map.directory_of(part), dir);
                prop_assert!(range.is_valid());
            }
            // From the first one all others are found.
            let mut found = vec![Range { from: 0, bits: all[&0] }];
            let mut at = 0;
            while at < found.len() {
                for range in map.split_off(found[at]) {
                    found.push(Range { bits: all[&range.from], ..range });
                }
                at += 1;
            }
            found.sort_unstable();
            prop_assert_eq!(&found, &ranges);
            // Who knows some of them finds the right one after a few corrections.
            for hash in names {
                let hash = (hash >> 1).max(1);
                let mut parts = Partitions::default();
                for at in &known {
                    parts.learn(ranges[at.index(ranges.len())]);
                }
                let mut asked = 0;
                loop {
                    let from = parts.find(&map, hash);
                    let range = Range { from, bits: all[&from] };
                    if range.has(hash) {
                        break;
                    }
                    parts.learn(range);
                    asked += 1;
                    prop_assert!(asked <= 4);
                }
                // Without any memory, from anywhere.
                let mut range = ranges[known.first().map_or(0, |at| at.index(ranges.len()))];
                let mut asked = 0;
                while !range.has(hash) {
                    let from = map.onward(range, hash).from;
                    range = Range { from, bits: all[&from] };
                    asked += 1;
                    prop_assert!(asked <= 5);
                }
            }
        }
    }
}
