//! The parts of replies, encoded as the kernel reads them: attributes, entries, open files,
//! directory contents.

use std::time::Duration;

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseTime {
    /// Seconds since 1970-01-01 UTC, negative before.
    pub sec: i64,
    /// Nanoseconds past `sec`, below 10^9.
    pub nsec: u32,
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseAttr {
    /// Inode number.
    pub ino: u64,
    /// Size in bytes; the kernel accepts at most `i64::MAX`.
    pub size: u64,
    /// Allocated storage, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: FuseTime,
    /// Last change of the contents.
    pub mtime: FuseTime,
    /// Last change of the inode.
    pub ctime: FuseTime,
    /// Creation; only in replies to STATX.
    pub btime: FuseTime,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as the kernel encodes it in 32 bits.
    pub rdev: u32,
    /// Preferred size of a transfer, a power of two; 0 for the kernel's own.
    pub blksize: u32,
}

/// Times for which the kernel may cache a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheTimeouts {
    /// For the name.
    pub entry: Duration,
    /// For the attributes.
    pub attr: Duration,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenReply {
    /// The kernel sends this with every request on the open file.
    pub handle: u64,
    /// Flags of [`crate::abi::fopen`].
    pub flags: u32,
    /// The registered backing file, with `PASSTHROUGH`; else 0.
    pub backing: i32,
}

/// The result of statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Total blocks, of `block_size` bytes.
    pub blocks: u64,
    /// Blocks free for the superuser.
    pub free: u64,
    /// Blocks free for users.
    pub available: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A reply under construction, on the stack.
pub(crate) struct FixedReply<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> FixedReply<N> {
    pub(crate) fn new() -> Self {
        FixedReply { bytes: [0; N], len: 0 }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn put_u16(mut self, v: u16) -> Self {
        self.append(&v.to_ne_bytes());
        self
    }

    pub(crate) fn put_u32(mut self, v: u32) -> Self {
        self.append(&v.to_ne_bytes());
        self
    }

    pub(crate) fn put_u64(mut self, v: u64) -> Self {
        self.append(&v.to_ne_bytes());
        self
    }

    fn put_time(self, t: FuseTime) -> Self {
        self.put_u64(t.sec as u64).put_u32(t.nsec).put_u32(0)
    }

    pub(crate) fn put_attr(self, a: &FuseAttr) -> Self {
        self.put_u64(a.ino)
            .put_u64(a.size)
            .put_u64(a.blocks)
            .put_u64(a.atime.sec as u64)
            .put_u64(a.mtime.sec as u64)
            .put_u64(a.ctime.sec as u64)
            .put_u32(a.atime.nsec)
            .put_u32(a.mtime.nsec)
            .put_u32(a.ctime.nsec)
            .put_u32(a.mode)
            .put_u32(a.nlink)
            .put_u32(a.uid)
            .put_u32(a.gid)
            .put_u32(a.rdev)
            .put_u32(a.blksize)
            .put_u32(0)
    }

    /// `fuse_entry_out`: 128 bytes.
    pub(crate) fn put_entry(self, a: &FuseAttr, v: &CacheTimeouts) -> Self {
        self.put_u64(a.ino)
            .put_u64(0)
            .put_u64(v.entry.as_secs())
            .put_u64(v.attr.as_secs())
            .put_u32(v.entry.subsec_nanos())
            .put_u32(v.attr.subsec_nanos())
            .put_attr(a)
    }

    /// `fuse_open_out`: 16 bytes.
    pub(crate) fn put_open(self, o: &OpenReply) -> Self {
        self.put_u64(o.handle).put_u32(o.flags).put_u32(o.backing as u32)
    }

    /// `fuse_statx`: 256 bytes.
    pub(crate) fn put_statx(self, a: &FuseAttr) -> Self {
        const BASIC_STATS_AND_BTIME: u32 = 0xfff;
        let (major, minor) = (a.rdev >> 8 & 0xfff, a.rdev & 0xff | a.rdev >> 12 & 0xfff00);
        self.put_u32(BASIC_STATS_AND_BTIME)
            .put_u32(a.blksize)
            .put_u64(0)
            .put_u32(a.nlink)
            .put_u32(a.uid)
            .put_u32(a.gid)
            .put_u16(a.mode as u16)
            .put_u16(0)
            .put_u64(a.ino)
            .put_u64(a.size)
            .put_u64(a.blocks)
            .put_u64(0)
            .put_time(a.atime)
            .put_time(a.btime)
            .put_time(a.ctime)
            .put_time(a.mtime)
            .put_u32(major)
            .put_u32(minor)
            .put_zeros(8 + 14 * 8)
    }

    pub(crate) fn put_zeros(mut self, n: usize) -> Self {
        self.len += n;
        assert!(self.len <= N, "replies have fixed lengths");
        self
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The contents of a reply to READDIR or READDIRPLUS. Entries are added until the kernel's buffer
/// is full.
pub struct DirEntries<'a> {
    out: &'a mut Vec<u8>,
    room: usize,
}

const DIRENT_LEN: usize = 24;
const ENTRY_LEN: usize = 128;

impl<'a> DirEntries<'a> {
    /// Starts a listing of at most `room` bytes in `out`, which is cleared.
    pub fn new(out: &'a mut Vec<u8>, room: usize) -> DirEntries<'a> {
        out.clear();
        DirEntries { out, room }
    }

    /// Adds an entry, or returns false if it does not fit. `next` is the offset after the entry,
    /// from which the kernel continues. `kind` is an `S_IFMT` value; other bits of `st_mode` are
    /// ignored.
    pub fn push(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.check_space(DIRENT_LEN, name.len()).is_some_and(|()| {
            self.append_dirent(ino, next, kind, name);
            true
        })
    }

    /// Adds an entry with its attributes, for READDIRPLUS. The kernel then holds one more reference
    /// to the inode.
    pub fn push_with_attr(
        &mut self,
        attr: &FuseAttr,
        valid: &CacheTimeouts,
        next: u64,
        name: &[u8],
    ) -> bool {
        self.check_space(ENTRY_LEN + DIRENT_LEN, name.len()).is_some_and(|()| {
            self.out.extend_from_slice(
                FixedReply::<ENTRY_LEN>::new().put_entry(attr, valid).as_bytes(),
            );
            self.append_dirent(attr.ino, next, attr.mode, name);
            true
        })
    }

    /// Adds an entry without attributes to a READDIRPLUS reply. The kernel looks the entry up at
    /// its first use.
    pub fn push_without_attr(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.check_space(ENTRY_LEN + DIRENT_LEN, name.len()).is_some_and(|()| {
            self.out.extend_from_slice(&[0; ENTRY_LEN]);
            self.append_dirent(ino, next, kind, name);
            true
        })
    }

    /// Returns the number of free bytes.
    pub fn free_bytes(&self) -> usize {
        self.room - self.out.len()
    }

    fn check_space(&self, head: usize, name: usize) -> Option<()> {
        ((head + name).next_multiple_of(8) <= self.free_bytes()).then_some(())
    }

    fn append_dirent(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) {
        let head = FixedReply::<DIRENT_LEN>::new()
            .put_u64(ino)
            .put_u64(next)
            .put_u32(name.len() as u32)
            .put_u32((kind & libc::S_IFMT) >> 12);
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(name);
        self.out.resize(self.out.len().next_multiple_of(8), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_lengths_of_the_kernel() {
        let (a, v) = (FuseAttr::default(), CacheTimeouts::default());
        assert_eq!(FixedReply::<512>::new().put_attr(&a).as_bytes().len(), 88);
        assert_eq!(FixedReply::<512>::new().put_entry(&a, &v).as_bytes().len(), 128);
        assert_eq!(FixedReply::<512>::new().put_open(&OpenReply::default()).as_bytes().len(), 16);
        assert_eq!(FixedReply::<512>::new().put_statx(&a).as_bytes().len(), 256);
    }

    #[test]
    fn a_directory_reply_is_filled_exactly_and_aligned() {
        let mut out = Vec::new();
        let mut dir = DirEntries::new(&mut out, 64);
        assert!(dir.push(2, 1, libc::S_IFDIR, b"."));
        assert!(dir.push(3, 2, libc::S_IFREG | 0o644, b"12345678"));
        assert_eq!(dir.free_bytes(), 0);
        assert!(!dir.push(4, 3, libc::S_IFREG, b"x"));
        assert_eq!(out.len(), 64);
        assert_eq!(out[20], (libc::S_IFDIR >> 12) as u8);
        assert_eq!(&out[56..64], b"12345678");
    }

    #[test]
    fn a_device_number_is_taken_apart_for_statx() {
        let a = FuseAttr { rdev: 8 << 8 | 1, ..FuseAttr::default() };
        let s = FixedReply::<256>::new().put_statx(&a);
        assert_eq!(&s.as_bytes()[128..132], &8u32.to_ne_bytes());
        assert_eq!(&s.as_bytes()[132..136], &1u32.to_ne_bytes());
    }
}
