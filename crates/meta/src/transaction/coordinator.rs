//! The coordinator: operations of an executor's own clients that need other executors.
//!
//! An operation is run again and again, each time with more records of others, until none is
//! missing. [`Meta::take_effect`] is the commit point.

use super::locking::Grip;
use super::locks::inode_of;
use super::participant::{ASK_AGAIN, ASK_SOON};
use super::preparing::Attempt;
use super::record::{Committed, Part};
use super::splits::{self, NOBODY};
use super::{Applied, Finished, Out, Ticket, later};
use crate::error::{Failure, Outcome};
use crate::keys::{self, Key, Parsed};
use crate::record::{Damaged, Entry, encode_reply};
use crate::shard::{Context, Meta, execute};
use crate::store::Store;
use crate::txn::{Again, Done, Share, Txn};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult};
use tatami_wire::transaction::{Age, Item, PeerMessage, Refusal, Txid};
use tatami_wire::{Cred, Errno, ExecutorId, Ino, Timestamp};

/// A message without an answer is sent again after this many ms.
pub(super) const AGAIN: u64 = 50;
/// An attempt holds locks for at most this long (in ms) while a participant does not answer.
pub(super) const ATTEMPT: u64 = 500;
/// After this many ms without success an operation fails with `EAGAIN`.
const PATIENCE: u64 = 10_000;
/// An operation that only reads takes locks after this many rounds that found something changed.
const LOOKS: u32 = 6;
/// Shortest and longest rest (in ms) between two attempts.
const REST: u64 = 2;
const REST_MAX: u64 = 100;

/// An operation that needs other executors.
pub(crate) struct Job {
    pub(super) ticket: Ticket,
    ctx: Context,
    cred: Cred,
    pub(super) op: MetaOp,
    pub(super) age: Age,
    gives_up: Timestamp,
    /// Failed attempts.
    tries: u32,
    /// Locks the records that it asks for.
    locks: bool,
    pub(super) again: Again,
    /// The executors that were asked, and the number of rounds, since the last fresh start.
    asked: BTreeSet<ExecutorId>,
    rounds: u32,
    /// Digest of the local records that had been read when the last request was sent.
    trace: u128,
    /// Digest of all that a complete run has read, to be confirmed by a second run.
    confirm: Option<u128>,
    /// The inodes of this executor that the last run has read.
    seen: Vec<Ino>,
    pub(super) phase: Phase,
}

pub(super) enum Phase {
    /// Participants lock the records that it asks for.
    Locking(Grip),
    Fetching {
        request: Txid,
        left: BTreeMap<ExecutorId, Vec<Key>>,
        again_at: Timestamp,
    },
    /// Records of this executor are locked by a participant's transaction.
    Blocked {
        on: Vec<Txid>,
        ask_at: Timestamp,
    },
    /// Participants prepare the writes of a split.
    Preparing(Attempt),
    Resting {
        until: Timestamp,
    },
}

/// A committed transaction that not all participants have acknowledged.
pub(crate) struct Decided {
    pub left: BTreeMap<ExecutorId, Part>,
    pub again_at: Timestamp,
    pub since: Timestamp,
    /// The inodes of this executor that it has changed.
    pub changed: Vec<Ino>,
}

/// The result of one run of an operation.
pub(super) struct Run {
    pub result: Outcome<MetaReply>,
    pub done: Done,
    pub used: BTreeSet<Key>,
    trace: u128,
}

impl<S: Store> Meta<S> {
    /// Begins an operation that cannot be answered at once.
    pub(crate) fn begin(&mut self, ctx: &Context, cred: &Cred, op: &MetaOp) -> Applied {
        let name = self.tx.name();
        let ticket = Ticket(name.number);
        let job = Job {
            ticket,
            ctx: *ctx,
            cred: cred.clone(),
            op: op.clone(),
            // The age stays the same over all attempts, so that a retried operation becomes the
            // oldest at last.
            age: Age { since: ctx.now, first: name },
            gives_up: later(self.tx.now, PATIENCE),
            tries: 0,
            locks: op.is_mutation() && !matches!(op, MetaOp::Split { .. }),
            again: Again::default(),
            asked: BTreeSet::new(),
            rounds: 0,
            trace: 0,
            confirm: None,
            seen: Vec::new(),
            phase: Phase::Resting { until: ctx.now },
        };
        if ctx.client != NOBODY {
            self.tx.by_slot.insert((ctx.client, ctx.slot), ticket);
        }
        self.step(job);
        Applied::Waits(ticket)
    }

