//! Shards that move from one executor to another while they are in use.
//!
//! The *giver* serves a block of shards, the *taker* will. The giver asks the taker whether it would, has
//! back what it has delegated of the block, and closes it: whoever wants something of these shards waits, as for any lock. When the
//! transactions that have something of them are over, their records go to the taker, part by part, each
//! answered before the next. The taker keeps them and serves nothing of them. When all are there, and would survive a power cut,
//! the giver writes into its map that the block is the taker's, in one batch: at that moment it is. Whoever waited is sent there.
//!
//! The map has, for each shard, how many times it has moved, and only the executor that serves a shard says that it has moved once
//! more. So of two maps the one with more moves of a shard is right about it, all maps agree in the end, and no order among
//! the moves of different shards is needed. A taker that has everything and has not heard what became of it asks the
//! giver, for as long as it takes. A giver that dies before that batch has given nothing.
//!
//! Records of shards that an executor does not serve (those that it has given away, or was to be given) are cleared away in
//! small portions, and no operation sees them.

mod giver;
mod records;
mod taker;

use crate::error::{Failure, Outcome};
use crate::keys::{self, Parsed, tag};
use crate::shard::Meta;
use crate::state::absorb;
use crate::store::Store;
use crate::transaction::later;
use crate::transaction::locks::Block;
use crate::transaction::record;
use giver::Giving;
use records::Cursor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use taker::Taking;
use tatami_wire::admin::ClusterMap;
use tatami_wire::transaction::{PeerMessage, Txid};
use tatami_wire::{ClientId, Errno, ExecutorId, ShardId, Timestamp};

/// Most keys, and most bytes, that are cleared away, or sent, at a time.
const KEYS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 10;

/// What a giver wants of the daemon before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveWants {
    /// Have back what is delegated of inodes of these shards (the first, and how many), and delegate nothing
    /// more of them. Then [`Meta::given_back`].
    Recall(u16, u16),
    /// Say with [`Meta::tell_lockers`] who may hold locks of files of these shards. No such lock is
    /// granted from now on, until the move is over.
    Lockers(u16, u16),
}

/// What has happened to shards, as the daemon must know before it handles anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveEvent {
    /// These shards (the first, and how many) are another executor's now.
    Gone(u16, u16),
    /// A move from this executor has come to nothing.
    Stayed,
    /// These clients may hold locks of files of shards that will perhaps be this executor's.
    Foreseen(Vec<ClientId>),
    /// Now they are.
    Come(Vec<ClientId>),
}

/// What a taker has been brought, as a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Brought {
    first: u16,
    /// Of each shard, how many times it had moved before.
    moves: Vec<u32>,
    /// All is there.
    whole: Option<Whole>,
}

/// What is true of a block as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Whole {
    inodes: u64,
    reserved: u64,
    lockers: Vec<ClientId>,
}

/// All moves of which this executor is a part.
#[derive(Default)]
pub(crate) struct Moves {
    giving: Option<Giving>,
    taking: BTreeMap<Txid, Taking>,
    /// Blocks of which the records are to be cleared away, and how far that is.
    clearing: Vec<Block>,
    cleared_to: Cursor,
    events: Vec<MoveEvent>,
    /// Why the last move from here has come to nothing.
    failure: Option<Errno>,
    /// Nothing may leave before everything survives a power cut.
    pub wants_sync: bool,
}

impl Moves {
    /// When something is to be done.
    pub fn due(&self, now: Timestamp) -> Option<Timestamp> {
        let giving = self.giving.as_ref().map(Giving::due);
        let taking = self.taking.values().map(|taking| taking.ask_at);
        let clearing = (!self.clearing.is_empty()).then_some(now);
        giving.into_iter().chain(taking).chain(clearing).min()
    }

    /// Number of moves, and of blocks to be cleared away.
    pub fn under_way(&self) -> usize {
        usize::from(self.giving.is_some()) + self.taking.len() + self.clearing.len()
    }
}

impl<S: Store> Meta<S> {
    /// Which executor serves which shard, and all executors that this one has been told of.
    pub fn map(&self) -> &ClusterMap {
        self.state.cluster()
    }

