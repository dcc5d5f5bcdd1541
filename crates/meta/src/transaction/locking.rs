//! Operations that lock the records of other executors as they come to them.
//!
//! Deadlocks are prevented by age (Rosenkrantz 1978). A transaction that holds locks waits for
//! younger ones only. Those release their locks when they are asked to (wound-wait), or end before
//! that. If it meets an older one, it releases its own locks and retries with its old age
//! (wait-die). A transaction without locks may wait for any. So no cycle of waiting arises, and the
//! oldest is never aborted.

use super::coordinator::{AGAIN, ATTEMPT, Job, Phase, Run};
use super::participant::{ASK_AGAIN, ASK_SOON};
use super::record::{Committed, Part};
use super::{Out, later};
use crate::error::{Failure, Outcome};
use crate::keys::{self, Key, Parsed};
use crate::shard::Meta;
use crate::store::Store;
use crate::txn::{Done, Share};
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{Item, PeerMessage, Txid};
use tatami_wire::{Errno, ExecutorId, Timestamp};

/// The lock set of an attempt: the locks that other executors have granted, and those that are
/// requested.
pub(super) struct Grip {
    pub txid: Txid,
    held: BTreeMap<ExecutorId, Promise>,
    /// The executors that have not answered yet, and the requested keys.
    pub left: BTreeMap<ExecutorId, Keys>,
    /// The number of the last request.
    question: u32,
    /// It has asked one executor, and no other.
    waits: bool,
    /// When it asks again, for locks or for the outcome of the transactions in its way.
    again_at: Timestamp,
    pub ends: Timestamp,
    /// Nothing is missing, but these transactions hold locks on records of this executor.
    pub on: Vec<Txid>,
}

/// Records of one executor: those that are read, and those that may be written.
#[derive(Clone, Default)]
pub(super) struct Keys {
    reads: BTreeSet<Key>,
    writes: BTreeSet<Key>,
}

/// The locks that one executor has granted.
struct Promise {
    life: u64,
    room: bool,
    keys: Keys,
}

/// The reply of an executor that has granted locks.
pub(super) struct Told {
    pub life: u64,
    pub room: bool,
    pub values: Vec<Option<Bytes>>,
}

impl Keys {
    fn has(&self, key: &Key, to_write: bool) -> bool {
        self.writes.contains(key) || !to_write && self.reads.contains(key)
    }

    fn in_order(&self) -> impl Iterator<Item = &Key> {
        self.reads.iter().chain(&self.writes)
    }
}

impl Grip {
    /// Returns when the attempt must be handled next.
    pub fn due(&self) -> Timestamp {
        self.again_at.min(self.ends)
    }

    /// Returns all executors that were asked for locks.
    pub fn executors(&self) -> impl Iterator<Item = &ExecutorId> {
        let others = self.left.keys().filter(|executor| !self.held.contains_key(executor));
        self.held.keys().chain(others)
    }

    /// Returns the records of others that the operation reads or writes and that are not locked for
    /// it.
    fn unlocked(&self, done: &Done) -> BTreeMap<ExecutorId, Keys> {
        let mut all = BTreeMap::new();
        for (executor, share) in &done.parts {
            let has = |key: &Key, to_write| {
                self.held.get(executor).is_some_and(|promise| promise.keys.has(key, to_write))
            };
            let writes: BTreeSet<_> =
                share.writes.keys().filter(|key| !has(key, true)).cloned().collect();
            let reads = share.reads.keys().filter(|key| !has(key, false));
            let reads: BTreeSet<_> = reads.filter(|key| !writes.contains(*key)).cloned().collect();
            if !(reads.is_empty() && writes.is_empty()) {
                all.insert(*executor, Keys { reads, writes });
            }
        }
        all
    }
}

