//! A cache of recently used records.
//!
//! It has two generations: a used record moves to the young one. When that is full, the old one is
//! dropped and the young one becomes old. Each step has constant cost, nothing is scanned, and the
//! size is bounded.

use std::collections::HashMap;
use std::hash::Hash;
use tatami_wire::hash;

/// Records of one generation; a cache holds at most twice as many. An inode takes about 300 bytes,
/// an entry 120: both caches together stay below 60 MB.
const GENERATION: usize = 64 * 1024;

type GenerationMap<K, V> = HashMap<K, V, hash::HashBuilder>;

/// A cache with two generations; see the module.
pub(crate) struct RecordCache<K, V> {
    young: GenerationMap<K, V>,
    old: GenerationMap<K, V>,
}

impl<K, V> Default for RecordCache<K, V> {
    fn default() -> RecordCache<K, V> {
        RecordCache { young: GenerationMap::default(), old: GenerationMap::default() }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> RecordCache<K, V> {
    pub fn get(&mut self, key: &K) -> Option<V> {
        if self.young.is_empty() && self.old.is_empty() {
            return None;
        }
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Changes the value of that key, if there is one.
    pub fn update(&mut self, key: &K, change: impl FnOnce(&mut V)) {
        if let Some(value) = self.young.get_mut(key) {
            change(value);
        } else if let Some(mut value) = self.old.remove(key) {
            change(&mut value);
            self.insert(key.clone(), value);
        }
    }

    pub fn remove(&mut self, key: &K) {
        for map in [&mut self.young, &mut self.old] {
            if !map.is_empty() {
                map.remove(key);
            }
        }
    }

    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_bound_holds() {
        let mut cache = RecordCache::default();
        cache.insert(0, 7);
        for n in 1..3 * GENERATION {
            cache.insert(n, 0);
            assert_eq!(cache.get(&0), Some(7), "used all the time");
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION);
        assert_eq!(cache.get(&1), None, "not used for long");
    }

    #[test]
    fn the_newest_state_counts_wherever_the_old_one_was() {
        let mut cache = RecordCache::default();
        cache.insert(7, 1);
        for n in 100..100 + GENERATION {
            cache.insert(n, 0);
        }
        cache.update(&7, |v| *v = 2);
        assert_eq!(cache.get(&7), Some(2));
        cache.update(&7, |v| *v = 3);
        assert_eq!(cache.get(&7), Some(3));
        cache.update(&8, |v| *v = 3);
        assert_eq!(cache.get(&8), None, "nobody asked for it");
        cache.remove(&7);
        assert_eq!(cache.get(&7), None);
    }
}
