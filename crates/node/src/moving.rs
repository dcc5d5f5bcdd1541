//! Shards that move, as far as an executor has to do with it: delegations and locks of their inodes, the map, and who
//! is told of it. Records and messages are the matter of `tatami_meta`.

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

/// Most requests about locks that wait until a move is over.
const LOCKS_MAX: usize = 16 * 1024;

/// What the executor remembers of moves.
pub(crate) struct Moving {
    /// The map as all threads of the node have it.
    pub(crate) map: Arc<ClusterMap>,
    /// The epoch of the shards' own map when it was looked at last.
    seen: u64,
    /// Requests about locks that wait until a move is over.
    locks: Vec<LockRequest>,
    /// Everybody is to be told of the map.
    tell: bool,
}

/// A request about locks.
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

    /// A connection has ended.
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
            // It was done before: they are here.
            Order::Move { to, .. } if to == self.here => Err(Errno::ESTALE),
            Order::Move { first, count, to } => {
                if !self.moving.map.nodes.iter().any(|node| node.id == to.node) {
                    return Err(Errno::ENXIO);
                }
                let now = self.clock.now();
                let meta = self.shards.moving().ok_or(Errno::ESTALE)?;
                // Why the one before came to nothing, is told first.
                match meta.take_move_failure() {
                    Some(errno) => Err(errno),
                    None => meta.give(now, first, count, to),
                }
            }
        }
    }

    /// Learns what another map knows better.
    pub(crate) fn learn(&mut self, map: &ClusterMap) {
        let now = self.clock.now();
        match self.shards.moving() {
            Some(meta) => {
                meta.learn(now, map);
                // The nodes are known at once; where shards are, when that is on disk.
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

    /// Takes a message of another executor.
    pub(crate) fn receive(&mut self, now: Timestamp, from: ExecutorId, message: PeerMessage) {
        if self.shards.is_empty() {
            match &message {
                PeerMessage::Carry { .. } => self.shards.make(&self.moving.map),
                PeerMessage::Map { map, ask } => {
                    self.learn(map);
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

    /// Heeds what has happened to shards, before anything else of them is heeded.
    pub(crate) fn note_moves(&mut self) {
        let Some(meta) = self.shards.moving() else { return };
        for event in meta.take_move_events() {
            match event {
                MoveEvent::Gone(first, count) => {
                    self.recalls.stop_withholding();
                    self.moving.tell = true;
                    let epoch = self.moving.map.epoch + 1;
                    let answers = self.locking.forget((first, count), epoch);
                    self.round.extend(answers);
                    let answers = self.job_locks.forget((first, count), epoch);
                    self.round.extend(answers);
                }
                MoveEvent::Stayed => self.recalls.stop_withholding(),
                MoveEvent::Foreseen(lockers) => self.locking.foresee(&lockers),
                MoveEvent::Come(lockers) => self.locking.expect(lockers),
            }
        }
    }

    /// Does what a move needs to go on.
    pub(crate) fn further_moves(&mut self) {
        self.note_moves();
        let wants = self.shards.moving().and_then(|meta| meta.move_wants());
        match wants {
            Some(MoveWants::Recall(first, count)) => {
                let back = self.recalls.withhold((first, count));
                self.send_recalls();
                if back && let Some(meta) = self.shards.moving() {
                    meta.given_back();
                }
            }
            Some(MoveWants::Lockers(first, count)) => {
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
        for request in std::mem::take(&mut self.moving.locks) {
            self.ask_lock(request);
        }
    }

    /// Answers a request about locks, now or later.
    pub(crate) fn ask_lock(&mut self, request: LockRequest) {
        let LockRequest { at, seq, shard, trusted, ref cred, ref question } = request;
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

    /// Whoever claims must know all shards of which it may hold locks.
    fn refuse_claim(&mut self, question: &Question) -> Option<MetaResult> {
        let LockOp::Reclaim { shards, .. } = question.op else { return None };
        let (here, map) = (self.here, self.shards.map()?);
        let ours = map.shard_map()?.digest(here);
        let again = LockTold::Unknown { reclaim: true };
        (shards != ours).then_some(Ok(MetaReply::Locks { session: 0, told: again }))
    }

    /// Lets the other threads, clients and nodes know of a map that is on disk.
    pub(crate) fn publish_map(&mut self) {
        let Some(known) = self.shards.map().filter(|map| map.epoch != self.moving.seen) else {
            return;
        };
        self.moving.seen = known.epoch;
        let mut map = ClusterMap::clone(&self.moving.map);
        if map.merge(known) {
            self.set_map(map);
        }
    }

    fn set_map(&mut self, map: ClusterMap) {
        tracing::info!(epoch = map.epoch, nodes = map.nodes.len(), "the map has changed");
        self.moving.map = Arc::new(map);
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

    /// At the start: others may know more.
    pub(crate) fn ask_for_map(&mut self) {
        let serve = self.moving.map.leads().into_iter().map(|(_, executor)| executor.node);
        self.tell(serve.collect(), true);
    }

    /// Tells other nodes: whoever hears it there tells the others of its node.
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

/// The answer to whoever asks the wrong node, or may not lock the file: who is not trusted must be allowed to read it.
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
        // Somebody changes it on several nodes: that is soon over.
        Applied::Waits(_) => Some(Ok(MetaReply::Later)),
    }
}
