//! All versions of a device: the earlier states of its objects that are kept.

use crate::class::SizeClass;
use crate::region_head::RegionKey;
use crate::stored_object::RegionObject;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tatami_wire::Timestamp;
use tatami_wire::object::ObjectVersion;
use tatami_wire::version_rule::VersionRule;

/// A version.
#[derive(Clone, Debug)]
pub(crate) struct VersionEntry {
    /// Its bytes. The number of the version is the object's.
    pub object: Arc<RegionObject>,
    /// What is known of it without its bytes.
    pub state: ObjectVersion,
}

/// A version in the order of time.
type TimedVersion = (Timestamp, RegionKey, u32);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct VersionTable {
    entries: BTreeMap<(RegionKey, u32), VersionEntry>,
    /// By the time since when each is kept.
    by_time: BTreeSet<TimedVersion>,
    /// By the time when each becomes too old.
    by_end: BTreeSet<TimedVersion>,
    bytes: u64,
}

fn storage_of(state: &ObjectVersion) -> u64 {
    SizeClass::for_size(state.size).map_or(0, SizeClass::capacity)
}

fn end_of(key: RegionKey, state: &ObjectVersion) -> Option<Timestamp> {
    VersionRule::of_object(key.1).max_age().map(|age| state.replaced.plus_sec(age))
}

impl VersionTable {
    /// Adds a version. One with its number must not be there.
    pub(crate) fn insert(&mut self, entry: VersionEntry) {
        let (key, state) = (entry.object.key, entry.state);
        self.bytes += storage_of(&state);
        self.by_time.insert((state.replaced, key, state.number));
        if let Some(end) = end_of(key, &state) {
            self.by_end.insert((end, key, state.number));
        }
        let old = self.entries.insert((key, state.number), entry);
        assert!(old.is_none(), "a version gets a number twice");
    }

    /// Takes a version out.
    pub(crate) fn take(&mut self, key: RegionKey, number: u32) -> Option<VersionEntry> {
        let entry = self.entries.remove(&(key, number))?;
        self.bytes -= storage_of(&entry.state);
        self.by_time.remove(&(entry.state.replaced, key, number));
        if let Some(end) = end_of(key, &entry.state) {
            self.by_end.remove(&(end, key, number));
        }
        Some(entry)
    }

    /// Returns a version.
    pub(crate) fn get(&self, key: RegionKey, number: u32) -> Option<&VersionEntry> {
        self.entries.get(&(key, number))
    }

    /// Whether an object has versions.
    pub(crate) fn has_object(&self, key: RegionKey) -> bool {
        self.entries.range((key, 0)..=(key, u32::MAX)).next().is_some()
    }

    /// Returns the number of an object's last version, or 0.
    pub(crate) fn last_number(&self, key: RegionKey) -> u32 {
        let mut all = self.entries.range((key, 0)..=(key, u32::MAX));
        all.next_back().map_or(0, |((_, number), _)| *number)
    }

    /// Returns all versions of an object, in order.
    pub(crate) fn of_object(&self, key: RegionKey) -> Vec<VersionEntry> {
        self.entries.range((key, 0)..=(key, u32::MAX)).map(|(_, entry)| entry.clone()).collect()
    }

    /// Takes out the version that is kept for longest.
    pub(crate) fn take_oldest(&mut self) -> Option<VersionEntry> {
        let (_, key, number) = *self.by_time.first()?;
        self.take(key, number)
    }

    /// Takes out a version that is too old.
    pub(crate) fn take_expired(&mut self, now: Timestamp) -> Option<VersionEntry> {
        let (_, key, number) = *self.by_end.first().filter(|(end, ..)| *end <= now)?;
        self.take(key, number)
    }

    /// Takes out the versions of an object that its rule does not keep.
    pub(crate) fn take_surplus(&mut self, key: RegionKey, now: Timestamp) -> Vec<VersionEntry> {
        let all = self.of_object(key);
        let kept: Vec<Timestamp> = all.iter().map(|entry| entry.state.replaced).collect();
        let ended = VersionRule::of_object(key.1).count_ended(&kept, now);
        all[..ended].iter().filter_map(|entry| self.take(key, entry.state.number)).collect()
    }

