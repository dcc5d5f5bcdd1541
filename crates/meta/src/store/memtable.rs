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
struct ChunkRange {
    chunk: u32,
    start: u32,
    len: u32,
}

/// Keys and values in large chunks: single allocations would be hundreds of thousands of small
/// ones.
#[derive(Debug, Default)]
struct ChunkArena {
    chunks: Vec<Vec<u8>>,
}

impl ChunkArena {
    fn push_bytes(&mut self, bytes: &[u8]) -> ChunkRange {
        let full = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() < bytes.len();
        if self.chunks.last().is_none_or(full) {
            self.chunks.push(Vec::with_capacity(CHUNK.max(bytes.len())));
        }
        let at = self.chunks.len() - 1;
        let chunk = &mut self.chunks[at];
        let start = chunk.len();
        chunk.extend_from_slice(bytes);
        ChunkRange { chunk: at as u32, start: start as u32, len: bytes.len() as u32 }
    }

    /// Overwrites old bytes, if the new ones are not longer.
    fn replace_bytes(&mut self, old: ChunkRange, bytes: &[u8]) -> ChunkRange {
        if bytes.len() > old.len as usize {
            return self.push_bytes(bytes);
        }
        let new = ChunkRange { len: bytes.len() as u32, ..old };
        self.chunks[old.chunk as usize][old.start as usize..][..bytes.len()].copy_from_slice(bytes);
        new
    }

    fn get(&self, ChunkRange { chunk, start, len }: ChunkRange) -> &[u8] {
        &self.chunks[chunk as usize][start as usize..][..len as usize]
    }
}

/// A key and its last change: a value, or `None` where it was removed.
pub(super) type ChangeRef<'a> = (&'a [u8], Option<&'a [u8]>);

/// Returns the hash by which a key is found.
pub(super) fn hash_key(key: &[u8]) -> u64 {
    xxh3_64(key)
}

#[derive(Clone, Copy, Debug)]
struct ChangeSlot {
    key: ChunkRange,
    value: Option<ChunkRange>,
}

/// A hash table from a key's hash to its slot, with linear probing. A place has 8 bytes and the
/// next one lies beside it, so that a lookup touches one cache line: there are millions of places,
/// and hardly any is in the processor's cache.
#[derive(Debug, Default)]
struct ChangeIndex {
    /// Half of a hash above a slot plus 1; 0 for a free place. The length is a power of two; at
    /// least half of the places are free.
    places: Vec<u64>,
    used: usize,
}

/// Fewest places of an index that is not empty.
const PLACES_MIN: usize = 64;

impl ChangeIndex {
    fn with_room_for(slots: usize) -> ChangeIndex {
        ChangeIndex { places: vec![0; (2 * slots).next_power_of_two().max(PLACES_MIN)], used: 0 }
    }

