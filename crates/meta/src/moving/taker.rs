//! The destination of a shard migration: it receives shards.

use super::{Brought, MoveEvent, Whole};
use crate::error::Outcome;
use crate::keys;
use crate::shard::Meta;
use crate::store::Store;
use crate::transaction::locks::Block;
use crate::transaction::{later, record};
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{Cargo, PeerMessage, Txid};
use tatami_wire::{ClientId, Errno, Ino, Timestamp};

/// The source is asked for the outcome of a move after this many ms.
pub(super) const ASK: u64 = 500;

/// A move to here in progress.
pub(super) struct Taking {
    pub brought: Brought,
    /// The number of the next chunk.
    pub next: u32,
    /// When the source is asked.
    pub ask_at: Timestamp,
    /// The open files and their clients.
    pub opens: Vec<(Ino, ClientId)>,
}

impl<S: Store> Meta<S> {
    /// Handles a chunk of a move to this executor.
    pub(super) fn take_part(&mut self, txid: Txid, part: u32, cargo: Cargo) -> Outcome<()> {
        let next = self.moves.taking.get(&txid).map(|taking| taking.next);
        let refused = match (next, cargo) {
            // The chunk was acknowledged, and the acknowledgement was lost.
            (Some(next), _) if next == part.wrapping_add(1) => None,
            (None, Cargo::Shards { first, moves }) if part == 0 => {
                match self.begin_taking(txid, first, moves)? {
                    Some(refused) => refused,
                    // The source sends it again.
                    None => return Ok(()),
                }
            }
            (Some(next), Cargo::Records(records)) if next == part => {
                self.take_records(txid, records)?
            }
            (Some(next), Cargo::Opens(opens)) if next == part => {
                if let Some(taking) = self.moves.taking.get_mut(&txid) {
                    taking.next += 1;
                    taking.opens.extend(opens);
                }
                None
            }
            (Some(next), Cargo::End { inodes, reserved, lockers }) if next == part => {
                self.end_taking(txid, Whole { inodes, reserved, lockers })?;
                None
            }
            // This executor has restarted since, or dropped the move.
            (None, _) => Some(Errno::EAGAIN),
            (Some(_), _) => return Ok(()),
        };
        self.tx.send(txid.executor, PeerMessage::Carried { txid, part, refused });
        Ok(())
    }

    /// Returns whether the shards would be accepted, or the reason why not; `None` for a later
    /// retry.
    fn begin_taking(
        &mut self,
        txid: Txid,
        first: u16,
        moves: Vec<u32>,
    ) -> Outcome<Option<Option<Errno>>> {
        let shards = self.state.map().count();
        if moves.is_empty() || usize::from(first) + moves.len() > shards {
            return Ok(Some(Some(Errno::EINVAL)));
        }
        let brought = Brought { first, moves, whole: None };
        let block = brought.block();
        let known = self.state.map().places().1;
        let stale = block
            .shards()
            .zip(&brought.moves)
            .any(|(shard, moves)| self.state.owns(shard) || known[usize::from(shard.0)] > *moves);
        // The source has an old map: some of these shards have moved since.
        if stale {
            self.tell_map(txid.executor);
            return Ok(Some(Some(Errno::ESTALE)));
        }
        if !self.state.has_room() {
            return Ok(Some(Some(Errno::ENOSPC)));
        }
        // Of two moves of one shard, the older one has failed before the newer one began.
        let mut before = Vec::new();
        for (other, taking) in &self.moves.taking {
            match taking.brought.is_before(*other, &brought, txid) {
                Some(true) => before.push(*other),
                Some(false) => return Ok(Some(Some(Errno::ESTALE))),
                None => {}
            }
        }
        for other in before {
            self.drop_taking(other)?;
        }
        // Records of an earlier move of these shards are still being deleted. New ones would be
        // deleted with them.
        if self.moves.clearing.iter().any(|old| old.meets(block)) {
            return Ok(None);
        }
        self.spread_out()?;
        // The record marks the chunks that follow as not served, also after a restart.
        self.state.put(keys::brought(txid), Some(record::encode(&brought)?));
        self.state.put_shard();
        let ask_at = later(self.tx.now, ASK);
        self.moves.taking.insert(txid, Taking { brought, next: 1, ask_at, opens: Vec::new() });
        self.note_mixed();
        Ok(Some(None))
    }

