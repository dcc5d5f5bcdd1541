//! Repair of inconsistencies between names and inodes that are on several nodes.
//!
//! The caller has read the records of all nodes, which may have changed since. So each repair
//! states its assumptions, and takes effect only if they hold at that moment. A transaction
//! compares the records. The number of names of an inode concerns all nodes. The caller's count
//! stays valid while the inode has the version of the count, because every change of an inode's
//! names also changes its version.

use crate::bytes::Bytes;
use crate::partition::HashRange;
use crate::{Ino, InodeKind};
use serde::{Deserialize, Serialize};

/// Most inodes in one [`NamesOf`](crate::meta::MetaOp::ListEntriesOf), and most entries in its
/// reply.
pub const LOCATED_ENTRIES_MAX: usize = 1024;

/// Most directories and partitions in one reply to [`Parts`](crate::meta::MetaOp::ScanPartitions).
pub const PARTITION_RECORDS_MAX: usize = 8 * 1024;

/// Most entries that one [`Repair::EmptyPartition`] relocates.
pub const EMPTIED_MAX: usize = 128;

/// A directory entry that leads to an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedEntry {
    /// The inode.
    pub ino: Ino,
    /// The kind of the inode by the entry.
    pub kind: InodeKind,
    /// The location of the entry.
    pub location: EntryLocation,
}

/// The location of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryLocation {
    /// The partition that has the entry.
    pub partition: Ino,
    /// Its name.
    pub name: Bytes,
}

/// A repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Repair {
    /// The entry leads to the inode. If the inode does not exist, the entry is removed. Otherwise
    /// the entry gets the inode's kind. The entry stays if the directory's record is missing but
    /// partitions of the directory exist.
    FixEntry(EntryLocation),
    /// The directory has two entries. The first one is removed.
    RemoveDuplicateEntry {
        /// The entry to remove.
        place: EntryLocation,
        /// The entry that stays.
        stays: EntryLocation,
    },
    /// Sets the back-pointer of the directory to this entry.
    SetBackPointer(EntryLocation),
    /// Makes the root its own parent.
    FixRoot,
    /// Sets the link count of an inode with this version. (2 for a directory that is marked as
    /// removed but has a name.)
    SetLinkCount {
        /// The inode's version.
        version: u64,
        /// The new link count.
        nlink: u32,
    },
    /// The directory has a record on its owner shard and one on its allocating shard. The second
    /// one is removed.
    RemoveDuplicateRecord,
    /// Removes an inode of this version without names that no client keeps.
    RemoveInode {
        /// The inode's version.
        version: u64,
    },
    /// Links an unreachable inode of this version into `lost`, with its number as the name. Removes
    /// the entry `from` that leads to it, if any.
    MoveToLostFound {
        /// The inode's version.
        version: u64,
        /// The directory `lost+found`.
        lost: Ino,
        /// The inode's entry, in a directory that is unreachable, too.
        from: Option<EntryLocation>,
    },
    /// Recreates the lost record of a partition for its remaining entries, modelled on another
    /// partition of its directory. The first partition is the directory itself; its back-pointer is
    /// unset afterwards.
    RecreatePartition {
        /// The names of the partition.
        range: HashRange,
        /// The model: any partition for the first one; for another one, the partition that split
        /// into it.
        like: Ino,
    },
    /// The partition is unknown to its directory. At most [`EMPTIED_MAX`] of its entries move to
    /// the partitions where the directory has such names, unless they exist there. If none is left,
    /// the partition is removed.
    EmptyPartition,
}

/// The record of a directory or partition that has split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// Its number.
    pub ino: Ino,
    /// The names that it has.
    pub range: HashRange,
    /// Number of its entries.
    pub entries: u64,
    /// A transaction is about to write it.
    pub changing: bool,
}

impl Repair {
    /// Returns the partition that selects the node for the repair. `None`: the inode selects it.
    pub fn target_partition(&self) -> Option<Ino> {
        match self {
            Repair::FixEntry(place) | Repair::RemoveDuplicateEntry { place, .. } => {
                Some(place.partition)
            }
            Repair::SetBackPointer(_)
            | Repair::FixRoot
            | Repair::SetLinkCount { .. }
            | Repair::RemoveDuplicateRecord
            | Repair::RemoveInode { .. }
            | Repair::MoveToLostFound { .. }
            | Repair::RecreatePartition { .. }
            | Repair::EmptyPartition => None,
        }
    }

    /// Returns the name of an otherwise nameless inode in `lost+found`.
    pub fn lost_name(ino: Ino) -> String {
        format!("#{ino}")
    }
}