    /// Returns the slot with that hash for which `is` returns true.
    fn find_slot(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
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
    fn insert_slot(&mut self, hash: u64, slot: u32) {
        // At most half of the places are taken, so that probes stay short.
        if 2 * (self.used + 1) > self.places.len() {
            let more = ChangeIndex::with_room_for(self.places.len());
            let old = std::mem::replace(&mut self.places, more.places);
            old.into_iter().filter(|place| *place != 0).for_each(|place| self.place_entry(place));
        }
        self.place_entry(u64::from(hash as u32) << 32 | (u64::from(slot) + 1));
        self.used += 1;
        // A search ends at a free place only.
        assert!(
            2 * self.used <= self.places.len(),
            "less than half of the places of the index are free"
        );
    }

    fn place_entry(&mut self, place: u64) {
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
pub(super) struct Memtable {
    slots: Vec<ChangeSlot>,
    index: ChangeIndex,
    /// Includes values that were replaced by longer ones: at most as many bytes as the log has.
    pieces: ChunkArena,
    order: RwLock<KeyOrder>,
}

/// The order of the first slots.
#[derive(Debug, Default)]
struct KeyOrder {
    /// Each in key order, the longest first.
    runs: Vec<Vec<RankedSlot>>,
    /// Number of slots in the runs.
    ranked: usize,
}

/// A slot with the first bytes of its key as a number. These distinguish nearly all keys, so that a
/// search compares adjacent numbers and seldom reads the key.
#[derive(Clone, Copy, Debug)]
struct RankedSlot {
    head: u128,
    slot: u32,
}

/// Returns the first 16 bytes, with zeros where the key is shorter: ordered as the bytes are.
fn key_head(key: &[u8]) -> u128 {
    match key.first_chunk::<16>() {
        Some(head) => u128::from_be_bytes(*head),
        None => {
            let mut head = [0; 16];
            head[..key.len()].copy_from_slice(key);
            u128::from_be_bytes(head)
        }
    }
}

impl Memtable {
    /// Returns an empty one, with room for as many keys as `other` has.
    pub fn with_capacity_of(other: &Memtable) -> Memtable {
        let n = other.slots.len();
        Memtable {
            slots: Vec::with_capacity(n),
            index: ChangeIndex::with_room_for(n),
            ..Memtable::default()
        }
    }

    /// Makes a change.
    pub fn apply_change(&mut self, key: &[u8], value: Option<&[u8]>) {
        let hash = hash_key(key);
        if let Some(slot) = self.find_slot(hash, key) {
            let slot = &mut self.slots[slot as usize];
            slot.value = match (value, slot.value) {
                (Some(value), Some(old)) => Some(self.pieces.replace_bytes(old, value)),
                (Some(value), None) => Some(self.pieces.push_bytes(value)),
                (None, _) => None,
            };
            return;
        }
        // The index keeps the number of a slot plus one.
        assert!(self.slots.len() < u32::MAX as usize, "the number of a slot exceeds its place");
        self.index.insert_slot(hash, self.slots.len() as u32);
        let key = self.pieces.push_bytes(key);
        let value = value.map(|value| self.pieces.push_bytes(value));
        self.slots.push(ChangeSlot { key, value });
    }

    fn find_slot(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.index.find_slot(hash, |slot| self.slot_key(slot) == key)
    }

    /// Returns the last change of `key`, whose hash is `hash`; `None` where there is none.
    pub fn get(&self, hash: u64, key: &[u8]) -> Option<Option<&[u8]>> {
        self.find_slot(hash, key).map(|slot| self.slot_pair(slot).1)
    }

    /// Shows `visit` all changes, in no order.
    pub fn visit_all(&self, mut visit: impl FnMut(&[u8], Option<&[u8]>)) {
        for slot in 0..self.slots.len() {
            let (key, value) = self.slot_pair(slot as u32);
            visit(key, value);
        }
    }

    /// Returns the changes in key order.
    pub fn sort_changes(&self) -> OrderedChanges<'_> {
        let mut order = self.order.read();
        if order.ranked < self.slots.len() {
            // Readers may scan concurrently: the first one sorts, under the write lock.
            drop(order);
            self.sort_new_slots(&mut self.order.write());
            order = self.order.read();
        }
        assert_eq!(order.ranked, self.slots.len(), "a change is in no run, or in two");
        OrderedChanges { recent: self, order }
    }

    /// Sorts the slots that are in no run.
    fn sort_new_slots(&self, order: &mut KeyOrder) {
        let new = order.ranked..self.slots.len();
        let mut run: Vec<RankedSlot> = new
            .map(|slot| RankedSlot {
                head: key_head(self.slot_key(slot as u32)),
                slot: slot as u32,
            })
            .collect();
        run.sort_unstable_by(|a, b| self.compare_ranked(*a, *b));
        // Merges runs of similar length only, as a binary counter does: O(log n) moves a key.
        while let Some(last) = order.runs.pop_if(|last| last.len() <= 2 * run.len()) {
            run = self.merge_runs(&last, &run);
        }
        debug_assert!(
            run.is_sorted_by(|a, b| self.compare_ranked(*a, *b).is_lt()),
            "a run has a key twice, or out of order"
        );
        if !run.is_empty() {
            order.runs.push(run);
        }
        order.ranked = self.slots.len();
        let in_runs: usize = order.runs.iter().map(Vec::len).sum();
        assert_eq!(in_runs, order.ranked, "a change is in no run, or in two");
    }

    fn merge_runs<'a>(
        &self,
        mut one: &'a [RankedSlot],
        mut two: &'a [RankedSlot],
    ) -> Vec<RankedSlot> {
        let mut run = Vec::with_capacity(one.len() + two.len());
        while let (Some(a), Some(b)) = (one.first(), two.first()) {
            let from = if self.compare_ranked(*a, *b).is_lt() { &mut one } else { &mut two };
            run.push(from[0]);
            *from = &from[1..];
        }
        run.extend_from_slice(one);
        run.extend_from_slice(two);
        run
    }

    fn compare_ranked(&self, a: RankedSlot, b: RankedSlot) -> Ordering {
        a.head.cmp(&b.head).then_with(|| self.slot_key(a.slot).cmp(self.slot_key(b.slot)))
    }

    fn slot_key(&self, slot: u32) -> &[u8] {
        self.pieces.get(self.slots[slot as usize].key)
    }

    fn slot_pair(&self, slot: u32) -> ChangeRef<'_> {
        let ChangeSlot { key, value } = self.slots[slot as usize];
        (self.pieces.get(key), value.map(|value| self.pieces.get(value)))
    }
}

/// Changes whose order is known.
pub(super) struct OrderedChanges<'a> {
    recent: &'a Memtable,
    order: RwLockReadGuard<'a, KeyOrder>,
}

impl OrderedChanges<'_> {
    /// Returns the changes to keys from `from` on, in key order.
    pub fn cursor_from(&self, from: &[u8]) -> ChangeCursor<'_> {
        let first = key_head(from);
        let is_before = |at: &RankedSlot| {
            at.head.cmp(&first).then_with(|| self.recent.slot_key(at.slot).cmp(from)).is_lt()
        };
        let rest = |run: &Vec<RankedSlot>| run.partition_point(is_before);
        let runs = self.order.runs.iter().map(|run| &run[rest(run)..]);
        ChangeCursor { recent: self.recent, runs: runs.filter(|run| !run.is_empty()).collect() }
    }
}

