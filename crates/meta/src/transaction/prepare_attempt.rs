//! The state of the prepare phase of a split.

use crate::inode::Inode;
use crate::operation::{ExecutorShare, OperationWrites};
use std::sync::Arc;
use tatami_wire::transaction::Txid;
use tatami_wire::{ExecutorId, Timestamp};

/// A prepare phase in progress; see the module.
pub(crate) struct PrepareAttempt {
    /// The writes of this executor. Those of the others are in `pieces`.
    pub(crate) writes: OperationWrites,
    /// The partition, and the epoch of the map, from which all writes were computed.
    pub(crate) base: Option<Arc<Inode>>,
    pub(crate) epoch: u64,
    pub(crate) pieces: Vec<PreparePart>,
    pub(crate) again_at: Timestamp,
    pub(crate) ends: Timestamp,
}

/// The part that one message prepares.
pub(crate) struct PreparePart {
    pub(crate) on: ExecutorId,
    pub(crate) txid: Txid,
    pub(crate) share: ExecutorShare,
    pub(crate) is_ready: bool,
}

impl PrepareAttempt {
    pub fn has_transaction(&self, txid: Txid) -> bool {
        self.pieces.iter().any(|piece| piece.txid == txid)
    }

    pub fn waits_for(&self, executor: ExecutorId, txid: Txid) -> bool {
        self.pieces
            .iter()
            .any(|piece| piece.on == executor && piece.txid == txid && !piece.is_ready)
    }

    pub fn txids(&self) -> impl Iterator<Item = (ExecutorId, Txid)> {
        self.pieces.iter().map(|piece| (piece.on, piece.txid))
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.ends <= now
    }

    /// Returns when the attempt must be handled next.
    pub fn next_due(&self) -> Timestamp {
        self.again_at.min(self.ends)
    }

    /// Returns the first transaction, which stands for all of them.
    pub(crate) fn first_txid(&self) -> Option<Txid> {
        self.pieces.first().map(|piece| piece.txid)
    }

    /// Returns a time that grows with the number of messages.
    pub(crate) fn scaled_time(&self, ms: u64) -> u64 {
        ms * (1 + self.pieces.len() as u64 / MESSAGES_AT_ONCE)
    }
}

/// This many messages are answered in the time limit of one.
pub(crate) const MESSAGES_AT_ONCE: u64 = 2;
