//! A run: plans the events, handles them, and checks the result.

use crate::client::{
    Known, NAMES, Reply, Request, Slot, answer, answer_alone, is_corrected, operation, seed,
};
use crate::cluster::{Cluster, executor, number_of};
use crate::daemon::{Death, Defect, Durability, Input, Output};
use crate::history::History;
use crate::inspect::{Walk, make_island};
use crate::network::{Agenda, Manners, Time};
use crate::spec::{Answer, Call};
use fastrand::Rng;
use std::fmt::Debug;
use tatami_wire::partition::Directories;
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Errno, Timestamp};

/// Longest extra delay of some messages between daemons.
const LATE: Time = 400_000;
/// Virtual time after the last fault within which everything must end.
const GRACE: Time = 2_000_000;
/// The same for several daemons: an operation that could not reach one is given up after ten
/// seconds, and sent again.
const GRACE_SPREAD: Time = 60_000_000;
/// Time for which one daemon stays away after all other faults have stopped. Within it, everything
/// that does not concern that daemon must end.
const ABSENCE: Time = 8_000_000;
/// Most clients that die in the middle of an operation. Each doubles the work of the checker.
const DEATHS_MAX: usize = 2;

/// Clients that work on the island, if there is one.
const ISLANDERS: u32 = 2;

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of all random decisions.
    pub seed: u64,
    /// Number of daemons that share the namespace.
    pub nodes: u16,
    /// Shards of the namespace, with several daemons: a power of two.
    pub shards: usize,
    /// The last daemon dies and stays away until long after all other faults. Two clients have a
    /// part of the tree for themselves that does not concern it.
    pub absence: bool,
    /// Daemons repeat their requests to each other many times and late, and most acknowledgements
    /// between them are lost.
    pub belated: bool,
    /// Daemons are executors, two of a node, and those of a node die together.
    pub pairs: bool,
    /// Clients at work at the same time.
    pub clients: u32,
    /// Most operations that each client has under way.
    pub slots: u32,
    /// Operations of each slot.
    pub operations: u32,
    /// The promise of the daemons.
    pub durability: Durability,
    /// Partitions of directories with more entries than this are split.
    pub split_above: Option<u64>,
    /// The mistake that is built in.
    pub defect: Option<Defect>,
}

impl Options {
    /// Returns the options of a usual run with one daemon: small enough to be checked in some
    /// milliseconds.
    pub fn new(seed: u64) -> Options {
        let durability =
            if seed.is_multiple_of(2) { Durability::Process } else { Durability::Sync };
        Options {
            seed,
            nodes: 1,
            shards: 1,
            absence: false,
            belated: false,
            pairs: false,
            clients: 3,
            slots: 2,
            operations: 12,
            durability,
            split_above: None,
            defect: None,
        }
    }

    /// Returns the options of a usual run with two to four daemons.
    pub fn spread(seed: u64) -> Options {
        let nodes = 2 + (seed / 2 % 3) as u16;
        let shards = 8 << (seed / 6 % 2);
        let absence = seed.is_multiple_of(5);
        // Operations take long and overlap, above all those that wait for the absent daemon. The
        // checker can follow fewer of them.
        let (clients, operations) = if absence { (4, 8) } else { (5, 10) };
        let usual = Options::new(seed);
        let belated = seed.is_multiple_of(7);
        // A split directory concerns all daemons. With an absent daemon, directories do not split,
        // so that the island's clients need not wait for it.
        let small = if absence { u64::from(NAMES) } else { 1 + seed / 12 % 2 };
        let split_above = (!seed.is_multiple_of(3)).then_some(small);
        Options {
            split_above,
            nodes,
            shards,
            absence,
            belated,
            pairs: seed % 4 == 3,
            clients,
            slots: 1,
            operations,
            ..usual
        }
    }
}

/// The report of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of requested operations.
    pub operations: usize,
    /// Deaths of daemons.
    pub crashes: u32,
    /// Requests that were sent again.
    pub repeated: u32,
    /// Messages that daemons sent each other.
    pub messages: u32,
    /// Requests to a partition that did not have the name.
    pub corrected: u32,
    /// Virtual time, in microseconds.
    pub time: u64,
    /// A hash of all events: equal for equal runs.
    pub trace: u64,
}

