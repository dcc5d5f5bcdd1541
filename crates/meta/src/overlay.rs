//! The changes since the last commit, by key.
//!
//! A batch mostly has a few changes, which are faster to scan than to hash or to sort. Many changes
//! are found by hash. They are ordered on demand.

use crate::keys::RecordKey;
use crate::store::Change;
use std::collections::HashMap;
use tatami_wire::hash;
use xxhash_rust::xxh3::xxh3_64;

/// Up to this many changes are scanned.
const FEW: usize = 16;
/// Capacity for changes that is kept.
const KEEP: usize = 8 * 1024;

/// The uncommitted changes; see the module.
#[derive(Debug, Default)]
pub(crate) struct ChangeOverlay {
    /// With distinct keys.
    changes: Vec<Change>,
    /// The position of a key by its hash, once there are more than a few. A key whose hash is taken
    /// uses the next free number.
    index: HashMap<u64, u32, hash::HashBuilder>,
}

impl ChangeOverlay {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the last change of `key`: a value, or `None` where it was removed.
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.find_position(key).map(|at| self.changes[at].1.as_deref())
    }

    pub fn insert(&mut self, key: RecordKey, value: Option<Vec<u8>>) {
        if let Some(at) = self.find_position(&key) {
            self.changes[at].1 = value;
            return;
        }
        self.changes.push((key, value));
        match self.changes.len() {
            0..=FEW => {}
            n if n == FEW + 1 => (0..n).for_each(|at| self.index_change(at)),
            n => self.index_change(n - 1),
        }
    }

    fn find_position(&self, key: &[u8]) -> Option<usize> {
        if self.changes.len() <= FEW {
            return self.changes.iter().position(|(k, _)| k == key);
        }
        let mut hash = xxh3_64(key);
        while let Some(at) = self.index.get(&hash) {
            if self.changes[*at as usize].0 == key {
                return Some(*at as usize);
            }
            hash = hash.wrapping_add(1);
        }
        None
    }

    fn index_change(&mut self, at: usize) {
        let mut hash = xxh3_64(&self.changes[at].0);
        while self.index.contains_key(&hash) {
            hash = hash.wrapping_add(1);
        }
        self.index.insert(hash, at as u32);
    }

    /// Returns the changes to keys from `from` on that start with `prefix`, in key order.
    pub fn sorted_changes(&self, from: &[u8], prefix: &[u8]) -> Vec<&Change> {
        let here = |(key, _): &&Change| key.as_slice() >= from && key.starts_with(prefix);
        let mut changes: Vec<_> = self.changes.iter().filter(here).collect();
        changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        changes
    }

    /// Shows all changes to `commit`, and removes them.
    pub fn drain_changes<R>(&mut self, commit: impl FnOnce(&[Change]) -> R) -> R {
        let result = commit(&self.changes);
        self.index.clear();
        self.changes.clear();
        self.changes.shrink_to(KEEP);
        self.index.shrink_to(KEEP);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map_however_many_there_are(
            changes in proptest::collection::vec((proptest::collection::vec(0u8..4, 1..4), any::<Option<u8>>()), 0..80),
            from in proptest::collection::vec(0u8..4, 0..3),
            prefix in proptest::collection::vec(0u8..4, 0..2),
        ) {
            let (mut overlay, mut map) = (ChangeOverlay::default(), BTreeMap::new());
            for round in 0..2 {
                for (key, value) in &changes {
                    let value = value.map(|v| vec![v, round]);
                    overlay.insert(key.clone(), value.clone());
                    map.insert(key.clone(), value);
                    prop_assert_eq!(overlay.get(key), map.get(key).map(Option::as_deref));
                }
                prop_assert_eq!(overlay.get(b"none"), None);
                prop_assert_eq!(overlay.is_empty(), map.is_empty());
                let found: Vec<_> = overlay.sorted_changes(&from, &prefix).into_iter().cloned().collect();
                let expected = map.iter().filter(|(k, _)| **k >= from && k.starts_with(&prefix));
                let expected: Vec<_> = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
                prop_assert_eq!(found, expected);
                let all = overlay.drain_changes(|batch| batch.iter().cloned().collect::<BTreeMap<_, _>>());
                prop_assert_eq!(&all, &map);
                map.clear();
            }
        }
    }
}
