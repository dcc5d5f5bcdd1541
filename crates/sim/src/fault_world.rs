//! A run: plans the events, handles them, and checks the result.

use crate::client::{
    ClientReply, ClientRequest, ClientSlot, KnownInodes, apply_correction, single_result,
    to_answer, to_meta_op,
};
use crate::cluster::{SimCluster, daemon_number, executor_id};
use crate::daemon::{CrashPoint, DaemonInput, DaemonOutput, SimDefect, SimDurability};
use crate::entry_names::{NAMES, hash_seed};
use crate::file_client::{FileMove, inline_policy};
use crate::file_spec::{FileAnswer, FileCall};
use crate::history::History;
use crate::inspect::{NamespaceWalk, make_island};
use crate::network::{EventQueue, NetworkFaults, VirtualTime};
use crate::spec::{SpecAnswer, SpecCall};
use fastrand::Rng;
use std::fmt::Debug;
use tatami_wire::meta::MetaOp;
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Errno, Ino, Timestamp};

/// Longest extra delay of some messages between daemons.
const LATE: VirtualTime = 400_000;
/// Virtual time after the last fault within which everything must end.
const GRACE: VirtualTime = 2_000_000;
/// The same for several daemons: an operation that could not reach one is given up after ten
/// seconds, and sent again.
const GRACE_SPREAD: VirtualTime = 60_000_000;
/// Time for which one daemon stays away after all other faults have stopped. Within it, everything
/// that does not concern that daemon must end.
const ABSENCE: VirtualTime = 8_000_000;
/// Most clients that die in the middle of an operation. Each doubles the work of the checker.
const DEATHS_MAX: usize = 2;

/// Clients that work on the island, if there is one.
const ISLANDERS: u32 = 2;

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
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
    pub durability: SimDurability,
    /// Partitions of directories with more entries than this are split.
    pub split_above: Option<u64>,
    /// Files are small ones with their bytes beside the inode, and clients use the bytes.
    pub small_files: bool,
    /// The mistake that is built in.
    pub defect: Option<SimDefect>,
}

impl SimOptions {
    /// Returns the options of a usual run with one daemon: small enough to be checked in some
    /// milliseconds.
    pub fn new(seed: u64) -> SimOptions {
        let durability =
            if seed.is_multiple_of(2) { SimDurability::Process } else { SimDurability::Sync };
        SimOptions {
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
            small_files: false,
            defect: None,
        }
    }

