//! close(2), dup(2), fcntl(2), flock(2) and their relatives.

use crate::export::c_functions;
use crate::files::{close_number, end_number, settle_number};
use crate::inside::{Outcome, route, routes_calls, run_quietly};
use crate::locking::{lock_range, lock_whole};
use crate::own_descriptors::{forget_own, is_own, list_own};
use crate::raw::{self, load, store};
use crate::table::{self, DescriptorKind, add_number, file_of, kind_of};
use libc::c_long;
use std::ffi::{c_int, c_uint};
use tatami_wire::{Access, Errno, InodeKind};

fn close_fd(fd: c_int) -> c_int {
    let pass = || raw::call_int(libc::SYS_close, &[fd as usize]);
    if kind_of(fd) != DescriptorKind::Foreign {
        return route(|| close_number(fd).map(|()| Outcome::Done(0)), |_| pass());
    }
    if is_own(fd) {
        if routes_calls() {
            raw::set_errno(libc::EBADF);
            return -1;
        }
        forget_own(fd);
    }
    pass()
}

/// Closes or marks the descriptors of a range, except the library's own.
fn close_numbers(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
    if first > last {
        raw::set_errno(libc::EINVAL);
        return -1;
    }
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_uint == 0 {
        run_quietly(|| {
            for fd in table::numbers_between(first, last) {
                // The program cannot learn of the error.
                let _ = close_number(fd);
            }
        });
    }
    let mut from = first;
    let kept = list_own().into_iter().map(i32::unsigned_abs);
    for own in kept.filter(|own| (first..=last).contains(own)) {
        if own > from {
            let args = [from as usize, own as usize - 1, flags as usize];
            if raw::call_int(libc::SYS_close_range, &args) != 0 {
                return -1;
            }
        }
        from = own + 1;
    }
    if from > last {
        return 0;
    }
    raw::call_int(libc::SYS_close_range, &[from as usize, last as usize, flags as usize])
}

c_functions! {
    fn close(fd: c_int) -> c_int { close_fd(fd) }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        close_numbers(first, last, flags as c_uint)
    }
    fn closefrom(first: c_int) {
        close_numbers(first.max(0).unsigned_abs(), c_uint::MAX, 0);
    }
}

/// Records the number that a call on `fd` has made.
fn record_copy(fd: c_int, copy: c_int) -> c_int {
    if copy < 0 {
        return copy;
    }
    if kind_of(fd) == DescriptorKind::Foreign && kind_of(copy) == DescriptorKind::Foreign {
        return copy;
    }
    run_quietly(|| {
        // The number may be known from a close that passed by this library.
        drop(table::remove_number(copy));
        if let Some(file) = file_of(fd) {
            // A number beyond the table stays a placeholder that nothing can be read from.
            let _ = add_number(copy, &file);
            settle_number(copy);
        }
    });
    copy
}

fn duplicate(fd: c_int, to: c_int, flags: c_int, number: c_long) -> c_int {
    if is_own(to) && routes_calls() {
        raw::set_errno(libc::EBUSY);
        return -1;
    }
    if fd == to && number == libc::SYS_dup3 && flags == -1 {
        // dup2(2) of a number to itself only checks it.
        let valid = raw::call_int(libc::SYS_fcntl, &[fd as usize, libc::F_GETFD as usize]);
        return if valid < 0 { -1 } else { to };
    }
    if fd != to && kind_of(to) != DescriptorKind::Foreign {
        let valid = raw::call_int(libc::SYS_fcntl, &[fd as usize, libc::F_GETFD as usize]);
        if valid < 0 {
            return -1;
        }
        run_quietly(|| {
            // dup2(2) does not report the errors of the close, either.
            let _ = end_number(to);
        });
    }
    let flags = flags.max(0);
    record_copy(fd, raw::call_int(libc::SYS_dup3, &[fd as usize, to as usize, flags as usize]))
}

c_functions! {
    fn dup(fd: c_int) -> c_int {
        record_copy(fd, raw::call_int(libc::SYS_dup, &[fd as usize]))
    }
    fn dup2(fd: c_int, to: c_int) -> c_int { duplicate(fd, to, -1, libc::SYS_dup3) }
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        duplicate(fd, to, flags, libc::SYS_dup3)
    }
}

