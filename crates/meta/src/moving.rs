//! Shard migration: shards move from one executor to another while they are in use.
//!
//! The *source* ("giver") serves a block of shards, the *destination* ("taker") will. The protocol:
//!
//! 1. The source asks the destination whether it accepts the shards.
//! 2. The source recalls all delegations in the block, and closes it: operations on these shards
//!    wait, as for any lock.
//! 3. When the transactions that hold locks in the block are over, the source sends its records,
//!    chunk by chunk. Each chunk is acknowledged before the next. The destination stores them and
//!    serves none of them.
//! 4. When the destination has all of them, durably, the source writes into its shard map that the
//!    block belongs to the destination. That one batch is the commit point. Waiting operations are
//!    sent to the destination.
//!
//! The shard map has, for each shard, the number of its moves. Only the executor that serves a
//! shard raises that number. So of two maps the one with more moves of a shard is right about it.
//! All maps converge, and moves of different shards need no order. A destination that has
//! everything and does not know the outcome asks the source until it gets an answer. A source that
//! dies before that batch has given nothing away.
//!
//! Records of shards that an executor does not serve (moved away, or received in vain) are deleted
//! in small portions, and no operation sees them.

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

/// Most keys, and most bytes, that are deleted or sent at a time.
const KEYS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 10;

/// A request of the source to its daemon, which must be met before the move goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveWants {
    /// Recall all delegations of inodes of these shards (the first, and how many), and grant no
    /// more of them. Then call [`Meta::given_back`].
    Recall(u16, u16),
    /// Report with [`Meta::tell_lockers`] the clients that may hold locks of files of these shards.
    /// No such lock is granted from now on, until the move is over.
    Lockers(u16, u16),
}

/// A change of the served shards, which the daemon must know before it handles anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveEvent {
    /// These shards (the first, and how many) belong to another executor now.
    Gone(u16, u16),
    /// A move from this executor has failed.
    Stayed,
    /// These clients may hold locks of files of shards that may soon belong to this executor.
    Foreseen(Vec<ClientId>),
    /// Now the shards belong to this executor.
    Come(Vec<ClientId>),
}

/// The destination's record of a move: the shards it receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Brought {
    first: u16,
    /// Of each shard, the number of moves before this one.
    moves: Vec<u32>,
    /// All records have arrived.
    whole: Option<Whole>,
}

/// The properties of a block as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Whole {
    inodes: u64,
    reserved: u64,
    lockers: Vec<ClientId>,
}

/// All moves that this executor takes part in.
#[derive(Default)]
pub(crate) struct Moves {
    giving: Option<Giving>,
    taking: BTreeMap<Txid, Taking>,
    /// Blocks whose records are to be deleted, and the progress of that.
    clearing: Vec<Block>,
    cleared_to: Cursor,
    events: Vec<MoveEvent>,
    /// The reason why the last move from here failed.
    failure: Option<Errno>,
    /// Nothing may leave before all changes survive a power cut.
    pub wants_sync: bool,
}

impl Moves {
    /// Returns when a move must be handled next.
    pub fn due(&self, now: Timestamp) -> Option<Timestamp> {
        let giving = self.giving.as_ref().map(Giving::due);
        let taking = self.taking.values().map(|taking| taking.ask_at);
        let clearing = (!self.clearing.is_empty()).then_some(now);
        giving.into_iter().chain(taking).chain(clearing).min()
    }

    /// Returns the number of moves, and of blocks to be deleted.
    pub fn under_way(&self) -> usize {
        usize::from(self.giving.is_some()) + self.taking.len() + self.clearing.len()
    }
}

impl<S: Store> Meta<S> {
    /// Returns the map of all shards and executors that this executor knows.
    pub fn map(&self) -> &ClusterMap {
        self.state.cluster()
    }

    /// Returns whether operations may need other executors.
    pub fn is_spread(&self) -> bool {
        self.state.is_spread()
    }

    /// Returns whether the shard is served here.
    pub fn serves(&self, shard: ShardId) -> bool {
        self.state.owns(shard)
    }

    /// Returns the number of shards that are served here.
    pub fn shards(&self) -> usize {
        self.state.served()
    }

    /// Returns whether a move keeps the shard closed.
    pub fn is_closed(&self, shard: ShardId) -> bool {
        self.state.locks.closed().is_some_and(|(block, _)| block.has(shard))
    }

