//! Transactions that lock the records of other executors when they first need them.

use crate::executor::{LockPurpose, ModelLock};
use crate::message::{CommittedPart, MessageBody, Transaction};
use crate::protocol::{ModelStep, Protocol, ProtocolDefect, transaction_keys};
use crate::records::{ModelKey, ModelOperation, ModelValue};
use std::collections::BTreeMap;

impl Protocol {
    /// Returns the part of an executor in an operation that has committed.
    pub(crate) fn committed_part(
        &self,
        number: usize,
        at: usize,
        held: &BTreeMap<usize, u8>,
    ) -> CommittedPart {
        let life = held.get(&at).copied().unwrap_or_default();
        let ModelOperation::Transaction { writes, .. } = self.operation(number) else {
            return CommittedPart::default();
        };
        let reported = writes.iter().filter(|(key, _)| self.locks && self.executor_of(*key) == at);
        CommittedPart { incarnation: life, writes: reported.copied().collect() }
    }

    /// Returns the other executors of an operation, in the order in which it needs them.
    fn other_executors(&self, number: usize) -> Vec<usize> {
        let ModelOperation::Transaction { reads, writes, home } = self.operation(number) else {
            return Vec::new();
        };
        let mut places = Vec::new();
        for key in reads.iter().chain(writes.iter().map(|(key, _)| key)) {
            let place = self.executor_of(*key);
            if place != *home && !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

impl ModelStep<'_> {
    /// Asks the next executor for locks, if one is left.
    pub fn lock_next(&mut self, number: usize) {
        let ModelOperation::Transaction { reads, writes, home } = self.protocol.operation(number)
        else {
            return;
        };
        let run = &self.state.executors[*home].running[&number];
        let (transaction, holds) = (run.transaction, !run.held.is_empty());
        let mut others = self.protocol.other_executors(number).into_iter();
        let next = others.find(|place| !run.held.contains_key(place));
        let mut waits = BTreeMap::new();
        if let Some(to) = next {
            // The incarnation goes on record: if that executor crashes, the locks may be lost and
            // the transaction gives up.
            waits.insert(to, self.state.executors[to].incarnation);
            let here = transaction_keys(reads, writes).into_iter();
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (key, write) in here.filter(|(key, _)| self.protocol.executor_of(*key) == to) {
                if write { writes.push(key) } else { reads.push(key) }
            }
            self.send_message(*home, to, transaction, MessageBody::Lock { reads, writes, holds });
        }
        if let Some(run) = self.state.executors[*home].running.get_mut(&number) {
            run.waits = Some(waits);
        }
    }

    /// Locks records for a transaction. A transaction without locks waits for any other. One with
    /// locks waits for younger ones only, and otherwise gives way (wait-die), so that no cycle of
    /// waits can form.
    pub fn lock_records(
        &mut self,
        home: usize,
        at: usize,
        transaction: Transaction,
        reads: &[ModelKey],
        writes: &[ModelKey],
        holds: bool,
    ) {
        let executor = &mut self.state.executors[at];
        // A late request of a transaction that is over must not lock: its outcome has come already.
        if executor.ended.contains(&transaction)
            && !self.protocol.has_defect(ProtocolDefect::ForgetsTheOver)
        {
            return;
        }
        let shares = self.protocol.has_defect(ProtocolDefect::SharesLocks);
        let wanted = reads.iter().map(|key| (*key, LockPurpose::Read));
        let wanted = wanted.filter(|_| !self.protocol.has_defect(ProtocolDefect::LeavesReadsOpen));
        let wanted: Vec<_> =
            wanted.chain(writes.iter().map(|key| (*key, LockPurpose::Intent))).collect();
        let held = executor
            .locks
            .iter()
            .find(|lock| lock.owner == transaction)
            .map(|lock| lock.incarnation);
        for (key, hold) in &wanted {
            let write = *hold != LockPurpose::Read;
            let lock = executor
                .conflicting_transaction(*key, write, Some(transaction))
                .filter(|_| !shares);
            match lock {
                // Wound-wait: the older transaction has the younger one aborted, and waits.
                Some(lock) if transaction.operation < lock.operation => {
                    return self.wait_for_younger(at, lock, transaction.operation);
                }
                // The message is repeated.
                Some(_) if !holds => return,
                Some(_) => return self.refuse_transaction(at, home, transaction),
                None => {}
            }
        }
        let life = held.unwrap_or(executor.incarnation);
        let lock = |(key, hold)| ModelLock { key, owner: transaction, hold, incarnation: life };
        // All locks at once, after all checks: a transaction never holds a part of its request
        // here.
        executor.locks.extend(wanted.into_iter().map(lock));
        let all = reads.iter().chain(writes);
        let values: Vec<(ModelKey, ModelValue)> =
            all.map(|key| (*key, executor.records[key])).collect();
        self.send_message(at, home, transaction, MessageBody::Locked { values, incarnation: life });
    }

    pub fn record_locked(
        &mut self,
        home: usize,
        transaction: Transaction,
        from: usize,
        values: &[(ModelKey, ModelValue)],
        life: u8,
    ) {
        let number = transaction.operation;
        let Some(run) = self.state.executors[home].running.get_mut(&number) else { return };
        // A repeated answer, or one to an earlier attempt, must not count as a vote.
        let asked = run.waits.as_ref().is_some_and(|waits| waits.contains_key(&from));
        if run.transaction != transaction || !asked {
            return;
        }
        run.held.insert(from, life);
        run.read.extend(values.iter().copied());
        self.lock_next(number);
    }
}
