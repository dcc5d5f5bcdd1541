//! Changes that the tables do not have yet (the memtable).
//!
//! They are found by a hash of their keys, since nearly all lookups are for one key. They are
//! ordered on demand: the changes since the last time are sorted into a run, and runs are merged as
//! they grow. So a key is moved about as often as the number of keys can be halved.

use parking_lot::{RwLock, RwLockReadGuard};
use std::cmp::Ordering;
use std::iter::Peekable;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of keys and values that are kept together, unless one is longer.
const CHUNK: usize = 1 << 20;

/// The position of a key or a value.
#[derive(Clone, Copy, Debug)]
struct Place {
    chunk: u32,
    start: u32,
    len: u32,
}

/// Keys and values in large chunks: single allocations would be hundreds of thousands of small
/// ones.
#[derive(Debug, Default)]
struct Pieces {
    chunks: Vec<Vec<u8>>,
}

impl Pieces {
    fn put(&mut self, bytes: &[u8]) -> Place {
        let full = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() < bytes.len();
        if self.chunks.last().is_none_or(full) {
            self.chunks.push(Vec::with_capacity(CHUNK.max(bytes.len())));
        }
        let at = self.chunks.len() - 1;
        let chunk = &mut self.chunks[at];
        let start = chunk.len();
        chunk.extend_from_slice(bytes);
        Place { chunk: at as u32, start: start as u32, len: bytes.len() as u32 }
    }

    /// Overwrites old bytes, if the new ones are not longer.
    fn replace(&mut self, old: Place, bytes: &[u8]) -> Place {
        if bytes.len() > old.len as usize {
            return self.put(bytes);
        }
        let new = Place { len: bytes.len() as u32, ..old };
        self.chunks[old.chunk as usize][old.start as usize..][..bytes.len()].copy_from_slice(bytes);
        new
    }

    fn get(&self, Place { chunk, start, len }: Place) -> &[u8] {
        &self.chunks[chunk as usize][start as usize..][..len as usize]
    }
}

/// A key and its last change: a value, or `None` where it was removed.
pub(super) type Pair<'a> = (&'a [u8], Option<&'a [u8]>);

/// Returns the hash by which a key is found.
pub(super) fn hash_of(key: &[u8]) -> u64 {
    xxh3_64(key)
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: Place,
    value: Option<Place>,
}

/// A hash table from a key's hash to its slot, with linear probing. A place has 8 bytes and the
/// next one lies beside it, so that a lookup touches one cache line: there are millions of places,
/// and hardly any is in the processor's cache.
#[derive(Debug, Default)]
struct Index {
    /// Half of a hash above a slot plus 1; 0 for a free place. The length is a power of two; at
    /// least half of the places are free.
    places: Vec<u64>,
    used: usize,
}

/// Fewest places of an index that is not empty.
const PLACES: usize = 64;

impl Index {
    fn with_room_for(slots: usize) -> Index {
        Index { places: vec![0; (2 * slots).next_power_of_two().max(PLACES)], used: 0 }
    }

    /// Returns the slot with that hash for which `is` returns true.
    fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let half = hash as u32;
        let last = self.places.len().checked_sub(1)?;
        let mut at = half as usize & last;
        loop {
            let place = self.places[at];
            if place == 0 {
                return None;
            }
            let slot = (place as u32).wrapping_sub(1);
            if (place >> 32) as u32 == half && is(slot) {
                return Some(slot);
            }
            at = (at + 1) & last;
        }
    }

    /// Enters a slot that is not there yet.
    fn enter(&mut self, hash: u64, slot: u32) {
        // At most half of the places are taken, so that probes stay short.
        if 2 * (self.used + 1) > self.places.len() {
            let more = Index::with_room_for(self.places.len());
            let old = std::mem::replace(&mut self.places, more.places);
            old.into_iter().filter(|place| *place != 0).for_each(|place| self.put(place));
        }
        self.put(u64::from(hash as u32) << 32 | (u64::from(slot) + 1));
        self.used += 1;
    }

    fn put(&mut self, place: u64) {
        let last = self.places.len() - 1;
        let mut at = (place >> 32) as usize & last;
        while self.places[at] != 0 {
            at = (at + 1) & last;
        }
        self.places[at] = place;
    }
}

/// The changes since the last table; see the module.
#[derive(Debug, Default)]
pub(super) struct Recent {
    slots: Vec<Slot>,
    index: Index,
    /// Includes values that were replaced by longer ones: at most as many bytes as the log has.
    pieces: Pieces,
    order: RwLock<Order>,
}

/// The order of the first slots.
#[derive(Debug, Default)]
struct Order {
    /// Each in key order, the longest first.
    runs: Vec<Vec<Ranked>>,
    /// Number of slots in the runs.
    ranked: usize,
}

/// A slot with the first bytes of its key as a number. These distinguish nearly all keys, so that a
/// search compares adjacent numbers and seldom reads the key.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    head: u128,
    slot: u32,
}

