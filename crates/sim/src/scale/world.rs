//! Virtual time for servers and clients without faults, with an account of all costs.

use super::clients::{Heard, Names, Process, Slot, operation};
use super::costs::{Kind, Machines};
use super::server::{Input, Server};
use super::spread::Spread;
use super::sums::Sums;
use super::{Phase, Setting};
use crate::network::{Agenda, Time};
use fastrand::Rng;
use std::collections::VecDeque;
use tatami_wire::meta::MetaOp;
use tatami_wire::partition::{Directories, name_seed};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Errno, ExecutorId, Ino, NodeId, ShardMap, VolumeId};

/// Shards of the namespace, as a volume has them.
const SHARDS: usize = 4096;
const VOLUME: VolumeId = VolumeId([1; 16]);
/// Time after which a client repeats a request that the server has put off.
const LATER: Time = 1_000_000;
/// The world checks whether a directory has spread once per this many operations.
const LOOK: u64 = 64;
/// Time within which clients begin a phase.
const BEGIN: Time = 500_000;

/// A server or client that needs a CPU.
#[derive(Clone, Copy, Debug)]
enum Who {
    Server(u16),
    /// The client of a slot.
    Client(u32),
}

enum Event {
    /// A request reaches a server.
    Arrives(u16, u32),
    /// A message from the second server reaches the first.
    Message(u16, u16, Box<PeerMessage>),
    /// An answer reaches its client.
    Answer(u32, Heard),
    /// The owner of a CPU has finished its work.
    Done(Who),
    /// Work is due at a server.
    Alarm(u16),
    /// A request is sent for the first time, or again.
    Send(u32),
}

/// When a phase ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// After this many operations; the first ones are not counted.
    Count { skipped: u64, counted: u64 },
    /// When all processes have used all their names.
    Names,
    /// When the directory has spread over all servers and nothing splits any more, or after `most`
    /// operations. The counting ends when all servers have about their final share of the
    /// directory.
    Spread { most: u64 },
}

/// The common work of the clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub kind: Kind,
    pub names: Names,
    pub until: Until,
    /// Processes that take part: all with a lower number.
    pub processes: u32,
    /// Requests that each process has under way.
    pub depth: u32,
    /// A process works in the directory that it makes, from then on.
    pub enters: bool,
}

/// The clock and the counts at one moment.
struct Mark {
    at: Time,
    sums: Sums,
    busy: Vec<Time>,
}

pub(super) struct World {
    setting: Setting,
    pub map: ShardMap,
    rng: Rng,
    agenda: Agenda<Event>,
    servers: Vec<Server>,
    busy: Vec<Time>,
    pub processes: Vec<Process>,
    slots: Vec<Slot>,
    /// The partition maps of all processes that have none of their own.
    warm: Directories,
    sums: Sums,
    /// The servers and clients that wait for the CPU, if all share one, and whether the CPU is
    /// taken.
    queue: VecDeque<Who>,
    taken: bool,
    work: Work,
    stopping: bool,
    /// Operations of earlier phases.
    done_before: u64,
    under_way: u64,
    longest: usize,
    begin: Option<Mark>,
    end: Option<Mark>,
    spread: Option<Spread>,
    failure: Option<String>,
}

impl World {
    pub fn new(setting: &Setting) -> Result<World, String> {
        let all = (0..setting.servers).map(|server| ExecutorId::first(NodeId(server)));
        let all: Vec<_> = all.collect();
        let map = ShardMap::even(1, SHARDS, &all).ok_or("so many servers have no map")?;
        let servers = all.iter().map(|server| {
            Server::start(*server, &map, VOLUME, setting.split_above, setting.peers_first)
        });
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let mut rng = Rng::with_seed(setting.seed);
        let mut slots = Vec::new();
        for process in 0..setting.processes {
            let client = ClientId(rng.u128(..).to_le_bytes());
            slots.extend((0..setting.depth).map(|number| Slot {
                process,
                client,
                number,
                seq: 0,
                kind: Kind::Create,
                name: 0,
                op: None,
                second: false,
                forgotten: false,
                heard: None,
            }));
        }
        let work = Work {
            kind: Kind::Create,
            names: Names::New,
            until: Until::Names,
            processes: 0,
            depth: 0,
            enters: false,
        };
        Ok(World {
            setting: *setting,
            map,
            rng,
            agenda: Agenda::new(),
            busy: vec![0; servers.len()],
            servers,
            processes: (0..setting.processes).map(|_| Process::new()).collect(),
            slots,
            warm: Directories::default(),
            sums: Sums::default(),
            queue: VecDeque::new(),
            taken: false,
            work,
            stopping: false,
            done_before: 0,
            under_way: 0,
            longest: 0,
            begin: None,
            end: None,
            spread: None,
            failure: None,
        })
    }

