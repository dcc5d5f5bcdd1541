//! Virtual time for servers and clients without faults, with an account of all costs.

use super::clients::{PhaseNames, ReceivedAnswer, ScaleProcess, ScaleSlot, build_request};
use super::costs::{Machines, OperationKind};
use super::server::{ScaleServer, ServerInput};
use super::setting::ScaleSetting;
use super::spread::DirectorySpread;
use super::sums::{ScalePhase, ScaleSums};
use crate::network::{EventQueue, VirtualTime};
use fastrand::Rng;
use std::collections::VecDeque;
use tatami_wire::meta::MetaOp;
use tatami_wire::partition::name_seed;
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Errno, ExecutorId, Ino, NodeId, ShardMap, VolumeId};

/// Shards of the namespace, as a volume has them.
const SHARDS: usize = 4096;
const VOLUME: VolumeId = VolumeId([1; 16]);
/// Time after which a client repeats a request that the server has put off.
const LATER: VirtualTime = 1_000_000;
/// The world checks whether a directory has spread once per this many operations.
const LOOK: u64 = 64;
/// Time within which clients begin a phase.
const BEGIN: VirtualTime = 500_000;

/// A server or client that needs a CPU.
#[derive(Clone, Copy, Debug)]
enum CpuUser {
    Server(u16),
    /// The client of a slot.
    Client(u32),
}

enum ScaleEvent {
    /// A request reaches a server.
    Arrives(u16, u32),
    /// A message from the second server reaches the first.
    Message(u16, u16, Box<PeerMessage>),
    /// An answer reaches its client.
    Answer(u32, ReceivedAnswer),
    /// The owner of a CPU has finished its work.
    Done(CpuUser),
    /// Work is due at a server.
    Alarm(u16),
    /// A request is sent for the first time, or again.
    Send(u32),
}

/// When a phase ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum PhaseEnd {
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
pub(super) struct PhaseWork {
    pub kind: OperationKind,
    pub names: PhaseNames,
    pub until: PhaseEnd,
    /// Processes that take part: all with a lower number.
    pub processes: u32,
    /// Requests that each process has under way.
    pub depth: u32,
    /// A process works in the directory that it makes, from then on.
    pub enters: bool,
}

/// The clock and the counts at one moment.
struct CountMark {
    at: VirtualTime,
    sums: ScaleSums,
    busy: Vec<VirtualTime>,
}

pub(super) struct ScaleWorld {
    setting: ScaleSetting,
    pub map: ShardMap,
    rng: Rng,
    agenda: EventQueue<ScaleEvent>,
    servers: Vec<ScaleServer>,
    busy: Vec<VirtualTime>,
    pub processes: Vec<ScaleProcess>,
    slots: Vec<ScaleSlot>,
    /// The partition maps of all processes that have none of their own.
    warm: PartitionMaps,
    sums: ScaleSums,
    /// The servers and clients that wait for the CPU, if all share one, and whether the CPU is
    /// taken.
    queue: VecDeque<CpuUser>,
    taken: bool,
    work: PhaseWork,
    stopping: bool,
    /// Operations of earlier phases.
    done_before: u64,
    under_way: u64,
    longest: usize,
    begin: Option<CountMark>,
    end: Option<CountMark>,
    spread: Option<DirectorySpread>,
    failure: Option<String>,
}

