//! Check of partitions: partitions of directories that are missing, and those that no directory
//! knows.
//!
//! The partitions that a directory must have follow from the ranges of those that exist, see
//! [`tatami_wire::partition`]. They are repaired before the executors verify their own records:
//! these would lose the entries of a partition without a record.

use super::mend::Did;
use super::names::Leads;
use super::{Fsck, FsckError};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tatami_wire::mend::{Mend, Parted};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::partition::Range;
use tatami_wire::{Cred, Errno, Ino, ShardMap};

const WHAT: &str = "tell partitions of directories";
/// Most looks at partitions that do not stop changing.
const LOOKS: u32 = 50;
/// Time between two looks.
const REST: Duration = Duration::from_millis(10);
/// Most steps in which a partition is emptied.
const STEPS_MAX: u32 = 1 << 20;

/// The known partitions of a directory, by the start of their ranges.
type Group = BTreeMap<u64, Parted>;

/// A fault in the partitions of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// The directory itself, its first partition, is missing, and `count` others exist.
    First { count: usize, range: Range, like: Ino },
    /// Another partition is missing.
    Missing { part: Ino, range: Range, like: Ino },
    /// A partition that the directory does not know.
    Unknown { part: Ino, entries: u64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::First { count, .. } => {
                write!(f, "the directory is not there, {count} other partitions of it are")
            }
            Fault::Missing { part, .. } => write!(f, "its partition {part} is not there"),
            Fault::Unknown { part, entries } => {
                write!(f, "partition {part}, with {entries} entries, is of it and it does not know")
            }
        }
    }
}

