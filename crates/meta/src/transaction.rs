//! Operations that touch records of several executors.
//!
//! The rules of the namespace are run as ever, in a [`Txn`](crate::txn::Txn). Where one needs a record of another
//! executor that is not known yet, the run ends ([`Failure::Missing`](crate::error::Failure)), the record is asked for, and the
//! operation is run again from its start.
//!
//! What changes something *locks* what it asks for, at first contact, so that what it was told stays true: an
//! operation that began early gets through, whatever others do meanwhile. When nothing is missing any more, this executor's part, the
//! answer, the decision and what the others are to write are written in one batch. Before that, nothing has happened; after
//! it, all of it has. This executor's own records are not locked at all, since the last run sees what they are. ([`locking`])
//!
//! What only looks locks nothing at first. It is answered if all that was seen was true at one moment: it came from one executor and nothing
//! here has changed meanwhile, or a second look shows the same (inodes have versions, so the same twice is the same all the
//! time between). Where something changes all the time, it locks, too.
//!
//! A split is not in a hurry and writes many records. It looks as what only looks does, and has what it writes *prepared* by the
//! others, who compare what it has seen with what is there. Then it is run once more, and decided if it comes to the same. ([`preparing`])
//!
//! Nobody waits for a client, and for an executor only where everybody waits for that executor's own shards:
//! who meets a lock asks the coordinator after a while, which gives the operation up for an older one. A coordinator
//! that has forgotten a transaction has not committed it and never will. One that cannot reach a
//! participant gives the locks back after a while, and tries again later.

pub(crate) mod acks;
pub(crate) mod coordinator;
pub(crate) mod locking;
pub(crate) mod locks;
pub(crate) mod participant;
pub(crate) mod preparing;
pub(crate) mod record;
pub(crate) mod splits;

use crate::error::{Failure, Outcome};
use crate::keys::{self, Key, Parsed, tag};
use crate::state::State;
use crate::store::Store;
use coordinator::{Decided, Job};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use tatami_wire::meta::MetaResult;
use tatami_wire::transaction::{Age, Digest, PeerMessage, Txid};
use tatami_wire::{Attr, ClientId, ExecutorId, Ino, Timestamp, hash};

/// Names an operation whose answer comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What becomes of an operation at once.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// It has been answered.
    Done(MetaResult),
    /// It needs other executors: the answer comes with [`Meta::finished`](crate::Meta::finished).
    Waits(Ticket),
}

impl Applied {
    /// The answer of an executor that has all shards: it waits for nobody.
    ///
    /// # Errors
    /// The operation's; `EAGAIN` where it waits for other executors.
    pub fn at_once(self) -> MetaResult {
        match self {
            Applied::Done(result) => result,
            Applied::Waits(_) => Err(tatami_wire::Errno::EAGAIN),
        }
    }
}

/// A message to another executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// The executor.
    pub to: ExecutorId,
    /// What it is told.
    pub message: PeerMessage,
    /// The inodes that somebody may see changed once the message has left, themselves or (directories)
    /// their entries: until then all delegations of them must be back.
    pub changed: Vec<Ino>,
    /// The inodes of this executor of which the message tells: while a delegation of one of them is being
    /// recalled, it must wait, too.
    pub seen: Vec<Ino>,
}

/// The answer to an operation that had to wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The operation.
    pub ticket: Ticket,
    /// The answer. `EAGAIN`: the others did not answer for long; nothing has happened, and
    /// the same request, sent again, is run again.
    pub result: MetaResult,
    /// The inodes of this executor that it has looked at, as [`Meta::seen`](crate::Meta::seen). They may be others by now: only
    /// what is current may be delegated with the answer.
    pub seen: Vec<Ino>,
    /// The inodes of this executor that it has changed, as [`Meta::changed`](crate::Meta::changed).
    pub changed: Vec<Ino>,
    /// The directory of [`MetaOp::shown_dir`](tatami_wire::meta::MetaOp::shown_dir), after the operation, if it is on this executor.
    pub dir: Option<Attr>,
}

/// A request of another executor that waits for a lock.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub from: ExecutorId,
    pub message: PeerMessage,
    pub age: Age,
    pub on: Vec<Txid>,
    pub ask_at: Timestamp,
}

/// The last transactions that a participant has ended or refused in this life. One that is prepared after that, by a
/// message that comes late, could be found committed once more, and undo what came between. (What is prepared for
/// another life is refused as a whole.)
#[derive(Debug, Default)]
pub(crate) struct Over {
    known: BTreeSet<Txid>,
    order: VecDeque<Txid>,
}

impl Over {
    /// Far more than end while a message is under way.
    const MAX: usize = 64 * 1024;

