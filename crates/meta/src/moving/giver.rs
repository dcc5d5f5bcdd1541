//! The source of a shard migration: it serves the shards and gives them away.

use super::records::Cursor;
use super::{BYTES_MAX, KEYS_MAX, MoveEvent, MoveWants, refusal};
use crate::error::Outcome;
use crate::inode::Inode;
use crate::keys::tag;
use crate::shard::Meta;
use crate::store::Store;
use crate::transaction::later;
use crate::transaction::locks::Block;
use crate::transaction::record;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{Cargo, PeerMessage, Txid};
use tatami_wire::{ClientId, Errno, ExecutorId, Ino, Timestamp};

/// A chunk that is not acknowledged is sent again after this many ms.
const AGAIN: u64 = 200;
/// A move fails when nothing has happened for this long (in ms): before the shards are closed,
/// while delegations are recalled, and while the shards are closed.
const PATIENCE_OPEN: u64 = 10_000;
const PATIENCE_RECALL: u64 = 20_000;
const PATIENCE_CLOSED: u64 = 2_000;
/// About this many inodes are moved at a time. That takes a fraction of a second, in which
/// operations on them wait.
const INODES: u64 = 16 * 1024;

/// Most open files in one chunk.
const OPENS_MAX: usize = 4096;

/// The steps of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The destination has not yet accepted the shards.
    Asking,
    /// Delegations of the shards are being recalled.
    Recalling,
    /// Transactions that hold locks in the shards must end.
    Closing,
    /// The records are being sent.
    Sending,
    /// The daemon lists the clients that may hold locks.
    Lockers,
    /// The destination must have everything durably.
    Ending,
}

/// A move from here; see the module.
pub(super) struct Giving {
    pub txid: Txid,
    block: Block,
    to: ExecutorId,
    phase: Phase,
    /// The number of the last chunk, and its content until it is acknowledged.
    part: u32,
    cargo: Option<Cargo>,
    again_at: Timestamp,
    gives_up: Timestamp,
    cursor: Cursor,
    inodes: u64,
    /// The open files up to this one were sent.
    opens: Option<(Ino, ClientId)>,
}

impl Giving {
    /// Returns when the move must be handled next.
    pub fn due(&self) -> Timestamp {
        match (&self.cargo, self.phase) {
            (Some(_), _) | (None, Phase::Closing) => self.again_at.min(self.gives_up),
            _ => self.gives_up,
        }
    }
}

impl<S: Store> Meta<S> {
    /// Begins to move at most `count` shards from `first` on to another executor. Fewer are moved
    /// at a time where they have many inodes. The move is done when the map states so; or it fails,
    /// see [`Meta::take_move_failure`].
    ///
    /// # Errors
    /// `EBUSY` while another move from here is under way, `ESTALE` where this executor does not
    /// serve all of the shards, `EINVAL`, `EIO`.
    pub fn give(
        &mut self,
        now: Timestamp,
        first: u16,
        count: u16,
        to: ExecutorId,
    ) -> Result<(), Errno> {
        self.tx.now = self.tx.now.max(now);
        let shards = self.state.map().count();
        let end = usize::from(first) + usize::from(count);
        if count == 0 || end > shards || to == self.tx.here {
            return Err(Errno::EINVAL);
        }
        if self.moves.giving.is_some() {
            return Err(Errno::EBUSY);
        }
        if self.state.is_poisoned() {
            return Err(Errno::EIO);
        }
        let served = self.state.served().max(1) as u64;
        let each = (self.state.inodes() / served).max(1);
        // The shards stay closed while their records are sent, so the number of inodes is bounded.
        let block = Block { first, count: count.min((INODES / each).clamp(1, 4096) as u16) };
        if !block.shards().all(|shard| self.state.owns(shard)) {
            return Err(Errno::ESTALE);
        }
        self.spread_out().map_err(|failure| self.note(&failure))?;
        self.moves.failure = None;
        let moves = self.state.map().places().1;
        let moves = block.shards().map(|shard| moves[usize::from(shard.0)]).collect();
        let (txid, now) = (self.tx.name(), self.tx.now);
        self.moves.giving = Some(Giving {
            txid,
            block,
            to,
            phase: Phase::Asking,
            part: 0,
            cargo: Some(Cargo::Shards { first, moves }),
            again_at: now,
            gives_up: later(now, PATIENCE_OPEN),
            cursor: Cursor::default(),
            inodes: 0,
            opens: None,
        });
        Ok(())
    }