    /// Returns the answer to a request while an operation waits on its slot: the ticket, if it is
    /// the same request. A request with an older number came late. A newer one means that the
    /// client has given the waiting operation up.
    pub(crate) fn waits(&mut self, ctx: &Context) -> Option<Applied> {
        let ticket = *self.tx.by_slot.get(&(ctx.client, ctx.slot))?;
        match self.tx.jobs.get(&ticket).map(|job| job.ctx.seq.cmp(&ctx.seq)) {
            Some(Ordering::Equal) => return Some(Applied::Waits(ticket)),
            Some(Ordering::Greater) => return Some(Applied::Done(Err(Errno::EPROTO))),
            Some(Ordering::Less) | None => {}
        }
        if let Some(mut job) = self.tx.jobs.remove(&ticket) {
            self.abandon(&mut job);
            self.tx.by_slot.remove(&(ctx.client, ctx.slot));
        }
        None
    }

    pub(super) fn run(&mut self, job: &mut Job) -> Run {
        self.state.meet_nothing();
        let mut txn = Txn::again(&mut self.state, &job.ctx, &job.cred, &mut job.again);
        let result = execute(&mut txn, &self.key, &job.op);
        let (used, trace) = txn.seen();
        let run = match result.and_then(|reply| Ok((reply, txn.done()?))) {
            Ok((reply, mut done)) => {
                // A split that touches no other executor still needs one to confirm that no client
                // believes the old range.
                if let Some(executor) = self.witness(job, &done) {
                    done.parts.insert(executor, Share::default());
                }
                Run { result: Ok(reply), done, used, trace }
            }
            Err(failure) => Run { result: Err(failure), done: Done::default(), used, trace },
        };
        job.seen = std::mem::take(&mut self.state.seen);
        run
    }

    /// Runs the operation, and acts on its result.
    pub(super) fn step(&mut self, mut job: Job) {
        // The operation's shard may have moved to another executor since it began.
        match self.is_elsewhere(&job.op) {
            Ok(None) => {}
            Ok(Some(elsewhere)) => return self.answer(job, Ok(elsewhere), Vec::new()),
            Err(failure) => {
                let result = Err(self.note(&failure));
                return self.answer(job, result, Vec::new());
            }
        }
        let run = self.run(&mut job);
        if job.locks {
            return self.go_further(job, run);
        }
        let Run { result, done, used, trace } = run;
        match result {
            Err(Failure::Missing(missing)) => {
                job.trace = trace;
                self.fetch(job, missing);
            }
            Err(Failure::Locked(on)) => self.block(job, on),
            // This is certain: it is about a record of this executor.
            Err(Failure::Parted(part, range)) => {
                self.answer(job, Ok(MetaReply::Parted { part, range }), Vec::new());
            }
            Err(failure) => {
                let result = Err(self.note(&failure));
                self.settle(job, result, used, trace);
            }
            Ok(reply) if done.is_nothing() => self.settle(job, Ok(reply), used, trace),
            Ok(reply) if done.parts.is_empty() => {
                self.take_effect(job, reply, done, Vec::new());
            }
            Ok(_) => self.attempt(job, done),
        }
    }

    /// Waits until records of this executor are unlocked. The operation holds no locks itself, so
    /// waiting cannot deadlock.
    pub(super) fn block(&mut self, mut job: Job, on: Vec<Txid>) {
        job.phase = Phase::Blocked { on, ask_at: later(self.tx.now, ASK_SOON) };
        self.tx.jobs.insert(job.ticket, job);
    }

    /// Asks other executors for records.
    fn fetch(&mut self, job: Job, keys: Vec<(ExecutorId, Key)>) {
        let mut left: BTreeMap<ExecutorId, Vec<Key>> = BTreeMap::new();
        for (executor, key) in keys {
            left.entry(executor).or_default().push(key);
        }
        self.question(job, left);
    }

