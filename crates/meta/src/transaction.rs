//! Operations that touch records of several executors: two-phase commit among executors.
//!
//! The rules of the namespace run in a [`Txn`](crate::txn::Txn), as for a local operation. Where a
//! run needs a record of another executor that it does not know yet, the run ends with
//! [`OperationFailure::Missing`](crate::error::Failure). The coordinator asks for the record, and
//! runs the operation again from its start.
//!
//! **An operation that changes something** takes *locks* at first contact (strict two-phase
//! locking), so that the fetched values stay true. Deadlocks are prevented by age (wound-wait and
//! wait-die, Rosenkrantz 1978): the oldest operation always makes progress. When nothing is missing
//! any more, the coordinator writes four things in one batch of its write-ahead log: its own
//! changes, the answer, the decision, and the writes of the participants. Before that batch nothing
//! has happened; after it, all of it has. The coordinator does not lock its own records, since the
//! last run sees their current values. ([`locking`])
//!
//! **An operation that only reads** locks nothing at first (optimistic concurrency control). It is
//! answered if all values that it read were true at one moment. That holds if they came from one
//! executor and nothing here has changed meanwhile, or if a second read gives the same values:
//! inodes have versions, so equal values at two moments mean no change between them. If something
//! changes at every attempt, the operation takes locks, too.
//!
//! **A split** is not urgent and writes many records. It reads optimistically. Then the
//! participants *prepare* its writes: each of them compares the values that the split has read with
//! the current ones. The split is run once more, and decided if it comes to the same result.
//! ([`preparing`])
//!
//! No operation waits for a client. It waits for another executor only where every operation would
//! wait for that executor's shards. A transaction that meets a lock asks the lock's coordinator
//! after a while; that coordinator aborts its operation for an older one. A coordinator that does
//! not know a transaction has not committed it and never will (presumed abort). A coordinator that
//! cannot reach a participant releases the locks after a while, and retries later.

pub(crate) mod acks;
pub(crate) mod coordinator;
pub(crate) mod locking;
pub(crate) mod locks;
pub(crate) mod participant;
pub(crate) mod prepare;
pub(crate) mod record;
pub(crate) mod splits;

use crate::error::{MetaOutcome, OperationFailure};
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::state::MetaState;
use crate::store::Store;
use coordinator::{DecidedTransaction, PendingOperation};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use tatami_wire::meta::MetaResult;
use tatami_wire::transaction::{PeerMessage, RecordDigest, TransactionAge, Txid};
use tatami_wire::{Attr, ClientId, ExecutorId, Ino, Timestamp, hash};

/// Names an operation whose answer comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The immediate result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// The operation has been answered.
    Done(MetaResult),
    /// It needs other executors: the answer comes with
    /// [`Meta::take_finished`](crate::Meta::take_finished).
    Pending(Ticket),
}

impl Applied {
    /// Returns the answer of an executor that has all shards: it never waits for others.
    ///
    /// # Errors
    /// The operation's; `EAGAIN` where it waits for other executors.
    pub fn into_result(self) -> MetaResult {
        match self {
            Applied::Done(result) => result,
            Applied::Pending(_) => Err(tatami_wire::Errno::EAGAIN),
        }
    }
}

/// A message to another executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The receiver.
    pub to: ExecutorId,
    /// The message itself.
    pub message: PeerMessage,
    /// The inodes that other executors may see changed once the message has left: their attributes
    /// or (of directories) their entries. All delegations of them must be back before it leaves.
    pub changed: Vec<Ino>,
    /// The inodes of this executor that the message describes. While a delegation of one of them is
    /// being recalled, the message must wait, too.
    pub seen: Vec<Ino>,
}

/// The answer to an operation that had to wait.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedOperation {
    /// The operation.
    pub ticket: Ticket,
    /// The answer. `EAGAIN`: the other executors did not answer for long. Nothing has happened, and
    /// the same request, sent again, is run again.
    pub result: MetaResult,
    /// The inodes of this executor that it has read, as
    /// [`Meta::seen_inodes`](crate::Meta::seen_inodes). They may have changed since: only current
    /// attributes may be delegated with the answer.
    pub seen: Vec<Ino>,
    /// The inodes of this executor that it has changed, as
    /// [`Meta::changed_inodes`](crate::Meta::changed_inodes).
    pub changed: Vec<Ino>,
    /// The directory of [`MetaOp::delegable_dir`](tatami_wire::meta::MetaOp::delegable_dir), after
    /// the operation, if it is on this executor.
    pub dir: Option<Attr>,
}

