//! The move of a file to where a policy wants its bytes: beside the inode, into a region, or into a
//! file of a disk. A client begins the move, copies the bytes, and ends it. The shard refuses the
//! end if the bytes could have changed meanwhile.

use crate::NodeId;
use crate::attr::DataState;
use crate::bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The place that a move leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveTarget {
    /// Beside the inode.
    Inode(InlineTerms),
    /// One object.
    Object {
        /// Its node.
        node: NodeId,
        /// Set if it lies in a region of the node's device: the rule by which it keeps earlier
        /// states there, see [`Piece::version_rule`](crate::Piece::version_rule). A node without a
        /// device, or with a full one, makes a file of it.
        region_rule: Option<u32>,
    },
}

/// What holds for bytes beside an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineTerms {
    /// The file moves to an object when it outgrows this size, in bytes.
    pub limit: u32,
    /// That object lies in a region.
    pub leaves_to_region: bool,
}

/// The answer to the begin of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveStart {
    /// The bytes lie beside the inode, and stay there. `changed`: other terms hold from now on.
    Stays {
        /// The terms were others.
        changed: bool,
    },
    /// The client must copy the bytes: to the object of this number, or for the inode to the
    /// message that ends the move.
    Copies {
        /// Number of the object; 0 for the inode.
        number: u32,
    },
}

/// The copy that is the file from now on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MovedBytes {
    /// All bytes, to be kept beside the inode.
    Inode {
        /// What holds for them.
        terms: InlineTerms,
        /// As many as the file has.
        bytes: Bytes,
    },
    /// The object of this client's reservation.
    Object {
        /// Its node.
        node: NodeId,
        /// Its number.
        number: u32,
        /// Its state.
        state: DataState,
    },
}