    /// Whether operations may need other executors.
    pub fn is_spread(&self) -> bool {
        self.state.is_spread()
    }

    /// Whether the shard is served here.
    pub fn serves(&self, shard: ShardId) -> bool {
        self.state.owns(shard)
    }

    /// Number of shards that are served here.
    pub fn shards(&self) -> usize {
        self.state.served()
    }

    /// Whether a move keeps the shard closed.
    pub fn is_closed(&self, shard: ShardId) -> bool {
        self.state.locks.closed().is_some_and(|(block, _)| block.has(shard))
    }

    /// Whether a move keeps any shard closed.
    pub fn is_closing(&self) -> bool {
        self.state.locks.closed().is_some()
    }

    /// Whether a [`Meta::sync`] must follow the commit before anything leaves.
    pub fn wants_sync(&self) -> bool {
        self.moves.wants_sync
    }

    /// What has happened since this was asked last.
    pub fn take_move_events(&mut self) -> Vec<MoveEvent> {
        std::mem::take(&mut self.moves.events)
    }

    /// Learns what the map knows better. Whether there was something.
    pub fn learn(&mut self, now: Timestamp, map: &ClusterMap) -> bool {
        self.tx.now = self.tx.now.max(now);
        if self.state.is_poisoned() {
            return false;
        }
        let learnt = self.learn_map(map).unwrap_or_else(|failure| {
            self.note(&failure);
            false
        });
        self.free();
        learnt
    }

    fn learn_map(&mut self, other: &ClusterMap) -> Outcome<bool> {
        let mut cluster = self.state.cluster().clone();
        let learnt = absorb(&mut cluster, other);
        if !learnt && cluster == *self.state.cluster() {
            return Ok(false);
        }
        let moved = cluster.moves != self.state.cluster().moves;
        // While nothing has moved, everybody knows the rest from elsewhere.
        let record = moved.then(|| record::encode(&cluster)).transpose()?;
        self.state.put_map(cluster, record);
        if moved {
            self.spread_out()?;
            self.take_over()?;
            self.start_afresh();
        }
        Ok(true)
    }

    /// From now on operations may need other executors.
    fn spread_out(&mut self) -> Outcome<()> {
        self.state.spread = true;
        if self.tx.life == 0 {
            self.tx.begin_life(&mut self.state)?;
            self.moves.wants_sync = true;
        }
        Ok(())
    }

    /// Tells another executor which executor serves which shard.
    pub(crate) fn tell_map(&mut self, to: ExecutorId) {
        let map = Box::new(self.state.cluster().clone());
        self.tx.send(to, PeerMessage::Map { map, ask: false });
    }

    /// Reads what is under way from the records.
    pub(crate) fn open_moves(&mut self) -> Outcome<()> {
        self.reload_moves()?;
        self.take_over()?;
        if self.state.is_dirty() {
            self.state.commit()?;
            self.state.sync()?;
        }
        Ok(())
    }

