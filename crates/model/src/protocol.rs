//! All possible events, and the properties that must hold.

use crate::executor::{LockPurpose, ModelExecutor, ModelLock, RunningTransaction};
use crate::message::{CommittedPart, Message, MessageBody, Transaction};
use crate::records::{ModelKey, ModelOperation, ModelValue, ReadValues, Records};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// A part of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolDefect {
    /// A participant locks without checking that the records are unchanged.
    LocksUnvalidated,
    /// A record that was only read is checked, but not locked.
    LeavesReadsOpen,
    /// A reader takes the old value of a locked record without asking.
    ReadsBelowLocks,
    /// The coordinator commits at the first vote.
    CommitsEarly,
    /// A transaction begun after a restart has the name of one begun before.
    ForgetsIncarnation,
    /// A participant that has ended a transaction would lock for it again.
    ForgetsTheOver,
    /// The record of a transaction goes when the first participant has ended it.
    DropsRecord,
    /// No executor asks for the outcome of a transaction that holds a lock.
    TrustsLocks,
    /// Of two conflicting transactions, both begin again.
    BothGiveWay,
    /// Locks are lost when their executor crashes.
    LosesLocks,
    /// The record of a transaction does not have the changes on other executors.
    ForgetsWrites,
    /// Several transactions may lock a record that is to be changed.
    SharesLocks,
    /// Committed changes are written under any locks, also those of another incarnation.
    ForgetsLives,
}

/// The case that is checked. See the crate's page.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// The executor that has each record. All records begin as 0.
    pub places: Vec<usize>,
    /// The operations of each client, in order.
    pub clients: Vec<Vec<ModelOperation>>,
    /// Most crashes of executors.
    pub deaths: u8,
    /// Most attempts of an operation in one incarnation of its coordinator.
    pub attempts: u8,
    /// Transactions lock records when they first need them. Otherwise they read first, and have
    /// their changes prepared.
    pub locks: bool,
    /// The part that is left out.
    pub defect: Option<ProtocolDefect>,
}

/// The state of all executors, messages and clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelState {
    pub(crate) executors: Vec<ModelExecutor>,
    /// All messages that were ever sent to an executor that is alive.
    network: BTreeSet<Message>,
    /// By client: operations begun, and whether the last has no answer yet.
    begun: Vec<(usize, bool)>,
    deaths: u8,
    history: LinearizabilityTester<usize, Records>,
}

/// A possible event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtocolAction {
    /// A client begins its next operation.
    Begin(usize),
    /// Its executor begins the operation, or tries again.
    Start(usize),
    /// A transaction reads a record of another executor.
    Fetch(usize, ModelKey),
    /// All are prepared: the transaction commits, unless a record at its coordinator is locked or
    /// has changed.
    Commit(usize),
    /// A transaction gives up waiting for an executor that has crashed meanwhile.
    GiveUp(usize),
    /// The client gets its answer.
    Answer(usize),
    /// A message arrives.
    Deliver(Message),
    /// An executor repeats, to one that has crashed meanwhile, that a transaction has committed.
    Repeat(usize),
    /// An executor asks for the outcome of transactions whose locks it has held for long.
    Sweep(usize),
    /// An executor crashes and restarts.
    Crash(usize),
}

impl Protocol {
    /// Returns the client of an operation, and the operation's index there. Operations are numbered
    /// over all clients.
    fn client_of(&self, operation: usize) -> (usize, usize) {
        let mut left = operation;
        for (client, operations) in self.clients.iter().enumerate() {
            match left.checked_sub(operations.len()) {
                Some(rest) => left = rest,
                None => return (client, left),
            }
        }
        unreachable!("operations are numbered by `number`")
    }

    fn operation_number(&self, client: usize, at: usize) -> usize {
        self.clients[..client].iter().map(Vec::len).sum::<usize>() + at
    }

    pub(crate) fn operation(&self, number: usize) -> &ModelOperation {
        let (client, at) = self.client_of(number);
        &self.clients[client][at]
    }

    pub(crate) fn executor_of(&self, key: ModelKey) -> usize {
        self.places[usize::from(key)]
    }

    /// Returns the executor that coordinates an operation.
    pub(crate) fn coordinator_of(&self, operation: usize) -> usize {
        match self.operation(operation) {
            ModelOperation::Transaction { home, .. } => *home,
            ModelOperation::Put(key, _) | ModelOperation::Get(key) => self.executor_of(*key),
        }
    }

