//! open(2) and its relatives.

use crate::export::c_functions;
use crate::files::{Opened, open_path, reopen, settle_number};
use crate::inside::{Outcome, route};
use crate::raw::{self, ProgramText};
use crate::start::{descriptor_path, find_start};
use crate::table;
use crate::walk::with_fresh_dirs;
use libc::{AT_FDCWD, mode_t};
use std::ffi::{c_char, c_int};

/// Opens a path for any of the functions below.
pub(crate) fn open_at(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let text = ProgramText(path);
    route(
        || {
            let Some(path) = text.bytes() else { return Ok(Outcome::Pass) };
            if let Some(fd) = descriptor_path(path) {
                return reopen(fd, flags).map(Outcome::Done);
            }
            let Some(start) = find_start(dirfd, path)? else { return Ok(Outcome::Pass) };
            let mut first = Some(start);
            with_fresh_dirs(|| {
                let again = || find_start(dirfd, path);
                let Some(start) = first.take().map_or_else(again, |start| Ok(Some(start)))? else {
                    return Ok(Outcome::Pass);
                };
                Ok(match open_path(start, flags, mode)? {
                    Opened::Descriptor(fd) => {
                        if fd <= libc::STDERR_FILENO {
                            settle_number(fd);
                        }
                        Outcome::Done(fd)
                    }
                    Opened::Host(path) => Outcome::PassAt(path),
                })
            })
        },
        |host| {
            let path = text.path_argument(host);
            let flags = (flags | libc::O_LARGEFILE) as usize;
            let fd = raw::call_int(libc::SYS_openat, &[dirfd as usize, path, flags, mode as usize]);
            // The program may have closed the number in a way that passes by this library.
            drop(table::remove_number(fd));
            fd
        },
    )
}

c_functions! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, flags, mode)
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, flags, mode)
    }
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(dirfd, path, flags, mode)
    }
    fn openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(dirfd, path, flags, mode)
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, path, flags, 0)
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, path, flags, 0)
    }
    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dirfd, path, flags, 0)
    }
    fn __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dirfd, path, flags, 0)
    }
}

/// Characters of temporary names.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// Attempts to find a name that is free.
const ATTEMPTS: usize = 1000;

/// Fills the six letters of a template before its suffix, until `make` finds the name free.
fn fill_template(
    template: *mut c_char,
    suffix: c_int,
    mut make: impl FnMut(*const c_char) -> c_int,
) -> c_int {
    let text = ProgramText(template);
    let Some(text) = text.bytes() else {
        raw::set_errno(libc::EINVAL);
        return -1;
    };
    let end = usize::try_from(suffix).ok().and_then(|suffix| text.len().checked_sub(suffix));
    let Some(start) = end.and_then(|end| end.checked_sub(6)) else {
        raw::set_errno(libc::EINVAL);
        return -1;
    };
    if text[start..start + 6] != [b'X'; 6] {
        raw::set_errno(libc::EINVAL);
        return -1;
    }
    let place = raw::program_buffer(template.wrapping_add(start).cast(), 6);
    for _ in 0..ATTEMPTS {
        let mut random = [0u8; 6];
        raw::call(libc::SYS_getrandom, &[random.as_mut_ptr() as usize, random.len(), 0]);
        for (letter, byte) in place.iter_mut().zip(random) {
            *letter = LETTERS[usize::from(byte) % LETTERS.len()];
        }
        let made = make(template);
        if made >= 0 || raw::errno() != libc::EEXIST {
            return made;
        }
    }
    raw::set_errno(libc::EEXIST);
    -1
}

fn make_temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    fill_template(template, suffix, |path| open_at(AT_FDCWD, path, flags, 0o600))
}

c_functions! {
    fn mkstemp(template: *mut c_char) -> c_int { make_temporary(template, 0, 0) }
    fn mkstemp64(template: *mut c_char) -> c_int { make_temporary(template, 0, 0) }
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int { make_temporary(template, 0, flags) }
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
        make_temporary(template, 0, flags)
    }
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        make_temporary(template, suffix, 0)
    }
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int {
        make_temporary(template, suffix, 0)
    }
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        make_temporary(template, suffix, flags)
    }
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        make_temporary(template, suffix, flags)
    }
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        let made = fill_template(template, 0, |path| super::names::make_dir(AT_FDCWD, path, 0o700));
        if made == 0 { template } else { std::ptr::null_mut() }
    }
}
