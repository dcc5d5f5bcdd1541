//! An operation that needs other executors, and a transaction that is decided.

use crate::context::OperationContext;
use crate::error::MetaOutcome;
use crate::keys::RecordKey;
use crate::operation::{OperationWrites, RerunContext};
use crate::transaction::lock_set::LockSet;
use crate::transaction::messages::Ticket;
use crate::transaction::prepare_attempt::PrepareAttempt;
use crate::transaction::record::ParticipantWrites;
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::transaction::{TransactionAge, Txid};
use tatami_wire::{Cred, ExecutorId, Ino, Timestamp};

/// An operation that needs other executors.
pub(crate) struct PendingOperation {
    pub(crate) ticket: Ticket,
    pub(crate) ctx: OperationContext,
    pub(crate) cred: Cred,
    pub(crate) op: MetaOp,
    pub(crate) age: TransactionAge,
    pub(crate) gives_up: Timestamp,
    /// Failed attempts.
    pub(crate) tries: u32,
    /// Locks the records that it asks for.
    pub(crate) locks: bool,
    pub(crate) rerun: RerunContext,
    /// The executors that were asked, and the number of rounds, since the last fresh start.
    pub(crate) asked: BTreeSet<ExecutorId>,
    pub(crate) rounds: u32,
    /// Digest of the local records that had been read when the last request was sent.
    pub(crate) trace: u128,
    /// Digest of all that a complete run has read, to be confirmed by a second run.
    pub(crate) confirm: Option<u128>,
    /// The inodes of this executor that the last run has read.
    pub(crate) seen: Vec<Ino>,
    pub(crate) phase: OperationPhase,
}

pub(crate) enum OperationPhase {
    /// Participants lock the records that it asks for.
    Locking(LockSet),
    Fetching {
        request: Txid,
        left: BTreeMap<ExecutorId, Vec<RecordKey>>,
        again_at: Timestamp,
    },
    /// Records of this executor are locked by a participant's transaction.
    Blocked {
        on: Vec<Txid>,
        ask_at: Timestamp,
    },
    /// Participants prepare the writes of a split.
    Preparing(PrepareAttempt),
    Resting {
        until: Timestamp,
    },
}

/// A committed transaction that not all participants have acknowledged.
pub(crate) struct DecidedTransaction {
    pub left: BTreeMap<ExecutorId, ParticipantWrites>,
    pub again_at: Timestamp,
    pub since: Timestamp,
    /// The inodes of this executor that it has changed.
    pub changed: Vec<Ino>,
}

/// The result of one run of an operation.
pub(crate) struct OperationRun {
    pub result: MetaOutcome<MetaReply>,
    pub done: OperationWrites,
    pub used: BTreeSet<RecordKey>,
    pub(crate) trace: u128,
}

impl PendingOperation {
    /// Returns the partition that it splits, if it is a split.
    pub fn split_target(&self) -> Option<Ino> {
        match self.op {
            MetaOp::SplitPartition { partition: part, .. } => Some(part),
            _ => None,
        }
    }

    /// Returns when the job must be handled next.
    pub fn next_due(&self) -> Timestamp {
        let due = match &self.phase {
            OperationPhase::Fetching { again_at, .. } => *again_at,
            OperationPhase::Blocked { ask_at, .. } => *ask_at,
            OperationPhase::Preparing(attempt) => attempt.next_due(),
            OperationPhase::Locking(lock_set) => lock_set.next_due(),
            OperationPhase::Resting { until } => *until,
        };
        due.min(self.gives_up)
    }
}