    pub(crate) fn has_defect(&self, defect: ProtocolDefect) -> bool {
        self.defect == Some(defect)
    }

    fn has_next_state(&self, state: &ModelState) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.into_iter().any(|action| self.next_state(state, action).is_some())
    }
}

/// A state on its way to the next.
pub(crate) struct ModelStep<'a> {
    pub protocol: &'a Protocol,
    pub state: ModelState,
}

impl ModelStep<'_> {
    pub fn send_message(&mut self, from: usize, to: usize, about: Transaction, word: MessageBody) {
        let incarnation = self.state.executors[to].incarnation;
        self.state.network.insert(Message { from, to, incarnation, about, word });
    }

    fn answer_client(&mut self, operation: usize, answer: ReadValues) {
        let (client, _) = self.protocol.client_of(operation);
        self.state.begun[client].1 = false;
        let reported = self.state.history.on_return(client, answer);
        reported.expect("an operation that was asked for is answered once");
    }

    /// Wounds the transaction whose lock conflicts with an operation that changes a record: asks
    /// its coordinator to abort it.
    pub fn wound_transaction(&mut self, at: usize, lock: Transaction, by: usize) {
        if !self.protocol.has_defect(ProtocolDefect::TrustsLocks) {
            let home = self.protocol.coordinator_of(lock.operation);
            self.send_message(
                at,
                home,
                lock,
                MessageBody::Status { abort: Some(by), reader: None },
            );
        }
    }

    /// An older transaction has met the lock of a younger one: it waits, and the younger one gives
    /// way. If both gave way, they could do so for ever.
    pub fn wait_for_younger(&mut self, at: usize, lock: Transaction, older: usize) {
        self.wound_transaction(at, lock, older);
        if self.protocol.has_defect(ProtocolDefect::BothGiveWay) {
            // At its own coordinator the older one aborts itself; elsewhere its coordinator is
            // asked to do so.
            let home = self.protocol.coordinator_of(older);
            match self.state.executors[home].running.get(&older).map(|run| run.transaction) {
                Some(_) if at == home => self.abort_transaction(home, older),
                Some(about) => self.send_message(at, home, about, MessageBody::Refused),
                None => {}
            }
        }
    }

    fn start_operation(&mut self, number: usize) {
        let home = self.protocol.coordinator_of(number);
        match self.protocol.operation(number).clone() {
            ModelOperation::Put(key, value) => {
                match self.state.executors[home].conflicting_transaction(key, true, None) {
                    // A plain operation wins in the end.
                    Some(lock) => self.wound_transaction(home, lock, number),
                    None => {
                        self.state.executors[home].records.insert(key, value);
                        self.answer_client(number, Vec::new());
                    }
                }
            }
            ModelOperation::Get(key) => match self.state.executors[home]
                .conflicting_transaction(key, false, None)
            {
                Some(lock) if !self.protocol.has_defect(ProtocolDefect::ReadsBelowLocks) => {
                    let (to, reader) = (self.protocol.coordinator_of(lock.operation), Some(number));
                    self.send_message(home, to, lock, MessageBody::Status { abort: None, reader });
                }
                _ => self.read_record(number, home, key),
            },
            ModelOperation::Transaction { reads, writes, .. } => {
                self.attempt_transaction(number, &reads, &writes)
            }
        }
    }

    fn read_record(&mut self, number: usize, at: usize, key: ModelKey) {
        let value = self.state.executors[at].records[&key];
        self.answer_client(number, vec![value]);
    }

    fn attempt_transaction(
        &mut self,
        number: usize,
        reads: &[ModelKey],
        writes: &[(ModelKey, ModelValue)],
    ) {
        let home = self.protocol.coordinator_of(number);
        for (key, write) in transaction_keys(reads, writes) {
            if self.protocol.executor_of(key) == home
                && let Some(lock) =
                    self.state.executors[home].conflicting_transaction(key, write, None)
            // Local records are checked first: a transaction that must wait here has no locks
            // elsewhere yet.
            {
                if number < lock.operation {
                    self.wound_transaction(home, lock, number);
                }
                return;
            }
        }
        let executor = &mut self.state.executors[home];
        let attempts = executor.attempts.entry(number).or_default();
        *attempts += 1;
        let forgets = self.protocol.has_defect(ProtocolDefect::ForgetsIncarnation);
        // With the incarnation in its name, no transaction of the time before a restart can be
        // taken for this one.
        let incarnation = if forgets { 0 } else { executor.incarnation };
        let transaction = Transaction { operation: number, incarnation, attempt: *attempts };
        let local = reads.iter().filter(|key| self.protocol.executor_of(**key) == home);
        // A transaction that locks other executors' records reads its own last, under its locks.
        let local = local.filter(|_| !self.protocol.locks);
        let read = local.map(|key| (*key, executor.records[key])).collect();
        let run = RunningTransaction { transaction, read, waits: None, held: BTreeMap::new() };
        executor.running.insert(number, run);
        match self.protocol.locks {
            true => self.lock_next(number),
            false => self.request_votes(number),
        }
    }

    fn fetch_record(&mut self, number: usize, key: ModelKey) {
        let value = self.state.executors[self.protocol.executor_of(key)].records[&key];
        let home = self.protocol.coordinator_of(number);
        if let Some(run) = self.state.executors[home].running.get_mut(&number) {
            run.read.insert(key, value);
        }
        self.request_votes(number);
    }

    /// Asks all participants for their votes, once all records are read.
    fn request_votes(&mut self, number: usize) {
        let ModelOperation::Transaction { reads, writes, home } = self.protocol.operation(number)
        else {
            return;
        };
        let run = &self.state.executors[*home].running[&number];
        if run.read.len() < reads.len() {
            return;
        }
        let (transaction, read) = (run.transaction, run.read.clone());
        let mut waits = BTreeMap::new();
        for (key, _) in transaction_keys(reads, writes) {
            let to = self.protocol.executor_of(key);
            if to != *home {
                waits.insert(to, self.state.executors[to].incarnation);
            }
        }
        for to in waits.keys() {
            let reads = read.iter().filter(|(key, _)| self.protocol.executor_of(**key) == *to);
            let reads = reads.map(|(key, value)| (*key, *value)).collect();
            let writes = writes.iter().filter(|(key, _)| self.protocol.executor_of(*key) == *to);
            let writes = writes.copied().collect();
            self.send_message(*home, *to, transaction, MessageBody::Prepare { reads, writes });
        }
        if let Some(run) = self.state.executors[*home].running.get_mut(&number) {
            run.waits = Some(waits);
        }
    }

    fn record_vote(&mut self, home: usize, transaction: Transaction, from: usize) {
        let early = self.protocol.has_defect(ProtocolDefect::CommitsEarly);
        let Some(run) = self.state.executors[home].running.get_mut(&transaction.operation) else {
            return;
        };
        let Some(waits) = run.waits.as_mut().filter(|_| run.transaction == transaction) else {
            return;
        };
        if let Some(life) = waits.remove(&from) {
            run.held.insert(from, life);
        }
        if early {
            waits.clear();
        }
    }

    /// Commits: the one moment at which the transaction takes effect, unless a record of the
    /// coordinator has changed.
    fn commit_transaction(&mut self, home: usize, transaction: Transaction) {
        let number = transaction.operation;
        let ModelOperation::Transaction { reads, writes, .. } = self.protocol.operation(number)
        else {
            return;
        };
        let is_home = |key: ModelKey| self.protocol.executor_of(key) == home;
        let executor = &self.state.executors[home];
        let run = &executor.running[&number];
        for (key, write) in
            transaction_keys(reads, writes).into_iter().filter(|(key, _)| is_home(*key))
        {
            match executor.conflicting_transaction(key, write, None) {
                Some(lock) if number < lock.operation => {
                    return self.wait_for_younger(home, lock, number);
                }
                Some(_) => return self.abort_transaction(home, number),
                None => {}
            }
        }
        // Read validation: records at the coordinator are not locked, so their values must still be
        // the ones that were read.
        if run.read.iter().any(|(key, value)| is_home(*key) && executor.records[key] != *value) {
            return self.abort_transaction(home, number);
        }
        let value =
            |key: &ModelKey| run.read.get(key).copied().unwrap_or_else(|| executor.records[key]);
        let answer = reads.iter().map(value).collect();
        let others: BTreeSet<usize> = transaction_keys(reads, writes)
            .into_keys()
            .map(|key| self.protocol.executor_of(key))
            .filter(|place| *place != home)
            .collect();
        let part = |to: &usize| (*to, self.protocol.committed_part(number, *to, &run.held));
        let changes =
            |(_, part): &(usize, CommittedPart)| !part.writes.is_empty() || !self.protocol.locks;
        let (others, released): (Vec<_>, Vec<_>) = others.iter().map(part).partition(changes);
        let others: BTreeMap<usize, CommittedPart> = others.into_iter().collect();
        // One atomic step, as one batch of the store: the changes, the reply, and the record of the
        // participants.
        let executor = &mut self.state.executors[home];
        for (key, value) in writes.iter().filter(|(key, _)| is_home(*key)) {
            executor.records.insert(*key, *value);
        }
        executor.running.remove(&number);
        executor.replies.insert(number, answer);
        if !others.is_empty() {
            executor.committed.insert(transaction, others.clone());
        }
        for (to, part) in others {
            self.send_message(home, to, transaction, MessageBody::Finish { committed: true, part });
        }
        // Participants that only read need no record of the outcome: presumed abort frees their
        // locks as well.
        for (to, part) in released {
            self.send_message(
                home,
                to,
                transaction,
                MessageBody::Finish { committed: false, part },
            );
        }
    }

    pub fn abort_transaction(&mut self, home: usize, number: usize) {
        let Some(run) = self.state.executors[home].running.remove(&number) else { return };
        let ModelOperation::Transaction { reads, writes, .. } = self.protocol.operation(number)
        else {
            return;
        };
        for (key, _) in transaction_keys(reads, writes) {
            let to = self.protocol.executor_of(key);
            if to != home && run.waits.is_some() {
                let part = CommittedPart::default();
                self.send_message(
                    home,
                    to,
                    run.transaction,
                    MessageBody::Finish { committed: false, part },
                );
            }
        }
    }

    fn deliver_message(&mut self, message: Message) {
        let Message { from, to, about, word, .. } = message;
        match word {
            MessageBody::Prepare { reads, writes } => {
                self.lock_prepared(from, to, about, &reads, &writes)
            }
            MessageBody::Prepared => self.record_vote(to, about, from),
            MessageBody::Lock { reads, writes, holds } => {
                self.lock_records(from, to, about, &reads, &writes, holds);
            }
            MessageBody::Locked { values, incarnation: life } => {
                self.record_locked(to, about, from, &values, life)
            }
            MessageBody::Refused => {
                let run = self.state.executors[to].running.get(&about.operation);
                if run.is_some_and(|run| run.transaction == about) {
                    self.abort_transaction(to, about.operation);
                }
            }
            MessageBody::Finish { committed, part } => {
                let any_life = self.protocol.has_defect(ProtocolDefect::ForgetsLives);
                self.state.executors[to].finish_transaction(
                    about,
                    committed.then_some(&part),
                    any_life,
                );
                if committed {
                    self.send_message(to, from, about, MessageBody::Finished);
                }
            }
            MessageBody::Finished => {
                let drops = self.protocol.has_defect(ProtocolDefect::DropsRecord);
                let committed = &mut self.state.executors[to].committed;
                if let Some(others) = committed.get_mut(&about) {
                    others.remove(&from);
                    if others.is_empty() || drops {
                        committed.remove(&about);
                    }
                }
            }
            MessageBody::Status { abort, reader } => {
                self.report_status(to, from, about, abort, reader)
            }
            MessageBody::Running { reader } => {
                let waits = self.state.is_waiting(self.protocol, reader);
                if let (true, ModelOperation::Get(key)) = (waits, self.protocol.operation(reader)) {
                    // The present value under this lock was current when the coordinator answered.
                    // A lock of another transaction needs a request of its own.
                    match self.state.executors[to].conflicting_transaction(*key, false, None) {
                        Some(lock) if lock != about => {}
                        _ => self.read_record(reader, to, *key),
                    }
                }
            }
        }
    }

    fn lock_prepared(
        &mut self,
        home: usize,
        at: usize,
        transaction: Transaction,
        reads: &[(ModelKey, ModelValue)],
        writes: &[(ModelKey, ModelValue)],
    ) {
        let executor = &mut self.state.executors[at];
        if executor.ended.contains(&transaction)
            && !self.protocol.has_defect(ProtocolDefect::ForgetsTheOver)
        {
            return;
        }
        // A new attempt proves that the earlier one had not committed.
        executor.end_earlier_attempts(transaction);
        if executor.locks.iter().any(|lock| lock.owner == transaction) {
            return self.send_message(at, home, transaction, MessageBody::Prepared);
        }
        let mut locks: BTreeMap<ModelKey, LockPurpose> = BTreeMap::new();
        if !self.protocol.has_defect(ProtocolDefect::LeavesReadsOpen) {
            locks.extend(reads.iter().map(|(key, _)| (*key, LockPurpose::Read)));
        }
        locks.extend(writes.iter().map(|(key, value)| (*key, LockPurpose::Value(*value))));
        for (key, hold) in &locks {
            let write = *hold != LockPurpose::Read;
            if let Some(lock) = executor.conflicting_transaction(*key, write, Some(transaction)) {
                if transaction.operation < lock.operation {
                    return self.wait_for_younger(at, lock, transaction.operation);
                }
                return self.refuse_transaction(at, home, transaction);
            }
        }
        // Read validation: nothing may have changed between the read and this lock.
        let is_same = reads.iter().all(|(key, value)| executor.records[key] == *value);
        if !is_same && !self.protocol.has_defect(ProtocolDefect::LocksUnvalidated) {
            return self.refuse_transaction(at, home, transaction);
        }
        let life = executor.incarnation;
        let lock = |(key, hold)| ModelLock { key, owner: transaction, hold, incarnation: life };
        let locks = locks.into_iter().map(lock);
        self.state.executors[at].locks.extend(locks);
        self.send_message(at, home, transaction, MessageBody::Prepared);
    }

    /// Refuses for good: a lock that is taken later would conflict with the next attempt.
    pub fn refuse_transaction(&mut self, at: usize, home: usize, transaction: Transaction) {
        self.state.executors[at].ended.insert(transaction);
        self.send_message(at, home, transaction, MessageBody::Refused);
    }

    fn report_status(
        &mut self,
        home: usize,
        to: usize,
        about: Transaction,
        abort: Option<usize>,
        reader: Option<usize>,
    ) {
        let executor = &self.state.executors[home];
        if let Some(others) = executor.committed.get(&about) {
            let part = others.get(&to).cloned();
            let (committed, part) = (part.is_some(), part.unwrap_or_default());
            return self.send_message(home, to, about, MessageBody::Finish { committed, part });
        }
        let run = executor.running.get(&about.operation);
        let runs = run.is_some_and(|run| run.transaction == about);
        match (runs, reader) {
            (true, _) if abort.is_some() => {
                self.abort_transaction(home, about.operation);
                self.state.executors[home].yields_to.extend(abort.map(|by| (about.operation, by)));
            }
            (true, Some(reader)) => {
                self.send_message(home, to, about, MessageBody::Running { reader })
            }
            (true, None) => {}
            // Presumed abort: it never commits, because later attempts have other names.
            (false, _) => {
                let part = CommittedPart::default();
                self.send_message(home, to, about, MessageBody::Finish { committed: false, part });
            }
        }
    }

    fn repeat_outcomes(&mut self, home: usize) {
        for (transaction, others) in self.state.executors[home].committed.clone() {
            for (to, part) in others {
                self.send_message(
                    home,
                    to,
                    transaction,
                    MessageBody::Finish { committed: true, part },
                );
            }
        }
    }

    fn request_outcomes(&mut self, at: usize) {
        for lock in self.state.executors[at].locks.clone() {
            let home = self.protocol.coordinator_of(lock.owner.operation);
            // Before it is over there is no outcome.
            if self.state.executors[home].knows_transaction(lock.owner)
                || self.protocol.has_defect(ProtocolDefect::TrustsLocks)
            {
                continue;
            }
            self.send_message(
                at,
                home,
                lock.owner,
                MessageBody::Status { abort: None, reader: None },
            );
        }
    }

    fn crash_executor(&mut self, at: usize) {
        self.state.deaths += 1;
        let executor = &mut self.state.executors[at];
        executor.restart();
        if self.protocol.has_defect(ProtocolDefect::LosesLocks) {
            executor.locks.clear();
        }
        if self.protocol.has_defect(ProtocolDefect::ForgetsWrites) {
            let parts = executor.committed.values_mut().flat_map(BTreeMap::values_mut);
            parts.for_each(|part| part.writes.clear());
        }
        let incarnation = executor.incarnation;
        // Connections die with the process, except that requests for locks may wait for the next
        // one.
        self.state.network.retain(|message| {
            let waits = matches!(message.word, MessageBody::Lock { .. });
            message.to != at || message.incarnation == incarnation || waits
        });
    }
}