    fn take_records(&mut self, txid: Txid, records: Vec<(Bytes, Bytes)>) -> Outcome<Option<Errno>> {
        let Some(taking) = self.moves.taking.get_mut(&txid) else { return Ok(None) };
        let block = taking.brought.block();
        let sound = |key: &[u8]| block.has_key(key) && keys::parse(key).is_some();
        let refused = match records.iter().all(|(key, _)| sound(key)) {
            false => Some(Errno::EINVAL),
            true if !self.state.has_room() => Some(Errno::ENOSPC),
            true => None,
        };
        if refused.is_some() {
            // A refused move is dropped as a whole: the source begins again.
            self.drop_taking(txid)?;
            return Ok(refused);
        }
        taking.next += 1;
        for (key, value) in records {
            self.state.put(key.into_vec(), Some(value.into_vec()));
        }
        Ok(None)
    }

    fn end_taking(&mut self, txid: Txid, whole: Whole) -> Outcome<()> {
        let Some(taking) = self.moves.taking.get_mut(&txid) else { return Ok(()) };
        taking.next += 1;
        taking.brought.whole = Some(whole.clone());
        let record = record::encode(&taking.brought)?;
        self.state.put(keys::brought(txid), Some(record));
        // Acknowledge only after a sync: the source deletes its records after this reply.
        self.moves.wants_sync = true;
        self.moves.events.push(MoveEvent::Foreseen(whole.lockers));
        Ok(())
    }

    /// Takes over the shards that the map assigns to this executor.
    pub(super) fn take_over(&mut self) -> Outcome<()> {
        let (mut come, mut vain) = (Vec::new(), Vec::new());
        let moves = self.state.map().places().1;
        for (txid, Taking { brought, .. }) in &self.moves.taking {
            let block = brought.block();
            let before = || block.shards().zip(&brought.moves);
            let now = |shard: usize| moves[shard];
            // The number of moves identifies this very move: a later one of the same shard has a
            // higher number.
            if before().all(|(shard, moves)| {
                self.state.owns(shard) && now(usize::from(shard.0)) == moves + 1
            }) && let Some(whole) = &brought.whole
            {
                come.push((*txid, whole.clone()));
            } else if before().any(|(shard, moves)| now(usize::from(shard.0)) > *moves) {
                vain.push(*txid);
            }
        }
        for (txid, Whole { inodes, reserved, lockers }) in come {
            let opens = self.moves.taking.remove(&txid).map(|taking| taking.opens);
            for (ino, client) in opens.unwrap_or_default() {
                self.state.opens.add(ino, client);
            }
            self.state.put(keys::brought(txid), None);
            self.state.count_inodes(i64::try_from(inodes).unwrap_or(i64::MAX));
            // Numbers that the source has reserved must not be allocated twice.
            self.state.raise(reserved);
            self.state.forget_cached();
            self.moves.wants_sync = true;
            self.moves.events.push(MoveEvent::Come(lockers));
            self.garbage.extend(crate::orphan::garbage_nodes(&self.state)?);
            // Splits that the source had planned become ours.
            self.tx.splits.resume(&self.state, self.tx.now)?;
        }
        for txid in vain {
            self.drop_taking(txid)?;
        }
        self.note_mixed();
        Ok(())
    }

    /// Drops a move to this executor that has failed.
    pub(super) fn drop_taking(&mut self, txid: Txid) -> Outcome<()> {
        if let Some(taking) = self.moves.taking.remove(&txid) {
            self.state.put(keys::brought(txid), None);
            self.clear_later(taking.brought.block())?;
        }
        Ok(())
    }
}

impl Brought {
    /// Returns whether it was begun before the other one; `None` where they have no shard in
    /// common.
    fn is_before(&self, txid: Txid, other: &Brought, other_txid: Txid) -> Option<bool> {
        let (block, theirs): (Block, Block) = (self.block(), other.block());
        let common = block.shards().find(|shard| theirs.has(*shard))?;
        let moves = |of: &Brought| of.moves[usize::from(common.0 - of.first)];
        Some((moves(self), txid) < (moves(other), other_txid))
    }
}
