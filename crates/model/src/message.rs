//! What executors say to each other.

use crate::records::{Key, Value};

/// One try of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transaction {
    /// Whose number is lower is older, and wins.
    pub operation: usize,
    /// The life of its home in which it was begun.
    pub incarnation: u8,
    /// How many were before it in that life, and it.
    pub attempt: u8,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word {
    /// Lock these records, if they are as they were read.
    Prepare {
        /// With what was read.
        reads: Vec<(Key, Value)>,
        /// With what is to be there.
        writes: Vec<(Key, Value)>,
    },
    /// Lock these records and say what they are.
    Lock {
        /// Those to be read only.
        reads: Vec<Key>,
        /// Those to be changed.
        writes: Vec<Key>,
        /// The transaction has locks elsewhere already.
        holds: bool,
    },
    /// They are locked, and this.
    Locked {
        /// What they are.
        values: Vec<(Key, Value)>,
        /// The life in which they were locked.
        life: u8,
    },
    /// They are locked.
    Prepared,
    /// Changed, or locked by another.
    Refused,
    /// The outcome.
    Finish {
        /// Whether it has happened, and changes something there.
        committed: bool,
        /// What it changes besides that which was prepared, if it was locked in that life.
        part: Part,
    },
    /// The outcome is known, and the locks are gone.
    Finished,
    /// How does it stand? With `abort`: abort it, unless it has committed. A reader says who waits.
    Status {
        /// The operation that cannot wait for it.
        abort: Option<usize>,
        /// The operation that waits for the word, if it only reads.
        reader: Option<usize>,
    },
    /// It has not committed.
    Running {
        /// The operation that waits for the word.
        reader: usize,
    },
}

/// What one executor does for a transaction that has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// The life in which it has locked what is to be changed.
    pub life: u8,
    /// What is to be there, where that was not prepared.
    pub writes: Vec<(Key, Value)>,
}

/// A message stays deliverable for as long as its receiver lives: it may come late, again, or never. Those that ask
/// for locks outlive him: they may wait for a connection to be made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// An executor.
    pub from: usize,
    /// Another.
    pub to: usize,
    /// Connections die with the process at their end.
    pub incarnation: u8,
    /// The transaction.
    pub about: Transaction,
    /// What is said of it.
    pub word: Word,
}
