//! Batches of operations in one request.
//!
//! A *batch operation* is an operation on one name or one inode. It behaves like a separate
//! [`MetaOp`]: it is atomic by itself, has its own result, and follows the same rules. One node
//! executes the operations of a batch one after the other, and writes one reply and one log record
//! for all. (Bulk insertion as in IndexFS, SC 2014, but visible at once.)
//!
//! A node does not execute an operation that needs other nodes. The result says so, and the client
//! sends that operation alone.

use crate::meta::{Bytes, DataState, MetaOp, MetaReply, NewNode};
use crate::partition::{Range, name_hash};
use crate::{Access, Attr, Cap, Errno, Ino, Kind, SetAttr};
use serde::{Deserialize, Serialize};

/// Most operations in one batch.
pub const ACTS_MAX: usize = 1024;
/// Most bytes of operations in one batch, as [`Act::weight`] counts them. A batch of this size fits
/// in a frame.
pub const ACTS_BYTES_MAX: usize = 512 * 1024;
/// Upper bound for the encoding of one operation without names and targets, in bytes.
const ACT_BYTES: usize = 160;

/// An operation of a batch. Each is the [`MetaOp`] of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // as in MetaOp
pub enum Act {
    /// See [`MetaOp::Find`].
    Find { parent: Ino, name: Bytes },
    /// See [`MetaOp::GetAttr`].
    GetAttr { ino: Ino },
    /// See [`MetaOp::SetAttr`].
    SetAttr { ino: Ino, set: SetAttr },
    /// See [`MetaOp::Create`].
    Create {
        parent: Ino,
        name: Bytes,
        node: NewNode,
        mode: u16,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    },
    /// See [`MetaOp::Commit`].
    Commit { ino: Ino, state: Option<DataState>, close: bool },
    /// See [`MetaOp::Unlink`].
    Unlink { parent: Ino, name: Bytes, keep: bool },
    /// See [`MetaOp::Rmdir`].
    Rmdir { parent: Ino, name: Bytes, keep: bool },
}

impl From<Act> for MetaOp {
    fn from(act: Act) -> MetaOp {
        match act {
            Act::Find { parent, name } => MetaOp::Find { parent, name },
            Act::GetAttr { ino } => MetaOp::GetAttr { ino },
            Act::SetAttr { ino, set } => MetaOp::SetAttr { ino, set },
            Act::Create { parent, name, node, mode, umask, exclusive, open } => {
                MetaOp::Create { parent, name, node, mode, umask, exclusive, open }
            }
            Act::Commit { ino, state, close } => MetaOp::Commit { ino, state, close },
            Act::Unlink { parent, name, keep } => MetaOp::Unlink { parent, name, keep },
            Act::Rmdir { parent, name, keep } => MetaOp::Rmdir { parent, name, keep },
        }
    }
}

impl Act {
    /// Checks whether the operation changes something.
    pub fn is_mutation(&self) -> bool {
        !matches!(self, Act::Find { .. } | Act::GetAttr { .. })
    }

    /// Returns the inode that selects the owner shard for the request.
    pub fn target(&self) -> Ino {
        match self {
            Act::Find { parent, .. }
            | Act::Create { parent, .. }
            | Act::Unlink { parent, .. }
            | Act::Rmdir { parent, .. } => *parent,
            Act::GetAttr { ino } | Act::SetAttr { ino, .. } | Act::Commit { ino, .. } => *ino,
        }
    }

    /// Returns the directory and name of the entry that the operation looks up, creates or removes.
    pub fn entry(&self) -> Option<(Ino, &Bytes)> {
        match self {
            Act::Find { parent, name }
            | Act::Create { parent, name, .. }
            | Act::Unlink { parent, name, .. }
            | Act::Rmdir { parent, name, .. } => Some((*parent, name)),
            Act::GetAttr { .. } | Act::SetAttr { .. } | Act::Commit { .. } => None,
        }
    }

    /// Calls `place` with the directory of the operation, like [`MetaOp::for_each_place`].
    pub fn for_each_place(&mut self, seed: u64, place: &mut impl FnMut(&mut Ino, u64)) {
        let (Act::Find { parent, name }
        | Act::Create { parent, name, .. }
        | Act::Unlink { parent, name, .. }
        | Act::Rmdir { parent, name, .. }) = self
        else {
            return;
        };
        if !matches!(name.as_slice(), b"." | b"..") {
            place(parent, name_hash(seed, name));
        }
    }

    /// Returns an upper bound for the encoded length, in bytes.
    pub fn weight(&self) -> usize {
        let name = self.entry().map_or(0, |(_, name)| name.len());
        let target = match self {
            Act::Create { node: NewNode::Symlink(target), .. } => target.len(),
            _ => 0,
        };
        ACT_BYTES + name + target
    }
}

