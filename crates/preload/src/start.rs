//! Where the walk of a path starts: at a prefix, at the working directory or at an open directory.

use crate::place::{join, match_prefix, split_first};
use crate::raw;
use crate::settings::{Settings, settings};
use crate::table::file_of;
use crate::walk::{DirPosition, WalkStart};
use parking_lot::RwLock;
use std::ffi::{CString, c_int};
use std::os::fd::RawFd;
use tatami_wire::{Errno, InodeKind};

/// The working directory, while it is in the volume.
static CWD: RwLock<Option<DirPosition>> = RwLock::new(None);

/// Returns the working directory, if it is in the volume.
pub(crate) fn working_dir() -> Option<DirPosition> {
    CWD.read().clone()
}

/// Enters a directory of the volume, or leaves the volume.
///
/// In the volume the process is, for the kernel, in a directory that is removed: relative paths
/// that pass by this library fail there, and lead to no other file.
///
/// # Errors
/// The machine has no room for the directory.
pub(crate) fn set_working_dir(dir: Option<DirPosition>) -> Result<(), Errno> {
    let mut cwd = CWD.write();
    if dir.is_some() && cwd.is_none() && !is_nowhere() {
        enter_nowhere()?;
    }
    *cwd = dir;
    Ok(())
}

/// Returns whether the kernel's working directory is a removed one.
fn is_nowhere() -> bool {
    host_working_dir().is_none()
}

fn enter_nowhere() -> Result<(), Errno> {
    for place in [c"/dev/shm", c"/tmp", c"/var/tmp"] {
        let place = place.to_string_lossy();
        let name = format!("{place}/.tatami-{}-{}", std::process::id(), raw_thread_id());
        let Ok(path) = CString::new(name) else { continue };
        let path = path.as_ptr() as usize;
        let at = libc::AT_FDCWD as usize;
        if raw::call(libc::SYS_mkdirat, &[at, path, 0o700]) != 0 {
            continue;
        }
        let entered = raw::call(libc::SYS_chdir, &[path]) == 0;
        raw::call(libc::SYS_unlinkat, &[at, path, libc::AT_REMOVEDIR as usize]);
        if entered {
            return Ok(());
        }
    }
    Err(Errno::ENOSPC)
}

fn raw_thread_id() -> i64 {
    raw::call(libc::SYS_gettid, &[])
}

/// Returns the kernel's working directory; `None` where it has no path.
fn host_working_dir() -> Option<Vec<u8>> {
    let mut path = [0u8; libc::PATH_MAX as usize];
    let len = raw::call(libc::SYS_getcwd, &[path.as_mut_ptr() as usize, path.len()]);
    let len = usize::try_from(len).ok()?.checked_sub(1)?;
    path.get(..len).filter(|path| path.starts_with(b"/")).map(<[u8]>::to_vec)
}

/// Returns the path of a directory of the machine.
fn host_dir(fd: RawFd) -> Option<Vec<u8>> {
    let link = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let mut path = [0u8; libc::PATH_MAX as usize];
    let (link, room) = (link.as_ptr() as usize, path.as_mut_ptr() as usize);
    let args = [libc::AT_FDCWD as usize, link, room, path.len()];
    let len = usize::try_from(raw::call(libc::SYS_readlinkat, &args)).ok()?;
    Some(path[..len].to_vec())
}

fn match_settings(settings: &Settings, path: &[u8]) -> Option<WalkStart> {
    let found = match_prefix(&settings.prefixes, path)?;
    Some(WalkStart { dir: DirPosition::root(found.prefix), rest: found.rest.to_vec() })
}

/// Returns the position of an open directory of the volume.
pub(crate) fn position_of(fd: RawFd) -> Option<Result<DirPosition, Errno>> {
    let file = file_of(fd)?;
    if file.kind != InodeKind::Dir {
        return Some(Err(Errno::ENOTDIR));
    }
    let (path, prefix) = (file.path.clone(), file.prefix);
    Some(Ok(DirPosition { ino: file.ino, path, prefix, above: None }))
}

/// Returns where a path in the volume starts; `None` for a path of the machine.
///
/// # Errors
/// `ENOTDIR` for a path relative to a file.
pub(crate) fn find_start(dirfd: c_int, path: &[u8]) -> Result<Option<WalkStart>, Errno> {
    let Some(settings) = settings() else { return Ok(None) };
    if path.starts_with(b"/") {
        return Ok(match_settings(settings, path));
    }
    if path.is_empty() {
        return Ok(None);
    }
    if dirfd == libc::AT_FDCWD {
        if let Some(dir) = &*CWD.read() {
            return Ok(Some(WalkStart { dir: dir.clone(), rest: path.to_vec() }));
        }
        // The path may lead from a directory above the volume into it.
        if !may_enter(settings, path) {
            return Ok(None);
        }
        let here = host_working_dir();
        return Ok(here.and_then(|here| match_settings(settings, &join(&here, path))));
    }
    match position_of(dirfd) {
        Some(dir) => Ok(Some(WalkStart { dir: dir?, rest: path.to_vec() })),
        None if may_enter(settings, path) => {
            Ok(host_dir(dirfd).and_then(|dir| match_settings(settings, &join(&dir, path))))
        }
        None => Ok(None),
    }
}

/// Returns whether a relative path could lead into the volume: it begins with a name of a prefix,
/// or goes up.
fn may_enter(settings: &Settings, path: &[u8]) -> bool {
    let mut rest = path;
    while let Some((name, after)) = split_first(rest) {
        if name != b"." {
            return name == b".." || settings.prefixes.iter().flatten().any(|known| known == name);
        }
        rest = after;
    }
    false
}

/// Returns the open file of the volume that a path like `/dev/fd/3` names.
pub(crate) fn descriptor_path(path: &[u8]) -> Option<RawFd> {
    let number = match path {
        b"/dev/stdin" => 0,
        b"/dev/stdout" => 1,
        b"/dev/stderr" => 2,
        _ => {
            let rest =
                path.strip_prefix(b"/dev/fd/").or_else(|| path.strip_prefix(b"/proc/self/fd/"))?;
            std::str::from_utf8(rest).ok()?.parse().ok()?
        }
    };
    file_of(number).map(|_| number)
}

/// Keeps the lock of this file during a fork.
pub(crate) fn hold_for_fork() -> impl Sized {
    CWD.write()
}
