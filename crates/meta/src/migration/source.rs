//! The source of a shard migration: it serves the shards and gives them away.

use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::tag;
use crate::migration::moves::{
    BYTES_MAX, KEYS_MAX, MoveEvent, MovePhase, MoveRequest, MoveSource, refusal_errno,
};
use crate::migration::records::BlockCursor;
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::store::Store;
use crate::transaction::locks::ShardBlock;
use crate::transaction::record;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{MigrationChunk, PeerMessage, Txid};
use tatami_wire::{ClientId, Errno, ExecutorId, Timestamp};

/// A chunk that is not acknowledged is sent again after this many ms.
const RESEND_MS: u64 = 200;
/// A move fails when nothing has happened for this long (in ms): before the shards are closed,
/// while delegations are recalled, and while the shards are closed.
const TIMEOUT_OPEN_MS: u64 = 10_000;
const TIMEOUT_RECALL_MS: u64 = 20_000;
const TIMEOUT_CLOSED_MS: u64 = 2_000;
/// About this many inodes are moved at a time. That takes a fraction of a second, in which
/// operations on them wait.
const INODES_PER_MOVE: u64 = 16 * 1024;

/// Most open files in one chunk.
const OPENS_MAX: usize = 4096;

impl<S: Store> Meta<S> {
    /// Begins to move at most `count` shards from `first` on to another executor. Fewer are moved
    /// at a time where they have many inodes. The move is done when the map states so; or it fails,
    /// see [`Meta::take_move_failure`].
    ///
    /// # Errors
    /// `EBUSY` while another move from here is under way, `ESTALE` where this executor does not
    /// serve all of the shards, `EINVAL`, `EIO`.
    pub fn begin_move(
        &mut self,
        now: Timestamp,
        first: u16,
        count: u16,
        to: ExecutorId,
    ) -> Result<(), Errno> {
        self.tx.now = self.tx.now.max(now);
        let shards = self.state.map().shard_count();
        let end = usize::from(first) + usize::from(count);
        if count == 0 || end > shards || to == self.tx.here {
            return Err(Errno::EINVAL);
        }
        if self.moves.source.is_some() {
            return Err(Errno::EBUSY);
        }
        if self.state.is_poisoned() {
            return Err(Errno::EIO);
        }
        let served = self.state.count_served().max(1) as u64;
        let each = (self.state.inode_count() / served).max(1);
        // The shards stay closed while their records are sent, so the number of inodes is bounded.
        let block =
            ShardBlock { first, count: count.min((INODES_PER_MOVE / each).clamp(1, 4096) as u16) };
        if !block.iter_shards().all(|shard| self.state.owns_shard(shard)) {
            return Err(Errno::ESTALE);
        }
        assert_eq!(self.state.locks.closed_block(), None, "shards are closed without a move");
        self.enter_spread_mode().map_err(|failure| self.record_failure(&failure))?;
        self.moves.failure = None;
        let moves = self.state.map().owners_and_moves().1;
        let moves = block.iter_shards().map(|shard| moves[usize::from(shard.0)]).collect();
        let (txid, now) = (self.tx.next_txid(), self.tx.now);
        self.moves.source = Some(MoveSource {
            txid,
            block,
            destination: to,
            phase: MovePhase::Offering,
            chunk_number: 0,
            chunk: Some(MigrationChunk::Shards { first, moves }),
            again_at: now,
            gives_up: add_millis(now, TIMEOUT_OPEN_MS),
            cursor: BlockCursor::default(),
            inodes: 0,
            opens: None,
        });
        Ok(())
    }

    /// Takes the reason why the last move from here failed, if it did.
    pub fn take_move_failure(&mut self) -> Option<Errno> {
        self.moves.failure.take()
    }

    /// Returns the daemon's task that the move waits for.
    pub fn pending_move_request(&self) -> Option<MoveRequest> {
        let MoveSource { phase, block: ShardBlock { first, count }, .. } =
            *self.moves.source.as_ref()?;
        match phase {
            MovePhase::Recalling => Some(MoveRequest::Recall(first, count)),
            MovePhase::ListingLockers => Some(MoveRequest::ListLockers(first, count)),
            _ => None,
        }
    }