    /// Gives all processes the partition map of a directory that has spread, or an empty one.
    pub fn know(&mut self, warm: Directories) {
        self.warm = warm;
        self.processes.iter_mut().for_each(|process| process.known = None);
    }

    /// Empties the partition maps of the first `processes` processes.
    pub fn know_nothing(&mut self, processes: u32) {
        for process in &mut self.processes[..processes as usize] {
            process.known = Some(Box::default());
        }
    }

    /// Checks from now on whether this directory has spread; see [`Spread::of`].
    pub fn watch(&mut self, dir: Ino, above: u64, follow: u64) {
        self.spread = Some(Spread::of(&self.map, dir, self.setting.servers, above, follow));
    }

    /// Returns the state of the watched directory.
    pub fn spread(&self) -> Option<&Spread> {
        self.spread.as_ref()
    }

    /// Lets clients work until they are done and all requests are answered.
    ///
    /// # Errors
    /// An operation that failed, or that was never answered.
    pub fn run(&mut self, work: Work) -> Result<Phase, String> {
        self.work = work;
        (self.stopping, self.begin, self.end, self.longest) = (false, None, None, 0);
        let before = self.mark();
        self.done_before = before.sums.done;
        self.processes.iter_mut().for_each(|process| process.cursor = 0);
        let slots = (work.processes * self.setting.depth) as usize;
        let takes_part = |slot: &usize| self.slots[*slot].number < work.depth;
        for slot in (0..slots).filter(takes_part).collect::<Vec<_>>() {
            let at = match self.setting.machines {
                Machines::Each => self.rng.u64(..BEGIN),
                Machines::One => 0,
            };
            self.begin_at(at, slot as u32);
        }
        while self.under_way > 0 {
            let Some(event) = self.agenda.next() else {
                return Err(format!("{} requests were not answered", self.under_way));
            };
            self.happen(event);
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
        }
        let begin = self.begin.take().unwrap_or(before);
        let end = self.end.take().unwrap_or_else(|| self.mark());
        Ok(self.phase(&begin, &end))
    }

    fn phase(&self, begin: &Mark, end: &Mark) -> Phase {
        let time = (end.at - begin.at).max(1) as f64;
        let shares = begin.busy.iter().zip(&end.busy).map(|(from, to)| (to - from) as f64 / time);
        Phase {
            kind: self.work.kind,
            old: self.work.names == Names::Old,
            servers: self.setting.servers,
            seconds: time / 1e9,
            busiest: shares.fold(0.0, f64::max),
            longest: self.longest as u64,
            sums: end.sums.since(&begin.sums),
        }
    }

    fn mark(&self) -> Mark {
        Mark { at: self.agenda.now(), sums: self.sums, busy: self.busy.clone() }
    }

    /// Lets a slot begin an operation after a delay, if there is one.
    fn begin_at(&mut self, after: Time, slot: u32) {
        if self.take_up(slot) {
            self.under_way += 1;
            self.agenda.after(after, Event::Send(slot));
        }
    }

