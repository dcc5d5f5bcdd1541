//! An executor: a thread that owns shards of this node and the connections for their names. A
//! request therefore takes no lock and meets no other thread.
//!
//! A round drains the requests that have arrived, applies them, commits once, and only then
//! answers. Requests for durability (`Sync`) are answered after one fsync for all of them in the
//! round. Messages of other nodes are drained and applied as requests are; messages to other nodes
//! leave as answers do. A request that needs other nodes is answered in a later round.

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
/// How long a silent client keeps its delegations, and so the longest time for which it can delay
/// others.
const TERM: Duration = Duration::from_secs(5);
/// Pause between two checks whether a full disk has room again, when no request comes.
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

/// A message of another thread to the executor.
enum News {
    Connection(NewConnection),
    /// The connection to another executor; `None` if it could not be made.
    Link(ExecutorId, Option<Arc<Stream>>),
    /// The shard map of another executor of the node.
    Map(Arc<ClusterMap>),
    /// The result of the log's sync.
    Synced(io::Result<()>),
    /// An order, and the channel for its answer.
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
    /// Hands a connection over. If the executor has ended, the connection closes.
    pub(crate) fn hand_over(&self, connection: NewConnection) {
        self.tell(News::Connection(connection));
    }

    /// Hands over a connection to another executor, or reports that there is none.
    pub(crate) fn link(&self, to: ExecutorId, link: Option<Arc<Stream>>) {
        self.tell(News::Link(to, link));
    }

    /// Hands over the shard map of another executor of the node.
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

    /// Makes the executor look at its channel and at the stop flag.
    pub(crate) fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            tracing::error!(error = %e, "cannot wake the executor");
        }
    }
}

/// See the module.
pub(crate) struct Executor {
    pub(crate) shared: Arc<Shared>,
    /// The number of this executor.
    pub(crate) here: ExecutorId,
    pub(crate) shards: Shards<FjallStore>,
    pub(crate) moving: Moving,
    poll: Poll,
    new: Receiver<News>,
    pub(crate) connections: Vec<Option<MetaConnection>>,
    free: Vec<usize>,
    /// The connection that speaks for a slot of a client: the latest one.
    slots: HashMap<(ClientId, u32), usize>,
    /// Connections that may have requests.
    ready: Vec<usize>,
    /// The spare buffer for `ready`: the two are swapped each round, so that neither is allocated
    /// again.
    looked_at: Vec<usize>,
    pub(crate) round: Vec<Answer>,
    pub(crate) recalls: Recalls,
    /// Answers that wait until other nodes have replied, by the ticket of their transaction.
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
    /// Makes an executor of `shards`, to be run by a thread of its own. Below `dir` it keeps the
    /// list of clients that may have delegations, and of those that may hold locks.
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

