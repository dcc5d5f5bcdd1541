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

mod destination;
pub(crate) mod moves;
mod records;
mod source;

use crate::error::{MetaOutcome, OperationFailure};
use crate::keys::{self, ParsedKey, tag};
use crate::migration::moves::{BYTES_MAX, IncomingBlock, KEYS_MAX, MoveDestination, MoveEvent};
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::state::merge_cluster_map;
use crate::store::Store;
use crate::transaction::locks::ShardBlock;
use crate::transaction::record;
use records::BlockCursor;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_wire::admin::ClusterMap;
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{Errno, ExecutorId, ShardId, Timestamp};

impl<S: Store> Meta<S> {
    /// Returns the map of all shards and executors that this executor knows.
    pub fn cluster_map(&self) -> &ClusterMap {
        self.state.cluster()
    }

    /// Returns whether operations may need other executors.
    pub fn is_spread(&self) -> bool {
        self.state.is_spread()
    }

    /// Returns whether the shard is served here.
    pub fn serves_shard(&self, shard: ShardId) -> bool {
        self.state.owns_shard(shard)
    }

    /// Returns the number of shards that are served here.
    pub fn count_shards(&self) -> usize {
        self.state.count_served()
    }

    /// Returns whether a move keeps the shard closed.
    pub fn is_closed(&self, shard: ShardId) -> bool {
        self.state.locks.closed_block().is_some_and(|(block, _)| block.contains_shard(shard))
    }

    /// Returns whether a move keeps any shard closed.
    pub fn is_closing(&self) -> bool {
        self.state.locks.closed_block().is_some()
    }

    /// Returns whether a [`Meta::sync`] must follow the commit before anything leaves.
    pub fn needs_sync(&self) -> bool {
        self.moves.wants_sync
    }

    /// Takes the events since the last call.
    pub fn take_move_events(&mut self) -> Vec<MoveEvent> {
        std::mem::take(&mut self.moves.events)
    }

    /// Merges newer entries of the other map into this executor's. Returns whether there were any.
    pub fn merge_map(&mut self, now: Timestamp, map: &ClusterMap) -> bool {
        self.tx.now = self.tx.now.max(now);
        if self.state.is_poisoned() {
            return false;
        }
        let learnt = self.adopt_map(map).unwrap_or_else(|failure| {
            self.record_failure(&failure);
            false
        });
        self.resume_freed();
        learnt
    }

    fn adopt_map(&mut self, other: &ClusterMap) -> MetaOutcome<bool> {
        let mut cluster = self.state.cluster().clone();
        let learnt = merge_cluster_map(&mut cluster, other);
        if !learnt && cluster == *self.state.cluster() {
            return Ok(false);
        }
        let moved = cluster.moves != self.state.cluster().moves;
        // While no shard has moved, every node knows the map from the configuration: no record is
        // needed.
        let record = moved.then(|| record::encode_value(&cluster)).transpose()?;
        self.state.replace_map(cluster, record);
        if moved {
            // A shard that came here is taken over before operations restart, so that they find its
            // records.
            self.enter_spread_mode()?;
            self.take_over_shards()?;
            self.restart_operations();
        }
        Ok(true)
    }

    /// Marks this executor as one of several: operations may need other executors from now on.
    fn enter_spread_mode(&mut self) -> MetaOutcome<()> {
        self.state.spread = true;
        if self.tx.incarnation == 0 {
            self.tx.begin_incarnation(&mut self.state)?;
            self.moves.wants_sync = true;
        }
        Ok(())
    }

    /// Sends this executor's shard map to another executor.
    pub(crate) fn send_map(&mut self, to: ExecutorId) {
        let map = Box::new(self.state.cluster().clone());
        self.tx.send_message(to, PeerMessage::Map { map, ask: false });
    }

    /// Reads the moves in progress from the records.
    pub(crate) fn open_moves(&mut self) -> MetaOutcome<()> {
        self.reload_moves()?;
        self.take_over_shards()?;
        if self.state.is_dirty() {
            self.state.commit()?;
            self.state.sync()?;
        }
        Ok(())
    }