    pub(super) fn question(&mut self, mut job: Job, left: BTreeMap<ExecutorId, Vec<Key>>) {
        let request = self.tx.name();
        job.rounds += 1;
        job.asked.extend(left.keys());
        self.send_fetches(request, job.age, &left);
        self.tx.by_txid.insert(request, job.ticket);
        job.phase = Phase::Fetching { request, left, again_at: later(self.tx.now, AGAIN) };
        self.tx.jobs.insert(job.ticket, job);
    }

    fn send_fetches(&mut self, request: Txid, age: Age, left: &BTreeMap<ExecutorId, Vec<Key>>) {
        for (executor, keys) in left {
            let keys = keys.iter().cloned().map(Bytes::from).collect();
            self.tx.send(*executor, PeerMessage::Fetch { request, age, keys });
        }
    }

    pub(super) fn fetched(
        &mut self,
        from: ExecutorId,
        request: Txid,
        life: u64,
        values: Vec<Option<Bytes>>,
    ) -> Outcome<()> {
        let Some(ticket) = self.tx.by_txid.get(&request) else { return Ok(()) };
        let Some(job) = self.tx.jobs.get_mut(ticket) else { return Ok(()) };
        let Phase::Fetching { left, .. } = &mut job.phase else { return Ok(()) };
        // A repeated or late reply does not match the outstanding request.
        if left.get(&from).is_none_or(|keys| keys.len() != values.len()) {
            return Ok(());
        }
        let keys = left.remove(&from).unwrap_or_default();
        // The split's prepare names this incarnation: a participant that has restarted since
        // refuses it.
        job.again.lives.insert(from, life);
        for (key, value) in keys.into_iter().zip(values) {
            job.again.fetched.insert(key, value.map(Bytes::into_vec));
        }
        if left.is_empty() {
            let ticket = *ticket;
            self.tx.by_txid.remove(&request);
            if let Some(job) = self.tx.jobs.remove(&ticket) {
                self.step(job);
            }
        }
        Ok(())
    }

    /// Read validation of an operation that changes nothing: answers it if all values that it has
    /// read were true at one moment.
    fn settle(&mut self, mut job: Job, result: MetaResult, used: BTreeSet<Key>, trace: u128) {
        // One executor answered one request, so its values are from one moment; and nothing here
        // has changed since.
        let at_once = job.rounds <= 1 && job.asked.len() <= 1 && job.trace == trace;
        let seen = job.again.digest(&used, trace);
        if used.is_empty() || at_once || job.confirm == Some(seen) {
            return self.answer(job, result, Vec::new());
        }
        // Optimistic reads do not converge under constant change: fall back to shared locks.
        if job.rounds > LOOKS && job.split().is_none() {
            job.locks = true;
            job.again.fetched.clear();
            return self.step(job);
        }
        // Read everything once more. The same digest twice means that nothing changed between.
        job.confirm = Some(seen);
        let keys = used.into_iter().filter_map(|key| Some((self.state.elsewhere(&key)?, key)));
        let keys: Vec<_> = keys.collect();
        job.again.fetched.clear();
        self.fetch(job, keys);
    }

    /// Returns the job of this attempt, if the attempt is still under way.
    pub(super) fn attempting(&mut self, txid: Txid) -> Option<&mut Job> {
        let job = self.tx.jobs.get_mut(self.tx.by_txid.get(&txid)?)?;
        let ours = match &job.phase {
            Phase::Locking(grip) => grip.txid == txid,
            Phase::Preparing(attempt) => attempt.is_of(txid),
            Phase::Fetching { .. } | Phase::Blocked { .. } | Phase::Resting { .. } => false,
        };
        ours.then_some(job)
    }

    pub(super) fn refused(&mut self, from: ExecutorId, txid: Txid, why: Refusal) -> Outcome<()> {
        let Some(job) = self.attempting(txid) else { return Ok(()) };
        let asked = match &job.phase {
            Phase::Locking(grip) => grip.left.contains_key(&from),
            Phase::Preparing(attempt) => attempt.waits_for(from, txid),
            _ => false,
        };
        let ticket = job.ticket;
        if asked && let Some(mut job) = self.tx.jobs.remove(&ticket) {
            self.abandon(&mut job);
            match why {
                Refusal::Again => self.rest(job),
                Refusal::Full => self.answer(job, Err(Errno::ENOSPC), Vec::new()),
            }
        }
        Ok(())
    }