    /// Ends [`MoveRequest::Recall`].
    pub fn recalls_done(&mut self) {
        let now = self.tx.now;
        if let Some(giving) = self.moves.source.as_mut().filter(|g| g.phase == MovePhase::Recalling)
        {
            assert!(giving.chunk.is_none(), "a move goes on before its last chunk has arrived");
            giving.phase = MovePhase::Closing;
            (giving.again_at, giving.gives_up) = (now, add_millis(now, TIMEOUT_CLOSED_MS));
            // Only now: a recall may need operations on these shards, which would wait for the
            // closed block.
            self.state.locks.set_closed_block(Some((giving.block, giving.txid)));
        }
    }

    /// Ends [`MoveRequest::ListLockers`].
    pub fn provide_lockers(&mut self, lockers: Vec<ClientId>) {
        let (inodes, reserved) = match &self.moves.source {
            Some(giving) if giving.phase == MovePhase::ListingLockers => {
                (giving.inodes, self.state.reserved())
            }
            _ => return,
        };
        self.send_chunk(MovePhase::Ending, MigrationChunk::Last { inodes, reserved, lockers });
    }

    fn send_chunk(&mut self, phase: MovePhase, cargo: MigrationChunk) {
        let now = self.tx.now;
        let Some(giving) = &mut self.moves.source else { return };
        assert!(giving.chunk.is_none(), "a move goes on before its last chunk has arrived");
        // Else an operation could change a record after its copy was sent.
        assert_eq!(
            self.state.locks.closed_block(),
            Some((giving.block, giving.txid)),
            "records are sent while their shards are open"
        );
        giving.phase = phase;
        giving.chunk_number += 1;
        giving.again_at = add_millis(now, RESEND_MS);
        giving.gives_up = add_millis(now, TIMEOUT_CLOSED_MS);
        giving.chunk = Some(cargo.clone());
        let (to, txid, part) = (giving.destination, giving.txid, giving.chunk_number);
        self.tx.send_message(to, PeerMessage::CopyChunk { txid, number: part, chunk: cargo });
    }

    /// Handles the destination's reply to a chunk.
    pub(super) fn handle_chunk_reply(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        part: u32,
        refused: Option<Errno>,
    ) -> MetaOutcome<()> {
        let now = self.tx.now;
        let Some(giving) = &mut self.moves.source else { return Ok(()) };
        if giving.txid != txid || giving.destination != from {
            return Ok(());
        }
        if let Some(errno) = refused {
            self.abort_move(errno);
            return Ok(());
        }
        // A late acknowledgement of an earlier chunk.
        if giving.chunk_number != part || giving.chunk.is_none() {
            return Ok(());
        }
        giving.chunk = None;
        match giving.phase {
            MovePhase::Offering => {
                giving.phase = MovePhase::Recalling;
                giving.gives_up = add_millis(now, TIMEOUT_RECALL_MS);
            }
            MovePhase::Sending => return self.send_next_chunk(),
            MovePhase::Ending => return self.commit_move(),
            MovePhase::Recalling | MovePhase::Closing | MovePhase::ListingLockers => {}
        }
        Ok(())
    }

    /// Sends the next records, or the next step when there are no more.
    fn send_next_chunk(&mut self) -> MetaOutcome<()> {
        let Some(giving) = &mut self.moves.source else { return Ok(()) };
        if giving.cursor.is_at_end() {
            // Open files follow the records. They are in memory only, and bounded.
            let opens = self.state.opens.files_in_block(giving.block, giving.opens, OPENS_MAX);
            if let Some(last) = opens.last() {
                giving.opens = Some(*last);
                self.send_chunk(MovePhase::Sending, MigrationChunk::Opens(opens));
                return Ok(());
            }
            // The daemon keeps file locks, not this crate: it lists their possible holders.
            giving.phase = MovePhase::ListingLockers;
            giving.gives_up = add_millis(self.tx.now, TIMEOUT_CLOSED_MS);
            return Ok(());
        }
        assert!(
            !self.state.locks.has_locks_in(giving.block),
            "a transaction holds locks in shards that are sent"
        );
        let found =
            self.state.block_records(giving.block, &mut giving.cursor, KEYS_MAX, BYTES_MAX)?;
        for (key, value) in &found {
            giving.inodes += u64::from(is_counted_inode(key, value)?);
        }
        let records =
            found.into_iter().map(|(key, value)| (Bytes::from(key), Bytes::from(value))).collect();
        self.send_chunk(MovePhase::Sending, MigrationChunk::Records(records));
        Ok(())
    }

