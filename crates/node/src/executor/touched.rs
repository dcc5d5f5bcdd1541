//! The inodes that an operation has met, for delegations.

use tatami_meta::ChangedInode;
use tatami_wire::delegation::PartitionAttr;
use tatami_wire::{Attr, Ino};

/// The inodes that an operation has met, as far as delegations need them.
#[derive(Debug, Default)]
pub(crate) struct TouchedInodes {
    /// Inodes on which the answer depends.
    pub(crate) seen: Vec<Ino>,
    /// Inodes that the operation has changed.
    pub(crate) changed: Vec<ChangedInode>,
    /// The directory of [`MetaOp::delegable_dir`], after the operation, if it may be delegated to
    /// the client.
    pub(crate) dir: Option<Box<Attr>>,
    /// The partition that stands in for that directory, under the same condition.
    pub(crate) part: Option<Box<PartitionAttr>>,
}
