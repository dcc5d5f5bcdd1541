//! An executor: a thread that owns shards of this node and the connections
//! for their names, so that a request meets no lock and no other thread.
//!
//! A round drains what has arrived, applies it, commits once, and only then
//! answers. Whoever asks for durability (`Sync`) is answered after one fsync for
//! all who asked in the round. Messages of other nodes are drained and applied as requests are, and those
//! to them leave as answers do. A request that needs other nodes is answered in a later round.

use crate::accept::Admission;
use crate::clock::Clock;
use crate::delegations::Recall;
use crate::executors::Condition;
use crate::holders::HoldersFile;
use crate::job_locks::JobLocks;
use crate::links::Links;
use crate::locking::Locking;
use crate::locks::{self, Question};
use crate::log_sync::LogSync;
use crate::meta_conn::{Kind, MetaConnection, NoRequest};
use crate::moving::{LockRequest, Moving};
use crate::peer::Peer;
use crate::recalls::Recalls;
use crate::round::{self, Answer};
use crate::shards::Shards;
use crate::shared::{Shared, now};
use crate::stream::Stream;
use mio::{Events, Poll, Token, Waker};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tatami_meta::{Context, FjallStore, Out, Ticket};
use tatami_wire::act::Act;
use tatami_wire::admin::{ClusterMap, Durability};
use tatami_wire::delegation::{RecallCall, RecallNote};
use tatami_wire::frame::FrameError;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, NewNode};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Errno, ExecutorId, Layout, NodeId};

/// Most requests in one round, and so in one commit.
const ROUND_MAX: usize = 1024;
/// Most requests of one connection in one round.
const ROUND_OF_ONE_MAX: usize = 16;
/// Most messages of one node in one round.
const MESSAGES_MAX: usize = 256;
/// How long a client that is silent keeps what was delegated to it, and so the
/// longest time for which it can hold others up.
const TERM: Duration = Duration::from_secs(5);
/// Pause between two looks whether a disk that was full has room again, without a request.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(1);
/// Events taken from the kernel at a time.
const EVENTS: usize = 1024;

const WAKER: Token = Token(usize::MAX);

/// A connection that has passed its handshake.
pub(crate) struct NewConnection {
    pub(crate) stream: Arc<Stream>,
    pub(crate) peer: Peer,
    pub(crate) kind: Kind,
    pub(crate) admission: Option<Admission>,
}

/// What other threads tell the executor.
enum News {
    Connection(NewConnection),
    /// The connection to another executor, if it could be made.
    Link(ExecutorId, Option<Arc<Stream>>),
    /// What another executor of the node knows of shards.
    Map(Arc<ClusterMap>),
    /// What became of the log's sync.
    Synced(io::Result<()>),
    /// An order, and where its answer goes.
    Order(Order, Sender<Result<(), Errno>>),
}

/// An order about shards.
#[derive(Clone)]
pub(crate) enum Order {
    /// See [`AdminCall::Learn`](tatami_wire::admin::AdminCall).
    Learn(Box<ClusterMap>),
    /// See [`AdminCall::Move`](tatami_wire::admin::AdminCall).
    Move { first: u16, count: u16, to: ExecutorId },
}

/// How other threads reach the executor.
#[derive(Clone)]
pub(crate) struct ExecutorHandle {
    new: Sender<News>,
    waker: Arc<Waker>,
}

impl ExecutorHandle {
    /// Hands a connection over. The executor may have ended: then it closes.
    pub(crate) fn hand_over(&self, connection: NewConnection) {
        self.tell(News::Connection(connection));
    }

    /// Hands over a connection to another executor, or says that there is none.
    pub(crate) fn link(&self, to: ExecutorId, link: Option<Arc<Stream>>) {
        self.tell(News::Link(to, link));
    }

    /// Tells what another executor of the node knows of shards.
    pub(crate) fn tell_map(&self, map: Arc<ClusterMap>) {
        self.tell(News::Map(map));
    }

    /// Gives an order. If the executor has ended, `answer` is dropped.
    pub(crate) fn order(&self, order: Order, answer: Sender<Result<(), Errno>>) {
        self.tell(News::Order(order, answer));
    }

