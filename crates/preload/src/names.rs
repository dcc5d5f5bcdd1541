//! Operations on paths of the volume.

use crate::attributes::with_present_state;
use crate::closes;
use crate::files::{cut_data, may_access};
use crate::inside::Outcome;
use crate::session::{Session, cred, session};
use crate::start::find_start;
use crate::table;
use crate::umask;
use crate::walk::{
    EntryPlace, FoundInode, PathTarget, WalkEnd, WalkStart, find, forget_dirs, walk_path,
    with_fresh_dirs,
};
use std::ffi::{CString, c_int};
use std::sync::Arc;
use tatami_client::Removed;
use tatami_wire::meta::{InodeTemplate, RenameMode};
use tatami_wire::{Access, Attr, Cred, Errno, InodeKind, SetAttr, SetTime, Timestamp};

/// A path of the program, and the directory from which it starts.
#[derive(Clone, Copy)]
pub(crate) struct PathAt<'a> {
    pub(crate) dirfd: c_int,
    pub(crate) path: Option<&'a [u8]>,
}

/// Where a path leads: to the volume, or to the machine.
enum Side<T> {
    Volume(T),
    Pass,
    Host(CString),
}

impl PathAt<'_> {
    fn find_start(&self) -> Result<Option<WalkStart>, Errno> {
        self.path.map_or(Ok(None), |path| find_start(self.dirfd, path))
    }

    /// Runs `work` with the start of the walk, and again with fresh names of directories if it has
    /// failed with old ones.
    fn run_from_start<T>(
        &self,
        mut work: impl FnMut(&Arc<Session>, WalkStart) -> Result<Side<T>, Errno>,
    ) -> Result<Side<T>, Errno> {
        let Some(start) = self.find_start()? else { return Ok(Side::Pass) };
        let session = session()?;
        closes::send_old_closes(&session);
        let mut first = Some(start);
        with_fresh_dirs(|| {
            let again = || self.find_start();
            match first.take().map_or_else(again, |start| Ok(Some(start)))? {
                Some(start) => work(&session, start),
                None => Ok(Side::Pass),
            }
        })
    }

    /// Runs `work` with the end of the walk.
    fn at_end<T>(
        &self,
        mut work: impl FnMut(&Arc<Session>, WalkEnd) -> Result<T, Errno>,
    ) -> Result<Side<T>, Errno> {
        self.run_from_start(|session, start| match walk_path(session, start, &mut 0)? {
            WalkEnd::Host(path) => Ok(Side::Host(path)),
            end => work(session, end).map(Side::Volume),
        })
    }

    /// Runs `work` with the last name of the path. `busy` is the error for the root and for `.`.
    fn at_entry<T>(
        &self,
        busy: Errno,
        mut work: impl FnMut(&Arc<Session>, EntryPlace) -> Result<T, Errno>,
    ) -> Result<Side<T>, Errno> {
        self.at_end(|session, end| match end {
            WalkEnd::Entry(place) => work(session, place),
            _ => Err(busy),
        })
    }

    /// Runs `work` with the inode of the path.
    fn at_inode<T>(
        &self,
        follow: bool,
        mut work: impl FnMut(&Arc<Session>, FoundInode) -> Result<T, Errno>,
    ) -> Result<Side<T>, Errno> {
        self.run_from_start(|session, start| match find(session, start, follow)? {
            PathTarget::Host(path) => Ok(Side::Host(path)),
            PathTarget::Inode(found) => work(session, *found).map(Side::Volume),
        })
    }
}

impl<T> Side<T> {
    fn map<R>(self, done: impl FnOnce(T) -> R) -> Outcome<R> {
        match self {
            Side::Volume(value) => Outcome::Done(done(value)),
            Side::Pass => Outcome::Pass,
            Side::Host(path) => Outcome::PassAt(path),
        }
    }
}

/// Returns the attributes of a path, and the device of the volume.
pub(crate) fn stat_path(at: PathAt<'_>, follow: bool) -> Result<Outcome<(u64, Attr)>, Errno> {
    let found = at.at_inode(follow, |session, found| {
        Ok((session.device, with_present_state(session, found.attr)))
    })?;
    Ok(found.map(|found| found))
}