    /// Commits: writes the local changes, the answer and, for a transaction, the decision in one
    /// batch. Returns the changed inodes.
    ///
    /// This is the commit point of two-phase commit.
    pub(super) fn take_effect(
        &mut self,
        mut job: Job,
        reply: MetaReply,
        done: Done,
        decided: Vec<(Txid, Committed)>,
    ) -> Vec<Ino> {
        let ctx = job.ctx;
        // All that may fail comes before the first change.
        let record = |(txid, committed): &(Txid, Committed)| Ok((*txid, committed.encode()?));
        let records = decided.iter().map(record).collect::<Result<Vec<_>, Damaged>>();
        let (answer, records) = match (encode_reply(ctx.seq, &reply), records) {
            (Ok(answer), Ok(records)) => (answer, records),
            (Err(damaged), _) | (_, Err(damaged)) => {
                let result = Err(self.note(&Failure::Damaged(damaged)));
                self.abandon(&mut job);
                self.answer(job, result, Vec::new());
                return Vec::new();
            }
        };
        // Some of the names that a split moves may be durable already. The split must not be lost
        // in part, so it is synced.
        self.moves.wants_sync |= job.split().is_some();
        for (txid, record) in records {
            // The decision lies in the same batch as the local changes: neither is ever without the
            // other.
            self.tx.by_txid.remove(&txid);
            self.state.put(keys::committed(txid), Some(record));
        }
        self.state.meet_nothing();
        self.garbage.extend(done.apply(&mut self.state));
        let changed = std::mem::take(&mut self.state.changed);
        for (txid, Committed { participants: left }) in decided {
            // The change becomes visible through the participants. So all delegations of it are
            // recalled before these messages leave.
            for (executor, Part { life, writes }) in &left {
                let (to, life, writes) = (*executor, *life, writes.clone());
                let message = PeerMessage::Finish { txid, life, writes };
                let changed = changed.clone();
                self.tx.outs.push(Out { to, message, changed, seen: Vec::new() });
            }
            let again_at = later(self.tx.now, self.tx.finish_again);
            if self.tx.decided.is_empty() {
                self.tx.finish_at = again_at;
            }
            let (since, changed) = (self.tx.now, changed.clone());
            self.tx.decided.insert(txid, Decided { left, again_at, since, changed });
        }
        // The reply record makes a repeated request (same slot, same number) return this answer.
        if ctx.client != NOBODY {
            self.state.put(keys::reply(ctx.client, ctx.slot), Some(answer));
            self.sessions.done(&ctx, true);
        }
        self.answer(job, Ok(reply), changed.clone());
        changed
    }

    pub(super) fn answer(&mut self, job: Job, result: MetaResult, changed: Vec<Ino>) {
        if let Some(part) = job.split() {
            self.split_is_over(part, result.as_ref().err().copied());
        }
        if job.ctx.client == NOBODY {
            return;
        }
        // A failed mutation is remembered, too: its repetition must not run again. After `EAGAIN`
        // the client repeats it so that it runs again.
        self.tx.by_slot.remove(&(job.ctx.client, job.ctx.slot));
        if let (true, Err(errno)) = (job.op.is_mutation(), &result)
            && *errno != Errno::EAGAIN
        {
            self.sessions.failed(&job.ctx, *errno);
        }
        let Job { ticket, seen, op, .. } = job;
        let dir = op.shown_dir().and_then(|dir| self.attr(dir));
        self.tx.finished.push(Finished { ticket, result, seen, changed, dir });
    }

    /// Aborts the attempt: it has not happened and never will.
    pub(super) fn abandon(&mut self, job: &mut Job) {
        // The local lock goes first: `unlock` needs the phase that is replaced next.
        self.unlock(job);
        match std::mem::replace(&mut job.phase, Phase::Resting { until: self.tx.now }) {
            Phase::Preparing(attempt) => {
                attempt.txids().for_each(|(executor, txid)| self.release(txid, [executor].iter()));
            }
            Phase::Locking(grip) => self.release(grip.txid, grip.executors()),
            Phase::Fetching { request, .. } => drop(self.tx.by_txid.remove(&request)),
            Phase::Blocked { .. } | Phase::Resting { .. } => {}
        }
    }

