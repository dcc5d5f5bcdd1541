//! The coordinator: operations of an executor's own clients that need other executors.
//!
//! An operation is run again and again, each time with more records of others, until none is
//! missing. [`Meta::commit_operation`] is the commit point.

use crate::context::OperationContext;
use crate::error::{MetaOutcome, OperationFailure};
use crate::execute::execute_operation;
use crate::keys::{self, ParsedKey, RecordKey};
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::operation::{ExecutorShare, OperationWrites, RerunContext, Txn};
use crate::record::{DamagedRecord, EntryRecord, encode_reply};
use crate::store::Store;
use crate::transaction::intervals::{ASK_AGAIN, ASK_SOON, RESEND_MS};
use crate::transaction::lock_set::LockSet;
use crate::transaction::locks::inode_of;
use crate::transaction::messages::{
    Applied, ChangedInode, FinishedOperation, OutgoingMessage, Ticket,
};
use crate::transaction::pending::{
    DecidedTransaction, OperationPhase, OperationRun, PendingOperation,
};
use crate::transaction::record::{DecisionRecord, ParticipantWrites};
use crate::transaction::split_plan::{self, NO_CLIENT};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult};
use tatami_wire::transaction::{PeerMessage, RecordItem, Refusal, TransactionAge, Txid};
use tatami_wire::{Cred, Errno, ExecutorId, Ino, Timestamp};

/// After this many ms without success an operation fails with `EAGAIN`.
const OPERATION_TIMEOUT_MS: u64 = 10_000;
/// An operation that only reads takes locks after this many rounds that found something changed.
const OPTIMISTIC_ROUNDS: u32 = 6;
/// Shortest and longest rest (in ms) between two attempts.
const REST_MS: u64 = 2;
const REST_MAX: u64 = 100;

impl<S: Store> Meta<S> {
    /// Begins an operation that cannot be answered at once.
    pub(crate) fn begin_operation(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        op: &MetaOp,
    ) -> Applied {
        let name = self.tx.next_txid();
        let ticket = Ticket(name.number);
        let job = PendingOperation {
            ticket,
            ctx: *ctx,
            cred: cred.clone(),
            op: op.clone(),
            // The age stays the same over all attempts, so that a retried operation becomes the
            // oldest at last.
            age: TransactionAge { since: ctx.now, first_attempt: name },
            gives_up: add_millis(self.tx.now, OPERATION_TIMEOUT_MS),
            tries: 0,
            locks: op.is_mutation() && !matches!(op, MetaOp::SplitPartition { .. }),
            rerun: RerunContext::default(),
            asked: BTreeSet::new(),
            rounds: 0,
            trace: 0,
            confirm: None,
            seen: Vec::new(),
            phase: OperationPhase::Resting { until: ctx.now },
        };
        if ctx.client != NO_CLIENT {
            let before = self.tx.by_slot.insert((ctx.client, ctx.slot), ticket);
            // `Meta::waiting_reply` has answered or aborted an operation that waited there. Without
            // other executors nothing waits, unless a damaged disk has invented locks.
            let is_alone = !self.state.is_spread();
            assert!(before.is_none() || is_alone, "two operations wait on a slot");
        }
        self.run_step(job);
        Applied::Pending(ticket)
    }

    /// Returns the answer to a request while an operation waits on its slot: the ticket, if it is
    /// the same request. A request with an older number came late. A newer one means that the
    /// client has given the waiting operation up.
    pub(crate) fn waiting_reply(&mut self, ctx: &OperationContext) -> Option<Applied> {
        let ticket = *self.tx.by_slot.get(&(ctx.client, ctx.slot))?;
        assert!(self.tx.jobs.contains_key(&ticket), "a slot waits for an operation that has ended");
        match self.tx.jobs.get(&ticket).map(|job| job.ctx.seq.cmp(&ctx.seq)) {
            Some(Ordering::Equal) => return Some(Applied::Pending(ticket)),
            Some(Ordering::Greater) => return Some(Applied::Done(Err(Errno::EPROTO))),
            Some(Ordering::Less) | None => {}
        }
        if let Some(mut job) = self.tx.jobs.remove(&ticket) {
            self.abort_attempt(&mut job);
            self.tx.by_slot.remove(&(ctx.client, ctx.slot));
        }
        None
    }