/// Returns the flags of an open file: those of a placeholder are not the program's.
fn status_flags(fd: c_int) -> Option<c_int> {
    let file = file_of(fd)?;
    let flags = raw::call_int(libc::SYS_fcntl, &[fd as usize, libc::F_GETFL as usize]);
    if flags < 0 {
        return None;
    }
    let access = match file.access {
        Access { read: true, write: true } => libc::O_RDWR,
        Access { write: true, .. } => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    };
    let kind = if file.kind == InodeKind::Dir { libc::O_DIRECTORY } else { 0 };
    let path = if file.is_path { libc::O_PATH } else { 0 };
    Some(flags & !libc::O_ACCMODE | access | kind | path)
}

/// The locks of fcntl(2).
fn control_lock(
    fd: c_int,
    command: c_int,
    place: *mut libc::flock,
) -> Result<Outcome<c_int>, Errno> {
    let Some(file) = file_of(fd) else { return Ok(Outcome::Pass) };
    let mut asked = load(place).ok_or(Errno(libc::EFAULT))?;
    let base = match c_int::from(asked.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => raw::call(libc::SYS_lseek, &[fd as usize, 0, libc::SEEK_CUR as usize]),
        libc::SEEK_END => {
            let session = crate::session::session()?;
            crate::attributes::attr_of_file(&session, fd, &file)?.size as c_long
        }
        _ => return Err(Errno::EINVAL),
    };
    let base = u64::try_from(base).map_err(|_| Errno::EINVAL)?;
    let done = lock_range(&file, command, &mut asked, base)?;
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        store(place, asked);
    }
    Ok(Outcome::Done(done))
}

fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    let pass = || raw::call_int(libc::SYS_fcntl, &[fd as usize, command as usize, argument]);
    if kind_of(fd) == DescriptorKind::Foreign {
        return match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => record_copy(fd, pass()),
            _ => pass(),
        };
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => record_copy(fd, pass()),
        libc::F_GETFL => {
            route(|| Ok(status_flags(fd).map_or(Outcome::Pass, Outcome::Done)), |_| pass())
        }
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            route(|| control_lock(fd, command, argument as *mut libc::flock), |_| pass())
        }
        libc::F_SETLEASE | libc::F_NOTIFY | libc::F_ADD_SEALS | libc::F_GET_SEALS => {
            raw::set_errno(libc::EINVAL);
            -1
        }
        _ => pass(),
    }
}

c_functions! {
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int { control(fd, command, argument) }
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        control(fd, command, argument)
    }
    fn flock(fd: c_int, operation: c_int) -> c_int {
        let pass = || raw::call_int(libc::SYS_flock, &[fd as usize, operation as usize]);
        if kind_of(fd) == DescriptorKind::Foreign {
            return pass();
        }
        route(
            || match file_of(fd) {
                Some(file) => lock_whole(&file, operation).map(Outcome::Done),
                None => Ok(Outcome::Pass),
            },
            |_| pass(),
        )
    }
    fn lockf(fd: c_int, command: c_int, len: i64) -> c_int { lock_by_position(fd, command, len) }
    fn lockf64(fd: c_int, command: c_int, len: i64) -> c_int { lock_by_position(fd, command, len) }
}

fn lock_by_position(fd: c_int, command: c_int, len: i64) -> c_int {
    if kind_of(fd) == DescriptorKind::Foreign {
        return raw::next!(lockf64(fd => c_int, command => c_int, len => i64) -> c_int, -1);
    }
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let kind = if command == libc::F_ULOCK { libc::F_UNLCK } else { libc::F_WRLCK };
    (lock.l_whence, lock.l_len, lock.l_type) = (libc::SEEK_CUR as _, len, kind as _);
    let place = std::ptr::from_mut(&mut lock) as usize;
    match command {
        libc::F_LOCK => control(fd, libc::F_SETLKW, place),
        libc::F_TLOCK | libc::F_ULOCK => control(fd, libc::F_SETLK, place),
        libc::F_TEST => {
            if control(fd, libc::F_GETLK, place) < 0 {
                return -1;
            }
            let held = load(place as *const libc::flock).map_or(libc::F_UNLCK, |l| l.l_type.into());
            if held == libc::F_UNLCK {
                return 0;
            }
            raw::set_errno(libc::EACCES);
            -1
        }
        _ => {
            raw::set_errno(libc::EINVAL);
            -1
        }
    }
}
