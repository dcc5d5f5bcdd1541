//! Attributes of inodes, and the credentials of a request.

use crate::bytes::Bytes;
use crate::{GROUPS_MAX, Ino, Layout, NodeId};
use serde::{Deserialize, Serialize};

/// A point in time by the clock of the daemon that acknowledged an operation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC, negative before.
    pub sec: i64,
    /// Nanoseconds past `sec`, 0 to 999,999,999.
    pub nsec: u32,
}

impl Timestamp {
    /// Returns the time `sec` whole seconds after 1970-01-01 UTC.
    pub fn from_sec(sec: i64) -> Timestamp {
        Timestamp { sec, nsec: 0 }
    }

    /// Adds whole seconds. Saturates at the end of the range.
    pub fn plus_sec(self, sec: i64) -> Timestamp {
        Timestamp { sec: self.sec.saturating_add(sec), nsec: self.nsec }
    }

    /// Returns `at`, or the instant after `self` if `at` is not later. So two changes of a file
    /// never have the same time, even if the clocks are coarse or differ.
    pub fn advanced_to(self, at: Timestamp) -> Timestamp {
        if at > self {
            return at;
        }
        match self.nsec {
            0..999_999_999 => Timestamp { nsec: self.nsec + 1, ..self },
            _ => Timestamp::from_sec(self.sec.saturating_add(1)),
        }
    }

    /// Checks that the nanoseconds are in range. Received bytes may violate this.
    pub fn is_valid(self) -> bool {
        self.nsec < 1_000_000_000
    }
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are those of inode(7)
pub enum InodeKind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDev,
    BlockDev,
}

impl InodeKind {
    /// Returns the file type bits of `st_mode` (`S_IFREG`, …).
    pub fn mode_bits(self) -> u32 {
        match self {
            InodeKind::File => libc::S_IFREG,
            InodeKind::Dir => libc::S_IFDIR,
            InodeKind::Symlink => libc::S_IFLNK,
            InodeKind::Fifo => libc::S_IFIFO,
            InodeKind::Socket => libc::S_IFSOCK,
            InodeKind::CharDev => libc::S_IFCHR,
            InodeKind::BlockDev => libc::S_IFBLK,
        }
    }

    /// Returns the kind for the file type bits of `mode`. No bit means a file, as in mknod(2).
    pub fn from_mode(mode: u32) -> Option<InodeKind> {
        Some(match mode & libc::S_IFMT {
            0 | libc::S_IFREG => InodeKind::File,
            libc::S_IFDIR => InodeKind::Dir,
            libc::S_IFLNK => InodeKind::Symlink,
            libc::S_IFIFO => InodeKind::Fifo,
            libc::S_IFSOCK => InodeKind::Socket,
            libc::S_IFCHR => InodeKind::CharDev,
            libc::S_IFBLK => InodeKind::BlockDev,
            _ => return None,
        })
    }
}

/// The attributes of an inode, as stat(2) returns them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: InodeKind,
    /// Permission bits with setuid, setgid and sticky: 0 to 0o7777.
    pub mode: u16,
    /// Number of names. For a directory: 2 plus the number of its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, else 0.
    pub rdev: u64,
    /// Bytes in the file, as of the last close or fsync of a writer. For a link: length of the
    /// target. For a directory: number of entries.
    pub size: u64,
    /// Allocated storage, in units of 512 bytes, as of the same moment as `size`.
    pub blocks: u64,
    /// Last access. Reads do not update it: volumes behave as `noatime`.
    pub atime: Timestamp,
    /// Last change of the bytes or entries.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Increases with every change of the inode. Equal versions mean equal inodes.
    pub version: u64,
    /// Location of a file's bytes. Meaningless for other kinds.
    pub layout: Layout,
    /// Extended attributes of the inode, by class. Saves clients a request.
    pub xattr_class: XattrClass,
    /// A client other than the receiver may be changing the bytes. Then the object has newer
    /// values.
    pub maybe_written_elsewhere: bool,
    /// The last change of the object that the shard knows, by the clock of the object's disk
    /// ([`ObjectState::changed`](crate::object::ObjectState::changed)).
    pub object_changed: Timestamp,
}