impl<S: Store> Meta<S> {
    /// Acts on the result of a run that locks: requests the missing records, waits for locked ones,
    /// or ends the operation.
    pub(super) fn go_further(&mut self, mut job: Job, run: Run) {
        let Run { result, done, .. } = run;
        match result {
            Err(Failure::Missing(missing)) => {
                let wanted = wanted(&job, missing);
                self.lock_more(job, wanted);
            }
            Err(Failure::Locked(on)) => self.meet_lock(job, on),
            Err(failure) => {
                let result = match failure {
                    // This is certain: it is about a record of this executor.
                    Failure::Parted(part, range) => {
                        Ok(tatami_wire::meta::MetaReply::Parted { part, range })
                    }
                    failure => Err(self.note(&failure)),
                };
                self.abandon(&mut job);
                self.answer(job, result, Vec::new());
            }
            Ok(reply) if done.is_nothing() => {
                self.abandon(&mut job);
                self.answer(job, Ok(reply), Vec::new());
            }
            Ok(reply) => {
                // It read nothing of others, so it has no locks yet.
                let Phase::Locking(grip) = &job.phase else {
                    if done.parts.is_empty() {
                        self.take_effect(job, reply, done, Vec::new());
                        return;
                    }
                    let wanted =
                        done.parts.iter().map(|(executor, share)| (*executor, all_of(share)));
                    let wanted = wanted.collect();
                    return self.lock_more(job, wanted);
                };
                // The run may write records that it has not read. They are locked before the
                // decision, too.
                let wanted = grip.unlocked(&done);
                // The operation runs once more with these locks: their values may change its
                // result.
                if !wanted.is_empty() {
                    return self.lock_more(job, wanted);
                }
                if is_full(grip, &done, &job) {
                    self.abandon(&mut job);
                    return self.answer(job, Err(Errno::ENOSPC), Vec::new());
                }
                let (txid, mut parts, mut others) = (grip.txid, BTreeMap::new(), Vec::new());
                for (executor, promise) in &grip.held {
                    let writes = done.parts.get(executor).map(|share| items(&share.writes));
                    match writes.filter(|writes| !writes.is_empty()) {
                        Some(writes) => {
                            parts.insert(*executor, Part { life: promise.life, writes });
                        }
                        None => others.push(*executor),
                    }
                }
                let decided = match parts.is_empty() {
                    true => Vec::new(),
                    false => vec![(txid, Committed { participants: parts })],
                };
                // The attempt is over before the decision is written: from here on, no older
                // transaction can abort it.
                self.tx.by_txid.remove(&txid);
                let changed = self.take_effect(job, reply, done, decided);
                // Participants that write nothing only release their locks. They do so after the
                // commit, since the result rests on the values that they hold fast.
                for to in others {
                    let (changed, message) = (changed.clone(), PeerMessage::Release { txid });
                    self.tx.outs.push(Out { to, message, changed, seen: Vec::new() });
                }
            }
        }
    }

    /// Requests more locks.
    fn lock_more(&mut self, mut job: Job, wanted: BTreeMap<ExecutorId, Keys>) {
        let now = self.tx.now;
        let mut grip = match std::mem::replace(&mut job.phase, Phase::Resting { until: now }) {
            Phase::Locking(grip) => grip,
            _ => Grip {
                txid: self.tx.name(),
                held: BTreeMap::new(),
                left: BTreeMap::new(),
                question: 0,
                waits: false,
                again_at: now,
                ends: later(now, ATTEMPT),
                on: Vec::new(),
            },
        };
        // With no lock and one executor to ask, it can be in no cycle: it may wait there for any
        // transaction.
        grip.waits = grip.held.is_empty() && wanted.len() == 1;
        grip.left = wanted;
        // The number distinguishes a reply to this request from a late reply to an earlier one.
        grip.question += 1;
        grip.again_at = later(now, AGAIN);
        self.tx.by_txid.insert(grip.txid, job.ticket);
        job.phase = Phase::Locking(grip);
        self.send_locks(&job);
        self.tx.jobs.insert(job.ticket, job);
    }

    fn send_locks(&mut self, job: &Job) {
        let Phase::Locking(grip) = &job.phase else { return };
        for (executor, Keys { reads, writes }) in &grip.left {
            let bytes = |keys: &BTreeSet<Key>| keys.iter().cloned().map(Bytes::from).collect();
            let message = PeerMessage::Lock {
                txid: grip.txid,
                age: job.age,
                // A participant that has lost the first locks since must refuse.
                life: grip.held.get(executor).map(|promise| promise.life),
                question: grip.question,
                waits: grip.waits,
                reads: bytes(reads),
                writes: bytes(writes),
            };
            self.tx.send(*executor, message);
        }
    }

