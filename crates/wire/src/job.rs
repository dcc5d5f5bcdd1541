//! What the ranks of one collective open of a file share: a file pointer, and a lock of the whole file.
//!
//! The shard that has the inode keeps both, in records beside it, so they outlive a restart of the daemon and move
//! with the shard. An open has a number that nobody can guess; whoever knows it takes part. A rank joins with its
//! first operation. The records go when the open [ends](JobOp::End), or with the last rank whose client is gone.
//!
//! The lock is fair: the shard gives it in the order in which the ranks asked. A rank that must wait gets no answer
//! before the lock is its own, or [`HOLD_MILLIS`] are over; then it asks again, and has kept its place.

use serde::{Deserialize, Serialize};

/// The daemon holds the answer to a rank that waits for the lock for at most so long, in milliseconds: far less than
/// a client waits for an answer.
pub const HOLD_MILLIS: u64 = 10_000;

/// Most ranks that share what belongs to one open.
pub const RANKS_MAX: u32 = 1 << 18;

/// Most opens of one file whose ranks share something.
pub const OPENS_MAX: usize = 1024;

/// What a rank does with what its open shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation says what its fields mean
pub enum JobOp {
    /// Adds to the pointer, which is 0 in the beginning. `EOVERFLOW`, and nothing is changed, where the sum is no
    /// number of 63 bits with a sign. → `Pointer`
    Add { by: i64 },
    /// Sets the pointer. → `Pointer`
    Set { to: i64 },
    /// Takes the lock, or a place among those who wait for it; a rank that has either keeps it. → `Locked`, `Waits`
    Lock,
    /// Gives the lock, or the place, back. `ENOLCK` where the rank has neither. → `Done`
    Unlock,
    /// The open is over: forgets all that its ranks share. → `Done`
    End,
}

/// The answer to a [`JobOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobTold {
    /// What the pointer was before.
    Pointer(i64),
    /// The rank has the lock.
    Locked,
    /// Others have the lock, or come before.
    Waits,
    /// It is done.
    Done,
}