    /// Rebuilds the tables in memory from the records. A move from here that was under way ends.
    pub(crate) fn reload_moves(&mut self) -> MetaOutcome<()> {
        let now = self.tx.now;
        if self.moves.source.is_some() {
            self.abort_move(Errno::EAGAIN);
        }
        let (mut taking, mut vain) = (BTreeMap::new(), Vec::new());
        self.state.scan_records(
            &[tag::INCOMING_BLOCK],
            &[tag::INCOMING_BLOCK],
            &mut |key, value| {
                if let Some(ParsedKey::IncomingBlock(txid)) = keys::parse(key) {
                    let brought: IncomingBlock = record::decode_value(value)?;
                    // The number of received chunks is not recorded: an incomplete move starts
                    // over.
                    if brought.whole.is_none() {
                        vain.push((txid, brought.shard_block()));
                    }
                    let (next, opens) = (u32::MAX, Vec::new());
                    taking.insert(txid, MoveDestination { brought, next, ask_at: now, opens });
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        self.moves.clearing = match self.state.get(&keys::pending_deletions())? {
            Some(bytes) => {
                let blocks: Vec<(u16, u16)> = record::decode_value(&bytes)?;
                blocks.into_iter().map(|(first, count)| ShardBlock { first, count }).collect()
            }
            None => Vec::new(),
        };
        self.moves.cleared_to = BlockCursor::default();
        self.moves.destinations = taking;
        for (txid, _) in vain {
            self.drop_incoming(txid)?;
        }
        self.update_mixed();
        Ok(())
    }

    fn update_mixed(&mut self) {
        self.state.mixed = !(self.moves.destinations.is_empty() && self.moves.clearing.is_empty());
    }

    /// Schedules the deletion of the records of these shards here.
    fn schedule_deletion(&mut self, block: ShardBlock) -> MetaOutcome<()> {
        // A bug here would delete live records. The check is cheap.
        if block.iter_shards().any(|shard| self.state.owns_shard(shard)) {
            return Err(OperationFailure::Errno(Errno::EIO));
        }
        self.moves.clearing.push(block);
        self.record_deletions()
    }

    fn record_deletions(&mut self) -> MetaOutcome<()> {
        let blocks: Vec<_> = self.moves.clearing.iter().map(|b| (b.first, b.count)).collect();
        let record = (!blocks.is_empty()).then(|| record::encode_value(&blocks)).transpose()?;
        self.state.put_record(keys::pending_deletions(), record);
        self.state.request_shard_write();
        self.update_mixed();
        Ok(())
    }

    /// Deletes one portion of records that do not count.
    fn delete_some_records(&mut self) -> MetaOutcome<()> {
        let Some(block) = self.moves.clearing.first().copied() else { return Ok(()) };
        self.state.opens.forget_block(block);
        let mut cursor = std::mem::take(&mut self.moves.cleared_to);
        let found = self.state.block_records(block, &mut cursor, KEYS_MAX, BYTES_MAX)?;
        found.into_iter().for_each(|(key, _)| self.state.put_record(key, None));
        if cursor.is_at_end() {
            // The block stays recorded until its last record is gone, so that a restart goes on.
            self.moves.clearing.remove(0);
            self.record_deletions()?;
        } else {
            self.moves.cleared_to = cursor;
        }
        Ok(())
    }

    /// Handles the moves that are due.
    pub(crate) fn tick_moves(&mut self) {
        let now = self.tx.now;
        let result = self.delete_some_records().and_then(|()| self.tick_source(now));
        if let Err(failure) = result {
            self.record_failure(&failure);
        }
        let late = self.moves.destinations.iter_mut().filter(|(_, taking)| taking.ask_at <= now);
        let mut asked = Vec::new();
        for (txid, taking) in late {
            taking.ask_at = add_millis(now, destination::ASK_OUTCOME_MS);
            asked.push(*txid);
        }
        asked.into_iter().for_each(|txid| {
            self.tx.send_message(txid.executor, PeerMessage::QueryMigration { txid })
        });
    }

    /// Handles a message of another executor about moves.
    pub(crate) fn handle_move_message(
        &mut self,
        from: ExecutorId,
        message: PeerMessage,
    ) -> MetaOutcome<()> {
        match message {
            PeerMessage::Map { map, ask } => {
                self.adopt_map(&map)?;
                if ask && is_newer_map(self.state.cluster(), &map) {
                    self.send_map(from);
                }
                Ok(())
            }
            PeerMessage::CopyChunk { txid, number: part, chunk: cargo }
                if txid.executor == from =>
            {
                self.receive_chunk(txid, part, cargo)
            }
            PeerMessage::ChunkCopied { txid, number: part, refused } => {
                self.handle_chunk_reply(from, txid, part, refused)
            }
            // The destination asks for the outcome. The map answers: either the block has moved, or
            // it has not.
            PeerMessage::QueryMigration { txid } if txid.executor == self.tx.here => {
                let under_way = self.moves.source.as_ref().is_some_and(|g| g.txid == txid);
                let map = Box::new(self.state.cluster().clone());
                self.tx.send_message(from, PeerMessage::MigrationStatus { txid, under_way, map });
                Ok(())
            }
            PeerMessage::MigrationStatus { txid, under_way, map } if txid.executor == from => {
                // The map first: a committed move must not be dropped.
                self.adopt_map(&map)?;
                match under_way {
                    true => Ok(()),
                    false => self.drop_incoming(txid),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Returns whether our map has something newer than the other one.
fn is_newer_map(ours: &ClusterMap, other: &ClusterMap) -> bool {
    other.clone().merge_newer(ours)
}