    /// Commits the move: from this batch on, the destination serves the shards.
    fn commit_move(&mut self) -> MetaOutcome<()> {
        let Some(MoveSource { txid, block, destination: to, inodes, phase, cursor, .. }) =
            self.moves.source.take()
        else {
            return Ok(());
        };
        assert_eq!(phase, MovePhase::Ending, "a move is committed before its last chunk");
        assert!(cursor.is_at_end(), "a move is committed before all records were sent");
        assert!(
            !self.state.locks.has_locks_in(block),
            "a transaction holds locks in shards that are sent"
        );
        let ShardBlock { first, count } = block;
        let mut cluster = self.state.cluster().clone();
        cluster.assign_shards((first, count), to);
        let record = record::encode_value(&cluster)?;
        // The new map and the deletion of the records here are in one batch.
        self.state.replace_map(cluster, Some(record));
        assert!(
            block.iter_shards().all(|shard| !self.state.owns_shard(shard)),
            "shards that have moved away are served"
        );
        self.state.count_inodes(-i64::try_from(inodes).unwrap_or(i64::MAX));
        self.state.forget_cached();
        self.schedule_deletion(block)?;
        // The destination may learn of the move only after this batch is durable here.
        self.moves.wants_sync = true;
        self.moves.events.push(MoveEvent::MovedAway(first, count));
        // The new map leaves first: restarted operations are sent to the destination.
        self.send_map(to);
        self.restart_operations();
        self.reopen_shards(txid);
        Ok(())
    }

    /// Resumes the operations that waited for the shards.
    fn reopen_shards(&mut self, txid: Txid) {
        self.state.locks.set_closed_block(None);
        self.tx.released.push(txid);
    }

    /// Aborts the move.
    pub(super) fn abort_move(&mut self, errno: Errno) {
        if let Some(MoveSource { txid, .. }) = self.moves.source.take() {
            self.moves.failure = Some(errno);
            self.moves.events.push(MoveEvent::MoveFailed);
            self.reopen_shards(txid);
        }
    }

    pub(super) fn tick_source(&mut self, now: Timestamp) -> MetaOutcome<()> {
        let Some(giving) = &mut self.moves.source else { return Ok(()) };
        if giving.gives_up <= now {
            let away = giving.chunk.is_some();
            self.abort_move(if away { Errno::EHOSTDOWN } else { Errno::EAGAIN });
            return Ok(());
        }
        if giving.again_at > now {
            return Ok(());
        }
        if let Some(cargo) = &giving.chunk {
            giving.again_at = add_millis(now, RESEND_MS);
            let (txid, part, cargo) = (giving.txid, giving.chunk_number, cargo.clone());
            let to = giving.destination;
            self.tx.send_message(to, PeerMessage::CopyChunk { txid, number: part, chunk: cargo });
        } else if giving.phase == MovePhase::Closing {
            giving.again_at = add_millis(now, 1);
            // Transactions with locks in the block end within their own time limits. No new one
            // gets in.
            if !self.state.locks.has_locks_in(giving.block)
                && let Err(failure) = self.send_next_chunk()
            {
                let errno = refusal_errno(&failure);
                self.record_failure(&failure);
                self.abort_move(errno);
            }
        }
        Ok(())
    }
}

/// Returns whether it is the record of an inode that is counted.
fn is_counted_inode(key: &[u8], value: &[u8]) -> MetaOutcome<bool> {
    Ok(match key.first() {
        // Partitions are not counted; nor is a record that cannot be decoded.
        Some(&tag::INODE) => Inode::decode(value).is_ok_and(|inode| !inode.is_later_partition()),
        Some(&tag::EMBEDDED_DIR) => true,
        _ => false,
    })
}
