//! Shard migration, as far as an executor is concerned: delegations and locks of the inodes, the
//! map, and the nodes and clients that must learn it. `tatami_meta` moves the records and messages.

use crate::executor::{Executor, Order};
use crate::locks::Question;
use crate::round::Answer;
use crate::shards::Shards;
use crate::shared::now;
use std::collections::BTreeSet;
use std::sync::Arc;
use tatami_meta::{Applied, Context, FjallStore, MoveEvent, MoveWants, Out};
use tatami_wire::admin::ClusterMap;
use tatami_wire::delegation::RecallNote;
use tatami_wire::lock::{LockOp, LockTold};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{Access, ClientId, Cred, Errno, ExecutorId, Ino, NodeId, ShardId, Timestamp};

/// Most requests about locks that wait until a migration is over.
const LOCKS_MAX: usize = 16 * 1024;

/// The state of migrations at an executor.
pub(crate) struct Moving {
    /// The map that all threads of the node have.
    pub(crate) map: Arc<ClusterMap>,
    /// The epoch of the shards' own map at the last check.
    seen: u64,
    /// Requests about locks that wait until a migration is over.
    locks: Vec<LockRequest>,
    /// All nodes must be informed of the map.
    tell: bool,
}

/// A request about locks, with the connection that it came on.
pub(crate) struct LockRequest {
    pub(crate) at: usize,
    pub(crate) seq: u64,
    pub(crate) shard: ShardId,
    pub(crate) trusted: bool,
    pub(crate) cred: Cred,
    pub(crate) question: Question,
}

impl Moving {
    pub(crate) fn new(map: Arc<ClusterMap>) -> Moving {
        Moving { map, seen: 0, locks: Vec::new(), tell: false }
    }

    /// Forgets the requests of a connection that has ended.
    pub(crate) fn closed(&mut self, at: usize) {
        self.locks.retain(|request| request.at != at);
    }
}

impl Executor {
    /// Carries an order out, or begins to.
    pub(crate) fn obey(&mut self, order: Order) -> Result<(), Errno> {
        match order {
            Order::Learn(map) => {
                if map.volume != self.moving.map.volume {
                    return Err(Errno::EINVAL);
                }
                self.learn(&map);
                Ok(())
            }
            // A repeated order: the shards are here already.
            Order::Move { to, .. } if to == self.here => Err(Errno::ESTALE),
            Order::Move { first, count, to } => {
                if !self.moving.map.nodes.iter().any(|node| node.id == to.node) {
                    return Err(Errno::ENXIO);
                }
                let now = self.clock.now();
                let meta = self.shards.moving().ok_or(Errno::ESTALE)?;
                // A migration that failed reports its reason to the next order.
                match meta.take_move_failure() {
                    Some(errno) => Err(errno),
                    None => meta.give(now, first, count, to),
                }
            }
        }
    }

    /// Merges the newer entries of another map.
    pub(crate) fn learn(&mut self, map: &ClusterMap) {
        let now = self.clock.now();
        match self.shards.moving() {
            Some(meta) => {
                meta.learn(now, map);
                // The nodes are known at once. The owners of shards follow when the shards' own map
                // is on disk.
                let mut nodes = ClusterMap::clone(&self.moving.map);
                if nodes.merge(&ClusterMap { moves: vec![0; map.moves.len()], ..map.clone() }) {
                    self.set_map(nodes);
                }
                self.note_moves();
            }
            None => {
                let mut ours = ClusterMap::clone(&self.moving.map);
                if ours.merge(map) {
                    self.set_map(ours);
                }
            }
        }
    }

    /// Receives a message of another executor.
    pub(crate) fn receive(&mut self, now: Timestamp, from: ExecutorId, message: PeerMessage) {
        if self.shards.is_empty() {
            match &message {
                // The first chunk of shards for an executor without a store: the store is made
                // before the chunk is applied.
                PeerMessage::Carry { .. } => self.shards.make(&self.moving.map),
                PeerMessage::Map { map, ask } => {
                    self.learn(map);
                    // The sender asks for an answer only if this map has entries that the sender
                    // lacks.
                    if *ask && ClusterMap::clone(map).merge(&self.moving.map) {
                        self.say_map(from, false);
                    }
                }
                _ => {}
            }
        }
        self.shards.receive(now, from, message);
        self.note_moves();
    }

    /// Handles the events of migrations, before any other step deals with the same shards.
    pub(crate) fn note_moves(&mut self) {
        let Some(meta) = self.shards.moving() else { return };
        for event in meta.take_move_events() {
            match event {
                MoveEvent::Gone(first, count) => {
                    // The shards have left: delegations of them are the new owner's matter, and
                    // waiting clients must ask there.
                    self.recalls.stop_withholding();
                    self.moving.tell = true;
                    let epoch = self.moving.map.epoch + 1;
                    let answers = self.locking.forget((first, count), epoch);
                    self.round.extend(answers);
                    let answers = self.job_locks.forget((first, count), epoch);
                    self.round.extend(answers);
                }
                MoveEvent::Stayed => self.recalls.stop_withholding(),
                // On disk before the shards arrive: a crash in between must not forget these
                // lockers.
                MoveEvent::Foreseen(lockers) => self.locking.foresee(&lockers),
                MoveEvent::Come(lockers) => self.locking.expect(lockers),
            }
        }
    }

