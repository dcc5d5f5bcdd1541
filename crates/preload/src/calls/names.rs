//! mkdir(2), unlink(2), rename(2), link(2), readlink(2), chdir(2) and their relatives.

use crate::export::c_functions;
use crate::inside::{Outcome, route};
use crate::names::{
    PathAt, TwoPaths, canonical_path, find_dir, link as link_paths, make_node, node_template,
    read_link, remove as remove_path, rename as rename_paths,
};
use crate::raw::{self, ProgramText, next, program_buffer};
use crate::start::{descriptor_path, find_start, position_of, set_working_dir, working_dir};
use crate::table::file_of;
use crate::walk::program_path;
use libc::{AT_FDCWD, dev_t, mode_t};
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use tatami_wire::Errno;
use tatami_wire::meta::{InodeTemplate, RenameMode};

fn at(dirfd: c_int, text: &ProgramText) -> PathAt<'_> {
    PathAt { dirfd, path: text.bytes() }
}

pub(crate) fn make_dir(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
    let text = ProgramText(path);
    route(
        || make_node(at(dirfd, &text), &InodeTemplate::Dir, mode),
        |host| {
            let args = [dirfd as usize, text.path_argument(host), mode as usize];
            raw::call_int(libc::SYS_mkdirat, &args)
        },
    )
}

fn make_special(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    let text = ProgramText(path);
    route(
        || {
            let at = at(dirfd, &text);
            let Some(path) = at.path else { return Ok(Outcome::Pass) };
            if find_start(dirfd, path)?.is_none() {
                return Ok(Outcome::Pass);
            }
            make_node(at, &node_template(mode, device)?, mode)
        },
        |host| {
            let args = [dirfd as usize, text.path_argument(host), mode as usize, device as usize];
            raw::call_int(libc::SYS_mknodat, &args)
        },
    )
}

fn remove_at(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    let text = ProgramText(path);
    route(
        || remove_path(at(dirfd, &text), flags & libc::AT_REMOVEDIR != 0),
        |host| {
            let args = [dirfd as usize, text.path_argument(host), flags as usize];
            raw::call_int(libc::SYS_unlinkat, &args)
        },
    )
}

c_functions! {
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int { make_dir(AT_FDCWD, path, mode) }
    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        make_dir(dirfd, path, mode)
    }
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        make_special(AT_FDCWD, path, mode, device)
    }
    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        make_special(dirfd, path, mode, device)
    }
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        make_special(AT_FDCWD, path, mode & 0o7777 | libc::S_IFIFO, 0)
    }
    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        make_special(dirfd, path, mode & 0o7777 | libc::S_IFIFO, 0)
    }
    fn unlink(path: *const c_char) -> c_int { remove_at(AT_FDCWD, path, 0) }
    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        remove_at(dirfd, path, flags)
    }
    fn rmdir(path: *const c_char) -> c_int { remove_at(AT_FDCWD, path, libc::AT_REMOVEDIR) }
    fn remove(path: *const c_char) -> c_int {
        let removed = remove_at(AT_FDCWD, path, 0);
        if removed == 0 || !matches!(raw::errno(), libc::EISDIR | libc::EPERM) {
            return removed;
        }
        remove_at(AT_FDCWD, path, libc::AT_REMOVEDIR)
    }
}

/// Runs a call with two paths.
fn route_two(
    work: impl FnOnce() -> Result<TwoPaths, Errno>,
    pass: impl FnOnce(Option<&CStr>, Option<&CStr>) -> c_int,
) -> c_int {
    let mut hosts: (Option<CString>, Option<CString>) = (None, None);
    let kept = &mut hosts;
    let done = route(
        || {
            Ok(match work()? {
                TwoPaths::Done => Outcome::Done(0),
                TwoPaths::Pass(from, to) => {
                    *kept = (from, to);
                    Outcome::Done(1)
                }
            })
        },
        |_| 1,
    );
    if done == 1 { pass(hosts.0.as_deref(), hosts.1.as_deref()) } else { done }
}

