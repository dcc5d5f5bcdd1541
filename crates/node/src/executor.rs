//! An executor: a thread that owns shards of this node and the connections for their names. A
//! request therefore takes no lock and meets no other thread.
//!
//! A round drains the requests that have arrived, applies them, commits once, and only then
//! answers. Requests for durability (`Sync`) are answered after one fsync for all of them in the
//! round. Messages of other nodes are drained and applied as requests are; messages to other nodes
//! leave as answers do. A request that needs other nodes is answered in a later round.

use crate::accept::ConnectionAdmission;
use crate::clock::TransactionClock;
use crate::delegations::Recall;
use crate::executors::ShardCondition;
use crate::holders_file::HoldersFile;
use crate::job_locks::JobLocks;
use crate::links::Links;
use crate::lock_service::LockService;
use crate::locks::{self, LockRequest};
use crate::log_sync::LogSync;
use crate::meta_connection::{ConnectionKind, MetaConnection, NoFrame};
use crate::migration::{IncomingLockRequest, MigrationState};
use crate::peer::PeerIdentity;
use crate::recalls::ServerRecalls;
use crate::request_check::check_and_apply;
use crate::round::{self, RoundAnswer};
use crate::shards::ExecutorShards;
use crate::shared::{NodeShared, current_time};
use crate::stream::SocketStream;
use mio::{Events, Poll, Token, Waker};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tatami_meta::{FjallStore, OutgoingMessage, Ticket};
use tatami_wire::admin::{ClusterMap, Durability};
use tatami_wire::delegation::{RecallCall, RecallNotice};
use tatami_wire::frame::FrameError;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Errno, ExecutorId};

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
const ROOM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 1024;

const WAKER: Token = Token(usize::MAX);

/// A connection that has passed its handshake.
pub(crate) struct NewConnection {
    pub(crate) stream: Arc<SocketStream>,
    pub(crate) peer: PeerIdentity,
    pub(crate) kind: ConnectionKind,
    pub(crate) admission: Option<ConnectionAdmission>,
}

/// A message of another thread to the executor.
enum ExecutorEvent {
    Connection(NewConnection),
    /// The connection to another executor; `None` if it could not be made.
    Link(ExecutorId, Option<Arc<SocketStream>>),
    /// The shard map of another executor of the node.
    Map(Arc<ClusterMap>),
    /// The result of the log's sync.
    Synced(io::Result<()>),
    /// An order, and the channel for its answer.
    Order(ExecutorOrder, Sender<Result<(), Errno>>),
}

/// An order about shards.
#[derive(Clone)]
pub(crate) enum ExecutorOrder {
    /// See [`AdminCall::MergeMap`](tatami_wire::admin::AdminCall).
    MergeMap(Box<ClusterMap>),
    /// See [`AdminCall::MigrateShards`](tatami_wire::admin::AdminCall).
    MoveShards { first: u16, count: u16, to: ExecutorId },
}

/// How other threads reach the executor.
#[derive(Clone)]
pub(crate) struct ExecutorHandle {
    events: Sender<ExecutorEvent>,
    waker: Arc<Waker>,
}

impl ExecutorHandle {
    /// Hands a connection over. If the executor has ended, the connection closes.
    pub(crate) fn hand_over(&self, connection: NewConnection) {
        self.send_event(ExecutorEvent::Connection(connection));
    }

    /// Hands over a connection to another executor, or reports that there is none.
    pub(crate) fn hand_over_link(&self, to: ExecutorId, link: Option<Arc<SocketStream>>) {
        self.send_event(ExecutorEvent::Link(to, link));
    }

    /// Hands over the shard map of another executor of the node.
    pub(crate) fn send_map(&self, map: Arc<ClusterMap>) {
        self.send_event(ExecutorEvent::Map(map));
    }

    /// Gives an order. If the executor has ended, `answer` is dropped.
    pub(crate) fn send_order(&self, order: ExecutorOrder, answer: Sender<Result<(), Errno>>) {
        self.send_event(ExecutorEvent::Order(order, answer));
    }