    pub(super) fn run_once(&mut self, job: &mut PendingOperation) -> OperationRun {
        self.state.clear_touched_inodes();
        let mut txn = Txn::for_rerun(&mut self.state, &job.ctx, &job.cred, &mut job.rerun);
        let result = execute_operation(&mut txn, &self.key, &job.op);
        let (used, trace) = txn.read_set();
        let run = match result.and_then(|reply| Ok((reply, txn.into_writes()?))) {
            Ok((reply, mut done)) => {
                // A split that touches no other executor still needs one to confirm that no client
                // believes the old range.
                if let Some(executor) = self.split_witness(job, &done) {
                    done.shares.insert(executor, ExecutorShare::default());
                }
                OperationRun { result: Ok(reply), done, used, trace }
            }
            Err(failure) => {
                OperationRun { result: Err(failure), done: OperationWrites::default(), used, trace }
            }
        };
        job.seen = std::mem::take(&mut self.state.seen);
        run
    }

    /// Runs the operation, and acts on its result.
    pub(super) fn run_step(&mut self, mut job: PendingOperation) {
        // The operation's shard may have moved to another executor since it began.
        let ended = match self.check_op_owner(&job.op) {
            Ok(elsewhere) => elsewhere.map(Ok),
            Err(failure) => Some(Err(self.record_failure(&failure))),
        };
        if let Some(result) = ended {
            // Otherwise the participants of the attempt would keep its locks until they ask.
            self.abort_attempt(&mut job);
            return self.finish_operation(job, result, Vec::new());
        }
        let run = self.run_once(&mut job);
        if job.locks {
            return self.advance_locking(job, run);
        }
        let OperationRun { result, done, used, trace } = run;
        match result {
            Err(OperationFailure::Missing(missing)) => {
                job.trace = trace;
                self.fetch_records(job, missing);
            }
            Err(OperationFailure::Locked(on)) => self.wait_for_locks(job, on),
            // This is certain: it is about a record of this executor.
            Err(OperationFailure::WrongPartition(part, range)) => {
                self.finish_operation(
                    job,
                    Ok(MetaReply::WrongPartition { part, range }),
                    Vec::new(),
                );
            }
            Err(failure) => {
                let result = Err(self.record_failure(&failure));
                self.validate_reads(job, result, used, trace);
            }
            Ok(reply) if done.is_empty() => self.validate_reads(job, Ok(reply), used, trace),
            Ok(reply) if done.shares.is_empty() => {
                self.commit_operation(job, reply, done, Vec::new());
            }
            Ok(_) => self.begin_prepare(job, done),
        }
    }

    /// Waits until records of this executor are unlocked. The operation holds no locks itself, so
    /// waiting cannot deadlock.
    pub(super) fn wait_for_locks(&mut self, mut job: PendingOperation, on: Vec<Txid>) {
        assert!(!on.is_empty(), "a conflict of locks has no holder");
        assert!(
            !matches!(job.phase, OperationPhase::Locking(_) | OperationPhase::Preparing(_)),
            "an operation that holds locks waits for any"
        );
        job.phase = OperationPhase::Blocked { on, ask_at: add_millis(self.tx.now, ASK_SOON) };
        self.tx.jobs.insert(job.ticket, job);
    }

    /// Asks other executors for records.
    fn fetch_records(&mut self, job: PendingOperation, keys: Vec<(ExecutorId, RecordKey)>) {
        let mut left: BTreeMap<ExecutorId, Vec<RecordKey>> = BTreeMap::new();
        for (executor, key) in keys {
            left.entry(executor).or_default().push(key);
        }
        self.begin_fetch(job, left);
    }

    pub(super) fn begin_fetch(
        &mut self,
        mut job: PendingOperation,
        left: BTreeMap<ExecutorId, Vec<RecordKey>>,
    ) {
        let request = self.tx.next_txid();
        assert!(!left.is_empty(), "a fetch goes to no executor");
        assert!(!left.contains_key(&self.tx.here), "an executor sends itself a message");
        job.rounds += 1;
        job.asked.extend(left.keys());
        self.send_fetches(request, job.age, &left);
        self.tx.by_txid.insert(request, job.ticket);
        job.phase = OperationPhase::Fetching {
            request,
            left,
            again_at: add_millis(self.tx.now, RESEND_MS),
        };
        self.tx.jobs.insert(job.ticket, job);
    }

