//! The loop of an executor: it waits for events, serves a round, and syncs the log when that is
//! due.

use crate::cpu_follower::{self, CpuFollower};
use crate::executor::handle::{ConnectionKind, ExecutorEvent, NewConnection};
use crate::executor::locks::{self};
use crate::executor::meta_connection::MetaConnection;
use crate::executor::shards::ExecutorShards;
use crate::executor::state::{Executor, WAKER};
use mio::{Events, Token};
use std::io;
use std::time::{Duration, Instant};
use tatami_meta::FjallStore;
use tatami_wire::ClientId;
use tatami_wire::delegation::RecallNotice;

/// Pause between two checks whether a full disk has room again, when no request comes.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 1024;

impl Executor {
    /// Runs until the node ends; then returns the shards. The caller syncs and closes them.
    pub(super) fn run(mut self) -> ExecutorShards<FjallStore> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        self.cpu = Some(CpuFollower::of_this_thread());
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
    pub(super) fn sleep_time(&mut self) -> Option<Duration> {
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
    pub(super) fn expire_holders(&mut self) {
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
    pub(super) fn send_lock_notices(&mut self) {
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

    pub(super) fn handle_events(&mut self) {
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
                        let peer = stream.identify_peer().ok()?;
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

    pub(super) fn add_connection(&mut self, new: NewConnection) {
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
            ConnectionKind::Recall => {
                // A client that connects again has nothing of before.
                self.shards.end_exclusive_of(client);
                match self.recalls.open_connection(client, at) {
                    Ok(old) => old,
                    Err(error) => {
                        tracing::error!(%client, %error, "nothing is delegated: check the disk");
                        Some(at)
                    }
                }
            }
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

    /// Registers a connection with the poll. Returns its index and its client.
    pub(super) fn register_connection(&mut self, new: NewConnection) -> Option<(usize, ClientId)> {
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

    /// Begins to sync the log, if that is due, on a thread of its own: an fsync can take long.
    pub(super) fn start_log_sync(&mut self) {
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
                if let Err(error) = cpu_follower::spawn_unbound("log", run) {
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
}