/// A request of another executor that waits for a lock.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub from: ExecutorId,
    pub message: PeerMessage,
    pub age: TransactionAge,
    pub blockers: Vec<Txid>,
    pub ask_at: Timestamp,
}

/// The last transactions that a participant has ended or refused in this incarnation.
///
/// A late message must not prepare one of them again: it could be found committed once more, and
/// undo later changes. (A prepare that was meant for another incarnation is refused as a whole.)
#[derive(Debug, Default)]
pub(crate) struct EndedTransactions {
    known: BTreeSet<Txid>,
    order: VecDeque<Txid>,
}

impl EndedTransactions {
    /// Far more than end while one message is under way.
    const MAX: usize = 64 * 1024;

    pub fn record_end(&mut self, txid: Txid) {
        if self.known.insert(txid) {
            self.order.push_back(txid);
        }
        if self.order.len() > EndedTransactions::MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub fn contains(&self, txid: &Txid) -> bool {
        self.known.contains(txid)
    }
}

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
    pub splits: splits::Splits,
    pub acks: acks::Acks,
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
            splits: splits::Splits::default(),
            acks: acks::Acks::default(),
            finish_again: coordinator::RESEND_MS,
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
        self.incarnation = life + 1 + state.lost_bound();
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
                locks.insert(txid, record::LockRecord::decode(value)?, now);
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
        // The closed block is in memory only: it survives the reload.
        locks.set_closed_block(state.locks.closed_block());
        state.locks = locks;
        self.decided = decided;
        self.finish_at = now;
        Ok(())
    }

    /// Returns a transaction number that is unique for ever.
    pub fn next_txid(&mut self) -> Txid {
        let number = self.next;
        self.next += 1;
        Txid { executor: self.here, incarnation: self.incarnation, number }
    }

    pub fn send_message(&mut self, to: ExecutorId, message: PeerMessage) {
        self.staged_messages.push(OutgoingMessage {
            to,
            message,
            changed: Vec::new(),
            seen: Vec::new(),
        });
    }

    /// As [`Transactions::send_message`], of a message that describes inodes of this executor.
    pub fn send_with_inodes(&mut self, to: ExecutorId, message: PeerMessage, seen: Vec<Ino>) {
        self.staged_messages.push(OutgoingMessage { to, message, changed: Vec::new(), seen });
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
        self.reload_tables(state)
    }
}

/// Returns a hash that identifies a value.
pub(crate) fn hash_value(value: &[u8]) -> RecordDigest {
    RecordDigest(xxhash_rust::xxh3::xxh3_128(value).to_be_bytes())
}

/// Returns the moment `ms` milliseconds after `since`.
pub(crate) fn add_millis(since: Timestamp, ms: u64) -> Timestamp {
    let nanos = u64::from(since.nsec) + ms % 1000 * 1_000_000;
    let sec = since.sec.saturating_add((ms / 1000 + nanos / 1_000_000_000) as i64);
    Timestamp { sec, nsec: (nanos % 1_000_000_000) as u32 }
}

/// Returns the value that other executors see under a key: the record, or for a
/// [`ParsedKey::Ancestor`] the number of the directory above.
pub(crate) fn peer_value<S: Store>(
    state: &mut MetaState<S>,
    key: &RecordKey,
) -> MetaOutcome<Option<Vec<u8>>> {
    match keys::parse(key) {
        Some(ParsedKey::Ancestor(ino)) => {
            Ok(state.load_inode(ino)?.map(|inode| inode.parent.0.to_be_bytes().to_vec()))
        }
        Some(_) => Ok(state.get(key)?),
        None => Err(OperationFailure::Errno(tatami_wire::Errno::EINVAL)),
    }
}
