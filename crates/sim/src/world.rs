//! A run: who does what when, and what is checked in the end.

use crate::client::{Known, PATIENCE, Reply, Request, Slot, answer};
use crate::daemon::{Daemon, Death, Defect, Durability};
use crate::history::History;
use crate::network::{Agenda, Manners, Time};
use fastrand::Rng;
use std::fmt::Debug;
use tatami_wire::{ClientId, Timestamp};

/// Virtual time after the last fault in which everything must have come to its end.
const GRACE: Time = 2_000_000;
/// Clients that die in the middle of an operation. Each doubles the work of the checker.
const DEATHS_MAX: usize = 2;

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// From which everything follows.
    pub seed: u64,
    /// Clients at work at the same time.
    pub clients: u32,
    /// Operations that each has under way at most.
    pub slots: u32,
    /// Operations of each slot.
    pub operations: u32,
    /// What the daemon promises.
    pub durability: Durability,
    /// The mistake that is built in.
    pub defect: Option<Defect>,
}

impl Options {
    /// A usual run: small enough to be checked in some milliseconds.
    pub fn new(seed: u64) -> Options {
        let durability =
            if seed.is_multiple_of(2) { Durability::Process } else { Durability::Sync };
        Options { seed, clients: 3, slots: 2, operations: 12, durability, defect: None }
    }
}

/// What a run was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that were asked for.
    pub operations: usize,
    /// Deaths of the daemon.
    pub crashes: u32,
    /// Requests that were sent again.
    pub repeated: u32,
    /// Virtual time, in microseconds.
    pub time: u64,
    /// A hash of all events: equal for equal runs.
    pub trace: u64,
}

#[derive(Clone, Debug)]
enum Event {
    /// A slot thinks of something to do.
    Begin(usize),
    /// To the daemon, over a connection to one of its incarnations.
    Arrives(u32, Request),
    Round(u32),
    Answered(Reply),
    /// Since the request with this number was sent for the first time, it may be time to send it again.
    Patience(usize, u64),
    Crash,
    Restart,
    ClientDies(usize),
    Calm,
}

struct World {
    defect: Option<Defect>,
    rng: Rng,
    agenda: Agenda<Event>,
    daemon: Daemon,
    slots: Vec<Slot>,
    known: Known,
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
/// What is wrong, with the seed and the history.
pub fn run(options: Options) -> Result<Report, String> {
    let mut world = World::new(&options)?;
    let end = world.live();
    let checked = end.and_then(|()| world.check());
    checked.map_err(|what| format!("{options:?}: {what}\n{}", world.history.lines()))
}

impl World {
    fn new(options: &Options) -> Result<World, String> {
        let mut world = World {
            defect: options.defect,
            rng: Rng::with_seed(options.seed),
            agenda: Agenda::new(),
            daemon: Daemon::start(options.durability, options.defect)?,
            slots: Vec::new(),
            known: Known::new(),
            history: History::default(),
            processes: 0,
            deaths: 0,
            calm: false,
            report: Report::default(),
        };
        for client in 0..options.clients {
            let id = world.new_client();
            for number in 0..options.slots {
                let process = world.processes;
                world.processes += 1;
                let left = options.operations;
                world.slots.push(Slot {
                    process,
                    client: id,
                    number,
                    seq: 0,
                    connection: 0,
                    pending: None,
                    left,
                });
                world.agenda.after(u64::from(client), Event::Begin(process));
            }
        }
        // Faults stop when some of the work is still to be done.
        let calm = u64::from(options.operations) * PATIENCE * 3 / 4;
        world.agenda.after(calm, Event::Calm);
        for _ in 0..world.rng.u32(1..6) {
            let at = world.rng.u64(..calm);
            world.agenda.after(at, Event::Crash);
        }
        for _ in 0..world.rng.usize(..=DEATHS_MAX) {
            let (at, slot) = (world.rng.u64(..calm), world.rng.usize(..world.slots.len()));
            world.agenda.after(at, Event::ClientDies(slot));
        }
        Ok(world)
    }

    fn new_client(&mut self) -> ClientId {
        ClientId(self.rng.u128(..).to_le_bytes())
    }

    fn manners(&self) -> Manners {
        if self.calm { Manners::GOOD } else { Manners::BAD }
    }

    /// The daemon's clock goes wrong by seconds in both directions.
    fn clock(&mut self) -> Timestamp {
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
            if matches!(event, Event::Calm) {
                self.calm = true;
                last = self.agenda.now() + GRACE;
            }
            if self.agenda.now() > last {
                return Err("an operation does not come to its end".into());
            }
            self.happen(event)?;
        }
        match self.slots.iter().all(|slot| slot.left == 0 && slot.pending.is_none()) {
            true => Ok(()),
            false => Err("an operation was forgotten".into()),
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Begin(slot) => self.begin(slot),
            Event::Arrives(incarnation, request) => {
                if incarnation == self.daemon.incarnation && self.daemon.receive(request) {
                    let wait = self.rng.u64(..300);
                    self.agenda.after(wait, Event::Round(incarnation));
                }
            }
            Event::Round(incarnation) if incarnation == self.daemon.incarnation => self.round(),
            Event::Round(_) | Event::Calm => {}
            Event::Answered(reply) => self.answered(&reply)?,
            Event::Patience(slot, seq) => {
                if self.slots[slot].seq == seq && self.slots[slot].pending.is_some() {
                    self.report.repeated += 1;
                    self.send(slot);
                }
            }
            Event::Crash => {
                self.daemon.die();
                self.crashed();
            }
            Event::Restart => {
                let now = self.clock();
                self.daemon.restart(&mut self.rng, now)?;
            }
            Event::ClientDies(slot) => self.client_dies(slot),
        }
        Ok(())
    }