    /// Runs until the node ends; then returns the shards. The caller syncs and closes them.
    pub(crate) fn run(mut self) -> Shards<FjallStore> {
        let mut events = Events::with_capacity(EVENTS);
        // Before the first event: `status`, the stores' background tasks and the shard map must be
        // current even if no request ever comes.
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
            // Late clients go first, so that this round can release the answers that waited for
            // them.
            self.end_terms();
            if self.shards.is_full() {
                self.shards.look_for_room();
                self.tell_condition();
                self.give_chores_away();
            }
            // After the round: locks that the round freed are granted now, and the log's sync is
            // due from its commit.
            self.do_round();
            self.tell_of_locks();
            self.sync_log();
        }
        self.shards
    }

    /// Returns how long the executor may sleep; `None` stands for ever.
    fn patience(&mut self) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let left = match self.recalls.closed_until() {
            Some(until) => left(until),
            // Connections have more requests than the last round could take, so the executor does
            // not sleep.
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
        // Rounded up: epoll counts whole milliseconds and would wake before the deadline otherwise.
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

    /// Answers requests about locks that need not wait any more, and notifies clients of granted
    /// waits and recalled locks.
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
            // A client without a recall connection asks again by itself, or reclaims its locks when
            // it is back.
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
                    // The thread that gave the order may have gone.
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
                // Messages that were queued while there was no connection leave first, in their
                // order.
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

    /// Sends the messages that have waited for a connection.
    fn say_waiting(&mut self, at: usize, waiting: &[PeerMessage]) {
        if let Some(connection) = &mut self.connections[at]
            && !waiting.is_empty()
        {
            waiting.iter().for_each(|message| connection.say(message));
            self.send(at);
        }
    }

    /// Registers a connection with the poll. Returns its index and its client.
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

    /// Does one round: drains, applies, commits, answers.
    fn do_round(&mut self) {
        // After a restart, clients may still answer from delegations of the daemon before. No
        // request is served until they have come back or their term is over. Recall connections are
        // served all the time, or they could never come back.
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
                // Stays listed: no further event would come for bytes that have already arrived.
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
        // The commit goes before every answer and message: none may leave that a crash could take
        // back.
        self.shared.counters.meta_requests.add(self.round.len() as u64);
        let mut round = std::mem::take(&mut self.round);
        round::commit(&mut self.shards, &mut round);
        if changed {
            self.log_sync.committed(Instant::now());
        }
        // After the commit: votes and outcomes of transactions refer to records that are in the log
        // now.
        let mut outs = self.end_waits(&mut round);
        self.job_locks.take(&mut round, |ino, open| self.shards.job_holder(ino, open));
        let lasting = self.shared.durability == Durability::Sync || self.shards.wants_sync();
        if changed && lasting {
            match round::sync(&mut self.shards, &mut round, true) {
                true => self.log_sync.synced(),
                // A peer must not learn of a change that a power cut can undo, so the messages are
                // dropped. The store refuses writes from now on.
                false => outs = Some(Vec::new()),
            }
            self.settle(&mut round, outs);
            self.answer(&mut round);
        } else {
            let mut waiting: Vec<_> =
                round.extract_if(.., |answer| answer.waits_for_sync()).collect();
            self.settle(&mut round, outs);
            // Only `Sync` requests wait for the disk. All other answers leave before the fsync.
            self.answer(&mut round);
            if !waiting.is_empty() {
                if round::sync(&mut self.shards, &mut waiting, false) {
                    self.log_sync.synced();
                }
                self.answer(&mut waiting);
            }
        }
        // Keeps the buffer for the next round.
        self.round = round;
        // The map only now: it may name shards whose move this round has committed.
        self.publish_map();
        self.tell_condition();
        self.give_chores_away();
    }

    /// Begins to sync the log, if that is due, on a thread of its own: an fsync can take long.
    fn sync_log(&mut self) {
        let now = Instant::now();
        if self.log_sync.due().is_none_or(|due| now < due) {
            return;
        }
        // Begins the interval even if the sync fails: a failing disk is not tried in a loop.
        self.log_sync.begin(now);
        match self.shards.begin_sync() {
            Ok(Some(work)) => {
                let handle = self.handle.clone();
                let run = move || handle.tell(News::Synced(work()));
                if let Err(error) = std::thread::Builder::new().name("log".to_owned()).spawn(run) {
                    // The closure is lost with the thread that could not start, so the executor
                    // syncs by itself.
                    tracing::warn!(%error, "no thread for the log; it is synced here");
                    if self.shards.sync().is_ok() {
                        self.log_sync.ended();
                    }
                }
            }
            Ok(None) => self.log_sync.ended(),
            // The store refuses all writes from now on. The sync that was begun never ends.
            Err(_) => {}
        }
        self.tell_condition();
    }

    /// Runs the stores' background tasks on threads of their own: they can take long.
    fn give_chores_away(&mut self) {
        while let Some(chore) = self.shards.take_chore() {
            let spawned = std::thread::Builder::new().name("tables".to_owned()).spawn(chore);
            if let Err(e) = spawned {
                tracing::error!(error = %e, "cannot start a thread for a store; it tries again");
            }
        }
    }

    /// Sets those requests of a round aside that wait for other nodes, and brings in those that
    /// wait no longer. Returns the messages to other nodes; `None` if other nodes have no part in
    /// this round.
    fn end_waits(&mut self, round: &mut Vec<Answer>) -> Option<Vec<Out>> {
        if !self.shards.are_spread() {
            // Without shards on other executors no transaction exists, and the round keeps its
            // order.
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

    /// Sends the messages to other nodes that may leave.
    pub(crate) fn say(&mut self, outs: Vec<Out>) {
        let mut spoken = Vec::new();
        for Out { to, message, .. } in outs {
            if let Some((at, message)) = self.links.take(to, message)
                && let Some(Some(connection)) = self.connections.get_mut(at)
            {
                connection.say(&message);
                // One `send` a connection, after all messages: fewer system calls.
                if !spoken.contains(&at) {
                    spoken.push(at);
                }
            }
        }
        spoken.into_iter().for_each(|at| self.send(at));
    }

    /// Queues the recalls of the round, and holds back the answers and messages that must wait for
    /// them.
    fn settle(&mut self, round: &mut Vec<Answer>, outs: Option<Vec<Out>>) {
        let outs = match outs {
            None => {
                self.recalls.settle(round);
                Vec::new()
            }
            Some(outs) => {
                // Other executors apply changes in an order that is not known here. The attributes
                // of each answer are compared with the current ones before they are delegated.
                let shards = &mut self.shards;
                self.recalls.settle_all(round, outs, |attr| shards.is_current(attr))
            }
        };
        // Free messages first: peers can work while the clients answer their recalls.
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

    /// Sends the answers and messages whose recalls have been answered.
    fn release(&mut self) {
        let shards = &mut self.shards;
        let mut released = self.recalls.released(|attr| shards.is_current(attr));
        self.answer(&mut released);
        let outs = self.recalls.released_outs();
        self.say(outs);
    }

    /// Handles the messages of a client on its recall connection.
    fn hear(&mut self, at: usize) {
        while let Some(connection) = &mut self.connections[at] {
            let client = connection.client();
            match connection.next_word() {
                Ok(RecallCall::Alive) => {
                    // Both clocks: the term of its delegations, and the lease of its session.
                    self.recalls.alive(client);
                    self.shared.clients.hear(client);
                    let millis = self.recalls.term().as_millis() as u32;
                    let lease = self.shared.lease.as_millis().min(u128::from(u32::MAX)) as u32;
                    let epoch = self.moving.map.epoch;
                    // Rounded up. Changes younger than this may be lost in a power cut.
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
        // Once for all messages of the client: a returned delegation may free answers of other
        // clients.
        self.release();
    }

    /// Receives messages of another executor.
    fn drain_messages(&mut self, at: usize, from: ExecutorId) {
        let now = self.clock.now();
        // Bounded, so that one busy peer does not starve the requests of this round.
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
                    // The user that the handshake bound to the connection wins over the one that
                    // the request names.
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
                    // Delegations exist: the answer must know its read and changed inodes before
                    // another request overwrites them.
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
                // The connection is listed again when its answers have been sent.
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

    /// Adds the clients that only the lock table knows, and expires a client's locks with its
    /// session.
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
            // Answers to one connection follow each other, so one `send` serves them all.
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

    /// Sends buffered answers, and lists a connection that paused until they had left.
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
        // Nobody would read these answers. The requests themselves go on and keep their slots'
        // results.
        self.waiting.retain(|_, answers| {
            answers.retain(|answer| answer.to != at);
            !answers.is_empty()
        });
        self.locking.closed(at);
        self.job_locks.closed(at);
        self.moving.closed(at);
        match connection.kind {
            // Only if this is still the slot's connection: a newer one may have replaced it.
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

    /// Publishes the condition of the shards for other threads, and wakes housekeeping when there
    /// is garbage for it.
    fn tell_condition(&mut self) {
        // Relaxed: a figure for `status` that orders no other memory.
        self.condition.inodes.store(self.shards.inodes(), Relaxed);
        self.shards.tell_trouble(&self.condition.trouble);
        if self.shards.note_garbage().contains(&self.shared.node()) {
            self.shared.nudge.give();
        }
    }
}

/// Returns the name of a file that each executor has for itself.
fn of_executor(name: &str, index: u8) -> String {
    if index == 0 { name.to_owned() } else { format!("{name}.{index}") }
}

/// Checks the permission to send the request, and applies it.
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

/// Checks whether the connection may put the request to the shard at all. The shard checks the
/// permissions of the user.
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
        // The client came back: its session stays.
        MetaOp::ExpireClient { client } if shared.clients.is_connected(*client) => {
            return Err(Errno::EBUSY);
        }
        _ => {}
    }
    Ok(())
}
