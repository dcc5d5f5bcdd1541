//! The destination of a shard migration: it receives shards.

use crate::error::MetaOutcome;
use crate::keys;
use crate::migration::moves::{BlockSummary, IncomingBlock, MoveDestination, MoveEvent};
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::store::Store;
use crate::transaction::record;
use tatami_wire::Errno;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{MigrationChunk, PeerMessage, Txid};

/// The source is asked for the outcome of a move after this many ms.
pub(super) const ASK_OUTCOME_MS: u64 = 500;

impl<S: Store> Meta<S> {
    /// Handles a chunk of a move to this executor.
    pub(super) fn receive_chunk(
        &mut self,
        txid: Txid,
        part: u32,
        cargo: MigrationChunk,
    ) -> MetaOutcome<()> {
        let next = self.moves.destinations.get(&txid).map(|taking| taking.next);
        let refused = match (next, cargo) {
            // The chunk was acknowledged, and the acknowledgement was lost.
            (Some(next), _) if next == part.wrapping_add(1) => None,
            (None, MigrationChunk::Shards { first, moves }) if part == 0 => {
                match self.begin_receiving(txid, first, moves)? {
                    Some(refused) => refused,
                    // The source sends it again.
                    None => return Ok(()),
                }
            }
            (Some(next), MigrationChunk::Records(records)) if next == part => {
                self.receive_records(txid, records)?
            }
            (Some(next), MigrationChunk::Opens(opens)) if next == part => {
                if let Some(taking) = self.moves.destinations.get_mut(&txid) {
                    taking.next += 1;
                    taking.opens.extend(opens);
                }
                None
            }
            (Some(next), MigrationChunk::Last { inodes, reserved, lockers }) if next == part => {
                self.finish_receiving(txid, BlockSummary { inodes, reserved, lockers })?;
                None
            }
            // This executor has restarted since, or dropped the move.
            (None, _) => Some(Errno::EAGAIN),
            (Some(_), _) => return Ok(()),
        };
        self.tx
            .send_message(txid.executor, PeerMessage::ChunkCopied { txid, number: part, refused });
        Ok(())
    }

    /// Returns whether the shards would be accepted, or the reason why not; `None` for a later
    /// retry.
    fn begin_receiving(
        &mut self,
        txid: Txid,
        first: u16,
        moves: Vec<u32>,
    ) -> MetaOutcome<Option<Option<Errno>>> {
        let shards = self.state.map().shard_count();
        if moves.is_empty() || usize::from(first) + moves.len() > shards {
            return Ok(Some(Some(Errno::EINVAL)));
        }
        let brought = IncomingBlock { first, moves, whole: None };
        let block = brought.shard_block();
        let known = self.state.map().owners_and_moves().1;
        let stale = block.iter_shards().zip(&brought.moves).any(|(shard, moves)| {
            self.state.owns_shard(shard) || known[usize::from(shard.0)] > *moves
        });
        // The source has an old map: some of these shards have moved since.
        if stale {
            self.send_map(txid.executor);
            return Ok(Some(Some(Errno::ESTALE)));
        }
        if !self.state.has_room() {
            return Ok(Some(Some(Errno::ENOSPC)));
        }
        // Of two moves of one shard, the older one has failed before the newer one began.
        let mut before = Vec::new();
        for (other, taking) in &self.moves.destinations {
            match taking.brought.began_before(*other, &brought, txid) {
                Some(true) => before.push(*other),
                Some(false) => return Ok(Some(Some(Errno::ESTALE))),
                None => {}
            }
        }
        for other in before {
            self.drop_incoming(other)?;
        }
        // Records of an earlier move of these shards are still being deleted. New ones would be
        // deleted with them.
        if self.moves.clearing.iter().any(|old| old.overlaps_block(block)) {
            return Ok(None);
        }
        self.enter_spread_mode()?;
        // The record marks the chunks that follow as not served, also after a restart.
        self.state.put_record(keys::incoming_block(txid), Some(record::encode_value(&brought)?));
        self.state.request_shard_write();
        let ask_at = add_millis(self.tx.now, ASK_OUTCOME_MS);
        let taking = MoveDestination { brought, next: 1, ask_at, opens: Vec::new() };
        let before = self.moves.destinations.insert(txid, taking);
        assert!(before.is_none(), "a move begins twice");
        self.update_mixed();
        Ok(Some(None))
    }