    /// Returns whether a move from here is under way.
    pub fn is_giving(&self) -> bool {
        self.moves.giving.is_some()
    }

    /// Takes the reason why the last move from here failed, if it did.
    pub fn take_move_failure(&mut self) -> Option<Errno> {
        self.moves.failure.take()
    }

    /// Returns the daemon's task that the move waits for.
    pub fn move_wants(&self) -> Option<MoveWants> {
        let Giving { phase, block: Block { first, count }, .. } = *self.moves.giving.as_ref()?;
        match phase {
            Phase::Recalling => Some(MoveWants::Recall(first, count)),
            Phase::Lockers => Some(MoveWants::Lockers(first, count)),
            _ => None,
        }
    }

    /// Ends [`MoveWants::Recall`].
    pub fn given_back(&mut self) {
        let now = self.tx.now;
        if let Some(giving) = self.moves.giving.as_mut().filter(|g| g.phase == Phase::Recalling) {
            giving.phase = Phase::Closing;
            (giving.again_at, giving.gives_up) = (now, later(now, PATIENCE_CLOSED));
            // Only now: a recall may need operations on these shards, which would wait for the
            // closed block.
            self.state.locks.close(Some((giving.block, giving.txid)));
        }
    }

    /// Ends [`MoveWants::Lockers`].
    pub fn tell_lockers(&mut self, lockers: Vec<ClientId>) {
        let (inodes, reserved) = match &self.moves.giving {
            Some(giving) if giving.phase == Phase::Lockers => {
                (giving.inodes, self.state.reserved())
            }
            _ => return,
        };
        self.send_part(Phase::Ending, Cargo::End { inodes, reserved, lockers });
    }

    fn send_part(&mut self, phase: Phase, cargo: Cargo) {
        let now = self.tx.now;
        let Some(giving) = &mut self.moves.giving else { return };
        giving.phase = phase;
        giving.part += 1;
        giving.again_at = later(now, AGAIN);
        giving.gives_up = later(now, PATIENCE_CLOSED);
        giving.cargo = Some(cargo.clone());
        let (to, txid, part) = (giving.to, giving.txid, giving.part);
        self.tx.send(to, PeerMessage::Carry { txid, part, cargo });
    }

    /// Handles the destination's reply to a chunk.
    pub(super) fn part_taken(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        part: u32,
        refused: Option<Errno>,
    ) -> Outcome<()> {
        let now = self.tx.now;
        let Some(giving) = &mut self.moves.giving else { return Ok(()) };
        if giving.txid != txid || giving.to != from {
            return Ok(());
        }
        if let Some(errno) = refused {
            self.give_up(errno);
            return Ok(());
        }
        // A late acknowledgement of an earlier chunk.
        if giving.part != part || giving.cargo.is_none() {
            return Ok(());
        }
        giving.cargo = None;
        match giving.phase {
            Phase::Asking => {
                giving.phase = Phase::Recalling;
                giving.gives_up = later(now, PATIENCE_RECALL);
            }
            Phase::Sending => return self.send_more(),
            Phase::Ending => return self.decide_move(),
            Phase::Recalling | Phase::Closing | Phase::Lockers => {}
        }
        Ok(())
    }