fn rename_at(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let (old, new) = (ProgramText(from), ProgramText(to));
    let mode = match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    };
    route_two(
        || {
            let (from, to) = (at(from_dir, &old), at(to_dir, &new));
            // Flags that the volume does not know concern the machine's files as well.
            rename_paths(from, to, mode.unwrap_or(RenameMode::Replace)).and_then(
                |done| match done {
                    TwoPaths::Done => mode.map(|_| TwoPaths::Done),
                    pass => Ok(pass),
                },
            )
        },
        |from, to| {
            let (from, to) = (old.path_argument(from), new.path_argument(to));
            let args = [from_dir as usize, from, to_dir as usize, to, flags as usize];
            raw::call_int(libc::SYS_renameat2, &args)
        },
    )
}

fn link_at(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let (old, new) = (ProgramText(from), ProgramText(to));
    route_two(
        || {
            let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
            link_paths(at(from_dir, &old), at(to_dir, &new), follow)
        },
        |from, to| {
            let (from, to) = (old.path_argument(from), new.path_argument(to));
            let args = [from_dir as usize, from, to_dir as usize, to, flags as usize];
            raw::call_int(libc::SYS_linkat, &args)
        },
    )
}

fn symlink_at(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
    let (target, text) = (ProgramText(target), ProgramText(path));
    route(
        || {
            let to = target.bytes().unwrap_or_default();
            if to.is_empty() {
                return Ok(Outcome::Pass);
            }
            make_node(at(dirfd, &text), &InodeTemplate::Symlink(to.to_vec().into()), 0o777)
        },
        |host| {
            let args = [target.argument(), dirfd as usize, text.path_argument(host)];
            raw::call_int(libc::SYS_symlinkat, &args)
        },
    )
}

c_functions! {
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        rename_at(AT_FDCWD, from, AT_FDCWD, to, 0)
    }
    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        rename_at(from_dir, from, to_dir, to, 0)
    }
    fn renameat2(
        from_dir: c_int,
        from: *const c_char,
        to_dir: c_int,
        to: *const c_char,
        flags: c_uint,
    ) -> c_int {
        rename_at(from_dir, from, to_dir, to, flags)
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int {
        link_at(AT_FDCWD, from, AT_FDCWD, to, 0)
    }
    fn linkat(
        from_dir: c_int,
        from: *const c_char,
        to_dir: c_int,
        to: *const c_char,
        flags: c_int,
    ) -> c_int {
        link_at(from_dir, from, to_dir, to, flags)
    }
    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        symlink_at(target, AT_FDCWD, path)
    }
    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        symlink_at(target, dirfd, path)
    }
}

fn readlink_at(dirfd: c_int, path: *const c_char, place: *mut c_char, len: usize) -> isize {
    let text = ProgramText(path);
    route(
        || {
            let known = text.bytes().and_then(descriptor_path).and_then(file_of);
            let target = match known {
                Some(file) => Outcome::Done(program_path(file.prefix, &file.path)),
                None => read_link(at(dirfd, &text))?,
            };
            Ok(match target {
                Outcome::Done(target) => {
                    let room = program_buffer(place.cast(), len);
                    let n = target.len().min(room.len());
                    room[..n].copy_from_slice(&target[..n]);
                    Outcome::Done(n as isize)
                }
                Outcome::Pass => Outcome::Pass,
                Outcome::PassAt(path) => Outcome::PassAt(path),
            })
        },
        |host| {
            let args = [dirfd as usize, text.path_argument(host), place as usize, len];
            raw::call(libc::SYS_readlinkat, &args) as isize
        },
    )
}

/// Returns the bytes in memory that the program frees, or in its own room.
fn give_text(text: &[u8], room: *mut c_char, len: usize) -> Result<*mut c_char, Errno> {
    if room.is_null() {
        let size = (text.len() + 1).max(len);
        // SAFETY: it allocates memory; the program frees it.
        let made = unsafe { libc::malloc(size) }.cast::<c_char>();
        if made.is_null() {
            return Err(Errno::ENOMEM);
        }
        return give_text(text, made, size);
    }
    if text.len() >= len {
        return Err(Errno::ERANGE);
    }
    let place = program_buffer(room.cast(), text.len() + 1);
    place[..text.len()].copy_from_slice(text);
    place[text.len()] = 0;
    Ok(room)
}

