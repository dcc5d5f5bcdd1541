//! What an inode is, and who asks for it.

use crate::meta::DataState;
use crate::{GROUPS_MAX, Ino, Layout, NodeId};
use serde::{Deserialize, Serialize};

/// A point in time, as the clock of the daemon that acknowledged an operation.
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
    /// Whole seconds since 1970.
    pub fn from_sec(sec: i64) -> Timestamp {
        Timestamp { sec, nsec: 0 }
    }

    /// `self` plus whole seconds, stopping at the end of the range.
    pub fn plus_sec(self, sec: i64) -> Timestamp {
        Timestamp { sec: self.sec.saturating_add(sec), nsec: self.nsec }
    }

    /// `at`, or the instant after `self` if `at` is not later: two changes of a
    /// file never bear the same time, though the clocks that tell them may be
    /// coarse, or differ.
    pub fn moved_to(self, at: Timestamp) -> Timestamp {
        if at > self {
            return at;
        }
        match self.nsec {
            0..999_999_999 => Timestamp { nsec: self.nsec + 1, ..self },
            _ => Timestamp::from_sec(self.sec.saturating_add(1)),
        }
    }

    /// Whether the nanoseconds are in range. Bytes from outside may not be.
    pub fn is_valid(self) -> bool {
        self.nsec < 1_000_000_000
    }
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are those of inode(7)
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDev,
    BlockDev,
}

impl Kind {
    /// The file type bits of `st_mode` (`S_IFREG`, …).
    pub fn mode_bits(self) -> u32 {
        match self {
            Kind::File => libc::S_IFREG,
            Kind::Dir => libc::S_IFDIR,
            Kind::Symlink => libc::S_IFLNK,
            Kind::Fifo => libc::S_IFIFO,
            Kind::Socket => libc::S_IFSOCK,
            Kind::CharDev => libc::S_IFCHR,
            Kind::BlockDev => libc::S_IFBLK,
        }
    }

    /// The kind that the file type bits of `mode` mean; none set means a file,
    /// as in mknod(2).
    pub fn from_mode(mode: u32) -> Option<Kind> {
        Some(match mode & libc::S_IFMT {
            0 | libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Dir,
            libc::S_IFLNK => Kind::Symlink,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR => Kind::CharDev,
            libc::S_IFBLK => Kind::BlockDev,
            _ => return None,
        })
    }
}

/// The attributes of an inode, as stat(2) shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: 0 to 0o7777.
    pub mode: u16,
    /// Number of names; of a directory, 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, else 0.
    pub rdev: u64,
    /// Bytes in the file, as of the last close or fsync of a writer; length of
    /// a link's target; number of entries of a directory.
    pub size: u64,
    /// Storage in use, in units of 512 bytes, as of the same moment as `size`.
    pub blocks: u64,
    /// Last access. Reads do not update it: volumes behave as `noatime`.
    pub atime: Timestamp,
    /// Last change of the bytes or entries.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Goes up with every change of the inode. Equal versions, equal inode.
    pub version: u64,
    /// Where the bytes of a file lie; of anything else, without meaning.
    pub layout: Layout,
    /// What hangs on the inode besides. Spares the asking.
    pub attached: Attached,
    /// Another client than the one that is told may be changing the bytes: what its object says of them is newer.
    pub written_elsewhere: bool,
    /// The last change of the object of which the shard knows, by the clock of its disk
    /// ([`ObjectState::changed`](crate::object::ObjectState::changed)).
    pub object_changed: Timestamp,
}

/// What hangs on an inode besides its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attached {
    /// No extended attribute at all.
    #[default]
    Nothing,
    /// A POSIX ACL, and maybe other extended attributes.
    Acl,
    /// Extended attributes, none of them an ACL.
    Xattrs,
}

