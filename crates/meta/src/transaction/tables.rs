//! The tables of an executor's transactions.

use crate::error::MetaOutcome;
use crate::keys::{self, ParsedKey, tag};
use crate::millis::add_millis;
use crate::record::DamagedRecord;
use crate::state::MetaState;
use crate::store::Store;
use crate::transaction::acks::Acks;
use crate::transaction::intervals::{ACK_DELAY_MS, RESEND_MS};
use crate::transaction::messages::{FinishedOperation, OutgoingMessage, Ticket};
use crate::transaction::participations::{EndedTransactions, WaitingRequest};
use crate::transaction::pending::{DecidedTransaction, PendingOperation};
use crate::transaction::split_plan::Splits;
use crate::transaction::{locks, record};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use tatami_wire::transaction::{PeerMessage, Txid};
use tatami_wire::{ClientId, ExecutorId, Ino, Timestamp, hash};

/// The state of an executor's transactions: those that it coordinates and those in which it
/// participates.
pub(crate) struct Transactions {
    pub here: ExecutorId,
    pub incarnation: u64,
    /// The number of the next transaction, request or ticket.
    pub next: u64,
    pub now: Timestamp,
    pub jobs: BTreeMap<Ticket, PendingOperation>,
    pub by_slot: HashMap<(ClientId, u32), Ticket, hash::HashBuilder>,
    pub by_txid: HashMap<Txid, Ticket, hash::HashBuilder>,
    pub decided: BTreeMap<Txid, DecidedTransaction>,
    /// No decision is due to be sent again before this moment.
    pub finish_at: Timestamp,
    pub waiting: Vec<WaitingRequest>,
    pub ended: EndedTransactions,
    pub splits: Splits,
    pub acks: Acks,
    /// An outcome that a participant has not acknowledged is sent again after this many ms.
    pub finish_again: u64,
    /// Transactions of this executor that have released their locks on records of this executor.
    pub released: Vec<Txid>,
    /// Messages that may leave after the next commit.
    pub staged_messages: Vec<OutgoingMessage>,
    pub finished: Vec<FinishedOperation>,
    /// Messages that may leave now.
    pub ready_messages: Vec<OutgoingMessage>,
    pub ready_finished: Vec<FinishedOperation>,
}

impl Transactions {
    /// Reads the transactions in progress from the records, and begins a new incarnation.
    pub fn open<S: Store>(state: &mut MetaState<S>, now: Timestamp) -> MetaOutcome<Transactions> {
        let mut all = Transactions {
            here: state.executor(),
            incarnation: 0,
            next: 1,
            now,
            jobs: BTreeMap::new(),
            by_slot: HashMap::with_hasher(hash::HashBuilder::default()),
            by_txid: HashMap::with_hasher(hash::HashBuilder::default()),
            decided: BTreeMap::new(),
            finish_at: now,
            waiting: Vec::new(),
            ended: EndedTransactions::default(),
            splits: Splits::default(),
            acks: Acks::default(),
            finish_again: RESEND_MS,
            released: Vec::new(),
            staged_messages: Vec::new(),
            finished: Vec::new(),
            ready_messages: Vec::new(),
            ready_finished: Vec::new(),
        };
        all.reload_tables(state)?;
        if state.is_spread() {
            all.splits.resume_planned(state, now)?;
            all.begin_incarnation(state)?;
            state.commit()?;
            // The incarnation's number must be durable before the first message that carries it.
            state.sync()?;
        }
        Ok(all)
    }

    /// Begins a new incarnation; its number is durable after a sync.
    pub fn begin_incarnation<S: Store>(&mut self, state: &mut MetaState<S>) -> MetaOutcome<()> {
        let life = match state.get(&keys::incarnation())? {
            Some(bytes) => record::decode_value::<u64>(&bytes)?,
            None => 0,
        };
        // The counter may have lost its last increments with unsynced batches. Adding a bound of
        // the lost increments keeps every number unique.
        let next = life.checked_add(1).and_then(|next| next.checked_add(state.lost_bound()));
        self.incarnation = next.ok_or(DamagedRecord("incarnation"))?;
        // A decision of this incarnation, from a damaged disk, would be taken for one to come.
        if self.decided.keys().any(|txid| txid.incarnation >= self.incarnation) {
            return Err(DamagedRecord("incarnation").into());
        }
        state.put_record(keys::incarnation(), Some(record::encode_value(&self.incarnation)?));
        state.request_shard_write();
        Ok(())
    }

