//! stat(2), access(2), chmod(2) and their relatives.

use crate::attributes::{attr_of_file, to_stat, to_statfs, to_statvfs, to_statx};
use crate::export::c_functions;
use crate::inside::{FailedResult, Outcome, route};
use crate::names::{
    PathAt, check_access, set_attrs, set_inode_attrs, stat_path, to_set_times,
    truncate as cut_path, with_inode,
};
use crate::raw::{self, ProgramText, load, store};
use crate::session::{cred, session};
use crate::table::file_of;
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, gid_t, mode_t, uid_t};
use std::ffi::{CStr, c_char, c_int, c_uint};
use tatami_wire::{Attr, Cred, Errno, SetAttr};

/// Returns the attributes of an open file, and the device of the volume.
fn attr_of(fd: c_int) -> Result<Outcome<(u64, Attr)>, Errno> {
    let Some(file) = file_of(fd) else { return Ok(Outcome::Pass) };
    let session = session()?;
    let attr = attr_of_file(&session, fd, &file)?;
    Ok(Outcome::Done((session.device, attr)))
}

fn attr_at(dirfd: c_int, path: ProgramText, flags: c_int) -> Result<Outcome<(u64, Attr)>, Errno> {
    let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
    match path.bytes() {
        None | Some(b"") if flags & AT_EMPTY_PATH != 0 => {
            if dirfd == AT_FDCWD && crate::start::working_dir().is_some() {
                return stat_path(PathAt { dirfd, path: Some(b".") }, follow);
            }
            attr_of(dirfd)
        }
        path => stat_path(PathAt { dirfd, path }, follow),
    }
}

/// Converts the result of a call.
fn map<T, R>(outcome: Outcome<T>, done: impl FnOnce(T) -> R) -> Outcome<R> {
    match outcome {
        Outcome::Done(value) => Outcome::Done(done(value)),
        Outcome::Pass => Outcome::Pass,
        Outcome::PassAt(path) => Outcome::PassAt(path),
    }
}

fn stat_at(dirfd: c_int, path: *const c_char, place: *mut libc::stat, flags: c_int) -> c_int {
    let text = ProgramText(path);
    route(
        || {
            let found = attr_at(dirfd, text, flags)?;
            Ok(map(found, |(device, attr)| {
                store(place, to_stat(device, &attr));
                0
            }))
        },
        |host| {
            let path = text.path_argument(host);
            let args = [dirfd as usize, path, place as usize, flags as usize];
            raw::call_int(libc::SYS_newfstatat, &args)
        },
    )
}

fn stat_fd(fd: c_int, place: *mut libc::stat) -> c_int {
    route(
        || {
            Ok(map(attr_of(fd)?, |(device, attr)| {
                store(place, to_stat(device, &attr));
                0
            }))
        },
        |_| raw::call_int(libc::SYS_fstat, &[fd as usize, place as usize]),
    )
}

