//! The lock table of an executor: in memory, as the `L` records of the store state.

use crate::keys::{self, ParsedKey, RecordKey};
use crate::transaction::record::LockRecord;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::transaction::{TransactionAge, Txid};
use tatami_wire::{ClientId, Ino, ShardId, Timestamp};

/// A transaction that holds locks here.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    pub prepared: LockRecord,
    /// When its coordinator is asked for the outcome.
    pub ask_at: Timestamp,
}

#[derive(Debug)]
enum RecordLock {
    /// Exclusive: no other transaction may read or write the record.
    Write(Txid),
    /// Shared: no transaction may write the record.
    Read(BTreeSet<Txid>),
}

/// A run of consecutive shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardBlock {
    pub first: u16,
    pub count: u16,
}

impl ShardBlock {
    pub fn contains_shard(self, shard: ShardId) -> bool {
        shard.0 >= self.first && shard.0 - self.first < self.count
    }

    /// Returns whether the record belongs to one of them.
    pub fn contains_key(self, key: &[u8]) -> bool {
        keys::shard_of(key).is_some_and(|shard| self.contains_shard(shard))
    }

    pub fn overlaps_block(self, other: ShardBlock) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }

    pub fn iter_shards(self) -> impl Iterator<Item = ShardId> {
        (self.first..self.first + self.count).map(ShardId)
    }
}

/// Directories that are delegated exclusively, in memory only: an operation of another client, or
/// of no client, waits for them as for a lock.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveDirectories {
    /// The holder, and a name that no transaction has, for those that wait.
    holders: BTreeMap<Ino, (ClientId, Txid)>,
    /// Those for which an operation waits, until the caller has taken them.
    wanted: RefCell<BTreeSet<Ino>>,
}

impl ExclusiveDirectories {
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Returns the client that has the directory.
    pub fn holder(&self, dir: Ino) -> Option<ClientId> {
        self.holders.get(&dir).map(|(client, _)| *client)
    }

    /// Returns what an operation for `client` waits for that reads or changes the inode, and
    /// records that it waits.
    pub fn inode_blocker(&self, ino: Ino, client: Option<ClientId>) -> Option<Txid> {
        let (holder, txid) = self.holders.get(&ino)?;
        if client == Some(*holder) {
            return None;
        }
        self.wanted.borrow_mut().insert(ino);
        Some(*txid)
    }

    /// As [`ExclusiveDirectories::inode_blocker`], for a record. The path to a directory is no part
    /// of what is delegated.
    pub fn record_blocker(&self, key: &[u8], client: Option<ClientId>) -> Option<Txid> {
        if self.holders.is_empty() || matches!(keys::parse(key), Some(ParsedKey::Ancestor(_))) {
            return None;
        }
        self.inode_blocker(inode_of(key)?, client)
    }

    /// Delegates a directory that nobody else has.
    pub fn insert(&mut self, dir: Ino, client: ClientId, txid: Txid) {
        let before = self.holders.entry(dir).or_insert((client, txid)).0;
        assert_eq!(before, client, "two clients have a directory exclusively");
    }

    /// Ends a delegation of the client. Returns what its waiters wait for.
    pub fn remove(&mut self, dir: Ino, client: ClientId) -> Option<Txid> {
        let (_, txid) = *self.holders.get(&dir).filter(|(holder, _)| *holder == client)?;
        self.holders.remove(&dir);
        self.wanted.get_mut().remove(&dir);
        Some(txid)
    }

    /// Takes the directories for which operations wait, with their holders.
    pub fn take_wanted(&mut self) -> Vec<(Ino, ClientId)> {
        let wanted = std::mem::take(self.wanted.get_mut());
        wanted.into_iter().filter_map(|dir| Some((dir, self.holder(dir)?))).collect()
    }

    /// Returns all directories with their holders.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, ClientId)> {
        self.holders.iter().map(|(dir, (client, _))| (*dir, *client))
    }
}

/// The locks of all transactions; see the module.
#[derive(Debug, Default)]
pub(crate) struct TransactionLocks {
    by_key: BTreeMap<RecordKey, RecordLock>,
    held: BTreeMap<Txid, HeldLocks>,
    /// A move has locked all records of these shards, in memory only.
    closed: Option<(ShardBlock, Txid)>,
    /// Directories of which a client alone makes entries.
    pub exclusive: ExclusiveDirectories,
}