    fn send_fetches(
        &mut self,
        request: Txid,
        age: TransactionAge,
        left: &BTreeMap<ExecutorId, Vec<RecordKey>>,
    ) {
        for (executor, keys) in left {
            let keys = keys.iter().cloned().map(Bytes::from).collect();
            self.tx.send_message(*executor, PeerMessage::FetchRecords { request, age, keys });
        }
    }

    pub(super) fn receive_fetched(
        &mut self,
        from: ExecutorId,
        request: Txid,
        life: u64,
        values: Vec<Option<Bytes>>,
    ) -> MetaOutcome<()> {
        let Some(ticket) = self.tx.by_txid.get(&request) else { return Ok(()) };
        let Some(job) = self.tx.jobs.get_mut(ticket) else { return Ok(()) };
        let OperationPhase::Fetching { left, .. } = &mut job.phase else { return Ok(()) };
        // A repeated or late reply does not match the outstanding request.
        if left.get(&from).is_none_or(|keys| keys.len() != values.len()) {
            return Ok(());
        }
        let keys = left.remove(&from).unwrap_or_default();
        // The split's prepare names this incarnation: a participant that has restarted since
        // refuses it.
        job.rerun.incarnations.insert(from, life);
        for (key, value) in keys.into_iter().zip(values) {
            job.rerun.fetched.insert(key, value.map(Bytes::into_vec));
        }
        if left.is_empty() {
            let ticket = *ticket;
            self.tx.by_txid.remove(&request);
            if let Some(job) = self.tx.jobs.remove(&ticket) {
                self.run_step(job);
            }
        }
        Ok(())
    }

    /// Read validation of an operation that changes nothing: answers it if all values that it has
    /// read were true at one moment.
    fn validate_reads(
        &mut self,
        mut job: PendingOperation,
        result: MetaResult,
        used: BTreeSet<RecordKey>,
        trace: u128,
    ) {
        // One executor answered one request, so its values are from one moment; and nothing here
        // has changed since.
        let at_once = job.rounds <= 1 && job.asked.len() <= 1 && job.trace == trace;
        let seen = job.rerun.digest_reads(&used, trace);
        if used.is_empty() || at_once || job.confirm == Some(seen) {
            return self.finish_operation(job, result, Vec::new());
        }
        // Optimistic reads do not converge under constant change: fall back to shared locks.
        if job.rounds > OPTIMISTIC_ROUNDS && job.split_target().is_none() {
            job.locks = true;
            job.rerun.fetched.clear();
            return self.run_step(job);
        }
        // Read everything once more. The same digest twice means that nothing changed between.
        job.confirm = Some(seen);
        let keys = used.into_iter().filter_map(|key| Some((self.state.remote_owner(&key)?, key)));
        let keys: Vec<_> = keys.collect();
        job.rerun.fetched.clear();
        self.fetch_records(job, keys);
    }

    /// Returns the job of this attempt, if the attempt is still under way.
    pub(super) fn find_attempt(&mut self, txid: Txid) -> Option<&mut PendingOperation> {
        let job = self.tx.jobs.get_mut(self.tx.by_txid.get(&txid)?)?;
        let ours = match &job.phase {
            OperationPhase::Locking(lock_set) => lock_set.txid == txid,
            OperationPhase::Preparing(attempt) => attempt.has_transaction(txid),
            OperationPhase::Fetching { .. }
            | OperationPhase::Blocked { .. }
            | OperationPhase::Resting { .. } => false,
        };
        ours.then_some(job)
    }

    pub(super) fn receive_refusal(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        why: Refusal,
    ) -> MetaOutcome<()> {
        let Some(job) = self.find_attempt(txid) else { return Ok(()) };
        let asked = match &job.phase {
            OperationPhase::Locking(lock_set) => lock_set.outstanding.contains_key(&from),
            OperationPhase::Preparing(attempt) => attempt.waits_for(from, txid),
            _ => false,
        };
        let ticket = job.ticket;
        if asked && let Some(mut job) = self.tx.jobs.remove(&ticket) {
            self.abort_attempt(&mut job);
            match why {
                Refusal::Retry => self.rest_operation(job),
                Refusal::DiskFull => self.finish_operation(job, Err(Errno::ENOSPC), Vec::new()),
            }
        }
        Ok(())
    }