/// The class of an inode's extended attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrClass {
    /// The inode has no extended attribute.
    #[default]
    NoXattr,
    /// The inode has a POSIX ACL, and possibly other extended attributes.
    Acl,
    /// The inode has extended attributes, but no ACL.
    Xattrs,
}

impl Attr {
    /// Returns default attributes: empty, one name, owned by the superuser, mode 0644, time 0.
    pub fn with_defaults(ino: Ino, kind: InodeKind) -> Attr {
        let time = Timestamp::default();
        Attr {
            ino,
            kind,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version: 1,
            layout: Layout::whole(NodeId(0)),
            xattr_class: XattrClass::NoXattr,
            maybe_written_elsewhere: false,
            object_changed: time,
        }
    }

    /// Adds the counts and times of one partition to those of its directory. Each partition has the
    /// link count 2 of a directory for itself, which is subtracted.
    pub fn add_partition(&mut self, part: &Attr) {
        self.size = self.size.saturating_add(part.size);
        self.nlink = self.nlink.saturating_add(part.nlink.saturating_sub(2));
        self.mtime = self.mtime.max(part.mtime);
        self.ctime = self.ctime.max(part.ctime);
        self.version = self.version.wrapping_add(part.version);
    }

    /// Counts a new file of this directory. A client has made it at `time`, and holds the create
    /// back from the shard.
    pub fn add_new_file(&mut self, time: Timestamp) {
        self.size += 1;
        self.ctime = self.ctime.max(time);
        self.mtime = self.ctime;
        self.version = self.version.wrapping_add(1);
    }

    /// Returns these attributes of a directory with the size and times of `sum`, which are those of
    /// all partitions some time ago. The link count is 1, which means "not counted": find(1) skips
    /// the subdirectories of a directory with too small a count.
    pub fn with_counts_of(self, sum: &Attr) -> Attr {
        Attr {
            size: sum.size,
            nlink: 1,
            mtime: self.mtime.max(sum.mtime),
            ctime: self.ctime.max(sum.ctime),
            version: sum.version,
            ..self
        }
    }

    /// Updates the bytes' attributes from the state of the object, which may be newer than the
    /// shard's.
    pub fn apply_object_state(&mut self, state: &DataState) {
        let &mut Attr { mtime, ctime, object_changed, .. } = self;
        let times = ByteTimes { mtime, ctime, object_changed }.updated_by(self.size, state);
        (self.mtime, self.ctime) = (times.mtime, times.ctime);
        self.object_changed = times.object_changed;
        (self.size, self.blocks) = (state.size, state.blocks);
    }

    /// Returns `st_mode`: the type and permission bits together.
    pub fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.mode)
    }
}

/// The times of a file that a change of its bytes updates.
///
/// Shards and clients compute them by the same rule. So a client that has not committed its writes
/// shows the same times that the shard returns later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteTimes {
    /// See [`Attr::mtime`].
    pub mtime: Timestamp,
    /// See [`Attr::ctime`].
    pub ctime: Timestamp,
    /// See [`Attr::object_changed`].
    pub object_changed: Timestamp,
}

impl ByteTimes {
    /// Returns the times of a file of `size` bytes after its object has the given `state`.
    ///
    /// `ctime` follows the shard's clock, and the times of `state` follow the disk's clock. Either
    /// clock may be behind: by a tick on one machine, by more on two. So neither time goes back
    /// here, and `mtime` is never later than `ctime`.
    pub fn updated_by(self, size: u64, state: &DataState) -> ByteTimes {
        let times = ByteTimes { object_changed: state.changed, ..self };
        if !self.is_modified(state) {
            // Within one tick of the disk's clock, only the size shows a change.
            let is_resized = size != state.size;
            let ctime = if is_resized { self.ctime.advanced_to(self.ctime) } else { self.ctime };
            return ByteTimes { ctime, ..times };
        }
        // An `mtime` before `ctime` is no lower bound, because a user has set it.
        let floor = self.mtime.min(self.ctime);
        let mtime = if state.mtime >= floor { state.mtime } else { floor.advanced_to(state.mtime) };
        ByteTimes { mtime, ctime: self.ctime.advanced_to(mtime), ..times }
    }