    /// Returns all versions.
    pub(crate) fn list_all(&self) -> Vec<VersionEntry> {
        self.entries.values().cloned().collect()
    }

    /// Returns the objects that have versions, in order.
    pub(crate) fn list_objects(&self) -> BTreeSet<RegionKey> {
        self.entries.keys().map(|(key, _)| *key).collect()
    }

    /// Returns the first object of an inode that has versions.
    pub(crate) fn find_object_of(&self, ino: tatami_wire::Ino) -> Option<RegionKey> {
        let from = ((ino, tatami_wire::Piece(0)), 0);
        self.entries.range(from..).next().map(|((key, _), _)| *key).filter(|key| key.0 == ino)
    }

    /// Returns the bytes of the regions of all versions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of versions.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tatami_wire::{Ino, Piece};

    fn piece(rule: &str) -> Piece {
        Piece::first_versioned(VersionRule::parse(rule).expect("a rule").code())
    }

    fn entry(key: RegionKey, number: u32, sec: i64) -> VersionEntry {
        let replaced = Timestamp::from_sec(sec);
        let state = ObjectVersion { number, size: 5000, mtime: replaced, replaced };
        let object = RegionObject::new_version(key, number, Default::default());
        VersionEntry { object, state }
    }

    proptest! {
        /// Thinning against the rule in words: the newest `count` that are younger than the age.
        #[test]
        fn what_stays_is_young_and_among_the_newest(
            count in 0u8..8, age in 1u8..60, aged: bool,
            steps in prop::collection::vec(0i64..20, 0..20), later in 0i64..80,
        ) {
            let rule = match aged && count > 0 {
                true => format!("{count},{age}s"),
                false => count.to_string(),
            };
            let aged = aged && count > 0;
            let rule = VersionRule::parse(&rule).expect("a rule");
            let key = (Ino(7), Piece::first_versioned(rule.code()));
            let mut table = VersionTable::default();
            let (mut sec, mut all) = (1000, Vec::new());
            for (number, step) in (1..).zip(&steps) {
                sec += step;
                all.push((number, sec));
                table.insert(entry(key, number, sec));
            }
            let now = sec + later;
            let ended = table.take_surplus(key, Timestamp::from_sec(now));
            let newest = all.iter().skip(all.len().saturating_sub(count.into()));
            let expected: Vec<u32> = newest
                .filter(|(_, sec)| !aged || sec + i64::from(age) > now)
                .map(|(number, _)| *number)
                .collect();
            let left: Vec<u32> =
                table.of_object(key).iter().map(|entry| entry.state.number).collect();
            prop_assert_eq!(&left, &expected);
            prop_assert_eq!(ended.len() + left.len(), all.len());
            prop_assert_eq!(table.bytes(), 8192 * left.len() as u64);
            prop_assert!(table.take_expired(Timestamp::from_sec(now)).is_none());
        }
    }

    #[test]
    fn the_oldest_of_all_objects_goes_first() {
        let mut table = VersionTable::default();
        let (a, b) = ((Ino(1), piece("3")), (Ino(2), piece("3,10s")));
        for (key, number, sec) in [(a, 1, 5), (b, 1, 4), (a, 2, 7), (b, 2, 6)] {
            table.insert(entry(key, number, sec));
        }
        assert!(table.take_expired(Timestamp::from_sec(13)).is_none());
        let expired = table.take_expired(Timestamp::from_sec(14)).expect("too old");
        assert_eq!((expired.object.key, expired.state.number), (b, 1));
        let order: Vec<_> = std::iter::from_fn(|| table.take_oldest())
            .map(|entry| (entry.object.key, entry.state.number))
            .collect();
        assert_eq!(order, [(a, 1), (b, 2), (a, 2)]);
        assert_eq!((table.bytes(), table.count()), (0, 0));
    }
}