    /// Releases the locks. Participants that hold none of them refuse a lock request that comes
    /// late.
    pub(super) fn release<'a>(
        &mut self,
        txid: Txid,
        executors: impl Iterator<Item = &'a ExecutorId>,
    ) {
        self.tx.by_txid.remove(&txid);
        executors.for_each(|executor| self.tx.send(*executor, PeerMessage::Release { txid }));
    }

    /// Restarts all operations in progress, because shards have moved: records may lie on other
    /// executors now.
    pub(crate) fn start_afresh(&mut self) {
        let tickets: Vec<_> = self.tx.jobs.keys().copied().collect();
        for ticket in tickets {
            if let Some(mut job) = self.tx.jobs.remove(&ticket) {
                self.abandon(&mut job);
                self.rest(job);
            }
        }
    }

    pub(super) fn ask_all(&mut self, on: &[Txid], abort: Option<Age>) {
        on.iter().for_each(|txid| self.ask(*txid, abort));
    }

    /// Restarts the operation after a rest. The rest grows with the number of failed attempts.
    pub(super) fn rest(&mut self, mut job: Job) {
        // The locks are released, so no fetched value is certain any more.
        job.again.fetched.clear();
        job.again.lives.clear();
        (job.asked, job.rounds, job.confirm) = (BTreeSet::new(), 0, None);
        let longest = (REST << job.tries.min(6)).min(REST_MAX);
        job.tries += 1;
        // Operations that collide again and again get different rests.
        let rest = longest / 2 + job.ticket.0 * 7 % longest.max(1);
        let rest = if job.split().is_some() { rest + splits::REST } else { rest };
        job.phase = Phase::Resting { until: later(self.tx.now, rest) };
        self.tx.jobs.insert(job.ticket, job);
    }

    /// Resumes the operations of this executor that waited for a lock, the oldest first.
    pub(super) fn unblock(&mut self, txid: Txid) {
        let waits = |job: &Job| match &job.phase {
            Phase::Blocked { on, .. } => on.contains(&txid),
            Phase::Locking(grip) => grip.on.contains(&txid),
            Phase::Preparing(_) | Phase::Fetching { .. } | Phase::Resting { .. } => false,
        };
        let free = self.tx.jobs.values().filter(|job| waits(job));
        let mut free: Vec<_> = free.map(|job| (job.age, job.ticket)).collect();
        // Oldest first: wound-wait guarantees progress to the oldest only.
        free.sort_unstable();
        for (_, ticket) in free {
            let Some(mut job) = self.tx.jobs.remove(&ticket) else { continue };
            if let Phase::Locking(grip) = &mut job.phase {
                grip.on.clear();
            }
            self.step(job);
        }
    }

    pub(super) fn participant_finished(&mut self, from: ExecutorId, txid: Txid) -> Outcome<()> {
        if let Some(decided) = self.tx.decided.get_mut(&txid) {
            decided.left.remove(&from);
            if decided.left.is_empty() {
                // The decision may be forgotten only now: a participant without an acknowledgement
                // would take a missing decision for an abort.
                self.tx.decided.remove(&txid);
                self.state.put(keys::committed(txid), None);
            }
        }
        Ok(())
    }

    /// Returns the executors whose part of decided changes to the names of these inodes may not be
    /// durable there yet.
    pub(crate) fn parts_in_names(&self, inos: &[Ino]) -> Vec<ExecutorId> {
        let inos: BTreeSet<Ino> = inos.iter().copied().collect();
        let concerns = |item: &Item<Bytes>| {
            let leads = || Entry::decode(item.value.as_deref()?).ok().map(|entry| entry.ino);
            let entry = matches!(keys::parse(&item.key), Some(Parsed::Entry { .. }));
            let of = inode_of(&item.key).into_iter();
            of.chain(entry.then(leads).flatten()).any(|ino| inos.contains(&ino))
        };
        let mut also = BTreeSet::new();
        for Decided { left, changed, .. } in self.tx.decided.values() {
            let ours = changed.iter().any(|ino| inos.contains(ino));
            for (executor, part) in left {
                if ours || part.writes.iter().any(concerns) {
                    also.insert(*executor);
                }
            }
        }
        also.into_iter().collect()
    }

    /// Answers a participant that asks for the outcome of a transaction of this executor.
    pub(super) fn tell_fate(
        &mut self,
        to: ExecutorId,
        txid: Txid,
        abort: Option<Age>,
    ) -> Outcome<()> {
        if txid.executor != self.tx.here {
            return Ok(());
        }
        if let Some(decided) = self.tx.decided.get(&txid) {
            let (part, seen) = (decided.left.get(&to).cloned(), decided.changed.clone());
            match part {
                Some(Part { life, writes }) => {
                    self.tx.tell(to, PeerMessage::Finish { txid, life, writes }, seen);
                }
                // It committed, and this participant has acknowledged its part or had nothing to
                // write.
                None => self.tx.send(to, PeerMessage::Release { txid }),
            }
            return Ok(());
        }
        match self.attempting(txid) {
            // Wound-wait: an older transaction waits for this one, which gives way. It is not
            // decided, so it can.
            Some(job) if abort.is_some_and(|age| age < job.age) => {
                let ticket = job.ticket;
                if let Some(mut job) = self.tx.jobs.remove(&ticket) {
                    self.abandon(&mut job);
                    self.rest(job);
                }
            }
            Some(_) => {}
            // Presumed abort: an unknown transaction was never committed.
            None => self.tx.send(to, PeerMessage::Release { txid }),
        }
        Ok(())
    }

    /// Handles the operations that are due.
    pub(crate) fn tick_jobs(&mut self) {
        let now = self.tx.now;
        let due: Vec<_> =
            self.tx.jobs.values().filter(|job| job.due() <= now).map(|job| job.ticket).collect();
        for ticket in due {
            let Some(mut job) = self.tx.jobs.remove(&ticket) else { continue };
            if job.gives_up <= now {
                self.abandon(&mut job);
                self.answer(job, Err(Errno::EAGAIN), Vec::new());
                continue;
            }
            self.go_on(job, now);
        }
        if self.tx.finish_at <= now {
            self.finish_again(now);
        }
    }

    /// Sends the outcome again to the participants that have not acknowledged it in time.
    fn finish_again(&mut self, now: Timestamp) {
        let late: Vec<_> = self.tx.decided.iter_mut().filter(|(_, d)| d.again_at <= now).collect();
        let mut sent = Vec::new();
        for (txid, decided) in late {
            decided.again_at = later(now, self.tx.finish_again);
            for (executor, Part { life, writes }) in &decided.left {
                let (life, writes) = (*life, writes.clone());
                let message = PeerMessage::Finish { txid: *txid, life, writes };
                sent.push((*executor, message, decided.changed.clone()));
            }
        }
        let next = self.tx.decided.values().map(|decided| decided.again_at).min();
        self.tx.finish_at = next.unwrap_or(now);
        for (executor, message, changed) in sent {
            self.tx.tell(executor, message, changed);
        }
    }

    fn go_on(&mut self, mut job: Job, now: Timestamp) {
        let age = job.age;
        match &mut job.phase {
            Phase::Resting { .. } => return self.step(job),
            Phase::Fetching { request, left, again_at } => {
                *again_at = later(now, AGAIN);
                let (request, left) = (*request, left.clone());
                self.send_fetches(request, age, &left);
            }
            Phase::Blocked { on, ask_at } => {
                *ask_at = later(now, ASK_AGAIN);
                let on = on.clone();
                self.ask_all(&on, Some(age));
            }
            Phase::Preparing(attempt) if !attempt.is_over(now) => self.prepare_again(&mut job),
            Phase::Locking(grip) if grip.ends > now => self.lock_again(&mut job),
            // A participant does not answer. Its locks must not block others longer.
            Phase::Preparing(_) | Phase::Locking(_) => {
                self.abandon(&mut job);
                // Others get their turn first.
                job.tries = job.tries.max(6);
                return self.rest(job);
            }
        }
        self.tx.jobs.insert(job.ticket, job);
    }
}

impl Job {
    /// Returns the partition that it splits, if it is a split.
    pub fn split(&self) -> Option<Ino> {
        match self.op {
            MetaOp::Split { part, .. } => Some(part),
            _ => None,
        }
    }

    /// Returns when the job must be handled next.
    pub fn due(&self) -> Timestamp {
        let due = match &self.phase {
            Phase::Fetching { again_at, .. } => *again_at,
            Phase::Blocked { ask_at, .. } => *ask_at,
            Phase::Preparing(attempt) => attempt.due(),
            Phase::Locking(grip) => grip.due(),
            Phase::Resting { until } => *until,
        };
        due.min(self.gives_up)
    }
}