/// Returns the records of a transaction, each with whether it is changed.
pub(crate) fn transaction_keys(
    reads: &[ModelKey],
    writes: &[(ModelKey, ModelValue)],
) -> BTreeMap<ModelKey, bool> {
    let mut keys: BTreeMap<ModelKey, bool> = reads.iter().map(|key| (*key, false)).collect();
    keys.extend(writes.iter().map(|(key, _)| (*key, true)));
    keys
}

impl ModelState {
    /// Whether a lock of another transaction blocks one that waits for its next attempt.
    fn is_blocked(&self, protocol: &Protocol, number: usize) -> bool {
        let ModelOperation::Transaction { reads, writes, home } = protocol.operation(number) else {
            return false;
        };
        // Stands for a pause: the operation that had it aborted comes first.
        let yields = self.executors[*home].yields_to.get(&number);
        if yields.is_some_and(|by| self.is_waiting(protocol, *by)) {
            return true;
        }
        transaction_keys(reads, writes).into_iter().any(|(key, write)| {
            let place = protocol.executor_of(key);
            place != *home
                && self.executors[place].conflicting_transaction(key, write, None).is_some()
        })
    }

    /// Whether an operation has no answer yet.
    fn is_waiting(&self, protocol: &Protocol, number: usize) -> bool {
        let (client, at) = protocol.client_of(number);
        self.begun[client] == (at + 1, true)
    }