    /// Checks whether the bytes were modified after the state that the shard knows. A disk gives
    /// the `mtime` and the object's change the same time. So an `mtime` that the shard does not
    /// know is later than the last change that the shard knows.
    fn is_modified(&self, state: &DataState) -> bool {
        let is_unknown = state.mtime > self.object_changed && state.mtime != self.mtime;
        // A mount copies a time that a user has set to the object.
        let is_set_by_user = state.mtime > state.changed;
        // The object was just created for the file, and both are empty.
        let is_new = self.object_changed == Timestamp::default() && state.size == 0;
        is_unknown && !is_set_by_user && !is_new
    }
}

/// A time to set: a given time, or the time at which the daemon applies the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The clock of the daemon.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change. `None` leaves an attribute unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits, 0 to 0o7777.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes. The client truncates the objects before it sends this request.
    pub size: Option<u64>,
    /// Allocated storage after the truncation, in units of 512 bytes. Only with `size`.
    pub blocks: Option<u64>,
    /// With `size`: the time of the truncation, by the clock of the object's disk. If a writer has
    /// committed a later state meanwhile, that state's size stays. With `mtime`: the object's last
    /// change before this one. The time that is set overrides the writes up to then.
    pub changed: Option<Timestamp>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the bytes.
    pub mtime: Option<SetTime>,
    /// The caller has the file open for writing. Then `size` needs no further permission, as with
    /// ftruncate(2).
    pub by_handle: bool,
    /// The state of the bytes before this change, as in a `Commit` before it. Both take effect or
    /// neither. Not with `size`.
    pub written: Option<DataState>,
    /// Moves the time of the last change, also if nothing else changes.
    pub touch: bool,
}

/// The credentials of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cred {
    /// File-system user id. User 0 passes all permission checks.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups, at most [`GROUPS_MAX`].
    pub groups: Vec<u32>,
}

impl Cred {
    /// The superuser.
    pub const ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new() };

    /// Checks whether the request comes from the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Checks whether `gid` is one of the request's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Checks the bound on the number of groups. Received bytes may violate it.
    pub fn is_valid(&self) -> bool {
        self.groups.len() <= GROUPS_MAX
    }
}

/// The kind of a new inode, with its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InodeTemplate {
    /// An empty regular file. Its bytes will be at the locations of the layout. No object is
    /// created.
    File(Layout),
    /// An empty directory.
    Dir,
    /// A symbolic link to this target, 1 to [`crate::PATH_MAX`] bytes.
    Symlink(Bytes),
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
    /// A character device with this number.
    CharDev(u64),
    /// A block device with this number.
    BlockDev(u64),
}

/// The state of a file's bytes, which a writer sends at close and fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataState {
    /// Exact size in bytes. It may be smaller than before, because a writer may have truncated the
    /// file.
    pub size: u64,
    /// Allocated storage, in units of 512 bytes.
    pub blocks: u64,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// The object's [`ObjectState::changed`](crate::object::ObjectState::changed).
    /// The shard ignores a state that is older than its own, because two writers on two nodes may
    /// send theirs in any order. Of two states with the same time, the longer one is later: a disk
    /// records the time of a write before the new size.
    pub changed: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_always_later_than_the_one_before() {
        let t = |sec, nsec| Timestamp { sec, nsec };
        assert_eq!(t(5, 7).advanced_to(t(6, 0)), t(6, 0));
        assert_eq!(t(5, 7).advanced_to(t(5, 7)), t(5, 8));
        assert_eq!(t(5, 999_999_999).advanced_to(t(1, 0)), t(6, 0));
    }
}