    pub fn add(&mut self, txid: Txid) {
        if self.known.insert(txid) {
            self.order.push_back(txid);
        }
        if self.order.len() > Over::MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub fn has(&self, txid: &Txid) -> bool {
        self.known.contains(txid)
    }
}

/// What an executor does for operations that touch several.
pub(crate) struct Transactions {
    pub here: ExecutorId,
    pub life: u64,
    /// The number of the next transaction, request or ticket.
    pub next: u64,
    pub now: Timestamp,
    pub jobs: BTreeMap<Ticket, Job>,
    pub by_slot: HashMap<(ClientId, u32), Ticket, hash::Build>,
    pub by_txid: HashMap<Txid, Ticket, hash::Build>,
    pub decided: BTreeMap<Txid, Decided>,
    /// None of them is due before.
    pub finish_at: Timestamp,
    pub waiting: Vec<Waiting>,
    pub over: Over,
    pub splits: splits::Splits,
    pub acks: acks::Acks,
    /// What a participant has not acknowledged is told again after so many ms.
    pub finish_again: u64,
    /// Transactions of this executor that have locked records of this executor, and do not any more.
    pub freed: Vec<Txid>,
    /// What may leave after the next commit.
    pub outs: Vec<Out>,
    pub finished: Vec<Finished>,
    /// What may leave now.
    pub ready_outs: Vec<Out>,
    pub ready_finished: Vec<Finished>,
}

impl Transactions {
    /// Reads what is under way from the records, and begins a new life.
    pub fn open<S: Store>(state: &mut State<S>, now: Timestamp) -> Outcome<Transactions> {
        let mut all = Transactions {
            here: state.executor(),
            life: 0,
            next: 1,
            now,
            jobs: BTreeMap::new(),
            by_slot: HashMap::with_hasher(hash::Build::default()),
            by_txid: HashMap::with_hasher(hash::Build::default()),
            decided: BTreeMap::new(),
            finish_at: now,
            waiting: Vec::new(),
            over: Over::default(),
            splits: splits::Splits::default(),
            acks: acks::Acks::default(),
            finish_again: coordinator::AGAIN,
            freed: Vec::new(),
            outs: Vec::new(),
            finished: Vec::new(),
            ready_outs: Vec::new(),
            ready_finished: Vec::new(),
        };
        all.reload(state)?;
        if state.is_spread() {
            all.splits.resume(state, now)?;
            all.begin_life(state)?;
            state.commit()?;
            state.sync()?;
        }
        Ok(all)
    }

    /// Begins a new life, which lasts after a sync.
    pub fn begin_life<S: Store>(&mut self, state: &mut State<S>) -> Outcome<()> {
        let life = match state.get(&keys::life())? {
            Some(bytes) => record::decode::<u64>(&bytes)?,
            None => 0,
        };
        // No number of a life that was lost is used again.
        self.life = life + 1 + state.lost();
        state.put(keys::life(), Some(record::encode(&self.life)?));
        state.put_shard();
        Ok(())
    }

    /// Makes the tables in memory what the records say.
    pub fn reload<S: Store>(&mut self, state: &mut State<S>) -> Outcome<()> {
        let (mut locks, mut decided) = (locks::Locks::default(), BTreeMap::new());
        let now = self.now;
        state.scan(&[tag::LOCKED], &[tag::LOCKED], &mut |key, value| {
            if let Some(Parsed::Locked(txid)) = keys::parse(key) {
                locks.add(txid, record::Prepared::decode(value)?, now);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        state.scan(&[tag::COMMITTED], &[tag::COMMITTED], &mut |key, value| {
            if let Some(Parsed::Committed(txid)) = keys::parse(key) {
                let record::Committed { participants } = record::Committed::decode(value)?;
                // Whoever opens a store waits until nothing of what was delegated before counts.
                let changed = Vec::new();
                let left = participants;
                decided.insert(txid, Decided { left, again_at: now, since: now, changed });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        locks.close(state.locks.closed());
        state.locks = locks;
        self.decided = decided;
        self.finish_at = now;
        Ok(())
    }

    /// A name that nothing else has.
    pub fn name(&mut self) -> Txid {
        let number = self.next;
        self.next += 1;
        Txid { executor: self.here, life: self.life, number }
    }

    pub fn send(&mut self, to: ExecutorId, message: PeerMessage) {
        self.outs.push(Out { to, message, changed: Vec::new(), seen: Vec::new() });
    }

    /// As [`Transactions::send`], of what tells of inodes of this executor.
    pub fn tell(&mut self, to: ExecutorId, message: PeerMessage, seen: Vec<Ino>) {
        self.outs.push(Out { to, message, changed: Vec::new(), seen });
    }

    /// Whether something waits for a commit to leave.
    pub fn is_staged(&self) -> bool {
        !(self.outs.is_empty() && self.finished.is_empty() && self.acks.is_settled())
    }

    /// What was done until now lasts.
    pub fn committed(&mut self) {
        self.ready_outs.append(&mut self.outs);
        self.acks.committed();
        self.ready_finished.append(&mut self.finished);
    }

    /// What was done since the last commit is undone.
    pub fn undone<S: Store>(
        &mut self,
        state: &mut State<S>,
        errno: tatami_wire::Errno,
    ) -> Outcome<()> {
        self.outs.clear();
        self.acks.undone();
        for finished in &mut self.finished {
            finished.result = Err(errno);
            finished.changed.clear();
        }
        self.ready_finished.append(&mut self.finished);
        self.reload(state)
    }
}

/// What tells values apart.
pub(crate) fn digest(value: &[u8]) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_128(value).to_be_bytes())
}

/// `since` and so many milliseconds.
pub(crate) fn later(since: Timestamp, ms: u64) -> Timestamp {
    let nanos = u64::from(since.nsec) + ms % 1000 * 1_000_000;
    let sec = since.sec.saturating_add((ms / 1000 + nanos / 1_000_000_000) as i64);
    Timestamp { sec, nsec: (nanos % 1_000_000_000) as u32 }
}

/// The value that other executors see under a key: that of the record, or for an [`Parsed::Ancestor`] the
/// number of the directory above.
pub(crate) fn value_of<S: Store>(state: &mut State<S>, key: &Key) -> Outcome<Option<Vec<u8>>> {
    match keys::parse(key) {
        Some(Parsed::Ancestor(ino)) => {
            Ok(state.inode(ino)?.map(|inode| inode.parent.0.to_be_bytes().to_vec()))
        }
        Some(_) => Ok(state.get(key)?),
        None => Err(Failure::Errno(tatami_wire::Errno::EINVAL)),
    }
}