impl Attr {
    /// Of an inode of which nothing else is to be said: empty, with one name, of the superuser, with mode 0644 and
    /// the time 0.
    pub fn plain(ino: Ino, kind: Kind) -> Attr {
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
            layout: Layout::Whole { node: NodeId(0) },
            attached: Attached::Nothing,
            written_elsewhere: false,
            object_changed: time,
        }
    }

    /// Adds a partition to the attributes of a directory that is in several. Each counts itself, as a directory does.
    pub fn add_part(&mut self, part: &Attr) {
        self.size = self.size.saturating_add(part.size);
        self.nlink = self.nlink.saturating_add(part.nlink.saturating_sub(2));
        self.mtime = self.mtime.max(part.mtime);
        self.ctime = self.ctime.max(part.ctime);
        self.version = self.version.wrapping_add(part.version);
    }

    /// Puts in what the object of a file is now, of which the shard may not have been told yet.
    pub fn take_bytes(&mut self, state: &DataState) {
        let &mut Attr { mtime, ctime, object_changed, .. } = self;
        let times = ByteTimes { mtime, ctime, object_changed }.after(self.size, state);
        (self.mtime, self.ctime) = (times.mtime, times.ctime);
        self.object_changed = times.object_changed;
        (self.size, self.blocks) = (state.size, state.blocks);
    }

    /// `st_mode`: type and permission bits together.
    pub fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.mode)
    }
}

/// The times of a file that a change of its bytes moves.
///
/// Shards and clients reckon with them alike, so that what a client shows of bytes of which it has not told yet is what
/// the shard answers afterwards.
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
    /// The times of a file of `size` bytes when its object is as `state` says.
    ///
    /// `ctime` follows the clock of the shard, the times of `state` that of the disk. Either clock may be behind: by a
    /// tick on one machine, by more on two. So neither time goes back here, and the modification is never later than `ctime`.
    pub fn after(self, size: u64, state: &DataState) -> ByteTimes {
        let times = ByteTimes { object_changed: state.changed, ..self };
        if !self.is_modified(state) {
            // Within a tick of the disk's clock, only the size tells of a change.
            let is_resized = size != state.size;
            let ctime = if is_resized { self.ctime.moved_to(self.ctime) } else { self.ctime };
            return ByteTimes { ctime, ..times };
        }
        // A modification that lies behind `ctime` is no bound: a user has set it.
        let floor = self.mtime.min(self.ctime);
        let mtime = if state.mtime >= floor { state.mtime } else { floor.moved_to(state.mtime) };
        ByteTimes { mtime, ctime: self.ctime.moved_to(mtime), ..times }
    }

    /// Whether the bytes were modified since the shard was told of them. A disk gives the modification and the object's
    /// change one time, so a modification that the shard does not know is later than the last change that it knows.
    fn is_modified(&self, state: &DataState) -> bool {
        let is_unknown = state.mtime > self.object_changed && state.mtime != self.mtime;
        // Mounts give their objects the times that users set.
        let is_set_by_user = state.mtime > state.changed;
        // The object was made for the file, which is as empty as it was.
        let is_new = self.object_changed == Timestamp::default() && state.size == 0;
        is_unknown && !is_set_by_user && !is_new
    }
}

/// A time to be set: the one given, or the moment the daemon applies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The clock of the daemon.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits, 0 to 0o7777.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes. The objects are cut by the client before it asks for this.
    pub size: Option<u64>,
    /// Storage in use after the cut, in units of 512 bytes; with `size` only.
    pub blocks: Option<u64>,
    /// With `size`, when the object was cut, by its disk's clock: a writer
    /// may have told of a later state meanwhile, and then that size stays. With `mtime`, the last change of the object before:
    /// the time that is set counts more than the writes until then.
    pub changed: Option<Timestamp>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the bytes.
    pub mtime: Option<SetTime>,
    /// The caller has the file open for writing: `size` needs no further
    /// permission, as with ftruncate(2).
    pub by_handle: bool,
}

/// On whose behalf a request is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cred {
    /// File-system user id. 0 passes all permission checks.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups, at most [`GROUPS_MAX`].
    pub groups: Vec<u32>,
}

impl Cred {
    /// The superuser.
    pub const ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new() };

    /// Whether the request comes from the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the request's groups include `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the group list keeps its bound. Bytes from outside may not.
    pub fn is_valid(&self) -> bool {
        self.groups.len() <= GROUPS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_always_later_than_the_one_before() {
        let t = |sec, nsec| Timestamp { sec, nsec };
        assert_eq!(t(5, 7).moved_to(t(6, 0)), t(6, 0));
        assert_eq!(t(5, 7).moved_to(t(5, 7)), t(5, 8));
        assert_eq!(t(5, 999_999_999).moved_to(t(1, 0)), t(6, 0));
    }
}
