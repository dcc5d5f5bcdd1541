//! A store for a thousand servers in one memory. It does not keep replies for repeated requests,
//! since no request is repeated here, and sorts only where needed. Entries and inodes are found by
//! hash, and sorted when a directory splits: an ordered map of them took most of the time of a
//! prediction.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, ControlFlow};
use tatami_meta::store::{Change, PairVisitor};
use tatami_meta::{Store, StoreError};
use tatami_wire::hash;

/// First byte of the keys of kept replies, as docs/reference/formats.md draws them.
const KEPT_ANSWER: u8 = b'R';
/// First bytes of the keys of entries and inodes.
const MANY: [u8; 2] = [b'E', b'I'];

type RecordBytes = Box<[u8]>;

/// Records by key.
#[derive(Default)]
pub(super) struct HashStore {
    hashed: HashMap<RecordBytes, RecordBytes, hash::HashBuilder>,
    ordered: BTreeMap<RecordBytes, RecordBytes>,
}

fn is_hashed_key(key: &[u8]) -> bool {
    key.first().is_some_and(|tag| MANY.contains(tag))
}

impl HashStore {
    /// Returns whether there is a record.
    pub fn has_record(&self, key: &[u8]) -> bool {
        self.find_record(key).is_some()
    }

    fn find_record(&self, key: &[u8]) -> Option<&[u8]> {
        let found = if is_hashed_key(key) { self.hashed.get(key) } else { self.ordered.get(key) };
        found.map(|value| &**value)
    }

    /// Returns the records from `start` on that begin with `prefix`, in order.
    fn sorted_records(&self, start: &[u8], prefix: &[u8]) -> Vec<(&[u8], &[u8])> {
        let few = self.ordered.range::<[u8], _>((Bound::Included(start), Bound::Unbounded));
        let few = few.take_while(|(key, _)| key.starts_with(prefix));
        let with_many = prefix.is_empty() || is_hashed_key(prefix);
        let many = self.hashed.iter().filter(|_| with_many);
        let many = many.filter(|(key, _)| key.starts_with(prefix) && &***key >= start);
        let mut all: Vec<_> = few.chain(many).map(|(key, value)| (&**key, &**value)).collect();
        all.sort_unstable();
        all
    }
}

impl Store for HashStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.find_record(key).map(<[u8]>::to_vec))
    }

    fn cached_value(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        Some(self.find_record(key))
    }

    fn scan(
        &self,
        from: &[u8],
        prefix: &[u8],
        visit: &mut PairVisitor<'_>,
    ) -> Result<(), StoreError> {
        for (key, value) in self.sorted_records(from.max(prefix), prefix) {
            if let ControlFlow::Break(()) = visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        for (key, value) in batch.iter().filter(|(key, _)| key.first() != Some(&KEPT_ANSWER)) {
            match (value, is_hashed_key(key)) {
                (Some(value), true) => self.hashed.insert(key[..].into(), value[..].into()),
                (Some(value), false) => self.ordered.insert(key[..].into(), value[..].into()),
                (None, true) => self.hashed.remove(&key[..]),
                (None, false) => self.ordered.remove(&key[..]),
            };
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ordered_and_forgets_answers() {
        let mut store = HashStore::default();
        let put = |key: &[u8]| (key.to_vec(), Some(vec![1]));
        store.commit(&[put(b"E2"), put(b"E1"), put(b"R1"), put(b"I1")]).expect("memory");
        let mut seen = Vec::new();
        store
            .scan(b"E", b"E", &mut |key, _| {
                seen.push(key.to_vec());
                ControlFlow::Continue(())
            })
            .expect("memory");
        assert_eq!(seen, [b"E1", b"E2"]);
        assert!(store.has_record(b"I1") && !store.has_record(b"R1"));
        store.commit(&[(b"E2".to_vec(), None)]).expect("memory");
        assert_eq!(store.get(b"E2").expect("memory"), None);
        assert_eq!(store.cached_value(b"E1"), Some(Some(&[1][..])));
    }
}
