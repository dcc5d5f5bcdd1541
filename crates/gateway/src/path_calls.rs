//! Calls on names: attributes, listings, directories and links.

use crate::refusal::refuse;
use rustix::fs::{
    AtFlags, CWD, Dir, Gid, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps,
    Uid, makedev, openat, readlinkat, statx,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tatami_remote::{RemoteFailure, RemoteReply, SiteAttr, SiteChange, SiteEntry};

/// Most entries of a piece of a listing.
const PIECE_ENTRIES: usize = 2000;
/// About the most bytes of a piece, far below the most of a frame.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes of an entry without its name and target, at most.
const ENTRY_BYTES: usize = 160;

/// Returns a failed system call as the reply to a call.
pub(crate) fn failed(errno: Errno) -> RemoteFailure {
    refuse(errno, &std::io::Error::from(errno).to_string())
}

fn attr_of(s: &Statx) -> SiteAttr {
    let time = |t: StatxTimestamp| (t.tv_sec, t.tv_nsec);
    SiteAttr {
        dev: makedev(s.stx_dev_major, s.stx_dev_minor),
        ino: s.stx_ino,
        mode: u32::from(s.stx_mode),
        nlink: s.stx_nlink,
        uid: s.stx_uid,
        gid: s.stx_gid,
        rdev: makedev(s.stx_rdev_major, s.stx_rdev_minor),
        size: s.stx_size,
        blocks: s.stx_blocks,
        accessed: time(s.stx_atime),
        modified: time(s.stx_mtime),
        changed: time(s.stx_ctime),
        born: time(s.stx_btime),
    }
}

/// Returns the attributes of `path`, which may be relative to a directory.
pub(crate) fn read_attr(at: impl AsFd, path: &Path, follow: bool) -> Result<SiteAttr, Errno> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let found = statx(at, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    Ok(attr_of(&found))
}

/// Returns the attributes of an open file.
pub(crate) fn attr_of_file(file: impl AsFd) -> Result<SiteAttr, Errno> {
    let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(attr_of(&statx(file, c"", AtFlags::EMPTY_PATH, what)?))
}

pub(crate) fn is_kind(attr: &SiteAttr, kind: rustix::fs::FileType) -> bool {
    rustix::fs::FileType::from_raw_mode(attr.mode) == kind
}

pub(crate) fn read_entry(at: impl AsFd, path: &Path, follow: bool) -> Result<SiteEntry, Errno> {
    let attr = read_attr(&at, path, follow)?;
    let target = match is_kind(&attr, rustix::fs::FileType::Symlink) {
        // A link that may not be read has no target to show.
        true => readlinkat(&at, path, Vec::new()).ok().map(|target| target.into_bytes().into()),
        false => None,
    };
    Ok(SiteEntry { name: Vec::new().into(), attr, target })
}

pub(crate) fn look_at(path: &Path, follow: bool) -> Result<SiteEntry, RemoteFailure> {
    read_entry(CWD, path, follow).map_err(failed)
}

/// A listing of which some pieces have been sent.
pub(crate) struct SiteListing {
    number: u64,
    next: u32,
    fd: OwnedFd,
    dir: Dir,
}

/// Opens a directory, or a link to one if `follow` is set.
pub(crate) fn open_dir(at: impl AsFd, path: &Path, follow: bool) -> Result<(OwnedFd, Dir), Errno> {
    let link = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | link;
    let fd = openat(at, path, flags, Mode::empty())?;
    let dir = Dir::read_from(&fd)?;
    Ok((fd, dir))
}

/// Lists piece `piece`. `known` is the listing of the pieces before.
pub(crate) fn list_piece(
    known: Option<SiteListing>,
    path: &Path,
    number: u64,
    piece: u32,
) -> Result<(RemoteReply, Option<SiteListing>), RemoteFailure> {
    let known = known.filter(|known| known.number == number && known.next == piece);
    let mut listing = match (known, piece) {
        (_, 0) => {
            let (fd, dir) = open_dir(CWD, path, true).map_err(failed)?;
            SiteListing { number, next: 0, fd, dir }
        }
        (Some(known), _) => known,
        (None, _) => return Err(refuse(Errno::STALE, "the listing is not known")),
    };
    let (entries, is_last) = listing.read_piece()?;
    Ok((RemoteReply::Entries { entries, is_last }, (!is_last).then_some(listing)))
}

impl SiteListing {
    /// Begins listing `number` of a directory.
    pub(crate) fn begin(at: impl AsFd, path: &Path, number: u64) -> Result<SiteListing, Errno> {
        let (fd, dir) = open_dir(at, path, false)?;
        Ok(SiteListing { number, next: 0, fd, dir })
    }

    /// Returns the number of the next piece.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Returns the next entries, and whether they are the last ones.
    pub(crate) fn read_piece(&mut self) -> Result<(Vec<SiteEntry>, bool), RemoteFailure> {
        self.next += 1;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < PIECE_ENTRIES && bytes < PIECE_BYTES {
            let Some(found) = self.dir.read() else {
                return Ok((entries, true));
            };
            let name = found.map_err(failed)?.file_name().to_bytes().to_vec();
            if matches!(name.as_slice(), b"." | b"..") {
                continue;
            }
            match read_entry(&self.fd, Path::new(OsStr::from_bytes(&name)), false) {
                Ok(entry) => {
                    let target = entry.target.as_ref().map_or(0, |target| target.len());
                    bytes += ENTRY_BYTES + name.len() + target;
                    entries.push(SiteEntry { name: name.into(), ..entry });
                }
                // Removed since.
                Err(Errno::NOENT) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok((entries, false))
    }
}

pub(crate) fn make_dir(path: &Path, mode: u32, is_exact: bool) -> Result<(), RemoteFailure> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    rustix::fs::mkdir(path, mode).map_err(failed)?;
    match is_exact {
        true => rustix::fs::chmod(path, mode).map_err(failed),
        false => Ok(()),
    }
}

pub(crate) fn make_link(path: &Path, target: &Path) -> Result<(), RemoteFailure> {
    rustix::fs::symlink(target, path).map_err(failed)
}

pub(crate) fn remove_dir(path: &Path) -> Result<(), RemoteFailure> {
    rustix::fs::rmdir(path).map_err(failed)
}

/// Returns the times for utimensat(2): the last access stays.
fn times_of((tv_sec, nsec): (i64, u32)) -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let modified = Timespec { tv_sec, tv_nsec: i64::from(nsec) };
    Timestamps { last_access: omit, last_modification: modified }
}

pub(crate) fn change_attrs(path: &Path, change: SiteChange) -> Result<(), RemoteFailure> {
    if let Some(mode) = change.mode {
        rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777)).map_err(failed)?;
    }
    if let Some(modified) = change.modified {
        let flags = AtFlags::empty();
        rustix::fs::utimensat(CWD, path, &times_of(modified), flags).map_err(failed)?;
    }
    Ok(())
}

/// As [`change`], for an open file, which gets an owner first: a change of it clears special bits.
pub(crate) fn change_file(
    file: impl AsFd,
    owner: Option<(u32, u32)>,
    change: SiteChange,
) -> Result<(), Errno> {
    if let Some((uid, gid)) = owner {
        rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    if let Some(mode) = change.mode {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777))?;
    }
    match change.modified {
        Some(modified) => rustix::fs::futimens(&file, &times_of(modified)),
        None => Ok(()),
    }
}
