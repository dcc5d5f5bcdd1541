//! Operations that lock the records of other executors as they come to them.
//!
//! Deadlocks are prevented by age (Rosenkrantz 1978). A transaction that holds locks waits for
//! younger ones only. Those release their locks when they are asked to (wound-wait), or end before
//! that. If it meets an older one, it releases its own locks and retries with its old age
//! (wait-die). A transaction without locks may wait for any. So no cycle of waiting arises, and the
//! oldest is never aborted.

use crate::error::{MetaOutcome, OperationFailure};
use crate::keys::{self, ParsedKey, RecordKey};
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::operation::{ExecutorShare, OperationWrites};
use crate::store::Store;
use crate::transaction::intervals::{ASK_AGAIN, ASK_SOON, ATTEMPT_MS, RESEND_MS};
use crate::transaction::lock_set::{LockKeys, LockReply, LockSet, Vote};
use crate::transaction::messages::OutgoingMessage;
use crate::transaction::pending::{OperationPhase, OperationRun, PendingOperation};
use crate::transaction::record::{DecisionRecord, ParticipantWrites};
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{PeerMessage, RecordItem, Txid};
use tatami_wire::{Errno, ExecutorId};

impl<S: Store> Meta<S> {
    /// Acts on the result of a run that locks: requests the missing records, waits for locked ones,
    /// or ends the operation.
    pub(super) fn advance_locking(&mut self, mut job: PendingOperation, run: OperationRun) {
        let OperationRun { result, done, .. } = run;
        match result {
            Err(OperationFailure::Missing(missing)) => {
                let wanted = wanted_keys(&job, missing);
                self.request_locks(job, wanted);
            }
            Err(OperationFailure::Locked(on)) => self.handle_lock_conflict(job, on),
            Err(failure) => {
                let result = match failure {
                    // This is certain: it is about a record of this executor.
                    OperationFailure::WrongPartition(part, range) => {
                        Ok(tatami_wire::meta::MetaReply::WrongPartition { part, range })
                    }
                    failure => Err(self.record_failure(&failure)),
                };
                self.abort_attempt(&mut job);
                self.finish_operation(job, result, Vec::new());
            }
            Ok(reply) if done.is_empty() => {
                self.abort_attempt(&mut job);
                self.finish_operation(job, Ok(reply), Vec::new());
            }
            Ok(reply) => {
                // It read nothing of others, so it has no locks yet.
                let OperationPhase::Locking(lock_set) = &job.phase else {
                    // A record of another executor is read only after it was locked there.
                    assert!(
                        done.shares.values().all(|share| share.reads.is_empty()),
                        "an operation without locks has read a record of another executor"
                    );
                    if done.shares.is_empty() {
                        self.commit_operation(job, reply, done, Vec::new());
                        return;
                    }
                    let wanted =
                        done.shares.iter().map(|(executor, share)| (*executor, share_keys(share)));
                    let wanted = wanted.collect();
                    return self.request_locks(job, wanted);
                };
                // The run may write records that it has not read. They are locked before the
                // decision, too.
                let wanted = lock_set.missing_locks(&done);
                // The operation runs once more with these locks: their values may change its
                // result.
                if !wanted.is_empty() {
                    return self.request_locks(job, wanted);
                }
                if exceeds_room(lock_set, &done, &job) {
                    self.abort_attempt(&mut job);
                    return self.finish_operation(job, Err(Errno::ENOSPC), Vec::new());
                }
                // The operation runs again only when all have answered.
                assert!(lock_set.outstanding.is_empty(), "a decision comes before all locks");
                let (txid, mut parts, mut others) = (lock_set.txid, BTreeMap::new(), Vec::new());
                for (executor, vote) in &lock_set.held {
                    let writes = done.shares.get(executor).map(|share| encode_items(&share.writes));
                    match writes.filter(|writes| !writes.is_empty()) {
                        Some(writes) => {
                            parts.insert(
                                *executor,
                                ParticipantWrites { incarnation: vote.incarnation, writes },
                            );
                        }
                        None => others.push(*executor),
                    }
                }
                let writers = done.shares.values().filter(|share| !share.writes.is_empty());
                assert_eq!(
                    writers.count(),
                    parts.len(),
                    "a participant has voted without its locks"
                );
                let decided = match parts.is_empty() {
                    true => Vec::new(),
                    false => vec![(txid, DecisionRecord { participants: parts })],
                };
                // The attempt is over before the decision is written: from here on, no older
                // transaction can abort it.
                self.tx.by_txid.remove(&txid);
                let client = Some(job.ctx.client);
                let changed = self.commit_operation(job, reply, done, decided);
                // Participants that write nothing only release their locks. They do so after the
                // commit, since the result rests on the values that they hold fast.
                for to in others {
                    let (changed, message) = (changed.clone(), PeerMessage::Release { txid });
                    let out =
                        OutgoingMessage { changed, client, ..OutgoingMessage::new(to, message) };
                    self.tx.staged_messages.push(out);
                }
            }
        }
    }