    fn receive_records(
        &mut self,
        txid: Txid,
        records: Vec<(Bytes, Bytes)>,
    ) -> MetaOutcome<Option<Errno>> {
        let Some(taking) = self.moves.destinations.get_mut(&txid) else { return Ok(None) };
        let block = taking.brought.shard_block();
        let sound = |key: &[u8]| block.contains_key(key) && keys::parse(key).is_some();
        let refused = match records.iter().all(|(key, _)| sound(key)) {
            false => Some(Errno::EINVAL),
            true if !self.state.has_room() => Some(Errno::ENOSPC),
            true => None,
        };
        if refused.is_some() {
            // A refused move is dropped as a whole: the source begins again.
            self.drop_incoming(txid)?;
            return Ok(refused);
        }
        taking.next += 1;
        for (key, value) in records {
            self.state.put_record(key.into_vec(), Some(value.into_vec()));
        }
        Ok(None)
    }

    fn finish_receiving(&mut self, txid: Txid, whole: BlockSummary) -> MetaOutcome<()> {
        let Some(taking) = self.moves.destinations.get_mut(&txid) else { return Ok(()) };
        taking.next += 1;
        taking.brought.whole = Some(whole.clone());
        let record = record::encode_value(&taking.brought)?;
        self.state.put_record(keys::incoming_block(txid), Some(record));
        // Acknowledge only after a sync: the source deletes its records after this reply.
        self.moves.wants_sync = true;
        self.moves.events.push(MoveEvent::LockersAnnounced(whole.lockers));
        Ok(())
    }

    /// Takes over the shards that the map assigns to this executor.
    pub(super) fn take_over_shards(&mut self) -> MetaOutcome<()> {
        let (mut come, mut vain) = (Vec::new(), Vec::new());
        let moves = self.state.map().owners_and_moves().1;
        for (txid, MoveDestination { brought, .. }) in &self.moves.destinations {
            let block = brought.shard_block();
            let before = || block.iter_shards().zip(&brought.moves);
            let now = |shard: usize| moves[shard];
            // The number of moves identifies this very move: a later one of the same shard has a
            // higher number.
            if before().all(|(shard, moves)| {
                self.state.owns_shard(shard) && now(usize::from(shard.0)) == moves + 1
            }) && let Some(whole) = &brought.whole
            {
                come.push((*txid, whole.clone()));
            } else if before().any(|(shard, moves)| now(usize::from(shard.0)) > *moves) {
                vain.push(*txid);
            }
        }
        for (txid, BlockSummary { inodes, reserved, lockers }) in come {
            let taking = self.moves.destinations.remove(&txid);
            assert!(
                taking.as_ref().is_some_and(|taking| taking.brought.whole.is_some()),
                "shards are taken over before all records have arrived"
            );
            for (ino, client) in taking.map_or(Vec::new(), |taking| taking.opens) {
                self.state.opens.record_open(ino, client);
            }
            self.state.put_record(keys::incoming_block(txid), None);
            self.state.count_inodes(i64::try_from(inodes).unwrap_or(i64::MAX));
            // Numbers that the source has reserved must not be allocated twice.
            self.state.raise_reserved(reserved);
            self.state.forget_cached();
            self.moves.wants_sync = true;
            self.moves.events.push(MoveEvent::Arrived(lockers));
            self.garbage.extend(crate::garbage::garbage_nodes(&self.state)?);
            // Splits that the source had planned become ours.
            self.tx.splits.resume_planned(&self.state, self.tx.now)?;
        }
        for txid in vain {
            self.drop_incoming(txid)?;
        }
        self.update_mixed();
        Ok(())
    }

    /// Drops a move to this executor that has failed.
    pub(super) fn drop_incoming(&mut self, txid: Txid) -> MetaOutcome<()> {
        if let Some(taking) = self.moves.destinations.remove(&txid) {
            self.state.put_record(keys::incoming_block(txid), None);
            self.schedule_deletion(taking.brought.shard_block())?;
        }
        Ok(())
    }
}
