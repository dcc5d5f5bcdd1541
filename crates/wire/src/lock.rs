//! Locks of files: flock(2) and the byte ranges of fcntl(2).
//!
//! They are the state of a *session*: what one client holds at one node. The
//! node keeps it in memory, and the client remembers it, too: after the node was started
//! again, the client tells it all ([`LockOp::Reclaim`]) before anybody else is granted
//! anything. A client that was away for longer than its lease finds its session gone.
//!
//! All locks of an inode may be *delegated* to one client, which then grants and frees them without
//! a request, until the node wants them back ([`RecallNote::Locks`](crate::delegation::RecallNote::Locks)).
//! (Byte-range delegation as in NFSv4.1, RFC 8881 section 10; opportunistic locks of SMB.)

use crate::Ino;
use serde::{Deserialize, Serialize};

/// Most locks that one message tells of.
pub const LOCKS_MAX: usize = 8192;

/// The two sorts of locks, which do not know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockSort {
    /// flock(2): of a whole file, owned by an open file.
    Whole,
    /// fcntl(2): of a range of bytes, owned by a process or an open file.
    Range,
}

/// Who else may hold one at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// Others that share, too.
    Shared,
    /// Nobody.
    Exclusive,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The last byte, at most [`Span::END`].
    pub end: u64,
}

impl Span {
    /// The last byte that a file can have, and the end of a lock that has none.
    pub const END: u64 = i64::MAX as u64;
    /// All bytes.
    pub const ALL: Span = Span { start: 0, end: Span::END };

    /// Whether it has a byte, and none that a file cannot have.
    pub fn is_valid(self) -> bool {
        self.start <= self.end && self.end <= Span::END
    }

    /// Whether they have a byte in common.
    pub fn meets(self, other: Span) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A lock that a client holds or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Of which sort.
    pub sort: LockSort,
    /// Whose it is, among all of this client and sort.
    pub owner: u64,
    /// The process, to be shown to those of the same client.
    pub pid: u32,
    /// Of which bytes; all, for [`LockSort::Whole`].
    pub span: Span,
    /// Of which kind.
    pub kind: LockKind,
}

/// What a client wants of the node that serves the inode's home shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation says what its fields mean
pub enum LockOp {
    /// Gives the owner this lock in the place of what it holds of these bytes. Where somebody
    /// else is in the way: `EAGAIN`, or with `wait`, which is a number that the client has not
    /// used before, [`LockTold::Waits`]: of those who wait, the oldest whom nothing is in the way of
    /// any more gets the lock, is told so, and asks again with the same number. `EDEADLK` where the
    /// others wait for this owner. With `delegate`, all locks of the inode may be
    /// delegated along. → `Done`, `Waits`
    Set { lock: Lock, wait: Option<u64>, delegate: bool },
    /// Frees what the owner holds of these bytes. → `Done`
    Free { sort: LockSort, owner: u64, span: Span },
    /// What would be in the way of this lock. → `Held`
    Test { lock: Lock },
    /// The wait with this number for this lock is given up, unless it has been granted. → `Ended`
    Cancel { wait: u64, lock: Lock },
    /// Gives back what was delegated: these locks of the inode are held, at most
    /// [`LOCKS_MAX`]. → `Done`
    Return { locks: Vec<Lock> },
    /// All that the client holds of inodes of this node, at most [`LOCKS_MAX`] a message;
    /// nothing is delegated to it. `shards` tells which these are (`ShardMap::digest`): shards may just have
    /// come. → `Done`
    Reclaim { locks: Vec<(Ino, Lock)>, first: bool, last: bool, shards: u64 },
    /// The client holds nothing any more. → `Done`
    End,
}

/// What is in the way of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Which bytes are held.
    pub span: Span,
    /// How.
    pub kind: LockKind,
    /// By which process, if it is one of the client that asks; else 0.
    pub pid: u32,
}

/// The answer to a [`LockOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockTold {
    /// It is done.
    Done {
        /// All locks of the inode are delegated to the client from now on.
        delegated: bool,
    },
    /// It waits.
    Waits,
    /// Who is in the way.
    Held(Option<Conflict>),
    /// A wait has ended.
    Ended {
        /// Too late: the lock is held.
        granted: bool,
    },
    /// The node does not know this session, or not what it holds. Nothing was done.
    Unknown {
        /// It may be claimed back; else others may have had what it held.
        reclaim: bool,
    },
}