    /// Makes the tables in memory what the records say. A move from here that was under way is over.
    pub(crate) fn reload_moves(&mut self) -> Outcome<()> {
        let now = self.tx.now;
        if self.moves.giving.is_some() {
            self.give_up(Errno::EAGAIN);
        }
        let (mut taking, mut vain) = (BTreeMap::new(), Vec::new());
        self.state.scan(&[tag::BROUGHT], &[tag::BROUGHT], &mut |key, value| {
            if let Some(Parsed::Brought(txid)) = keys::parse(key) {
                let brought: Brought = record::decode(value)?;
                // Nobody knows how far it was.
                if brought.whole.is_none() {
                    vain.push((txid, brought.block()));
                }
                let (next, opens) = (u32::MAX, Vec::new());
                taking.insert(txid, Taking { brought, next, ask_at: now, opens });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        self.moves.clearing = match self.state.get(&keys::cleared())? {
            Some(bytes) => {
                let blocks: Vec<(u16, u16)> = record::decode(&bytes)?;
                blocks.into_iter().map(|(first, count)| Block { first, count }).collect()
            }
            None => Vec::new(),
        };
        self.moves.cleared_to = Cursor::default();
        self.moves.taking = taking;
        for (txid, _) in vain {
            self.drop_taking(txid)?;
        }
        self.note_mixed();
        Ok(())
    }

    fn note_mixed(&mut self) {
        self.state.mixed = !(self.moves.taking.is_empty() && self.moves.clearing.is_empty());
    }

    /// Records of these shards that lie here do not count any more.
    fn clear_later(&mut self, block: Block) -> Outcome<()> {
        if block.shards().any(|shard| self.state.owns(shard)) {
            return Err(Failure::Errno(Errno::EIO));
        }
        self.moves.clearing.push(block);
        self.write_clearing()
    }

    fn write_clearing(&mut self) -> Outcome<()> {
        let blocks: Vec<_> = self.moves.clearing.iter().map(|b| (b.first, b.count)).collect();
        let record = (!blocks.is_empty()).then(|| record::encode(&blocks)).transpose()?;
        self.state.put(keys::cleared(), record);
        self.state.put_shard();
        self.note_mixed();
        Ok(())
    }

    /// Clears away some of what does not count.
    fn clear_some(&mut self) -> Outcome<()> {
        let Some(block) = self.moves.clearing.first().copied() else { return Ok(()) };
        self.state.opens.forget_block(block);
        let mut cursor = std::mem::take(&mut self.moves.cleared_to);
        let found = self.state.records_of(block, &mut cursor, KEYS_MAX, BYTES_MAX)?;
        found.into_iter().for_each(|(key, _)| self.state.put(key, None));
        if cursor.is_at_end() {
            self.moves.clearing.remove(0);
            self.write_clearing()?;
        } else {
            self.moves.cleared_to = cursor;
        }
        Ok(())
    }

    /// Does what is due.
    pub(crate) fn tick_moves(&mut self) {
        let now = self.tx.now;
        let result = self.clear_some().and_then(|()| self.tick_giving(now));
        if let Err(failure) = result {
            self.note(&failure);
        }
        let late = self.moves.taking.iter_mut().filter(|(_, taking)| taking.ask_at <= now);
        let mut asked = Vec::new();
        for (txid, taking) in late {
            taking.ask_at = later(now, taker::ASK);
            asked.push(*txid);
        }
        asked.into_iter().for_each(|txid| self.tx.send(txid.executor, PeerMessage::Moved { txid }));
    }

    /// A message of another executor about moves.
    pub(crate) fn heed_move(&mut self, from: ExecutorId, message: PeerMessage) -> Outcome<()> {
        match message {
            PeerMessage::Map { map, ask } => {
                self.learn_map(&map)?;
                if ask && knows_better(self.state.cluster(), &map) {
                    self.tell_map(from);
                }
                Ok(())
            }
            PeerMessage::Carry { txid, part, cargo } if txid.executor == from => {
                self.take_part(txid, part, cargo)
            }
            PeerMessage::Carried { txid, part, refused } => {
                self.part_taken(from, txid, part, refused)
            }
            PeerMessage::Moved { txid } if txid.executor == self.tx.here => {
                let under_way = self.moves.giving.as_ref().is_some_and(|g| g.txid == txid);
                let map = Box::new(self.state.cluster().clone());
                self.tx.send(from, PeerMessage::Moving { txid, under_way, map });
                Ok(())
            }
            PeerMessage::Moving { txid, under_way, map } if txid.executor == from => {
                self.learn_map(&map)?;
                match under_way {
                    true => Ok(()),
                    false => self.drop_taking(txid),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Whether somebody who has the other map has something to learn from this one.
fn knows_better(ours: &ClusterMap, other: &ClusterMap) -> bool {
    other.clone().merge(ours)
}

impl Brought {
    fn block(&self) -> Block {
        Block { first: self.first, count: self.moves.len() as u16 }
    }
}

/// A failure that is the matter of the move alone.
fn refusal(failure: &Failure) -> Errno {
    failure.errno()
}
