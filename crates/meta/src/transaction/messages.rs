//! Answers that come later, and messages to other executors.

use tatami_wire::delegation::PartitionAttr;
use tatami_wire::meta::MetaResult;
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{Attr, ClientId, ExecutorId, Ino};

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

/// An inode that an operation has changed: its attributes or (of a directory) its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedInode {
    /// The inode.
    pub ino: Ino,
    /// It is a directory, and only entries have changed, with its size, link count and times. Path
    /// delegations of it stay valid.
    pub keeps_path: bool,
    /// Even the client that made the change must return what this executor has delegated to it:
    /// the record is on another executor from now on, or the answer comes from another executor
    /// and does not name the change.
    pub recalls_own: bool,
}

impl ChangedInode {
    /// Returns the record of a change that may concern all of the inode.
    pub fn of_all(ino: Ino) -> ChangedInode {
        ChangedInode { ino, keeps_path: false, recalls_own: false }
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
    pub changed: Vec<ChangedInode>,
    /// The client whose operation changes them; `None` for the daemons' own operations, such as a
    /// split.
    pub client: Option<ClientId>,
    /// The inodes of this executor that the message describes. While a delegation of one of them is
    /// being recalled, the message must wait, too.
    pub seen: Vec<Ino>,
}

impl OutgoingMessage {
    /// Returns a message that shows no inode.
    pub fn new(to: ExecutorId, message: PeerMessage) -> OutgoingMessage {
        OutgoingMessage { to, message, changed: Vec::new(), client: None, seen: Vec::new() }
    }
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
    pub changed: Vec<ChangedInode>,
    /// The directory of [`MetaOp::delegable_dir`](tatami_wire::meta::MetaOp::delegable_dir), after
    /// the operation, if it is on this executor.
    pub dir: Option<Attr>,
    /// The partition that stands in for that directory.
    pub part: Option<PartitionAttr>,
}
