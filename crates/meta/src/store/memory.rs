//! A store in memory, for tests and simulations, and to measure the cost of the namespace itself.

use super::{Change, PairVisitor, Store, StoreError, prefix_end};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A sorted map. It loses everything with the process, and never fails.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl MemoryStore {
    /// Returns an empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns all pairs in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pairs.iter().map(|(k, v)| (k.as_slice(), v.as_slice()))
    }

    /// Makes one change.
    pub fn apply_change(&mut self, (key, value): &Change) {
        match value {
            Some(value) => self.pairs.insert(key.clone(), value.clone()),
            None => self.pairs.remove(key),
        };
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(
        &self,
        from: &[u8],
        prefix: &[u8],
        visit: &mut PairVisitor<'_>,
    ) -> Result<(), StoreError> {
        let start = from.max(prefix);
        let end = prefix_end(prefix);
        if end.as_deref().is_some_and(|end| start >= end) {
            return Ok(());
        }
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        for (key, value) in self.pairs.range::<[u8], _>((Bound::Included(start), upper)) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        batch.iter().for_each(|change| self.apply_change(change));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;

    fn keys(store: &MemoryStore, from: &[u8], prefix: &[u8], limit: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        store
            .scan(from, prefix, &mut |k, _| {
                found.push(k.to_vec());
                if found.len() == limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .expect("memory does not fail");
        found
    }

    #[test]
    fn a_scan_keeps_to_its_prefix_its_start_and_its_visitor() {
        let mut store = MemoryStore::new();
        let put = |k: &[u8]| (k.to_vec(), Some(vec![1]));
        store.commit(&[put(b"a1"), put(b"a2"), put(b"a3"), put(b"b1")]).expect("commit");
        assert_eq!(keys(&store, b"", b"a", 9), [b"a1", b"a2", b"a3"]);
        assert_eq!(keys(&store, b"a2", b"a", 9), [b"a2", b"a3"]);
        assert_eq!(keys(&store, b"", b"a", 1), [b"a1"]);
        assert_eq!(keys(&store, b"c", b"a", 9), Vec::<Vec<u8>>::new());
        assert_eq!(keys(&store, b"", b"", 9).len(), 4);
        store.commit(&[(b"a2".to_vec(), None)]).expect("commit");
        assert_eq!(keys(&store, b"", b"a", 9), [b"a1", b"a3"]);
    }
}
