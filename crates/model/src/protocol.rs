//! All that can happen, and what must hold.

use crate::executor::{Executor, Hold, Lock, Run};
use crate::message::{Message, Part, Transaction, Word};
use crate::records::{Answer, Key, Operation, Records, Value};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// A part of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A participant locks without looking whether the records are as they were read.
    LocksUnseen,
    /// A record that was only read is looked at, but not locked.
    LeavesReadsOpen,
    /// A reader takes the old value of a locked record without asking.
    ReadsBelowLocks,
    /// The home commits at the first word of a participant.
    CommitsEarly,
    /// A transaction begun after a restart has the name of one begun before.
    ForgetsIncarnation,
    /// A participant that has ended a transaction would lock for it again.
    ForgetsTheOver,
    /// The record of a transaction goes when the first participant has ended it.
    DropsRecord,
    /// Nobody asks what became of the transaction that has a lock.
    TrustsLocks,
    /// Of two transactions that are in each other's way, both begin again.
    BothGiveWay,
    /// Locks are gone when their executor dies.
    LosesLocks,
    /// The record of a transaction does not say what others change.
    ForgetsWrites,
    /// A record that is to be changed may be locked by several.
    SharesLocks,
    /// What has happened is written under whatever locks there are, of another life, too.
    ForgetsLives,
}

/// What is checked. See the crate's page.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// The executor that has each record. All records begin as 0.
    pub places: Vec<usize>,
    /// What each client does, one thing after the other.
    pub clients: Vec<Vec<Operation>>,
    /// Most deaths of executors.
    pub deaths: u8,
    /// Most tries of an operation in one life of its home.
    pub attempts: u8,
    /// Transactions lock what they come to. Otherwise they read first, and have it prepared.
    pub locks: bool,
    /// What is left out.
    pub defect: Option<Defect>,
}

/// How everything stands.
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

/// Something that may happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client begins its next operation.
    Begin(usize),
    /// Its executor takes the operation up, or looks again whether it can.
    Start(usize),
    /// A transaction reads a record of another executor.
    Fetch(usize, Key),
    /// All are prepared: it commits, unless a record at its home is locked or has changed.
    Commit(usize),
    /// A transaction gives up waiting for an executor that has died meanwhile.
    GiveUp(usize),
    /// The answer goes to the client.
    Answer(usize),
    /// A message arrives.
    Deliver(Message),
    /// An executor tells once more, to one that has died meanwhile, that a transaction has committed.
    Repeat(usize),
    /// An executor asks what became of transactions whose locks it has for long.
    Sweep(usize),
    /// An executor dies and comes back.
    Die(usize),
}

impl Protocol {
    /// The client of an operation, which is numbered over all clients.
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

    /// The executor that is asked for an operation.
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

    /// Has a transaction aborted whose lock is in the way of an operation that changes something.
    pub fn wound(&mut self, at: usize, lock: Transaction, by: usize) {
        if !self.protocol.has(Defect::TrustsLocks) {
            let home = self.protocol.home(lock.operation);
            self.send(at, home, lock, Word::Status { abort: Some(by), reader: None });
        }
    }

    /// An older transaction has met the lock of a younger one: it waits, and the other one gives way. If
    /// it gave way, too, the two could do so for ever.
    pub fn meet(&mut self, at: usize, lock: Transaction, older: usize) {
        self.wound(at, lock, older);
        if self.protocol.has(Defect::BothGiveWay) {
            // Where the older one is at home, it aborts itself; elsewhere it is told to.
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
        let incarnation = if forgets { 0 } else { executor.incarnation };
        let transaction = Transaction { operation: number, incarnation, attempt: *attempts };
        let local = reads.iter().filter(|key| self.protocol.place(**key) == home);
        // Who locks what is elsewhere sees last what is here.
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

    /// Asks all who have something to do with it for their word, once all is read.
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

    /// The one moment at which the transaction happens, unless a record at home has changed.
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
                    // What is there now, under this lock, was true when the home said so. A lock of
                    // another transaction is another question.
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
        // That it was begun again proves that it had not committed.
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

    /// For good: a lock that is got later would come in the way of the next attempt.
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
            // It never will: what runs later has another name.
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
            // Before it is over there is nothing to learn.
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
        self.state.network.retain(|message| {
            let waits = matches!(message.word, Word::Lock { .. });
            message.to != at || message.incarnation == incarnation || waits
        });
    }
}

/// The records of a transaction, each with whether it is changed.
pub(crate) fn keys(reads: &[Key], writes: &[(Key, Value)]) -> BTreeMap<Key, bool> {
    let mut keys: BTreeMap<Key, bool> = reads.iter().map(|key| (*key, false)).collect();
    keys.extend(writes.iter().map(|(key, _)| (*key, true)));
    keys
}

impl State {
    /// Whether another transaction has a lock in the way of one that waits to be tried again.
    fn is_blocked(&self, protocol: &Protocol, number: usize) -> bool {
        let Operation::Transaction { reads, writes, home } = protocol.operation(number) else {
            return false;
        };
        // In place of a pause: whoever had it aborted comes first.
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

    /// Drops messages that will never have an effect, so that fewer states differ.
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
                // Who dies forgets that it is over.
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

    /// Whether everybody has an answer and nothing is left.
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