/// Returns the canonical path that the program sees.
pub(crate) fn canonical_path(at: PathAt<'_>) -> Result<Outcome<Vec<u8>>, Errno> {
    let found = at.at_inode(true, |_, found| Ok(found.as_position().program_path()))?;
    Ok(found.map(|path| path))
}

/// Returns a directory for the working directory, after a check of its permission.
pub(crate) fn find_dir(at: PathAt<'_>) -> Result<Outcome<crate::walk::DirPosition>, Errno> {
    let found = at.at_inode(true, |_, found| {
        if found.attr.kind != InodeKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        match may_access(&found.attr, &cred(), 1) {
            true => Ok(found.as_position()),
            false => Err(Errno::EACCES),
        }
    })?;
    Ok(found.map(|position| position))
}

/// Checks permissions as access(2) does; `real` is the real user instead of the effective one.
pub(crate) fn check_access(
    at: PathAt<'_>,
    mode: c_int,
    follow: bool,
    user: Cred,
) -> Result<Outcome<c_int>, Errno> {
    let checked = at.at_inode(follow, |_, found| {
        if mode & !7 != 0 {
            return Err(Errno::EINVAL);
        }
        match may_access(&found.attr, &user, mode as u16) {
            true => Ok(0),
            false => Err(Errno::EACCES),
        }
    })?;
    Ok(checked.map(|done| done))
}

/// Returns the target of a link.
pub(crate) fn read_link(at: PathAt<'_>) -> Result<Outcome<Vec<u8>>, Errno> {
    let read = at.at_inode(false, |session, found| match found.attr.kind {
        InodeKind::Symlink => session.client.readlink(&cred(), found.attr.ino),
        _ => Err(Errno::EINVAL),
    })?;
    Ok(read.map(|target| target))
}

/// Makes a directory, a link or a special file.
pub(crate) fn make_node(
    at: PathAt<'_>,
    node: &InodeTemplate,
    mode: u32,
) -> Result<Outcome<c_int>, Errno> {
    let is_dir = matches!(node, InodeTemplate::Dir);
    let made = at.at_entry(Errno::EEXIST, |session, place| {
        if place.must_be_dir && !is_dir {
            return Err(Errno::ENOENT);
        }
        let (mode, umask) = ((mode & 0o7777) as u16, umask::current() as u16);
        let (dir, name) = (place.dir.ino, &place.name);
        let mut node = node.clone();
        if let InodeTemplate::File(layout) = &mut node {
            *layout = session.client.new_layout();
        }
        session.client.create(&cred(), dir, name, node, mode, umask, true, None)?;
        Ok(0)
    })?;
    Ok(made.map(|done| done))
}

/// Returns the template for mknod(2).
pub(crate) fn node_template(mode: u32, rdev: u64) -> Result<InodeTemplate, Errno> {
    match InodeKind::from_mode(mode) {
        // The layout is chosen by the client.
        Some(InodeKind::File) => Ok(InodeTemplate::File(session()?.client.new_layout())),
        Some(InodeKind::Fifo) => Ok(InodeTemplate::Fifo),
        Some(InodeKind::Socket) => Ok(InodeTemplate::Socket),
        Some(InodeKind::CharDev) => Ok(InodeTemplate::CharDev(rdev)),
        Some(InodeKind::BlockDev) => Ok(InodeTemplate::BlockDev(rdev)),
        Some(InodeKind::Dir | InodeKind::Symlink) | None => Err(Errno::EINVAL),
    }
}

/// Ends the use of a removed inode at the shard, unless it is open here.
fn settle_removed(session: &Session, removed: Removed, kept: bool) {
    let Some(ino) = removed.ino.filter(|_| removed.last && kept) else { return };
    if !table::mark_kept(ino) {
        // If this request is lost, the inode is freed after the end of this client.
        let _ = session.client.release_inode(ino);
    }
}

