//! How far shared memory and locks reach on a file system.
//!
//! Where several machines mount it, a machine does not see the stores of another one into a mapped
//! file, and a lock (flock) may be known to one machine alone. That is so on FUSE file systems like
//! Gfarm; on Lustre it depends on the mount options.

use crate::machine;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// The reach on one file system, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingScope {
    /// Other machines may mount it, too.
    pub remote: bool,
    /// Processes of this machine see each other's stores into mapped files.
    pub shares_maps: bool,
    /// A number of this machine and this mount: processes with the same number share locks.
    pub lock_domain: u32,
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

/// Determines the reach on the file system of `file`. An unknown file system counts as local.
pub fn detect_scope(file: impl AsFd) -> SharingScope {
    let magic = rustix::fs::fstatfs(&file).map_or(0, |found| found.f_type as u64 & 0xffff_ffff);
    let device = rustix::fs::fstat(&file).map_or(0, |found| found.st_dev);
    SharingScope {
        remote: REMOTE.contains(&magic),
        // A FUSE server may report the size late, and a store past it is a signal instead of an
        // error.
        shares_maps: magic != FUSE,
        lock_domain: crc32c::crc32c_append(machine::machine_id(), &device.to_le_bytes()).max(1),
    }
}

/// Reports whether the error means that the file system has no locks.
pub fn has_no_locks(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK)
}

/// Reports whether the error means that an open file is gone. Some servers do not keep a file
/// without a name; then the next read returns such an error.
pub fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE)
}