    /// Sends the next records, or the next step when there are no more.
    fn send_more(&mut self) -> Outcome<()> {
        let Some(giving) = &mut self.moves.giving else { return Ok(()) };
        if giving.cursor.is_at_end() {
            // Open files follow the records. They are in memory only, and bounded.
            let opens = self.state.opens.of_block(giving.block, giving.opens, OPENS_MAX);
            if let Some(last) = opens.last() {
                giving.opens = Some(*last);
                self.send_part(Phase::Sending, Cargo::Opens(opens));
                return Ok(());
            }
            // The daemon keeps file locks, not this crate: it lists their possible holders.
            giving.phase = Phase::Lockers;
            giving.gives_up = later(self.tx.now, PATIENCE_CLOSED);
            return Ok(());
        }
        let found = self.state.records_of(giving.block, &mut giving.cursor, KEYS_MAX, BYTES_MAX)?;
        for (key, value) in &found {
            giving.inodes += u64::from(is_inode(key, value)?);
        }
        let records =
            found.into_iter().map(|(key, value)| (Bytes::from(key), Bytes::from(value))).collect();
        self.send_part(Phase::Sending, Cargo::Records(records));
        Ok(())
    }

    /// Commits the move: from this batch on, the destination serves the shards.
    fn decide_move(&mut self) -> Outcome<()> {
        let Some(Giving { txid, block, to, inodes, .. }) = self.moves.giving.take() else {
            return Ok(());
        };
        let Block { first, count } = block;
        let mut cluster = self.state.cluster().clone();
        cluster.give((first, count), to);
        let record = record::encode(&cluster)?;
        // The new map and the deletion of the records here are in one batch.
        self.state.put_map(cluster, Some(record));
        self.state.count_inodes(-i64::try_from(inodes).unwrap_or(i64::MAX));
        self.state.forget_cached();
        self.clear_later(block)?;
        // The destination may learn of the move only after this batch is durable here.
        self.moves.wants_sync = true;
        self.moves.events.push(MoveEvent::Gone(first, count));
        // The new map leaves first: restarted operations are sent to the destination.
        self.tell_map(to);
        self.start_afresh();
        self.reopen(txid);
        Ok(())
    }

    /// Resumes the operations that waited for the shards.
    fn reopen(&mut self, txid: Txid) {
        self.state.locks.close(None);
        self.tx.freed.push(txid);
    }

    /// Aborts the move.
    pub(super) fn give_up(&mut self, errno: Errno) {
        if let Some(Giving { txid, .. }) = self.moves.giving.take() {
            self.moves.failure = Some(errno);
            self.moves.events.push(MoveEvent::Stayed);
            self.reopen(txid);
        }
    }

    pub(super) fn tick_giving(&mut self, now: Timestamp) -> Outcome<()> {
        let Some(giving) = &mut self.moves.giving else { return Ok(()) };
        if giving.gives_up <= now {
            let away = giving.cargo.is_some();
            self.give_up(if away { Errno::EHOSTDOWN } else { Errno::EAGAIN });
            return Ok(());
        }
        if giving.again_at > now {
            return Ok(());
        }
        if let Some(cargo) = &giving.cargo {
            giving.again_at = later(now, AGAIN);
            let (txid, part, cargo) = (giving.txid, giving.part, cargo.clone());
            let to = giving.to;
            self.tx.send(to, PeerMessage::Carry { txid, part, cargo });
        } else if giving.phase == Phase::Closing {
            giving.again_at = later(now, 1);
            // Transactions with locks in the block end within their own time limits. No new one
            // gets in.
            if !self.state.locks.touch(giving.block)
                && let Err(failure) = self.send_more()
            {
                let errno = refusal(&failure);
                self.note(&failure);
                self.give_up(errno);
            }
        }
        Ok(())
    }
}

/// Returns whether it is the record of an inode that is counted.
fn is_inode(key: &[u8], value: &[u8]) -> Outcome<bool> {
    Ok(match key.first() {
        // Partitions are not counted; nor is a record that cannot be decoded.
        Some(&tag::INODE) => Inode::decode(value).is_ok_and(|inode| !inode.is_part()),
        Some(&tag::YOUNG) => true,
        _ => false,
    })
}