fn find_real_path(path: *const c_char, room: *mut c_char, len: usize) -> *mut c_char {
    let text = ProgramText(path);
    route(
        || {
            Ok(match canonical_path(at(AT_FDCWD, &text))? {
                Outcome::Done(path) => Outcome::Done(give_text(&path, room, len)?),
                Outcome::Pass => Outcome::Pass,
                Outcome::PassAt(path) => Outcome::PassAt(path),
            })
        },
        |host| {
            let path = host.map_or(path, CStr::as_ptr);
            next!(
                realpath(path => *const c_char, room => *mut c_char) -> *mut c_char,
                std::ptr::null_mut()
            )
        },
    )
}

const PATH_ROOM: usize = libc::PATH_MAX as usize;

c_functions! {
    fn readlink(path: *const c_char, place: *mut c_char, len: usize) -> isize {
        readlink_at(AT_FDCWD, path, place, len)
    }
    fn readlinkat(dirfd: c_int, path: *const c_char, place: *mut c_char, len: usize) -> isize {
        readlink_at(dirfd, path, place, len)
    }
    fn __readlink_chk(path: *const c_char, place: *mut c_char, len: usize, _limit: usize) -> isize {
        readlink_at(AT_FDCWD, path, place, len)
    }
    fn __readlinkat_chk(
        dirfd: c_int,
        path: *const c_char,
        place: *mut c_char,
        len: usize,
        _limit: usize,
    ) -> isize {
        readlink_at(dirfd, path, place, len)
    }
    fn realpath(path: *const c_char, room: *mut c_char) -> *mut c_char {
        find_real_path(path, room, PATH_ROOM)
    }
    fn __realpath_chk(path: *const c_char, room: *mut c_char, len: usize) -> *mut c_char {
        find_real_path(path, room, len)
    }
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        find_real_path(path, std::ptr::null_mut(), PATH_ROOM)
    }
}

fn own_working_dir(room: *mut c_char, len: usize) -> *mut c_char {
    route(
        || match working_dir() {
            Some(dir) => give_text(&dir.program_path(), room, len).map(Outcome::Done),
            None => Ok(Outcome::Pass),
        },
        |_| {
            next!(
                getcwd(room => *mut c_char, len => usize) -> *mut c_char,
                std::ptr::null_mut()
            )
        },
    )
}

c_functions! {
    fn getcwd(room: *mut c_char, len: usize) -> *mut c_char { own_working_dir(room, len) }
    fn __getcwd_chk(room: *mut c_char, len: usize, _limit: usize) -> *mut c_char {
        own_working_dir(room, len)
    }
    fn get_current_dir_name() -> *mut c_char {
        if !crate::inside::routes_calls() || working_dir().is_none() {
            return next!(get_current_dir_name() -> *mut c_char, std::ptr::null_mut());
        }
        own_working_dir(std::ptr::null_mut(), PATH_ROOM)
    }
    fn getwd(room: *mut c_char) -> *mut c_char { own_working_dir(room, PATH_ROOM) }
    fn chdir(path: *const c_char) -> c_int {
        let text = ProgramText(path);
        route(
            || Ok(match find_dir(at(AT_FDCWD, &text))? {
                Outcome::Done(dir) => {
                    set_working_dir(Some(dir))?;
                    Outcome::Done(0)
                }
                Outcome::Pass => Outcome::Pass,
                Outcome::PassAt(path) => Outcome::PassAt(path),
            }),
            |host| leave_to(raw::call_int(libc::SYS_chdir, &[text.path_argument(host)])),
        )
    }
    fn fchdir(fd: c_int) -> c_int {
        route(
            || match position_of(fd) {
                Some(dir) => {
                    set_working_dir(Some(dir?))?;
                    Ok(Outcome::Done(0))
                }
                None => Ok(Outcome::Pass),
            },
            |_| leave_to(raw::call_int(libc::SYS_fchdir, &[fd as usize])),
        )
    }
}

/// The kernel has changed the working directory: it is outside of the volume.
fn leave_to(changed: c_int) -> c_int {
    if changed == 0 {
        crate::inside::run_quietly(|| _ = set_working_dir(None));
    }
    changed
}