impl TransactionLocks {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.closed.is_none()
    }

    pub fn held(&self) -> &BTreeMap<Txid, HeldLocks> {
        &self.held
    }

    pub fn held_mut(&mut self, txid: &Txid) -> Option<&mut HeldLocks> {
        self.held.get_mut(txid)
    }

    pub fn age_of(&self, txid: &Txid) -> Option<TransactionAge> {
        self.held.get(txid).map(|held| held.prepared.age)
    }

    /// Closes these shards: no other transaction reads or writes their records until they are
    /// opened.
    pub fn set_closed_block(&mut self, closed: Option<(ShardBlock, Txid)>) {
        self.closed = closed;
    }

    pub fn closed_block(&self) -> Option<(ShardBlock, Txid)> {
        self.closed
    }

    fn closed_by(&self, key: &[u8]) -> Option<Txid> {
        let (block, txid) = self.closed?;
        block.contains_key(key).then_some(txid)
    }

    /// Returns whether any transaction holds locks in these shards.
    pub fn has_locks_in(&self, block: ShardBlock) -> bool {
        self.by_key.keys().any(|key| block.contains_key(key))
    }

    /// Returns whether the transaction holds locks in these shards.
    pub fn holds_locks_in(&self, txid: &Txid, block: ShardBlock) -> bool {
        self.held.get(txid).is_some_and(|HeldLocks { prepared, .. }| {
            let writes = prepared.writes.iter().map(|item| &item.key);
            writes
                .chain(&prepared.intents)
                .chain(&prepared.reads)
                .any(|key| block.contains_key(key))
        })
    }

    /// Returns the transaction that keeps others from reading the record.
    pub fn read_blocker(&self, key: &[u8]) -> Option<Txid> {
        match self.by_key.get(key) {
            Some(RecordLock::Write(txid)) => Some(*txid),
            _ => self.closed_by(key),
        }
    }

    /// Returns the transactions that keep others from writing the record.
    pub fn write_blockers(&self, key: &[u8]) -> Vec<Txid> {
        let mut on = match self.by_key.get(key) {
            Some(RecordLock::Write(txid)) => vec![*txid],
            Some(RecordLock::Read(txids)) => txids.iter().copied().collect(),
            None => Vec::new(),
        };
        on.extend(self.closed_by(key));
        on
    }

    /// Returns the transactions that keep others from reading one of the records from `from` to
    /// `to`.
    pub fn blockers_in_range(&self, from: &[u8], to: &[u8]) -> Vec<Txid> {
        if from > to {
            return Vec::new();
        }
        let locks = self
            .by_key
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Included(to)));
        let writer = |(_, lock): (_, &RecordLock)| match lock {
            RecordLock::Write(txid) => Some(*txid),
            RecordLock::Read(_) => None,
        };
        locks.filter_map(writer).chain(self.closed_by(from)).collect()
    }

    /// Returns whether a transaction may change the inode, or an entry of the directory.
    pub fn is_changing(&self, ino: Ino) -> bool {
        self.closed.is_some_and(|(block, _)| {
            block.contains_shard(ino.owner_shard()) || block.contains_shard(ino.allocating_shard())
        }) || self
            .by_key
            .iter()
            .any(|(key, lock)| matches!(lock, RecordLock::Write(_)) && inode_of(key) == Some(ino))
    }

    /// Adds a transaction whose keys no other transaction blocks.
    pub fn insert(&mut self, txid: Txid, prepared: LockRecord, ask_at: Timestamp) {
        for key in prepared.writes.iter().map(|item| &item.key).chain(&prepared.intents) {
            let before = self.by_key.insert(key.to_vec(), RecordLock::Write(txid));
            // A message may name a key twice, so the lock may be this transaction's own.
            let is_own = |lock| matches!(lock, RecordLock::Write(holder) if holder == txid);
            assert!(before.is_none_or(is_own), "two transactions lock a record that one writes");
        }
        for key in &prepared.reads {
            let lock = self.by_key.entry(key.to_vec()).or_insert(RecordLock::Read(BTreeSet::new()));
            match lock {
                RecordLock::Read(txids) => drop(txids.insert(txid)),
                RecordLock::Write(holder) => {
                    assert_eq!(*holder, txid, "two transactions lock a record that one writes");
                }
            }
        }
        self.held.insert(txid, HeldLocks { prepared, ask_at });
    }

    /// Removes a transaction and its locks.
    pub fn remove(&mut self, txid: &Txid) -> Option<LockRecord> {
        let held = self.held.remove(txid)?;
        for key in held.prepared.writes.iter().map(|item| &item.key).chain(&held.prepared.intents) {
            let lock = self.by_key.remove(&key[..]);
            let is_own = |lock| matches!(lock, RecordLock::Write(holder) if holder == *txid);
            assert!(lock.is_none_or(is_own), "two transactions lock a record that one writes");
        }
        for key in &held.prepared.reads {
            if let Some(RecordLock::Read(txids)) = self.by_key.get_mut(&key[..]) {
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
        ParsedKey::Inode(ino)
        | ParsedKey::EmbeddedDir(ino)
        | ParsedKey::Ancestor(ino)
        | ParsedKey::PendingRecovery(ino)
        | ParsedKey::Inline(ino)
        | ParsedKey::Tiled(ino) => Some(ino),
        ParsedKey::Entry { parent, .. } => Some(parent),
        ParsedKey::Xattr { ino, .. }
        | ParsedKey::Orphan { ino, .. }
        | ParsedKey::Writer { ino, .. }
        | ParsedKey::Piece { ino, .. }
        | ParsedKey::Job { ino, .. }
        | ParsedKey::JobRank { ino, .. }
        | ParsedKey::JobPlace { ino, .. }
        | ParsedKey::Garbage { ino, .. }
        | ParsedKey::Dropped { ino, .. } => Some(ino),
        _ => None,
    }
}
