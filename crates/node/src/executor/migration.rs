//! Shard migration, as far as an executor is concerned: delegations and locks of the inodes, the
//! map, and the nodes and clients that must learn it. `tatami_meta` moves the records and messages.

use crate::clock::current_time;
use crate::executor::answer::RoundAnswer;
use crate::executor::handle::ExecutorOrder;
use crate::executor::locks::LockRequest;
use crate::executor::migration_state::IncomingLockRequest;
use crate::executor::shards::ExecutorShards;
use crate::executor::state::Executor;
use std::collections::BTreeSet;
use std::sync::Arc;
use tatami_meta::{Applied, FjallStore, MoveEvent, MoveRequest, OperationContext, OutgoingMessage};
use tatami_wire::admin::ClusterMap;
use tatami_wire::delegation::RecallNotice;
use tatami_wire::lock::{LockOp, LockOpReply};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{Access, ClientId, Cred, Errno, ExecutorId, Ino, NodeId, ShardId, Timestamp};

/// Most requests about locks that wait until a migration is over.
const LOCKS_MAX: usize = 16 * 1024;

impl Executor {
    /// Carries an order out, or begins to.
    pub(crate) fn handle_order(&mut self, order: ExecutorOrder) -> Result<(), Errno> {
        match order {
            ExecutorOrder::MergeMap(map) => {
                if map.volume != self.moving.map.volume {
                    return Err(Errno::EINVAL);
                }
                self.merge_map(&map);
                Ok(())
            }
            // A repeated order: the shards are here already.
            ExecutorOrder::MoveShards { to, .. } if to == self.here => Err(Errno::ESTALE),
            ExecutorOrder::MoveShards { first, count, to } => {
                if !self.moving.map.is_serving(to.node) {
                    return Err(Errno::ENXIO);
                }
                let now = self.clock.now();
                let meta = self.shards.meta_mut().ok_or(Errno::ESTALE)?;
                // A migration that failed reports its reason to the next order.
                match meta.take_move_failure() {
                    Some(errno) => Err(errno),
                    None => meta.begin_move(now, first, count, to),
                }
            }
        }
    }

    /// Merges the newer entries of another map.
    pub(crate) fn merge_map(&mut self, map: &ClusterMap) {
        let now = self.clock.now();
        match self.shards.meta_mut() {
            Some(meta) => {
                meta.merge_map(now, map);
                // The nodes are known at once. The owners of shards follow when the shards' own map
                // is on disk.
                let mut nodes = ClusterMap::clone(&self.moving.map);
                if nodes.merge_newer(&ClusterMap { moves: vec![0; map.moves.len()], ..map.clone() })
                {
                    self.set_map(nodes);
                }
                self.handle_move_events();
            }
            None => {
                let mut ours = ClusterMap::clone(&self.moving.map);
                if ours.merge_newer(map) {
                    self.set_map(ours);
                }
            }
        }
    }

    /// Receives a message of another executor.
    pub(crate) fn receive_message(
        &mut self,
        now: Timestamp,
        from: ExecutorId,
        message: PeerMessage,
    ) {
        if self.shards.is_empty() {
            match &message {
                // The first chunk of shards for an executor without a store: the store is made
                // before the chunk is applied.
                PeerMessage::CopyChunk { .. } => self.shards.create_store(&self.moving.map),
                PeerMessage::Map { map, ask } => {
                    self.merge_map(map);
                    // The sender asks for an answer only if this map has entries that the sender
                    // lacks.
                    if *ask && ClusterMap::clone(map).merge_newer(&self.moving.map) {
                        self.send_map(from, false);
                    }
                }
                _ => {}
            }
        }
        self.shards.receive_message(now, from, message);
        self.handle_move_events();
    }

    /// Handles the events of migrations, before any other step deals with the same shards.
    pub(crate) fn handle_move_events(&mut self) {
        let Some(meta) = self.shards.meta_mut() else { return };
        for event in meta.take_move_events() {
            match event {
                MoveEvent::MovedAway(first, count) => {
                    // The shards have left: delegations of them are the new owner's matter, and
                    // waiting clients must ask there.
                    self.recalls.stop_withholding();
                    self.moving.announce_map = true;
                    let epoch = self.moving.map.epoch + 1;
                    let answers = self.locking.forget_shards((first, count), epoch);
                    self.round.extend(answers);
                    let answers = self.job_locks.forget_shards((first, count), epoch);
                    self.round.extend(answers);
                }
                MoveEvent::MoveFailed => self.recalls.stop_withholding(),
                // On disk before the shards arrive: a crash in between must not forget these
                // lockers.
                MoveEvent::LockersAnnounced(lockers) => self.locking.announce_clients(&lockers),
                MoveEvent::Arrived(lockers) => self.locking.expect_clients(lockers),
            }
        }
    }

    /// Does the next step that a migration waits for.
    pub(crate) fn advance_migration(&mut self) {
        self.handle_move_events();
        let wants = self.shards.meta_mut().and_then(|meta| meta.pending_move_request());
        match wants {
            Some(MoveRequest::Recall(first, count)) => {
                // Repeated each round until every delegation is back. Only then may the records
                // leave: the new owner does not know the holders.
                for (dir, client) in self.shards.list_exclusive(first, count) {
                    if !self.recalls.recall_directory(client, dir) {
                        self.shards.end_exclusive(dir, client);
                    }
                }
                let back = self.recalls.withhold_shards((first, count));
                self.send_recalls();
                if back && let Some(meta) = self.shards.meta_mut() {
                    meta.recalls_done();
                }
            }
            Some(MoveRequest::ListLockers(first, count)) => {
                // The new owner grants no lock before these clients have reclaimed theirs.
                let lockers = self.locking.clients_with_locks((first, count));
                if let Some(meta) = self.shards.meta_mut() {
                    meta.provide_lockers(lockers);
                }
            }
            None => {}
        }
        if self.moving.deferred_locks.is_empty() {
            return;
        }
        // After the events above: a request whose shard has left is answered with the new map.
        for request in std::mem::take(&mut self.moving.deferred_locks) {
            self.handle_lock_request(request);
        }
    }

