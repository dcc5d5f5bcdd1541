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
                self.held.get(executor).is_some_and(|vote| vote.keys.contains_key(key, to_write))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::ExecutorShare;
    use tatami_wire::NodeId;

    const HERE: ExecutorId = ExecutorId { node: NodeId(0), index: 0 };
    const NEAR: ExecutorId = ExecutorId { node: NodeId(1), index: 0 };
    const FAR: ExecutorId = ExecutorId { node: NodeId(2), index: 0 };

    fn keys(names: &[u8]) -> BTreeSet<RecordKey> {
        names.iter().map(|name| vec![*name]).collect()
    }

    fn lock_keys(reads: &[u8], writes: &[u8]) -> LockKeys {
        LockKeys { reads: keys(reads), writes: keys(writes) }
    }

    fn lock_set(held: &[(ExecutorId, LockKeys)], outstanding: &[ExecutorId]) -> LockSet {
        let vote = |keys: &LockKeys| Vote { incarnation: 1, has_room: true, keys: keys.clone() };
        LockSet {
            txid: Txid { executor: HERE, incarnation: 1, number: 1 },
            held: held.iter().map(|(executor, keys)| (*executor, vote(keys))).collect(),
            outstanding: outstanding.iter().map(|to| (*to, LockKeys::default())).collect(),
            request: 1,
            may_wait: false,
            again_at: Timestamp { sec: 1, nsec: 0 },
            deadline: Timestamp { sec: 2, nsec: 0 },
            blockers: Vec::new(),
        }
    }

    /// What is missing for a run that reads and writes these records of `NEAR`.
    fn missing(set: &LockSet, reads: &[u8], writes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let values = |names: &[u8]| keys(names).into_iter().map(|key| (key, None)).collect();
        let share = ExecutorShare { reads: values(reads), writes: values(writes) };
        let mut done = OperationWrites::default();
        done.shares.insert(NEAR, share);
        let mut all = set.missing_locks(&done);
        let keys = all.remove(&NEAR)?;
        assert!(all.is_empty(), "of another executor");
        let names = |keys: BTreeSet<RecordKey>| keys.into_iter().flatten().collect();
        Some((names(keys.reads), names(keys.writes)))
    }

    #[test]
    fn a_lock_to_read_lets_read_and_a_lock_to_write_lets_both() {
        let set = lock_set(&[(NEAR, lock_keys(b"r", b"w"))], &[]);
        for (reads, writes, expected) in [
            (&b"r"[..], &b""[..], None),
            (b"w", b"", None),
            (b"", b"w", None),
            (b"rw", b"w", None),
            (b"x", b"", Some((b"x".to_vec(), vec![]))),
            (b"", b"x", Some((vec![], b"x".to_vec()))),
            (b"", b"r", Some((vec![], b"r".to_vec()))),
            // A record that it reads and writes is requested once.
            (b"x", b"x", Some((vec![], b"x".to_vec()))),
            (b"rwxy", b"wy", Some((b"x".to_vec(), b"y".to_vec()))),
        ] {
            assert_eq!(missing(&set, reads, writes), expected, "{reads:?} {writes:?}");
        }
        let elsewhere = lock_set(&[(FAR, lock_keys(b"r", b"w"))], &[]);
        assert_eq!(missing(&elsewhere, b"r", b"w"), Some((b"r".to_vec(), b"w".to_vec())));
    }

    #[test]
    fn an_executor_that_holds_some_and_is_asked_for_more_is_named_once() {
        let set = lock_set(&[(NEAR, lock_keys(b"r", b""))], &[NEAR, FAR]);
        assert_eq!(set.asked_executors().collect::<Vec<_>>(), [&NEAR, &FAR]);
    }

    #[test]
    fn it_is_handled_again_at_its_deadline_at_the_latest() {
        let mut set = lock_set(&[], &[]);
        assert_eq!(set.next_due(), set.again_at);
        set.again_at = Timestamp { sec: 3, nsec: 0 };
        assert_eq!(set.next_due(), set.deadline);
    }
}