    /// Requests more locks.
    fn request_locks(&mut self, mut job: PendingOperation, wanted: BTreeMap<ExecutorId, LockKeys>) {
        let now = self.tx.now;
        let mut lock_set =
            match std::mem::replace(&mut job.phase, OperationPhase::Resting { until: now }) {
                OperationPhase::Locking(lock_set) => lock_set,
                _ => LockSet {
                    txid: self.tx.next_txid(),
                    held: BTreeMap::new(),
                    outstanding: BTreeMap::new(),
                    request: 0,
                    may_wait: false,
                    again_at: now,
                    deadline: add_millis(now, ATTEMPT_MS),
                    blockers: Vec::new(),
                },
            };
        assert!(!wanted.is_empty(), "a request for locks goes to no executor");
        assert!(
            lock_set.outstanding.is_empty(),
            "a request for locks comes before the answers to the last"
        );
        // It is resumed when the last of its blockers is gone, and may request locks then.
        assert!(lock_set.blockers.is_empty(), "a blocked transaction requests locks");
        // With no lock and one executor to ask, it can be in no cycle: it may wait there for any
        // transaction.
        lock_set.may_wait = lock_set.held.is_empty() && wanted.len() == 1;
        lock_set.outstanding = wanted;
        // The number distinguishes a reply to this request from a late reply to an earlier one.
        lock_set.request += 1;
        lock_set.again_at = add_millis(now, RESEND_MS);
        self.tx.by_txid.insert(lock_set.txid, job.ticket);
        job.phase = OperationPhase::Locking(lock_set);
        self.send_lock_requests(&job);
        self.tx.jobs.insert(job.ticket, job);
    }

    fn send_lock_requests(&mut self, job: &PendingOperation) {
        let OperationPhase::Locking(lock_set) = &job.phase else { return };
        for (executor, LockKeys { reads, writes }) in &lock_set.outstanding {
            let bytes =
                |keys: &BTreeSet<RecordKey>| keys.iter().cloned().map(Bytes::from).collect();
            let message = PeerMessage::Lock {
                txid: lock_set.txid,
                age: job.age,
                client: job.ctx.client,
                // A participant that has lost the first locks since must refuse.
                incarnation: lock_set.held.get(executor).map(|vote| vote.incarnation),
                request: lock_set.request,
                waits: lock_set.may_wait,
                reads: bytes(reads),
                writes: bytes(writes),
            };
            self.tx.send_message(*executor, message);
        }
    }

    pub(super) fn resend_lock_requests(&mut self, job: &mut PendingOperation) {
        let age = job.age;
        if let OperationPhase::Locking(lock_set) = &mut job.phase {
            let ms = if lock_set.blockers.is_empty() { RESEND_MS } else { ASK_AGAIN };
            lock_set.again_at = add_millis(self.tx.now, ms);
            let on = lock_set.blockers.clone();
            self.request_outcomes(&on, Some(age));
        }
        self.send_lock_requests(job);
    }

