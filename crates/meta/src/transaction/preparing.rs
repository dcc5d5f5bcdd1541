//! The prepare phase of splits: participants store the writes of a split before it is decided.
//!
//! The writes may be more than fit in a message. Then they go as several transactions, which are
//! decided together.

use super::coordinator::{AGAIN, Job, Phase, Run};
use super::record::{Committed, Part};
use super::{Out, digest, later, splits};
use crate::error::Outcome;
use crate::keys::Key;
use crate::shard::Meta;
use crate::store::Store;
use crate::txn::{Done, Share};
use std::collections::BTreeMap;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{Item, PeerMessage, Txid};
use tatami_wire::{ExecutorId, Timestamp};

/// About this many bytes of records are prepared with one message.
const BYTES_MAX: usize = 256 * 1024;
/// The most that a record takes in a message besides its bytes.
const RECORD_BYTES: usize = 24;
/// This many messages are answered in the time limit of one.
const MESSAGES_AT_ONCE: u64 = 2;

/// A prepare phase in progress; see the module.
pub(super) struct Attempt {
    parts: BTreeMap<ExecutorId, Share>,
    pieces: Vec<Piece>,
    again_at: Timestamp,
    ends: Timestamp,
}

/// The part that one message prepares.
struct Piece {
    on: ExecutorId,
    txid: Txid,
    share: Share,
    is_ready: bool,
}

impl Attempt {
    pub fn is_of(&self, txid: Txid) -> bool {
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

    pub fn is_over(&self, now: Timestamp) -> bool {
        self.ends <= now
    }

    /// Returns when the attempt must be handled next.
    pub fn due(&self) -> Timestamp {
        self.again_at.min(self.ends)
    }

    /// Returns the first transaction, which stands for all of them.
    fn first(&self) -> Option<Txid> {
        self.pieces.first().map(|piece| piece.txid)
    }

    /// Returns a time that grows with the number of messages.
    fn long(&self, ms: u64) -> u64 {
        ms * (1 + self.pieces.len() as u64 / MESSAGES_AT_ONCE)
    }
}

impl<S: Store> Meta<S> {
    /// Sends the prepare messages: participants validate the split's reads and store its writes.
    pub(super) fn attempt(&mut self, mut job: Job, done: Done) {
        // A prepare names the incarnation of its receiver. An empty fetch asks those whose
        // incarnation is unknown.
        let strangers =
            done.parts.keys().filter(|executor| !job.again.lives.contains_key(executor));
        let strangers: BTreeMap<_, _> = strangers.map(|executor| (*executor, Vec::new())).collect();
        if !strangers.is_empty() {
            return self.question(job, strangers);
        }
        let now = self.tx.now;
        let mut pieces = Vec::new();
        for (executor, share) in &done.parts {
            for share in in_pieces(share) {
                let piece = Piece { on: *executor, txid: self.tx.name(), share, is_ready: false };
                self.tx.by_txid.insert(piece.txid, job.ticket);
                pieces.push(piece);
            }
        }
        let mut attempt = Attempt { parts: done.parts, pieces, again_at: now, ends: now };
        attempt.again_at = later(now, attempt.long(AGAIN));
        attempt.ends = later(now, attempt.long(splits::ATTEMPT));
        // The partition is locked before the first prepare leaves: else a new entry could miss the
        // split.
        if let (Some(part), Some(txid)) = (job.split(), attempt.first()) {
            self.tx.splits.lock(&mut self.state.locks, part, txid, job.age);
        }
        self.send_prepares(&attempt, &job);
        job.phase = Phase::Preparing(attempt);
        self.tx.jobs.insert(job.ticket, job);
    }

    fn send_prepares(&mut self, attempt: &Attempt, job: &Job) {
        let changed: Vec<_> = job.split().into_iter().collect();
        for Piece { on, txid, share, .. } in attempt.pieces.iter().filter(|p| !p.is_ready) {
            // Digests are enough to compare, and keep the message small.
            let item =
                |(key, value): (&Key, &Option<Vec<u8>>)| (Bytes::from(key.clone()), value.clone());
            let reads = share.reads.iter().map(item);
            let reads =
                reads.map(|(key, v)| Item { key, value: v.as_deref().map(digest) }).collect();
            let writes = share.writes.iter().map(item);
            let writes = writes.map(|(key, v)| Item { key, value: v.map(Bytes::from) }).collect();
            let life = job.again.lives.get(on).copied().unwrap_or_default();
            let message = PeerMessage::Prepare { txid: *txid, age: job.age, life, reads, writes };
            let (changed, seen) = (changed.clone(), Vec::new());
            self.tx.outs.push(Out { to: *on, message, changed, seen });
        }
    }

