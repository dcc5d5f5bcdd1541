//! Requests for the bytes of a file that lie beside its inode
//! ([`Layout::is_inline`](crate::Layout::is_inline)). The shard that has the inode carries them
//! out, so size and times are right at once for all clients.

use crate::Access;
use crate::bytes::Bytes;
use crate::object::ObjectState;
use serde::{Deserialize, Serialize};

/// An operation on the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation documents its fields
pub enum InlineOp {
    /// Returns size and times. → `Done`
    Stat,
    /// Reads `len` bytes from `offset`, fewer at the end of the file. → `Done` with the bytes
    Read { offset: u64, len: u32 },
    /// Writes to `offset`. → `Done` or `TooLarge`
    Write { offset: u64, bytes: Bytes },
    /// Writes to the end of the file. → `Done` or `TooLarge`
    Append { bytes: Bytes },
    /// Cuts or extends the file. → `Done` or `TooLarge`
    SetSize { size: u64 },
}

impl InlineOp {
    /// Returns the access that the capability must allow.
    pub fn needed_access(&self) -> Access {
        match self {
            InlineOp::Stat => Access::NONE,
            InlineOp::Read { .. } => Access::READ,
            InlineOp::Write { .. } | InlineOp::Append { .. } | InlineOp::SetSize { .. } => {
                Access::WRITE
            }
        }
    }

    /// Whether the operation changes the file.
    pub fn is_change(&self) -> bool {
        self.needed_access().write
    }
}

/// The reply to an [`InlineOp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InlineReply {
    /// It is done.
    Done {
        /// The state of the bytes after it. `changed` is zero: it orders states of an object.
        state: ObjectState,
        /// The bytes that were read.
        bytes: Bytes,
    },
    /// Nothing was done: the file would be larger than its limit. The client copies the bytes into
    /// an object and makes that the file's ([`Relayout`](crate::meta::MetaOp::Relayout)).
    TooLarge,
    /// Nothing was done: the bytes have moved to objects.
    Moved,
}