    fn begin(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        if slot.left == 0 || slot.pending.is_some() {
            return;
        }
        let call = self.known.call(&mut self.rng);
        slot.left -= 1;
        slot.seq += 1;
        slot.pending = Some(call.clone());
        self.history.asked(slot.process, call);
        self.send(number);
    }

    fn send(&mut self, number: usize) {
        let manners = self.manners();
        self.slots[number].connection += 1;
        if let Some(request) = self.slots[number].request() {
            let (seq, arrives) = (request.seq, Event::Arrives(self.daemon.incarnation, request));
            self.agenda.send(&mut self.rng, manners, arrives);
            self.agenda.after(PATIENCE, Event::Patience(number, seq));
        }
    }

    fn round(&mut self) {
        let now = self.clock();
        let dies = !self.calm && self.rng.u32(..12) == 0;
        let death = dies.then(|| Death::ALL[self.rng.usize(..Death::ALL.len())]);
        let replies = self.daemon.round(&mut self.rng, now, death);
        let manners = self.manners();
        for reply in replies {
            self.agenda.send(&mut self.rng, manners, Event::Answered(reply));
        }
        if dies {
            self.crashed();
        }
    }

    fn crashed(&mut self) {
        self.report.crashes += 1;
        let down = self.rng.u64(..20_000);
        self.agenda.after(down, Event::Restart);
    }

    fn answered(&mut self, reply: &Reply) -> Result<(), String> {
        let known = self.slots.iter().position(|slot| slot.process == reply.process);
        let Some(number) = known else { return Ok(()) };
        let slot = &mut self.slots[number];
        let is_heard =
            slot.connection == reply.connection || self.defect == Some(Defect::HearsTheDead);
        if slot.seq != reply.seq || !is_heard {
            return Ok(());
        }
        let Some(call) = slot.pending.take() else { return Ok(()) };
        let answer = answer(&reply.result)
            .ok_or_else(|| format!("{call:?} was answered by {:?}", reply.result))?;
        self.known.learn(&answer);
        self.history.answered(slot.process, call, answer);
        let think = self.rng.u64(..500);
        self.agenda.after(think, Event::Begin(number));
        Ok(())
    }

    /// Another client takes the place of one that dies in the middle of something.
    fn client_dies(&mut self, number: usize) {
        if self.slots[number].pending.is_none() || self.deaths == DEATHS_MAX {
            return;
        }
        self.deaths += 1;
        let id = self.new_client();
        let slot = &mut self.slots[number];
        self.history.died(slot.process);
        (slot.process, slot.client, slot.seq, slot.pending) = (self.processes, id, 0, None);
        self.processes += 1;
        self.agenda.after(0, Event::Begin(number));
    }

    fn check(&mut self) -> Result<Report, String> {
        let findings = self.daemon.findings();
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

    /// Whether one of the runs with these seeds does not pass, though all do without the defect.
    fn is_caught(defect: Defect, durability: Durability, mut seeds: std::ops::Range<u64>) -> bool {
        let options = |seed| Options { durability, ..Options::new(seed) };
        seeds.any(|seed| {
            assert!(run(options(seed)).is_ok());
            run(Options { defect: Some(defect), ..options(seed) }).is_err()
        })
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        for seed in 0..20 {
            let first = run(Options::new(seed)).expect("all is well");
            assert_eq!(run(Options::new(seed)), Ok(first));
            assert_ne!(run(Options::new(seed + 1000)).map(|other| other.trace), Ok(first.trace));
        }
    }

    #[test]
    fn runs_are_as_bad_as_they_are_meant_to_be() {
        let reports: Vec<_> = (0..50).map(|seed| run(Options::new(seed)).expect("well")).collect();
        let sum = |of: fn(&Report) -> u32| reports.iter().map(of).sum::<u32>();
        assert!(sum(|report| report.crashes) > 100);
        assert!(sum(|report| report.repeated) > 100);
    }

    #[test]
    fn a_mistake_is_found() {
        assert!(is_caught(Defect::AnswersEarly, Durability::Process, 0..100));
        assert!(is_caught(Defect::ForgetsAnswers, Durability::Process, 0..100));
        assert!(is_caught(Defect::NeverSyncs, Durability::Sync, 0..100));
        // It takes a late answer between two deaths: one in some thousand runs.
        assert!(is_caught(Defect::HearsTheDead, Durability::Process, 2700..2800));
    }
}
