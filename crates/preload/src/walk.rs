//! Walks a path through the volume, name by name.
//!
//! The client of a program has no delegations, because it has no thread to give them back. So it
//! keeps the names of directories for [`DIR_MEMORY`] only, and forgets them when it starts or
//! awaits another process.

use crate::place::{join, match_prefix, split_first};
use crate::session::{Session, cred};
use crate::settings::settings;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CString;
use tatami_wire::{Attr, Errno, Ino, InodeKind, NAME_MAX, PATH_MAX};

/// How long a name of a directory is used without asking for it again, in milliseconds.
const DIR_MEMORY: u64 = 50;
/// Most remembered names of directories.
const DIRS_MAX: usize = 1024;
/// Most symbolic links of one path, as in Linux.
const LINKS_MAX: usize = 40;
/// After an error, names that were learned longer ago than this time are asked for again, in
/// milliseconds.
const SURE: u64 = 8;

/// A directory of the volume, and how it was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirPosition {
    pub(crate) ino: Ino,
    /// The path from the root of the volume, empty for the root.
    pub(crate) path: Vec<u8>,
    /// The number of the prefix by which the program came.
    pub(crate) prefix: usize,
    /// The directories above, from the root on, if they are known.
    pub(crate) above: Option<Vec<Ino>>,
}

impl DirPosition {
    pub(crate) fn root(prefix: usize) -> DirPosition {
        DirPosition { ino: Ino::ROOT, path: Vec::new(), prefix, above: Some(Vec::new()) }
    }

    fn child(&self, name: &[u8], ino: Ino) -> DirPosition {
        let above = self.above.as_ref().map(|above| {
            let mut above = above.clone();
            above.push(self.ino);
            above
        });
        DirPosition { ino, path: join_volume(&self.path, name), prefix: self.prefix, above }
    }

    /// Returns the path as the program sees it.
    pub(crate) fn program_path(&self) -> Vec<u8> {
        program_path(self.prefix, &self.path)
    }
}

