//! The messages of executors.

use crate::records::{ModelKey, ModelValue};

/// One attempt of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transaction {
    /// The lower number is the older operation, and wins.
    pub operation: usize,
    /// The incarnation of its coordinator in which it was begun.
    pub incarnation: u8,
    /// The number of this attempt in that incarnation, from 1.
    pub attempt: u8,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageBody {
    /// Lock these records, if they are unchanged since they were read.
    Prepare {
        /// The records that were read, with their values.
        reads: Vec<(ModelKey, ModelValue)>,
        /// The records that are to be changed, with their new values.
        writes: Vec<(ModelKey, ModelValue)>,
    },
    /// Lock these records and return their values.
    Lock {
        /// Those to be read only.
        reads: Vec<ModelKey>,
        /// Those to be changed.
        writes: Vec<ModelKey>,
        /// The transaction has locks on other executors already.
        holds: bool,
    },
    /// They are locked, with these values.
    Locked {
        /// The values.
        values: Vec<(ModelKey, ModelValue)>,
        /// The incarnation in which they were locked.
        incarnation: u8,
    },
    /// They are locked.
    Prepared,
    /// They have changed, or another transaction has locked them.
    Refused,
    /// The outcome.
    Finish {
        /// Whether the transaction has committed, and changes something there.
        committed: bool,
        /// The changes that were not prepared; they apply if the locks are of that incarnation.
        part: CommittedPart,
    },
    /// The outcome is known, and the locks are gone.
    Finished,
    /// A request for the status. With `abort`: abort it, unless it has committed. With `reader`:
    /// the operation that waits.
    Status {
        /// The operation that cannot wait for it.
        abort: Option<usize>,
        /// The operation that waits for the answer, if it only reads.
        reader: Option<usize>,
    },
    /// It has not committed.
    Running {
        /// The operation that waits for the answer.
        reader: usize,
    },
}

/// The part of one executor in a transaction that has committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommittedPart {
    /// The incarnation in which it has locked the records that are to be changed.
    pub incarnation: u8,
    /// The new values of the records that were not prepared.
    pub writes: Vec<(ModelKey, ModelValue)>,
}

/// A message stays deliverable for as long as its receiver lives: it may come late, again, or
/// never. Requests for locks outlive the receiver, because they may wait for a connection to be
/// made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// The sending executor.
    pub from: usize,
    /// The receiving executor.
    pub to: usize,
    /// The incarnation of the receiver: connections end with the process at their end.
    pub incarnation: u8,
    /// The transaction.
    pub about: Transaction,
    /// The content.
    pub word: MessageBody,
}
