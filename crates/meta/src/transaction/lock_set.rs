//! The locks that an attempt of an operation holds at other executors.

use crate::keys::RecordKey;
use crate::operation::OperationWrites;
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::Txid;
use tatami_wire::{ExecutorId, Timestamp};

/// The lock set of an attempt: the locks that other executors have granted, and those that are
/// requested.
pub(crate) struct LockSet {
    pub txid: Txid,
    pub(crate) held: BTreeMap<ExecutorId, Vote>,
    /// The executors that have not answered yet, and the requested keys.
    pub outstanding: BTreeMap<ExecutorId, LockKeys>,
    /// The number of the last request.
    pub(crate) request: u32,
    /// It has asked one executor, and no other.
    pub(crate) may_wait: bool,
    /// When it asks again, for locks or for the outcome of the transactions in its way.
    pub(crate) again_at: Timestamp,
    pub deadline: Timestamp,
    /// Nothing is missing, but these transactions hold locks on records of this executor.
    pub blockers: Vec<Txid>,
}

/// Records of one executor: those that are read, and those that may be written.
#[derive(Clone, Default)]
pub(crate) struct LockKeys {
    pub(crate) reads: BTreeSet<RecordKey>,
    pub(crate) writes: BTreeSet<RecordKey>,
}

/// The locks that one executor has granted.
pub(crate) struct Vote {
    pub(crate) incarnation: u64,
    pub(crate) has_room: bool,
    pub(crate) keys: LockKeys,
}

/// The reply of an executor that has granted locks.
pub(crate) struct LockReply {
    pub incarnation: u64,
    pub has_room: bool,
    pub values: Vec<Option<Bytes>>,
}

impl LockKeys {
    pub(crate) fn contains_key(&self, key: &RecordKey, to_write: bool) -> bool {
        self.writes.contains(key) || !to_write && self.reads.contains(key)
    }

    pub(crate) fn iter_in_order(&self) -> impl Iterator<Item = &RecordKey> {
        self.reads.iter().chain(&self.writes)
    }
}

impl LockSet {
    /// Returns when the attempt must be handled next.
    pub fn next_due(&self) -> Timestamp {
        self.again_at.min(self.deadline)
    }

    /// Returns all executors that were asked for locks.
    pub fn asked_executors(&self) -> impl Iterator<Item = &ExecutorId> {
        let others = self.outstanding.keys().filter(|executor| !self.held.contains_key(executor));
        self.held.keys().chain(others)
    }

    /// Returns the records of others that the operation reads or writes and that are not locked for
    /// it.
    pub(crate) fn missing_locks(&self, done: &OperationWrites) -> BTreeMap<ExecutorId, LockKeys> {
        let mut all = BTreeMap::new();
        for (executor, share) in &done.shares {
            let has = |key: &RecordKey, to_write| {
                self.held
                    .get(executor)
                    .is_some_and(|promise| promise.keys.contains_key(key, to_write))
            };
            let writes: BTreeSet<_> =
                share.writes.keys().filter(|key| !has(key, true)).cloned().collect();
            let reads = share.reads.keys().filter(|key| !has(key, false));
            let reads: BTreeSet<_> = reads.filter(|key| !writes.contains(*key)).cloned().collect();
            if !(reads.is_empty() && writes.is_empty()) {
                assert!(reads.is_disjoint(&writes), "a key is requested both to read and to write");
                all.insert(*executor, LockKeys { reads, writes });
            }
        }
        all
    }
}
