//! File locks: flock(2) and the byte ranges of fcntl(2).
//!
//! Locks belong to a *session*: the state of one client at one node. The node keeps the session in
//! memory. The client also remembers its locks. After a restart of the node, each client reclaims
//! its locks ([`LockOp::Reclaim`]) before the node grants any other lock. A session ends if its
//! client is silent for longer than the lease.
//!
//! A node may *delegate* all locks of an inode to one client. That client then grants and frees
//! them without a request, until the node recalls them
//! ([`RecallNote::LockNotices`](crate::delegation::RecallNote::LockNotices)). (Byte-range
//! delegation as in NFSv4.1, RFC 8881 section 10; opportunistic locks of SMB.)

use crate::Ino;
use serde::{Deserialize, Serialize};

/// Most locks in one message.
pub const LOCKS_MAX: usize = 8192;

/// The two independent sorts of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockSort {
    /// flock(2): locks a whole file; the owner is an open file.
    Whole,
    /// fcntl(2): locks a range of bytes; the owner is a process or an open file.
    Range,
}

/// Whether several owners may have the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// Several owners may have a shared lock.
    Shared,
    /// Only one owner has the lock.
    Exclusive,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// The last byte, at most [`ByteRange::END`].
    pub end: u64,
}

impl ByteRange {
    /// The last byte of the longest file, and the end of a lock without an end.
    pub const END: u64 = i64::MAX as u64;
    /// All bytes.
    pub const ALL: ByteRange = ByteRange { start: 0, end: ByteRange::END };

    /// Checks that the span has a byte and ends within the longest file.
    pub fn is_valid(self) -> bool {
        self.start <= self.end && self.end <= ByteRange::END
    }

    /// Checks whether two spans overlap.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A lock that a client holds or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The sort of the lock.
    pub sort: LockSort,
    /// Id of the owner, unique for the client and the sort.
    pub owner: u64,
    /// Process id, shown only to processes of the same client.
    pub pid: u32,
    /// The locked bytes. All bytes for [`LockSort::Whole`].
    pub span: ByteRange,
    /// The kind of the lock.
    pub kind: LockKind,
}

/// An operation on locks, sent to the node that serves the inode's owner shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation documents its fields
pub enum LockOp {
    /// Replaces the owner's locks of these bytes by this lock. On a conflict: `EAGAIN`, or
    /// [`LockOpReply::Waiting`] if `wait` is a number that the client has not used before. When the
    /// conflicts are gone, the node grants the lock to the oldest waiting request and notifies its
    /// client. The client then repeats the request with the same number. `EDEADLK` if the
    /// conflicting owners wait for this owner. With `delegate`, the node may delegate all locks of
    /// the inode. → `Done`, `Waits`
    Set { lock: Lock, wait: Option<u64>, delegate: bool },
    /// Frees the owner's locks of these bytes. → `Done`
    Free { sort: LockSort, owner: u64, span: ByteRange },
    /// Returns a lock that conflicts with this one. → `Held`
    Test { lock: Lock },
    /// Cancels the wait with this number for this lock, unless the node has granted it. → `Ended`
    Cancel { wait: u64, lock: Lock },
    /// Returns the delegation of the inode. The client has these locks, at most [`LOCKS_MAX`]. →
    /// `Done`
    ReturnDelegation { locks: Vec<Lock> },
    /// Reclaims the locks of the client for inodes of this node, at most [`LOCKS_MAX`] a message.
    /// The client has no delegation. `shards` identifies the node's set of shards
    /// (`ShardMap::digest_shards`), because shards may just have migrated to the node. → `Done`
    Reclaim { locks: Vec<(Ino, Lock)>, first: bool, last: bool, shards: u64 },
    /// Ends the session: the client has no more locks. → `Done`
    EndSession,
}

/// A lock that conflicts with a requested lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The locked bytes.
    pub span: ByteRange,
    /// The kind of the lock.
    pub kind: LockKind,
    /// The process that has the lock, if it is one of the requesting client; else 0.
    pub pid: u32,
}

/// The answer to a [`LockOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockOpReply {
    /// The operation is done.
    Done {
        /// The node delegates all locks of the inode to the client from now on.
        delegated: bool,
    },
    /// The request waits.
    Waiting,
    /// The conflicting lock, if any.
    ConflictsWith(Option<Conflict>),
    /// The wait has ended.
    WaitEnded {
        /// The cancellation came too late: the client has the lock.
        granted: bool,
    },
    /// The node does not know this session, or not the locks of the session. Nothing was done.
    UnknownSession {
        /// The client may reclaim its locks. Otherwise other clients may have had these locks
        /// meanwhile.
        reclaim: bool,
    },
}