    /// Picks the next operation of a slot. Returns whether there is one.
    fn take_up(&mut self, number: u32) -> bool {
        if self.stopping {
            return false;
        }
        let slot = &mut self.slots[number as usize];
        let process = &mut self.processes[slot.process as usize];
        let rng = &mut self.rng;
        let picked = process.pick(self.work.kind, self.work.names, &mut |below| rng.u64(..below));
        let Some(name) = picked else { return false };
        (slot.kind, slot.name) = (self.work.kind, name);
        (slot.second, slot.forgotten) = (false, false);
        self.locate(number);
        true
    }

    /// Sets the server of a slot's request by the partition map of its process.
    fn locate(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        let process = &self.processes[slot.process as usize];
        let mut op = operation(slot.kind, process.dir, slot.process, slot.name);
        let known = process.known.as_deref().unwrap_or(&self.warm);
        known.locate(&self.map, name_seed(VOLUME), &mut op);
        slot.op = Some(op);
        slot.seq += 1;
    }

    fn server_of(&self, op: &MetaOp) -> u16 {
        self.map.owner(op.target().shard()).map_or(0, |server| server.node.0)
    }

    fn send(&mut self, number: u32) {
        let slot = &self.slots[number as usize];
        let Some(op) = &slot.op else { return };
        let server = self.server_of(op);
        self.sums.requests += 1;
        let way = self.way_of_client(number, server);
        self.agenda.after(way, Event::Arrives(server, number));
    }

