//! One executor: the contents of its store and of its memory.

use crate::message::{CommittedPart, Transaction};
use crate::records::{ModelKey, ModelValue, ReadValues};
use std::collections::{BTreeMap, BTreeSet};

/// A record that a transaction has read or wants to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModelLock {
    pub key: ModelKey,
    pub owner: Transaction,
    pub hold: LockPurpose,
    /// The incarnation in which the transaction got it.
    pub incarnation: u8,
}

/// The purpose of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LockPurpose {
    Read,
    /// To be changed; the new value comes with the outcome.
    Intent,
    /// The provisional version.
    Value(ModelValue),
}

/// A transaction under way, at its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunningTransaction {
    pub transaction: Transaction,
    pub read: BTreeMap<ModelKey, ModelValue>,
    /// Executors whose vote is missing, and the incarnation in which each was asked; `None` while
    /// the transaction still reads.
    pub waits: Option<BTreeMap<usize, u8>>,
    /// Executors that have locked records, and in which incarnation.
    pub held: BTreeMap<usize, u8>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelExecutor {
    // In the store.
    pub records: BTreeMap<ModelKey, ModelValue>,
    pub locks: BTreeSet<ModelLock>,
    /// Transactions that have committed here, with the executors that do not know it yet.
    pub committed: BTreeMap<Transaction, BTreeMap<usize, CommittedPart>>,
    pub replies: BTreeMap<usize, ReadValues>,
    pub incarnation: u8,
    // In memory.
    pub running: BTreeMap<usize, RunningTransaction>,
    pub attempts: BTreeMap<usize, u8>,
    /// Operations whose transaction was aborted, with the one that comes first.
    pub yields_to: BTreeMap<usize, usize>,
    /// Transactions that are over: any message of theirs is late.
    pub ended: BTreeSet<Transaction>,
}

impl ModelExecutor {
    /// Whether a transaction is under way here, or has committed.
    pub fn knows_transaction(&self, transaction: Transaction) -> bool {
        let run = self.running.get(&transaction.operation);
        run.is_some_and(|run| run.transaction == transaction)
            || self.committed.contains_key(&transaction)
    }

    /// Crashes, and restarts with the contents of the store.
    pub fn restart(&mut self) {
        self.incarnation += 1;
        self.running.clear();
        self.attempts.clear();
        self.yields_to.clear();
        self.ended.clear();
    }

    /// Returns the transaction, other than `but`, whose lock conflicts with reading, or with
    /// writing, `key`.
    pub fn conflicting_transaction(
        &self,
        key: ModelKey,
        write: bool,
        but: Option<Transaction>,
    ) -> Option<Transaction> {
        let in_the_way = |lock: &&ModelLock| {
            lock.key == key && Some(lock.owner) != but && (write || lock.hold != LockPurpose::Read)
        };
        self.locks.iter().find(in_the_way).map(|lock| lock.owner)
    }

    /// Ends the leftovers of earlier attempts of the same operation.
    pub fn end_earlier_attempts(&mut self, latest: Transaction) {
        let mine = |by: &Transaction| by.operation == latest.operation && *by < latest;
        let earlier: Vec<_> = self.locks.iter().map(|lock| lock.owner).filter(mine).collect();
        earlier
            .into_iter()
            .for_each(|transaction| self.finish_transaction(transaction, None, false));
    }

    /// Ends a transaction that has, or may get, locks here. If the locks are of a later incarnation
    /// than the coordinator knows, its changes were written before and are not written again,
    /// except with `any_life`.
    pub fn finish_transaction(
        &mut self,
        transaction: Transaction,
        part: Option<&CommittedPart>,
        any_life: bool,
    ) {
        let locks = self.locks.iter().filter(|lock| lock.owner == transaction);
        if let Some(part) = part {
            // A lock of a later incarnation belongs to a repeated request. The changes were written
            // before the restart, and the record may have changed since.
            for lock in locks.filter(|lock| any_life || lock.incarnation == part.incarnation) {
                let reported = part.writes.iter().find(|(key, _)| *key == lock.key);
                match (lock.hold, reported) {
                    (LockPurpose::Value(value), _) => drop(self.records.insert(lock.key, value)),
                    (LockPurpose::Intent, Some((_, value))) => {
                        self.records.insert(lock.key, *value);
                    }
                    (LockPurpose::Read | LockPurpose::Intent, _) => {}
                }
            }
        }
        self.locks.retain(|lock| lock.owner != transaction);
        // From here on a late request must not lock again: no further message would free it.
        self.ended.insert(transaction);
    }
}
