//! Batches of operations in one request.
//!
//! A *batch operation* is an operation on one name or one inode. It behaves like a separate
//! [`MetaOp`](crate::meta::MetaOp): it is atomic by itself, has its own result, and follows the
//! same rules. One node executes the operations of a batch one after the other, and writes one
//! reply and one log record for all. (Bulk insertion as in IndexFS, SC 2014, but visible at once.)
//!
//! A node does not execute an operation that needs other nodes. The result says so, and the client
//! sends that operation alone.

use crate::attr::{DataState, InodeTemplate};
use crate::bytes::Bytes;
use crate::inline::InlineReply;
use crate::partition::{HashRange, name_hash};
use crate::{Access, Attr, Cap, Errno, Ino, InodeKind, Layout, SetAttr};
use serde::{Deserialize, Serialize};

/// Most operations in one batch.
pub const BATCH_OPS_MAX: usize = 1024;
/// Most bytes of operations in one batch, as [`BatchOp::encoded_bound`] counts them. A batch of
/// this size fits in a frame.
pub const BATCH_BYTES_MAX: usize = 512 * 1024;
/// Upper bound for the encoding of one operation without names and targets, in bytes.
const BATCH_OP_BYTES: usize = 256;

/// An operation of a batch. Each is the [`MetaOp`](crate::meta::MetaOp) of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // as in MetaOp
pub enum BatchOp {
    /// See [`MetaOp::LookupEntry`](crate::meta::MetaOp::LookupEntry).
    LookupEntry { parent: Ino, name: Bytes },
    /// See [`MetaOp::GetAttr`](crate::meta::MetaOp::GetAttr).
    GetAttr { ino: Ino },
    /// See [`MetaOp::SetAttr`](crate::meta::MetaOp::SetAttr).
    SetAttr { ino: Ino, set: SetAttr },
    /// See [`MetaOp::Create`](crate::meta::MetaOp::Create).
    Create {
        parent: Ino,
        name: Bytes,
        node: InodeTemplate,
        mode: u16,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    },
    /// See [`MetaOp::Commit`](crate::meta::MetaOp::Commit).
    Commit { ino: Ino, state: Option<DataState>, close: bool },
    /// See [`MetaOp::Unlink`](crate::meta::MetaOp::Unlink).
    Unlink { parent: Ino, name: Bytes, keep: bool },
    /// See [`MetaOp::Rmdir`](crate::meta::MetaOp::Rmdir).
    Rmdir { parent: Ino, name: Bytes, keep: bool },
    /// See [`MetaOp::Tmpfile`](crate::meta::MetaOp::Tmpfile). `name` is the name that a later
    /// `Link` gives the file: the inode is made where the entry will lie, so that the link concerns
    /// one executor.
    Tmpfile { parent: Ino, name: Bytes, layout: Layout, mode: u16, umask: u16, open: Access },
    /// See [`MetaOp::Link`](crate::meta::MetaOp::Link).
    Link { ino: Ino, parent: Ino, name: Bytes },
    /// See [`MetaOp::CreateFilled`](crate::meta::MetaOp::CreateFilled).
    CreateFilled {
        parent: Ino,
        name: Bytes,
        layout: Layout,
        mode: u16,
        umask: u16,
        bytes: Bytes,
        set: Option<SetAttr>,
    },
    /// See [`MetaOp::ReadInline`](crate::meta::MetaOp::ReadInline). Beyond [`BATCH_BYTES_MAX`] in
    /// one reply, the results of further ones are `Busy`.
    ReadInline { ino: Ino },
}

impl BatchOp {
    /// Calls `place` with the directory of the operation, as for a separate request.
    pub fn for_each_directory(&mut self, seed: u64, place: &mut impl FnMut(&mut Ino, u64)) {
        let (BatchOp::LookupEntry { parent, name }
        | BatchOp::Create { parent, name, .. }
        | BatchOp::CreateFilled { parent, name, .. }
        | BatchOp::Unlink { parent, name, .. }
        | BatchOp::Rmdir { parent, name, .. }
        | BatchOp::Tmpfile { parent, name, .. }
        | BatchOp::Link { parent, name, .. }) = self
        else {
            return;
        };
        if !matches!(name.as_slice(), b"." | b"..") {
            place(parent, name_hash(seed, name));
        }
    }

