//! The faults between names and inodes, and the records by which they are found.

use std::collections::BTreeMap;
use std::fmt;
use tatami_wire::meta::{BackPointer, InodeEntries};
use tatami_wire::{ExecutorId, Ino, InodeKind, ShardId};

/// The fault of directories that lie in each other.
pub(super) const UNREACHABLE: &str = "it cannot be reached from the root";

/// A fault of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NameFault {
    /// Entries lead to it, and it does not exist.
    NoInode { count: u32, dir: Ino },
    /// It has a record at its owner shard and another one at its allocating shard.
    DuplicateRecord,
    /// Entries say that it is of another kind.
    OtherKind { dir: Ino, kind: InodeKind },
    /// The root's back-pointer names another directory.
    RootMisplaced,
    /// Entries lead to the root.
    RootNamed { count: u32 },
    /// It has no name and a link count of 0, and no client keeps it open.
    Unreferenced { version: u64 },
    /// It has no name, but a link count above 0.
    Nameless { version: u64, kept: bool },
    /// A directory with several names.
    SeveralNames { count: u32, parent: Ino },
    /// A directory whose entry is in another directory than its back-pointer says.
    WrongParent { dir: Ino, says: Ino },
    /// A directory that has a name and is marked as removed.
    Removed { dir: Ino, version: u64 },
    /// It has more or fewer names than its link count.
    Links { count: u32, nlink: u32, version: u64 },
}

impl fmt::Display for NameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameFault::NoInode { count, dir } => {
                write!(f, "{count} entries lead to it, one in {dir}, and it is not there")
            }
            NameFault::DuplicateRecord => write!(f, "two executors have a record of it"),
            NameFault::OtherKind { dir, .. } => {
                write!(f, "an entry in {dir} says that it is of another kind")
            }
            NameFault::RootMisplaced => write!(f, "the root lies in another directory"),
            NameFault::RootNamed { count } => write!(f, "{count} entries lead to the root"),
            NameFault::Unreferenced { .. } => write!(f, "it has no name and nobody keeps it"),
            NameFault::Nameless { .. } => write!(f, "no entry leads to it"),
            NameFault::SeveralNames { count, .. } => write!(f, "a directory with {count} names"),
            NameFault::WrongParent { dir, says } => {
                write!(f, "it lies in directory {dir}, it says {says}")
            }
            NameFault::Removed { dir, .. } => {
                write!(f, "it says that it was removed, and lies in directory {dir}")
            }
            NameFault::Links { count, nlink, .. } => {
                write!(f, "it has {count} names, it says {nlink}")
            }
        }
    }
}

impl NameFault {
    /// Returns whether the repair needs the names.
    pub(super) fn needs_names(&self) -> bool {
        match self {
            NameFault::NoInode { .. }
            | NameFault::OtherKind { .. }
            | NameFault::RootNamed { .. }
            | NameFault::SeveralNames { .. }
            | NameFault::WrongParent { .. } => true,
            NameFault::DuplicateRecord
            | NameFault::RootMisplaced
            | NameFault::Unreferenced { .. }
            | NameFault::Nameless { .. }
            | NameFault::Removed { .. }
            | NameFault::Links { .. } => false,
        }
    }
}

/// Inodes that seem to have a fault.
#[derive(Default)]
pub(super) struct Suspicions {
    pub open: BTreeMap<Ino, Suspicion>,
    /// A fault was repaired, so the next look can follow at once.
    pub went_on: bool,
}

/// The history of one of them.
#[derive(Default)]
pub(super) struct Suspicion {
    pub mended: bool,
    /// The last fault that had changed before its repair.
    pub last: Option<String>,
}

/// All records of the executors about one inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InodeFacts {
    /// Records of the inode, normally one.
    pub inodes: Vec<BackPointer>,
    pub names: Vec<InodeEntries>,
}

pub(super) type LeadShards = [(ShardId, ExecutorId)];