    /// Returns whether a move keeps any shard closed.
    pub fn is_closing(&self) -> bool {
        self.state.locks.closed().is_some()
    }

    /// Returns whether a [`Meta::sync`] must follow the commit before anything leaves.
    pub fn wants_sync(&self) -> bool {
        self.moves.wants_sync
    }

    /// Takes the events since the last call.
    pub fn take_move_events(&mut self) -> Vec<MoveEvent> {
        std::mem::take(&mut self.moves.events)
    }

    /// Merges newer entries of the other map into this executor's. Returns whether there were any.
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
        // While no shard has moved, every node knows the map from the configuration: no record is
        // needed.
        let record = moved.then(|| record::encode(&cluster)).transpose()?;
        self.state.put_map(cluster, record);
        if moved {
            // A shard that came here is taken over before operations restart, so that they find its
            // records.
            self.spread_out()?;
            self.take_over()?;
            self.start_afresh();
        }
        Ok(true)
    }

    /// Marks this executor as one of several: operations may need other executors from now on.
    fn spread_out(&mut self) -> Outcome<()> {
        self.state.spread = true;
        if self.tx.life == 0 {
            self.tx.begin_life(&mut self.state)?;
            self.moves.wants_sync = true;
        }
        Ok(())
    }

    /// Sends this executor's shard map to another executor.
    pub(crate) fn tell_map(&mut self, to: ExecutorId) {
        let map = Box::new(self.state.cluster().clone());
        self.tx.send(to, PeerMessage::Map { map, ask: false });
    }

    /// Reads the moves in progress from the records.
    pub(crate) fn open_moves(&mut self) -> Outcome<()> {
        self.reload_moves()?;
        self.take_over()?;
        if self.state.is_dirty() {
            self.state.commit()?;
            self.state.sync()?;
        }
        Ok(())
    }

    /// Rebuilds the tables in memory from the records. A move from here that was under way ends.
    pub(crate) fn reload_moves(&mut self) -> Outcome<()> {
        let now = self.tx.now;
        if self.moves.giving.is_some() {
            self.give_up(Errno::EAGAIN);
        }
        let (mut taking, mut vain) = (BTreeMap::new(), Vec::new());
        self.state.scan(&[tag::BROUGHT], &[tag::BROUGHT], &mut |key, value| {
            if let Some(Parsed::Brought(txid)) = keys::parse(key) {
                let brought: Brought = record::decode(value)?;
                // The number of received chunks is not recorded: an incomplete move starts over.
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

    /// Schedules the deletion of the records of these shards here.
    fn clear_later(&mut self, block: Block) -> Outcome<()> {
        // A bug here would delete live records. The check is cheap.
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

    /// Deletes one portion of records that do not count.
    fn clear_some(&mut self) -> Outcome<()> {
        let Some(block) = self.moves.clearing.first().copied() else { return Ok(()) };
        self.state.opens.forget_block(block);
        let mut cursor = std::mem::take(&mut self.moves.cleared_to);
        let found = self.state.records_of(block, &mut cursor, KEYS_MAX, BYTES_MAX)?;
        found.into_iter().for_each(|(key, _)| self.state.put(key, None));
        if cursor.is_at_end() {
            // The block stays recorded until its last record is gone, so that a restart goes on.
            self.moves.clearing.remove(0);
            self.write_clearing()?;
        } else {
            self.moves.cleared_to = cursor;
        }
        Ok(())
    }

    /// Handles the moves that are due.
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

    /// Handles a message of another executor about moves.
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
            // The destination asks for the outcome. The map answers: either the block has moved, or
            // it has not.
            PeerMessage::Moved { txid } if txid.executor == self.tx.here => {
                let under_way = self.moves.giving.as_ref().is_some_and(|g| g.txid == txid);
                let map = Box::new(self.state.cluster().clone());
                self.tx.send(from, PeerMessage::Moving { txid, under_way, map });
                Ok(())
            }
            PeerMessage::Moving { txid, under_way, map } if txid.executor == from => {
                // The map first: a committed move must not be dropped.
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

/// Returns whether our map has something newer than the other one.
fn knows_better(ours: &ClusterMap, other: &ClusterMap) -> bool {
    other.clone().merge(ours)
}

impl Brought {
    fn block(&self) -> Block {
        Block { first: self.first, count: self.moves.len() as u16 }
    }
}

/// Returns the errno of a failure that concerns the move alone.
fn refusal(failure: &Failure) -> Errno {
    failure.errno()
}