    /// Returns an upper bound for the encoded length, in bytes.
    pub fn encoded_bound(&self) -> usize {
        let name = match self {
            BatchOp::Tmpfile { name, .. } => name.len(),
            _ => self.named_entry().map_or(0, |(_, name)| name.len()),
        };
        let target = match self {
            BatchOp::Create { node: InodeTemplate::Symlink(target), .. } => target.len(),
            BatchOp::CreateFilled { bytes, .. } => bytes.len(),
            _ => 0,
        };
        BATCH_OP_BYTES + name + target
    }
}

/// The result of an [`BatchOp`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BatchResult {
    /// See [`MetaReply::Attr`](crate::meta::MetaReply::Attr).
    Attr(Attr),
    /// See [`MetaReply::Referral`](crate::meta::MetaReply::Referral).
    Referral(Ino),
    /// See [`MetaReply::Created`](crate::meta::MetaReply::Created).
    Created {
        /// Its attributes.
        attr: Attr,
        /// Capability for the bytes, if the operation opened the file.
        cap: Option<Cap>,
        /// False if the entry existed.
        created: bool,
    },
    /// See [`MetaReply::Removed`](crate::meta::MetaReply::Removed).
    Removed {
        /// The inode that lost a name, if any.
        ino: Option<Ino>,
        /// The name was the last one.
        last: bool,
    },
    /// The operation failed without effect.
    Failed(Errno),
    /// Not done: the operation needs other nodes. The client must send it alone.
    NeedsOtherNodes,
    /// Not done: another transaction is changing the records. Sent alone, the operation waits.
    Busy,
    /// Not done: see [`MetaReply::WrongShard`](crate::meta::MetaReply::WrongShard).
    WrongShard,
    /// Not done: see [`MetaReply::WrongPartition`](crate::meta::MetaReply::WrongPartition).
    WrongPartition {
        /// The partition.
        part: Ino,
        /// The names of that partition.
        range: HashRange,
    },
    /// See [`MetaReply::Inline`](crate::meta::MetaReply::Inline).
    Inline(InlineReply),
}

/// An entry that a clearing of a directory did not remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedEntry {
    /// Its name.
    pub name: Bytes,
    /// Its inode.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: InodeKind,
    /// The reason. `None`: the entry is a directory, or the client must remove it alone.
    pub reason: Option<Errno>,
}

/// Sums over the inodes of a stretch of a directory, without directories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirTotals {
    /// Number of inodes with one name.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub size: u64,
    /// Sum of their storage, in units of 512 bytes.
    pub blocks: u64,
    /// The inodes with several names: number, size and blocks.
    pub linked: Vec<(Ino, u64, u64)>,
    /// Inodes that are on other nodes or have in-flight changes. The client must request their
    /// attributes.
    pub remote: Vec<Ino>,
    /// The directories. True: the directory is empty, and the caller may read it.
    pub dirs: Vec<(Bytes, Ino, bool)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::BODY_MAX;
    use crate::meta::{MetaCall, MetaOp};
    use crate::{Cred, GROUPS_MAX, NAME_MAX, PATH_MAX, ShardId};
    use tatami_layout::{Layout, NodeId};

    fn longest(node: InodeTemplate) -> BatchOp {
        BatchOp::Create {
            parent: Ino(u64::MAX),
            name: vec![b'n'; NAME_MAX].into(),
            node,
            mode: u16::MAX,
            umask: u16::MAX,
            exclusive: true,
            open: Some(Access::BOTH),
        }
    }

    #[test]
    fn what_may_be_in_a_request_fits_a_frame() {
        let file = InodeTemplate::File(Layout::whole(NodeId(u16::MAX)));
        for node in [file, InodeTemplate::Symlink(vec![b't'; PATH_MAX].into())] {
            let operation = longest(node);
            let one = postcard::to_allocvec(&operation).expect("plain data").len();
            assert!(one <= operation.encoded_bound());
            let count = (BATCH_BYTES_MAX / operation.encoded_bound()).min(BATCH_OPS_MAX);
            let groups = vec![u32::MAX; GROUPS_MAX];
            let call = MetaCall {
                shard: ShardId(u16::MAX),
                cred: Cred { uid: u32::MAX, gid: u32::MAX, groups },
                op: MetaOp::Batch { operations: vec![operation; count] },
            };
            assert!(postcard::to_allocvec(&call).expect("plain data").len() < BODY_MAX);
        }
    }
}
