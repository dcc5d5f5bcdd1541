//! Splits of partitions that have grown, which an executor does on its own.
//!
//! A split is an operation of nobody, run as those of clients are, some time after the answer to the operation that
//! made the partition too large. It writes nearly all of a partition where others make entries all the time, so while
//! others prepare it, nobody may write the partition: that is a lock in memory only, as it is of this
//! executor's own transaction, and lasts [`ATTEMPT`] at most where somebody does not answer.

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

/// After so many ms a partition is split that has grown.
const SOON: u64 = 1;
/// So long (in ms) nobody may write a partition while a participant does not answer.
pub(super) const ATTEMPT: u64 = 100;
/// Shortest rest (in ms) between two attempts.
pub(super) const REST: u64 = 500;
/// After so many ms another split is begun where one has come to nothing.
const LATER: u64 = 2_000;

/// Who splits.
pub(crate) const NOBODY: ClientId = ClientId([0; 16]);

/// What is to be split.
#[derive(Default)]
pub(crate) struct Splits {
    /// Partitions, and when their split begins.
    planned: BTreeMap<Ino, Timestamp>,
    /// Those of which a split is under way.
    running: BTreeSet<Ino>,
    /// Those that nobody may write until it is done.
    locked: BTreeSet<Ino>,
}

impl Splits {
    /// What was to be split when the executor died, or when another had it.
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

    /// When the next one begins.
    pub fn due(&self) -> Option<Timestamp> {
        self.planned.values().min().copied()
    }

    /// Number of those that have not begun.
    pub fn planned(&self) -> usize {
        self.planned.len()
    }

    /// Whether a partition is about to be split.
    pub fn concern(&self, part: Ino) -> bool {
        self.locked.contains(&part)
    }

    /// A split has come to its end.
    pub fn over(&mut self, part: Ino, now: Timestamp, in_vain: bool) {
        self.running.remove(&part);
        if in_vain {
            self.planned.insert(part, later(now, LATER));
        }
    }

    /// From now on nobody else writes the partition.
    pub fn lock(&mut self, locks: &mut Locks, part: Ino, txid: Txid, age: Age) {
        self.locked.insert(part);
        let reads = vec![Bytes::from(keys::inode(part))];
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
    /// Splits partitions from now on that have more entries than this: 1024 unless told otherwise.
    pub fn split_above(&mut self, entries: u64) {
        self.state.split_above = entries;
    }

    /// Plans the splits of what has grown.
    pub(crate) fn plan_splits(&mut self) {
        for part in std::mem::take(&mut self.state.grown) {
            let splits = &mut self.tx.splits;
            if !splits.running.contains(&part) && !splits.planned.contains_key(&part) {
                splits.planned.insert(part, later(self.tx.now, SOON));
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

    /// Whoever waited for a split of this executor goes on.
    pub(crate) fn free(&mut self) {
        while let Some(txid) = self.tx.freed.pop() {
            if let Err(failure) = self.released(txid) {
                self.note(&failure);
            }
        }
    }

    /// An executor whose promise tells that nobody believes any more that all entries are where they were.
    pub(super) fn witness(&self, job: &Job, done: &Done) -> Option<ExecutorId> {
        let part = job.split()?;
        if done.is_nothing() || !done.parts.is_empty() {
            return None;
        }
        let map = self.state.map();
        let owners = (0..map.count() as u64).map(|n| map.owner(map.further(part.shard(), n)));
        owners.flatten().find(|executor| *executor != self.tx.here)
    }

    /// What becomes of a split that has come to its end.
    pub(super) fn split_is_over(&mut self, part: Ino, errno: Option<Errno>) {
        let (now, in_vain) = (self.tx.now, errno == Some(Errno::EAGAIN));
        self.tx.splits.over(part, now, in_vain);
        if !in_vain {
            self.state.put(keys::grown(part), None);
        }
    }
}
