//! Conversion of attributes between the volume and the kernel.

use tatami_fuse::request::{FuseSetAttr, FuseSetTime};
use tatami_fuse::{FuseAttr, FuseTime};
use tatami_wire::meta::RenameMode;
use tatami_wire::{Attr, Errno, SetAttr, SetTime, Timestamp};

/// Preferred size of a transfer, in bytes: the size of a page.
const BLOCK_SIZE: u32 = 4096;

fn to_fuse_time(t: Timestamp) -> FuseTime {
    FuseTime { sec: t.sec, nsec: t.nsec }
}

/// Converts attributes for the kernel.
pub(crate) fn to_fuse_attr(a: &Attr) -> FuseAttr {
    FuseAttr {
        ino: a.ino.0,
        size: a.size.min(tatami_wire::FILE_SIZE_MAX),
        blocks: a.blocks,
        atime: to_fuse_time(a.atime),
        mtime: to_fuse_time(a.mtime),
        ctime: to_fuse_time(a.ctime),
        btime: to_fuse_time(a.btime),
        mode: a.st_mode(),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        // The kernel's 32-bit form has the same bits in the same places.
        rdev: a.rdev as u32,
        blksize: BLOCK_SIZE,
    }
}

fn from_fuse_set_time(t: FuseSetTime) -> SetTime {
    match t {
        FuseSetTime::Now => SetTime::Now,
        FuseSetTime::At(t) => SetTime::At(Timestamp { sec: t.sec, nsec: t.nsec }),
    }
}

/// Converts a change by the kernel, without the size.
pub(crate) fn from_fuse_set_attr(s: &FuseSetAttr) -> SetAttr {
    SetAttr {
        mode: s.mode.map(|m| (m & 0o7777) as u16),
        uid: s.uid,
        gid: s.gid,
        atime: s.atime.map(from_fuse_set_time),
        mtime: s.mtime.map(from_fuse_set_time),
        ..SetAttr::default()
    }
}

/// Returns `mode` after a write by an ordinary user: without setuid, and without setgid if the
/// group has execute permission. (Otherwise setgid means mandatory locking.)
pub(crate) fn without_suid(mode: u16) -> u16 {
    let sgid = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | sgid)
}

/// Converts the flags of renameat2(2).
///
/// # Errors
/// `EINVAL` for whiteouts, which only overlayfs uses, and for contradictory flags.
pub(crate) fn parse_rename_flags(flags: u32) -> Result<RenameMode, Errno> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_takes_setuid_away_but_leaves_mandatory_locking() {
        assert_eq!(without_suid(0o6755), 0o755);
        assert_eq!(without_suid(0o2644), 0o2644);
        assert_eq!(without_suid(0o4644), 0o644);
        assert_eq!(without_suid(0o1755), 0o1755);
    }

    #[test]
    fn rename_flags_exclude_each_other() {
        assert_eq!(parse_rename_flags(0), Ok(RenameMode::Replace));
        assert_eq!(parse_rename_flags(libc::RENAME_EXCHANGE), Ok(RenameMode::Exchange));
        assert_eq!(parse_rename_flags(libc::RENAME_WHITEOUT), Err(Errno::EINVAL));
        assert_eq!(
            parse_rename_flags(libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE),
            Err(Errno::EINVAL)
        );
    }
}
