//! Transactions that lock what they need of other executors as they come to it.

use crate::executor::{Hold, Lock};
use crate::message::{Part, Transaction, Word};
use crate::protocol::{Defect, Protocol, Step, keys};
use crate::records::{Key, Operation, Value};
use std::collections::BTreeMap;

impl Protocol {
    /// What an executor does for an operation that has happened.
    pub(crate) fn part(&self, number: usize, at: usize, held: &BTreeMap<usize, u8>) -> Part {
        let life = held.get(&at).copied().unwrap_or_default();
        let Operation::Transaction { writes, .. } = self.operation(number) else {
            return Part::default();
        };
        let told = writes.iter().filter(|(key, _)| self.locks && self.place(*key) == at);
        Part { life, writes: told.copied().collect() }
    }

    /// The other executors of an operation, in the order in which it comes to them.
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

    /// Locks for a transaction. Who has no locks yet waits for anybody; others for younger ones only.
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
                Some(lock) if transaction.operation < lock.operation => {
                    return self.meet(at, lock, transaction.operation);
                }
                // The message comes again.
                Some(_) if !holds => return,
                Some(_) => return self.refuse(at, home, transaction),
                None => {}
            }
        }
        let life = held.unwrap_or(executor.incarnation);
        let lock = |(key, hold)| Lock { key, by: transaction, hold, life };
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
        let asked = run.waits.as_ref().is_some_and(|waits| waits.contains_key(&from));
        if run.transaction != transaction || !asked {
            return;
        }
        run.held.insert(from, life);
        run.read.extend(values.iter().copied());
        self.lock_more(number);
    }
}