/// The result of an [`Act`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Acted {
    /// See [`MetaReply::Attr`].
    Attr(Attr),
    /// See [`MetaReply::Leads`].
    Leads(Ino),
    /// See [`MetaReply::Created`].
    Created {
        /// Its attributes.
        attr: Attr,
        /// Capability for the bytes, if the operation opened the file.
        cap: Option<Cap>,
        /// False if the entry existed.
        created: bool,
    },
    /// See [`MetaReply::Removed`].
    Removed {
        /// The inode that lost a name, if any.
        ino: Option<Ino>,
        /// The name was the last one.
        last: bool,
    },
    /// The operation failed without effect.
    Failed(Errno),
    /// Not done: the operation needs other nodes. The client must send it alone.
    Alone,
    /// Not done: another transaction is changing the records. Sent alone, the operation waits.
    Later,
    /// Not done: see [`MetaReply::Elsewhere`].
    Elsewhere,
    /// Not done: see [`MetaReply::Parted`].
    Parted {
        /// The partition.
        part: Ino,
        /// The names of that partition.
        range: Range,
    },
}

impl Acted {
    /// Converts the reply to a single operation. `None` for replies that a batch cannot contain.
    pub fn of(reply: MetaReply) -> Option<Acted> {
        Some(match reply {
            MetaReply::Attr(attr) => Acted::Attr(attr),
            MetaReply::Leads(ino) => Acted::Leads(ino),
            MetaReply::Created { attr, cap, created } => Acted::Created { attr, cap, created },
            MetaReply::Removed { ino, last } => Acted::Removed { ino, last },
            MetaReply::Parted { part, range } => Acted::Parted { part, range },
            MetaReply::Elsewhere { .. } => Acted::Elsewhere,
            _ => return None,
        })
    }

    /// Converts to the result of a single operation. `None` if the operation was not done.
    pub fn result(self) -> Option<Result<MetaReply, Errno>> {
        Some(Ok(match self {
            Acted::Attr(attr) => MetaReply::Attr(attr),
            Acted::Leads(ino) => MetaReply::Leads(ino),
            Acted::Created { attr, cap, created } => MetaReply::Created { attr, cap, created },
            Acted::Removed { ino, last } => MetaReply::Removed { ino, last },
            Acted::Failed(errno) => return Some(Err(errno)),
            Acted::Alone | Acted::Later | Acted::Elsewhere | Acted::Parted { .. } => return None,
        }))
    }
}

/// An entry that a clearing of a directory did not remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Its name.
    pub name: Bytes,
    /// Its inode.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: Kind,
    /// The reason. `None`: the entry is a directory, or the client must remove it alone.
    pub why: Option<Errno>,
}

/// Sums over the inodes of a stretch of a directory, without directories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
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
    pub elsewhere: Vec<Ino>,
    /// The directories. True: the directory is empty, and the caller may read it.
    pub dirs: Vec<(Bytes, Ino, bool)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::BODY_MAX;
    use crate::meta::MetaCall;
    use crate::{Cred, GROUPS_MAX, NAME_MAX, PATH_MAX, ShardId};
    use tatami_layout::{Layout, NodeId};

    fn longest(node: NewNode) -> Act {
        Act::Create {
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
        let file = NewNode::File(Layout::Whole { node: NodeId(u16::MAX) });
        for node in [file, NewNode::Symlink(vec![b't'; PATH_MAX].into())] {
            let act = longest(node);
            let one = postcard::to_allocvec(&act).expect("plain data").len();
            assert!(one <= act.weight());
            let count = (ACTS_BYTES_MAX / act.weight()).min(ACTS_MAX);
            let groups = vec![u32::MAX; GROUPS_MAX];
            let call = MetaCall {
                shard: ShardId(u16::MAX),
                cred: Cred { uid: u32::MAX, gid: u32::MAX, groups },
                op: MetaOp::Acts { acts: vec![act; count] },
            };
            assert!(postcard::to_allocvec(&call).expect("plain data").len() < BODY_MAX);
        }
    }

    #[test]
    fn an_act_is_answered_as_the_operation_is() {
        let reply = MetaReply::Removed { ino: Some(Ino(5)), last: true };
        assert_eq!(Acted::of(reply.clone()).and_then(Acted::result), Some(Ok(reply)));
        assert_eq!(Acted::Failed(Errno::ENOENT).result(), Some(Err(Errno::ENOENT)));
        for not_done in [Acted::Alone, Acted::Later, Acted::Elsewhere] {
            assert_eq!(not_done.result(), None);
        }
        assert_eq!(Acted::of(MetaReply::Done), None);
    }
}