    /// Does the next step that a migration waits for.
    pub(crate) fn further_moves(&mut self) {
        self.note_moves();
        let wants = self.shards.moving().and_then(|meta| meta.move_wants());
        match wants {
            Some(MoveWants::Recall(first, count)) => {
                // Repeated each round until every delegation is back. Only then may the records
                // leave: the new owner does not know the holders.
                let back = self.recalls.withhold((first, count));
                self.send_recalls();
                if back && let Some(meta) = self.shards.moving() {
                    meta.given_back();
                }
            }
            Some(MoveWants::Lockers(first, count)) => {
                // The new owner grants no lock before these clients have reclaimed theirs.
                let lockers = self.locking.lockers((first, count));
                if let Some(meta) = self.shards.moving() {
                    meta.tell_lockers(lockers);
                }
            }
            None => {}
        }
        if self.moving.locks.is_empty() {
            return;
        }
        // After the events above: a request whose shard has left is answered with the new map.
        for request in std::mem::take(&mut self.moving.locks) {
            self.ask_lock(request);
        }
    }

    /// Answers a request about locks, or lets it wait for the end of a migration.
    pub(crate) fn ask_lock(&mut self, request: LockRequest) {
        let LockRequest { at, seq, shard, trusted, ref cred, ref question } = request;
        // A reclaim covers all shards of this executor, so it waits for any migration, not only
        // that of its own file.
        let claims = matches!(question.op, LockOp::Reclaim { .. });
        let closing = self.shards.moving().is_some_and(|meta| meta.is_closing());
        if self.shards.is_closed(shard) || claims && closing {
            if self.moving.locks.len() < LOCKS_MAX {
                self.moving.locks.push(request);
            } else {
                self.round.push(Answer::new(at, seq, Ok(MetaReply::Later), None));
            }
            return;
        }
        let refused = refuse_lock(&mut self.shards, shard, question.ino, trusted, cred)
            .or_else(|| self.refuse_claim(question));
        let answer = match refused {
            None => self.locking.ask(at, seq, request.question),
            Some(refused) => Some(Answer::new(at, seq, refused, None)),
        };
        self.round.extend(answer);
    }

    /// Refuses a reclaim of a client that does not know the executor's present shards: it may omit
    /// locks of the others.
    fn refuse_claim(&mut self, question: &Question) -> Option<MetaResult> {
        let LockOp::Reclaim { shards, .. } = question.op else { return None };
        let (here, map) = (self.here, self.shards.map()?);
        let ours = map.shard_map()?.digest(here);
        let again = LockTold::Unknown { reclaim: true };
        (shards != ours).then_some(Ok(MetaReply::Locks { session: 0, told: again }))
    }

    /// Publishes a map that is on disk to the other threads, clients and nodes.
    pub(crate) fn publish_map(&mut self) {
        let Some(known) = self.shards.map().filter(|map| map.epoch != self.moving.seen) else {
            return;
        };
        // Set first: the map below is merged at most once for each epoch.
        self.moving.seen = known.epoch;
        let mut map = ClusterMap::clone(&self.moving.map);
        if map.merge(known) {
            self.set_map(map);
        }
    }

    fn set_map(&mut self, map: ClusterMap) {
        tracing::info!(epoch = map.epoch, nodes = map.nodes.len(), "the map has changed");
        self.moving.map = Arc::new(map);
        // Threads of this node first, then clients: a client that asks again must meet the new map.
        self.shared.learn(&self.moving.map);
        self.shared.executors.tell_map(self.here.index, &self.moving.map);
        self.shared.nudge.give();
        let epoch = self.moving.map.epoch;
        for at in self.recalls.connections() {
            if let Some(Some(connection)) = self.connections.get_mut(at) {
                connection.tell(&RecallNote::Map { epoch });
                self.send(at);
            }
        }
        if std::mem::take(&mut self.moving.tell) {
            self.tell(self.moving.map.nodes.iter().map(|node| node.id).collect(), false);
        }
    }

    /// Asks other nodes for their maps at the start: they may know more.
    pub(crate) fn ask_for_map(&mut self) {
        let serve = self.moving.map.leads().into_iter().map(|(_, executor)| executor.node);
        self.tell(serve.collect(), true);
    }

    /// Sends the map to the first executor of other nodes, which hands it to the others there.
    fn tell(&mut self, nodes: BTreeSet<NodeId>, ask: bool) {
        let others = nodes.into_iter().filter(|node| *node != self.here.node);
        let others: Vec<_> = others.map(ExecutorId::first).collect();
        others.into_iter().for_each(|to| self.say_map(to, ask));
    }

    fn say_map(&mut self, to: ExecutorId, ask: bool) {
        let map = Box::new(ClusterMap::clone(&self.moving.map));
        let message = PeerMessage::Map { map, ask };
        self.say(vec![Out { to, message, changed: Vec::new(), seen: Vec::new() }]);
    }
}

/// Returns the answer to a client that asks the wrong node, or may not lock the file: an untrusted
/// client needs permission to read it.
fn refuse_lock(
    shards: &mut Shards<FjallStore>,
    shard: ShardId,
    ino: Ino,
    trusted: bool,
    cred: &Cred,
) -> Option<MetaResult> {
    if ino.shard() != shard {
        return Some(Err(Errno::ESTALE));
    }
    if !shards.serves(shard) {
        let epoch = shards.map().map_or(0, |map| map.epoch);
        return Some(Ok(MetaReply::Elsewhere { epoch }));
    }
    if trusted {
        return None;
    }
    let op = MetaOp::Open { ino, access: Access::READ, noted: false };
    let call = MetaCall { shard, cred: cred.clone(), op };
    let ctx = Context { now: now(), client: ClientId([0; 16]), slot: 0, seq: 0, trusted };
    match shards.apply(&ctx, &call) {
        Applied::Done(result) => result.err().map(Err),
        // A transaction over several nodes changes the file; it is over soon.
        Applied::Waits(_) => Some(Ok(MetaReply::Later)),
    }
}
