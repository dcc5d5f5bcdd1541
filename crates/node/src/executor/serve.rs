//! A round of an executor: drains the requests that have arrived, applies them, commits once, and
//! only then answers.

use crate::executor::answer::RoundAnswer;
use crate::executor::handle::ConnectionKind;
use crate::executor::locks::LockRequest;
use crate::executor::meta_connection::NoFrame;
use crate::executor::migration_state::IncomingLockRequest;
use crate::executor::request_check::check_and_apply;
use crate::executor::round;
use crate::executor::shards::ExecutorShards;
use crate::executor::state::Executor;
use std::time::Instant;
use tatami_meta::{FjallStore, OutgoingMessage};
use tatami_wire::admin::Durability;
use tatami_wire::delegation::{RecallCall, RecallNotice};
use tatami_wire::frame::FrameError;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::{Errno, ExecutorId};

/// Most requests in one round, and so in one commit.
const ROUND_MAX: usize = 1024;
/// Most requests of one connection in one round.
const ROUND_OF_ONE_MAX: usize = 16;
/// Most messages of one node in one round.
const MESSAGES_MAX: usize = 256;

impl Executor {
    /// Does one round: drains, applies, commits, answers.
    pub(super) fn run_round(&mut self) {
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
        self.recall_wanted_directories();
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
        let lasting =
            self.shared.settings.durability == Durability::Sync || self.shards.needs_sync();
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

    /// Sets those requests of a round aside that wait for other nodes, and brings in those that
    /// wait no longer. Returns the messages to other nodes; `None` if other nodes have no part in
    /// this round.
    pub(super) fn resume_waiting(
        &mut self,
        round: &mut Vec<RoundAnswer>,
    ) -> Option<Vec<OutgoingMessage>> {
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

    /// Queues the recalls of the round, and holds back the answers and messages that must wait for
    /// them.
    pub(super) fn apply_recalls(
        &mut self,
        round: &mut Vec<RoundAnswer>,
        outs: Option<Vec<OutgoingMessage>>,
    ) {
        let outs = match outs {
            None => {
                self.recalls.process_round(round);
                Vec::new()
            }
            Some(outs) => {
                // Other executors apply changes in an order that is not known here. The attributes
                // of each answer are compared with the current ones before they are delegated.
                let shards = &mut self.shards;
                self.recalls.process_spread_round(round, outs, shards)
            }
        };
        // Free messages first: peers can work while the clients answer their recalls.
        self.send_messages(outs);
        self.send_recalls();
    }

    /// Sends the answers and messages whose recalls have been answered.
    pub(super) fn send_released(&mut self) {
        let shards = &mut self.shards;
        let mut released = self.recalls.take_released(shards);
        self.send_answers(&mut released);
        let outs = self.recalls.take_released_messages();
        self.send_messages(outs);
    }

    /// Recalls the directories that clients have exclusively and for which operations of others
    /// wait.
    fn recall_wanted_directories(&mut self) {
        let wanted = self.shards.take_wanted_directories();
        if wanted.is_empty() {
            return;
        }
        for (dir, client) in wanted {
            if !self.recalls.recall_directory(client, dir) {
                self.shards.end_exclusive(dir, client);
            }
        }
        self.send_recalls();
    }

    /// Handles the messages of a client on its recall connection.
    pub(super) fn handle_recall_calls(&mut self, at: usize) {
        let mut freed = false;
        while let Some(connection) = &mut self.connections[at] {
            let client = connection.client();
            match connection.next_recall_call() {
                Ok(RecallCall::KeepAlive) => {
                    // Both clocks: the term of its delegations, and the lease of its session.
                    self.recalls.renew_term(client);
                    self.shared.connections.clients.record_alive(client);
                    let millis = self.recalls.term().as_millis() as u32;
                    let lease =
                        self.shared.settings.lease.as_millis().min(u128::from(u32::MAX)) as u32;
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
                Ok(RecallCall::Returned(id)) => {
                    for ino in self.recalls.record_return(client, id) {
                        freed |= self.shards.exclusive_holder(ino) == Some(client);
                        self.shards.end_exclusive(ino, client);
                    }
                }
                Ok(RecallCall::OpenForReading(inos)) => self.shards.record_opens(client, &inos),
                Err(NoFrame::None | NoFrame::Paused) => break,
                Err(NoFrame::Broken(e)) => {
                    tracing::debug!(peer = %connection.peer, error = %e, "recall connection ended");
                    self.drop_connection(at);
                }
            }
        }
        // Once for all messages of the client: a returned delegation may free operations and
        // answers of other clients.
        if freed {
            self.shards.run_due_work(self.clock.now());
        }
        self.send_released();
    }

    /// Receives messages of another executor.
    pub(super) fn drain_messages(&mut self, at: usize, from: ExecutorId) {
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
    pub(super) fn drain_requests(&mut self, at: usize) {
        for _ in 0..ROUND_OF_ONE_MAX {
            let Some(connection) = &mut self.connections[at] else { return };
            match connection.next_request() {
                Ok((seq, MetaCall { op: MetaOp::Locks { ino, session, op }, shard, cred })) => {
                    let trusted = connection.peer.is_trusted();
                    // The user that the handshake bound to the connection wins over the one that
                    // the request names.
                    let cred = connection.peer.bound_user().cloned().unwrap_or(cred);
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
                    if let Some(follower) = &mut self.cpu {
                        follower.note_request(connection.client(), connection.sender_cpu);
                    }
                    if let MetaOp::HoldDirectory { dir, .. } = &call.op {
                        let client = connection.client();
                        let is_taken =
                            self.shards.exclusive_holder(*dir).is_some_and(|by| by != client);
                        if is_taken || !self.recalls.may_hold_directory(client, *dir) {
                            self.round.push(RoundAnswer::new(at, seq, Err(Errno::EBUSY), None));
                            continue;
                        }
                    }
                    let mut answer = check_and_apply(
                        &self.shared.connections.clients,
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
                        if delegates {
                            attach_inline_bytes(&mut answer, &mut self.shards);
                        }
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
    pub(super) fn merge_lock_clients(&mut self, answer: &mut RoundAnswer) {
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
}

/// Adds the bytes beside the inode to the reply to an open for reading, so that the client needs no
/// request to read them. No other request has run since the open, so bytes and attributes belong
/// together.
fn attach_inline_bytes(answer: &mut RoundAnswer, shards: &mut ExecutorShards<FjallStore>) {
    if let Some((_, MetaCall { op: MetaOp::Open { access, .. }, .. })) = &answer.request
        && access.read
        && let Ok(MetaReply::Opened { attr, cap }) = &answer.result
        && attr.layout.is_inline()
        && attr.size > 0
        && let Some(bytes) = shards.inline_bytes(attr.ino)
    {
        let (attr, cap, bytes) = (Box::new(attr.clone()), *cap, bytes.into());
        answer.result = Ok(MetaReply::OpenedInline { attr, cap, bytes });
    }
}