/// Returns the path in the volume of a name in a directory.
pub(crate) fn join_volume(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

/// Returns a path of the volume as the program sees it.
pub(crate) fn program_path(prefix: usize, path: &[u8]) -> Vec<u8> {
    let mut whole = settings().map(|settings| settings.prefix_path(prefix)).unwrap_or_default();
    whole.extend_from_slice(path);
    whole
}

/// A directory and the path from there.
#[derive(Debug)]
pub(crate) struct WalkStart {
    pub(crate) dir: DirPosition,
    pub(crate) rest: Vec<u8>,
}

/// A name in a directory, which was not looked up.
#[derive(Debug)]
pub(crate) struct EntryPlace {
    pub(crate) dir: DirPosition,
    pub(crate) name: Vec<u8>,
    /// The path ends with a slash.
    pub(crate) must_be_dir: bool,
}

/// Where a path ends.
#[derive(Debug)]
pub(crate) enum WalkEnd {
    /// Outside of the volume, at this path of the machine.
    Host(CString),
    /// At a directory that the walk has passed: the root, `.` or `..`.
    Dir(DirPosition),
    Entry(EntryPlace),
}

/// An inode that was found.
#[derive(Debug)]
pub(crate) struct FoundInode {
    pub(crate) attr: Attr,
    /// The directory with its name, and the name; for a directory that the walk has passed itself
    /// only its position.
    pub(crate) entry: Option<(DirPosition, Vec<u8>)>,
    pub(crate) position: Option<DirPosition>,
}

impl FoundInode {
    /// Returns the directory as a place to start from.
    pub(crate) fn as_position(&self) -> DirPosition {
        match (&self.position, &self.entry) {
            (Some(position), _) => position.clone(),
            (None, Some((dir, name))) => dir.child(name, self.attr.ino),
            (None, None) => DirPosition::root(0),
        }
    }
}

/// What a path leads to.
#[derive(Debug)]
pub(crate) enum PathTarget {
    Host(CString),
    Inode(Box<FoundInode>),
}

type DirNames = HashMap<(Ino, Vec<u8>), (Ino, u64)>;

static DIRS: Mutex<Option<DirNames>> = Mutex::new(None);

thread_local! {
    /// The walk has used a name that was learned some time ago.
    static USED_OLD: Cell<bool> = const { Cell::new(false) };
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

fn known_dir(dir: Ino, name: &[u8]) -> Option<Ino> {
    let mut dirs = DIRS.lock();
    let (ino, learned) = *dirs.as_mut()?.get(&(dir, name.to_vec()))?;
    let age = now().saturating_sub(learned);
    if age > DIR_MEMORY {
        return None;
    }
    if age > SURE {
        USED_OLD.set(true);
    }
    Some(ino)
}

fn record_dir(dir: Ino, name: &[u8], ino: Ino) {
    let mut dirs = DIRS.lock();
    let dirs = dirs.get_or_insert_default();
    if dirs.len() >= DIRS_MAX {
        dirs.clear();
    }
    dirs.insert((dir, name.to_vec()), (ino, now()));
}

/// Forgets all names of directories.
pub(crate) fn forget_dirs() {
    if let Some(dirs) = &mut *DIRS.lock() {
        dirs.clear();
    }
}

/// Keeps the lock of this file during a fork.
pub(crate) fn hold_for_fork() -> impl Sized {
    DIRS.lock()
}

/// Runs an operation on a path. If it fails after the walk has used a name of a directory that was
/// learned some time ago, it runs once more with fresh names.
pub(crate) fn with_fresh_dirs<T>(mut work: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    USED_OLD.set(false);
    let first = work();
    let result = match first {
        Err(Errno::ESTALE | Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) if USED_OLD.get() => {
            forget_dirs();
            work()
        }
        Err(Errno::ESTALE) => {
            forget_dirs();
            work()
        }
        other => other,
    };
    match result {
        Err(Errno::ESTALE) => Err(Errno::ENOENT),
        other => other,
    }
}

/// A step of a walk.
enum WalkStep {
    Continue(WalkStart),
    End(WalkEnd),
}

/// Returns the parent directory of a position; `None` at the root.
fn parent_of(session: &Session, dir: &DirPosition) -> Result<Option<DirPosition>, Errno> {
    if dir.ino == Ino::ROOT {
        return Ok(None);
    }
    let cut = dir.path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    let path = dir.path[..cut].to_vec();
    let (ino, above) = match &dir.above {
        Some(above) => {
            let mut above = above.clone();
            (above.pop().unwrap_or(Ino::ROOT), Some(above))
        }
        None => {
            let listing = session.client.read_dir(&cred(), dir.ino, 0, 1, false)?;
            (listing.parent, None)
        }
    };
    Ok(Some(DirPosition { ino, path, prefix: dir.prefix, above }))
}

/// Returns where a path goes on after a symbolic link in `dir`.
fn follow_link(dir: &DirPosition, target: &[u8], rest: &[u8]) -> Result<WalkStep, Errno> {
    let whole = if rest.is_empty() { target.to_vec() } else { join(target, rest) };
    if whole.len() > PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if !target.starts_with(b"/") {
        return Ok(WalkStep::Continue(WalkStart { dir: dir.clone(), rest: whole }));
    }
    let prefixes = settings().map(|s| s.prefixes.as_slice()).unwrap_or_default();
    match match_prefix(prefixes, &whole) {
        Some(found) => Ok(WalkStep::Continue(WalkStart {
            dir: DirPosition::root(found.prefix),
            rest: found.rest.to_vec(),
        })),
        None => Ok(WalkStep::End(WalkEnd::Host(host_path(whole)?))),
    }
}

fn host_path(path: Vec<u8>) -> Result<CString, Errno> {
    CString::new(path).map_err(|_| Errno::EINVAL)
}

/// Returns the path of the machine for a path that has left the volume by its root.
fn leave_root(prefix: usize, rest: &[u8]) -> Result<WalkEnd, Errno> {
    let root = program_path(prefix, b"");
    let cut = root.iter().rposition(|b| *b == b'/').unwrap_or(0);
    let above = if cut == 0 { &b"/"[..] } else { &root[..cut] };
    let path = join(above, rest);
    // The rest may lead into the volume again.
    Ok(WalkEnd::Host(host_path(path)?))
}

/// Walks to the last name, and follows symbolic links before it.
pub(crate) fn walk_path(
    session: &Session,
    start: WalkStart,
    links: &mut usize,
) -> Result<WalkEnd, Errno> {
    let WalkStart { mut dir, mut rest } = start;
    if rest.len() > PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    loop {
        let Some((name, after)) = split_first(&rest) else { return Ok(WalkEnd::Dir(dir)) };
        if name == b"." {
            rest = after.to_vec();
            continue;
        }
        if name == b".." {
            match parent_of(session, &dir)? {
                Some(parent) => dir = parent,
                None => {
                    let left = leave_root(dir.prefix, after)?;
                    let WalkEnd::Host(path) = &left else { return Ok(left) };
                    let prefixes = settings().map(|s| s.prefixes.as_slice()).unwrap_or_default();
                    let Some(again) = match_prefix(prefixes, path.as_bytes()) else {
                        return Ok(left);
                    };
                    dir = DirPosition::root(again.prefix);
                    rest = again.rest.to_vec();
                    continue;
                }
            }
            rest = after.to_vec();
            continue;
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if split_first(after).is_none() {
            let must_be_dir = !after.is_empty();
            return Ok(WalkEnd::Entry(EntryPlace { dir, name: name.to_vec(), must_be_dir }));
        }
        if let Some(ino) = known_dir(dir.ino, name) {
            dir = dir.child(name, ino);
            rest = after.to_vec();
            continue;
        }
        let attr = session.client.lookup(&cred(), dir.ino, name)?;
        match attr.kind {
            InodeKind::Dir => {
                record_dir(dir.ino, name, attr.ino);
                dir = dir.child(name, attr.ino);
                rest = after.to_vec();
            }
            InodeKind::Symlink => {
                count_link(links)?;
                let target = session.client.readlink(&cred(), attr.ino)?;
                match follow_link(&dir, &target, after)? {
                    WalkStep::Continue(next) => (dir, rest) = (next.dir, next.rest),
                    WalkStep::End(end) => return Ok(end),
                }
            }
            _ => return Err(Errno::ENOTDIR),
        }
    }
}

fn count_link(links: &mut usize) -> Result<(), Errno> {
    *links += 1;
    if *links > LINKS_MAX { Err(Errno::ELOOP) } else { Ok(()) }
}

/// Follows a symbolic link that is the last name of a path.
pub(crate) fn follow_last(
    session: &Session,
    place: &EntryPlace,
    link: Ino,
    links: &mut usize,
) -> Result<WalkEnd, Errno> {
    count_link(links)?;
    let target = session.client.readlink(&cred(), link)?;
    let rest: &[u8] = if place.must_be_dir { b"/" } else { b"" };
    match follow_link(&place.dir, &target, rest)? {
        WalkStep::Continue(next) => walk_path(session, next, links),
        WalkStep::End(end) => Ok(end),
    }
}

/// Finds the inode of a path; that of a final link's target with `follow`.
pub(crate) fn find(session: &Session, start: WalkStart, follow: bool) -> Result<PathTarget, Errno> {
    let mut links = 0;
    let end = walk_path(session, start, &mut links)?;
    find_from(session, end, follow, links)
}

/// As [`find`], from the end of a walk.
pub(crate) fn find_from(
    session: &Session,
    mut end: WalkEnd,
    follow: bool,
    mut links: usize,
) -> Result<PathTarget, Errno> {
    loop {
        let place = match end {
            WalkEnd::Host(path) => return Ok(PathTarget::Host(path)),
            WalkEnd::Dir(position) => {
                let attr = session.client.getattr(&cred(), position.ino)?;
                let position = Some(position);
                return Ok(PathTarget::Inode(Box::new(FoundInode { attr, entry: None, position })));
            }
            WalkEnd::Entry(place) => place,
        };
        let attr = session.client.lookup(&cred(), place.dir.ino, &place.name)?;
        if attr.kind == InodeKind::Symlink && (follow || place.must_be_dir) {
            end = follow_last(session, &place, attr.ino, &mut links)?;
            continue;
        }
        if place.must_be_dir && attr.kind != InodeKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let entry = Some((place.dir, place.name));
        return Ok(PathTarget::Inode(Box::new(FoundInode { attr, entry, position: None })));
    }
}