/// The times and rates that differ between one daemon and several.
#[derive(Clone, Copy, Debug)]
struct Ways {
    /// Time after which a client repeats its request.
    patience: Time,
    /// One in this many rounds ends with the death of the daemon.
    deaths: u32,
    /// Longest time that a dead daemon nearly always stays dead.
    down: Time,
    grace: Time,
}

impl Ways {
    const ALONE: Ways = Ways { patience: 8_000, deaths: 12, down: 20_000, grace: GRACE };
    /// Operations take many rounds of several daemons, and wait for messages to be sent again.
    const SPREAD: Ways = Ways { patience: 40_000, deaths: 80, down: 60_000, grace: GRACE_SPREAD };
}

#[derive(Clone, Debug)]
enum Event {
    /// A slot begins its next operation.
    Begin(usize),
    /// A request reaches a daemon, over a connection to one of its incarnations.
    Arrives(usize, u32, Request),
    /// A message from the first daemon reaches the second.
    Message(usize, usize, PeerMessage),
    Round(usize, u32),
    /// Work is due at a daemon.
    Wake(usize),
    Answered(Reply),
    /// The reply timeout of the request that was sent over the connection with this number.
    Patience(usize, u64),
    Crash(usize),
    Restart(usize),
    ClientDies(usize),
    /// Messages from the first no longer reach the second.
    Cut(usize, usize),
    Mend(usize, usize),
    /// A clock is set forward by this many microseconds, or back.
    Clock(usize, i64),
    Calm,
    /// The daemon that stayed away comes back.
    Return(usize),
}

struct World {
    defect: Option<Defect>,
    belated: bool,
    ways: Ways,
    rng: Rng,
    agenda: Agenda<Event>,
    cluster: Cluster,
    slots: Vec<Slot>,
    known: Known,
    /// The inodes known to the island's clients.
    island: Known,
    /// The daemon that stays away, while it does.
    absent: Option<usize>,
    pairs: bool,
    history: History,
    processes: usize,
    deaths: usize,
    /// Faults have stopped.
    calm: bool,
    report: Report,
}

/// Runs a world to its end.
///
/// # Errors
/// The violated property, with the seed and the history.
pub fn run(options: Options) -> Result<Report, String> {
    let mut world = World::new(&options)?;
    let end = world.live();
    let checked = end.and_then(|()| world.check());
    checked.map_err(|what| format!("{options:?}: {what}\n{}", world.history.lines()))
}

impl World {
    fn new(options: &Options) -> Result<World, String> {
        let Options { nodes, shards, durability, split_above, defect, .. } = *options;
        // More names than an unsplit directory has.
        let names = split_above.map_or(NAMES, |small| NAMES.max(2 * small as u8));
        let mut world = World {
            defect,
            belated: options.belated,
            pairs: options.pairs,
            ways: if nodes == 1 { Ways::ALONE } else { Ways::SPREAD },
            rng: Rng::with_seed(options.seed),
            agenda: Agenda::new(),
            cluster: Cluster::start(nodes, shards, durability, split_above, defect)?,
            slots: Vec::new(),
            known: Known::new(names),
            island: Known::new(NAMES),
            absent: None,
            history: History::default(),
            processes: 0,
            deaths: 0,
            calm: false,
            report: Report::default(),
        };
        if options.absence && nodes > 1 {
            let absent = usize::from(nodes) - 1;
            world.absent = Some(absent);
            let map = world.cluster.map.clone();
            let island = make_island(&map, executor(absent), &mut world.asker())?;
            world.island = Known::island(island);
        }
        for client in 0..options.clients {
            let id = world.new_client();
            for number in 0..options.slots {
                let process = world.new_process();
                let slot = Slot {
                    directories: Directories::default(),
                    sent: None,
                    alone: false,
                    goes_on: None,
                    forgotten: false,
                    process,
                    client: id,
                    number,
                    seq: 0,
                    connection: 0,
                    pending: None,
                    left: options.operations,
                    apart: world.absent.is_some() && client < ISLANDERS,
                };
                world.agenda.after(u64::from(client), Event::Begin(world.slots.len()));
                world.slots.push(slot);
            }
        }
        world.plan_faults(u64::from(options.operations) * world.ways.patience * 3 / 4);
        Ok(world)
    }