    pub(super) fn receive_locks(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        request: u32,
        reply: LockReply,
    ) -> MetaOutcome<()> {
        let decided = self.tx.decided.contains_key(&txid);
        let Some(job) = self.find_attempt(txid) else {
            // The attempt was aborted, and its release message may have overtaken the request.
            if txid.executor == self.tx.here && !decided {
                self.tx.send_message(from, PeerMessage::Release { txid });
            }
            return Ok(());
        };
        let (ticket, OperationPhase::Locking(lock_set)) = (job.ticket, &mut job.phase) else {
            return Ok(());
        };
        let asked = lock_set
            .outstanding
            .get(&from)
            .is_some_and(|k| k.iter_in_order().count() == reply.values.len());
        let same =
            lock_set.held.get(&from).is_none_or(|vote| vote.incarnation == reply.incarnation);
        // A late reply, or one of a participant that has lost the first locks since.
        if lock_set.request != request || !asked || !same {
            return Ok(());
        }
        assert!(lock_set.blockers.is_empty(), "a blocked transaction requests locks");
        let keys = lock_set.outstanding.remove(&from).unwrap_or_default();
        let LockReply { incarnation, has_room, values } = reply;
        for (key, value) in keys.iter_in_order().zip(values) {
            job.rerun.fetched.insert(key.clone(), value.map(Bytes::into_vec));
        }
        let vote = lock_set.held.entry(from).or_insert(Vote {
            incarnation,
            has_room,
            keys: LockKeys::default(),
        });
        vote.has_room = has_room;
        vote.keys.reads.extend(keys.reads);
        vote.keys.writes.extend(keys.writes);
        // All replies are there: run again with the new values.
        if lock_set.outstanding.is_empty()
            && let Some(job) = self.tx.jobs.remove(&ticket)
        {
            self.run_step(job);
        }
        Ok(())
    }

    /// Handles a lock on a record of this executor.
    fn handle_lock_conflict(&mut self, mut job: PendingOperation, on: Vec<Txid>) {
        let OperationPhase::Locking(lock_set) = &mut job.phase else {
            return self.wait_for_locks(job, on);
        };
        let age = job.age;
        let older = |holder: &Txid| self.state.locks.age_of(holder).is_some_and(|held| held < age);
        assert!(!on.is_empty(), "a conflict of locks has no holder");
        if on.iter().any(older) {
            // The older one's coordinator may have died: its locks must not stay for ever.
            self.request_outcomes(&on, None);
            // Wait-die: an older transaction holds the lock, so this one releases all its locks.
            self.abort_attempt(&mut job);
            return self.rest_operation(job);
        }
        assert!(lock_set.outstanding.is_empty(), "a blocked transaction requests locks");
        lock_set.blockers = on;
        lock_set.again_at = add_millis(self.tx.now, ASK_SOON);
        self.tx.jobs.insert(job.ticket, job);
    }
}

/// Returns the missing keys by executor, and whether they are only read or may be written.
fn wanted_keys(
    job: &PendingOperation,
    missing: Vec<(ExecutorId, RecordKey)>,
) -> BTreeMap<ExecutorId, LockKeys> {
    let inodes: BTreeSet<_> = missing.iter().map(|(_, key)| key.clone()).collect();
    let is_seen = |key: &RecordKey| match keys::parse(key) {
        _ if !job.op.is_mutation() => true,
        // A shared lock on a directory's parent lets others make entries in it, unless the
        // directory itself moves.
        Some(ParsedKey::Ancestor(ino)) => !inodes.contains(&keys::inode(ino)),
        _ => false,
    };
    let mut wanted: BTreeMap<ExecutorId, LockKeys> = BTreeMap::new();
    for (executor, key) in missing {
        let keys = wanted.entry(executor).or_default();
        if is_seen(&key) {
            keys.reads.insert(key)
        } else {
            keys.writes.insert(key)
        };
    }
    wanted
}

fn share_keys(share: &ExecutorShare) -> LockKeys {
    let writes: BTreeSet<RecordKey> = share.writes.keys().cloned().collect();
    let reads = share.reads.keys().filter(|key| !writes.contains(*key)).cloned().collect();
    LockKeys { reads, writes }
}

fn encode_items(writes: &BTreeMap<RecordKey, Option<Vec<u8>>>) -> Vec<RecordItem<Bytes>> {
    let item = |(key, value): (&RecordKey, &Option<Vec<u8>>)| RecordItem {
        key: Bytes::from(key.clone()),
        value: value.clone().map(Bytes::from),
    };
    writes.iter().map(item).collect()
}

/// Returns whether it adds records where the disk takes no more.
fn exceeds_room(lock_set: &LockSet, done: &OperationWrites, job: &PendingOperation) -> bool {
    let is_new =
        |key: &RecordKey| job.rerun.fetched.get(key).is_some_and(|before| before.is_none());
    done.shares.iter().any(|(executor, share)| {
        lock_set.held.get(executor).is_some_and(|vote| !vote.has_room)
            && share.writes.iter().any(|(key, value)| value.is_some() && is_new(key))
    })
}
