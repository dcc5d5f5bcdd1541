//! Check of partitions: partitions of directories that are missing, and those that no directory
//! knows.
//!
//! The partitions that a directory must have follow from the ranges of those that exist, see
//! [`tatami_wire::partition`]. They are repaired before the executors verify their own records:
//! these would lose the entries of a partition without a record.

use super::name_fault::LeadShards;
use super::repair::RepairOutcome;
use super::{Fsck, FsckError};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::partition::HashRange;
use tatami_wire::repair::{PartitionRecord, Repair};
use tatami_wire::{Cred, Errno, Ino, ShardMap};

const WHAT: &str = "tell partitions of directories";
/// Most looks at partitions that do not stop changing.
const LOOKS: u32 = 50;
/// Time between two looks.
const REST: Duration = Duration::from_millis(10);
/// Most steps in which a partition is emptied.
const STEPS_MAX: u32 = 1 << 20;

/// The known partitions of a directory, by the start of their ranges.
type PartitionGroup = BTreeMap<u64, PartitionRecord>;

/// A fault in the partitions of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PartitionFault {
    /// The directory itself, its first partition, is missing, and `count` others exist.
    First { count: usize, range: HashRange, like: Ino },
    /// Another partition is missing.
    Missing { part: Ino, range: HashRange, like: Ino },
    /// A partition that the directory does not know.
    Unknown { part: Ino, entries: u64 },
}

impl fmt::Display for PartitionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartitionFault::First { count, .. } => {
                write!(f, "the directory is not there, {count} other partitions of it are")
            }
            PartitionFault::Missing { part, .. } => write!(f, "its partition {part} is not there"),
            PartitionFault::Unknown { part, entries } => {
                write!(f, "partition {part}, with {entries} entries, is of it and it does not know")
            }
        }
    }
}