    fn way_of_client(&self, slot: u32, server: u16) -> Time {
        let process = u64::from(self.slots[slot as usize].process);
        self.setting.network.between(1 << 20 | process, server.into())
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives(server, slot) => self.arrives(server, Input::Request(slot)),
            Event::Message(to, from, message) => {
                self.arrives(to, Input::Message(ExecutorId::first(NodeId(from)), message));
            }
            Event::Answer(slot, heard) => {
                self.sums.answers += 1;
                self.slots[slot as usize].heard = Some(heard);
                self.wants(Who::Client(slot));
            }
            Event::Send(slot) => self.wants(Who::Client(slot)),
            Event::Done(who) => self.done(who),
            Event::Alarm(server) => {
                let now = self.agenda.now();
                let at = &mut self.servers[usize::from(server)];
                // An earlier alarm may have replaced this one.
                if at.alarm == Some(now) {
                    at.alarm = None;
                    if at.asleep && at.is_due(now) {
                        at.asleep = false;
                        self.wants(Who::Server(server));
                    } else if at.asleep {
                        self.set_alarm(server);
                    }
                }
            }
        }
    }

    fn arrives(&mut self, server: u16, input: Input) {
        let at = &mut self.servers[usize::from(server)];
        at.receive(input);
        self.longest = self.longest.max(at.queue());
        if std::mem::take(&mut at.asleep) {
            self.wants(Who::Server(server));
        }
    }

    /// Requests the CPU for a server or client that was asleep.
    fn wants(&mut self, who: Who) {
        match self.setting.machines {
            Machines::Each => self.works(who, true),
            Machines::One if self.taken => self.queue.push_back(who),
            Machines::One => {
                self.taken = true;
                self.works(who, true);
            }
        }
    }

    fn works(&mut self, who: Who, woken: bool) {
        let takes = match who {
            Who::Server(server) => self.round(server, woken),
            Who::Client(slot) => {
                let takes = self.setting.costs.client[self.slots[slot as usize].kind.at()];
                self.sums.client += takes;
                takes
            }
        };
        self.agenda.after(takes, Event::Done(who));
    }

    fn round(&mut self, number: u16, woken: bool) -> Time {
        let now = self.agenda.now();
        let server = &mut self.servers[usize::from(number)];
        let account = (&mut self.slots[..], &self.setting.costs, &mut self.sums);
        let round = server.round(now, woken, account);
        self.busy[usize::from(number)] += round.takes;
        for (at, to, message) in round.messages {
            let way = self.setting.network.between(number.into(), to.node.0.into());
            let message = Event::Message(to.node.0, number, Box::new(message));
            self.agenda.after(at + way, message);
        }
        for (at, slot, heard) in round.answers {
            let way = self.way_of_client(slot, number);
            self.agenda.after(at + way, Event::Answer(slot, heard));
        }
        round.takes
    }

    fn done(&mut self, who: Who) {
        match who {
            Who::Server(number) => {
                if self.servers[usize::from(number)].has_work() {
                    return self.works(who, false);
                }
                self.servers[usize::from(number)].asleep = true;
                self.set_alarm(number);
            }
            Who::Client(slot) => match self.slots[slot as usize].heard.take() {
                Some(heard) => self.hear(slot, heard),
                None => self.send(slot),
            },
        }
        if self.setting.machines == Machines::One {
            match self.queue.pop_front() {
                Some(next) => self.works(next, true),
                None => self.taken = false,
            }
        }
    }

    fn set_alarm(&mut self, number: u16) {
        let now = self.agenda.now();
        let server = &mut self.servers[usize::from(number)];
        if let Some(at) = server.wakes_at(now)
            && server.alarm.is_none_or(|planned| planned > at || planned <= now)
        {
            server.alarm = Some(at);
            self.agenda.after(at - now, Event::Alarm(number));
        }
    }

    /// Handles a reply at a client.
    fn hear(&mut self, number: u32, heard: Heard) {
        let slot = &mut self.slots[number as usize];
        let process = &mut self.processes[slot.process as usize];
        match heard {
            Heard::Done(ino) => {
                if let (true, Some(ino)) = (self.work.enters, ino) {
                    process.dir = ino;
                }
                slot.op = None;
                self.finished();
                match self.take_up(number) {
                    true => self.send(number),
                    false => self.under_way -= 1,
                }
            }
            Heard::Parted(part, range) => {
                self.sums.corrections += 1;
                let known = process.known.get_or_insert_with(|| Box::new(self.warm.clone()));
                known.learn(&self.map, part, range);
                self.locate(number);
                self.send(number);
            }
            Heard::Leads(ino) => {
                self.sums.seconds += 1;
                slot.second = true;
                slot.op = Some(MetaOp::GetAttr { ino });
                slot.seq += 1;
                self.send(number);
            }
            Heard::Later => self.agenda.after(LATER, Event::Send(number)),
            Heard::Failed(errno) => self.failed(number, errno),
        }
    }

    /// Handles a failed request. A client drops the map of a vanished partition once, as the client
    /// library does.
    fn failed(&mut self, number: u32, errno: Errno) {
        let slot = &mut self.slots[number as usize];
        let process = &mut self.processes[slot.process as usize];
        let op = operation(slot.kind, process.dir, slot.process, slot.name);
        let is_located = slot.op.as_ref() != Some(&op);
        if errno == Errno::ESTALE && is_located && !slot.forgotten && !slot.second {
            slot.forgotten = true;
            let known = process.known.get_or_insert_with(|| Box::new(self.warm.clone()));
            known.forget(name_seed(VOLUME), &op);
            self.locate(number);
            return self.send(number);
        }
        self.failure = Some(format!("{:?} fails with {errno:?}", slot.op));
    }

    /// Counts a finished operation and checks the end of the phase.
    fn finished(&mut self) {
        self.sums.done += 1;
        match self.work.until {
            Until::Names => {}
            Until::Count { skipped, counted } => {
                let done = self.sums.done - self.done_before;
                if done == skipped {
                    self.begin = Some(self.mark());
                }
                if done == skipped + counted {
                    self.stopping = true;
                    self.end = Some(self.mark());
                }
            }
            Until::Spread { most } => {
                let servers = &mut self.servers;
                if let Some(spread) = &mut self.spread
                    && self.sums.done.is_multiple_of(LOOK)
                {
                    spread.look(|server, ino| servers[usize::from(server.node.0)].has_inode(ino));
                }
                if self.end.is_none() && self.spread.as_ref().is_none_or(Spread::is_balanced) {
                    self.end = Some(self.mark());
                }
                let done = self.sums.done - self.done_before;
                self.stopping |=
                    done >= most || self.spread.as_ref().is_none_or(Spread::is_complete);
            }
        }
    }
}
