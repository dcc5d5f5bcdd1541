//! All possible events, and the properties that must hold.

use crate::executor::{Executor, Hold, Lock, Run};
use crate::message::{Message, Part, Transaction, Word};
use crate::records::{Answer, Key, Operation, Records, Value};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// A part of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A participant locks without checking that the records are unchanged.
    LocksUnseen,
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
    pub clients: Vec<Vec<Operation>>,
    /// Most crashes of executors.
    pub deaths: u8,
    /// Most attempts of an operation in one incarnation of its coordinator.
    pub attempts: u8,
    /// Transactions lock records when they first need them. Otherwise they read first, and have
    /// their changes prepared.
    pub locks: bool,
    /// The part that is left out.
    pub defect: Option<Defect>,
}

/// The state of all executors, messages and clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) executors: Vec<Executor>,
    /// All messages that were ever sent to an executor that is alive.
    network: BTreeSet<Message>,
    /// By client: operations begun, and whether the last has no answer yet.
    begun: Vec<(usize, bool)>,
    deaths: u8,
    history: LinearizabilityTester<usize, Records>,
}

/// A possible event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client begins its next operation.
    Begin(usize),
    /// Its executor begins the operation, or tries again.
    Start(usize),
    /// A transaction reads a record of another executor.
    Fetch(usize, Key),
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
    Die(usize),
}

impl Protocol {
    /// Returns the client of an operation, and the operation's index there. Operations are numbered
    /// over all clients.
    fn client(&self, operation: usize) -> (usize, usize) {
        let mut left = operation;
        for (client, operations) in self.clients.iter().enumerate() {
            match left.checked_sub(operations.len()) {
                Some(rest) => left = rest,
                None => return (client, left),
            }
        }
        unreachable!("operations are numbered by `number`")
    }

    fn number(&self, client: usize, at: usize) -> usize {
        self.clients[..client].iter().map(Vec::len).sum::<usize>() + at
    }

    pub(crate) fn operation(&self, number: usize) -> &Operation {
        let (client, at) = self.client(number);
        &self.clients[client][at]
    }

    pub(crate) fn place(&self, key: Key) -> usize {
        self.places[usize::from(key)]
    }

    /// Returns the executor that coordinates an operation.
    pub(crate) fn home(&self, operation: usize) -> usize {
        match self.operation(operation) {
            Operation::Transaction { home, .. } => *home,
            Operation::Put(key, _) | Operation::Get(key) => self.place(*key),
        }
    }

    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn can_go_on(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.into_iter().any(|action| self.next_state(state, action).is_some())
    }
}

/// A state on its way to the next.
pub(crate) struct Step<'a> {
    pub protocol: &'a Protocol,
    pub state: State,
}