    fn tell(&self, news: News) {
        if self.new.send(news).is_ok() {
            self.wake();
        }
    }

    /// Makes the executor look at its connections and at the stop flag.
    pub(crate) fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            tracing::error!(error = %e, "cannot wake the executor");
        }
    }
}

/// See the module.
pub(crate) struct Executor {
    pub(crate) shared: Arc<Shared>,
    /// Which one it is.
    pub(crate) here: ExecutorId,
    pub(crate) shards: Shards<FjallStore>,
    pub(crate) moving: Moving,
    poll: Poll,
    new: Receiver<News>,
    pub(crate) connections: Vec<Option<MetaConnection>>,
    free: Vec<usize>,
    /// Which connection speaks for a slot of a client: the latest.
    slots: HashMap<(ClientId, u32), usize>,
    /// Connections that may have requests.
    ready: Vec<usize>,
    /// Room for those that are looked at.
    looked_at: Vec<usize>,
    pub(crate) round: Vec<Answer>,
    pub(crate) recalls: Recalls,
    /// Requests that are answered when other nodes have been asked.
    waiting: HashMap<Ticket, Vec<Answer>>,
    pub(crate) links: Links,
    pub(crate) clock: Clock,
    pub(crate) locking: Locking,
    pub(crate) job_locks: JobLocks,
    log_sync: LogSync,
    handle: ExecutorHandle,
    condition: Arc<Condition>,
}