impl ScaleWorld {
    pub fn new(setting: &ScaleSetting) -> Result<ScaleWorld, String> {
        let all = (0..setting.servers).map(|server| ExecutorId::first_of_node(NodeId(server)));
        let all: Vec<_> = all.collect();
        let map =
            ShardMap::with_even_blocks(1, SHARDS, &all).ok_or("so many servers have no map")?;
        let servers = all.iter().map(|server| {
            ScaleServer::start(*server, &map, VOLUME, setting.split_above, setting.peers_first)
        });
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let mut rng = Rng::with_seed(setting.seed);
        let mut slots = Vec::new();
        for process in 0..setting.processes {
            let client = ClientId(rng.u128(..).to_le_bytes());
            slots.extend((0..setting.depth).map(|number| ScaleSlot {
                process,
                client,
                number,
                seq: 0,
                kind: OperationKind::Create,
                name: 0,
                op: None,
                second: false,
                forgotten: false,
                heard: None,
            }));
        }
        let work = PhaseWork {
            kind: OperationKind::Create,
            names: PhaseNames::New,
            until: PhaseEnd::Names,
            processes: 0,
            depth: 0,
            enters: false,
        };
        Ok(ScaleWorld {
            setting: *setting,
            map,
            rng,
            agenda: EventQueue::new(),
            busy: vec![0; servers.len()],
            servers,
            processes: (0..setting.processes).map(|_| ScaleProcess::new()).collect(),
            slots,
            warm: PartitionMaps::default(),
            sums: ScaleSums::default(),
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
    pub fn share_partitions(&mut self, warm: PartitionMaps) {
        self.warm = warm;
        self.processes.iter_mut().for_each(|process| process.known = None);
    }

    /// Empties the partition maps of the first `processes` processes.
    pub fn clear_partitions(&mut self, processes: u32) {
        for process in &mut self.processes[..processes as usize] {
            process.known = Some(Box::default());
        }
    }

    /// Checks from now on whether this directory has spread; see [`DirectorySpread::from_values`].
    pub fn watch_directory(&mut self, dir: Ino, above: u64, follow: u64) {
        self.spread =
            Some(DirectorySpread::from_map(&self.map, dir, self.setting.servers, above, follow));
    }

    /// Returns the state of the watched directory.
    pub fn spread(&self) -> Option<&DirectorySpread> {
        self.spread.as_ref()
    }

    /// Lets clients work until they are done and all requests are answered.
    ///
    /// # Errors
    /// An operation that failed, or that was never answered.
    pub fn run_phase(&mut self, work: PhaseWork) -> Result<ScalePhase, String> {
        self.work = work;
        (self.stopping, self.begin, self.end, self.longest) = (false, None, None, 0);
        let before = self.take_mark();
        self.done_before = before.sums.done;
        self.processes.iter_mut().for_each(|process| process.cursor = 0);
        let slots = (work.processes * self.setting.depth) as usize;
        let takes_part = |slot: &usize| self.slots[*slot].number < work.depth;
        for slot in (0..slots).filter(takes_part).collect::<Vec<_>>() {
            let at = match self.setting.machines {
                Machines::Each => self.rng.u64(..BEGIN),
                Machines::One => 0,
            };
            self.schedule_slot(at, slot as u32);
        }
        while self.under_way > 0 {
            let Some(event) = self.agenda.next() else {
                return Err(format!("{} requests were not answered", self.under_way));
            };
            self.handle_event(event);
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
        }
        let begin = self.begin.take().unwrap_or(before);
        let end = self.end.take().unwrap_or_else(|| self.take_mark());
        Ok(self.phase_figures(&begin, &end))
    }

    fn phase_figures(&self, begin: &CountMark, end: &CountMark) -> ScalePhase {
        let time = (end.at - begin.at).max(1) as f64;
        let shares = begin.busy.iter().zip(&end.busy).map(|(from, to)| (to - from) as f64 / time);
        ScalePhase {
            kind: self.work.kind,
            old: self.work.names == PhaseNames::Old,
            servers: self.setting.servers,
            seconds: time / 1e9,
            busiest: shares.fold(0.0, f64::max),
            longest: self.longest as u64,
            sums: end.sums.since(&begin.sums),
        }
    }

    fn take_mark(&self) -> CountMark {
        CountMark { at: self.agenda.now(), sums: self.sums, busy: self.busy.clone() }
    }

    /// Lets a slot begin an operation after a delay, if there is one.
    fn schedule_slot(&mut self, after: VirtualTime, slot: u32) {
        if self.pick_operation(slot) {
            self.under_way += 1;
            self.agenda.schedule(after, ScaleEvent::Send(slot));
        }
    }

    /// Picks the next operation of a slot. Returns whether there is one.
    fn pick_operation(&mut self, number: u32) -> bool {
        if self.stopping {
            return false;
        }
        let slot = &mut self.slots[number as usize];
        let process = &mut self.processes[slot.process as usize];
        let rng = &mut self.rng;
        let picked =
            process.pick_name(self.work.kind, self.work.names, &mut |below| rng.u64(..below));
        let Some(name) = picked else { return false };
        (slot.kind, slot.name) = (self.work.kind, name);
        (slot.second, slot.forgotten) = (false, false);
        self.locate_request(number);
        true
    }

    /// Sets the server of a slot's request by the partition map of its process.
    fn locate_request(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        let process = &self.processes[slot.process as usize];
        let mut op = build_request(slot.kind, process.dir, slot.process, slot.name);
        let known = process.known.as_deref().unwrap_or(&self.warm);
        known.locate_op(&self.map, name_seed(VOLUME), &mut op);
        slot.op = Some(op);
        slot.seq += 1;
    }

    fn server_of(&self, op: &MetaOp) -> u16 {
        self.map.owner(op.target_inode().owner_shard()).map_or(0, |server| server.node.0)
    }

    fn send_request(&mut self, number: u32) {
        let slot = &self.slots[number as usize];
        let Some(op) = &slot.op else { return };
        let server = self.server_of(op);
        self.sums.requests += 1;
        let way = self.client_delay(number, server);
        self.agenda.schedule(way, ScaleEvent::Arrives(server, number));
    }

    fn client_delay(&self, slot: u32, server: u16) -> VirtualTime {
        let process = u64::from(self.slots[slot as usize].process);
        self.setting.network.delay_between(1 << 20 | process, server.into())
    }

    fn handle_event(&mut self, event: ScaleEvent) {
        match event {
            ScaleEvent::Arrives(server, slot) => {
                self.deliver_input(server, ServerInput::Request(slot))
            }
            ScaleEvent::Message(to, from, message) => {
                self.deliver_input(
                    to,
                    ServerInput::Message(ExecutorId::first_of_node(NodeId(from)), message),
                );
            }
            ScaleEvent::Answer(slot, heard) => {
                self.sums.answers += 1;
                self.slots[slot as usize].heard = Some(heard);
                self.request_cpu(CpuUser::Client(slot));
            }
            ScaleEvent::Send(slot) => self.request_cpu(CpuUser::Client(slot)),
            ScaleEvent::Done(who) => self.release_cpu(who),
            ScaleEvent::Alarm(server) => {
                let now = self.agenda.now();
                let at = &mut self.servers[usize::from(server)];
                // An earlier alarm may have replaced this one.
                if at.alarm == Some(now) {
                    at.alarm = None;
                    if at.asleep && at.is_due(now) {
                        at.asleep = false;
                        self.request_cpu(CpuUser::Server(server));
                    } else if at.asleep {
                        self.set_alarm(server);
                    }
                }
            }
        }
    }

    fn deliver_input(&mut self, server: u16, input: ServerInput) {
        let at = &mut self.servers[usize::from(server)];
        at.receive_input(input);
        self.longest = self.longest.max(at.queue_len());
        if std::mem::take(&mut at.asleep) {
            self.request_cpu(CpuUser::Server(server));
        }
    }

    /// Requests the CPU for a server or client that was asleep.
    fn request_cpu(&mut self, who: CpuUser) {
        match self.setting.machines {
            Machines::Each => self.occupy_cpu(who, true),
            Machines::One if self.taken => self.queue.push_back(who),
            Machines::One => {
                self.taken = true;
                self.occupy_cpu(who, true);
            }
        }
    }

    fn occupy_cpu(&mut self, who: CpuUser, woken: bool) {
        let takes = match who {
            CpuUser::Server(server) => self.run_round(server, woken),
            CpuUser::Client(slot) => {
                let takes = self.setting.costs.client[self.slots[slot as usize].kind.index()];
                self.sums.client += takes;
                takes
            }
        };
        self.agenda.schedule(takes, ScaleEvent::Done(who));
    }

    fn run_round(&mut self, number: u16, woken: bool) -> VirtualTime {
        let now = self.agenda.now();
        let server = &mut self.servers[usize::from(number)];
        let account = (&mut self.slots[..], &self.setting.costs, &mut self.sums);
        let round = server.run_round(now, woken, account);
        self.busy[usize::from(number)] += round.takes;
        for (at, to, message) in round.messages {
            let way = self.setting.network.delay_between(number.into(), to.node.0.into());
            let message = ScaleEvent::Message(to.node.0, number, Box::new(message));
            self.agenda.schedule(at + way, message);
        }
        for (at, slot, heard) in round.answers {
            let way = self.client_delay(slot, number);
            self.agenda.schedule(at + way, ScaleEvent::Answer(slot, heard));
        }
        round.takes
    }

    fn release_cpu(&mut self, who: CpuUser) {
        match who {
            CpuUser::Server(number) => {
                if self.servers[usize::from(number)].has_work() {
                    return self.occupy_cpu(who, false);
                }
                self.servers[usize::from(number)].asleep = true;
                self.set_alarm(number);
            }
            CpuUser::Client(slot) => match self.slots[slot as usize].heard.take() {
                Some(heard) => self.handle_answer(slot, heard),
                None => self.send_request(slot),
            },
        }
        if self.setting.machines == Machines::One {
            match self.queue.pop_front() {
                Some(next) => self.occupy_cpu(next, true),
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
            self.agenda.schedule(at - now, ScaleEvent::Alarm(number));
        }
    }

    /// Handles a reply at a client.
    fn handle_answer(&mut self, number: u32, heard: ReceivedAnswer) {
        let slot = &mut self.slots[number as usize];
        let process = &mut self.processes[slot.process as usize];
        match heard {
            ReceivedAnswer::Done(ino) => {
                if let (true, Some(ino)) = (self.work.enters, ino) {
                    process.dir = ino;
                }
                slot.op = None;
                self.count_operation();
                match self.pick_operation(number) {
                    true => self.send_request(number),
                    false => self.under_way -= 1,
                }
            }
            ReceivedAnswer::WrongPartition(part, range) => {
                self.sums.corrections += 1;
                let known = process.known.get_or_insert_with(|| Box::new(self.warm.clone()));
                known.record_partition(&self.map, part, range);
                self.locate_request(number);
                self.send_request(number);
            }
            ReceivedAnswer::Referral(ino) => {
                self.sums.seconds += 1;
                slot.second = true;
                slot.op = Some(MetaOp::GetAttr { ino });
                slot.seq += 1;
                self.send_request(number);
            }
            ReceivedAnswer::TryLater => self.agenda.schedule(LATER, ScaleEvent::Send(number)),
            ReceivedAnswer::Failed(errno) => self.handle_failure(number, errno),
        }
    }

    /// Handles a failed request. A client drops the map of a vanished partition once, as the client
    /// library does.
    fn handle_failure(&mut self, number: u32, errno: Errno) {
        let slot = &mut self.slots[number as usize];
        let process = &mut self.processes[slot.process as usize];
        let op = build_request(slot.kind, process.dir, slot.process, slot.name);
        let is_located = slot.op.as_ref() != Some(&op);
        if errno == Errno::ESTALE && is_located && !slot.forgotten && !slot.second {
            slot.forgotten = true;
            let known = process.known.get_or_insert_with(|| Box::new(self.warm.clone()));
            known.forget_directories(name_seed(VOLUME), &op);
            self.locate_request(number);
            return self.send_request(number);
        }
        self.failure = Some(format!("{:?} fails with {errno:?}", slot.op));
    }

    /// Counts a finished operation and checks the end of the phase.
    fn count_operation(&mut self) {
        self.sums.done += 1;
        match self.work.until {
            PhaseEnd::Names => {}
            PhaseEnd::Count { skipped, counted } => {
                let done = self.sums.done - self.done_before;
                if done == skipped {
                    self.begin = Some(self.take_mark());
                }
                if done == skipped + counted {
                    self.stopping = true;
                    self.end = Some(self.take_mark());
                }
            }
            PhaseEnd::Spread { most } => {
                let servers = &mut self.servers;
                if let Some(spread) = &mut self.spread
                    && self.sums.done.is_multiple_of(LOOK)
                {
                    spread.detect_splits(|server, ino| {
                        servers[usize::from(server.node.0)].has_inode(ino)
                    });
                }
                if self.end.is_none()
                    && self.spread.as_ref().is_none_or(DirectorySpread::is_balanced)
                {
                    self.end = Some(self.take_mark());
                }
                let done = self.sums.done - self.done_before;
                self.stopping |=
                    done >= most || self.spread.as_ref().is_none_or(DirectorySpread::is_complete);
            }
        }
    }
}
