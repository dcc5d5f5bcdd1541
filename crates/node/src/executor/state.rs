//! An executor: a thread that owns shards of this node and the connections for their names. A
//! request therefore takes no lock and meets no other thread.
//!
//! A round drains the requests that have arrived, applies them, commits once, and only then
//! answers. Requests for durability (`Sync`) are answered after one fsync for all of them in the
//! round. Messages of other nodes are drained and applied as requests are; messages to other nodes
//! leave as answers do. A request that needs other nodes is answered in a later round.

use crate::clock::TransactionClock;
use crate::clock::current_time;
use crate::context::NodeContext;
use crate::cpu_follower::{self, CpuFollower};
use crate::executor::answer::RoundAnswer;
use crate::executor::delegations::Recall;
use crate::executor::handle::{ConnectionKind, ExecutorEvent, ExecutorHandle};
use crate::executor::holders_file::HoldersFile;
use crate::executor::job_locks::JobLocks;
use crate::executor::links::Links;
use crate::executor::lock_service::LockService;
use crate::executor::log_sync::LogSync;
use crate::executor::meta_connection::MetaConnection;
use crate::executor::migration_state::MigrationState;
use crate::executor::recalls::ServerRecalls;
use crate::executor::shards::ExecutorShards;
use crate::executor::table::ShardCondition;
use mio::{Poll, Token, Waker};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tatami_meta::{FjallStore, OutgoingMessage, Ticket};
use tatami_wire::delegation::RecallNotice;
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, ExecutorId};

/// How long a silent client keeps its delegations, and so the longest time for which it can delay
/// others.
const TERM: Duration = Duration::from_secs(5);
pub(super) const WAKER: Token = Token(usize::MAX);

/// See the module.
pub(crate) struct Executor {
    pub(super) shared: Arc<NodeContext>,
    /// The number of this executor.
    pub(super) here: ExecutorId,
    pub(super) shards: ExecutorShards<FjallStore>,
    pub(super) moving: MigrationState,
    pub(super) poll: Poll,
    pub(super) events: Receiver<ExecutorEvent>,
    pub(super) connections: Vec<Option<MetaConnection>>,
    pub(super) free_connections: Vec<usize>,
    /// The connection that speaks for a slot of a client: the latest one.
    pub(super) slot_connections: HashMap<(ClientId, u32), usize>,
    /// Connections that may have requests.
    pub(super) ready: Vec<usize>,
    /// The spare buffer for `ready`: the two are swapped each round, so that neither is allocated
    /// again.
    pub(super) ready_spare: Vec<usize>,
    pub(super) round: Vec<RoundAnswer>,
    pub(super) recalls: ServerRecalls,
    /// Answers that wait until other nodes have replied, by the ticket of their transaction.
    pub(super) waiting_answers: HashMap<Ticket, Vec<RoundAnswer>>,
    pub(super) links: Links,
    pub(super) clock: TransactionClock,
    pub(super) locking: LockService,
    pub(super) job_locks: JobLocks,
    pub(super) log_sync: LogSync,
    pub(super) handle: ExecutorHandle,
    pub(super) condition: Arc<ShardCondition>,
    /// Binds the thread to the CPU of its only client; made by the thread itself.
    pub(super) cpu: Option<CpuFollower>,
}

impl Executor {
    /// Makes an executor of `shards`, to be run by a thread of its own. Below `dir` it keeps the
    /// list of clients that may have delegations, and of those that may hold locks.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub(crate) fn new(
        shared: Arc<NodeContext>,
        index: u8,
        shards: ExecutorShards<FjallStore>,
        dir: &Path,
        condition: Arc<ShardCondition>,
    ) -> io::Result<(Executor, ExecutorHandle)> {
        let poll = Poll::new()?;
        let (handle, new) = ExecutorHandle::new(Waker::new(poll.registry(), WAKER)?);
        let here = ExecutorId { node: shared.settings.node(), index };
        let links = Links::new(shared.clone(), here, handle.clone());
        let moving = MigrationState::new(shared.map.current());
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
            cpu: None,
        };
        Ok((executor, handle))
    }

    /// Sends the messages to other nodes that may leave.
    pub(super) fn send_messages(&mut self, outs: Vec<OutgoingMessage>) {
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

    pub(super) fn send_recalls(&mut self) {
        for Recall { at, id, inos, entries } in self.recalls.take_recalls() {
            if let Some(connection) = &mut self.connections[at] {
                connection.queue_notification(&RecallNotice::Recall { id, inos, entries });
                self.flush_output(at);
            }
        }
    }

    pub(super) fn send_answers(&mut self, round: &mut Vec<RoundAnswer>) {
        let mut last = None;
        for RoundAnswer { to: at, seq, result, granted, ticket, .. } in round.drain(..) {
            // Without other executors nothing waits, unless a damaged disk has invented locks.
            let is_alone = !self.shards.are_spread();
            assert!(ticket.is_none() || is_alone, "an answer leaves that waits for other nodes");
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
    pub(super) fn flush_output(&mut self, at: usize) {
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

    pub(super) fn mark_ready(&mut self, at: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(at)
            && !connection.listed
        {
            connection.listed = true;
            self.ready.push(at);
        }
    }

    pub(super) fn drop_connection(&mut self, at: usize) {
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
            ConnectionKind::Recall => {
                self.recalls.close_connection(at, Some(client));
                if !self.recalls.may_delegate(client) {
                    self.shards.end_exclusive_of(client);
                }
            }
            ConnectionKind::Peer { from: other } | ConnectionKind::Link { to: other } => {
                self.links.remove_link(other, at)
            }
        }
        self.free_connections.push(at);
    }

    /// Publishes the condition of the shards for other threads, and wakes housekeeping when there
    /// is garbage for it.
    pub(super) fn publish_condition(&mut self) {
        // Relaxed: a figure for `status` that orders no other memory.
        self.condition.inodes.store(self.shards.inode_count(), Relaxed);
        self.shards.publish_trouble(&self.condition.trouble);
        if self.shards.take_garbage_nodes().contains(&self.shared.settings.node()) {
            self.shared.housekeeping_wake.wake_up();
        }
    }

    /// Runs the stores' background tasks on threads of their own: they can take long.
    pub(super) fn spawn_background_tasks(&mut self) {
        while let Some(chore) = self.shards.take_background_task() {
            let spawned = cpu_follower::spawn_unbound("tables", chore);
            if let Err(e) = spawned {
                tracing::error!(error = %e, "cannot start a thread for a store; it tries again");
            }
        }
    }

    /// Sends the messages that have waited for a connection.
    pub(super) fn send_queued(&mut self, at: usize, waiting: &[PeerMessage]) {
        if let Some(connection) = &mut self.connections[at]
            && !waiting.is_empty()
        {
            waiting.iter().for_each(|message| connection.queue_message(message));
            self.flush_output(at);
        }
    }
}

/// Returns the name of a file that each executor has for itself.
fn executor_file_name(name: &str, index: u8) -> String {
    if index == 0 { name.to_owned() } else { format!("{name}.{index}") }
}