c_functions! {
    fn stat(path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, 0)
    }
    fn stat64(path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, 0)
    }
    fn lstat(path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, AT_SYMLINK_NOFOLLOW)
    }
    fn lstat64(path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, AT_SYMLINK_NOFOLLOW)
    }
    fn fstat(fd: c_int, place: *mut libc::stat) -> c_int { stat_fd(fd, place) }
    fn fstat64(fd: c_int, place: *mut libc::stat) -> c_int { stat_fd(fd, place) }
    fn fstatat(dirfd: c_int, path: *const c_char, place: *mut libc::stat, flags: c_int) -> c_int {
        stat_at(dirfd, path, place, flags)
    }
    fn fstatat64(dirfd: c_int, path: *const c_char, place: *mut libc::stat, flags: c_int) -> c_int {
        stat_at(dirfd, path, place, flags)
    }
    fn __xstat(_version: c_int, path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, 0)
    }
    fn __xstat64(_version: c_int, path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, 0)
    }
    fn __lxstat(_version: c_int, path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, AT_SYMLINK_NOFOLLOW)
    }
    fn __lxstat64(_version: c_int, path: *const c_char, place: *mut libc::stat) -> c_int {
        stat_at(AT_FDCWD, path, place, AT_SYMLINK_NOFOLLOW)
    }
    fn __fxstat(_version: c_int, fd: c_int, place: *mut libc::stat) -> c_int { stat_fd(fd, place) }
    fn __fxstat64(_version: c_int, fd: c_int, place: *mut libc::stat) -> c_int {
        stat_fd(fd, place)
    }
    fn __fxstatat(
        _version: c_int,
        dirfd: c_int,
        path: *const c_char,
        place: *mut libc::stat,
        flags: c_int,
    ) -> c_int {
        stat_at(dirfd, path, place, flags)
    }
    fn __fxstatat64(
        _version: c_int,
        dirfd: c_int,
        path: *const c_char,
        place: *mut libc::stat,
        flags: c_int,
    ) -> c_int {
        stat_at(dirfd, path, place, flags)
    }
    fn statx(
        dirfd: c_int,
        path: *const c_char,
        flags: c_int,
        mask: c_uint,
        place: *mut libc::statx,
    ) -> c_int {
        let text = ProgramText(path);
        route(
            || Ok(map(attr_at(dirfd, text, flags)?, |(device, attr)| {
                store(place, to_statx(device, &attr));
                0
            })),
            |host| {
                let (dirfd, path) = (dirfd as usize, text.path_argument(host));
                let args = [dirfd, path, flags as usize, mask as usize, place as usize];
                raw::call_int(libc::SYS_statx, &args)
            },
        )
    }
}

/// Stores the space of the volume of a path.
fn space_of_path<T>(path: *const c_char, work: impl Fn() -> T) -> Result<Outcome<T>, Errno> {
    let text = ProgramText(path);
    with_inode(PathAt { dirfd: AT_FDCWD, path: text.bytes() }, true, |_, _| Ok(work()))
}

fn space_of_fd<T>(fd: c_int, work: impl Fn() -> T) -> Result<Outcome<T>, Errno> {
    Ok(if file_of(fd).is_some() { Outcome::Done(work()) } else { Outcome::Pass })
}

fn statfs_of(place: *mut libc::statfs) -> impl Fn() -> c_int {
    move || {
        let Ok(session) = session() else { return c_int::FAILED };
        store(place, to_statfs(&session.client.statfs()));
        0
    }
}

fn statvfs_of(place: *mut libc::statvfs) -> impl Fn() -> c_int {
    move || {
        let Ok(session) = session() else { return c_int::FAILED };
        store(place, to_statvfs(&session.client.statfs()));
        0
    }
}

fn statfs_path(path: *const c_char, place: *mut libc::statfs) -> c_int {
    route(
        || space_of_path(path, statfs_of(place)),
        |host| {
            let path = ProgramText(path).path_argument(host);
            raw::call_int(libc::SYS_statfs, &[path, place as usize])
        },
    )
}

fn statfs_fd(fd: c_int, place: *mut libc::statfs) -> c_int {
    route(
        || space_of_fd(fd, statfs_of(place)),
        |_| raw::call_int(libc::SYS_fstatfs, &[fd as usize, place as usize]),
    )
}

fn statvfs_path(path: *const c_char, place: *mut libc::statvfs) -> c_int {
    route(
        || space_of_path(path, statvfs_of(place)),
        |host| {
            let path = host.map_or(path, CStr::as_ptr);
            raw::next!(statvfs(path => *const c_char, place => *mut libc::statvfs) -> c_int, -1)
        },
    )
}

fn statvfs_fd(fd: c_int, place: *mut libc::statvfs) -> c_int {
    route(
        || space_of_fd(fd, statvfs_of(place)),
        |_| raw::next!(fstatvfs(fd => c_int, place => *mut libc::statvfs) -> c_int, -1),
    )
}