    /// Returns the options of a usual run with two to four daemons.
    pub fn several_daemons(seed: u64) -> SimOptions {
        let nodes = 2 + (seed / 2 % 3) as u16;
        let shards = 8 << (seed / 6 % 2);
        let absence = seed.is_multiple_of(5);
        // Operations take long and overlap, above all those that wait for the absent daemon. The
        // checker can follow fewer of them.
        let (clients, operations) = if absence { (4, 8) } else { (5, 10) };
        let usual = SimOptions::new(seed);
        let belated = seed.is_multiple_of(7);
        // A split directory concerns all daemons. With an absent daemon, directories do not split,
        // so that the island's clients need not wait for it.
        let small = if absence { u64::from(NAMES) } else { 1 + seed / 12 % 2 };
        let split_above = (!seed.is_multiple_of(3)).then_some(small);
        SimOptions {
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

    /// Returns the same options with small files: clients make files with their bytes, change and
    /// read these, and move files that outgrow their limit to objects. Each client has one
    /// operation under way: daemons know the clients that have a file open, and the specification
    /// the processes.
    pub fn with_small_files(self) -> SimOptions {
        let clients = self.clients.max(4);
        SimOptions { small_files: true, slots: 1, clients, ..self }
    }
}

/// The report of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimReport {
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
    /// Reads that returned bytes of a file.
    pub reads: u32,
    /// Small files that moved to an object.
    pub moves: u32,
    /// Moves that were refused, because the file had changed.
    pub refused_moves: u32,
    /// Virtual time, in microseconds.
    pub time: u64,
    /// A hash of all events: equal for equal runs.
    pub trace: u64,
}

/// The times and rates that differ between one daemon and several.
#[derive(Clone, Copy, Debug)]
struct FaultTimes {
    /// Time after which a client repeats its request.
    reply_timeout: VirtualTime,
    /// One in this many rounds ends with the death of the daemon.
    deaths: u32,
    /// Longest time that a dead daemon nearly always stays dead.
    down: VirtualTime,
    grace: VirtualTime,
}

impl FaultTimes {
    const ALONE: FaultTimes =
        FaultTimes { reply_timeout: 8_000, deaths: 12, down: 20_000, grace: GRACE };
    /// Operations take many rounds of several daemons, and wait for messages to be sent again.
    const SPREAD: FaultTimes =
        FaultTimes { reply_timeout: 40_000, deaths: 80, down: 60_000, grace: GRACE_SPREAD };
}

#[derive(Clone, Debug)]
enum SimEvent {
    /// A slot begins its next operation.
    Begin(usize),
    /// A request reaches a daemon, over a connection to one of its incarnations.
    Arrives(usize, u32, ClientRequest),
    /// A message from the first daemon reaches the second.
    Message(usize, usize, PeerMessage),
    Round(usize, u32),
    /// Work is due at a daemon.
    Wake(usize),
    Answered(ClientReply),
    /// The reply timeout of the request that was sent over the connection with this number.
    Timeout(usize, u64),
    Crash(usize),
    Restart(usize),
    ClientDies(usize),
    /// Messages from the first no longer reach the second.
    Cut(usize, usize),
    Restore(usize, usize),
    /// A clock is set forward by this many microseconds, or back.
    Clock(usize, i64),
    FaultsEnd,
    /// The daemon that stayed away comes back.
    Return(usize),
}

struct SimWorld {
    defect: Option<SimDefect>,
    belated: bool,
    ways: FaultTimes,
    rng: Rng,
    agenda: EventQueue<SimEvent>,
    cluster: SimCluster,
    slots: Vec<ClientSlot>,
    known: KnownInodes,
    /// The inodes known to the island's clients.
    island: KnownInodes,
    /// The daemon that stays away, while it does.
    absent: Option<usize>,
    pairs: bool,
    small_files: bool,
    history: History,
    processes: usize,
    deaths: usize,
    /// The clients that died.
    dead: Vec<ClientId>,
    /// Faults have stopped.
    calm: bool,
    report: SimReport,
}

/// Runs a world to its end.
///
/// # Errors
/// The violated property, with the seed and the history.
pub fn run(options: SimOptions) -> Result<SimReport, String> {
    let mut world = SimWorld::new(&options)?;
    let end = world.run_events();
    let checked = end.and_then(|()| world.check_run());
    checked.map_err(|what| format!("{options:?}: {what}\n{}", world.history.to_text()))
}

impl SimWorld {
    fn new(options: &SimOptions) -> Result<SimWorld, String> {
        let SimOptions { nodes, shards, durability, split_above, defect, .. } = *options;
        // More names than an unsplit directory has.
        let names = split_above.map_or(NAMES, |small| NAMES.max(2 * small as u8));
        let mut world = SimWorld {
            defect,
            belated: options.belated,
            pairs: options.pairs,
            small_files: options.small_files,
            ways: if nodes == 1 { FaultTimes::ALONE } else { FaultTimes::SPREAD },
            rng: Rng::with_seed(options.seed),
            agenda: EventQueue::new(),
            cluster: SimCluster::start(nodes, shards, durability, split_above, defect)?,
            slots: Vec::new(),
            known: KnownInodes::new(names, options.small_files),
            island: KnownInodes::new(NAMES, options.small_files),
            absent: None,
            history: History::default(),
            processes: 0,
            deaths: 0,
            dead: Vec::new(),
            calm: false,
            report: SimReport::default(),
        };
        if options.small_files {
            world.send_quietly(0, inline_policy(Ino::ROOT))?;
        }
        if options.absence && nodes > 1 {
            let absent = usize::from(nodes) - 1;
            world.absent = Some(absent);
            let map = world.cluster.map.clone();
            let island = make_island(&map, executor_id(absent), &mut world.new_asker())?;
            world.island = KnownInodes::from_island(island, options.small_files);
        }
        for client in 0..options.clients {
            let id = world.new_client();
            for number in 0..options.slots {
                let process = world.new_process();
                let slot = ClientSlot {
                    directories: PartitionMaps::default(),
                    sent: None,
                    alone: false,
                    next_call: None,
                    file_move: None,
                    forgotten: false,
                    process,
                    client: id,
                    number,
                    seq: 0,
                    connection: 0,
                    pending: None,
                    left: options.operations,
                    on_island: world.absent.is_some() && client < ISLANDERS,
                };
                world.agenda.schedule(u64::from(client), SimEvent::Begin(world.slots.len()));
                world.slots.push(slot);
            }
        }
        world.plan_faults(u64::from(options.operations) * world.ways.reply_timeout * 3 / 4);
        Ok(world)
    }