impl Fsck<'_> {
    /// Compares the partitions of each directory; does nothing where one executor always had all of
    /// them.
    pub(super) fn check_partitions(&mut self) -> Result<(), FsckError> {
        let map = self.client.map();
        let leads = map.first_shards();
        let Some(map) = map.shard_map().filter(|_| self.has_several_executors()) else {
            return Ok(());
        };
        let mut open: Vec<Ino> = Vec::new();
        for (dir, group) in self.collect_partitions(&leads, &map)? {
            if self.confirm_partition_fault(&map, dir, &group)?.is_some() {
                open.push(dir);
            }
        }
        for look in 0..LOOKS {
            if open.is_empty() {
                return Ok(());
            }
            if look > 0 {
                #[allow(clippy::disallowed_methods)] // the end of a transaction sends no event
                std::thread::sleep(REST);
            }
            // Three looks with the same result, while no transaction is changing any of it: a
            // partition that moves between executors is missed once at most.
            let mut views = Vec::with_capacity(3);
            for _ in 0..3 {
                views.push(self.collect_partitions(&leads, &map)?);
            }
            for dir in std::mem::take(&mut open) {
                let group = views[0].get(&dir).cloned().unwrap_or_default();
                let rests = group.values().all(|part| !part.changing);
                if !rests
                    || views
                        .iter()
                        .any(|view| view.get(&dir).unwrap_or(&PartitionGroup::new()) != &group)
                {
                    open.push(dir);
                    continue;
                }
                match self.confirm_partition_fault(&map, dir, &group)? {
                    Some(fault) if self.repair_partition(dir, &fault)? => open.push(dir),
                    Some(_) => {}
                    None if look > 0 => {}
                    None => self.report.dispelled += 1,
                }
            }
        }
        Ok(())
    }

    /// Collects the records of split directories from all executors.
    fn collect_partitions(
        &self,
        leads: &LeadShards,
        map: &ShardMap,
    ) -> Result<BTreeMap<Ino, PartitionGroup>, FsckError> {
        let mut all: BTreeMap<Ino, PartitionGroup> = BTreeMap::new();
        for (shard, executor) in leads {
            let failed = |errno| FsckError::Executor { executor: *executor, what: WHAT, errno };
            let mut next = Some(Ino(0));
            while let Some(after) = next {
                let op = MetaOp::ScanPartitions { shard: *shard, after };
                let reply =
                    self.client.request_executor(*executor, &Cred::ROOT, op).map_err(failed)?;
                let MetaReply::PartitionRecords { parts, next: following } = reply else {
                    return Err(failed(Errno::EPROTO));
                };
                for part in parts.into_iter().filter(|part| part.range.is_valid()) {
                    let dir = map.directory_of_range(part.ino, part.range.from);
                    all.entry(dir).or_default().insert(part.range.from, part);
                }
                // The number must advance: otherwise a broken executor would be asked for ever.
                next = following.filter(|next| *next > after);
            }
        }
        Ok(all)
    }

    /// Returns the fault in the partitions of a directory, if there is one.
    fn confirm_partition_fault(
        &self,
        map: &ShardMap,
        dir: Ino,
        group: &PartitionGroup,
    ) -> Result<Option<PartitionFault>, FsckError> {
        let fault = find_partition_fault(map, dir, group);
        match fault {
            // A directory whose record cannot be decoded is made again, too.
            Some(PartitionFault::First { .. }) if self.client.getattr(&Cred::ROOT, dir).is_ok() => {
                // The directory exists and has all of its entries itself.
                let part = group.values().next();
                let unknown = |part: &PartitionRecord| PartitionFault::Unknown {
                    part: part.ino,
                    entries: part.entries,
                };
                Ok(part.map(unknown))
            }
            fault => Ok(fault),
        }
    }

    /// Reports a fault, and repairs it if that is wanted. Returns whether there may be more.
    fn repair_partition(&mut self, dir: Ino, fault: &PartitionFault) -> Result<bool, FsckError> {
        let what = fault.to_string();
        if !self.repair {
            self.record_name_finding(dir, what, false);
            return Ok(false);
        }
        let did = match fault {
            PartitionFault::First { range, like, .. } => {
                let mend = Repair::RecreatePartition { range: *range, like: *like };
                self.send_repair(dir, mend, "made anew")?
            }
            PartitionFault::Missing { part, range, like } => {
                let mend = Repair::RecreatePartition { range: *range, like: *like };
                self.send_repair(*part, mend, "made anew, with the entries that are left of it")?
            }
            PartitionFault::Unknown { part, .. } => self.empty_partition(*part)?,
        };
        match did {
            RepairOutcome::Repaired(how) => {
                self.record_name_finding(dir, format!("{what}: {how}"), true)
            }
            RepairOutcome::Changed => {}
            RepairOutcome::Cannot(why) => {
                self.record_name_finding(dir, format!("{what}; {why}"), false);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the entries of a partition to the partitions where they belong.
    fn empty_partition(&self, part: Ino) -> Result<RepairOutcome, FsckError> {
        let mut did = RepairOutcome::Changed;
        for _ in 0..STEPS_MAX {
            match self.send_repair(
                part,
                Repair::EmptyPartition,
                "its entries are where they belong now",
            )? {
                RepairOutcome::Repaired(how) => did = RepairOutcome::Repaired(how),
                RepairOutcome::Changed => break,
                RepairOutcome::Cannot(why) => return Ok(RepairOutcome::Cannot(why)),
            }
        }
        Ok(did)
    }
}

/// Returns the fault in the partitions of a directory, judged by these partitions alone.
fn find_partition_fault(
    map: &ShardMap,
    dir: Ino,
    group: &PartitionGroup,
) -> Option<PartitionFault> {
    let Some(first) = group.get(&0) else {
        let range = remaining_range(map, group, HashRange::ALL);
        let like = group.values().next()?.ino;
        return Some(PartitionFault::First { count: group.len(), range, like });
    };
    let (mut known, mut at) = (vec![first], 0);
    while let Some(like) = known.get(at).copied() {
        for range in map.split_off_ranges(like.range) {
            match group.get(&range.from) {
                Some(part) => known.push(part),
                None => {
                    let part = map.partition_number(dir, range.from);
                    let range = remaining_range(map, group, range);
                    return Some(PartitionFault::Missing { part, range, like: like.ino });
                }
            }
        }
        at += 1;
    }
    let unknown = group.values().find(|part| !known.iter().any(|k| k.ino == part.ino))?;
    Some(PartitionFault::Unknown { part: unknown.ino, entries: unknown.entries })
}

/// Returns the part of a range that remains after the splits that have made the other partitions.
fn remaining_range(map: &ShardMap, group: &PartitionGroup, made: HashRange) -> HashRange {
    let (mut range, mut bits) = (made, made.bits);
    while let Some(finer) = map.bits_after_split(bits) {
        let mut split_off = map.split_range(HashRange { bits, ..made }, finer).skip(1);
        if split_off.any(|other| group.contains_key(&other.from)) {
            range.bits = finer;
        }
        bits = finer;
    }
    range
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tatami_wire::{ExecutorId, NodeId, ShardId};

    fn map() -> ShardMap {
        ShardMap::with_even_blocks(
            1,
            4096,
            &[0, 1].map(|node| ExecutorId::first_of_node(NodeId(node))),
        )
        .expect("a power of two")
    }

    /// A directory that splits at random.
    fn group(map: &ShardMap, dir: Ino, splits: &[prop::sample::Index]) -> PartitionGroup {
        let mut ranges = BTreeMap::from([(0, 0)]);
        for at in splits {
            let (from, bits) =
                ranges.iter().nth(at.index(ranges.len())).map(|(f, b)| (*f, *b)).expect("one");
            if let Some(finer) = map.bits_after_split(bits) {
                ranges.extend(
                    map.split_range(HashRange { from, bits }, finer).map(|r| (r.from, r.bits)),
                );
            }
        }
        let part = |(from, bits)| {
            let ino = map.partition_number(dir, from);
            let range = HashRange { from, bits };
            (from, PartitionRecord { ino, range, entries: 3, changing: false })
        };
        ranges.into_iter().map(part).collect()
    }

    proptest! {
        #[test]
        fn lost_partitions_are_found_and_made_as_they_were(
            splits in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
            lost in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            number in 1u64..1000,
        ) {
            let map = map();
            let dir = map.directory_number(ShardId(3), number);
            let whole = group(&map, dir, &splits);
            prop_assert_eq!(find_partition_fault(&map, dir, &whole), None);
            let mut left = whole.clone();
            for at in lost {
                let from = *whole.keys().nth(at.index(whole.len())).expect("one");
                left.remove(&from);
            }
            for _ in 0..whole.len() {
                let (from, range) = match find_partition_fault(&map, dir, &left) {
                    None => break,
                    Some(PartitionFault::First { range, .. }) => (0, range),
                    Some(PartitionFault::Missing { part, range, .. }) => {
                        prop_assert_eq!(part, map.partition_number(dir, range.from));
                        (range.from, range)
                    }
                    Some(unknown) => panic!("{unknown}"),
                };
                // Unless all partitions that it had split into are lost with it.
                prop_assert!(range.bits <= whole[&from].range.bits);
                let part = PartitionRecord { range, ..whole[&from] };
                left.insert(from, part);
            }
            prop_assert_eq!(find_partition_fault(&map, dir, &left), None);
            let same = left.len() == whole.len();
            prop_assert!(same || left.keys().all(|from| whole.contains_key(from)));
        }

        #[test]
        fn a_partition_that_is_not_known_is_found(
            splits in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
            number in 1u64..1000,
        ) {
            let map = map();
            let dir = map.directory_number(ShardId(3), number);
            let mut group = group(&map, dir, &splits);
            let finer = map.bits_after_split(group[&0].range.bits);
            let Some(finer) = finer else { return Ok(()) };
            let range = map.split_range(group[&0].range, finer).nth(1).expect("there are several");
            let ino = map.partition_number(dir, range.from);
            group.insert(range.from, PartitionRecord { ino, range, entries: 0, changing: false });
            prop_assert_eq!(find_partition_fault(&map, dir, &group), Some(PartitionFault::Unknown { part: ino, entries: 0 }));
        }
    }
}
