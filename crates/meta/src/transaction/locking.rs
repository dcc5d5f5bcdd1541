//! Operations that lock the records of other executors as they come to them.
//!
//! Two that are in each other's way are told apart by their age: who has locks waits for younger ones only, which give theirs back
//! when they are asked to, or are through before that. Who has none waits for anybody. So nobody waits for himself,
//! and the oldest is never sent away.

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

/// What an attempt has locked at other executors, and is about to.
pub(super) struct Grip {
    pub txid: Txid,
    held: BTreeMap<ExecutorId, Promise>,
    /// Who has not answered yet, and what he was asked for.
    pub left: BTreeMap<ExecutorId, Keys>,
    /// The number of the last question.
    question: u32,
    /// It has asked one executor, and no other.
    waits: bool,
    /// When it asks again, for locks or about those in its way.
    again_at: Timestamp,
    pub ends: Timestamp,
    /// Nothing is missing, but records of this executor are locked.
    pub on: Vec<Txid>,
}

/// Records of one executor: those to be seen, and those that may be written.
#[derive(Clone, Default)]
pub(super) struct Keys {
    reads: BTreeSet<Key>,
    writes: BTreeSet<Key>,
}

/// What an executor has locked.
struct Promise {
    life: u64,
    room: bool,
    keys: Keys,
}

/// What an executor says of records that it has locked.
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
    /// When something is to be done for it.
    pub fn due(&self) -> Timestamp {
        self.again_at.min(self.ends)
    }

    /// All that were asked for locks.
    pub fn executors(&self) -> impl Iterator<Item = &ExecutorId> {
        let others = self.left.keys().filter(|executor| !self.held.contains_key(executor));
        self.held.keys().chain(others)
    }

    /// What an operation has to do with others beyond what is locked for it.
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
    /// Does what follows from a run of an operation that locks: asks for what is missing, waits for what is
    /// locked, or ends it.
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
                    // That is true of a record of this executor.
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
                let wanted = grip.unlocked(&done);
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
                self.tx.by_txid.remove(&txid);
                let changed = self.take_effect(job, reply, done, decided);
                for to in others {
                    let (changed, message) = (changed.clone(), PeerMessage::Release { txid });
                    self.tx.outs.push(Out { to, message, changed, seen: Vec::new() });
                }
            }
        }
    }

    /// Asks for locks besides those that it has.
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
        grip.waits = grip.held.is_empty() && wanted.len() == 1;
        grip.left = wanted;
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
            // It was given up, and the word of that may have come before the question.
            if txid.executor == self.tx.here && !decided {
                self.tx.send(from, PeerMessage::Release { txid });
            }
            return Ok(());
        };
        let (ticket, Phase::Locking(grip)) = (job.ticket, &mut job.phase) else { return Ok(()) };
        let asked = grip.left.get(&from).is_some_and(|k| k.in_order().count() == told.values.len());
        let same = grip.held.get(&from).is_none_or(|promise| promise.life == told.life);
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
        if grip.left.is_empty()
            && let Some(job) = self.tx.jobs.remove(&ticket)
        {
            self.step(job);
        }
        Ok(())
    }

    /// A record of this executor is locked.
    fn meet_lock(&mut self, mut job: Job, on: Vec<Txid>) {
        let Phase::Locking(grip) = &mut job.phase else { return self.block(job, on) };
        let age = job.age;
        let older = |holder: &Txid| self.state.locks.age(holder).is_some_and(|held| held < age);
        if on.iter().any(older) {
            // Its coordinator may have died: then it must not stay in the way.
            self.ask_all(&on, None);
            self.abandon(&mut job);
            return self.rest(job);
        }
        grip.on = on;
        grip.again_at = later(self.tx.now, ASK_SOON);
        self.tx.jobs.insert(job.ticket, job);
    }
}

/// What is missing, by executor, and whether it is to be seen or may be written.
fn wanted(job: &Job, missing: Vec<(ExecutorId, Key)>) -> BTreeMap<ExecutorId, Keys> {
    let inodes: BTreeSet<_> = missing.iter().map(|(_, key)| key.clone()).collect();
    let is_seen = |key: &Key| match keys::parse(key) {
        _ if !job.op.is_mutation() => true,
        // Others make entries in a directory while its place is looked at, unless it moves itself.
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

/// Whether it makes records where the disk takes no more.
fn is_full(grip: &Grip, done: &Done, job: &Job) -> bool {
    let is_new = |key: &Key| job.again.fetched.get(key).is_some_and(|before| before.is_none());
    done.parts.iter().any(|(executor, share)| {
        grip.held.get(executor).is_some_and(|promise| !promise.room)
            && share.writes.iter().any(|(key, value)| value.is_some() && is_new(key))
    })
}