    /// Drops messages that can have no effect any more, to reduce the number of states.
    fn drop_dead_messages(&mut self, protocol: &Protocol) {
        let executors = &self.executors;
        let is_over = |message: &Message| {
            executors[message.to].ended.contains(&message.about)
                && !protocol.has_defect(ProtocolDefect::ForgetsTheOver)
        };
        let acknowledged: BTreeSet<(usize, Transaction)> = self
            .network
            .iter()
            .filter(|message| message.word == MessageBody::Finished)
            .map(|message| (message.from, message.about))
            .collect();
        let waiting: BTreeSet<usize> = (0..protocol.operation_number(protocol.clients.len(), 0))
            .filter(|n| self.is_waiting(protocol, *n))
            .collect();
        let may_die = self.deaths < protocol.deaths;
        self.network.retain(|message| {
            let (to, about) = (&executors[message.to], message.about);
            match &message.word {
                MessageBody::Prepare { .. } => !is_over(message),
                // A crash forgets that the transaction is over.
                MessageBody::Lock { .. } => may_die || !is_over(message),
                MessageBody::Prepared | MessageBody::Refused | MessageBody::Locked { .. } => {
                    let run = to.running.get(&about.operation);
                    run.is_some_and(|run| run.transaction == about)
                }
                MessageBody::Finish { committed, .. } => {
                    let home = &executors[message.from];
                    let is_known = !committed
                        || !home.committed.contains_key(&about)
                        || acknowledged.contains(&(message.to, about));
                    !(is_over(message) && is_known)
                }
                MessageBody::Finished => to.committed.contains_key(&about),
                MessageBody::Status { .. } => {
                    executors[message.from].locks.iter().any(|lock| lock.owner == about)
                }
                MessageBody::Running { reader } => waiting.contains(reader),
            }
        });
    }