    /// Plans the faults. They stop when some of the work is still to be done.
    fn plan_faults(&mut self, calm: VirtualTime) {
        self.agenda.schedule(calm, SimEvent::FaultsEnd);
        let nodes = self.cluster.daemons.len();
        for _ in 0..self.rng.u32(1..6) {
            let at = self.rng.u64(..calm);
            let node = if nodes == 1 { 0 } else { self.rng.usize(..nodes) };
            self.agenda.schedule(at, SimEvent::Crash(node));
        }
        for _ in 0..self.rng.usize(..=DEATHS_MAX) {
            let (at, slot) = (self.rng.u64(..calm), self.rng.usize(..self.slots.len()));
            self.agenda.schedule(at, SimEvent::ClientDies(slot));
        }
        if nodes == 1 {
            return;
        }
        for _ in 0..self.rng.u32(..5) {
            let (from, to) = (self.rng.usize(..nodes), self.rng.usize(..nodes));
            let (at, long) = (self.rng.u64(..calm), self.rng.u64(..calm / 2));
            self.plan_cut(from, to, at, long);
            if self.rng.bool() {
                self.plan_cut(to, from, at, long);
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
            self.agenda.schedule(at, SimEvent::Clock(node, step));
        }
        if let Some(absent) = self.absent {
            let at = self.rng.u64(..calm);
            self.agenda.schedule(at, SimEvent::Crash(absent));
            self.agenda.schedule(calm + ABSENCE, SimEvent::Return(absent));
        }
    }

    fn plan_cut(&mut self, from: usize, to: usize, at: VirtualTime, long: VirtualTime) {
        self.agenda.schedule(at, SimEvent::Cut(from, to));
        self.agenda.schedule(at + long, SimEvent::Restore(from, to));
    }

    fn new_client(&mut self) -> ClientId {
        ClientId(self.rng.u128(..).to_le_bytes())
    }

    fn new_process(&mut self) -> usize {
        self.processes += 1;
        self.processes - 1
    }

    fn network_faults(&self) -> NetworkFaults {
        if self.calm { NetworkFaults::RELIABLE } else { NetworkFaults::FAULTY }
    }

    /// Returns the time of a daemon's clock. With one daemon, the clock is wrong by seconds in both
    /// directions all the time.
    fn daemon_clock(&mut self, node: usize) -> Timestamp {
        if !self.cluster.is_alone() {
            return self.cluster.daemon_clock(node, self.agenda.now());
        }
        let skew = if self.calm { 0 } else { self.rng.i64(-5..=5) };
        Timestamp::from_sec(1_000_000 + self.agenda.now() as i64 / 1_000_000 + skew)
    }

    fn hash_event(&mut self, event: &impl Debug) {
        for byte in format!("{} {event:?}", self.agenda.now()).bytes() {
            self.report.trace = (self.report.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn run_events(&mut self) -> Result<(), String> {
        let mut last = VirtualTime::MAX;
        while let Some(event) = self.agenda.next() {
            self.hash_event(&event);
            if matches!(event, SimEvent::FaultsEnd | SimEvent::Return(_)) {
                last = self.agenda.now() + self.ways.grace;
            }
            if self.agenda.now() > last {
                // Progress: within the grace time everything must have ended.
                return Err(match self.slots.iter().all(ClientSlot::is_done) {
                    true => "a transaction does not come to its end".into(),
                    false => "an operation does not come to its end".into(),
                });
            }
            self.handle_event(event)?;
        }
        match self.slots.iter().all(ClientSlot::is_done) {
            true if self.cluster.under_way() > 0 => Err("a transaction was forgotten".into()),
            true => Ok(()),
            false => Err("an operation was forgotten".into()),
        }
    }

    fn handle_event(&mut self, event: SimEvent) -> Result<(), String> {
        match event {
            SimEvent::Begin(slot) => self.begin_operation(slot),
            SimEvent::Arrives(node, incarnation, request) => {
                if incarnation == self.cluster.daemons[node].incarnation {
                    self.deliver_input(node, DaemonInput::Request(request));
                }
            }
            SimEvent::Message(from, to, message) => {
                if self.cluster.is_reachable(from, to) {
                    self.deliver_input(to, DaemonInput::Message(executor_id(from), message));
                }
            }
            SimEvent::Round(node, incarnation) => {
                if incarnation == self.cluster.daemons[node].incarnation {
                    self.run_round(node);
                }
            }
            SimEvent::Wake(node) => {
                self.cluster.clear_wake(node, self.agenda.now());
                self.run_round(node);
            }
            SimEvent::Answered(reply) => self.handle_reply(&reply)?,
            SimEvent::Timeout(slot, connection) => {
                if self.slots[slot].connection == connection && self.slots[slot].pending.is_some() {
                    self.report.repeated += 1;
                    self.send_request(slot);
                }
            }
            SimEvent::Crash(node) => {
                let other = Some(node ^ 1).filter(|other| *other < self.cluster.daemons.len());
                for node in [node].into_iter().chain(other.filter(|_| self.pairs)) {
                    self.cluster.daemons[node].kill();
                    self.plan_restart(node);
                }
            }
            SimEvent::Restart(node) => {
                if !(self.absent == Some(node) && self.calm) {
                    self.restart_daemon(node)?;
                }
            }
            SimEvent::ClientDies(slot) => self.replace_client(slot),
            SimEvent::Cut(from, to) => self.cluster.cut_link(from, to),
            SimEvent::Restore(from, to) => self.cluster.restore_link(from, to),
            SimEvent::Clock(node, step) => self.cluster.set_clock(node, step),
            SimEvent::FaultsEnd => self.stop_faults(),
            SimEvent::Return(node) => {
                if self.slots.iter().any(|slot| slot.on_island && !slot.is_done()) {
                    return Err("who does not need the dead daemon waits for it".into());
                }
                self.absent = None;
                self.restart_daemon(node)?;
            }
        }
        Ok(())
    }

    fn stop_faults(&mut self) {
        self.calm = true;
        self.cluster.restore_links();
        if let Some(absent) = self.absent {
            // The absent daemon may have restarted during the faults, and must be down from now on.
            self.cluster.daemons[absent].kill();
        }
    }

    fn deliver_input(&mut self, node: usize, input: DaemonInput) {
        if self.cluster.daemons[node].receive_input(input) {
            let wait = self.rng.u64(..300);
            let incarnation = self.cluster.daemons[node].incarnation;
            self.agenda.schedule(wait, SimEvent::Round(node, incarnation));
        }
    }

    fn restart_daemon(&mut self, node: usize) -> Result<(), String> {
        let now = self.daemon_clock(node);
        self.cluster.daemons[node].restart(&mut self.rng, now)?;
        self.plan_wake(node);
        Ok(())
    }

    fn plan_wake(&mut self, node: usize) {
        let now = self.agenda.now();
        if let Some(at) = self.cluster.next_wake(node, now) {
            self.agenda.schedule(at - now, SimEvent::Wake(node));
        }
    }

    fn begin_operation(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        if slot.left == 0 || slot.pending.is_some() {
            return;
        }
        let known = if slot.on_island { &self.island } else { &self.known };
        let call = match slot.next_call.take() {
            Some(next) => next,
            None => known.choose_call(&mut self.rng, slot.process),
        };
        slot.left -= 1;
        slot.seq += 1;
        slot.pending = Some(call.clone());
        (slot.sent, slot.forgotten, slot.alone) = (None, false, false);
        self.history.record_call(slot.process, call);
        self.send_request(number);
    }

    fn send_request(&mut self, number: usize) {
        let manners = self.network_faults();
        self.slots[number].connection += 1;
        if let Some(mut request) = self.slots[number].next_request(&self.cluster.map) {
            let connection = request.connection;
            let node = self.cluster.target_daemon(&request.op);
            // The daemons number the slots separately.
            request.slot |= (node as u32) << 16;
            let arrives = SimEvent::Arrives(node, self.cluster.daemons[node].incarnation, request);
            self.agenda.send_message(&mut self.rng, manners, arrives);
            self.agenda.schedule(self.ways.reply_timeout, SimEvent::Timeout(number, connection));
        }
    }

    fn run_round(&mut self, node: usize) {
        let now = self.daemon_clock(node);
        let dies = !self.calm && self.rng.u32(..self.ways.deaths) == 0;
        let death = dies.then(|| CrashPoint::ALL[self.rng.usize(..CrashPoint::ALL.len())]);
        let outputs = self.cluster.daemons[node].run_round(&mut self.rng, now, death);
        let manners = self.network_faults();
        for output in outputs {
            match output {
                DaemonOutput::Reply(reply) => {
                    self.agenda.send_message(&mut self.rng, manners, SimEvent::Answered(reply));
                }
                DaemonOutput::Message(to, message) => {
                    self.send_message(node, daemon_number(to), message)
                }
            }
        }
        if dies {
            self.plan_restart(node);
        }
        self.plan_wake(node);
    }

    /// Sends a message from one daemon to another.
    fn send_message(&mut self, from: usize, to: usize, message: PeerMessage) {
        self.report.messages += 1;
        let belated = self.belated && !self.calm;
        if belated && matches!(message, PeerMessage::Finished { .. }) && self.rng.u32(..10) < 8 {
            return;
        }
        let asks = matches!(message, PeerMessage::Prepare { .. } | PeerMessage::Lock { .. });
        let again = if asks { 4 } else { 0 };
        let message = SimEvent::Message(from, to, message);
        for _ in 0..if belated { again } else { 0 } {
            let late = self.rng.u64(..LATE / 2);
            self.agenda.schedule(late, message.clone());
        }
        // Some messages are so late that much has happened since.
        if !self.calm && self.rng.u32(..50) == 0 {
            let late = self.rng.u64(..LATE);
            self.agenda.schedule(late, message.clone());
        }
        let manners = self.network_faults();
        self.agenda.send_message(&mut self.rng, manners, message);
    }

    fn plan_restart(&mut self, node: usize) {
        self.report.crashes += 1;
        let mut down = self.rng.u64(..self.ways.down);
        if !self.cluster.is_alone() && self.rng.u32(..5) == 0 {
            down *= 10;
        }
        self.agenda.schedule(down, SimEvent::Restart(node));
    }

    fn handle_reply(&mut self, reply: &ClientReply) -> Result<(), String> {
        let known = self.slots.iter().position(|slot| slot.process == reply.process);
        let Some(number) = known else { return Ok(()) };
        let slot = &mut self.slots[number];
        let is_heard = slot.connection == reply.connection
            || self.defect == Some(SimDefect::AcceptsDeadReplies);
        // Replies to earlier requests, and those over connections that the slot gave up, are stale.
        if slot.seq != reply.seq || !is_heard || slot.pending.is_none() {
            return Ok(());
        }
        // The daemon has done nothing and asks the client to try again.
        if reply.result == Err(Errno::EAGAIN) {
            self.report.repeated += 1;
            self.send_request(number);
            return Ok(());
        }
        let Some(asked) = &slot.pending else { return Ok(()) };
        let Some(result) = single_result(asked, &reply.result) else {
            (slot.sent, slot.alone) = (None, true);
            slot.seq += 1;
            self.send_request(number);
            return Ok(());
        };
        let known = (&mut slot.directories, &mut slot.forgotten);
        if let (Some(call), Some(sent)) = (&slot.pending, &slot.sent)
            && apply_correction(known, &self.cluster.map, (call, sent), &result)
        {
            self.report.corrected += 1;
            slot.sent = None;
            slot.seq += 1;
            self.send_request(number);
            return Ok(());
        }
        let Some(call) = slot.pending.take() else { return Ok(()) };
        let answer = to_answer(&call, &result)
            .ok_or_else(|| format!("{call:?} was answered by {result:?}"))?;
        if !slot.on_island {
            self.known.add_answer(&answer);
        } else if matches!(answer, SpecAnswer::Node { is_dir: false, .. }) {
            self.island.add_answer(&answer);
        }
        let next = match (&call, &answer) {
            (SpecCall::List { dir, .. }, SpecAnswer::Names { upto, end: false, .. }) => {
                Some(SpecCall::List { dir: *dir, after: *upto })
            }
            (SpecCall::File { ino, call }, answer) => {
                let copies_first = self.defect == Some(SimDefect::CopiesBeforeReserving);
                continue_move(slot, copies_first, (*ino, call), answer)
            }
            _ => None,
        };
        count_file_answer(&mut self.report, &call, &answer);
        self.history.record_answer(slot.process, call, answer);
        if let Some(next) = next {
            slot.left += 1;
            slot.next_call = Some(next);
        }
        let think = self.rng.u64(..500);
        self.agenda.schedule(think, SimEvent::Begin(number));
        Ok(())
    }

    /// Replaces a client that dies in the middle of an operation by another one.
    fn replace_client(&mut self, number: usize) {
        if self.slots[number].pending.is_none() || self.deaths == DEATHS_MAX {
            return;
        }
        self.deaths += 1;
        let (id, process) = (self.new_client(), self.new_process());
        let slot = &mut self.slots[number];
        self.history.record_death(slot.process);
        // A new process in the history: the checker allows one operation of a process at a time.
        (slot.process, slot.seq, slot.pending) = (process, 0, None);
        self.dead.push(std::mem::replace(&mut slot.client, id));
        (slot.sent, slot.next_call, slot.file_move) = (None, None, None);
        self.agenda.schedule(0, SimEvent::Begin(number));
    }

    /// Returns a client that sends one request after the other while there are no others. It is
    /// part of the history.
    fn new_asker(&mut self) -> impl FnMut(SpecCall) -> Result<SpecAnswer, String> {
        let (client, process) = (self.new_client(), self.new_process());
        let (mut seq, mut directories) = (0, PartitionMaps::default());
        move |call| {
            self.history.record_call(process, call.clone());
            let mut forgotten = false;
            let result = loop {
                seq += 1;
                let mut op = to_meta_op(&call);
                directories.locate_op(&self.cluster.map, hash_seed(), &mut op);
                let slot = (self.cluster.target_daemon(&op) as u32) << 16;
                let sent = op.clone();
                let request = ClientRequest { process, client, slot, seq, connection: 1, op };
                let result = self.cluster.run_request(self.agenda.now(), request)?;
                let map = &self.cluster.map;
                let known = (&mut directories, &mut forgotten);
                if !apply_correction(known, map, (&call, &sent), &result) {
                    break result;
                }
            };
            let answer = to_answer(&call, &result)
                .ok_or_else(|| format!("{call:?} was answered by {result:?}"))?;
            self.history.record_answer(process, call, answer.clone());
            Ok(answer)
        }
    }

    /// Sends a request of a new client that is no part of the history, while there are no others.
    fn send_quietly(&mut self, to: usize, op: MetaOp) -> Result<(), String> {
        let (client, process) = (self.new_client(), self.new_process());
        let slot = (to as u32) << 16;
        let request = ClientRequest { process, client, slot, seq: 1, connection: 1, op };
        let what = format!("{:?}", request.op);
        let result = self.cluster.run_request_at(to, self.agenda.now(), request)?;
        result.map(drop).map_err(|errno| format!("{what}: {errno:?}"))
    }

    /// Reads all files that were ever seen, after a restart, and ends the clients that died.
    fn check_small_files(&mut self) -> Result<(), String> {
        for node in 0..self.cluster.daemons.len() {
            self.cluster.daemons[node].kill();
            self.restart_daemon(node)?;
        }
        let files = [self.known.all_files(), self.island.all_files()].concat();
        {
            let mut ask = self.new_asker();
            for ino in files {
                ask(SpecCall::File { ino, call: FileCall::Read })?;
            }
        }
        // They may have files open, also such without a name.
        for client in std::mem::take(&mut self.dead) {
            for node in 0..self.cluster.daemons.len() {
                self.send_quietly(node, MetaOp::ExpireClient { client })?;
            }
        }
        Ok(())
    }

    fn check_records(&mut self) -> Result<Vec<String>, String> {
        if self.cluster.is_alone() {
            return Ok(self.cluster.daemons[0].check_records());
        }
        // A restart loses everything that is not in the stores, so only the stored records are
        // checked.
        for node in 0..self.cluster.daemons.len() {
            self.cluster.daemons[node].kill();
            self.restart_daemon(node)?;
        }
        let walk = NamespaceWalk::walk_tree(&mut self.new_asker())?;
        Ok(walk.check_stores(&mut self.cluster))
    }

    fn check_run(&mut self) -> Result<SimReport, String> {
        if self.small_files {
            self.check_small_files()?;
        }
        let findings = self.check_records()?;
        if !findings.is_empty() {
            return Err(format!("the records do not agree: {}", findings.join("; ")));
        }
        if !self.history.is_linearizable() {
            return Err("no order of the operations explains the answers".into());
        }
        let (operations, time) = (self.history.count_calls(), self.agenda.now());
        Ok(SimReport { operations, time, ..self.report })
    }
}

/// Returns the next step of the move of a file that begins with its open; `None` at the end, and
/// for an operation that is no part of a move.
fn continue_move(
    slot: &mut ClientSlot,
    copies_first: bool,
    (ino, call): (Ino, &FileCall),
    answer: &SpecAnswer,
) -> Option<SpecCall> {
    if let (FileCall::Open { opener }, SpecAnswer::Node { .. }) = (call, answer) {
        slot.file_move = Some(FileMove::new(*opener, copies_first));
    }
    let answer = match answer {
        SpecAnswer::File(answer) => Some(answer),
        _ => None,
    };
    let next = slot.file_move.as_mut()?.next_step(call, answer);
    if next.is_none() {
        slot.file_move = None;
    }
    next.map(|call| SpecCall::File { ino, call })
}

fn count_file_answer(report: &mut SimReport, call: &SpecCall, answer: &SpecAnswer) {
    match (call, answer) {
        (SpecCall::File { .. }, SpecAnswer::File(FileAnswer::Bytes(_))) => report.reads += 1,
        (SpecCall::File { call: FileCall::Move { .. }, .. }, SpecAnswer::Node { .. }) => {
            report.moves += 1;
        }
        (SpecCall::File { call: FileCall::Move { .. }, .. }, _) => report.refused_moves += 1,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether one of the runs fails, though all pass without the defect.
    fn is_caught(defect: SimDefect, mut worlds: impl Iterator<Item = SimOptions>) -> bool {
        worlds.any(|options| {
            assert!(run(options).is_ok());
            let broken = SimOptions { defect: Some(defect), ..options };
            // The code may panic by itself when it meets an impossible state.
            std::panic::catch_unwind(|| run(broken).is_err()).unwrap_or(true)
        })
    }

    /// Returns worlds with one daemon of that durability.
    fn alone(
        durability: SimDurability,
        seeds: std::ops::Range<u64>,
    ) -> impl Iterator<Item = SimOptions> {
        seeds.map(move |seed| SimOptions { durability, ..SimOptions::new(seed) })
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        for options in [SimOptions::new, SimOptions::several_daemons] {
            for seed in 0..20 {
                let first = run(options(seed)).expect("all is well");
                assert_eq!(run(options(seed)), Ok(first));
                assert_ne!(run(options(seed + 1000)).map(|other| other.trace), Ok(first.trace));
            }
        }
    }

    #[test]
    fn runs_are_as_bad_as_they_are_meant_to_be() {
        for options in [SimOptions::new, SimOptions::several_daemons] {
            let reports: Vec<_> = (0..50).map(|seed| run(options(seed)).expect("well")).collect();
            let sum = |of: fn(&SimReport) -> u32| reports.iter().map(of).sum::<u32>();
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
        assert!(is_caught(SimDefect::AnswersEarly, alone(SimDurability::Process, 0..100)));
        assert!(is_caught(SimDefect::ForgetsReplies, alone(SimDurability::Process, 0..100)));
        assert!(is_caught(SimDefect::NeverSyncs, alone(SimDurability::Sync, 0..100)));
        // Needs a late reply between two deaths: one in some thousand runs.
        assert!(is_caught(
            SimDefect::AcceptsDeadReplies,
            alone(SimDurability::Process, 2700..2800)
        ));
    }

    #[test]
    fn a_mistake_between_daemons_is_found() {
        for defect in [SimDefect::SharesLocks, SimDefect::ForgetsLocks] {
            assert!(is_caught(defect, (0..200).map(SimOptions::several_daemons)));
        }
        // Only splits can be refused with other participants in the transaction: one in some
        // hundred runs.
        assert!(is_caught(
            SimDefect::TakesRefusalForVote,
            (0..1000).map(SimOptions::several_daemons)
        ));
        // Needs a death between the vote and the commit, and a coordinator that is quicker than the
        // daemon's new incarnation: one in a hundred runs.
        assert!(is_caught(SimDefect::MessagesEarly, (0..1000).map(SimOptions::several_daemons)));
    }

    #[test]
    fn small_files_are_read_moved_and_changed_meanwhile() {
        for options in [SimOptions::new, SimOptions::several_daemons] {
            let worlds = (0..50).map(|seed| run(options(seed).with_small_files()).expect("well"));
            let reports: Vec<_> = worlds.collect();
            let sum = |of: fn(&SimReport) -> u32| reports.iter().map(of).sum::<u32>();
            let (reads, moves) = (sum(|report| report.reads), sum(|report| report.moves));
            assert!(reads > 200 && moves > 50, "{reads} reads, {moves} moves");
            assert!(sum(|report| report.refused_moves) > 5);
        }
    }

    /// Worlds in which the copy of one client became the file although another one had changed it.
    #[test]
    fn two_clients_move_a_file_while_a_third_writes() {
        for options in [SimOptions::several_daemons(1373), SimOptions::new(3099)] {
            run(options.with_small_files()).expect("all bytes are there");
        }
    }

    #[test]
    fn a_mistake_with_small_files_is_found() {
        for (defect, count) in [
            (SimDefect::FillsInTwoSteps, 100),
            (SimDefect::KeepsOldBytes, 100),
            (SimDefect::CopiesBeforeReserving, 300),
        ] {
            let worlds = (0..count).map(|seed| SimOptions::new(seed).with_small_files());
            assert!(is_caught(defect, worlds), "{defect:?}");
        }
    }
}