/// The rest of each run.
pub(super) struct ChangeCursor<'a> {
    recent: &'a Memtable,
    /// None of them is empty.
    runs: Vec<&'a [RankedSlot]>,
}

impl<'a> Iterator for ChangeCursor<'a> {
    type Item = ChangeRef<'a>;

    fn next(&mut self) -> Option<ChangeRef<'a>> {
        let recent = self.recent;
        let runs = self.runs.iter().enumerate();
        let (at, _) = runs.min_by(|(_, a), (_, b)| recent.compare_ranked(a[0], b[0]))?;
        let (first, rest) = self.runs[at].split_first()?;
        if rest.is_empty() {
            self.runs.swap_remove(at);
        } else {
            self.runs[at] = rest;
        }
        Some(recent.slot_pair(first.slot))
    }
}

/// Two sets of changes as one; where both have a key, the newer counts.
pub(super) struct MergedChanges<'a> {
    newer: Peekable<ChangeCursor<'a>>,
    older: Peekable<ChangeCursor<'a>>,
}

impl<'a> MergedChanges<'a> {
    /// Returns the changes to keys from `from` on.
    pub fn new(
        newer: &'a OrderedChanges<'_>,
        older: &'a OrderedChanges<'_>,
        from: &[u8],
    ) -> MergedChanges<'a> {
        MergedChanges {
            newer: newer.cursor_from(from).peekable(),
            older: older.cursor_from(from).peekable(),
        }
    }
}

impl<'a> Iterator for MergedChanges<'a> {
    type Item = ChangeRef<'a>;

    fn next(&mut self) -> Option<ChangeRef<'a>> {
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
            let (mut one, mut two) = (Memtable::default(), Memtable::default());
            let mut both: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
            for (into, changes) in [(&mut one, older), (&mut two, newer)] {
                for (key, value, ask) in changes {
                    let value = value.map(|v| vec![v; 1 + usize::from(v) % 3]);
                    into.apply_change(&key, value.as_deref());
                    both.insert(key, value);
                    if ask {
                        let keys: Vec<_> = into.sort_changes().cursor_from(&[]).map(|(k, _)| k.to_vec()).collect();
                        prop_assert!(keys.is_sorted());
                        prop_assert_eq!(keys.len(), into.slots.len());
                    }
                }
            }
            let (older, newer) = (one.sort_changes(), two.sort_changes());
            let found: Vec<_> = MergedChanges::new(&newer, &older, &from).collect();
            let expected: Vec<_> =
                both.range(from..).map(|(k, v)| (k.as_slice(), v.as_deref())).collect();
            prop_assert_eq!(found, expected);
            for (key, value) in &both {
                let hash = hash_key(key);
                let found = two.get(hash, key).or_else(|| one.get(hash, key));
                prop_assert_eq!(found, Some(value.as_deref()));
            }
            let mut all = BTreeMap::new();
            for recent in [&one, &two] {
                recent.visit_all(|key, value| drop(all.insert(key.to_vec(), value.map(<[u8]>::to_vec))));
            }
            prop_assert_eq!(all, both);
        }
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut recent = Memtable::default();
        recent.apply_change(b"a", Some(b"1"));
        // As if "a" had the hash of "b", too.
        let hash = hash_key(b"b");
        recent.index.insert_slot(hash, 0);
        assert_eq!(recent.get(hash, b"b"), None);
        recent.apply_change(b"b", Some(b"2"));
        recent.apply_change(b"b", Some(b"3"));
        assert_eq!(recent.get(hash, b"b"), Some(Some(&b"3"[..])));
        assert_eq!(recent.get(hash_key(b"a"), b"a"), Some(Some(&b"1"[..])));
        assert_eq!(recent.slots.len(), 2);
    }

    #[test]
    fn an_index_grows_and_hashes_that_end_alike_stay_apart() {
        let mut index = ChangeIndex::default();
        let hash = |slot: u32| u64::from(slot % 7) << 16 | u64::from(slot / 7) << 40;
        for slot in 0..1000 {
            assert_eq!(index.find_slot(hash(slot), |found| found == slot), None);
            index.insert_slot(hash(slot), slot);
            assert!(2 * index.used <= index.places.len());
        }
        for slot in 0..1000 {
            assert_eq!(index.find_slot(hash(slot), |found| found == slot), Some(slot));
        }
    }

    #[test]
    fn runs_stay_few_however_often_they_are_asked_for() {
        let mut recent = Memtable::default();
        for n in 0..5000u32 {
            recent.apply_change(&n.wrapping_mul(0x9e37_79b9).to_be_bytes(), None);
            recent.sort_changes();
            assert!(recent.order.read().runs.len() <= 14);
        }
        assert!(recent.sort_changes().cursor_from(&[]).map(|(key, _)| key.to_vec()).is_sorted());
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let tail = proptest::collection::vec(0u8..2, 0..4);
        (0usize..3, tail).prop_map(|(n, tail)| [vec![7; [0, 14, 16][n]], tail].concat())
    }
}