    /// Whether every operation has its answer and nothing is left.
    fn is_finished(&self, protocol: &Protocol) -> bool {
        let clients = self.begun.iter().zip(&protocol.clients);
        clients.into_iter().all(|((begun, open), all)| *begun == all.len() && !open)
            && self.executors.iter().all(|executor| {
                executor.locks.is_empty()
                    && executor.committed.is_empty()
                    && executor.running.is_empty()
            })
    }
}

impl Model for Protocol {
    type State = ModelState;
    type Action = ProtocolAction;

    fn init_states(&self) -> Vec<ModelState> {
        let mut executors =
            vec![ModelExecutor::default(); self.places.iter().max().map_or(0, |m| m + 1)];
        for (key, place) in self.places.iter().enumerate() {
            executors[*place].records.insert(key as ModelKey, 0);
        }
        vec![ModelState {
            executors,
            network: BTreeSet::new(),
            begun: vec![(0, false); self.clients.len()],
            deaths: 0,
            history: LinearizabilityTester::new(Records(vec![0; self.places.len()])),
        }]
    }

    fn actions(&self, state: &ModelState, actions: &mut Vec<ProtocolAction>) {
        for (client, &(begun, open)) in state.begun.iter().enumerate() {
            if !open {
                if begun < self.clients[client].len() {
                    actions.push(ProtocolAction::Begin(client));
                }
                continue;
            }
            let number = self.operation_number(client, begun - 1);
            let home = &state.executors[self.coordinator_of(number)];
            if home.replies.contains_key(&number) {
                actions.push(ProtocolAction::Answer(number));
                continue;
            }
            match home.running.get(&number) {
                Some(run) => {
                    let ModelOperation::Transaction { reads, .. } = self.operation(number) else {
                        continue;
                    };
                    let missing = reads.iter().filter(|key| !run.read.contains_key(key));
                    let missing = missing.filter(|_| !self.locks);
                    actions.extend(missing.map(|key| ProtocolAction::Fetch(number, *key)));
                    let mut waits = run.waits.iter().flatten();
                    if run.waits.as_ref().is_some_and(BTreeMap::is_empty) {
                        actions.push(ProtocolAction::Commit(number));
                    }
                    if waits.any(|(at, life)| state.executors[*at].incarnation != *life) {
                        actions.push(ProtocolAction::GiveUp(number));
                    }
                }
                None => {
                    let tried = home.attempts.get(&number).copied().unwrap_or(0);
                    let again = tried == 0 || !state.is_blocked(self, number);
                    if tried < self.attempts && again {
                        actions.push(ProtocolAction::Start(number));
                    }
                }
            }
        }
        actions.extend(state.network.iter().cloned().map(ProtocolAction::Deliver));
        for at in 0..state.executors.len() {
            actions.push(ProtocolAction::Repeat(at));
            actions.push(ProtocolAction::Sweep(at));
            if state.deaths < self.deaths {
                actions.push(ProtocolAction::Crash(at));
            }
        }
    }

