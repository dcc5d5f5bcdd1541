//! The splits of partitions that are planned and in progress.

use crate::error::MetaOutcome;
use crate::keys::{self, ParsedKey, tag};
use crate::millis::add_millis;
use crate::state::MetaState;
use crate::store::Store;
use crate::transaction::locks::TransactionLocks;
use crate::transaction::record::LockRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{TransactionAge, Txid};
use tatami_wire::{ClientId, Ino, Timestamp};

/// The partition stays locked for at most this long (in ms) while a participant does not answer.
pub(crate) const PREPARE_MS: u64 = 100;

/// Shortest rest (in ms) between two attempts.
pub(crate) const SPLIT_REST_MS: u64 = 500;

/// A partition that has grown is split after this many ms.
pub(crate) const SPLIT_DELAY_MS: u64 = 1;

/// A failed split is tried again after this many ms.
pub(crate) const SPLIT_RETRY_MS: u64 = 2_000;

/// The client of a split.
pub(crate) const NO_CLIENT: ClientId = ClientId([0; 16]);

/// The splits that are planned and in progress.
#[derive(Default)]
pub(crate) struct Splits {
    /// Partitions, and when their split begins.
    pub(crate) planned: BTreeMap<Ino, Timestamp>,
    /// Partitions whose split is under way.
    pub(crate) running: BTreeSet<Ino>,
    /// Partitions that no other operation may write until their split is done.
    pub(crate) locked: BTreeSet<Ino>,
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
        // The run before has read the inode, so no transaction was about to write it.
        assert_eq!(
            locks.read_blocker(&keys::inode(part)),
            None,
            "a transaction writes a partition that its split locks"
        );
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