    /// Commits: writes the local changes, the answer and, for a transaction, the decision in one
    /// batch. Returns the changed inodes.
    ///
    /// This is the commit point of two-phase commit.
    pub(super) fn commit_operation(
        &mut self,
        mut job: PendingOperation,
        reply: MetaReply,
        done: OperationWrites,
        decided: Vec<(Txid, DecisionRecord)>,
    ) -> Vec<ChangedInode> {
        let ctx = job.ctx;
        // All that may fail comes before the first change.
        let record = |(txid, committed): &(Txid, DecisionRecord)| Ok((*txid, committed.encode()?));
        let records = decided.iter().map(record).collect::<Result<Vec<_>, DamagedRecord>>();
        let (answer, records) = match (encode_reply(ctx.seq, &reply), records) {
            (Ok(answer), Ok(records)) => (answer, records),
            (Err(damaged), _) | (_, Err(damaged)) => {
                let result = Err(self.record_failure(&OperationFailure::Damaged(damaged)));
                self.abort_attempt(&mut job);
                self.finish_operation(job, result, Vec::new());
                return Vec::new();
            }
        };
        // Some of the names that a split moves may be durable already. The split must not be lost
        // in part, so it is synced.
        self.moves.wants_sync |= job.split_target().is_some();
        for (txid, record) in records {
            // The decision lies in the same batch as the local changes: neither is ever without the
            // other.
            self.tx.by_txid.remove(&txid);
            self.state.put_record(keys::decision_record(txid), Some(record));
        }
        self.state.clear_touched_inodes();
        self.garbage.extend(done.apply_writes(&mut self.state));
        let changed = std::mem::take(&mut self.state.changed);
        for (txid, DecisionRecord { participants: left }) in decided {
            assert!(!left.is_empty(), "a decision has no participants");
            assert!(!left.contains_key(&self.tx.here), "an executor sends itself a message");
            // The change becomes visible through the participants. So all delegations of it are
            // recalled before these messages leave.
            for (executor, ParticipantWrites { incarnation: life, writes }) in &left {
                let (to, life, writes) = (*executor, *life, writes.clone());
                let message = PeerMessage::Finish { txid, incarnation: life, writes };
                let changed = changed.clone();
                let client = Some(ctx.client).filter(|client| *client != NO_CLIENT);
                let shown =
                    OutgoingMessage { changed, client, ..OutgoingMessage::new(to, message) };
                self.tx.staged_messages.push(shown);
            }
            let again_at = add_millis(self.tx.now, self.tx.finish_again);
            if self.tx.decided.is_empty() {
                self.tx.finish_at = again_at;
            }
            let since = self.tx.now;
            let changed = changed.iter().map(|changed| changed.ino).collect();
            self.tx.decided.insert(txid, DecidedTransaction { left, again_at, since, changed });
        }
        // The reply record makes a repeated request (same slot, same number) return this answer.
        if ctx.client != NO_CLIENT {
            self.state.put_record(keys::reply(ctx.client, ctx.slot), Some(answer));
            self.sessions.record_success(&ctx, true);
        }
        self.finish_operation(job, Ok(reply), changed.clone());
        changed
    }

    pub(super) fn finish_operation(
        &mut self,
        job: PendingOperation,
        result: MetaResult,
        changed: Vec<ChangedInode>,
    ) {
        if let Some(part) = job.split_target() {
            self.end_split(part, result.as_ref().err().copied());
        }
        if job.ctx.client == NO_CLIENT {
            return;
        }
        // A failed mutation is remembered, too: its repetition must not run again. After `EAGAIN`
        // the client repeats it so that it runs again.
        self.tx.by_slot.remove(&(job.ctx.client, job.ctx.slot));
        if let (true, Err(errno)) = (job.op.is_mutation(), &result)
            && *errno != Errno::EAGAIN
        {
            self.sessions.record_failure(&job.ctx, *errno);
        }
        let PendingOperation { ticket, seen, op, .. } = job;
        let dir = op.delegable_dir().and_then(|dir| self.current_attr(dir));
        let part = op.delegable_dir().filter(|_| dir.is_none());
        let part = part.and_then(|part| self.partition_info(part));
        self.tx.finished.push(FinishedOperation { ticket, result, seen, changed, dir, part });
    }