/// Returns the first 16 bytes, with zeros where the key is shorter: ordered as the bytes are.
fn head(key: &[u8]) -> u128 {
    match key.first_chunk::<16>() {
        Some(head) => u128::from_be_bytes(*head),
        None => {
            let mut head = [0; 16];
            head[..key.len()].copy_from_slice(key);
            u128::from_be_bytes(head)
        }
    }
}

impl Recent {
    /// Returns an empty one, with room for as many keys as `other` has.
    pub fn as_large_as(other: &Recent) -> Recent {
        let n = other.slots.len();
        Recent { slots: Vec::with_capacity(n), index: Index::with_room_for(n), ..Recent::default() }
    }

    /// Makes a change.
    pub fn change(&mut self, key: &[u8], value: Option<&[u8]>) {
        let hash = hash_of(key);
        if let Some(slot) = self.find(hash, key) {
            let slot = &mut self.slots[slot as usize];
            slot.value = match (value, slot.value) {
                (Some(value), Some(old)) => Some(self.pieces.replace(old, value)),
                (Some(value), None) => Some(self.pieces.put(value)),
                (None, _) => None,
            };
            return;
        }
        self.index.enter(hash, self.slots.len() as u32);
        let key = self.pieces.put(key);
        let value = value.map(|value| self.pieces.put(value));
        self.slots.push(Slot { key, value });
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.index.find(hash, |slot| self.key(slot) == key)
    }

    /// Returns the last change of `key`, whose hash is `hash`; `None` where there is none.
    pub fn get(&self, hash: u64, key: &[u8]) -> Option<Option<&[u8]>> {
        self.find(hash, key).map(|slot| self.pair(slot).1)
    }

    /// Shows `visit` all changes, in no order.
    pub fn each(&self, mut visit: impl FnMut(&[u8], Option<&[u8]>)) {
        for slot in 0..self.slots.len() {
            let (key, value) = self.pair(slot as u32);
            visit(key, value);
        }
    }

    /// Returns the changes in key order.
    pub fn ordered(&self) -> Ordered<'_> {
        let mut order = self.order.read();
        if order.ranked < self.slots.len() {
            // Readers may scan concurrently: the first one sorts, under the write lock.
            drop(order);
            self.rank(&mut self.order.write());
            order = self.order.read();
        }
        Ordered { recent: self, order }
    }

    /// Sorts the slots that are in no run.
    fn rank(&self, order: &mut Order) {
        let new = order.ranked..self.slots.len();
        let mut run: Vec<Ranked> = new
            .map(|slot| Ranked { head: head(self.key(slot as u32)), slot: slot as u32 })
            .collect();
        run.sort_unstable_by(|a, b| self.compare(*a, *b));
        // Merges runs of similar length only, as a binary counter does: O(log n) moves a key.
        while let Some(last) = order.runs.pop_if(|last| last.len() <= 2 * run.len()) {
            run = self.merged(&last, &run);
        }
        if !run.is_empty() {
            order.runs.push(run);
        }
        order.ranked = self.slots.len();
    }

    fn merged<'a>(&self, mut one: &'a [Ranked], mut two: &'a [Ranked]) -> Vec<Ranked> {
        let mut run = Vec::with_capacity(one.len() + two.len());
        while let (Some(a), Some(b)) = (one.first(), two.first()) {
            let from = if self.compare(*a, *b).is_lt() { &mut one } else { &mut two };
            run.push(from[0]);
            *from = &from[1..];
        }
        run.extend_from_slice(one);
        run.extend_from_slice(two);
        run
    }

    fn compare(&self, a: Ranked, b: Ranked) -> Ordering {
        a.head.cmp(&b.head).then_with(|| self.key(a.slot).cmp(self.key(b.slot)))
    }

    fn key(&self, slot: u32) -> &[u8] {
        self.pieces.get(self.slots[slot as usize].key)
    }

    fn pair(&self, slot: u32) -> Pair<'_> {
        let Slot { key, value } = self.slots[slot as usize];
        (self.pieces.get(key), value.map(|value| self.pieces.get(value)))
    }
}

/// Changes whose order is known.
pub(super) struct Ordered<'a> {
    recent: &'a Recent,
    order: RwLockReadGuard<'a, Order>,
}

impl Ordered<'_> {
    /// Returns the changes to keys from `from` on, in key order.
    pub fn from(&self, from: &[u8]) -> Cursor<'_> {
        let first = head(from);
        let is_before = |at: &Ranked| {
            at.head.cmp(&first).then_with(|| self.recent.key(at.slot).cmp(from)).is_lt()
        };
        let rest = |run: &Vec<Ranked>| run.partition_point(is_before);
        let runs = self.order.runs.iter().map(|run| &run[rest(run)..]);
        Cursor { recent: self.recent, runs: runs.filter(|run| !run.is_empty()).collect() }
    }
}

/// The rest of each run.
pub(super) struct Cursor<'a> {
    recent: &'a Recent,
    /// None of them is empty.
    runs: Vec<&'a [Ranked]>,
}