    pub(super) fn lock_again(&mut self, job: &mut Job) {
        let age = job.age;
        if let Phase::Locking(grip) = &mut job.phase {
            let ms = if grip.on.is_empty() { AGAIN } else { ASK_AGAIN };
            grip.again_at = later(self.tx.now, ms);
            let on = grip.on.clone();
            self.ask_all(&on, Some(age));
        }
        self.send_locks(job);
    }

    pub(super) fn locked(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        question: u32,
        told: Told,
    ) -> Outcome<()> {
        let decided = self.tx.decided.contains_key(&txid);
        let Some(job) = self.attempting(txid) else {
            // The attempt was aborted, and its release message may have overtaken the request.
            if txid.executor == self.tx.here && !decided {
                self.tx.send(from, PeerMessage::Release { txid });
            }
            return Ok(());
        };
        let (ticket, Phase::Locking(grip)) = (job.ticket, &mut job.phase) else { return Ok(()) };
        let asked = grip.left.get(&from).is_some_and(|k| k.in_order().count() == told.values.len());
        let same = grip.held.get(&from).is_none_or(|promise| promise.life == told.life);
        // A late reply, or one of a participant that has lost the first locks since.
        if grip.question != question || !asked || !same {
            return Ok(());
        }
        let keys = grip.left.remove(&from).unwrap_or_default();
        let Told { life, room, values } = told;
        for (key, value) in keys.in_order().zip(values) {
            job.again.fetched.insert(key.clone(), value.map(Bytes::into_vec));
        }
        let promise =
            grip.held.entry(from).or_insert(Promise { life, room, keys: Keys::default() });
        promise.room = room;
        promise.keys.reads.extend(keys.reads);
        promise.keys.writes.extend(keys.writes);
        // All replies are there: run again with the new values.
        if grip.left.is_empty()
            && let Some(job) = self.tx.jobs.remove(&ticket)
        {
            self.step(job);
        }
        Ok(())
    }

    /// Handles a lock on a record of this executor.
    fn meet_lock(&mut self, mut job: Job, on: Vec<Txid>) {
        let Phase::Locking(grip) = &mut job.phase else { return self.block(job, on) };
        let age = job.age;
        let older = |holder: &Txid| self.state.locks.age(holder).is_some_and(|held| held < age);
        if on.iter().any(older) {
            // The older one's coordinator may have died: its locks must not stay for ever.
            self.ask_all(&on, None);
            // Wait-die: an older transaction holds the lock, so this one releases all its locks.
            self.abandon(&mut job);
            return self.rest(job);
        }
        grip.on = on;
        grip.again_at = later(self.tx.now, ASK_SOON);
        self.tx.jobs.insert(job.ticket, job);
    }
}

/// Returns the missing keys by executor, and whether they are only read or may be written.
fn wanted(job: &Job, missing: Vec<(ExecutorId, Key)>) -> BTreeMap<ExecutorId, Keys> {
    let inodes: BTreeSet<_> = missing.iter().map(|(_, key)| key.clone()).collect();
    let is_seen = |key: &Key| match keys::parse(key) {
        _ if !job.op.is_mutation() => true,
        // A shared lock on a directory's parent lets others make entries in it, unless the
        // directory itself moves.
        Some(Parsed::Ancestor(ino)) => !inodes.contains(&keys::inode(ino)),
        _ => false,
    };
    let mut wanted: BTreeMap<ExecutorId, Keys> = BTreeMap::new();
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

fn all_of(share: &Share) -> Keys {
    let writes: BTreeSet<Key> = share.writes.keys().cloned().collect();
    let reads = share.reads.keys().filter(|key| !writes.contains(*key)).cloned().collect();
    Keys { reads, writes }
}

fn items(writes: &BTreeMap<Key, Option<Vec<u8>>>) -> Vec<Item<Bytes>> {
    let item = |(key, value): (&Key, &Option<Vec<u8>>)| Item {
        key: Bytes::from(key.clone()),
        value: value.clone().map(Bytes::from),
    };
    writes.iter().map(item).collect()
}

/// Returns whether it adds records where the disk takes no more.
fn is_full(grip: &Grip, done: &Done, job: &Job) -> bool {
    let is_new = |key: &Key| job.again.fetched.get(key).is_some_and(|before| before.is_none());
    done.parts.iter().any(|(executor, share)| {
        grip.held.get(executor).is_some_and(|promise| !promise.room)
            && share.writes.iter().any(|(key, value)| value.is_some() && is_new(key))
    })
}
