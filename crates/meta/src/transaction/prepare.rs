//! The prepare phase of splits: participants store the writes of a split before it is decided.
//!
//! The writes may be more than fit in a message. Then they go as several transactions, which are
//! decided together.

use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::{self, RecordKey};
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::operation::{ExecutorShare, OperationWrites};
use crate::store::Store;
use crate::transaction::intervals::RESEND_MS;
use crate::transaction::messages::{ChangedInode, OutgoingMessage};
use crate::transaction::peer_value::hash_value;
use crate::transaction::pending::{OperationPhase, OperationRun, PendingOperation};
use crate::transaction::prepare_attempt::{PrepareAttempt, PreparePart};
use crate::transaction::record::{DecisionRecord, ParticipantWrites};
use crate::transaction::split_plan;
use std::collections::BTreeMap;
use std::sync::Arc;
use tatami_wire::ExecutorId;
use tatami_wire::meta::{Bytes, MetaReply};
use tatami_wire::transaction::{PeerMessage, RecordItem, Txid};

/// About this many bytes of records are prepared with one message.
const BYTES_MAX: usize = 256 * 1024;
/// The most that a record takes in a message besides its bytes.
const RECORD_BYTES: usize = 24;
impl<S: Store> Meta<S> {
    /// Sends the prepare messages: participants validate the split's reads and store its writes.
    pub(super) fn begin_prepare(&mut self, mut job: PendingOperation, mut done: OperationWrites) {
        assert!(job.split_target().is_some(), "an operation that is no split prepares its writes");
        // A prepare names the incarnation of its receiver. An empty fetch asks those whose
        // incarnation is unknown.
        let strangers =
            done.shares.keys().filter(|executor| !job.rerun.incarnations.contains_key(executor));
        let strangers: BTreeMap<_, _> = strangers.map(|executor| (*executor, Vec::new())).collect();
        if !strangers.is_empty() {
            return self.begin_fetch(job, strangers);
        }
        let now = self.tx.now;
        let mut pieces = Vec::new();
        for (executor, share) in std::mem::take(&mut done.shares) {
            for share in split_share(share) {
                let piece =
                    PreparePart { on: executor, txid: self.tx.next_txid(), share, is_ready: false };
                self.tx.by_txid.insert(piece.txid, job.ticket);
                pieces.push(piece);
            }
        }
        let base = self.load_split_target(&job);
        let epoch = self.state.epoch();
        let mut attempt =
            PrepareAttempt { writes: done, base, epoch, pieces, again_at: now, ends: now };
        attempt.again_at = add_millis(now, attempt.scaled_time(RESEND_MS));
        attempt.ends = add_millis(now, attempt.scaled_time(split_plan::PREPARE_MS));
        // The partition is locked before the first prepare leaves: else a new entry could miss the
        // split.
        if let (Some(part), Some(txid)) = (job.split_target(), attempt.first_txid()) {
            self.tx.splits.lock_partition(&mut self.state.locks, part, txid, job.age);
        }
        self.send_prepares(&attempt, &job);
        job.phase = OperationPhase::Preparing(attempt);
        self.tx.jobs.insert(job.ticket, job);
    }

    fn send_prepares(&mut self, attempt: &PrepareAttempt, job: &PendingOperation) {
        // A split moves entries, and the path to the directory stays.
        let split = |ino| ChangedInode { ino, keeps_path: true, recalls_own: false };
        let changed: Vec<_> = job.split_target().into_iter().map(split).collect();
        for PreparePart { on, txid, share, .. } in attempt.pieces.iter().filter(|p| !p.is_ready) {
            // Digests are enough to compare, and keep the message small.
            let item = |(key, value): (&RecordKey, &Option<Vec<u8>>)| {
                (Bytes::from(key.clone()), value.clone())
            };
            let reads = share.reads.iter().map(item);
            let reads = reads
                .map(|(key, v)| RecordItem { key, value: v.as_deref().map(hash_value) })
                .collect();
            let writes = share.writes.iter().map(item);
            let writes =
                writes.map(|(key, v)| RecordItem { key, value: v.map(Bytes::from) }).collect();
            let life = job.rerun.incarnations.get(on).copied();
            assert!(life.is_some(), "a prepare lacks the incarnation of its receiver");
            let message = PeerMessage::Prepare {
                txid: *txid,
                age: job.age,
                incarnation: life.unwrap_or_default(),
                reads,
                writes,
            };
            let changed = changed.clone();
            let out = OutgoingMessage { changed, ..OutgoingMessage::new(*on, message) };
            self.tx.staged_messages.push(out);
        }
    }

    pub(super) fn resend_prepares(&mut self, job: &mut PendingOperation) {
        if let OperationPhase::Preparing(attempt) = &mut job.phase {
            attempt.again_at = add_millis(self.tx.now, attempt.scaled_time(RESEND_MS));
        }
        if let OperationPhase::Preparing(attempt) = &job.phase {
            self.send_prepares(attempt, job);
        }
    }

    pub(super) fn receive_prepared(&mut self, from: ExecutorId, txid: Txid) -> MetaOutcome<()> {
        let Some(job) = self.find_attempt(txid) else { return Ok(()) };
        let (ticket, OperationPhase::Preparing(attempt)) = (job.ticket, &mut job.phase) else {
            return Ok(());
        };
        let ours = |piece: &&mut PreparePart| piece.on == from && piece.txid == txid;
        attempt.pieces.iter_mut().filter(ours).for_each(|piece| piece.is_ready = true);
        if attempt.pieces.iter().all(|piece| piece.is_ready)
            && let Some(job) = self.tx.jobs.remove(&ticket)
        {
            self.commit_split(job);
        }
        Ok(())
    }