    /// Plans the faults. They stop when some of the work is still to be done.
    fn plan_faults(&mut self, calm: Time) {
        self.agenda.after(calm, Event::Calm);
        let nodes = self.cluster.daemons.len();
        for _ in 0..self.rng.u32(1..6) {
            let at = self.rng.u64(..calm);
            let node = if nodes == 1 { 0 } else { self.rng.usize(..nodes) };
            self.agenda.after(at, Event::Crash(node));
        }
        for _ in 0..self.rng.usize(..=DEATHS_MAX) {
            let (at, slot) = (self.rng.u64(..calm), self.rng.usize(..self.slots.len()));
            self.agenda.after(at, Event::ClientDies(slot));
        }
        if nodes == 1 {
            return;
        }
        for _ in 0..self.rng.u32(..5) {
            let (from, to) = (self.rng.usize(..nodes), self.rng.usize(..nodes));
            let (at, long) = (self.rng.u64(..calm), self.rng.u64(..calm / 2));
            self.cut(from, to, at, long);
            if self.rng.bool() {
                self.cut(to, from, at, long);
            }
        }
        for node in 0..nodes {
            let ahead = self.rng.i64(-5_000_000..=5_000_000);
            self.cluster.set_clock(node, ahead);
        }
        for _ in 0..self.rng.u32(..3) {
            let (at, node) = (self.rng.u64(..calm), self.rng.usize(..nodes));
            // While a clock goes back, due work waits.
            let step = self.rng.i64(-2_000_000..=2_000_000);
            self.agenda.after(at, Event::Clock(node, step));
        }
        if let Some(absent) = self.absent {
            let at = self.rng.u64(..calm);
            self.agenda.after(at, Event::Crash(absent));
            self.agenda.after(calm + ABSENCE, Event::Return(absent));
        }
    }

    fn cut(&mut self, from: usize, to: usize, at: Time, long: Time) {
        self.agenda.after(at, Event::Cut(from, to));
        self.agenda.after(at + long, Event::Mend(from, to));
    }

    fn new_client(&mut self) -> ClientId {
        ClientId(self.rng.u128(..).to_le_bytes())
    }

    fn new_process(&mut self) -> usize {
        self.processes += 1;
        self.processes - 1
    }

    fn manners(&self) -> Manners {
        if self.calm { Manners::GOOD } else { Manners::BAD }
    }

    /// Returns the time of a daemon's clock. With one daemon, the clock is wrong by seconds in both
    /// directions all the time.
    fn clock(&mut self, node: usize) -> Timestamp {
        if !self.cluster.is_alone() {
            return self.cluster.clock(node, self.agenda.now());
        }
        let skew = if self.calm { 0 } else { self.rng.i64(-5..=5) };
        Timestamp::from_sec(1_000_000 + self.agenda.now() as i64 / 1_000_000 + skew)
    }