    /// Answers a request about locks, or lets it wait for the end of a migration.
    pub(crate) fn handle_lock_request(&mut self, request: IncomingLockRequest) {
        let IncomingLockRequest { at, seq, shard, trusted, ref cred, ref question } = request;
        // A reclaim covers all shards of this executor, so it waits for any migration, not only
        // that of its own file.
        let claims = matches!(question.op, LockOp::Reclaim { .. });
        let closing = self.shards.meta_mut().is_some_and(|meta| meta.is_closing());
        if self.shards.is_closed(shard) || claims && closing {
            if self.moving.deferred_locks.len() < LOCKS_MAX {
                self.moving.deferred_locks.push(request);
            } else {
                self.round.push(RoundAnswer::new(at, seq, Ok(MetaReply::TryLater), None));
            }
            return;
        }
        let refused = refuse_lock(&mut self.shards, shard, question.ino, trusted, cred)
            .or_else(|| self.refuse_reclaim(question));
        let answer = match refused {
            None => self.locking.handle_request(at, seq, request.question),
            Some(refused) => Some(RoundAnswer::new(at, seq, refused, None)),
        };
        self.round.extend(answer);
    }

    /// Refuses a reclaim of a client that does not know the executor's present shards: it may omit
    /// locks of the others.
    fn refuse_reclaim(&mut self, question: &LockRequest) -> Option<MetaResult> {
        let LockOp::Reclaim { shards, .. } = question.op else { return None };
        let (here, map) = (self.here, self.shards.map()?);
        let ours = map.shard_map()?.digest_shards(here);
        let again = LockOpReply::UnknownSession { reclaim: true };
        (shards != ours).then_some(Ok(MetaReply::Locks { session: 0, reply: again }))
    }

    /// Publishes a map that is on disk to the other threads, clients and nodes.
    pub(crate) fn publish_map(&mut self) {
        let Some(known) = self.shards.map().filter(|map| map.epoch != self.moving.seen_epoch)
        else {
            return;
        };
        // Set first: the map below is merged at most once for each epoch.
        self.moving.seen_epoch = known.epoch;
        let mut map = ClusterMap::clone(&self.moving.map);
        if map.merge_newer(known) {
            self.set_map(map);
        }
    }

    fn set_map(&mut self, map: ClusterMap) {
        tracing::info!(epoch = map.epoch, nodes = map.nodes.len(), "the map has changed");
        self.moving.map = Arc::new(map);
        // Threads of this node first, then clients: a client that asks again must meet the new map.
        self.shared.map.merge_newer(&self.moving.map);
        self.shared.executors.send_map(self.here.index, &self.moving.map);
        self.shared.housekeeping_wake.wake_up();
        let epoch = self.moving.map.epoch;
        for at in self.recalls.connections() {
            if let Some(Some(connection)) = self.connections.get_mut(at) {
                connection.queue_notification(&RecallNotice::Map { epoch });
                self.flush_output(at);
            }
        }
        if std::mem::take(&mut self.moving.announce_map) {
            self.send_map_to_nodes(self.moving.map.members().map(|node| node.id).collect(), false);
        }
    }

    /// Asks other nodes for their maps at the start: they may know more.
    pub(crate) fn request_maps(&mut self) {
        let serve = self.moving.map.first_shards().into_iter().map(|(_, executor)| executor.node);
        self.send_map_to_nodes(serve.collect(), true);
    }

    /// Sends the map to the first executor of other nodes, which hands it to the others there.
    fn send_map_to_nodes(&mut self, nodes: BTreeSet<NodeId>, ask: bool) {
        let others = nodes.into_iter().filter(|node| *node != self.here.node);
        let others: Vec<_> = others.map(ExecutorId::first_of_node).collect();
        others.into_iter().for_each(|to| self.send_map(to, ask));
    }

    fn send_map(&mut self, to: ExecutorId, ask: bool) {
        let map = Box::new(ClusterMap::clone(&self.moving.map));
        let message = PeerMessage::Map { map, ask };
        self.send_messages(vec![OutgoingMessage::new(to, message)]);
    }
}

/// Returns the answer to a client that asks the wrong node, or may not lock the file: an untrusted
/// client needs permission to read it.
fn refuse_lock(
    shards: &mut ExecutorShards<FjallStore>,
    shard: ShardId,
    ino: Ino,
    trusted: bool,
    cred: &Cred,
) -> Option<MetaResult> {
    if ino.owner_shard() != shard {
        return Some(Err(Errno::ESTALE));
    }
    if !shards.serves_shard(shard) {
        let epoch = shards.map().map_or(0, |map| map.epoch);
        return Some(Ok(MetaReply::WrongShard { epoch }));
    }
    if trusted {
        return None;
    }
    let op = MetaOp::Open { ino, access: Access::READ, registered: false };
    let call = MetaCall { shard, cred: cred.clone(), op };
    let ctx = OperationContext {
        now: current_time(),
        client: ClientId([0; 16]),
        slot: 0,
        seq: 0,
        trusted,
    };
    match shards.apply_request(&ctx, &call) {
        Applied::Done(result) => result.err().map(Err),
        // A transaction over several nodes changes the file; it is over soon.
        Applied::Pending(_) => Some(Ok(MetaReply::TryLater)),
    }
}