impl Fsck<'_> {
    /// Compares the partitions of each directory; does nothing where one executor always had all of
    /// them.
    pub(super) fn partitions(&mut self) -> Result<(), FsckError> {
        let map = self.client.map();
        let leads = map.leads();
        let Some(map) = map.shard_map().filter(|_| self.is_spread()) else { return Ok(()) };
        let mut open: Vec<Ino> = Vec::new();
        for (dir, group) in self.told_parts(&leads, &map)? {
            if self.fault_of(&map, dir, &group)?.is_some() {
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
                views.push(self.told_parts(&leads, &map)?);
            }
            for dir in std::mem::take(&mut open) {
                let group = views[0].get(&dir).cloned().unwrap_or_default();
                let rests = group.values().all(|part| !part.changing);
                if !rests
                    || views.iter().any(|view| view.get(&dir).unwrap_or(&Group::new()) != &group)
                {
                    open.push(dir);
                    continue;
                }
                match self.fault_of(&map, dir, &group)? {
                    Some(fault) if self.mend_parts(dir, &fault)? => open.push(dir),
                    Some(_) => {}
                    None if look > 0 => {}
                    None => self.report.dispelled += 1,
                }
            }
        }
        Ok(())
    }

    /// Collects the records of split directories from all executors.
    fn told_parts(&self, leads: &Leads, map: &ShardMap) -> Result<BTreeMap<Ino, Group>, FsckError> {
        let mut all: BTreeMap<Ino, Group> = BTreeMap::new();
        for (shard, executor) in leads {
            let failed = |errno| FsckError::Executor { executor: *executor, what: WHAT, errno };
            let mut next = Some(Ino(0));
            while let Some(after) = next {
                let op = MetaOp::Parts { shard: *shard, after };
                let reply = self.client.meta_at(*executor, &Cred::ROOT, op).map_err(failed)?;
                let MetaReply::Parts { parts, next: following } = reply else {
                    return Err(failed(Errno::EPROTO));
                };
                for part in parts.into_iter().filter(|part| part.range.is_valid()) {
                    let dir = map.whole(part.ino, part.range.from);
                    all.entry(dir).or_default().insert(part.range.from, part);
                }
                // The number must advance: otherwise a broken executor would be asked for ever.
                next = following.filter(|next| *next > after);
            }
        }
        Ok(all)
    }

    /// Returns the fault in the partitions of a directory, if there is one.
    fn fault_of(
        &self,
        map: &ShardMap,
        dir: Ino,
        group: &Group,
    ) -> Result<Option<Fault>, FsckError> {
        let fault = fault(map, dir, group);
        match fault {
            // A directory whose record cannot be decoded is made again, too.
            Some(Fault::First { .. }) if self.client.getattr(&Cred::ROOT, dir).is_ok() => {
                // The directory exists and has all of its entries itself.
                let part = group.values().next();
                let unknown =
                    |part: &Parted| Fault::Unknown { part: part.ino, entries: part.entries };
                Ok(part.map(unknown))
            }
            fault => Ok(fault),
        }
    }

    /// Reports a fault, and repairs it if that is wanted. Returns whether there may be more.
    fn mend_parts(&mut self, dir: Ino, fault: &Fault) -> Result<bool, FsckError> {
        let what = fault.to_string();
        if !self.repair {
            self.found_names(dir, what, false);
            return Ok(false);
        }
        let did = match fault {
            Fault::First { range, like, .. } => {
                let mend = Mend::Part { range: *range, like: *like };
                self.put(dir, mend, "made anew")?
            }
            Fault::Missing { part, range, like } => {
                let mend = Mend::Part { range: *range, like: *like };
                self.put(*part, mend, "made anew, with the entries that are left of it")?
            }
            Fault::Unknown { part, .. } => self.empty(*part)?,
        };
        match did {
            Did::Mended(how) => self.found_names(dir, format!("{what}: {how}"), true),
            Did::Changed => {}
            Did::Cannot(why) => {
                self.found_names(dir, format!("{what}; {why}"), false);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the entries of a partition to the partitions where they belong.
    fn empty(&self, part: Ino) -> Result<Did, FsckError> {
        let mut did = Did::Changed;
        for _ in 0..STEPS_MAX {
            match self.put(part, Mend::Empty, "its entries are where they belong now")? {
                Did::Mended(how) => did = Did::Mended(how),
                Did::Changed => break,
                Did::Cannot(why) => return Ok(Did::Cannot(why)),
            }
        }
        Ok(did)
    }
}

/// Returns the fault in the partitions of a directory, judged by these partitions alone.
fn fault(map: &ShardMap, dir: Ino, group: &Group) -> Option<Fault> {
    let Some(first) = group.get(&0) else {
        let range = grown(map, group, Range::ALL);
        let like = group.values().next()?.ino;
        return Some(Fault::First { count: group.len(), range, like });
    };
    let (mut known, mut at) = (vec![first], 0);
    while let Some(like) = known.get(at).copied() {
        for range in map.split_off(like.range) {
            match group.get(&range.from) {
                Some(part) => known.push(part),
                None => {
                    let part = map.partition(dir, range.from);
                    let range = grown(map, group, range);
                    return Some(Fault::Missing { part, range, like: like.ino });
                }
            }
        }
        at += 1;
    }
    let unknown = group.values().find(|part| !known.iter().any(|k| k.ino == part.ino))?;
    Some(Fault::Unknown { part: unknown.ino, entries: unknown.entries })
}

/// Returns the part of a range that remains after the splits that have made the other partitions.
fn grown(map: &ShardMap, group: &Group, made: Range) -> Range {
    let (mut range, mut bits) = (made, made.bits);
    while let Some(finer) = map.finer(bits) {
        let mut split_off = map.parts(Range { bits, ..made }, finer).skip(1);
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
        ShardMap::even(1, 4096, &[0, 1].map(|node| ExecutorId::first(NodeId(node))))
            .expect("a power of two")
    }

    /// A directory that splits at random.
    fn group(map: &ShardMap, dir: Ino, splits: &[prop::sample::Index]) -> Group {
        let mut ranges = BTreeMap::from([(0, 0)]);
        for at in splits {
            let (from, bits) =
                ranges.iter().nth(at.index(ranges.len())).map(|(f, b)| (*f, *b)).expect("one");
            if let Some(finer) = map.finer(bits) {
                ranges.extend(map.parts(Range { from, bits }, finer).map(|r| (r.from, r.bits)));
            }
        }
        let part = |(from, bits)| {
            let ino = map.partition(dir, from);
            let range = Range { from, bits };
            (from, Parted { ino, range, entries: 3, changing: false })
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
            let dir = map.directory(ShardId(3), number);
            let whole = group(&map, dir, &splits);
            prop_assert_eq!(fault(&map, dir, &whole), None);
            let mut left = whole.clone();
            for at in lost {
                let from = *whole.keys().nth(at.index(whole.len())).expect("one");
                left.remove(&from);
            }
            for _ in 0..whole.len() {
                let (from, range) = match fault(&map, dir, &left) {
                    None => break,
                    Some(Fault::First { range, .. }) => (0, range),
                    Some(Fault::Missing { part, range, .. }) => {
                        prop_assert_eq!(part, map.partition(dir, range.from));
                        (range.from, range)
                    }
                    Some(unknown) => panic!("{unknown}"),
                };
                // Unless all partitions that it had split into are lost with it.
                prop_assert!(range.bits <= whole[&from].range.bits);
                let part = Parted { range, ..whole[&from] };
                left.insert(from, part);
            }
            prop_assert_eq!(fault(&map, dir, &left), None);
            let same = left.len() == whole.len();
            prop_assert!(same || left.keys().all(|from| whole.contains_key(from)));
        }

        #[test]
        fn a_partition_that_is_not_known_is_found(
            splits in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
            number in 1u64..1000,
        ) {
            let map = map();
            let dir = map.directory(ShardId(3), number);
            let mut group = group(&map, dir, &splits);
            let finer = map.finer(group[&0].range.bits);
            let Some(finer) = finer else { return Ok(()) };
            let range = map.parts(group[&0].range, finer).nth(1).expect("there are several");
            let ino = map.partition(dir, range.from);
            group.insert(range.from, Parted { ino, range, entries: 0, changing: false });
            prop_assert_eq!(fault(&map, dir, &group), Some(Fault::Unknown { part: ino, entries: 0 }));
        }
    }
}