    /// Commits the split, now that all participants have prepared: the local writes and the
    /// prepared ones take effect at once.
    fn commit_split(&mut self, mut job: PendingOperation) {
        self.unlock_partition(&job);
        if !self.is_prepared_split_current(&job) {
            self.abort_attempt(&mut job);
            return self.rest_operation(job);
        }
        self.check_prepared_split(&mut job);
        let OperationPhase::Preparing(attempt) = &mut job.phase else { return self.run_step(job) };
        assert!(
            attempt.pieces.iter().all(|piece| piece.is_ready),
            "a split is decided before all parts are prepared"
        );
        let part = |(executor, txid): (ExecutorId, Txid)| {
            let life = job.rerun.incarnations.get(&executor).copied();
            assert!(life.is_some(), "a prepare lacks the incarnation of its receiver");
            let incarnation = life.unwrap_or_default();
            let part = ParticipantWrites { incarnation, writes: Vec::new() };
            (txid, DecisionRecord { participants: [(executor, part)].into() })
        };
        let decided = attempt.txids().map(part).collect();
        let writes = std::mem::take(&mut attempt.writes);
        self.commit_operation(job, MetaReply::Done, writes, decided);
    }

    /// Returns whether the records from which the split was computed are the same as then. To
    /// compute it again would take as long as the first time, while clients wait.
    fn is_prepared_split_current(&mut self, job: &PendingOperation) -> bool {
        let base = self.load_split_target(job);
        let (OperationPhase::Preparing(attempt), Some(part)) = (&job.phase, job.split_target())
        else {
            return false;
        };
        let (first, last) = (keys::entries_from(part, 0), keys::entries_from(part, u64::MAX));
        // Every change of an entry changes the partition's inode, too.
        attempt.epoch == self.state.epoch()
            && base.is_some()
            && attempt.base == base
            && self.state.locks.blockers_in_range(&first, &last).is_empty()
            && !attempt.writes.meets_lock(&self.state)
    }

    /// Returns the partition that the operation splits.
    fn load_split_target(&mut self, job: &PendingOperation) -> Option<Arc<Inode>> {
        let part = job.split_target().filter(|part| self.state.owns_shard(part.owner_shard()))?;
        self.state.load_inode(part).ok().flatten()
    }

    /// Computes the split again, in tests only, and compares it with the prepared one.
    fn check_prepared_split(&mut self, job: &mut PendingOperation) {
        if !cfg!(debug_assertions) {
            return;
        }
        let OperationRun { result, done, .. } = self.run_once(job);
        assert!(result.is_ok(), "a prepared split fails: {result:?}");
        let OperationPhase::Preparing(attempt) = &job.phase else { return };
        let mut prepared: BTreeMap<ExecutorId, ExecutorShare> = BTreeMap::new();
        for PreparePart { on, share, .. } in &attempt.pieces {
            let all = prepared.entry(*on).or_default();
            all.reads.extend(share.reads.clone());
            all.writes.extend(share.writes.clone());
        }
        assert!(done.shares == prepared, "the prepared writes of a split are old");
    }

    /// Unlocks the partition.
    pub(super) fn unlock_partition(&mut self, job: &PendingOperation) {
        if let (Some(part), OperationPhase::Preparing(attempt)) = (job.split_target(), &job.phase)
            && let Some(txid) = attempt.first_txid()
        {
            self.tx.splits.unlock_partition(&mut self.state.locks, part, txid);
            self.tx.released.push(txid);
        }
    }
}

/// Cuts an executor's share into parts that fit a message each.
fn split_share(share: ExecutorShare) -> Vec<ExecutorShare> {
    let count = share.writes.len();
    // All reads go with the first part: each part is decided with the others, so one validation is
    // enough.
    let mut pieces = vec![ExecutorShare { reads: share.reads, writes: BTreeMap::new() }];
    let mut bytes = 0;
    for (key, value) in share.writes {
        let more = key.len() + value.as_ref().map_or(0, Vec::len) + RECORD_BYTES;
        if bytes + more > BYTES_MAX {
            pieces.push(ExecutorShare::default());
            bytes = 0;
        }
        bytes += more;
        if let Some(piece) = pieces.last_mut() {
            piece.writes.insert(key, value);
        }
    }
    let writes: usize = pieces.iter().map(|piece| piece.writes.len()).sum();
    assert_eq!(writes, count, "the parts of a share have more or fewer writes");
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_together_all_of_it() {
        let value = |n: u32| Some(vec![n as u8; 100]);
        let writes: BTreeMap<_, _> =
            (0..10_000u32).map(|n| (n.to_be_bytes().to_vec(), value(n))).collect();
        let reads = BTreeMap::from([(vec![1], None)]);
        let whole = || ExecutorShare { reads: reads.clone(), writes: BTreeMap::clone(&writes) };
        let pieces = split_share(whole());
        assert!((4..8).contains(&pieces.len()), "{}", pieces.len());
        let mut all = ExecutorShare::default();
        for piece in pieces {
            let bytes: usize = piece.writes.keys().map(|key| key.len() + 100).sum();
            assert!(bytes <= BYTES_MAX);
            all.reads.extend(piece.reads);
            all.writes.extend(piece.writes);
        }
        assert_eq!(all, whole());
        assert_eq!(split_share(ExecutorShare::default()).len(), 1);
    }
}