c_functions! {
    fn statfs(path: *const c_char, place: *mut libc::statfs) -> c_int { statfs_path(path, place) }
    fn statfs64(path: *const c_char, place: *mut libc::statfs) -> c_int { statfs_path(path, place) }
    fn fstatfs(fd: c_int, place: *mut libc::statfs) -> c_int { statfs_fd(fd, place) }
    fn fstatfs64(fd: c_int, place: *mut libc::statfs) -> c_int { statfs_fd(fd, place) }
    fn statvfs(path: *const c_char, place: *mut libc::statvfs) -> c_int {
        statvfs_path(path, place)
    }
    fn statvfs64(path: *const c_char, place: *mut libc::statvfs) -> c_int {
        statvfs_path(path, place)
    }
    fn fstatvfs(fd: c_int, place: *mut libc::statvfs) -> c_int { statvfs_fd(fd, place) }
    fn fstatvfs64(fd: c_int, place: *mut libc::statvfs) -> c_int { statvfs_fd(fd, place) }
}

/// Returns the real user, for access(2).
fn real_cred() -> Cred {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    Cred { uid, gid, ..cred() }
}

fn access_at(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    let text = ProgramText(path);
    route(
        || {
            let at = PathAt { dirfd, path: text.bytes() };
            let user = if flags & libc::AT_EACCESS != 0 { cred() } else { real_cred() };
            check_access(at, mode, flags & AT_SYMLINK_NOFOLLOW == 0, user)
        },
        |host| {
            let (dirfd, path) = (dirfd as usize, text.path_argument(host));
            if flags == 0 {
                return raw::call_int(libc::SYS_faccessat, &[dirfd, path, mode as usize]);
            }
            let args = [dirfd, path, mode as usize, flags as usize];
            raw::call_int(libc::SYS_faccessat2, &args)
        },
    )
}

c_functions! {
    fn access(path: *const c_char, mode: c_int) -> c_int { access_at(AT_FDCWD, path, mode, 0) }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        access_at(AT_FDCWD, path, mode, libc::AT_EACCESS)
    }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        access_at(AT_FDCWD, path, mode, libc::AT_EACCESS)
    }
    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_at(dirfd, path, mode, flags)
    }
}

/// Changes attributes of a path; an empty path with `AT_EMPTY_PATH` is the descriptor.
fn change_at(
    dirfd: c_int,
    path: ProgramText,
    flags: c_int,
    set: &SetAttr,
) -> Result<Outcome<c_int>, Errno> {
    if flags & AT_EMPTY_PATH != 0 && path.bytes().is_none_or(<[u8]>::is_empty) {
        return change_fd(dirfd, set);
    }
    let at = PathAt { dirfd, path: path.bytes() };
    set_attrs(at, set, flags & AT_SYMLINK_NOFOLLOW == 0)
}

fn change_fd(fd: c_int, set: &SetAttr) -> Result<Outcome<c_int>, Errno> {
    let Some(file) = file_of(fd) else { return Ok(Outcome::Pass) };
    if file.is_path {
        return Err(Errno::EBADF);
    }
    let session = session()?;
    let attr = attr_of_file(&session, fd, &file)?;
    set_inode_attrs(&session, &attr, set)?;
    Ok(Outcome::Done(0))
}

fn mode_change(mode: mode_t) -> SetAttr {
    SetAttr { mode: Some((mode & 0o7777) as u16), ..SetAttr::default() }
}

fn owner_change(uid: uid_t, gid: gid_t) -> SetAttr {
    let set = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: set(uid), gid: set(gid), ..SetAttr::default() }
}

fn chmod_at(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
    let text = ProgramText(path);
    route(
        || change_at(dirfd, text, flags, &mode_change(mode)),
        |host| {
            if flags != 0 {
                let path = host.map_or(path, CStr::as_ptr);
                return raw::next!(fchmodat(
                    dirfd => c_int, path => *const c_char, mode => mode_t, flags => c_int
                ) -> c_int, -1);
            }
            let args = [dirfd as usize, text.path_argument(host), mode as usize];
            raw::call_int(libc::SYS_fchmodat, &args)
        },
    )
}