impl<'a> Iterator for Cursor<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        let recent = self.recent;
        let runs = self.runs.iter().enumerate();
        let (at, _) = runs.min_by(|(_, a), (_, b)| recent.compare(a[0], b[0]))?;
        let (first, rest) = self.runs[at].split_first()?;
        if rest.is_empty() {
            self.runs.swap_remove(at);
        } else {
            self.runs[at] = rest;
        }
        Some(recent.pair(first.slot))
    }
}

/// Two sets of changes as one; where both have a key, the newer counts.
pub(super) struct Both<'a> {
    newer: Peekable<Cursor<'a>>,
    older: Peekable<Cursor<'a>>,
}

impl<'a> Both<'a> {
    /// Returns the changes to keys from `from` on.
    pub fn new(newer: &'a Ordered<'_>, older: &'a Ordered<'_>, from: &[u8]) -> Both<'a> {
        Both { newer: newer.from(from).peekable(), older: older.from(from).peekable() }
    }
}

impl<'a> Iterator for Both<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        let order = match (self.newer.peek(), self.older.peek()) {
            (Some((newer, _)), Some((older, _))) => newer.cmp(older),
            (None, Some(_)) => Ordering::Greater,
            (_, None) => Ordering::Less,
        };
        if order.is_eq() {
            self.older.next();
        }
        if order.is_le() { self.newer.next() } else { self.older.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Keys that share their first bytes, end early or hold zeros behave as in a plain map,
        /// with any number of requests for their order.
        #[test]
        fn it_orders_and_finds_as_a_map_of_bytes(
            older in proptest::collection::vec((key(), any::<Option<u8>>(), any::<bool>()), 0..60),
            newer in proptest::collection::vec((key(), any::<Option<u8>>(), any::<bool>()), 0..60),
            from in key(),
        ) {
            let (mut one, mut two) = (Recent::default(), Recent::default());
            let mut both: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
            for (into, changes) in [(&mut one, older), (&mut two, newer)] {
                for (key, value, ask) in changes {
                    let value = value.map(|v| vec![v; 1 + usize::from(v) % 3]);
                    into.change(&key, value.as_deref());
                    both.insert(key, value);
                    if ask {
                        let keys: Vec<_> = into.ordered().from(&[]).map(|(k, _)| k.to_vec()).collect();
                        prop_assert!(keys.is_sorted());
                        prop_assert_eq!(keys.len(), into.slots.len());
                    }
                }
            }
            let (older, newer) = (one.ordered(), two.ordered());
            let found: Vec<_> = Both::new(&newer, &older, &from).collect();
            let expected: Vec<_> =
                both.range(from..).map(|(k, v)| (k.as_slice(), v.as_deref())).collect();
            prop_assert_eq!(found, expected);
            for (key, value) in &both {
                let hash = hash_of(key);
                let found = two.get(hash, key).or_else(|| one.get(hash, key));
                prop_assert_eq!(found, Some(value.as_deref()));
            }
            let mut all = BTreeMap::new();
            for recent in [&one, &two] {
                recent.each(|key, value| drop(all.insert(key.to_vec(), value.map(<[u8]>::to_vec))));
            }
            prop_assert_eq!(all, both);
        }
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut recent = Recent::default();
        recent.change(b"a", Some(b"1"));
        // As if "a" had the hash of "b", too.
        let hash = hash_of(b"b");
        recent.index.enter(hash, 0);
        assert_eq!(recent.get(hash, b"b"), None);
        recent.change(b"b", Some(b"2"));
        recent.change(b"b", Some(b"3"));
        assert_eq!(recent.get(hash, b"b"), Some(Some(&b"3"[..])));
        assert_eq!(recent.get(hash_of(b"a"), b"a"), Some(Some(&b"1"[..])));
        assert_eq!(recent.slots.len(), 2);
    }

    #[test]
    fn an_index_grows_and_hashes_that_end_alike_stay_apart() {
        let mut index = Index::default();
        let hash = |slot: u32| u64::from(slot % 7) << 16 | u64::from(slot / 7) << 40;
        for slot in 0..1000 {
            assert_eq!(index.find(hash(slot), |found| found == slot), None);
            index.enter(hash(slot), slot);
            assert!(2 * index.used <= index.places.len());
        }
        for slot in 0..1000 {
            assert_eq!(index.find(hash(slot), |found| found == slot), Some(slot));
        }
    }

    #[test]
    fn runs_stay_few_however_often_they_are_asked_for() {
        let mut recent = Recent::default();
        for n in 0..5000u32 {
            recent.change(&n.wrapping_mul(0x9e37_79b9).to_be_bytes(), None);
            recent.ordered();
            assert!(recent.order.read().runs.len() <= 14);
        }
        assert!(recent.ordered().from(&[]).map(|(key, _)| key.to_vec()).is_sorted());
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let tail = proptest::collection::vec(0u8..2, 0..4);
        (0usize..3, tail).prop_map(|(n, tail)| [vec![7; [0, 14, 16][n]], tail].concat())
    }
}
