//! Attributes of files, in the forms of stat(2), statx(2) and statfs(2).

use crate::files::{current_state, data_of, native_state};
use crate::session::{Session, cred};
use crate::table::{ProgramFile, writer_of};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use tatami_client::{VolumeSpace, merge_object_state};
use tatami_wire::{Attr, Errno, InodeKind, NAME_MAX, Timestamp};

/// Preferred size of a transfer, in bytes.
const BLOCK: i64 = 1 << 16;
/// Unit of space in statfs(2), in bytes.
const SPACE_UNIT: u64 = 4096;
/// `TTMI`, as the type of the file system.
const MAGIC: i64 = 0x5454_4d49;

/// Returns attributes with what this process, or another one, has written meanwhile.
pub(crate) fn with_present_state(session: &Session, attr: Attr) -> Attr {
    if attr.kind != InodeKind::File {
        return attr;
    }
    if let Some((fd, file)) = writer_of(attr.ino)
        && (file.is_native.load(Relaxed) || file.data.lock().is_some() && !file.is_recorded())
        && let Ok(state) = current_state(session, fd, &file)
    {
        return merge_object_state(attr, &state);
    }
    if attr.maybe_written_elsewhere { session.client.refresh_written_attr(attr) } else { attr }
}

/// Returns the attributes of an open file, also after its last name was removed.
///
/// # Errors
/// Those of fstat(2).
pub(crate) fn attr_of_file(
    session: &Session,
    fd: RawFd,
    file: &ProgramFile,
) -> Result<Attr, Errno> {
    match session.client.getattr(&cred(), file.ino) {
        Ok(attr) => Ok(with_present_state(session, attr)),
        Err(Errno::ESTALE | Errno::ENOENT) if file.kind == InodeKind::File => {
            let opened = file.opened.lock().clone();
            let (mut attr, _) = opened.ok_or(Errno::ESTALE)?;
            let state = match file.is_native.load(Relaxed) {
                true => native_state(fd)?,
                false => data_of(session, file)?.stat()?,
            };
            attr = merge_object_state(attr, &state);
            attr.nlink = 0;
            Ok(attr)
        }
        Err(e) => Err(e),
    }
}

/// Converts attributes to those of stat(2).
pub(crate) fn to_stat(device: u64, attr: &Attr) -> libc::stat {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = device;
    stat.st_ino = attr.ino.0;
    stat.st_nlink = attr.nlink.into();
    stat.st_mode = attr.st_mode();
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_rdev = attr.rdev;
    stat.st_size = attr.size as i64;
    stat.st_blksize = BLOCK as _;
    stat.st_blocks = attr.blocks as i64;
    (stat.st_atime, stat.st_atime_nsec) = (attr.atime.sec, attr.atime.nsec.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (attr.mtime.sec, attr.mtime.nsec.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (attr.ctime.sec, attr.ctime.nsec.into());
    stat
}

fn to_statx_time(t: Timestamp) -> libc::statx_timestamp {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
    (time.tv_sec, time.tv_nsec) = (t.sec, t.nsec);
    time
}

/// Converts attributes to those of statx(2).
pub(crate) fn to_statx(device: u64, attr: &Attr) -> libc::statx {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    stat.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    stat.stx_blksize = BLOCK as u32;
    stat.stx_nlink = attr.nlink;
    stat.stx_uid = attr.uid;
    stat.stx_gid = attr.gid;
    stat.stx_mode = attr.st_mode() as u16;
    stat.stx_ino = attr.ino.0;
    stat.stx_size = attr.size;
    stat.stx_blocks = attr.blocks;
    stat.stx_atime = to_statx_time(attr.atime);
    stat.stx_btime = to_statx_time(attr.btime);
    stat.stx_ctime = to_statx_time(attr.ctime);
    stat.stx_mtime = to_statx_time(attr.mtime);
    (stat.stx_dev_major, stat.stx_dev_minor) = (libc::major(device), libc::minor(device));
    (stat.stx_rdev_major, stat.stx_rdev_minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
    stat
}

/// Converts the space of the volume to that of statfs(2).
pub(crate) fn to_statfs(space: &VolumeSpace) -> libc::statfs {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    stat.f_type = MAGIC as _;
    stat.f_bsize = SPACE_UNIT as _;
    stat.f_frsize = SPACE_UNIT as _;
    stat.f_blocks = space.total / SPACE_UNIT;
    stat.f_bfree = space.free / SPACE_UNIT;
    stat.f_bavail = space.available / SPACE_UNIT;
    stat.f_files = space.inodes;
    stat.f_namelen = NAME_MAX as _;
    stat
}

/// Converts the space of the volume to that of statvfs(3).
pub(crate) fn to_statvfs(space: &VolumeSpace) -> libc::statvfs {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    (stat.f_bsize, stat.f_frsize) = (SPACE_UNIT, SPACE_UNIT);
    stat.f_blocks = space.total / SPACE_UNIT;
    stat.f_bfree = space.free / SPACE_UNIT;
    stat.f_bavail = space.available / SPACE_UNIT;
    stat.f_files = space.inodes;
    stat.f_namemax = NAME_MAX as u64;
    stat
}