impl Executor {
    /// An executor of `shards`, to be run by a thread of its own; below `dir` it keeps
    /// to whom names may be delegated, and who may hold locks.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: u8,
        shards: Shards<FjallStore>,
        dir: &Path,
        condition: Arc<Condition>,
    ) -> io::Result<(Executor, ExecutorHandle)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, new) = channel();
        let handle = ExecutorHandle { new: sender, waker };
        let here = ExecutorId { node: shared.node(), index };
        let links = Links::new(shared.clone(), here, handle.clone());
        let moving = Moving::new(shared.map());
        let executor = Executor {
            shared,
            here,
            moving,
            shards,
            poll,
            new,
            connections: Vec::new(),
            free: Vec::new(),
            slots: HashMap::new(),
            ready: Vec::new(),
            looked_at: Vec::new(),
            round: Vec::new(),
            recalls: Recalls::new(TERM, HoldersFile::at(dir.join(of_executor("holders", index)))),
            locking: Locking::new(HoldersFile::at(dir.join(of_executor("lockers", index))), now()),
            job_locks: JobLocks::default(),
            waiting: HashMap::new(),
            links,
            clock: Clock::new(),
            log_sync: LogSync::default(),
            handle: handle.clone(),
            condition,
        };
        Ok((executor, handle))
    }

    /// Runs until the node ends; then syncs and gives the shards back.
    pub(crate) fn run(mut self) -> Shards<FjallStore> {
        let mut events = Events::with_capacity(EVENTS);
        self.tell_condition();
        self.give_chores_away();
        self.ask_for_map();
        while !self.shared.stop.is_set() {
            let timeout = self.patience();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    tracing::error!(error = %e, "the executor cannot wait for requests; ending");
                    self.shared.stop.set();
                    break;
                }
            }
            for event in &events {
                if event.token() == WAKER {
                    self.take_new();
                    continue;
                }
                let at = event.token().0;
                if event.is_writable() {
                    self.send(at);
                }
                if let Some(Some(connection)) = self.connections.get_mut(at) {
                    let ended = event.is_read_closed() || event.is_error();
                    connection.note(event.is_readable(), ended);
                    self.list(at);
                }
            }
            self.end_terms();
            if self.shards.is_full() {
                self.shards.look_for_room();
                self.tell_condition();
                self.give_chores_away();
            }
            self.do_round();
            self.tell_of_locks();
            self.sync_log();
        }
        self.shards
    }

    /// How long the executor may sleep.
    fn patience(&mut self) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let left = match self.recalls.closed_until() {
            Some(until) => left(until),
            None if !self.ready.is_empty() => return Some(Duration::ZERO),
            None => {
                let due = self.shards.deadline().map(|due| self.clock.until(due));
                let room = self.shards.is_full().then_some(LOOK_FOR_ROOM);
                let here = [
                    self.recalls.deadline(),
                    self.locking.deadline(),
                    self.job_locks.deadline(),
                    self.log_sync.due(),
                ];
                here.into_iter().flatten().map(left).chain(due).chain(room).min()?
            }
        };
        // Rounded up, so that the moment is not missed by less than epoll can tell.
        Some(left + Duration::from_millis(1))
    }

    /// Closes the recall connections of clients that do not answer.
    fn end_terms(&mut self) {
        if self.recalls.deadline().is_none_or(|deadline| Instant::now() < deadline) {
            return;
        }
        for at in self.recalls.expire() {
            if let Some(connection) = &self.connections[at] {
                let (peer, client) = (&connection.peer, connection.client());
                tracing::warn!(%peer, %client, "names were not given back in time; others go on");
            }
            self.drop_connection(at);
        }
        self.release();
    }

    /// Answers requests about locks that need not wait any more, and tells clients what they wait for.
    fn tell_of_locks(&mut self) {
        let mut answers = self.locking.released();
        if self.locking.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            answers.extend(self.locking.overdue());
        }
        let now = Instant::now();
        if self.job_locks.deadline().is_some_and(|deadline| deadline <= now) {
            answers.extend(self.job_locks.overdue(now));
        }
        self.answer(&mut answers);
        for (client, locks::News { wanted, ready }) in self.locking.take_news() {
            // Who has no such connection asks again by itself, or tells what it holds when it is back.
            if let Some(at) = self.recalls.connection(client)
                && let Some(connection) = &mut self.connections[at]
            {
                connection.tell(&RecallNote::Locks { wanted, ready });
                self.send(at);
            }
        }
    }

    fn take_new(&mut self) {
        while let Ok(news) = self.new.try_recv() {
            match news {
                News::Connection(new) => self.take_connection(new),
                News::Map(map) => self.learn(&map),
                News::Synced(result) => {
                    if self.shards.end_sync(result) {
                        self.log_sync.ended();
                    }
                    self.tell_condition();
                }
                News::Order(order, answer) => {
                    // Whoever gave it may have gone.
                    let _ = answer.send(self.obey(order));
                }
                News::Link(to, link) => {
                    let new = link.and_then(|stream| {
                        let peer = Peer::of(&stream).ok()?;
                        let kind = Kind::Link { to };
                        Some(NewConnection { stream, peer, kind, admission: None })
                    });
                    match new {
                        Some(new) => self.take_connection(new),
                        None => self.links.failed(to),
                    }
                }
            }
        }
    }

    fn take_connection(&mut self, new: NewConnection) {
        let kind = new.kind;
        let Some((at, client)) = self.watch(new) else {
            if let Kind::Link { to } = kind {
                self.links.failed(to);
            }
            return;
        };
        // A client that connects again has given up the old connection.
        let old = match kind {
            Kind::Requests { slot } => self.slots.insert((client, slot), at),
            Kind::Recall => match self.recalls.opened(client, at) {
                Ok(old) => old,
                Err(error) => {
                    tracing::error!(%client, %error, "nothing is delegated: check the disk");
                    Some(at)
                }
            },
            Kind::Peer { from } => {
                let waiting = self.links.came(from, at);
                self.say_waiting(at, &waiting);
                None
            }
            Kind::Link { to } => match self.links.made(to, at) {
                Some(waiting) => {
                    self.say_waiting(at, &waiting);
                    None
                }
                None => Some(at),
            },
        };
        if let Some(old) = old {
            self.drop_connection(old);
        }
        self.list(at);
    }

    /// Says what has waited for a connection.
    fn say_waiting(&mut self, at: usize, waiting: &[PeerMessage]) {
        if let Some(connection) = &mut self.connections[at]
            && !waiting.is_empty()
        {
            waiting.iter().for_each(|message| connection.say(message));
            self.send(at);
        }
    }

    /// Takes a connection in; its place, and whose it is.
    fn watch(&mut self, new: NewConnection) -> Option<(usize, ClientId)> {
        let NewConnection { stream, peer, kind, admission } = new;
        let at = self.free.pop().unwrap_or(self.connections.len());
        if at == self.connections.len() {
            self.connections.push(None);
        }
        let connection = MetaConnection::new(stream, peer, kind, admission);
        if let Err(e) = connection.register(self.poll.registry(), Token(at)) {
            tracing::error!(error = %e, "cannot watch a connection; it was dropped");
            self.free.push(at);
            return None;
        }
        let client = connection.client();
        self.connections[at] = Some(connection);
        Some((at, client))
    }

    fn list(&mut self, at: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(at)
            && !connection.listed
        {
            connection.listed = true;
            self.ready.push(at);
        }
    }

    /// Drains, applies, commits, answers.
    fn do_round(&mut self) {
        let closed = self.recalls.closed_until().is_some();
        if self.shards.are_spread() && !closed {
            let now = self.clock.now();
            self.shards.tick(now);
            self.note_moves();
        }
        let room = std::mem::take(&mut self.looked_at);
        let mut ready = std::mem::replace(&mut self.ready, room);
        for at in ready.drain(..) {
            let Some(connection) = &mut self.connections[at] else { continue };
            if connection.kind == Kind::Recall {
                connection.listed = false;
                self.hear(at);
                continue;
            }
            if closed {
                self.ready.push(at);
                continue;
            }
            connection.listed = false;
            match connection.kind {
                Kind::Peer { from: other } | Kind::Link { to: other } => {
                    self.drain_messages(at, other);
                }
                _ if self.round.len() >= ROUND_MAX => self.list(at),
                _ => self.drain(at),
            }
        }
        self.looked_at = ready;
        if !closed {
            self.further_moves();
        }
        let changed = self.shards.is_dirty();
        if self.round.is_empty() && !changed {
            return;
        }
        self.shared.counters.meta_requests.add(self.round.len() as u64);
        let mut round = std::mem::take(&mut self.round);
        round::commit(&mut self.shards, &mut round);
        if changed {
            self.log_sync.committed(Instant::now());
        }
        let mut outs = self.end_waits(&mut round);
        self.job_locks.take(&mut round, |ino, open| self.shards.job_holder(ino, open));
        let lasting = self.shared.durability == Durability::Sync || self.shards.wants_sync();
        if changed && lasting {
            match round::sync(&mut self.shards, &mut round, true) {
                true => self.log_sync.synced(),
                false => outs = Some(Vec::new()),
            }
            self.settle(&mut round, outs);
            self.answer(&mut round);
        } else {
            let mut waiting: Vec<_> =
                round.extract_if(.., |answer| answer.waits_for_sync()).collect();
            self.settle(&mut round, outs);
            // Nobody else waits for the disk.
            self.answer(&mut round);
            if !waiting.is_empty() {
                if round::sync(&mut self.shards, &mut waiting, false) {
                    self.log_sync.synced();
                }
                self.answer(&mut waiting);
            }
        }
        // The room is used again.
        self.round = round;
        self.publish_map();
        self.tell_condition();
        self.give_chores_away();
    }

    /// Begins to write the log out, if it is time, by a thread of its own: it takes long.
    fn sync_log(&mut self) {
        let now = Instant::now();
        if self.log_sync.due().is_none_or(|due| now < due) {
            return;
        }
        self.log_sync.begin(now);
        match self.shards.begin_sync() {
            Ok(Some(work)) => {
                let handle = self.handle.clone();
                let run = move || handle.tell(News::Synced(work()));
                if let Err(error) = std::thread::Builder::new().name("log".to_owned()).spawn(run) {
                    // The work is lost with the thread that there is not.
                    tracing::warn!(%error, "no thread for the log; it is synced here");
                    if self.shards.sync().is_ok() {
                        self.log_sync.ended();
                    }
                }
            }
            Ok(None) => self.log_sync.ended(),
            // The store refuses everything from now on; what was begun never ends.
            Err(_) => {}
        }
        self.tell_condition();
    }

    /// Has the stores' chores done by a thread of their own: they take long.
    fn give_chores_away(&mut self) {
        while let Some(chore) = self.shards.take_chore() {
            let spawned = std::thread::Builder::new().name("tables".to_owned()).spawn(chore);
            if let Err(e) = spawned {
                tracing::error!(error = %e, "cannot start a thread for a store; it tries again");
            }
        }
    }

    /// Puts those requests of a round aside that wait for other nodes, and brings in those that do so
    /// no longer. Returns what is to be said to other nodes; `None` where they have nothing
    /// to do with this round.
    fn end_waits(&mut self, round: &mut Vec<Answer>) -> Option<Vec<Out>> {
        if !self.shards.are_spread() {
            return None;
        }
        for answer in round.extract_if(.., |answer| answer.waits.is_some()) {
            if let Some(ticket) = answer.waits {
                self.waiting.entry(ticket).or_default().push(answer);
            }
        }
        let (outs, finished) = self.shards.take_ready();
        if outs.is_empty() && finished.is_empty() {
            return None;
        }
        for finished in finished {
            for mut answer in self.waiting.remove(&finished.ticket).unwrap_or_default() {
                let client = answer.request.as_ref().map(|(ctx, _)| ctx.client);
                let delegates = client.is_some_and(|client| self.recalls.may_delegate(client));
                answer.finish(&finished, delegates);
                round.push(answer);
            }
        }
        Some(outs)
    }

    /// Says to other nodes what may leave.
    pub(crate) fn say(&mut self, outs: Vec<Out>) {
        let mut spoken = Vec::new();
        for Out { to, message, .. } in outs {
            if let Some((at, message)) = self.links.take(to, message)
                && let Some(Some(connection)) = self.connections.get_mut(at)
            {
                connection.say(&message);
                if !spoken.contains(&at) {
                    spoken.push(at);
                }
            }
        }
        spoken.into_iter().for_each(|at| self.send(at));
    }

    /// Sends what the round recalls, and keeps the answers and messages that must wait for it.
    fn settle(&mut self, round: &mut Vec<Answer>, outs: Option<Vec<Out>>) {
        let outs = match outs {
            None => {
                self.recalls.settle(round);
                Vec::new()
            }
            Some(outs) => {
                let shards = &mut self.shards;
                self.recalls.settle_all(round, outs, |attr| shards.is_current(attr))
            }
        };
        self.say(outs);
        self.send_recalls();
    }

    pub(crate) fn send_recalls(&mut self) {
        for Recall { at, id, inos } in self.recalls.take_recalls() {
            if let Some(connection) = &mut self.connections[at] {
                connection.tell(&RecallNote::Recall { id, inos });
                self.send(at);
            }
        }
    }

    /// Sends the answers that need not wait any more.
    fn release(&mut self) {
        let shards = &mut self.shards;
        let mut released = self.recalls.released(|attr| shards.is_current(attr));
        self.answer(&mut released);
        let outs = self.recalls.released_outs();
        self.say(outs);
    }

    /// Takes what a client says on its recall connection.
    fn hear(&mut self, at: usize) {
        while let Some(connection) = &mut self.connections[at] {
            let client = connection.client();
            match connection.next_word() {
                Ok(RecallCall::Alive) => {
                    self.recalls.alive(client);
                    self.shared.clients.hear(client);
                    let millis = self.recalls.term().as_millis() as u32;
                    let lease = self.shared.lease.as_millis().min(u128::from(u32::MAX)) as u32;
                    let epoch = self.moving.map.epoch;
                    // Rounded up: younger than this is what may be lost.
                    let undone = self.shards.undone_since().map(|since| self.clock.since(since));
                    let lag = self.log_sync.lag(Instant::now()).max(undone.unwrap_or_default());
                    let lasting =
                        u32::try_from(lag.as_millis()).map_or(u32::MAX, |ms| ms.saturating_add(1));
                    connection.tell(&RecallNote::Term {
                        millis,
                        lease,
                        epoch,
                        lasting,
                        space: self.shared.space().ok(),
                    });
                    self.send(at);
                }
                Ok(RecallCall::Returned(id)) => self.recalls.returned(client, id),
                Ok(RecallCall::Holds(inos)) => self.shards.note_opens(client, &inos),
                Err(NoRequest::None | NoRequest::Paused) => break,
                Err(NoRequest::Broken(e)) => {
                    tracing::debug!(peer = %connection.peer, error = %e, "recall connection ended");
                    self.drop_connection(at);
                }
            }
        }
        self.release();
    }

    /// Takes what another executor says.
    fn drain_messages(&mut self, at: usize, from: ExecutorId) {
        let now = self.clock.now();
        for _ in 0..MESSAGES_MAX {
            let Some(connection) = &mut self.connections[at] else { return };
            match connection.next_message() {
                Ok(message) => {
                    self.shared.counters.peer_messages.add(1);
                    self.receive(now, from, message);
                }
                Err(NoRequest::None | NoRequest::Paused) => return,
                Err(NoRequest::Broken(e)) => {
                    tracing::debug!(executor = %from, error = %e, "it says nothing more");
                    return self.drop_connection(at);
                }
            }
        }
        self.list(at);
    }

    /// Takes requests from one connection and applies them.
    fn drain(&mut self, at: usize) {
        for _ in 0..ROUND_OF_ONE_MAX {
            let Some(connection) = &mut self.connections[at] else { return };
            match connection.next_request() {
                Ok((seq, MetaCall { op: MetaOp::Locks { ino, session, op }, shard, cred })) => {
                    let trusted = connection.peer.is_trusted();
                    let cred = connection.peer.bound_to.clone().unwrap_or(cred);
                    let client = connection.client();
                    let delegates = self.recalls.may_delegate(client);
                    let question = Question { client, session, ino, op, delegates };
                    self.ask_lock(LockRequest { at, seq, shard, trusted, cred, question });
                }
                Ok((seq, call)) => {
                    let mut answer = apply(
                        &self.shared,
                        &self.moving.map,
                        &mut self.shards,
                        connection,
                        at,
                        seq,
                        call,
                    );
                    if let (true, None, Some((ctx, call))) =
                        (self.recalls.are_used(), answer.waits, &answer.request)
                    {
                        let delegates = self.recalls.may_delegate(ctx.client);
                        answer.met = self.shards.met(call, delegates);
                    }
                    self.keep_house(&mut answer);
                    self.round.push(answer);
                }
                Err(NoRequest::None) => return,
                // When the answers are gone, an event brings it back.
                Err(NoRequest::Paused) => return,
                Err(NoRequest::Broken(e)) => {
                    match &e {
                        FrameError::Closed => {}
                        FrameError::Io(e) => {
                            tracing::debug!(peer = %connection.peer, error = %e, "connection broke");
                        }
                        e => tracing::warn!(peer = %connection.peer, "connection dropped: {e}"),
                    }
                    self.drop_connection(at);
                    return;
                }
            }
        }
        let Some(connection) = &self.connections[at] else { return };
        if connection.may_have_request() {
            self.list(at);
        }
    }

    /// Of clients, locks are part of what is kept for them.
    fn keep_house(&mut self, answer: &mut Answer) {
        let Some((_, MetaCall { op, .. })) = &answer.request else { return };
        match (op, &mut answer.result) {
            (MetaOp::Clients, Ok(MetaReply::Clients(clients))) => {
                clients.extend(self.locking.clients());
                clients.sort_unstable();
                clients.dedup();
            }
            (MetaOp::ExpireClient { client }, Ok(_)) => self.locking.expire(*client),
            _ => {}
        }
    }

    fn answer(&mut self, round: &mut Vec<Answer>) {
        let mut last = None;
        for Answer { to: at, seq, result, granted, .. } in round.drain(..) {
            // Those to one connection follow each other.
            if let Some(before) = last.replace(at).filter(|before| *before != at) {
                self.send(before);
            }
            if let Some(connection) = &mut self.connections[at] {
                connection.answer(seq, &result, granted.as_ref());
            }
        }
        if let Some(at) = last {
            self.send(at);
        }
    }

    /// Sends waiting answers, and takes up a connection that paused for them.
    pub(crate) fn send(&mut self, at: usize) {
        let Some(Some(connection)) = self.connections.get_mut(at) else { return };
        if let Err(e) = connection.send(self.poll.registry(), Token(at)) {
            tracing::debug!(peer = %connection.peer, error = %e, "connection dropped");
            self.drop_connection(at);
            return;
        }
        if connection.may_have_request() {
            self.list(at);
        }
    }

    fn drop_connection(&mut self, at: usize) {
        let Some(connection) = self.connections[at].take() else { return };
        connection.deregister(self.poll.registry());
        let client = connection.client();
        self.waiting.retain(|_, answers| {
            answers.retain(|answer| answer.to != at);
            !answers.is_empty()
        });
        self.locking.closed(at);
        self.job_locks.closed(at);
        self.moving.closed(at);
        match connection.kind {
            Kind::Requests { slot } if self.slots.get(&(client, slot)) == Some(&at) => {
                self.slots.remove(&(client, slot));
                self.recalls.closed(at, None);
            }
            Kind::Requests { .. } => self.recalls.closed(at, None),
            Kind::Recall => self.recalls.closed(at, Some(client)),
            Kind::Peer { from: other } | Kind::Link { to: other } => self.links.lost(other, at),
        }
        self.free.push(at);
    }

    /// Tells the other threads how the shards are, and wakes housekeeping when
    /// there is something for it.
    fn tell_condition(&mut self) {
        self.condition.inodes.store(self.shards.inodes(), Relaxed);
        self.shards.tell_trouble(&self.condition.trouble);
        if self.shards.note_garbage().contains(&self.shared.node()) {
            self.shared.nudge.give();
        }
    }
}