fn chown_at(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
    let text = ProgramText(path);
    route(
        || change_at(dirfd, text, flags, &owner_change(uid, gid)),
        |host| {
            let (path, flags) = (text.path_argument(host), flags as usize);
            let args = [dirfd as usize, path, uid as usize, gid as usize, flags];
            raw::call_int(libc::SYS_fchownat, &args)
        },
    )
}

c_functions! {
    fn chmod(path: *const c_char, mode: mode_t) -> c_int { chmod_at(AT_FDCWD, path, mode, 0) }
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
        chmod_at(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW)
    }
    fn fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        chmod_at(dirfd, path, mode, flags)
    }
    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        route(
            || change_fd(fd, &mode_change(mode)),
            |_| raw::call_int(libc::SYS_fchmod, &[fd as usize, mode as usize]),
        )
    }
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        chown_at(AT_FDCWD, path, uid, gid, 0)
    }
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        chown_at(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW)
    }
    fn fchownat(
        dirfd: c_int,
        path: *const c_char,
        uid: uid_t,
        gid: gid_t,
        flags: c_int,
    ) -> c_int {
        chown_at(dirfd, path, uid, gid, flags)
    }
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        route(
            || change_fd(fd, &owner_change(uid, gid)),
            |_| raw::call_int(libc::SYS_fchown, &[fd as usize, uid as usize, gid as usize]),
        )
    }
}

/// Sets times of a path, or of the descriptor where there is no path.
fn set_times(
    dirfd: c_int,
    path: *const c_char,
    times: Option<[libc::timespec; 2]>,
    flags: c_int,
) -> c_int {
    let text = ProgramText(path);
    route(
        || {
            let set = to_set_times(times)?;
            match text.bytes() {
                None => change_fd(dirfd, &set),
                Some(_) => change_at(dirfd, text, flags, &set),
            }
        },
        |host| {
            let times = times.as_ref().map_or(0, |times| times.as_ptr() as usize);
            let args = [dirfd as usize, text.path_argument(host), times, flags as usize];
            raw::call_int(libc::SYS_utimensat, &args)
        },
    )
}

fn from_timevals(times: *const libc::timeval) -> Option<[libc::timespec; 2]> {
    let times: [libc::timeval; 2] = load(times.cast())?;
    Some(times.map(|t| libc::timespec { tv_sec: t.tv_sec, tv_nsec: t.tv_usec * 1000 }))
}

c_functions! {
    fn utimensat(
        dirfd: c_int,
        path: *const c_char,
        times: *const libc::timespec,
        flags: c_int,
    ) -> c_int {
        set_times(dirfd, path, load(times.cast()), flags)
    }
    fn futimens(fd: c_int, times: *const libc::timespec) -> c_int {
        set_times(fd, std::ptr::null(), load(times.cast()), 0)
    }
    fn utimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        set_times(AT_FDCWD, path, from_timevals(times), 0)
    }
    fn lutimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        set_times(AT_FDCWD, path, from_timevals(times), AT_SYMLINK_NOFOLLOW)
    }
    fn futimes(fd: c_int, times: *const libc::timeval) -> c_int {
        set_times(fd, std::ptr::null(), from_timevals(times), 0)
    }
    fn futimesat(dirfd: c_int, path: *const c_char, times: *const libc::timeval) -> c_int {
        set_times(dirfd, path, from_timevals(times), 0)
    }
    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        let times = load(times).map(|t| {
            [t.actime, t.modtime].map(|tv_sec| libc::timespec { tv_sec, tv_nsec: 0 })
        });
        set_times(AT_FDCWD, path, times, 0)
    }
}

fn truncate_path(path: *const c_char, size: i64) -> c_int {
    let text = ProgramText(path);
    route(
        || cut_path(PathAt { dirfd: AT_FDCWD, path: text.bytes() }, size),
        |host| raw::call_int(libc::SYS_truncate, &[text.path_argument(host), size as usize]),
    )
}

c_functions! {
    fn truncate(path: *const c_char, size: i64) -> c_int { truncate_path(path, size) }
    fn truncate64(path: *const c_char, size: i64) -> c_int { truncate_path(path, size) }
}