    fn next_state(&self, last: &ModelState, action: ProtocolAction) -> Option<ModelState> {
        let mut step = ModelStep { protocol: self, state: last.clone() };
        match action {
            ProtocolAction::Begin(client) => {
                let (begun, open) = &mut step.state.begun[client];
                let operation = self.clients[client][*begun].clone();
                (*begun, *open) = (*begun + 1, true);
                step.state.history.on_invoke(client, operation).ok()?;
            }
            ProtocolAction::Start(number) => step.start_operation(number),
            ProtocolAction::Fetch(number, key) => step.fetch_record(number, key),
            ProtocolAction::Commit(number) => {
                let home = self.coordinator_of(number);
                let transaction = last.executors[home].running.get(&number)?.transaction;
                step.commit_transaction(home, transaction);
            }
            ProtocolAction::GiveUp(number) => {
                step.abort_transaction(self.coordinator_of(number), number)
            }
            ProtocolAction::Answer(number) => {
                let home = &last.executors[self.coordinator_of(number)];
                step.answer_client(number, home.replies.get(&number)?.clone());
            }
            ProtocolAction::Deliver(message) => step.deliver_message(message),
            ProtocolAction::Repeat(at) => step.repeat_outcomes(at),
            ProtocolAction::Sweep(at) => step.request_outcomes(at),
            ProtocolAction::Crash(at) => step.crash_executor(at),
        }
        step.state.drop_dead_messages(self);
        (step.state != *last).then_some(step.state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("linearizable", |_, state: &ModelState| {
                state.history.serialized_history().is_some()
            }),
            Property::always("finished", |protocol: &Protocol, state: &ModelState| {
                state.is_finished(protocol) || protocol.has_next_state(state)
            }),
            Property::sometimes("everything done", |protocol: &Protocol, state: &ModelState| {
                state.is_finished(protocol)
            }),
        ]
    }
}
