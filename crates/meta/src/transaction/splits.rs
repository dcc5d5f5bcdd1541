//! Partition splits (GIGA+), which an executor begins on its own.
//!
//! A split is an operation without a client, run like those of clients. It starts some time after
//! the answer to the operation that made the partition too large. It writes nearly all records of a
//! partition, while clients create entries there. So while participants prepare it, no other
//! operation may write the partition. That lock is in memory only, since it protects a transaction
//! of this executor. It lasts at most [`PREPARE_MS`] while a participant does not answer.

use crate::context::OperationContext;
use crate::keys;
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::operation::OperationWrites;
use crate::split_rule::SplitLimits;
use crate::store::Store;
use crate::transaction::pending::PendingOperation;
use crate::transaction::split_plan::{NO_CLIENT, SPLIT_DELAY_MS};
use tatami_wire::meta::MetaOp;
use tatami_wire::{Cred, Errno, ExecutorId, Ino};

impl<S: Store> Meta<S> {
    /// Sets the numbers of entries above which partitions are split.
    pub fn set_split_limits(&mut self, limits: SplitLimits) {
        self.state.split_rule.limits = limits;
    }

    /// Plans the splits of partitions that have grown too large.
    pub(crate) fn plan_splits(&mut self) {
        let mut changes = std::mem::take(&mut self.state.large_changes);
        for change in changes.drain(..) {
            let part = change.part;
            let splits = &mut self.tx.splits;
            if self.state.split_rule.record_change(&change, self.tx.now)
                && !splits.running.contains(&part)
                && !splits.planned.contains_key(&part)
            {
                splits.planned.insert(part, add_millis(self.tx.now, SPLIT_DELAY_MS));
                // The record lets a restart, or the next owner of the shard, find the planned
                // split.
                self.state.put_record(keys::planned_split(part), Some(vec![1]));
            }
        }
        // Keeps the buffer for the next operation.
        self.state.large_changes = changes;
    }

    /// Begins the splits that are due.
    pub(crate) fn begin_splits(&mut self) {
        let now = self.tx.now;
        let planned = self.tx.splits.planned.iter().filter(|(_, due)| **due <= now);
        let due: Vec<_> = planned.map(|(part, _)| *part).collect();
        for part in due {
            self.tx.splits.planned.remove(&part);
            let is_new = self.tx.splits.running.insert(part);
            assert!(is_new, "a planned split is under way");
            let seq = self.tx.next;
            let ctx = OperationContext { now, client: NO_CLIENT, slot: 0, seq, trusted: true };
            // The rule decided when the split was planned. The partition may have shrunk since.
            let above = self.state.split_rule.limits.shared;
            let op = MetaOp::SplitPartition { partition: part, above };
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