    /// Rebuilds the tables in memory from the records.
    pub fn reload_tables<S: Store>(&mut self, state: &mut MetaState<S>) -> MetaOutcome<()> {
        let (mut locks, mut decided) = (locks::TransactionLocks::default(), BTreeMap::new());
        let now = self.now;
        state.scan_records(&[tag::LOCKED], &[tag::LOCKED], &mut |key, value| {
            if let Some(ParsedKey::LockRecord(txid)) = keys::parse(key) {
                let prepared = record::LockRecord::decode(value)?;
                // The table asserts that locks exclude each other, so the records of a damaged
                // disk are checked before.
                let writes = prepared.writes.iter().map(|item| &item.key);
                let mut writes = writes.chain(&prepared.intents);
                if writes.any(|key| !locks.write_blockers(key).is_empty())
                    || prepared.reads.iter().any(|key| locks.read_blocker(key).is_some())
                {
                    return Err(DamagedRecord("locks of a transaction").into());
                }
                locks.insert(txid, prepared, now);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        state.scan_records(&[tag::COMMITTED], &[tag::COMMITTED], &mut |key, value| {
            if let Some(ParsedKey::Decision(txid)) = keys::parse(key) {
                let record::DecisionRecord { participants } =
                    record::DecisionRecord::decode(value)?;
                // After a start, no change leaves before all earlier delegations have expired.
                let changed = Vec::new();
                let left = participants;
                decided
                    .insert(txid, DecidedTransaction { left, again_at: now, since: now, changed });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        // These are in memory only: they survive the reload.
        locks.set_closed_block(state.locks.closed_block());
        locks.exclusive = std::mem::take(&mut state.locks.exclusive);
        state.locks = locks;
        self.decided = decided;
        self.finish_at = now;
        Ok(())
    }

    /// Returns a transaction number that is unique for ever.
    pub fn next_txid(&mut self) -> Txid {
        let number = self.next;
        self.next += 1;
        assert!(number < self.next, "the number of a transaction was used before");
        Txid { executor: self.here, incarnation: self.incarnation, number }
    }

    pub fn send_message(&mut self, to: ExecutorId, message: PeerMessage) {
        self.staged_messages.push(OutgoingMessage::new(to, message));
    }

    /// As [`Transactions::send_message`], of a message that describes inodes of this executor.
    pub fn send_with_inodes(&mut self, to: ExecutorId, message: PeerMessage, seen: Vec<Ino>) {
        self.staged_messages.push(OutgoingMessage { seen, ..OutgoingMessage::new(to, message) });
    }

    /// Returns whether a message, an answer or an acknowledgement waits for a commit.
    pub fn is_staged(&self) -> bool {
        !(self.staged_messages.is_empty()
            && self.finished.is_empty()
            && self.acks.has_none_staged())
    }

    /// Marks all changes until now as committed.
    pub fn mark_committed(&mut self) {
        // Write-ahead rule: a message that promises something leaves only after its batch is in the
        // log.
        self.ready_messages.append(&mut self.staged_messages);
        self.acks.mark_committed();
        self.ready_finished.append(&mut self.finished);
        assert!(!self.is_staged(), "a message or an answer is left behind by its commit");
    }

    /// Undoes all changes since the last commit.
    pub fn undo_uncommitted<S: Store>(
        &mut self,
        state: &mut MetaState<S>,
        errno: tatami_wire::Errno,
    ) -> MetaOutcome<()> {
        // These messages promise changes that are not in the log.
        self.staged_messages.clear();
        self.acks.clear_staged();
        for finished in &mut self.finished {
            finished.result = Err(errno);
            finished.changed.clear();
        }
        self.ready_finished.append(&mut self.finished);
        assert!(!self.is_staged(), "a message leaves though its changes were undone");
        self.reload_tables(state)
    }
}

impl Transactions {
    /// Takes the messages that leave now, with the acknowledgements that go along.
    pub fn take_messages(&mut self) -> Vec<OutgoingMessage> {
        let mut outs = std::mem::take(&mut self.ready_messages);
        if !self.acks.done.is_empty() {
            let mut executors: Vec<_> = outs.iter().map(|out| out.to).collect();
            executors.sort_unstable();
            executors.dedup();
            outs.extend(
                executors.into_iter().filter_map(|executor| self.acks.take_message(executor)),
            );
        }
        outs
    }

    /// Sends the acknowledgements that have waited long enough.
    pub fn send_due_acks(&mut self) {
        let late =
            |(since, _): &(Timestamp, Vec<Txid>)| add_millis(*since, ACK_DELAY_MS) <= self.now;
        let due: Vec<_> = self
            .acks
            .done
            .iter()
            .filter(|(_, all)| late(all))
            .map(|(executor, _)| *executor)
            .collect();
        for executor in due {
            while let Some(out) = self.acks.take_message(executor) {
                self.staged_messages.push(out);
            }
        }
    }
}