impl Step<'_> {
    pub fn send(&mut self, from: usize, to: usize, about: Transaction, word: Word) {
        let incarnation = self.state.executors[to].incarnation;
        self.state.network.insert(Message { from, to, incarnation, about, word });
    }

    fn answer(&mut self, operation: usize, answer: Answer) {
        let (client, _) = self.protocol.client(operation);
        self.state.begun[client].1 = false;
        let told = self.state.history.on_return(client, answer);
        told.expect("an operation that was asked for is answered once");
    }

    /// Wounds the transaction whose lock conflicts with an operation that changes a record: asks
    /// its coordinator to abort it.
    pub fn wound(&mut self, at: usize, lock: Transaction, by: usize) {
        if !self.protocol.has(Defect::TrustsLocks) {
            let home = self.protocol.home(lock.operation);
            self.send(at, home, lock, Word::Status { abort: Some(by), reader: None });
        }
    }

    /// An older transaction has met the lock of a younger one: it waits, and the younger one gives
    /// way. If both gave way, they could do so for ever.
    pub fn meet(&mut self, at: usize, lock: Transaction, older: usize) {
        self.wound(at, lock, older);
        if self.protocol.has(Defect::BothGiveWay) {
            // At its own coordinator the older one aborts itself; elsewhere its coordinator is
            // asked to do so.
            let home = self.protocol.home(older);
            match self.state.executors[home].running.get(&older).map(|run| run.transaction) {
                Some(_) if at == home => self.abort(home, older),
                Some(about) => self.send(at, home, about, Word::Refused),
                None => {}
            }
        }
    }

    fn start(&mut self, number: usize) {
        let home = self.protocol.home(number);
        match self.protocol.operation(number).clone() {
            Operation::Put(key, value) => {
                match self.state.executors[home].conflict(key, true, None) {
                    // A plain operation wins in the end.
                    Some(lock) => self.wound(home, lock, number),
                    None => {
                        self.state.executors[home].records.insert(key, value);
                        self.answer(number, Vec::new());
                    }
                }
            }
            Operation::Get(key) => match self.state.executors[home].conflict(key, false, None) {
                Some(lock) if !self.protocol.has(Defect::ReadsBelowLocks) => {
                    let (to, reader) = (self.protocol.home(lock.operation), Some(number));
                    self.send(home, to, lock, Word::Status { abort: None, reader });
                }
                _ => self.get(number, home, key),
            },
            Operation::Transaction { reads, writes, .. } => self.try_it(number, &reads, &writes),
        }
    }

    fn get(&mut self, number: usize, at: usize, key: Key) {
        let value = self.state.executors[at].records[&key];
        self.answer(number, vec![value]);
    }

    fn try_it(&mut self, number: usize, reads: &[Key], writes: &[(Key, Value)]) {
        let home = self.protocol.home(number);
        for (key, write) in keys(reads, writes) {
            if self.protocol.place(key) == home
                && let Some(lock) = self.state.executors[home].conflict(key, write, None)
            // Local records are checked first: a transaction that must wait here has no locks
            // elsewhere yet.
            {
                if number < lock.operation {
                    self.wound(home, lock, number);
                }
                return;
            }
        }
        let executor = &mut self.state.executors[home];
        let attempts = executor.attempts.entry(number).or_default();
        *attempts += 1;
        let forgets = self.protocol.has(Defect::ForgetsIncarnation);
        // With the incarnation in its name, no transaction of the time before a restart can be
        // taken for this one.
        let incarnation = if forgets { 0 } else { executor.incarnation };
        let transaction = Transaction { operation: number, incarnation, attempt: *attempts };
        let local = reads.iter().filter(|key| self.protocol.place(**key) == home);
        // A transaction that locks other executors' records reads its own last, under its locks.
        let local = local.filter(|_| !self.protocol.locks);
        let read = local.map(|key| (*key, executor.records[key])).collect();
        let run = Run { transaction, read, waits: None, held: BTreeMap::new() };
        executor.running.insert(number, run);
        match self.protocol.locks {
            true => self.lock_more(number),
            false => self.prepare(number),
        }
    }

    fn fetch(&mut self, number: usize, key: Key) {
        let value = self.state.executors[self.protocol.place(key)].records[&key];
        let home = self.protocol.home(number);
        if let Some(run) = self.state.executors[home].running.get_mut(&number) {
            run.read.insert(key, value);
        }
        self.prepare(number);
    }

    /// Asks all participants for their votes, once all records are read.
    fn prepare(&mut self, number: usize) {
        let Operation::Transaction { reads, writes, home } = self.protocol.operation(number) else {
            return;
        };
        let run = &self.state.executors[*home].running[&number];
        if run.read.len() < reads.len() {
            return;
        }
        let (transaction, read) = (run.transaction, run.read.clone());
        let mut waits = BTreeMap::new();
        for (key, _) in keys(reads, writes) {
            let to = self.protocol.place(key);
            if to != *home {
                waits.insert(to, self.state.executors[to].incarnation);
            }
        }
        for to in waits.keys() {
            let reads = read.iter().filter(|(key, _)| self.protocol.place(**key) == *to);
            let reads = reads.map(|(key, value)| (*key, *value)).collect();
            let writes = writes.iter().filter(|(key, _)| self.protocol.place(*key) == *to);
            let writes = writes.copied().collect();
            self.send(*home, *to, transaction, Word::Prepare { reads, writes });
        }
        if let Some(run) = self.state.executors[*home].running.get_mut(&number) {
            run.waits = Some(waits);
        }
    }

    fn prepared(&mut self, home: usize, transaction: Transaction, from: usize) {
        let early = self.protocol.has(Defect::CommitsEarly);
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
    fn commit(&mut self, home: usize, transaction: Transaction) {
        let number = transaction.operation;
        let Operation::Transaction { reads, writes, .. } = self.protocol.operation(number) else {
            return;
        };
        let is_home = |key: Key| self.protocol.place(key) == home;
        let executor = &self.state.executors[home];
        let run = &executor.running[&number];
        for (key, write) in keys(reads, writes).into_iter().filter(|(key, _)| is_home(*key)) {
            match executor.conflict(key, write, None) {
                Some(lock) if number < lock.operation => return self.meet(home, lock, number),
                Some(_) => return self.abort(home, number),
                None => {}
            }
        }
        // Read validation: records at the coordinator are not locked, so their values must still be
        // the ones that were read.
        if run.read.iter().any(|(key, value)| is_home(*key) && executor.records[key] != *value) {
            return self.abort(home, number);
        }
        let value = |key: &Key| run.read.get(key).copied().unwrap_or_else(|| executor.records[key]);
        let answer = reads.iter().map(value).collect();
        let others: BTreeSet<usize> = keys(reads, writes)
            .into_keys()
            .map(|key| self.protocol.place(key))
            .filter(|place| *place != home)
            .collect();
        let part = |to: &usize| (*to, self.protocol.part(number, *to, &run.held));
        let changes = |(_, part): &(usize, Part)| !part.writes.is_empty() || !self.protocol.locks;
        let (others, released): (Vec<_>, Vec<_>) = others.iter().map(part).partition(changes);
        let others: BTreeMap<usize, Part> = others.into_iter().collect();
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
            self.send(home, to, transaction, Word::Finish { committed: true, part });
        }
        // Participants that only read need no record of the outcome: presumed abort frees their
        // locks as well.
        for (to, part) in released {
            self.send(home, to, transaction, Word::Finish { committed: false, part });
        }
    }

    pub fn abort(&mut self, home: usize, number: usize) {
        let Some(run) = self.state.executors[home].running.remove(&number) else { return };
        let Operation::Transaction { reads, writes, .. } = self.protocol.operation(number) else {
            return;
        };
        for (key, _) in keys(reads, writes) {
            let to = self.protocol.place(key);
            if to != home && run.waits.is_some() {
                let part = Part::default();
                self.send(home, to, run.transaction, Word::Finish { committed: false, part });
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        let Message { from, to, about, word, .. } = message;
        match word {
            Word::Prepare { reads, writes } => self.lock(from, to, about, &reads, &writes),
            Word::Prepared => self.prepared(to, about, from),
            Word::Lock { reads, writes, holds } => {
                self.lock_for(from, to, about, &reads, &writes, holds);
            }
            Word::Locked { values, life } => self.locked(to, about, from, &values, life),
            Word::Refused => {
                let run = self.state.executors[to].running.get(&about.operation);
                if run.is_some_and(|run| run.transaction == about) {
                    self.abort(to, about.operation);
                }
            }
            Word::Finish { committed, part } => {
                let any_life = self.protocol.has(Defect::ForgetsLives);
                self.state.executors[to].finish(about, committed.then_some(&part), any_life);
                if committed {
                    self.send(to, from, about, Word::Finished);
                }
            }
            Word::Finished => {
                let drops = self.protocol.has(Defect::DropsRecord);
                let committed = &mut self.state.executors[to].committed;
                if let Some(others) = committed.get_mut(&about) {
                    others.remove(&from);
                    if others.is_empty() || drops {
                        committed.remove(&about);
                    }
                }
            }
            Word::Status { abort, reader } => self.tell(to, from, about, abort, reader),
            Word::Running { reader } => {
                let waits = self.state.waits(self.protocol, reader);
                if let (true, Operation::Get(key)) = (waits, self.protocol.operation(reader)) {
                    // The present value under this lock was current when the coordinator answered.
                    // A lock of another transaction needs a request of its own.
                    match self.state.executors[to].conflict(*key, false, None) {
                        Some(lock) if lock != about => {}
                        _ => self.get(reader, to, *key),
                    }
                }
            }
        }
    }

    fn lock(
        &mut self,
        home: usize,
        at: usize,
        transaction: Transaction,
        reads: &[(Key, Value)],
        writes: &[(Key, Value)],
    ) {
        let executor = &mut self.state.executors[at];
        if executor.over.contains(&transaction) && !self.protocol.has(Defect::ForgetsTheOver) {
            return;
        }
        // A new attempt proves that the earlier one had not committed.
        executor.end_earlier(transaction);
        if executor.locks.iter().any(|lock| lock.by == transaction) {
            return self.send(at, home, transaction, Word::Prepared);
        }
        let mut locks: BTreeMap<Key, Hold> = BTreeMap::new();
        if !self.protocol.has(Defect::LeavesReadsOpen) {
            locks.extend(reads.iter().map(|(key, _)| (*key, Hold::Read)));
        }
        locks.extend(writes.iter().map(|(key, value)| (*key, Hold::Value(*value))));
        for (key, hold) in &locks {
            let write = *hold != Hold::Read;
            if let Some(lock) = executor.conflict(*key, write, Some(transaction)) {
                if transaction.operation < lock.operation {
                    return self.meet(at, lock, transaction.operation);
                }
                return self.refuse(at, home, transaction);
            }
        }
        // Read validation: nothing may have changed between the read and this lock.
        let is_same = reads.iter().all(|(key, value)| executor.records[key] == *value);
        if !is_same && !self.protocol.has(Defect::LocksUnseen) {
            return self.refuse(at, home, transaction);
        }
        let life = executor.incarnation;
        let lock = |(key, hold)| Lock { key, by: transaction, hold, life };
        let locks = locks.into_iter().map(lock);
        self.state.executors[at].locks.extend(locks);
        self.send(at, home, transaction, Word::Prepared);
    }

    /// Refuses for good: a lock that is taken later would conflict with the next attempt.
    pub fn refuse(&mut self, at: usize, home: usize, transaction: Transaction) {
        self.state.executors[at].over.insert(transaction);
        self.send(at, home, transaction, Word::Refused);
    }

    fn tell(
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
            return self.send(home, to, about, Word::Finish { committed, part });
        }
        let run = executor.running.get(&about.operation);
        let runs = run.is_some_and(|run| run.transaction == about);
        match (runs, reader) {
            (true, _) if abort.is_some() => {
                self.abort(home, about.operation);
                self.state.executors[home].yields.extend(abort.map(|by| (about.operation, by)));
            }
            (true, Some(reader)) => self.send(home, to, about, Word::Running { reader }),
            (true, None) => {}
            // Presumed abort: it never commits, because later attempts have other names.
            (false, _) => {
                let part = Part::default();
                self.send(home, to, about, Word::Finish { committed: false, part });
            }
        }
    }

    fn repeat(&mut self, home: usize) {
        for (transaction, others) in self.state.executors[home].committed.clone() {
            for (to, part) in others {
                self.send(home, to, transaction, Word::Finish { committed: true, part });
            }
        }
    }

    fn sweep(&mut self, at: usize) {
        for lock in self.state.executors[at].locks.clone() {
            let home = self.protocol.home(lock.by.operation);
            // Before it is over there is no outcome.
            if self.state.executors[home].has(lock.by) || self.protocol.has(Defect::TrustsLocks) {
                continue;
            }
            self.send(at, home, lock.by, Word::Status { abort: None, reader: None });
        }
    }

    fn die(&mut self, at: usize) {
        self.state.deaths += 1;
        let executor = &mut self.state.executors[at];
        executor.restart();
        if self.protocol.has(Defect::LosesLocks) {
            executor.locks.clear();
        }
        if self.protocol.has(Defect::ForgetsWrites) {
            let parts = executor.committed.values_mut().flat_map(BTreeMap::values_mut);
            parts.for_each(|part| part.writes.clear());
        }
        let incarnation = executor.incarnation;
        // Connections die with the process, except that requests for locks may wait for the next
        // one.
        self.state.network.retain(|message| {
            let waits = matches!(message.word, Word::Lock { .. });
            message.to != at || message.incarnation == incarnation || waits
        });
    }
}

