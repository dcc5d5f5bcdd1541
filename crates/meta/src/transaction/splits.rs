//! Partition splits (GIGA+), which an executor begins on its own.
//!
//! A split is an operation without a client, run like those of clients. It starts some time after
//! the answer to the operation that made the partition too large. It writes nearly all records of a
//! partition, while clients create entries there. So while participants prepare it, no other
//! operation may write the partition. That lock is in memory only, since it protects a transaction
//! of this executor. It lasts at most [`ATTEMPT`] while a participant does not answer.

use super::coordinator::Job;
use super::later;
use super::locks::Locks;
use super::record::Prepared;
use crate::error::Outcome;
use crate::keys::{self, Parsed, tag};
use crate::shard::{Context, Meta};
use crate::state::State;
use crate::store::Store;
use crate::txn::Done;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tatami_wire::meta::{Bytes, MetaOp};
use tatami_wire::transaction::{Age, Txid};
use tatami_wire::{ClientId, Cred, Errno, ExecutorId, Ino, Timestamp};

/// A partition that has grown is split after this many ms.
const SOON: u64 = 1;
/// The partition stays locked for at most this long (in ms) while a participant does not answer.
pub(super) const ATTEMPT: u64 = 100;
/// Shortest rest (in ms) between two attempts.
pub(super) const REST: u64 = 500;
/// A failed split is tried again after this many ms.
const LATER: u64 = 2_000;

/// The client of a split.
pub(crate) const NOBODY: ClientId = ClientId([0; 16]);

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
    pub fn resume<S: Store>(&mut self, state: &State<S>, now: Timestamp) -> Outcome<()> {
        state.scan(&[tag::GROWN], &[tag::GROWN], &mut |key, _| {
            if let Some(Parsed::Grown(part)) = keys::parse(key)
                && state.owns(part.shard())
                && !self.running.contains(&part)
            {
                self.planned.insert(part, later(now, SOON));
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns when the next one begins.
    pub fn due(&self) -> Option<Timestamp> {
        self.planned.values().min().copied()
    }

    /// Returns the number of splits that have not begun.
    pub fn planned(&self) -> usize {
        self.planned.len()
    }

    /// Returns whether a partition is locked by its split.
    pub fn concern(&self, part: Ino) -> bool {
        self.locked.contains(&part)
    }

    /// Ends a split; plans it again if it was in vain.
    pub fn over(&mut self, part: Ino, now: Timestamp, in_vain: bool) {
        self.running.remove(&part);
        if in_vain {
            self.planned.insert(part, later(now, LATER));
        }
    }

    /// Locks the partition against all other writers.
    pub fn lock(&mut self, locks: &mut Locks, part: Ino, txid: Txid, age: Age) {
        self.locked.insert(part);
        // A shared lock on the inode is enough: every operation that makes or removes an entry
        // writes the inode.
        let reads = vec![Bytes::from(keys::inode(part))];
        // The lock is local, so no coordinator is ever asked about it.
        let never = Timestamp { sec: i64::MAX, nsec: 0 };
        let (intents, writes) = (Vec::new(), Vec::new());
        locks.add(txid, Prepared { age, life: 0, reads, intents, writes }, never);
    }

    /// Undoes [`Splits::lock`].
    pub fn unlock(&mut self, locks: &mut Locks, part: Ino, txid: Txid) {
        self.locked.remove(&part);
        locks.remove(&txid);
    }
}

impl<S: Store> Meta<S> {
    /// Sets the number of entries above which partitions are split; the default is 1024.
    pub fn split_above(&mut self, entries: u64) {
        self.state.split_above = entries;
    }

    /// Plans the splits of partitions that have grown.
    pub(crate) fn plan_splits(&mut self) {
        for part in std::mem::take(&mut self.state.grown) {
            let splits = &mut self.tx.splits;
            if !splits.running.contains(&part) && !splits.planned.contains_key(&part) {
                splits.planned.insert(part, later(self.tx.now, SOON));
                // The record lets a restart, or the next owner of the shard, find the planned
                // split.
                self.state.put(keys::grown(part), Some(vec![1]));
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
            let ctx = Context { now, client: NOBODY, slot: 0, seq, trusted: true };
            let op = MetaOp::Split { part, above: self.state.split_above };
            self.begin(&ctx, &Cred::ROOT, &op);
        }
    }

    /// Resumes the operations that waited for a split of this executor.
    pub(crate) fn free(&mut self) {
        while let Some(txid) = self.tx.freed.pop() {
            if let Err(failure) = self.released(txid) {
                self.note(&failure);
            }
        }
    }

    /// Returns an executor that must confirm the split. Its vote proves that no client relies on
    /// the old range of the partition any more: the message waits for all recalls.
    pub(super) fn witness(&self, job: &Job, done: &Done) -> Option<ExecutorId> {
        let part = job.split()?;
        if done.is_nothing() || !done.parts.is_empty() {
            return None;
        }
        let map = self.state.map();
        let owners = (0..map.count() as u64).map(|n| map.owner(map.further(part.shard(), n)));
        owners.flatten().find(|executor| *executor != self.tx.here)
    }

    /// Ends a split, and plans another where it failed.
    pub(super) fn split_is_over(&mut self, part: Ino, errno: Option<Errno>) {
        let (now, in_vain) = (self.tx.now, errno == Some(Errno::EAGAIN));
        self.tx.splits.over(part, now, in_vain);
        // The record stays after a failure, so that a restart retries the split.
        if !in_vain {
            self.state.put(keys::grown(part), None);
        }
    }
}
