//! Partition splits (GIGA+), which an executor begins on its own.
//!
//! A split is an operation without a client, run like those of clients. It starts some time after
//! the answer to the operation that made the partition too large. It writes nearly all records of a
//! partition, while clients create entries there. So while participants prepare it, no other
//! operation may write the partition. That lock is in memory only, since it protects a transaction
//! of this executor. It lasts at most [`PREPARE_MS`] while a participant does not answer.

use super::add_millis;
use super::coordinator::PendingOperation;
use super::locks::TransactionLocks;
use super::record::LockRecord;
use crate::error::MetaOutcome;
use crate::keys::{self, ParsedKey, tag};
use crate::operation::OperationWrites;
use crate::shard::{Meta, OperationContext};
use crate::state::MetaState;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tatami_wire::meta::{Bytes, MetaOp};
use tatami_wire::transaction::{TransactionAge, Txid};
use tatami_wire::{ClientId, Cred, Errno, ExecutorId, Ino, Timestamp};

/// A partition that has grown is split after this many ms.
const SPLIT_DELAY_MS: u64 = 1;
/// The partition stays locked for at most this long (in ms) while a participant does not answer.
pub(super) const PREPARE_MS: u64 = 100;
/// Shortest rest (in ms) between two attempts.
pub(super) const SPLIT_REST_MS: u64 = 500;
/// A failed split is tried again after this many ms.
const SPLIT_RETRY_MS: u64 = 2_000;

/// The client of a split.
pub(crate) const NO_CLIENT: ClientId = ClientId([0; 16]);

/// The splits that are planned and in progress.
#[derive(Default)]
pub(crate) struct Splits {
    /// Partitions, and when their split begins.
    planned: BTreeMap<Ino, Timestamp>,
    /// Partitions whose split is under way.
    running: BTreeSet<Ino>,
    /// Partitions that no other operation may write until their split is done.
    locked: BTreeSet<Ino>,
}

impl Splits {
    /// Plans the splits that were due when the executor died, or when another executor served the
    /// shard.
    pub fn resume_planned<S: Store>(
        &mut self,
        state: &MetaState<S>,
        now: Timestamp,
    ) -> MetaOutcome<()> {
        state.scan_records(&[tag::PLANNED_SPLIT], &[tag::PLANNED_SPLIT], &mut |key, _| {
            if let Some(ParsedKey::PlannedSplit(part)) = keys::parse(key)
                && state.owns_shard(part.owner_shard())
                && !self.running.contains(&part)
            {
                self.planned.insert(part, add_millis(now, SPLIT_DELAY_MS));
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns when the next one begins.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.planned.values().min().copied()
    }

    /// Returns the number of splits that have not begun.
    pub fn count_planned(&self) -> usize {
        self.planned.len()
    }

    /// Returns whether a partition is locked by its split.
    pub fn is_locked(&self, part: Ino) -> bool {
        self.locked.contains(&part)
    }

    /// Ends a split; plans it again if it was in vain.
    pub fn end_split(&mut self, part: Ino, now: Timestamp, in_vain: bool) {
        self.running.remove(&part);
        if in_vain {
            self.planned.insert(part, add_millis(now, SPLIT_RETRY_MS));
        }
    }

    /// Locks the partition against all other writers.
    pub fn lock_partition(
        &mut self,
        locks: &mut TransactionLocks,
        part: Ino,
        txid: Txid,
        age: TransactionAge,
    ) {
        self.locked.insert(part);
        // A shared lock on the inode is enough: every operation that makes or removes an entry
        // writes the inode.
        let reads = vec![Bytes::from(keys::inode(part))];
        // The lock is local, so no coordinator is ever asked about it.
        let never = Timestamp { sec: i64::MAX, nsec: 0 };
        let (intents, writes) = (Vec::new(), Vec::new());
        locks.insert(txid, LockRecord { age, incarnation: 0, reads, intents, writes }, never);
    }

    /// Undoes [`Splits::lock_partition`].
    pub fn unlock_partition(&mut self, locks: &mut TransactionLocks, part: Ino, txid: Txid) {
        self.locked.remove(&part);
        locks.remove(&txid);
    }
}

impl<S: Store> Meta<S> {
    /// Sets the number of entries above which partitions are split; the default is 1024.
    pub fn set_split_above(&mut self, entries: u64) {
        self.state.split_above = entries;
    }

    /// Plans the splits of partitions that have grown.
    pub(crate) fn plan_splits(&mut self) {
        for part in std::mem::take(&mut self.state.grown) {
            let splits = &mut self.tx.splits;
            if !splits.running.contains(&part) && !splits.planned.contains_key(&part) {
                splits.planned.insert(part, add_millis(self.tx.now, SPLIT_DELAY_MS));
                // The record lets a restart, or the next owner of the shard, find the planned
                // split.
                self.state.put_record(keys::planned_split(part), Some(vec![1]));
            }
        }
    }

    /// Begins the splits that are due.
    pub(crate) fn begin_splits(&mut self) {
        let now = self.tx.now;
        let planned = self.tx.splits.planned.iter().filter(|(_, due)| **due <= now);
        let due: Vec<_> = planned.map(|(part, _)| *part).collect();
        for part in due {
            self.tx.splits.planned.remove(&part);
            self.tx.splits.running.insert(part);
            let seq = self.tx.next;
            let ctx = OperationContext { now, client: NO_CLIENT, slot: 0, seq, trusted: true };
            let op = MetaOp::SplitPartition { partition: part, above: self.state.split_above };
            self.begin_operation(&ctx, &Cred::ROOT, &op);
        }
    }

    /// Resumes the operations that waited for a split of this executor.
    pub(crate) fn resume_freed(&mut self) {
        while let Some(txid) = self.tx.released.pop() {
            if let Err(failure) = self.resume_waiters(txid) {
                self.record_failure(&failure);
            }
        }
    }

    /// Returns an executor that must confirm the split. Its vote proves that no client relies on
    /// the old range of the partition any more: the message waits for all recalls.
    pub(super) fn split_witness(
        &self,
        job: &PendingOperation,
        done: &OperationWrites,
    ) -> Option<ExecutorId> {
        let part = job.split_target()?;
        if done.is_empty() || !done.shares.is_empty() {
            return None;
        }
        let map = self.state.map();
        let owners = (0..map.shard_count() as u64)
            .map(|n| map.owner(map.shard_after(part.owner_shard(), n)));
        owners.flatten().find(|executor| *executor != self.tx.here)
    }

    /// Ends a split, and plans another where it failed.
    pub(super) fn end_split(&mut self, part: Ino, errno: Option<Errno>) {
        let (now, in_vain) = (self.tx.now, errno == Some(Errno::EAGAIN));
        self.tx.splits.end_split(part, now, in_vain);
        // The record stays after a failure, so that a restart retries the split.
        if !in_vain {
            self.state.put_record(keys::planned_split(part), None);
        }
    }
}
