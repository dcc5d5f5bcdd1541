//! Many operations in one request.
//!
//! An *act* is an operation on one name or one inode, as a [`MetaOp`] of its own would be: atomic by itself, with an
//! answer of its own, under the same rules. Acts of one request are done one after the other, at one node, and
//! have one answer and one place in the log. (Bulk insertion as in IndexFS, SC 2014, but visible at once.)
//!
//! What a node cannot do without a word to others is not done: the answer says so, and it is asked alone.

use crate::meta::{Bytes, DataState, MetaOp, MetaReply, NewNode};
use crate::partition::{Range, name_hash};
use crate::{Access, Attr, Cap, Errno, Ino, Kind, SetAttr};
use serde::{Deserialize, Serialize};

/// Most acts in one request.
pub const ACTS_MAX: usize = 1024;
/// Most bytes of acts in one request, as [`Act::weight`] counts them: what fits a frame.
pub const ACTS_BYTES_MAX: usize = 512 * 1024;
/// What an act takes in a message besides names and targets, at most, in bytes.
const ACT_BYTES: usize = 160;

/// One of many operations. Each is the [`MetaOp`] of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // as of the operation
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
    /// Whether it changes something.
    pub fn is_mutation(&self) -> bool {
        !matches!(self, Act::Find { .. } | Act::GetAttr { .. })
    }

    /// The inode whose shard must answer.
    pub fn target(&self) -> Ino {
        match self {
            Act::Find { parent, .. }
            | Act::Create { parent, .. }
            | Act::Unlink { parent, .. }
            | Act::Rmdir { parent, .. } => *parent,
            Act::GetAttr { ino } | Act::SetAttr { ino, .. } | Act::Commit { ino, .. } => *ino,
        }
    }

    /// The entry that it looks up, makes or removes: its directory and name.
    pub fn entry(&self) -> Option<(Ino, &Bytes)> {
        match self {
            Act::Find { parent, name }
            | Act::Create { parent, name, .. }
            | Act::Unlink { parent, name, .. }
            | Act::Rmdir { parent, name, .. } => Some((*parent, name)),
            Act::GetAttr { .. } | Act::SetAttr { .. } | Act::Commit { .. } => None,
        }
    }

    /// Shows `place` the directory in which it does something, as [`MetaOp::for_each_place`] does.
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

    /// How many bytes it takes in a message, at most.
    pub fn weight(&self) -> usize {
        let name = self.entry().map_or(0, |(_, name)| name.len());
        let target = match self {
            Act::Create { node: NewNode::Symlink(target), .. } => target.len(),
            _ => 0,
        };
        ACT_BYTES + name + target
    }
}

/// What became of an [`Act`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Acted {
    /// As [`MetaReply::Attr`].
    Attr(Attr),
    /// As [`MetaReply::Leads`].
    Leads(Ino),
    /// As [`MetaReply::Created`].
    Created {
        /// Its attributes.
        attr: Attr,
        /// Access to its bytes, if it was opened.
        cap: Option<Cap>,
        /// False where it was there already.
        created: bool,
    },
    /// As [`MetaReply::Removed`].
    Removed {
        /// The inode that lost a name, if there was one.
        ino: Option<Ino>,
        /// That was its last name.
        last: bool,
    },
    /// It failed, and nothing was done.
    Failed(Errno),
    /// It needs other nodes, and was not done: it is to be asked alone.
    Alone,
    /// Not now: somebody is changing what it needs, and it was not done. Asked alone, it waits.
    Later,
    /// As [`MetaReply::Elsewhere`]: not done.
    Elsewhere,
    /// As [`MetaReply::Parted`]: not done.
    Parted {
        /// The partition.
        part: Ino,
        /// What it has.
        range: Range,
    },
}

impl Acted {
    /// What an operation was answered; `None` for what no act is answered with.
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

    /// The answer to the operation asked alone; `None` where it was not done.
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

/// What is left of a stretch of a directory that was cleared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Its name.
    pub name: Bytes,
    /// Its inode.
    pub ino: Ino,
    /// What the inode is.
    pub kind: Kind,
    /// Why it is left. `None`: it is a directory, or is to be removed alone.
    pub why: Option<Errno>,
}

/// What the inodes of a stretch of a directory have, directories left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Number of those that have one name only.
    pub files: u64,
    /// Their sizes, in bytes.
    pub size: u64,
    /// Storage in use by them, in units of 512 bytes.
    pub blocks: u64,
    /// Those that have several names: number, size and blocks.
    pub linked: Vec<(Ino, u64, u64)>,
    /// Those that are on other nodes, or are being changed: they are to be asked for.
    pub elsewhere: Vec<Ino>,
    /// The directories, and whether one is known to be empty, for those who may read it.
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