/// Returns the records of a transaction, each with whether it is changed.
pub(crate) fn keys(reads: &[Key], writes: &[(Key, Value)]) -> BTreeMap<Key, bool> {
    let mut keys: BTreeMap<Key, bool> = reads.iter().map(|key| (*key, false)).collect();
    keys.extend(writes.iter().map(|(key, _)| (*key, true)));
    keys
}

impl State {
    /// Whether a lock of another transaction blocks one that waits for its next attempt.
    fn is_blocked(&self, protocol: &Protocol, number: usize) -> bool {
        let Operation::Transaction { reads, writes, home } = protocol.operation(number) else {
            return false;
        };
        // Stands for a pause: the operation that had it aborted comes first.
        let yields = self.executors[*home].yields.get(&number);
        if yields.is_some_and(|by| self.waits(protocol, *by)) {
            return true;
        }
        keys(reads, writes).into_iter().any(|(key, write)| {
            let place = protocol.place(key);
            place != *home && self.executors[place].conflict(key, write, None).is_some()
        })
    }

    /// Whether an operation has no answer yet.
    fn waits(&self, protocol: &Protocol, number: usize) -> bool {
        let (client, at) = protocol.client(number);
        self.begun[client] == (at + 1, true)
    }

    /// Drops messages that can have no effect any more, to reduce the number of states.
    fn forget_messages(&mut self, protocol: &Protocol) {
        let executors = &self.executors;
        let is_over = |message: &Message| {
            executors[message.to].over.contains(&message.about)
                && !protocol.has(Defect::ForgetsTheOver)
        };
        let acknowledged: BTreeSet<(usize, Transaction)> = self
            .network
            .iter()
            .filter(|message| message.word == Word::Finished)
            .map(|message| (message.from, message.about))
            .collect();
        let waiting: BTreeSet<usize> = (0..protocol.number(protocol.clients.len(), 0))
            .filter(|n| self.waits(protocol, *n))
            .collect();
        let may_die = self.deaths < protocol.deaths;
        self.network.retain(|message| {
            let (to, about) = (&executors[message.to], message.about);
            match &message.word {
                Word::Prepare { .. } => !is_over(message),
                // A crash forgets that the transaction is over.
                Word::Lock { .. } => may_die || !is_over(message),
                Word::Prepared | Word::Refused | Word::Locked { .. } => {
                    let run = to.running.get(&about.operation);
                    run.is_some_and(|run| run.transaction == about)
                }
                Word::Finish { committed, .. } => {
                    let home = &executors[message.from];
                    let is_known = !committed
                        || !home.committed.contains_key(&about)
                        || acknowledged.contains(&(message.to, about));
                    !(is_over(message) && is_known)
                }
                Word::Finished => to.committed.contains_key(&about),
                Word::Status { .. } => {
                    executors[message.from].locks.iter().any(|lock| lock.by == about)
                }
                Word::Running { reader } => waiting.contains(reader),
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
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut executors =
            vec![Executor::default(); self.places.iter().max().map_or(0, |m| m + 1)];
        for (key, place) in self.places.iter().enumerate() {
            executors[*place].records.insert(key as Key, 0);
        }
        vec![State {
            executors,
            network: BTreeSet::new(),
            begun: vec![(0, false); self.clients.len()],
            deaths: 0,
            history: LinearizabilityTester::new(Records(vec![0; self.places.len()])),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (client, &(begun, open)) in state.begun.iter().enumerate() {
            if !open {
                if begun < self.clients[client].len() {
                    actions.push(Action::Begin(client));
                }
                continue;
            }
            let number = self.number(client, begun - 1);
            let home = &state.executors[self.home(number)];
            if home.replies.contains_key(&number) {
                actions.push(Action::Answer(number));
                continue;
            }
            match home.running.get(&number) {
                Some(run) => {
                    let Operation::Transaction { reads, .. } = self.operation(number) else {
                        continue;
                    };
                    let missing = reads.iter().filter(|key| !run.read.contains_key(key));
                    let missing = missing.filter(|_| !self.locks);
                    actions.extend(missing.map(|key| Action::Fetch(number, *key)));
                    let mut waits = run.waits.iter().flatten();
                    if run.waits.as_ref().is_some_and(BTreeMap::is_empty) {
                        actions.push(Action::Commit(number));
                    }
                    if waits.any(|(at, life)| state.executors[*at].incarnation != *life) {
                        actions.push(Action::GiveUp(number));
                    }
                }
                None => {
                    let tried = home.attempts.get(&number).copied().unwrap_or(0);
                    let again = tried == 0 || !state.is_blocked(self, number);
                    if tried < self.attempts && again {
                        actions.push(Action::Start(number));
                    }
                }
            }
        }
        actions.extend(state.network.iter().cloned().map(Action::Deliver));
        for at in 0..state.executors.len() {
            actions.push(Action::Repeat(at));
            actions.push(Action::Sweep(at));
            if state.deaths < self.deaths {
                actions.push(Action::Die(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut step = Step { protocol: self, state: last.clone() };
        match action {
            Action::Begin(client) => {
                let (begun, open) = &mut step.state.begun[client];
                let operation = self.clients[client][*begun].clone();
                (*begun, *open) = (*begun + 1, true);
                step.state.history.on_invoke(client, operation).ok()?;
            }
            Action::Start(number) => step.start(number),
            Action::Fetch(number, key) => step.fetch(number, key),
            Action::Commit(number) => {
                let home = self.home(number);
                let transaction = last.executors[home].running.get(&number)?.transaction;
                step.commit(home, transaction);
            }
            Action::GiveUp(number) => step.abort(self.home(number), number),
            Action::Answer(number) => {
                let home = &last.executors[self.home(number)];
                step.answer(number, home.replies.get(&number)?.clone());
            }
            Action::Deliver(message) => step.deliver(message),
            Action::Repeat(at) => step.repeat(at),
            Action::Sweep(at) => step.sweep(at),
            Action::Die(at) => step.die(at),
        }
        step.state.forget_messages(self);
        (step.state != *last).then_some(step.state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("linearizable", |_, state: &State| {
                state.history.serialized_history().is_some()
            }),
            Property::always("finished", |protocol: &Protocol, state: &State| {
                state.is_finished(protocol) || protocol.can_go_on(state)
            }),
            Property::sometimes("everything done", |protocol: &Protocol, state: &State| {
                state.is_finished(protocol)
            }),
        ]
    }
}