    pub(super) fn prepare_again(&mut self, job: &mut Job) {
        if let Phase::Preparing(attempt) = &mut job.phase {
            attempt.again_at = later(self.tx.now, attempt.long(AGAIN));
        }
        if let Phase::Preparing(attempt) = &job.phase {
            self.send_prepares(attempt, job);
        }
    }

    pub(super) fn prepared(&mut self, from: ExecutorId, txid: Txid) -> Outcome<()> {
        let Some(job) = self.attempting(txid) else { return Ok(()) };
        let (ticket, Phase::Preparing(attempt)) = (job.ticket, &mut job.phase) else {
            return Ok(());
        };
        let ours = |piece: &&mut Piece| piece.on == from && piece.txid == txid;
        attempt.pieces.iter_mut().filter(ours).for_each(|piece| piece.is_ready = true);
        if attempt.pieces.iter().all(|piece| piece.is_ready)
            && let Some(job) = self.tx.jobs.remove(&ticket)
        {
            self.decide(job);
        }
        Ok(())
    }

    /// Commits the split, now that all participants have prepared. It runs for the last time: its
    /// local changes and the prepared writes take effect at once.
    fn decide(&mut self, mut job: Job) {
        // The last run meets its own lock otherwise.
        self.unlock(&job);
        let Run { result, done, .. } = self.run(&mut job);
        let Phase::Preparing(attempt) = &job.phase else { return self.step(job) };
        match result {
            // Local records may have changed since the prepare. Then the participants hold other
            // writes than this run makes.
            Ok(reply) if done.parts == attempt.parts => {
                let part = |(executor, txid): (ExecutorId, Txid)| {
                    let life = job.again.lives.get(&executor).copied().unwrap_or_default();
                    let part = Part { life, writes: Vec::new() };
                    (txid, Committed { participants: [(executor, part)].into() })
                };
                let decided = attempt.txids().map(part).collect();
                self.take_effect(job, reply, done, decided);
            }
            Ok(_) | Err(_) => {
                self.abandon(&mut job);
                self.rest(job);
            }
        }
    }

    /// Unlocks the partition.
    pub(super) fn unlock(&mut self, job: &Job) {
        if let (Some(part), Phase::Preparing(attempt)) = (job.split(), &job.phase)
            && let Some(txid) = attempt.first()
        {
            self.tx.splits.unlock(&mut self.state.locks, part, txid);
            self.tx.freed.push(txid);
        }
    }
}

/// Cuts an executor's share into parts that fit a message each.
fn in_pieces(share: &Share) -> Vec<Share> {
    // All reads go with the first part: each part is decided with the others, so one validation is
    // enough.
    let mut pieces = vec![Share { reads: share.reads.clone(), writes: BTreeMap::new() }];
    let mut bytes = 0;
    for (key, value) in &share.writes {
        let more = key.len() + value.as_ref().map_or(0, Vec::len) + RECORD_BYTES;
        if bytes + more > BYTES_MAX {
            pieces.push(Share::default());
            bytes = 0;
        }
        bytes += more;
        if let Some(piece) = pieces.last_mut() {
            piece.writes.insert(key.clone(), value.clone());
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_together_all_of_it() {
        let value = |n: u32| Some(vec![n as u8; 100]);
        let writes = (0..10_000u32).map(|n| (n.to_be_bytes().to_vec(), value(n))).collect();
        let share = Share { reads: [(vec![1], None)].into(), writes };
        let pieces = in_pieces(&share);
        assert!((4..8).contains(&pieces.len()), "{}", pieces.len());
        let mut all = Share::default();
        for piece in pieces {
            let bytes: usize = piece.writes.keys().map(|key| key.len() + 100).sum();
            assert!(bytes <= BYTES_MAX);
            all.reads.extend(piece.reads);
            all.writes.extend(piece.writes);
        }
        assert_eq!(all, share);
        assert_eq!(in_pieces(&Share::default()).len(), 1);
    }
}
