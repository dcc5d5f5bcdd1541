//! Transactions that lock the records of other executors when they first need them.

use crate::executor::{Hold, Lock};
use crate::message::{Part, Transaction, Word};
use crate::protocol::{Defect, Protocol, Step, keys};
use crate::records::{Key, Operation, Value};
use std::collections::BTreeMap;

impl Protocol {
    /// Returns the part of an executor in an operation that has committed.
    pub(crate) fn part(&self, number: usize, at: usize, held: &BTreeMap<usize, u8>) -> Part {
        let life = held.get(&at).copied().unwrap_or_default();
        let Operation::Transaction { writes, .. } = self.operation(number) else {
            return Part::default();
        };
        let told = writes.iter().filter(|(key, _)| self.locks && self.place(*key) == at);
        Part { life, writes: told.copied().collect() }
    }

    /// Returns the other executors of an operation, in the order in which it needs them.
    fn others(&self, number: usize) -> Vec<usize> {
        let Operation::Transaction { reads, writes, home } = self.operation(number) else {
            return Vec::new();
        };
        let mut places = Vec::new();
        for key in reads.iter().chain(writes.iter().map(|(key, _)| key)) {
            let place = self.place(*key);
            if place != *home && !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

impl Step<'_> {
    /// Asks the next executor for locks, if one is left.
    pub fn lock_more(&mut self, number: usize) {
        let Operation::Transaction { reads, writes, home } = self.protocol.operation(number) else {
            return;
        };
        let run = &self.state.executors[*home].running[&number];
        let (transaction, holds) = (run.transaction, !run.held.is_empty());
        let mut others = self.protocol.others(number).into_iter();
        let next = others.find(|place| !run.held.contains_key(place));
        let mut waits = BTreeMap::new();
        if let Some(to) = next {
            // The incarnation goes on record: if that executor crashes, the locks may be lost and
            // the transaction gives up.
            waits.insert(to, self.state.executors[to].incarnation);
            let here = keys(reads, writes).into_iter();
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (key, write) in here.filter(|(key, _)| self.protocol.place(*key) == to) {
                if write { writes.push(key) } else { reads.push(key) }
            }
            self.send(*home, to, transaction, Word::Lock { reads, writes, holds });
        }
        if let Some(run) = self.state.executors[*home].running.get_mut(&number) {
            run.waits = Some(waits);
        }
    }

    /// Locks records for a transaction. A transaction without locks waits for any other. One with
    /// locks waits for younger ones only, and otherwise gives way (wait-die), so that no cycle of
    /// waits can form.
    pub fn lock_for(
        &mut self,
        home: usize,
        at: usize,
        transaction: Transaction,
        reads: &[Key],
        writes: &[Key],
        holds: bool,
    ) {
        let executor = &mut self.state.executors[at];
        // A late request of a transaction that is over must not lock: its outcome has come already.
        if executor.over.contains(&transaction) && !self.protocol.has(Defect::ForgetsTheOver) {
            return;
        }
        let shares = self.protocol.has(Defect::SharesLocks);
        let wanted = reads.iter().map(|key| (*key, Hold::Read));
        let wanted = wanted.filter(|_| !self.protocol.has(Defect::LeavesReadsOpen));
        let wanted: Vec<_> = wanted.chain(writes.iter().map(|key| (*key, Hold::Intent))).collect();
        let held = executor.locks.iter().find(|lock| lock.by == transaction).map(|lock| lock.life);
        for (key, hold) in &wanted {
            let write = *hold != Hold::Read;
            let lock = executor.conflict(*key, write, Some(transaction)).filter(|_| !shares);
            match lock {
                // Wound-wait: the older transaction has the younger one aborted, and waits.
                Some(lock) if transaction.operation < lock.operation => {
                    return self.meet(at, lock, transaction.operation);
                }
                // The message is repeated.
                Some(_) if !holds => return,
                Some(_) => return self.refuse(at, home, transaction),
                None => {}
            }
        }
        let life = held.unwrap_or(executor.incarnation);
        let lock = |(key, hold)| Lock { key, by: transaction, hold, life };
        // All locks at once, after all checks: a transaction never holds a part of its request
        // here.
        executor.locks.extend(wanted.into_iter().map(lock));
        let all = reads.iter().chain(writes);
        let values: Vec<(Key, Value)> = all.map(|key| (*key, executor.records[key])).collect();
        self.send(at, home, transaction, Word::Locked { values, life });
    }

    pub fn locked(
        &mut self,
        home: usize,
        transaction: Transaction,
        from: usize,
        values: &[(Key, Value)],
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
        self.lock_more(number);
    }
}
