//! How far memory and locks reach on a file system.
//!
//! Where several machines have it, what one stores into a mapped file is not
//! seen by another, and a lock (flock) may be known to one machine alone: on
//! FUSE file systems as Gfarm's it is, on Lustre it depends on how it was mounted.

use crate::machine;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// Of one file system, on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Other machines may have it, too.
    pub remote: bool,
    /// What processes of this machine store into mapped files they see of each other.
    pub maps: bool,
    /// A number of this machine and this mount: who has the same one shares its locks.
    pub here: u32,
}

const FUSE: u64 = 0x6573_5546;
/// Magic numbers of statfs(2): NFS, Lustre, FUSE, CIFS, SMB2, GPFS, BeeGFS, Ceph, 9P, OCFS2, GFS2.
const REMOTE: [u64; 11] = [
    0x6969,
    0x0bd0_0bd0,
    FUSE,
    0xff53_4d42,
    0xfe53_4d42,
    0x4750_4653,
    0x1983_0326,
    0x00c3_6400,
    0x0102_1997,
    0x7461_636f,
    0x0116_1970,
];

/// That of the file system on which `file` is. One that does not tell is a local one.
pub fn of(file: impl AsFd) -> Reach {
    let magic = rustix::fs::fstatfs(&file).map_or(0, |found| found.f_type as u64 & 0xffff_ffff);
    let device = rustix::fs::fstat(&file).map_or(0, |found| found.st_dev);
    Reach {
        remote: REMOTE.contains(&magic),
        // Its server may tell the size late, and a store past it is a signal instead of an error.
        maps: magic != FUSE,
        here: crc32c::crc32c_append(machine::id(), &device.to_le_bytes()).max(1),
    }
}

/// Does the error say that the file system has no locks?
pub fn has_no_locks(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK)
}

/// Does the error say that a file that was open is no more? Where a server
/// does not keep what has no name, that is told by the next read.
pub fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE)
}