    fn note(&mut self, event: &impl Debug) {
        for byte in format!("{} {event:?}", self.agenda.now()).bytes() {
            self.report.trace = (self.report.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn live(&mut self) -> Result<(), String> {
        let mut last = Time::MAX;
        while let Some(event) = self.agenda.next() {
            self.note(&event);
            if matches!(event, Event::Calm | Event::Return(_)) {
                last = self.agenda.now() + self.ways.grace;
            }
            if self.agenda.now() > last {
                // Progress: within the grace time everything must have ended.
                return Err(match self.slots.iter().all(Slot::is_done) {
                    true => "a transaction does not come to its end".into(),
                    false => "an operation does not come to its end".into(),
                });
            }
            self.happen(event)?;
        }
        match self.slots.iter().all(Slot::is_done) {
            true if self.cluster.under_way() > 0 => Err("a transaction was forgotten".into()),
            true => Ok(()),
            false => Err("an operation was forgotten".into()),
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Begin(slot) => self.begin(slot),
            Event::Arrives(node, incarnation, request) => {
                if incarnation == self.cluster.daemons[node].incarnation {
                    self.arrives(node, Input::Request(request));
                }
            }
            Event::Message(from, to, message) => {
                if self.cluster.reaches(from, to) {
                    self.arrives(to, Input::Message(executor(from), message));
                }
            }
            Event::Round(node, incarnation) => {
                if incarnation == self.cluster.daemons[node].incarnation {
                    self.round(node);
                }
            }
            Event::Wake(node) => {
                self.cluster.woken(node, self.agenda.now());
                self.round(node);
            }
            Event::Answered(reply) => self.answered(&reply)?,
            Event::Patience(slot, connection) => {
                if self.slots[slot].connection == connection && self.slots[slot].pending.is_some() {
                    self.report.repeated += 1;
                    self.send(slot);
                }
            }
            Event::Crash(node) => {
                let other = Some(node ^ 1).filter(|other| *other < self.cluster.daemons.len());
                for node in [node].into_iter().chain(other.filter(|_| self.pairs)) {
                    self.cluster.daemons[node].die();
                    self.crashed(node);
                }
            }
            Event::Restart(node) => {
                if !(self.absent == Some(node) && self.calm) {
                    self.restart(node)?;
                }
            }
            Event::ClientDies(slot) => self.client_dies(slot),
            Event::Cut(from, to) => self.cluster.cut(from, to),
            Event::Mend(from, to) => self.cluster.mend(from, to),
            Event::Clock(node, step) => self.cluster.set_clock(node, step),
            Event::Calm => self.calm_down(),
            Event::Return(node) => {
                if self.slots.iter().any(|slot| slot.apart && !slot.is_done()) {
                    return Err("who does not need the dead daemon waits for it".into());
                }
                self.absent = None;
                self.restart(node)?;
            }
        }
        Ok(())
    }

    fn calm_down(&mut self) {
        self.calm = true;
        self.cluster.mend_all();
        if let Some(absent) = self.absent {
            // The absent daemon may have restarted during the faults, and must be down from now on.
            self.cluster.daemons[absent].die();
        }
    }

    fn arrives(&mut self, node: usize, input: Input) {
        if self.cluster.daemons[node].receive(input) {
            let wait = self.rng.u64(..300);
            let incarnation = self.cluster.daemons[node].incarnation;
            self.agenda.after(wait, Event::Round(node, incarnation));
        }
    }

    fn restart(&mut self, node: usize) -> Result<(), String> {
        let now = self.clock(node);
        self.cluster.daemons[node].restart(&mut self.rng, now)?;
        self.plan_wake(node);
        Ok(())
    }

    fn plan_wake(&mut self, node: usize) {
        let now = self.agenda.now();
        if let Some(at) = self.cluster.wake(node, now) {
            self.agenda.after(at - now, Event::Wake(node));
        }
    }

    fn begin(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        if slot.left == 0 || slot.pending.is_some() {
            return;
        }
        let known = if slot.apart { &self.island } else { &self.known };
        let call = match slot.goes_on.take() {
            Some(next) => next,
            None => known.call(&mut self.rng),
        };
        slot.left -= 1;
        slot.seq += 1;
        slot.pending = Some(call.clone());
        (slot.sent, slot.forgotten, slot.alone) = (None, false, false);
        self.history.asked(slot.process, call);
        self.send(number);
    }

    fn send(&mut self, number: usize) {
        let manners = self.manners();
        self.slots[number].connection += 1;
        if let Some(mut request) = self.slots[number].request(&self.cluster.map) {
            let connection = request.connection;
            let node = self.cluster.place(&request.op);
            // The daemons number the slots separately.
            request.slot |= (node as u32) << 16;
            let arrives = Event::Arrives(node, self.cluster.daemons[node].incarnation, request);
            self.agenda.send(&mut self.rng, manners, arrives);
            self.agenda.after(self.ways.patience, Event::Patience(number, connection));
        }
    }

    fn round(&mut self, node: usize) {
        let now = self.clock(node);
        let dies = !self.calm && self.rng.u32(..self.ways.deaths) == 0;
        let death = dies.then(|| Death::ALL[self.rng.usize(..Death::ALL.len())]);
        let outputs = self.cluster.daemons[node].round(&mut self.rng, now, death);
        let manners = self.manners();
        for output in outputs {
            match output {
                Output::Reply(reply) => {
                    self.agenda.send(&mut self.rng, manners, Event::Answered(reply));
                }
                Output::Message(to, message) => self.post(node, number_of(to), message),
            }
        }
        if dies {
            self.crashed(node);
        }
        self.plan_wake(node);
    }

    /// Sends a message from one daemon to another.
    fn post(&mut self, from: usize, to: usize, message: PeerMessage) {
        self.report.messages += 1;
        let belated = self.belated && !self.calm;
        if belated && matches!(message, PeerMessage::Finished { .. }) && self.rng.u32(..10) < 8 {
            return;
        }
        let asks = matches!(message, PeerMessage::Prepare { .. } | PeerMessage::Lock { .. });
        let again = if asks { 4 } else { 0 };
        let message = Event::Message(from, to, message);
        for _ in 0..if belated { again } else { 0 } {
            let late = self.rng.u64(..LATE / 2);
            self.agenda.after(late, message.clone());
        }
        // Some messages are so late that much has happened since.
        if !self.calm && self.rng.u32(..50) == 0 {
            let late = self.rng.u64(..LATE);
            self.agenda.after(late, message.clone());
        }
        let manners = self.manners();
        self.agenda.send(&mut self.rng, manners, message);
    }

    fn crashed(&mut self, node: usize) {
        self.report.crashes += 1;
        let mut down = self.rng.u64(..self.ways.down);
        if !self.cluster.is_alone() && self.rng.u32(..5) == 0 {
            down *= 10;
        }
        self.agenda.after(down, Event::Restart(node));
    }

    fn answered(&mut self, reply: &Reply) -> Result<(), String> {
        let known = self.slots.iter().position(|slot| slot.process == reply.process);
        let Some(number) = known else { return Ok(()) };
        let slot = &mut self.slots[number];
        let is_heard =
            slot.connection == reply.connection || self.defect == Some(Defect::HearsTheDead);
        // Replies to earlier requests, and those over connections that the slot gave up, are stale.
        if slot.seq != reply.seq || !is_heard || slot.pending.is_none() {
            return Ok(());
        }
        // The daemon has done nothing and asks the client to try again.
        if reply.result == Err(Errno::EAGAIN) {
            self.report.repeated += 1;
            self.send(number);
            return Ok(());
        }
        let Some(result) = answer_alone(&reply.result) else {
            (slot.sent, slot.alone) = (None, true);
            slot.seq += 1;
            self.send(number);
            return Ok(());
        };
        let known = (&mut slot.directories, &mut slot.forgotten);
        if let (Some(call), Some(sent)) = (&slot.pending, &slot.sent)
            && is_corrected(known, &self.cluster.map, (call, sent), &result)
        {
            self.report.corrected += 1;
            slot.sent = None;
            slot.seq += 1;
            self.send(number);
            return Ok(());
        }
        let Some(call) = slot.pending.take() else { return Ok(()) };
        let answer =
            answer(&result).ok_or_else(|| format!("{call:?} was answered by {result:?}"))?;
        if !slot.apart {
            self.known.learn(&answer);
        } else if matches!(answer, Answer::Node { is_dir: false, .. }) {
            self.island.learn(&answer);
        }
        let next = match (&call, &answer) {
            (Call::List { dir, .. }, Answer::Names { upto, end: false, .. }) => {
                Some(Call::List { dir: *dir, after: *upto })
            }
            _ => None,
        };
        self.history.answered(slot.process, call, answer);
        if let Some(next) = next {
            slot.left += 1;
            slot.goes_on = Some(next);
        }
        let think = self.rng.u64(..500);
        self.agenda.after(think, Event::Begin(number));
        Ok(())
    }

    /// Replaces a client that dies in the middle of an operation by another one.
    fn client_dies(&mut self, number: usize) {
        if self.slots[number].pending.is_none() || self.deaths == DEATHS_MAX {
            return;
        }
        self.deaths += 1;
        let (id, process) = (self.new_client(), self.new_process());
        let slot = &mut self.slots[number];
        self.history.died(slot.process);
        // A new process in the history: the checker allows one operation of a process at a time.
        (slot.process, slot.client, slot.seq, slot.pending) = (process, id, 0, None);
        (slot.sent, slot.goes_on) = (None, None);
        self.agenda.after(0, Event::Begin(number));
    }

    /// Returns a client that sends one request after the other while there are no others. It is
    /// part of the history.
    fn asker(&mut self) -> impl FnMut(Call) -> Result<Answer, String> {
        let (client, process) = (self.new_client(), self.new_process());
        let (mut seq, mut directories) = (0, Directories::default());
        move |call| {
            self.history.asked(process, call.clone());
            let mut forgotten = false;
            let result = loop {
                seq += 1;
                let mut op = operation(&call);
                directories.locate(&self.cluster.map, seed(), &mut op);
                let slot = (self.cluster.place(&op) as u32) << 16;
                let sent = op.clone();
                let request = Request { process, client, slot, seq, connection: 1, op };
                let result = self.cluster.ask(self.agenda.now(), request)?;
                let map = &self.cluster.map;
                let known = (&mut directories, &mut forgotten);
                if !is_corrected(known, map, (&call, &sent), &result) {
                    break result;
                }
            };
            let answer =
                answer(&result).ok_or_else(|| format!("{call:?} was answered by {result:?}"))?;
            self.history.answered(process, call, answer.clone());
            Ok(answer)
        }
    }

    fn findings(&mut self) -> Result<Vec<String>, String> {
        if self.cluster.is_alone() {
            return Ok(self.cluster.daemons[0].findings());
        }
        // A restart loses everything that is not in the stores, so only the stored records are
        // checked.
        for node in 0..self.cluster.daemons.len() {
            self.cluster.daemons[node].die();
            self.restart(node)?;
        }
        let walk = Walk::take(&mut self.asker())?;
        Ok(walk.findings(&mut self.cluster))
    }

    fn check(&mut self) -> Result<Report, String> {
        let findings = self.findings()?;
        if !findings.is_empty() {
            return Err(format!("the records do not agree: {}", findings.join("; ")));
        }
        if !self.history.is_linearizable() {
            return Err("no order of the operations explains the answers".into());
        }
        let (operations, time) = (self.history.questions(), self.agenda.now());
        Ok(Report { operations, time, ..self.report })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether one of the runs fails, though all pass without the defect.
    fn is_caught(defect: Defect, mut worlds: impl Iterator<Item = Options>) -> bool {
        worlds.any(|options| {
            assert!(run(options).is_ok());
            let broken = Options { defect: Some(defect), ..options };
            // The code may panic by itself when it meets an impossible state.
            std::panic::catch_unwind(|| run(broken).is_err()).unwrap_or(true)
        })
    }

    /// Returns worlds with one daemon of that durability.
    fn alone(durability: Durability, seeds: std::ops::Range<u64>) -> impl Iterator<Item = Options> {
        seeds.map(move |seed| Options { durability, ..Options::new(seed) })
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        for options in [Options::new, Options::spread] {
            for seed in 0..20 {
                let first = run(options(seed)).expect("all is well");
                assert_eq!(run(options(seed)), Ok(first));
                assert_ne!(run(options(seed + 1000)).map(|other| other.trace), Ok(first.trace));
            }
        }
    }

    #[test]
    fn runs_are_as_bad_as_they_are_meant_to_be() {
        for options in [Options::new, Options::spread] {
            let reports: Vec<_> = (0..50).map(|seed| run(options(seed)).expect("well")).collect();
            let sum = |of: fn(&Report) -> u32| reports.iter().map(of).sum::<u32>();
            assert!(sum(|report| report.crashes) > 100);
            assert!(sum(|report| report.repeated) > 100);
            let (messages, corrected) = (sum(|r| r.messages), sum(|r| r.corrected));
            let alone = options(0).nodes == 1;
            assert!(if alone { messages == 0 } else { messages > 2000 });
            assert!(if alone { corrected == 0 } else { corrected > 50 }, "{corrected} corrected");
        }
    }

    #[test]
    fn a_mistake_is_found() {
        assert!(is_caught(Defect::AnswersEarly, alone(Durability::Process, 0..100)));
        assert!(is_caught(Defect::ForgetsAnswers, alone(Durability::Process, 0..100)));
        assert!(is_caught(Defect::NeverSyncs, alone(Durability::Sync, 0..100)));
        // Needs a late reply between two deaths: one in some thousand runs.
        assert!(is_caught(Defect::HearsTheDead, alone(Durability::Process, 2700..2800)));
    }

    #[test]
    fn a_mistake_between_daemons_is_found() {
        for defect in [Defect::SharesLocks, Defect::ForgetsLocks] {
            assert!(is_caught(defect, (0..200).map(Options::spread)));
        }
        // Only splits can be refused with other participants in the transaction: one in some
        // hundred runs.
        assert!(is_caught(Defect::TakesNoForYes, (0..1000).map(Options::spread)));
        // Needs a death between the vote and the commit, and a coordinator that is quicker than the
        // daemon's new incarnation: one in a hundred runs.
        assert!(is_caught(Defect::MessagesEarly, (0..1000).map(Options::spread)));
    }
}
