//! The calls of a mount: a directory of this site that another machine shows as ordinary files.
//!
//! An inode is named by its directory, its name there, and its device and inode number. The I/O
//! process looks for the numbers first, and resolves the path otherwise, without a symbolic link.
//! An inode with other numbers is another file: `ESTALE`.

use serde::{Deserialize, Serialize};
use tatami_wire::meta::Bytes;

/// A directory below the root of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteDir {
    /// Its path, relative to the root of the mount; empty for the root.
    pub path: Bytes,
    /// Its device and inode number.
    pub id: (u64, u64),
}

/// An inode below the root of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteNode {
    /// The directory that has its name.
    pub dir: SiteDir,
    /// Its name there. An empty name: the directory itself.
    pub name: Bytes,
    /// Its device and inode number.
    pub id: (u64, u64),
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteTime {
    /// The current time there.
    Now,
    /// Seconds since 1970, nanoseconds.
    At(i64, u32),
}

/// New attributes of an inode. The others stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteAttrSet {
    /// Bytes.
    pub size: Option<u64>,
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<SiteTime>,
    /// Last change of the bytes.
    pub modified: Option<SiteTime>,
}

/// What a new name leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewSiteNode {
    /// A directory with these permissions.
    Dir(u32),
    /// A symbolic link to this target.
    Link(Bytes),
    /// A file of any kind: `st_mode` and device number.
    Special(u32, u64),
    /// An inode that has a name already.
    Same(SiteNode),
}

/// The room of a file system, as in statvfs(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteSpace {
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks that are free for users.
    pub available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u64,
}

/// A call of a mount. `file` is a number that the caller chooses for an open file. Offsets and
/// lengths are in bytes; flags and modes are those of the system calls of Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountCall {
    /// Opens the root. It is the first call of a link. → `Mounted`
    Root {
        /// Its path. A relative one starts at the home directory.
        path: Bytes,
    },
    /// Searches for a name. → `Entry`, without a name
    Lookup {
        /// The directory.
        dir: SiteDir,
        /// The name.
        name: Bytes,
    },
    /// Asks for attributes. → `Entry`, without a name
    ReadAttr {
        /// The inode.
        node: SiteNode,
        /// An open file of it.
        file: Option<u64>,
    },
    /// Changes attributes. → `Entry`, without a name
    SetAttr {
        /// The inode.
        node: SiteNode,
        /// An open file of it.
        file: Option<u64>,
        /// The new attributes.
        set: SiteAttrSet,
    },
    /// Makes a name. → `Entry`, without a name
    Make {
        /// The directory.
        dir: SiteDir,
        /// The name.
        name: Bytes,
        /// What it leads to.
        new: NewSiteNode,
    },
    /// Removes a name. → `Done`
    Remove {
        /// The directory.
        dir: SiteDir,
        /// The name.
        name: Bytes,
        /// Whether it is that of a directory.
        is_dir: bool,
    },
    /// Renames. → `Done`
    Rename {
        /// The directory.
        dir: SiteDir,
        /// The name.
        name: Bytes,
        /// The new directory.
        to: SiteDir,
        /// The new name.
        to_name: Bytes,
        /// The flags of renameat2(2).
        flags: u32,
    },
    /// Opens a regular file. → `Opened`
    Open {
        /// The number of the file.
        file: u64,
        /// The inode.
        node: SiteNode,
        /// The flags of open(2).
        flags: i32,
    },
    /// Opens a regular file, and makes it if it is missing. → `Opened`
    Create {
        /// The number of the file.
        file: u64,
        /// The directory.
        dir: SiteDir,
        /// The name.
        name: Bytes,
        /// The flags of open(2).
        flags: i32,
        /// Permissions of a new file.
        mode: u32,
    },
    /// Reads, at most [`crate::BYTES_MAX`]. → `Bytes`, fewer at the end of the file
    Read {
        /// The file.
        file: u64,
        /// Where.
        offset: u64,
        /// The number of bytes.
        len: u32,
    },
    /// Writes the bytes of the payload. → `Done`
    Write {
        /// The file.
        file: u64,
        /// Where.
        offset: u64,
        /// The checksum of the payload.
        sum: u32,
        /// Whether the bits set-user-id and set-group-id are cleared.
        clears_ids: bool,
    },
    /// Brings a file to the disk. → `Done`
    Sync {
        /// The file.
        file: u64,
        /// Whether times may be left out.
        data_only: bool,
    },
    /// Closes a file. → `Done`
    Release {
        /// The file.
        file: u64,
    },
    /// Reserves or frees room, as fallocate(2). → `Done`
    Allocate {
        /// The file.
        file: u64,
        /// The mode of fallocate(2).
        mode: u32,
        /// Where.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// Searches for data or for a hole. → `Size`, the offset
    Seek {
        /// The file.
        file: u64,
        /// Where the search begins.
        offset: u64,
        /// Whether a hole is searched.
        is_hole: bool,
    },
    /// Copies bytes between two files there. → `Size`, the number of bytes
    CopyRange {
        /// The source.
        file: u64,
        /// Where in it.
        offset: u64,
        /// The destination.
        to: u64,
        /// Where in it.
        to_offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// Lists one piece of a directory. → `Entries`; `ESTALE`: the pieces before it are forgotten
    List {
        /// The directory.
        dir: SiteDir,
        /// The number of this listing, chosen by the caller.
        listing: u64,
        /// The number of the piece. Piece 0 begins the listing.
        piece: u32,
    },
    /// Ends a listing before its last piece. → `Done`
    EndList {
        /// The number of the listing.
        listing: u64,
    },
    /// Brings the names of a directory to the disk. → `Done`
    SyncDir {
        /// The directory.
        dir: SiteDir,
    },
    /// Asks for the room of the file system. → `Space`
    ReadSpace,
    /// Asks whether the user there may use an inode so. → `Done`
    CheckAccess {
        /// The inode.
        node: SiteNode,
        /// The mask of access(2).
        mask: u32,
    },
    /// Reads an extended attribute. → `Bytes`
    ReadXattr {
        /// The inode.
        node: SiteNode,
        /// The name.
        name: Bytes,
    },
    /// Lists the names of extended attributes, each with a zero byte at its end. → `Bytes`
    ListXattrs {
        /// The inode.
        node: SiteNode,
    },
    /// Sets an extended attribute. → `Done`
    SetXattr {
        /// The inode.
        node: SiteNode,
        /// The name.
        name: Bytes,
        /// The value.
        value: Bytes,
        /// The flags of setxattr(2).
        flags: u32,
    },
    /// Removes an extended attribute. → `Done`
    RemoveXattr {
        /// The inode.
        node: SiteNode,
        /// The name.
        name: Bytes,
    },
}
