//! Mending what does not fit between names and the inodes that they lead to, where these lie on several nodes.
//!
//! Who asks has looked at all nodes, and all of them may have changed since. So each mend names what it takes for true, and is done only
//! if that is true in the moment in which it takes effect. Records are compared in a transaction. That no name leads to an inode, or so many do,
//! is a matter of all nodes, and is true as long as the inode has the version that it had when they were counted: whatever
//! makes or removes a name of an inode changes that.

use crate::meta::Bytes;
use crate::partition::Range;
use crate::{Ino, Kind};
use serde::{Deserialize, Serialize};

/// Most inodes that one [`NamesOf`](crate::meta::MetaOp::NamesOf) asks for, and most entries in its answer.
pub const NAMED_MAX: usize = 1024;

/// Most directories and partitions in one answer to [`Parts`](crate::meta::MetaOp::Parts).
pub const PARTED_MAX: usize = 8 * 1024;

/// Most entries that one [`Mend::Empty`] takes elsewhere.
pub const EMPTIED_MAX: usize = 128;

/// An entry of a directory that leads to an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Where it leads to.
    pub ino: Ino,
    /// What it says that the inode is.
    pub kind: Kind,
    /// Where it is.
    pub place: Place,
}

/// Where an entry is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The partition that has it.
    pub part: Ino,
    /// Its name.
    pub name: Bytes,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mend {
    /// The entry at this place leads to the inode: it is removed if there is no such inode, or gets its kind right. An entry of
    /// a directory that is not there, but partitions of it are, stays.
    Entry(Place),
    /// The directory has two entries: the first one goes, the other one stays.
    Unname {
        /// Goes.
        place: Place,
        /// Stays.
        stays: Place,
    },
    /// The directory learns that it lies where this entry of it is.
    Lies(Place),
    /// The root learns that it lies in itself.
    Root,
    /// So many names lead to the inode that has this version. (Of a directory that says that it was removed, though a name leads to it: 2.)
    Links {
        /// The inode's version.
        version: u64,
        /// Its link count from now on.
        nlink: u32,
    },
    /// The directory has a record at its home and one where it was made: that one goes.
    Twin,
    /// No name leads to the inode that has this version, and nobody keeps it: it is removed.
    Remove {
        /// The inode's version.
        version: u64,
    },
    /// The inode that has this version cannot be reached: it is named by its number in `lost`. The entry `from`, which leads
    /// to it, goes; without one, it has no name.
    Rescue {
        /// The inode's version.
        version: u64,
        /// The directory `lost+found`.
        lost: Ino,
        /// An entry of it, in a directory that cannot be reached either.
        from: Option<Place>,
    },
    /// The inode is a partition that has no record any more: it is made anew for the entries that are left of it, like
    /// another one of its directory. Where it is the first one, which is the directory itself, that does not
    /// know where it lies.
    Part {
        /// The names that it has.
        range: Range,
        /// The other one: of the first partition any; of another one that which has split into it.
        like: Ino,
    },
    /// The inode is a partition of which its directory does not know: at most [`EMPTIED_MAX`] of its entries go where its directory
    /// has such names, unless it has them there, too. If there is none, the partition goes.
    Empty,
}

/// What a directory, or a partition, of which the entries are in several says.
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
    /// The partition whose node does it, where that is not the inode's.
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

    /// The name in `lost+found` of an inode that has no other one.
    pub fn lost_name(ino: Ino) -> String {
        format!("#{ino}")
    }
}