/// Removes a name.
pub(crate) fn remove(at: PathAt<'_>, dir: bool) -> Result<Outcome<c_int>, Errno> {
    let busy = if dir { Errno::EBUSY } else { Errno::EISDIR };
    let removed = at.at_entry(busy, |session, place| {
        let (parent, name) = (place.dir.ino, &place.name);
        if dir {
            session.client.rmdir(&cred(), parent, name, false)?;
            forget_dirs();
            return Ok(0);
        }
        if place.must_be_dir {
            return Err(Errno::ENOTDIR);
        }
        let keep = table::has_placeholders();
        let removed = session.client.unlink(&cred(), parent, name, keep)?;
        settle_removed(session, removed, keep);
        Ok(0)
    })?;
    Ok(removed.map(|done| done))
}

/// What two paths lead to.
pub(crate) enum TwoPaths {
    Done,
    /// Neither is in the volume; paths that have led out are given.
    Pass(Option<CString>, Option<CString>),
}

/// Moves a name.
pub(crate) fn rename(
    from: PathAt<'_>,
    to: PathAt<'_>,
    mode: RenameMode,
) -> Result<TwoPaths, Errno> {
    with_two(from, to, |session, from, to| {
        // `a/` must be a directory, which only the shard finds out; the new name may end so, too.
        if from.must_be_dir || to.must_be_dir {
            let attr = session.client.lookup(&cred(), from.dir.ino, &from.name)?;
            if attr.kind != InodeKind::Dir {
                return Err(Errno::ENOTDIR);
            }
        }
        let keep = table::has_placeholders();
        let (old, new) = (from.dir.ino, to.dir.ino);
        let renamed = session.client.rename(&cred(), old, &from.name, new, &to.name, mode, keep)?;
        forget_dirs();
        settle_removed(session, renamed, keep);
        Ok(())
    })
}

fn with_two(
    from: PathAt<'_>,
    to: PathAt<'_>,
    mut work: impl FnMut(&Arc<Session>, &EntryPlace, &EntryPlace) -> Result<(), Errno>,
) -> Result<TwoPaths, Errno> {
    if from.find_start()?.is_none() && to.find_start()?.is_none() {
        return Ok(TwoPaths::Pass(None, None));
    }
    let session = session()?;
    closes::send_old_closes(&session);
    with_fresh_dirs(|| {
        let end = |at: &PathAt<'_>| match at.find_start()? {
            Some(start) => walk_path(&session, start, &mut 0).map(Some),
            None => Ok(None),
        };
        match (end(&from)?, end(&to)?) {
            (Some(WalkEnd::Entry(from)), Some(WalkEnd::Entry(to))) => {
                work(&session, &from, &to).map(|()| TwoPaths::Done)
            }
            (Some(WalkEnd::Dir(_)), Some(_)) | (Some(_), Some(WalkEnd::Dir(_))) => {
                Err(Errno::EBUSY)
            }
            (Some(WalkEnd::Host(from)), Some(WalkEnd::Host(to))) => {
                Ok(TwoPaths::Pass(Some(from), Some(to)))
            }
            (Some(WalkEnd::Host(from)), None) => Ok(TwoPaths::Pass(Some(from), None)),
            (None, Some(WalkEnd::Host(to))) => Ok(TwoPaths::Pass(None, Some(to))),
            _ => Err(Errno::EXDEV),
        }
    })
}

/// Gives an inode one more name.
pub(crate) fn link(from: PathAt<'_>, to: PathAt<'_>, follow: bool) -> Result<TwoPaths, Errno> {
    let source = from.at_inode(follow, |_, found| Ok(found.attr))?;
    let (Side::Volume(source), Some(_)) = (&source, to.find_start()?) else {
        return match (source, to.find_start()?) {
            (Side::Pass, None) => Ok(TwoPaths::Pass(None, None)),
            (Side::Host(path), None) => Ok(TwoPaths::Pass(Some(path), None)),
            _ => Err(Errno::EXDEV),
        };
    };
    if source.kind == InodeKind::Dir {
        return Err(Errno::EPERM);
    }
    let linked = to.at_entry(Errno::EEXIST, |session, place| {
        let (dir, name) = (place.dir.ino, &place.name);
        session.client.link(&cred(), source.ino, dir, name).map(drop)
    })?;
    match linked {
        Side::Volume(()) => Ok(TwoPaths::Done),
        Side::Pass | Side::Host(_) => Err(Errno::EXDEV),
    }
}