/// The name of a file that each executor has for itself.
fn of_executor(name: &str, index: u8) -> String {
    if index == 0 { name.to_owned() } else { format!("{name}.{index}") }
}

/// Checks who asks for what, and applies one request.
fn apply(
    shared: &Shared,
    map: &ClusterMap,
    shards: &mut Shards<FjallStore>,
    connection: &MetaConnection,
    to: usize,
    seq: u64,
    mut call: MetaCall,
) -> Answer {
    let trusted = connection.peer.is_trusted();
    if let Err(e) = may(shared, map, trusted, &call) {
        return Answer::new(to, seq, Err(e), None);
    }
    if let Some(cred) = &connection.peer.bound_to {
        call.cred.clone_from(cred);
    }
    let client = connection.client();
    let Kind::Requests { slot } = connection.kind else {
        return Answer::new(to, seq, Err(Errno::EPROTO), None);
    };
    let ctx = Context { now: now(), client, slot, seq, trusted };
    let applied = shards.apply(&ctx, &call);
    Answer::of(to, seq, applied, (ctx, call))
}

/// Whether the request may be put to the shard at all. What the user may do
/// there, the shard decides.
fn may(shared: &Shared, map: &ClusterMap, trusted: bool, call: &MetaCall) -> Result<(), Errno> {
    if map.owner(call.shard).is_none() {
        return Err(Errno::ESTALE);
    }
    if call.op.is_housekeeping() && !trusted {
        return Err(Errno::EPERM);
    }
    let known = |node: NodeId| map.nodes.iter().any(|n| n.id == node);
    let is_known = |layout: &Layout| layout.pieces().all(|(node, _)| known(node));
    match &call.op {
        MetaOp::Create { node: NewNode::File(layout), .. } | MetaOp::Tmpfile { layout, .. }
            if !is_known(layout) =>
        {
            return Err(Errno::EINVAL);
        }
        MetaOp::Acts { acts } => {
            let unknown = |act: &Act| matches!(act, Act::Create { node: NewNode::File(layout), .. } if !is_known(layout));
            if acts.iter().any(unknown) {
                return Err(Errno::EINVAL);
            }
        }
        MetaOp::AddPieces { nodes, .. } if !nodes.iter().all(|(node, _)| known(*node)) => {
            return Err(Errno::EINVAL);
        }
        MetaOp::Reserve { nodes, .. } if !nodes.iter().all(|node| known(*node)) => {
            return Err(Errno::EINVAL);
        }
        // It came back: what it holds stays.
        MetaOp::ExpireClient { client } if shared.clients.is_connected(*client) => {
            return Err(Errno::EBUSY);
        }
        _ => {}
    }
    Ok(())
}
