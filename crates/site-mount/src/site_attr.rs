//! Attributes of the other site as the kernel sees them. The user there is the mounting user here.

use rustix::fs::{major, minor};
use rustix::process::{getegid, geteuid};
use tatami_fuse::request::{FuseSetAttr, FuseSetTime};
use tatami_fuse::{FuseAttr, FuseTime};
use tatami_remote::{SiteAttr, SiteAttrSet, SiteTime};

/// Preferred size of a transfer, in bytes.
const TRANSFER: u32 = 128 << 10;

/// The users and groups of both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserMap {
    /// User and group there.
    there: (u32, u32),
    /// User and group here.
    here: (u32, u32),
}

impl UserMap {
    /// The user of this process stands for user and group `there`.
    pub(crate) fn for_this_process(uid: u32, gid: u32) -> UserMap {
        UserMap { there: (uid, gid), here: (geteuid().as_raw(), getegid().as_raw()) }
    }

    /// Returns attributes for the kernel, for inode number `ino`.
    pub(crate) fn attr_for_kernel(&self, ino: u64, attr: &SiteAttr) -> FuseAttr {
        let time = |(sec, nsec): (i64, u32)| FuseTime { sec, nsec: nsec.min(999_999_999) };
        let map = |id: u32, there: u32, here: u32| if id == there { here } else { id };
        FuseAttr {
            ino,
            // The kernel accepts no larger one.
            size: attr.size.min(i64::MAX as u64),
            blocks: attr.blocks,
            atime: time(attr.accessed),
            mtime: time(attr.modified),
            ctime: time(attr.changed),
            btime: time(attr.born),
            mode: attr.mode,
            nlink: attr.nlink,
            uid: map(attr.uid, self.there.0, self.here.0),
            gid: map(attr.gid, self.there.1, self.here.1),
            rdev: pack_device(attr.rdev),
            blksize: TRANSFER,
        }
    }

    /// Returns the changes of a request, but for the size.
    pub(crate) fn set_for_site(&self, set: &FuseSetAttr) -> SiteAttrSet {
        let time = |time: FuseSetTime| match time {
            FuseSetTime::Now => SiteTime::Now,
            FuseSetTime::At(at) => SiteTime::At(at.sec, at.nsec),
        };
        let map = |id: u32, there: u32, here: u32| if id == here { there } else { id };
        SiteAttrSet {
            size: set.size,
            mode: set.mode.map(|mode| mode & 0o7777),
            uid: set.uid.map(|uid| map(uid, self.there.0, self.here.0)),
            gid: set.gid.map(|gid| map(gid, self.there.1, self.here.1)),
            accessed: set.atime.map(time),
            modified: set.mtime.map(time),
        }
    }
}

/// Returns a device number as the kernel encodes it in 32 bits.
fn pack_device(device: u64) -> u32 {
    let (major, minor) = (major(device), minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Returns the device number of a request.
pub(crate) fn unpack_device(device: u32) -> u64 {
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
    rustix::fs::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_there_is_the_user_here_and_others_are_numbers() {
        let map = UserMap { there: (1000, 100), here: (7, 8) };
        let attr = SiteAttr { uid: 1000, gid: 5, ..SiteAttr::default() };
        let shown = map.attr_for_kernel(9, &attr);
        assert_eq!((shown.ino, shown.uid, shown.gid), (9, 7, 5));
        let set = FuseSetAttr { uid: Some(7), gid: Some(9), ..FuseSetAttr::default() };
        let set = map.set_for_site(&set);
        assert_eq!((set.uid, set.gid, set.mode), (Some(1000), Some(9), None));
    }

    #[test]
    fn device_numbers_survive_both_ways() {
        for device in [rustix::fs::makedev(8, 1), rustix::fs::makedev(259, 70_000)] {
            assert_eq!(unpack_device(pack_device(device)), device);
        }
    }
}