/// Changes attributes of a path, but not its size.
pub(crate) fn set_attrs(
    at: PathAt<'_>,
    set: &SetAttr,
    follow: bool,
) -> Result<Outcome<c_int>, Errno> {
    let done = at.at_inode(follow, |session, found| {
        if set.mode.is_some() && found.attr.kind == InodeKind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        set_inode_attrs(session, &found.attr, set).map(|()| 0)
    })?;
    Ok(done.map(|done| done))
}

/// Changes attributes of an inode, but not its size.
///
/// # Errors
/// Those of the shard.
pub(crate) fn set_inode_attrs(session: &Session, attr: &Attr, set: &SetAttr) -> Result<(), Errno> {
    let mut set = set.clone();
    // A time that is set overrides the writes before it.
    if set.mtime.is_some() && attr.kind == InodeKind::File {
        let written = table::writer_of(attr.ino)
            .filter(|(_, file)| !file.is_recorded())
            .and_then(|(fd, file)| crate::files::current_state(session, fd, &file).ok())
            .filter(|state| state.exists);
        let elsewhere = || session.client.fetch_change_time(attr);
        set.changed = written.map(|state| state.changed).or_else(elsewhere);
    }
    session.client.setattr(&cred(), attr.ino, set)?;
    if attr.kind == InodeKind::Dir {
        forget_dirs();
    }
    Ok(())
}

/// Cuts or extends the file of a path.
pub(crate) fn truncate(at: PathAt<'_>, size: i64) -> Result<Outcome<c_int>, Errno> {
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    let done = at.at_inode(true, |session, found| match found.attr.kind {
        InodeKind::Dir => Err(Errno::EISDIR),
        InodeKind::File => {
            let ino = found.attr.ino;
            closes::withdraw_close(ino);
            let (attr, cap) = session.client.open(&cred(), ino, Access::WRITE)?;
            let data = session.client.open_data(&attr, cap)?;
            let cut = cut_data(session, &data, ino, size);
            if table::writer_of(ino).is_none_or(|(_, file)| !file.is_registered()) {
                let _ = session.client.report_closed(vec![ino], Vec::new(), Vec::new());
            }
            cut.map(|_| 0)
        }
        _ => Err(Errno::EINVAL),
    })?;
    Ok(done.map(|done| done))
}

/// Converts times of utimensat(2): access and change.
///
/// # Errors
/// `EINVAL` for nanoseconds out of range.
pub(crate) fn to_set_times(times: Option<[libc::timespec; 2]>) -> Result<SetAttr, Errno> {
    let Some([atime, mtime]) = times else {
        let now = Some(SetTime::Now);
        return Ok(SetAttr { atime: now, mtime: now, ..SetAttr::default() });
    };
    let convert = |t: libc::timespec| match t.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nsec if (0..1_000_000_000).contains(&nsec) => {
            Ok(Some(SetTime::At(Timestamp { sec: t.tv_sec, nsec: nsec as u32 })))
        }
        _ => Err(Errno::EINVAL),
    };
    Ok(SetAttr { atime: convert(atime)?, mtime: convert(mtime)?, ..SetAttr::default() })
}

/// Runs `work` with the session and the inode number of a path.
pub(crate) fn with_inode<T>(
    at: PathAt<'_>,
    follow: bool,
    mut work: impl FnMut(&Session, &Attr) -> Result<T, Errno>,
) -> Result<Outcome<T>, Errno> {
    let done = at.at_inode(follow, |session, found| work(session, &found.attr))?;
    Ok(done.map(|done| done))
}
