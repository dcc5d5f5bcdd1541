//! State that the ranks of one collective open of a file share: a file pointer and a lock of the
//! whole file.
//!
//! The owner shard of the inode keeps both in records beside the inode. So they survive a restart
//! of the daemon and migrate with the shard. The number of an open is a secret: a process that
//! knows the number may take part. A rank joins with its first operation. The records end with the
//! open ([`JobOp::End`]), or when the client of the last rank is gone.
//!
//! The lock is fair: the shard grants it in the order of the requests. The shard answers a waiting
//! rank when the rank gets the lock, or after [`HOLD_MILLIS`]. The rank then repeats its request,
//! and has kept its place.

use serde::{Deserialize, Serialize};

/// Longest time for which the daemon holds back the reply to a rank that waits for the lock, in
/// milliseconds. It is far below the client's operation timeout.
pub const HOLD_MILLIS: u64 = 10_000;

/// Most ranks of one open.
pub const RANKS_MAX: u32 = 1 << 18;

/// Most opens of one file with shared state.
pub const OPENS_MAX: usize = 1024;

/// An operation of a rank on the shared state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation documents its fields
pub enum JobOp {
    /// Adds to the file pointer, which starts at 0. `EOVERFLOW`, without effect, if the sum does
    /// not fit in a signed 64-bit number. → `Pointer`
    Add { by: i64 },
    /// Sets the file pointer. → `Pointer`
    Set { to: i64 },
    /// Acquires the lock, or queues for it. A rank keeps the lock or the place that it has. →
    /// `Locked`, `Waits`
    Lock,
    /// Releases the lock or the place in the queue. `ENOLCK` if the rank has neither. → `Done`
    Unlock,
    /// Ends the open: deletes all of its shared state. → `Done`
    End,
}

/// The answer to a [`JobOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobReply {
    /// The file pointer before the operation.
    Pointer(i64),
    /// The rank has the lock.
    Locked,
    /// Other ranks have the lock or are earlier in the queue.
    Waiting,
    /// The operation is done.
    Done,
}
