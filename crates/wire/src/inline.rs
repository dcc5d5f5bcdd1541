//! Requests for the bytes of a file that lie beside its inode
//! ([`Layout::is_inline`](crate::Layout::is_inline)). The shard that has the inode carries them
//! out, so size and times are right at once for all clients.

use crate::bytes::Bytes;
use crate::object::ObjectState;
use crate::{Access, Layout};
use serde::{Deserialize, Serialize};

/// An operation on the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation documents its fields
pub enum InlineOp {
    /// Returns size and times. → `Done`
    Stat,
    /// Reads `len` bytes from `offset`, fewer at the end of the file. → `Done` with the bytes
    Read { offset: u64, len: u32 },
    /// Writes to `offset`. → `Done`, `TooLarge` or `Moved`
    Write { offset: u64, bytes: Bytes },
    /// Writes to the end of the file. → `Done`, `TooLarge` or `Moved`
    Append { bytes: Bytes },
    /// Cuts or extends the file. → `Done`, `TooLarge` or `Moved`
    SetSize { size: u64 },
    /// Gives the file an object, for bytes that are too many for a request here. → `TooLarge` or
    /// `Moved`
    Leave,
}

/// The first bytes of a file, for its create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstBytes {
    /// None yet.
    None,
    /// All of these are written beside its inode.
    Beside(Bytes),
    /// More than may lie there. They come later, and the file gets an object at once.
    TooMany,
}

impl InlineOp {
    /// Returns the access that the capability must allow.
    pub fn needed_access(&self) -> Access {
        match self {
            InlineOp::Stat => Access::NONE,
            InlineOp::Read { .. } => Access::READ,
            InlineOp::Write { .. }
            | InlineOp::Append { .. }
            | InlineOp::SetSize { .. }
            | InlineOp::Leave => Access::WRITE,
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
    /// Nothing was done: the bytes are in objects, or the file had none and has an object from now
    /// on.
    Moved {
        /// Where they are.
        layout: Layout,
        /// The size of the file as far as the shard knows it.
        size: u64,
    },
}
