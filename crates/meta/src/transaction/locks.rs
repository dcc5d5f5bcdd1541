//! The lock table of an executor: in memory, as the `L` records of the store state.

use super::record::Prepared;
use crate::keys::{self, Key, Parsed};
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::transaction::{Age, Txid};
use tatami_wire::{Ino, ShardId, Timestamp};

/// A transaction that holds locks here.
#[derive(Debug)]
pub(crate) struct Held {
    pub prepared: Prepared,
    /// When its coordinator is asked for the outcome.
    pub ask_at: Timestamp,
}

#[derive(Debug)]
enum Lock {
    /// Exclusive: no other transaction may read or write the record.
    Write(Txid),
    /// Shared: no transaction may write the record.
    Read(BTreeSet<Txid>),
}

/// A run of consecutive shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub first: u16,
    pub count: u16,
}

impl Block {
    pub fn has(self, shard: ShardId) -> bool {
        shard.0 >= self.first && shard.0 - self.first < self.count
    }

    /// Returns whether the record belongs to one of them.
    pub fn has_key(self, key: &[u8]) -> bool {
        keys::shard_of(key).is_some_and(|shard| self.has(shard))
    }

    pub fn meets(self, other: Block) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }

    pub fn shards(self) -> impl Iterator<Item = ShardId> {
        (self.first..self.first + self.count).map(ShardId)
    }
}

/// The locks of all transactions; see the module.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    by_key: BTreeMap<Key, Lock>,
    held: BTreeMap<Txid, Held>,
    /// A move has locked all records of these shards, in memory only.
    closed: Option<(Block, Txid)>,
}

impl Locks {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.closed.is_none()
    }

    pub fn held(&self) -> &BTreeMap<Txid, Held> {
        &self.held
    }

    pub fn held_mut(&mut self, txid: &Txid) -> Option<&mut Held> {
        self.held.get_mut(txid)
    }

    pub fn age(&self, txid: &Txid) -> Option<Age> {
        self.held.get(txid).map(|held| held.prepared.age)
    }

    /// Closes these shards: no other transaction reads or writes their records until they are
    /// opened.
    pub fn close(&mut self, closed: Option<(Block, Txid)>) {
        self.closed = closed;
    }

    pub fn closed(&self) -> Option<(Block, Txid)> {
        self.closed
    }

    fn closed_by(&self, key: &[u8]) -> Option<Txid> {
        let (block, txid) = self.closed?;
        block.has_key(key).then_some(txid)
    }

    /// Returns whether any transaction holds locks in these shards.
    pub fn touch(&self, block: Block) -> bool {
        self.by_key.keys().any(|key| block.has_key(key))
    }

    /// Returns whether the transaction holds locks in these shards.
    pub fn has_some(&self, txid: &Txid, block: Block) -> bool {
        self.held.get(txid).is_some_and(|Held { prepared, .. }| {
            let writes = prepared.writes.iter().map(|item| &item.key);
            writes.chain(&prepared.intents).chain(&prepared.reads).any(|key| block.has_key(key))
        })
    }

    /// Returns the transaction that keeps others from reading the record.
    pub fn against_reading(&self, key: &[u8]) -> Option<Txid> {
        match self.by_key.get(key) {
            Some(Lock::Write(txid)) => Some(*txid),
            _ => self.closed_by(key),
        }
    }

    /// Returns the transactions that keep others from writing the record.
    pub fn against_writing(&self, key: &[u8]) -> Vec<Txid> {
        let mut on = match self.by_key.get(key) {
            Some(Lock::Write(txid)) => vec![*txid],
            Some(Lock::Read(txids)) => txids.iter().copied().collect(),
            None => Vec::new(),
        };
        on.extend(self.closed_by(key));
        on
    }

    /// Returns the transactions that keep others from reading one of the records from `from` to
    /// `to`.
    pub fn within(&self, from: &[u8], to: &[u8]) -> Vec<Txid> {
        if from > to {
            return Vec::new();
        }
        let locks = self
            .by_key
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Included(to)));
        let writer = |(_, lock): (_, &Lock)| match lock {
            Lock::Write(txid) => Some(*txid),
            Lock::Read(_) => None,
        };
        locks.filter_map(writer).chain(self.closed_by(from)).collect()
    }

    /// Returns whether a transaction may change the inode, or an entry of the directory.
    pub fn concern(&self, ino: Ino) -> bool {
        self.closed.is_some_and(|(block, _)| block.has(ino.shard()) || block.has(ino.birth()))
            || self
                .by_key
                .iter()
                .any(|(key, lock)| matches!(lock, Lock::Write(_)) && inode_of(key) == Some(ino))
    }

    /// Adds a transaction whose keys no other transaction blocks.
    pub fn add(&mut self, txid: Txid, prepared: Prepared, ask_at: Timestamp) {
        for key in prepared.writes.iter().map(|item| &item.key).chain(&prepared.intents) {
            self.by_key.insert(key.to_vec(), Lock::Write(txid));
        }
        for key in &prepared.reads {
            let lock = self.by_key.entry(key.to_vec()).or_insert(Lock::Read(BTreeSet::new()));
            if let Lock::Read(txids) = lock {
                txids.insert(txid);
            }
        }
        self.held.insert(txid, Held { prepared, ask_at });
    }

    /// Removes a transaction and its locks.
    pub fn remove(&mut self, txid: &Txid) -> Option<Prepared> {
        let held = self.held.remove(txid)?;
        // Only its own locks: keys are never locked by two writers.
        for key in held.prepared.writes.iter().map(|item| &item.key).chain(&held.prepared.intents) {
            self.by_key.remove(&key[..]);
        }
        for key in &held.prepared.reads {
            if let Some(Lock::Read(txids)) = self.by_key.get_mut(&key[..]) {
                txids.remove(txid);
                if txids.is_empty() {
                    self.by_key.remove(&key[..]);
                }
            }
        }
        Some(held.prepared)
    }
}

/// Returns the inode that a record belongs to; of an entry, its directory.
pub(crate) fn inode_of(key: &[u8]) -> Option<Ino> {
    match keys::parse(key)? {
        Parsed::Inode(ino)
        | Parsed::Young(ino)
        | Parsed::Ancestor(ino)
        | Parsed::Unsettled(ino)
        | Parsed::Tiled(ino) => Some(ino),
        Parsed::Entry { parent, .. } => Some(parent),
        Parsed::Xattr { ino, .. }
        | Parsed::Orphan { ino, .. }
        | Parsed::Writer { ino, .. }
        | Parsed::Piece { ino, .. }
        | Parsed::Job { ino, .. }
        | Parsed::JobRank { ino, .. }
        | Parsed::JobPlace { ino, .. }
        | Parsed::Garbage { ino, .. }
        | Parsed::Dropped { ino, .. } => Some(ino),
        _ => None,
    }
}
