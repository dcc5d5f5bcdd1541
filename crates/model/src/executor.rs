//! One executor: the contents of its store and of its memory.

use crate::message::{Part, Transaction};
use crate::records::{Answer, Key, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A record that a transaction has read or wants to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lock {
    pub key: Key,
    pub by: Transaction,
    pub hold: Hold,
    /// The incarnation in which the transaction got it.
    pub life: u8,
}

/// The purpose of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Hold {
    Read,
    /// To be changed; the new value comes with the outcome.
    Intent,
    /// The provisional version.
    Value(Value),
}

/// A transaction under way, at its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    pub transaction: Transaction,
    pub read: BTreeMap<Key, Value>,
    /// Executors whose vote is missing, and the incarnation in which each was asked; `None` while
    /// the transaction still reads.
    pub waits: Option<BTreeMap<usize, u8>>,
    /// Executors that have locked records, and in which incarnation.
    pub held: BTreeMap<usize, u8>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Executor {
    // In the store.
    pub records: BTreeMap<Key, Value>,
    pub locks: BTreeSet<Lock>,
    /// Transactions that have committed here, with the executors that do not know it yet.
    pub committed: BTreeMap<Transaction, BTreeMap<usize, Part>>,
    pub replies: BTreeMap<usize, Answer>,
    pub incarnation: u8,
    // In memory.
    pub running: BTreeMap<usize, Run>,
    pub attempts: BTreeMap<usize, u8>,
    /// Operations whose transaction was aborted, with the one that comes first.
    pub yields: BTreeMap<usize, usize>,
    /// Transactions that are over: any message of theirs is late.
    pub over: BTreeSet<Transaction>,
}

impl Executor {
    /// Whether a transaction is under way here, or has committed.
    pub fn has(&self, transaction: Transaction) -> bool {
        let run = self.running.get(&transaction.operation);
        run.is_some_and(|run| run.transaction == transaction)
            || self.committed.contains_key(&transaction)
    }

    /// Crashes, and restarts with the contents of the store.
    pub fn restart(&mut self) {
        self.incarnation += 1;
        self.running.clear();
        self.attempts.clear();
        self.yields.clear();
        self.over.clear();
    }

    /// Returns the transaction, other than `but`, whose lock conflicts with reading, or with
    /// writing, `key`.
    pub fn conflict(&self, key: Key, write: bool, but: Option<Transaction>) -> Option<Transaction> {
        let in_the_way = |lock: &&Lock| {
            lock.key == key && Some(lock.by) != but && (write || lock.hold != Hold::Read)
        };
        self.locks.iter().find(in_the_way).map(|lock| lock.by)
    }

    /// Ends the leftovers of earlier attempts of the same operation.
    pub fn end_earlier(&mut self, latest: Transaction) {
        let mine = |by: &Transaction| by.operation == latest.operation && *by < latest;
        let earlier: Vec<_> = self.locks.iter().map(|lock| lock.by).filter(mine).collect();
        earlier.into_iter().for_each(|transaction| self.finish(transaction, None, false));
    }

    /// Ends a transaction that has, or may get, locks here. If the locks are of a later incarnation
    /// than the coordinator knows, its changes were written before and are not written again,
    /// except with `any_life`.
    pub fn finish(&mut self, transaction: Transaction, part: Option<&Part>, any_life: bool) {
        let locks = self.locks.iter().filter(|lock| lock.by == transaction);
        if let Some(part) = part {
            // A lock of a later incarnation belongs to a repeated request. The changes were written
            // before the restart, and the record may have changed since.
            for lock in locks.filter(|lock| any_life || lock.life == part.life) {
                let told = part.writes.iter().find(|(key, _)| *key == lock.key);
                match (lock.hold, told) {
                    (Hold::Value(value), _) => drop(self.records.insert(lock.key, value)),
                    (Hold::Intent, Some((_, value))) => {
                        self.records.insert(lock.key, *value);
                    }
                    (Hold::Read | Hold::Intent, _) => {}
                }
            }
        }
        self.locks.retain(|lock| lock.by != transaction);
        // From here on a late request must not lock again: no further message would free it.
        self.over.insert(transaction);
    }
}