    /// Aborts the attempt: it has not happened and never will.
    pub(super) fn abort_attempt(&mut self, job: &mut PendingOperation) {
        if let OperationPhase::Locking(LockSet { txid, .. }) = &job.phase {
            // From its decision on, a transaction is no attempt of an operation any more.
            assert!(!self.tx.decided.contains_key(txid), "a decided transaction is aborted");
        }
        // The local lock goes first: `unlock` needs the phase that is replaced next.
        self.unlock_partition(job);
        match std::mem::replace(&mut job.phase, OperationPhase::Resting { until: self.tx.now }) {
            OperationPhase::Preparing(attempt) => {
                attempt
                    .txids()
                    .for_each(|(executor, txid)| self.release_locks(txid, [executor].iter()));
            }
            OperationPhase::Locking(lock_set) => {
                self.release_locks(lock_set.txid, lock_set.asked_executors())
            }
            OperationPhase::Fetching { request, .. } => drop(self.tx.by_txid.remove(&request)),
            OperationPhase::Blocked { .. } | OperationPhase::Resting { .. } => {}
        }
    }

    /// Releases the locks. Participants that hold none of them refuse a lock request that comes
    /// late.
    pub(super) fn release_locks<'a>(
        &mut self,
        txid: Txid,
        executors: impl Iterator<Item = &'a ExecutorId>,
    ) {
        self.tx.by_txid.remove(&txid);
        executors
            .for_each(|executor| self.tx.send_message(*executor, PeerMessage::Release { txid }));
    }

    /// Restarts all operations in progress, because shards have moved: records may lie on other
    /// executors now.
    pub(crate) fn restart_operations(&mut self) {
        let tickets: Vec<_> = self.tx.jobs.keys().copied().collect();
        for ticket in tickets {
            if let Some(mut job) = self.tx.jobs.remove(&ticket) {
                self.abort_attempt(&mut job);
                self.rest_operation(job);
            }
        }
    }

    pub(super) fn request_outcomes(&mut self, on: &[Txid], abort: Option<TransactionAge>) {
        on.iter().for_each(|txid| self.request_outcome(*txid, abort));
    }

    /// Restarts the operation after a rest. The rest grows with the number of failed attempts.
    pub(super) fn rest_operation(&mut self, mut job: PendingOperation) {
        assert!(
            matches!(job.phase, OperationPhase::Resting { .. }),
            "an operation rests while its attempt goes on"
        );
        // The locks are released, so no fetched value is certain any more.
        job.rerun.fetched.clear();
        job.rerun.incarnations.clear();
        (job.asked, job.rounds, job.confirm) = (BTreeSet::new(), 0, None);
        let longest = (REST_MS << job.tries.min(6)).min(REST_MAX);
        job.tries += 1;
        // Operations that collide again and again get different rests.
        let rest = longest / 2 + job.ticket.0 * 7 % longest.max(1);
        let rest =
            if job.split_target().is_some() { rest + split_plan::SPLIT_REST_MS } else { rest };
        job.phase = OperationPhase::Resting { until: add_millis(self.tx.now, rest) };
        self.tx.jobs.insert(job.ticket, job);
    }

    /// Resumes the operations of this executor that waited for a lock, the oldest first.
    pub(super) fn resume_blocked(&mut self, txid: Txid) {
        let waits = |job: &PendingOperation| match &job.phase {
            OperationPhase::Blocked { on, .. } => on.contains(&txid),
            OperationPhase::Locking(lock_set) => lock_set.blockers.contains(&txid),
            OperationPhase::Preparing(_)
            | OperationPhase::Fetching { .. }
            | OperationPhase::Resting { .. } => false,
        };
        let free = self.tx.jobs.values().filter(|job| waits(job));
        let mut free: Vec<_> = free.map(|job| (job.age, job.ticket)).collect();
        // Oldest first: wound-wait guarantees progress to the oldest only.
        free.sort_unstable();
        for (_, ticket) in free {
            let Some(mut job) = self.tx.jobs.remove(&ticket) else { continue };
            if let OperationPhase::Locking(lock_set) = &mut job.phase {
                lock_set.blockers.clear();
            }
            self.run_step(job);
        }
    }

    pub(super) fn receive_acknowledgement(
        &mut self,
        from: ExecutorId,
        txid: Txid,
    ) -> MetaOutcome<()> {
        if let Some(decided) = self.tx.decided.get_mut(&txid) {
            decided.left.remove(&from);
            if decided.left.is_empty() {
                // The decision may be forgotten only now: a participant without an acknowledgement
                // would take a missing decision for an abort.
                self.tx.decided.remove(&txid);
                self.state.put_record(keys::decision_record(txid), None);
            }
        }
        Ok(())
    }

    /// Returns the executors whose part of decided changes to the names of these inodes may not be
    /// durable there yet.
    pub(crate) fn unsynced_participants(&self, inos: &[Ino]) -> Vec<ExecutorId> {
        let inos: BTreeSet<Ino> = inos.iter().copied().collect();
        let concerns = |item: &RecordItem<Bytes>| {
            let leads = || EntryRecord::decode(item.value.as_deref()?).ok().map(|entry| entry.ino);
            let entry = matches!(keys::parse(&item.key), Some(ParsedKey::Entry { .. }));
            let of = inode_of(&item.key).into_iter();
            of.chain(entry.then(leads).flatten()).any(|ino| inos.contains(&ino))
        };
        let mut also = BTreeSet::new();
        for DecidedTransaction { left, changed, .. } in self.tx.decided.values() {
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
    pub(super) fn report_outcome(
        &mut self,
        to: ExecutorId,
        txid: Txid,
        abort: Option<TransactionAge>,
    ) -> MetaOutcome<()> {
        if txid.executor != self.tx.here {
            return Ok(());
        }
        if let Some(decided) = self.tx.decided.get(&txid) {
            let (part, seen) = (decided.left.get(&to).cloned(), decided.changed.clone());
            match part {
                Some(ParticipantWrites { incarnation, writes }) => {
                    self.tx.send_with_inodes(
                        to,
                        PeerMessage::Finish { txid, incarnation, writes },
                        seen,
                    );
                }
                // It committed, and this participant has acknowledged its part or had nothing to
                // write.
                None => self.tx.send_message(to, PeerMessage::Release { txid }),
            }
            return Ok(());
        }
        match self.find_attempt(txid) {
            // Wound-wait: an older transaction waits for this one, which gives way. It is not
            // decided, so it can.
            Some(job) if abort.is_some_and(|age| age < job.age) => {
                let ticket = job.ticket;
                if let Some(mut job) = self.tx.jobs.remove(&ticket) {
                    self.abort_attempt(&mut job);
                    self.rest_operation(job);
                }
            }
            Some(_) => {}
            // Presumed abort: an unknown transaction was never committed.
            None => self.tx.send_message(to, PeerMessage::Release { txid }),
        }
        Ok(())
    }

    /// Handles the operations that are due.
    pub(crate) fn tick_jobs(&mut self) {
        let now = self.tx.now;
        let due: Vec<_> = self
            .tx
            .jobs
            .values()
            .filter(|job| job.next_due() <= now)
            .map(|job| job.ticket)
            .collect();
        for ticket in due {
            let Some(mut job) = self.tx.jobs.remove(&ticket) else { continue };
            if job.gives_up <= now {
                self.abort_attempt(&mut job);
                self.finish_operation(job, Err(Errno::EAGAIN), Vec::new());
                continue;
            }
            self.handle_due(job, now);
        }
        if self.tx.finish_at <= now {
            self.resend_decisions(now);
        }
    }

    /// Sends the outcome again to the participants that have not acknowledged it in time.
    fn resend_decisions(&mut self, now: Timestamp) {
        let late: Vec<_> = self.tx.decided.iter_mut().filter(|(_, d)| d.again_at <= now).collect();
        let mut sent = Vec::new();
        for (txid, decided) in late {
            decided.again_at = add_millis(now, self.tx.finish_again);
            for (executor, ParticipantWrites { incarnation: life, writes }) in &decided.left {
                let (life, writes) = (*life, writes.clone());
                let message = PeerMessage::Finish { txid: *txid, incarnation: life, writes };
                sent.push((*executor, message, decided.changed.clone()));
            }
        }
        let next = self.tx.decided.values().map(|decided| decided.again_at).min();
        self.tx.finish_at = next.unwrap_or(now);
        for (executor, message, changed) in sent {
            self.tx.send_with_inodes(executor, message, changed);
        }
    }

    fn handle_due(&mut self, mut job: PendingOperation, now: Timestamp) {
        let age = job.age;
        match &mut job.phase {
            OperationPhase::Resting { .. } => return self.run_step(job),
            OperationPhase::Fetching { request, left, again_at } => {
                *again_at = add_millis(now, RESEND_MS);
                let (request, left) = (*request, left.clone());
                self.send_fetches(request, age, &left);
            }
            OperationPhase::Blocked { on, ask_at } => {
                *ask_at = add_millis(now, ASK_AGAIN);
                let on = on.clone();
                self.request_outcomes(&on, Some(age));
            }
            OperationPhase::Preparing(attempt) if !attempt.is_expired(now) => {
                self.resend_prepares(&mut job)
            }
            OperationPhase::Locking(lock_set) if lock_set.deadline > now => {
                self.resend_lock_requests(&mut job)
            }
            // A participant does not answer. Its locks must not block others longer.
            OperationPhase::Preparing(_) | OperationPhase::Locking(_) => {
                self.abort_attempt(&mut job);
                // Others get their turn first.
                job.tries = job.tries.max(6);
                return self.rest_operation(job);
            }
        }
        self.tx.jobs.insert(job.ticket, job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::MetaConfig;
    use crate::store::MemoryStore;
    use tatami_wire::meta::{InodeTemplate, RenameMode};
    use tatami_wire::{ClientId, Layout, NodeId, ShardMap, VolumeId, VolumeKey};

    const HERE: ExecutorId = ExecutorId { node: NodeId(0), index: 0 };
    const THERE: ExecutorId = ExecutorId { node: NodeId(1), index: 0 };
    const OTHER: ExecutorId = ExecutorId { node: NodeId(2), index: 0 };
    const NOW: Timestamp = Timestamp { sec: 9, nsec: 0 };

    /// The executor of the root, which coordinates a rename into a directory of another.
    struct Coordinator {
        meta: Meta<MemoryStore>,
        elsewhere: Ino,
    }

    impl Coordinator {
        fn new() -> Coordinator {
            let map = ShardMap::with_even_blocks(1, 16, &[HERE, THERE]).expect("16 shards");
            let shard = map.shards_of(THERE).next().expect("half of them");
            let key = VolumeKey::new([1; 32]);
            let config = MetaConfig { executor: HERE, map, volume: VolumeId([1; 16]), key };
            let meta = Meta::open(MemoryStore::new(), config, NOW).expect("opens");
            let mut coordinator = Coordinator { meta, elsewhere: Ino::first_in_shard(shard) };
            let create = MetaOp::Create {
                parent: Ino::ROOT,
                name: b"a".to_vec().into(),
                node: InodeTemplate::File(Layout::whole(NodeId(0))),
                mode: 0o644,
                umask: 0,
                exclusive: true,
                open: None,
            };
            let made = coordinator.apply(1, &create);
            assert!(matches!(made, Applied::Done(Ok(MetaReply::Created { .. }))));
            coordinator
        }

        fn apply(&mut self, seq: u64, op: &MetaOp) -> Applied {
            let client = ClientId([1; 16]);
            let ctx = OperationContext { now: NOW, client, slot: 0, seq, trusted: true };
            let applied = self.meta.apply(&ctx, &Cred::ROOT, op);
            self.meta.commit().expect("commits");
            applied
        }

        /// Begins the rename. Returns the attempt that asks the other executor for locks.
        fn begin_rename(&mut self) -> Txid {
            let rename = MetaOp::Rename {
                parent: Ino::ROOT,
                name: b"a".to_vec().into(),
                new_parent: self.elsewhere,
                new_name: b"b".to_vec().into(),
                mode: RenameMode::NoReplace,
                keep: false,
            };
            assert!(matches!(self.apply(2, &rename), Applied::Pending(_)));
            self.requested_locks().expect("it asks for locks")
        }

        /// The attempt of the lock request that leaves now, if it is all that leaves.
        fn requested_locks(&mut self) -> Option<Txid> {
            match self.meta.take_outbox().as_slice() {
                [OutgoingMessage { to: THERE, message: PeerMessage::Lock { txid, .. }, .. }] => {
                    Some(*txid)
                }
                _ => None,
            }
        }

        fn refuse(&mut self, from: ExecutorId, txid: Txid, why: Refusal) -> Vec<PeerMessage> {
            self.receive(from, PeerMessage::Refused { txid, why })
        }

        /// Handles a message. Returns the messages that leave then.
        fn receive(&mut self, from: ExecutorId, message: PeerMessage) -> Vec<PeerMessage> {
            self.meta.receive_message(NOW, from, message);
            self.meta.commit().expect("commits");
            self.meta.take_outbox().into_iter().map(|message| message.message).collect()
        }
    }

    #[test]
    fn a_refused_attempt_releases_its_locks_and_begins_again_after_a_rest() {
        let mut coordinator = Coordinator::new();
        let mut now = NOW;
        let mut txid = coordinator.begin_rename();
        for _ in 0..4 {
            let sent = coordinator.refuse(THERE, txid, Refusal::Retry);
            assert_eq!(sent, [PeerMessage::Release { txid }]);
            let due = coordinator.meta.deadline().expect("it rests");
            assert!(due > now && due < add_millis(now, 2 * REST_MAX), "{due:?}");
            now = due;
            coordinator.meta.tick(now);
            coordinator.meta.commit().expect("commits");
            let next = coordinator.requested_locks().expect("it asks again");
            assert_ne!(next, txid, "an attempt is never begun twice");
            txid = next;
        }
        assert!(coordinator.meta.take_finished().is_empty());
    }

    #[test]
    fn a_refusal_of_another_attempt_changes_nothing() {
        let mut coordinator = Coordinator::new();
        let txid = coordinator.begin_rename();
        let other = Txid { number: txid.number + 9, ..txid };
        assert_eq!(coordinator.refuse(THERE, other, Refusal::Retry), []);
        assert_eq!(coordinator.refuse(OTHER, txid, Refusal::Retry), [], "it was not asked");
        let sent = coordinator.refuse(THERE, txid, Refusal::Retry);
        assert_eq!(sent, [PeerMessage::Release { txid }], "the attempt still went on");
    }

    #[test]
    fn a_participant_without_room_ends_the_operation() {
        let mut coordinator = Coordinator::new();
        let txid = coordinator.begin_rename();
        let sent = coordinator.refuse(THERE, txid, Refusal::DiskFull);
        assert_eq!(sent, [PeerMessage::Release { txid }]);
        let finished = coordinator.meta.take_finished();
        assert!(matches!(
            finished.as_slice(),
            [FinishedOperation { result: Err(Errno::ENOSPC), .. }]
        ));
        assert_eq!(coordinator.meta.count_in_progress(), 0);
    }

    /// Wound-wait.
    #[test]
    fn an_older_transaction_aborts_an_undecided_one_and_a_younger_does_not() {
        let mut coordinator = Coordinator::new();
        let txid = coordinator.begin_rename();
        let [older, same, younger] = [NOW.sec - 1, NOW.sec, NOW.sec + 1].map(|sec| {
            Some(TransactionAge { since: Timestamp { sec, nsec: 0 }, first_attempt: txid })
        });
        for abort in [None, same, younger] {
            let sent = coordinator.receive(THERE, PeerMessage::QueryOutcome { txid, abort });
            assert_eq!(sent, [], "it is undecided: {abort:?}");
        }
        let sent = coordinator.receive(THERE, PeerMessage::QueryOutcome { txid, abort: older });
        assert_eq!(sent, [PeerMessage::Release { txid }]);
        assert_eq!(coordinator.meta.count_in_progress(), 1, "it begins again after a rest");
        // Presumed abort: what is unknown here was never committed.
        let sent = coordinator.receive(THERE, PeerMessage::QueryOutcome { txid, abort: None });
        assert_eq!(sent, [PeerMessage::Release { txid }]);
    }
}