    fn send_event(&self, news: ExecutorEvent) {
        if self.events.send(news).is_ok() {
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
    pub(crate) shared: Arc<NodeShared>,
    /// The number of this executor.
    pub(crate) here: ExecutorId,
    pub(crate) shards: ExecutorShards<FjallStore>,
    pub(crate) moving: MigrationState,
    poll: Poll,
    events: Receiver<ExecutorEvent>,
    pub(crate) connections: Vec<Option<MetaConnection>>,
    free_connections: Vec<usize>,
    /// The connection that speaks for a slot of a client: the latest one.
    slot_connections: HashMap<(ClientId, u32), usize>,
    /// Connections that may have requests.
    ready: Vec<usize>,
    /// The spare buffer for `ready`: the two are swapped each round, so that neither is allocated
    /// again.
    ready_spare: Vec<usize>,
    pub(crate) round: Vec<RoundAnswer>,
    pub(crate) recalls: ServerRecalls,
    /// Answers that wait until other nodes have replied, by the ticket of their transaction.
    waiting_answers: HashMap<Ticket, Vec<RoundAnswer>>,
    pub(crate) links: Links,
    pub(crate) clock: TransactionClock,
    pub(crate) locking: LockService,
    pub(crate) job_locks: JobLocks,
    log_sync: LogSync,
    handle: ExecutorHandle,
    condition: Arc<ShardCondition>,
}

impl Executor {
    /// Makes an executor of `shards`, to be run by a thread of its own. Below `dir` it keeps the
    /// list of clients that may have delegations, and of those that may hold locks.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub(crate) fn new(
        shared: Arc<NodeShared>,
        index: u8,
        shards: ExecutorShards<FjallStore>,
        dir: &Path,
        condition: Arc<ShardCondition>,
    ) -> io::Result<(Executor, ExecutorHandle)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, new) = channel();
        let handle = ExecutorHandle { events: sender, waker };
        let here = ExecutorId { node: shared.node(), index };
        let links = Links::new(shared.clone(), here, handle.clone());
        let moving = MigrationState::new(shared.map());
        let executor = Executor {
            shared,
            here,
            moving,
            shards,
            poll,
            events: new,
            connections: Vec::new(),
            free_connections: Vec::new(),
            slot_connections: HashMap::new(),
            ready: Vec::new(),
            ready_spare: Vec::new(),
            round: Vec::new(),
            recalls: ServerRecalls::new(
                TERM,
                HoldersFile::at_path(dir.join(executor_file_name("holders", index))),
            ),
            locking: LockService::new(
                HoldersFile::at_path(dir.join(executor_file_name("lockers", index))),
                current_time(),
            ),
            job_locks: JobLocks::default(),
            waiting_answers: HashMap::new(),
            links,
            clock: TransactionClock::new(),
            log_sync: LogSync::default(),
            handle: handle.clone(),
            condition,
        };
        Ok((executor, handle))
    }

    /// Runs until the node ends; then returns the shards. The caller syncs and closes them.
    pub(crate) fn run(mut self) -> ExecutorShards<FjallStore> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        // Before the first event: `status`, the stores' background tasks and the shard map must be
        // current even if no request ever comes.
        self.publish_condition();
        self.spawn_background_tasks();
        self.request_maps();
        while !self.shared.stop.is_set() {
            let timeout = self.sleep_time();
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
                    self.handle_events();
                    continue;
                }
                let at = event.token().0;
                if event.is_writable() {
                    self.flush_output(at);
                }
                if let Some(Some(connection)) = self.connections.get_mut(at) {
                    let ended = event.is_read_closed() || event.is_error();
                    connection.record_event(event.is_readable(), ended);
                    self.mark_ready(at);
                }
            }
            // Late clients go first, so that this round can release the answers that waited for
            // them.
            self.expire_holders();
            if self.shards.is_full() {
                self.shards.check_for_room();
                self.publish_condition();
                self.spawn_background_tasks();
            }
            // After the round: locks that the round freed are granted now, and the log's sync is
            // due from its commit.
            self.run_round();
            self.send_lock_notices();
            self.start_log_sync();
        }
        self.shards
    }

    /// Returns how long the executor may sleep; `None` stands for ever.
    fn sleep_time(&mut self) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let left = match self.recalls.closed_until() {
            Some(until) => left(until),
            // Connections have more requests than the last round could take, so the executor does
            // not sleep.
            None if !self.ready.is_empty() => return Some(Duration::ZERO),
            None => {
                let due = self.shards.next_deadline().map(|due| self.clock.time_until(due));
                let room = self.shards.is_full().then_some(ROOM_CHECK_INTERVAL);
                let here = [
                    self.recalls.next_deadline(),
                    self.locking.next_deadline(),
                    self.job_locks.next_deadline(),
                    self.log_sync.next_due(),
                ];
                here.into_iter().flatten().map(left).chain(due).chain(room).min()?
            }
        };
        // Rounded up: epoll counts whole milliseconds and would wake before the deadline otherwise.
        Some(left + Duration::from_millis(1))
    }

    /// Closes the recall connections of clients that do not answer.
    fn expire_holders(&mut self) {
        if self.recalls.next_deadline().is_none_or(|deadline| Instant::now() < deadline) {
            return;
        }
        for at in self.recalls.expire_terms() {
            if let Some(connection) = &self.connections[at] {
                let (peer, client) = (&connection.peer, connection.client());
                tracing::warn!(%peer, %client, "names were not given back in time; others go on");
            }
            self.drop_connection(at);
        }
        self.send_released();
    }

    /// Answers requests about locks that need not wait any more, and notifies clients of granted
    /// waits and recalled locks.
    fn send_lock_notices(&mut self) {
        let mut answers = self.locking.retry_deferred();
        if self.locking.next_deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            answers.extend(self.locking.take_overdue());
        }
        let now = Instant::now();
        if self.job_locks.next_deadline().is_some_and(|deadline| deadline <= now) {
            answers.extend(self.job_locks.take_overdue(now));
        }
        self.send_answers(&mut answers);
        for (client, locks::ClientLockNotices { wanted, ready }) in self.locking.take_notices() {
            // A client without a recall connection asks again by itself, or reclaims its locks when
            // it is back.
            if let Some(at) = self.recalls.connection(client)
                && let Some(connection) = &mut self.connections[at]
            {
                connection
                    .queue_notification(&RecallNotice::LockNotices { recalled: wanted, ready });
                self.flush_output(at);
            }
        }
    }

    fn handle_events(&mut self) {
        while let Ok(news) = self.events.try_recv() {
            match news {
                ExecutorEvent::Connection(new) => self.add_connection(new),
                ExecutorEvent::Map(map) => self.merge_map(&map),
                ExecutorEvent::Synced(result) => {
                    if self.shards.end_sync(result) {
                        self.log_sync.end_sync();
                    }
                    self.publish_condition();
                }
                ExecutorEvent::Order(order, answer) => {
                    // The thread that gave the order may have gone.
                    let _ = answer.send(self.handle_order(order));
                }
                ExecutorEvent::Link(to, link) => {
                    let new = link.and_then(|stream| {
                        let peer = PeerIdentity::from_stream(&stream).ok()?;
                        let kind = ConnectionKind::Link { to };
                        Some(NewConnection { stream, peer, kind, admission: None })
                    });
                    match new {
                        Some(new) => self.add_connection(new),
                        None => self.links.record_failure(to),
                    }
                }
            }
        }
    }

    fn add_connection(&mut self, new: NewConnection) {
        let kind = new.kind;
        let Some((at, client)) = self.register_connection(new) else {
            if let ConnectionKind::Link { to } = kind {
                self.links.record_failure(to);
            }
            return;
        };
        // A client that connects again has given up the old connection.
        let old = match kind {
            ConnectionKind::Requests { slot } => self.slot_connections.insert((client, slot), at),
            ConnectionKind::Recall => match self.recalls.open_connection(client, at) {
                Ok(old) => old,
                Err(error) => {
                    tracing::error!(%client, %error, "nothing is delegated: check the disk");
                    Some(at)
                }
            },
            ConnectionKind::Peer { from } => {
                // Messages that were queued while there was no connection leave first, in their
                // order.
                let waiting = self.links.add_accepted_link(from, at);
                self.send_queued(at, &waiting);
                None
            }
            ConnectionKind::Link { to } => match self.links.add_own_link(to, at) {
                Some(waiting) => {
                    self.send_queued(at, &waiting);
                    None
                }
                None => Some(at),
            },
        };
        if let Some(old) = old {
            self.drop_connection(old);
        }
        self.mark_ready(at);
    }

    /// Sends the messages that have waited for a connection.
    fn send_queued(&mut self, at: usize, waiting: &[PeerMessage]) {
        if let Some(connection) = &mut self.connections[at]
            && !waiting.is_empty()
        {
            waiting.iter().for_each(|message| connection.queue_message(message));
            self.flush_output(at);
        }
    }

    /// Registers a connection with the poll. Returns its index and its client.
    fn register_connection(&mut self, new: NewConnection) -> Option<(usize, ClientId)> {
        let NewConnection { stream, peer, kind, admission } = new;
        let at = self.free_connections.pop().unwrap_or(self.connections.len());
        if at == self.connections.len() {
            self.connections.push(None);
        }
        let connection = MetaConnection::new(stream, peer, kind, admission);
        if let Err(e) = connection.register(self.poll.registry(), Token(at)) {
            tracing::error!(error = %e, "cannot watch a connection; it was dropped");
            self.free_connections.push(at);
            return None;
        }
        let client = connection.client();
        self.connections[at] = Some(connection);
        Some((at, client))
    }

    fn mark_ready(&mut self, at: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(at)
            && !connection.listed
        {
            connection.listed = true;
            self.ready.push(at);
        }
    }

    /// Does one round: drains, applies, commits, answers.
    fn run_round(&mut self) {
        // After a restart, clients may still answer from delegations of the daemon before. No
        // request is served until they have come back or their term is over. Recall connections are
        // served all the time, or they could never come back.
        let closed = self.recalls.closed_until().is_some();
        if self.shards.are_spread() && !closed {
            let now = self.clock.now();
            self.shards.run_due_work(now);
            self.handle_move_events();
        }
        let room = std::mem::take(&mut self.ready_spare);
        let mut ready = std::mem::replace(&mut self.ready, room);
        for at in ready.drain(..) {
            let Some(connection) = &mut self.connections[at] else { continue };
            if connection.kind == ConnectionKind::Recall {
                connection.listed = false;
                self.handle_recall_calls(at);
                continue;
            }
            if closed {
                // Stays listed: no further event would come for bytes that have already arrived.
                self.ready.push(at);
                continue;
            }
            connection.listed = false;
            match connection.kind {
                ConnectionKind::Peer { from: other } | ConnectionKind::Link { to: other } => {
                    self.drain_messages(at, other);
                }
                _ if self.round.len() >= ROUND_MAX => self.mark_ready(at),
                _ => self.drain_requests(at),
            }
        }
        self.ready_spare = ready;
        if !closed {
            self.advance_migration();
        }
        let changed = self.shards.is_dirty();
        if self.round.is_empty() && !changed {
            return;
        }
        // The commit goes before every answer and message: none may leave that a crash could take
        // back.
        self.shared.counters.meta_requests.add(self.round.len() as u64);
        let mut round = std::mem::take(&mut self.round);
        round::commit_round(&mut self.shards, &mut round);
        if changed {
            self.log_sync.record_commit(Instant::now());
        }
        // After the commit: votes and outcomes of transactions refer to records that are in the log
        // now.
        let mut outs = self.resume_waiting(&mut round);
        self.job_locks.process_round(&mut round, |ino, open| self.shards.job_holder(ino, open));
        let lasting = self.shared.durability == Durability::Sync || self.shards.needs_sync();
        if changed && lasting {
            match round::sync_round(&mut self.shards, &mut round, true) {
                true => self.log_sync.record_full_sync(),
                // A peer must not learn of a change that a power cut can undo, so the messages are
                // dropped. The store refuses writes from now on.
                false => outs = Some(Vec::new()),
            }
            self.apply_recalls(&mut round, outs);
            self.send_answers(&mut round);
        } else {
            let mut waiting: Vec<_> =
                round.extract_if(.., |answer| answer.waits_for_sync()).collect();
            self.apply_recalls(&mut round, outs);
            // Only `Sync` requests wait for the disk. All other answers leave before the fsync.
            self.send_answers(&mut round);
            if !waiting.is_empty() {
                if round::sync_round(&mut self.shards, &mut waiting, false) {
                    self.log_sync.record_full_sync();
                }
                self.send_answers(&mut waiting);
            }
        }
        // Keeps the buffer for the next round.
        self.round = round;
        // The map only now: it may name shards whose move this round has committed.
        self.publish_map();
        self.publish_condition();
        self.spawn_background_tasks();
    }

    /// Begins to sync the log, if that is due, on a thread of its own: an fsync can take long.
    fn start_log_sync(&mut self) {
        let now = Instant::now();
        if self.log_sync.next_due().is_none_or(|due| now < due) {
            return;
        }
        // Begins the interval even if the sync fails: a failing disk is not tried in a loop.
        self.log_sync.begin_sync(now);
        match self.shards.begin_sync() {
            Ok(Some(work)) => {
                let handle = self.handle.clone();
                let run = move || handle.send_event(ExecutorEvent::Synced(work()));
                if let Err(error) = std::thread::Builder::new().name("log".to_owned()).spawn(run) {
                    // The closure is lost with the thread that could not start, so the executor
                    // syncs by itself.
                    tracing::warn!(%error, "no thread for the log; it is synced here");
                    if self.shards.sync().is_ok() {
                        self.log_sync.end_sync();
                    }
                }
            }
            Ok(None) => self.log_sync.end_sync(),
            // The store refuses all writes from now on. The sync that was begun never ends.
            Err(_) => {}
        }
        self.publish_condition();
    }

    /// Runs the stores' background tasks on threads of their own: they can take long.
    fn spawn_background_tasks(&mut self) {
        while let Some(chore) = self.shards.take_background_task() {
            let spawned = std::thread::Builder::new().name("tables".to_owned()).spawn(chore);
            if let Err(e) = spawned {
                tracing::error!(error = %e, "cannot start a thread for a store; it tries again");
            }
        }
    }

    /// Sets those requests of a round aside that wait for other nodes, and brings in those that
    /// wait no longer. Returns the messages to other nodes; `None` if other nodes have no part in
    /// this round.
    fn resume_waiting(&mut self, round: &mut Vec<RoundAnswer>) -> Option<Vec<OutgoingMessage>> {
        if !self.shards.are_spread() {
            // Without shards on other executors no transaction exists, and the round keeps its
            // order.
            return None;
        }
        for answer in round.extract_if(.., |answer| answer.ticket.is_some()) {
            if let Some(ticket) = answer.ticket {
                self.waiting_answers.entry(ticket).or_default().push(answer);
            }
        }
        let (outs, finished) = self.shards.take_ready();
        if outs.is_empty() && finished.is_empty() {
            return None;
        }
        for finished in finished {
            for mut answer in self.waiting_answers.remove(&finished.ticket).unwrap_or_default() {
                let client = answer.request.as_ref().map(|(ctx, _)| ctx.client);
                let delegates = client.is_some_and(|client| self.recalls.may_delegate(client));
                answer.set_outcome(&finished, delegates);
                round.push(answer);
            }
        }
        Some(outs)
    }

    /// Sends the messages to other nodes that may leave.
    pub(crate) fn send_messages(&mut self, outs: Vec<OutgoingMessage>) {
        let mut spoken = Vec::new();
        for OutgoingMessage { to, message, .. } in outs {
            if let Some((at, message)) = self.links.route_message(to, message)
                && let Some(Some(connection)) = self.connections.get_mut(at)
            {
                connection.queue_message(&message);
                // One `send` a connection, after all messages: fewer system calls.
                if !spoken.contains(&at) {
                    spoken.push(at);
                }
            }
        }
        spoken.into_iter().for_each(|at| self.flush_output(at));
    }

    /// Queues the recalls of the round, and holds back the answers and messages that must wait for
    /// them.
    fn apply_recalls(&mut self, round: &mut Vec<RoundAnswer>, outs: Option<Vec<OutgoingMessage>>) {
        let outs = match outs {
            None => {
                self.recalls.process_round(round);
                Vec::new()
            }
            Some(outs) => {
                // Other executors apply changes in an order that is not known here. The attributes
                // of each answer are compared with the current ones before they are delegated.
                let shards = &mut self.shards;
                self.recalls.process_spread_round(round, outs, |attr| shards.is_current(attr))
            }
        };
        // Free messages first: peers can work while the clients answer their recalls.
        self.send_messages(outs);
        self.send_recalls();
    }

    pub(crate) fn send_recalls(&mut self) {
        for Recall { at, id, inos } in self.recalls.take_recalls() {
            if let Some(connection) = &mut self.connections[at] {
                connection.queue_notification(&RecallNotice::Recall { id, inos });
                self.flush_output(at);
            }
        }
    }

    /// Sends the answers and messages whose recalls have been answered.
    fn send_released(&mut self) {
        let shards = &mut self.shards;
        let mut released = self.recalls.take_released(|attr| shards.is_current(attr));
        self.send_answers(&mut released);
        let outs = self.recalls.take_released_messages();
        self.send_messages(outs);
    }

    /// Handles the messages of a client on its recall connection.
    fn handle_recall_calls(&mut self, at: usize) {
        while let Some(connection) = &mut self.connections[at] {
            let client = connection.client();
            match connection.next_recall_call() {
                Ok(RecallCall::KeepAlive) => {
                    // Both clocks: the term of its delegations, and the lease of its session.
                    self.recalls.renew_term(client);
                    self.shared.clients.record_alive(client);
                    let millis = self.recalls.term().as_millis() as u32;
                    let lease = self.shared.lease.as_millis().min(u128::from(u32::MAX)) as u32;
                    let epoch = self.moving.map.epoch;
                    // Rounded up. Changes younger than this may be lost in a power cut.
                    let undone =
                        self.shards.unsynced_since().map(|since| self.clock.time_since(since));
                    let lag = self.log_sync.lag(Instant::now()).max(undone.unwrap_or_default());
                    let lasting =
                        u32::try_from(lag.as_millis()).map_or(u32::MAX, |ms| ms.saturating_add(1));
                    connection.queue_notification(&RecallNotice::Term {
                        term_millis: millis,
                        lease_millis: lease,
                        epoch,
                        durable_millis: lasting,
                        space: self.shared.disk_space().ok(),
                    });
                    self.flush_output(at);
                }
                Ok(RecallCall::Returned(id)) => self.recalls.record_return(client, id),
                Ok(RecallCall::OpenForReading(inos)) => self.shards.record_opens(client, &inos),
                Err(NoFrame::None | NoFrame::Paused) => break,
                Err(NoFrame::Broken(e)) => {
                    tracing::debug!(peer = %connection.peer, error = %e, "recall connection ended");
                    self.drop_connection(at);
                }
            }
        }
        // Once for all messages of the client: a returned delegation may free answers of other
        // clients.
        self.send_released();
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
                    self.receive_message(now, from, message);
                }
                Err(NoFrame::None | NoFrame::Paused) => return,
                Err(NoFrame::Broken(e)) => {
                    tracing::debug!(executor = %from, error = %e, "it says nothing more");
                    return self.drop_connection(at);
                }
            }
        }
        self.mark_ready(at);
    }

    /// Takes requests from one connection and applies them.
    fn drain_requests(&mut self, at: usize) {
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
                    let question = LockRequest { client, session, ino, op, delegates };
                    self.handle_lock_request(IncomingLockRequest {
                        at,
                        seq,
                        shard,
                        trusted,
                        cred,
                        question,
                    });
                }
                Ok((seq, call)) => {
                    let mut answer = check_and_apply(
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
                        (self.recalls.has_clients(), answer.ticket, &answer.request)
                    {
                        let delegates = self.recalls.may_delegate(ctx.client);
                        answer.touched = self.shards.touched_inodes(call, delegates);
                    }
                    self.merge_lock_clients(&mut answer);
                    self.round.push(answer);
                }
                Err(NoFrame::None) => return,
                // The connection is listed again when its answers have been sent.
                Err(NoFrame::Paused) => return,
                Err(NoFrame::Broken(e)) => {
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
            self.mark_ready(at);
        }
    }

    /// Adds the clients that only the lock table knows, and expires a client's locks with its
    /// session.
    fn merge_lock_clients(&mut self, answer: &mut RoundAnswer) {
        let Some((_, MetaCall { op, .. })) = &answer.request else { return };
        match (op, &mut answer.result) {
            (MetaOp::ListClients, Ok(MetaReply::Clients(clients))) => {
                clients.extend(self.locking.clients());
                clients.sort_unstable();
                clients.dedup();
            }
            (MetaOp::ExpireClient { client }, Ok(_)) => self.locking.expire_client(*client),
            _ => {}
        }
    }

    fn send_answers(&mut self, round: &mut Vec<RoundAnswer>) {
        let mut last = None;
        for RoundAnswer { to: at, seq, result, granted, .. } in round.drain(..) {
            // Answers to one connection follow each other, so one `send` serves them all.
            if let Some(before) = last.replace(at).filter(|before| *before != at) {
                self.flush_output(before);
            }
            if let Some(connection) = &mut self.connections[at] {
                connection.queue_answer(seq, &result, granted.as_ref());
            }
        }
        if let Some(at) = last {
            self.flush_output(at);
        }
    }

    /// Sends buffered answers, and lists a connection that paused until they had left.
    pub(crate) fn flush_output(&mut self, at: usize) {
        let Some(Some(connection)) = self.connections.get_mut(at) else { return };
        if let Err(e) = connection.send_output(self.poll.registry(), Token(at)) {
            tracing::debug!(peer = %connection.peer, error = %e, "connection dropped");
            self.drop_connection(at);
            return;
        }
        if connection.may_have_request() {
            self.mark_ready(at);
        }
    }

    fn drop_connection(&mut self, at: usize) {
        let Some(connection) = self.connections[at].take() else { return };
        connection.deregister(self.poll.registry());
        let client = connection.client();
        // Nobody would read these answers. The requests themselves go on and keep their slots'
        // results.
        self.waiting_answers.retain(|_, answers| {
            answers.retain(|answer| answer.to != at);
            !answers.is_empty()
        });
        self.locking.drop_connection(at);
        self.job_locks.drop_connection(at);
        self.moving.drop_connection(at);
        match connection.kind {
            // Only if this is still the slot's connection: a newer one may have replaced it.
            ConnectionKind::Requests { slot }
                if self.slot_connections.get(&(client, slot)) == Some(&at) =>
            {
                self.slot_connections.remove(&(client, slot));
                self.recalls.close_connection(at, None);
            }
            ConnectionKind::Requests { .. } => self.recalls.close_connection(at, None),
            ConnectionKind::Recall => self.recalls.close_connection(at, Some(client)),
            ConnectionKind::Peer { from: other } | ConnectionKind::Link { to: other } => {
                self.links.remove_link(other, at)
            }
        }
        self.free_connections.push(at);
    }

    /// Publishes the condition of the shards for other threads, and wakes housekeeping when there
    /// is garbage for it.
    fn publish_condition(&mut self) {
        // Relaxed: a figure for `status` that orders no other memory.
        self.condition.inodes.store(self.shards.inode_count(), Relaxed);
        self.shards.publish_trouble(&self.condition.trouble);
        if self.shards.take_garbage_nodes().contains(&self.shared.node()) {
            self.shared.housekeeping_wake.wake_up();
        }
    }
}

/// Returns the name of a file that each executor has for itself.
fn executor_file_name(name: &str, index: u8) -> String {
    if index == 0 { name.to_owned() } else { format!("{name}.{index}") }
}
