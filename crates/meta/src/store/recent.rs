//! Changes that the tables do not have yet, in key order.

use super::Change;
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, Range};
use std::iter::Peekable;
use std::ops::Bound;

/// A key with its first bytes as a number. They tell nearly all keys apart, so that a search
/// compares numbers that lie side by side and seldom follows a pointer.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The first 16 bytes, with zeros where the key is shorter: orders as the bytes do.
    head: u128,
    bytes: Vec<u8>,
}

impl Key {
    pub fn new(bytes: Vec<u8>) -> Key {
        let head = match bytes.first_chunk::<16>() {
            Some(head) => u128::from_be_bytes(*head),
            None => {
                let mut head = [0; 16];
                head[..bytes.len()].copy_from_slice(&bytes);
                u128::from_be_bytes(head)
            }
        };
        Key { head, bytes }
    }
}

/// Bytes of values that are kept together, unless one value is longer.
const CHUNK: usize = 1 << 20;

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    chunk: u32,
    start: u32,
    len: u32,
}

/// Values in large pieces: each of its own would be a small piece of memory to find and to
/// give back, among hundreds of thousands.
#[derive(Debug, Default)]
struct Values {
    chunks: Vec<Vec<u8>>,
}

impl Values {
    fn put(&mut self, value: &[u8]) -> Place {
        let full = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() < value.len();
        if self.chunks.last().is_none_or(full) {
            self.chunks.push(Vec::with_capacity(CHUNK.max(value.len())));
        }
        let at = self.chunks.len() - 1;
        let chunk = &mut self.chunks[at];
        let start = chunk.len();
        chunk.extend_from_slice(value);
        Place { chunk: at as u32, start: start as u32, len: value.len() as u32 }
    }

    /// Puts `value` where another one was, if it is not longer.
    fn replace(&mut self, old: Place, value: &[u8]) -> Place {
        if value.len() > old.len as usize {
            return self.put(value);
        }
        let new = Place { len: value.len() as u32, ..old };
        self.chunks[old.chunk as usize][old.start as usize..][..value.len()].copy_from_slice(value);
        new
    }

    fn get(&self, Place { chunk, start, len }: Place) -> &[u8] {
        &self.chunks[chunk as usize][start as usize..][..len as usize]
    }
}

/// A key and what became of it: a value, or `None` where it was removed.
pub(super) type Pair<'a> = (&'a [u8], Option<&'a [u8]>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Recent {
    map: BTreeMap<Key, Option<Place>>,
    /// What was replaced by something longer stays among them, at most as much as the log is long.
    values: Values,
}

impl Recent {
    /// Makes a change.
    pub fn change(&mut self, (key, value): Change) {
        match self.map.entry(Key::new(key)) {
            Entry::Vacant(place) => {
                place.insert(value.map(|value| self.values.put(&value)));
            }
            Entry::Occupied(mut place) => {
                let new = value.map(|value| match *place.get() {
                    Some(old) => self.values.replace(old, &value),
                    None => self.values.put(&value),
                });
                place.insert(new);
            }
        }
    }

    /// What became of `key`; `None` where nothing is known of it.
    pub fn get(&self, key: &Key) -> Option<Option<&[u8]>> {
        self.map.get(key).map(|value| value.map(|place| self.values.get(place)))
    }

    /// All changes in key order.
    pub fn iter(&self) -> impl Iterator<Item = Pair<'_>> {
        self.map.iter().map(|pair| self.pair(pair))
    }

    /// All changes in key order.
    pub fn into_changes(self) -> impl Iterator<Item = Change> {
        let Recent { map, values } = self;
        map.into_iter()
            .map(move |(key, value)| (key.bytes, value.map(|place| values.get(place).to_vec())))
    }

    fn pair<'a>(&'a self, (key, value): (&'a Key, &Option<Place>)) -> Pair<'a> {
        (&key.bytes, value.map(|place| self.values.get(place)))
    }

    fn range(&self, from: &[u8]) -> Range<'_, Key, Option<Place>> {
        self.map.range((Bound::Included(Key::new(from.to_vec())), Bound::Unbounded))
    }
}

/// Two sets of changes as one; where both know a key, the newer counts.
pub(super) struct Both<'a> {
    newer: (&'a Recent, Peekable<Range<'a, Key, Option<Place>>>),
    older: (&'a Recent, Peekable<Range<'a, Key, Option<Place>>>),
}

impl<'a> Both<'a> {
    /// The changes to keys from `from` on.
    pub fn new(newer: &'a Recent, older: &'a Recent, from: &[u8]) -> Both<'a> {
        Both {
            newer: (newer, newer.range(from).peekable()),
            older: (older, older.range(from).peekable()),
        }
    }
}

impl<'a> Iterator for Both<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        let (newer, older) = (&mut self.newer.1, &mut self.older.1);
        let older_first = match (newer.peek(), older.peek()) {
            (Some((n, _)), Some((o, _))) => {
                if n == o {
                    older.next();
                    false
                } else {
                    o < n
                }
            }
            (newer, _) => newer.is_none(),
        };
        let (recent, range) = if older_first { &mut self.older } else { &mut self.newer };
        range.next().map(|pair| recent.pair(pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Keys that share their first bytes, end early or hold zeros are as in a plain map.
        #[test]
        fn it_orders_and_finds_as_a_map_of_bytes(
            older in proptest::collection::vec((key(), any::<Option<u8>>()), 0..30),
            newer in proptest::collection::vec((key(), any::<Option<u8>>()), 0..30),
            from in key(),
        ) {
            let (mut one, mut two) = (Recent::default(), Recent::default());
            let mut both: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
            for (into, changes) in [(&mut one, older), (&mut two, newer)] {
                for (key, value) in changes {
                    let value = value.map(|v| vec![v]);
                    into.change((key.clone(), value.clone()));
                    both.insert(key, value);
                }
            }
            let found: Vec<_> = Both::new(&two, &one, &from).collect();
            let expected: Vec<_> =
                both.range(from..).map(|(k, v)| (k.as_slice(), v.as_deref())).collect();
            prop_assert_eq!(found, expected);
            for (key, value) in &both {
                let key = Key::new(key.clone());
                let found = two.get(&key).or_else(|| one.get(&key));
                prop_assert_eq!(found, Some(value.as_deref()));
            }
        }
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let tail = proptest::collection::vec(0u8..2, 0..4);
        (0usize..3, tail).prop_map(|(n, tail)| [vec![7; [0, 14, 16][n]], tail].concat())
    }
}
