//! Repair of inconsistencies between names and inodes that are on several nodes.
//!
//! The caller has read the records of all nodes, which may have changed since. So each repair
//! states its assumptions, and takes effect only if they hold at that moment. A transaction
//! compares the records. The number of names of an inode concerns all nodes. The caller's count
//! stays valid while the inode has the version of the count, because every change of an inode's
//! names also changes its version.

use crate::meta::Bytes;
use crate::partition::Range;
use crate::{Ino, Kind};
use serde::{Deserialize, Serialize};

/// Most inodes in one [`NamesOf`](crate::meta::MetaOp::NamesOf), and most entries in its reply.
pub const NAMED_MAX: usize = 1024;

/// Most directories and partitions in one reply to [`Parts`](crate::meta::MetaOp::Parts).
pub const PARTED_MAX: usize = 8 * 1024;

/// Most entries that one [`Mend::Empty`] relocates.
pub const EMPTIED_MAX: usize = 128;

/// A directory entry that leads to an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The inode.
    pub ino: Ino,
    /// The kind of the inode by the entry.
    pub kind: Kind,
    /// The location of the entry.
    pub place: Place,
}

/// The location of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The partition that has the entry.
    pub part: Ino,
    /// Its name.
    pub name: Bytes,
}

/// A repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mend {
    /// The entry leads to the inode. If the inode does not exist, the entry is removed. Otherwise
    /// the entry gets the inode's kind. The entry stays if the directory's record is missing but
    /// partitions of the directory exist.
    Entry(Place),
    /// The directory has two entries. The first one is removed.
    Unname {
        /// The entry to remove.
        place: Place,
        /// The entry that stays.
        stays: Place,
    },
    /// Sets the back-pointer of the directory to this entry.
    Lies(Place),
    /// Makes the root its own parent.
    Root,
    /// Sets the link count of an inode with this version. (2 for a directory that is marked as
    /// removed but has a name.)
    Links {
        /// The inode's version.
        version: u64,
        /// The new link count.
        nlink: u32,
    },
    /// The directory has a record on its owner shard and one on its allocating shard. The second
    /// one is removed.
    Twin,
    /// Removes an inode of this version without names that no client keeps.
    Remove {
        /// The inode's version.
        version: u64,
    },
    /// Links an unreachable inode of this version into `lost`, with its number as the name. Removes
    /// the entry `from` that leads to it, if any.
    Rescue {
        /// The inode's version.
        version: u64,
        /// The directory `lost+found`.
        lost: Ino,
        /// The inode's entry, in a directory that is unreachable, too.
        from: Option<Place>,
    },
    /// Recreates the lost record of a partition for its remaining entries, modelled on another
    /// partition of its directory. The first partition is the directory itself; its back-pointer is
    /// unset afterwards.
    Part {
        /// The names of the partition.
        range: Range,
        /// The model: any partition for the first one; for another one, the partition that split
        /// into it.
        like: Ino,
    },
    /// The partition is unknown to its directory. At most [`EMPTIED_MAX`] of its entries move to
    /// the partitions where the directory has such names, unless they exist there. If none is left,
    /// the partition is removed.
    Empty,
}

/// The record of a directory or partition that has split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    /// Its number.
    pub ino: Ino,
    /// The names that it has.
    pub range: Range,
    /// Number of its entries.
    pub entries: u64,
    /// A transaction is about to write it.
    pub changing: bool,
}

impl Mend {
    /// Returns the partition that selects the node for the repair. `None`: the inode selects it.
    pub fn part(&self) -> Option<Ino> {
        match self {
            Mend::Entry(place) | Mend::Unname { place, .. } => Some(place.part),
            Mend::Lies(_)
            | Mend::Root
            | Mend::Links { .. }
            | Mend::Twin
            | Mend::Remove { .. }
            | Mend::Rescue { .. }
            | Mend::Part { .. }
            | Mend::Empty => None,
        }
    }

    /// Returns the name of an otherwise nameless inode in `lost+found`.
    pub fn lost_name(ino: Ino) -> String {
        format!("#{ino}")
    }
}
