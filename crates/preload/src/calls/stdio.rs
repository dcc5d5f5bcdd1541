//! fopen(3), fclose(3) and their relatives.
//!
//! The C library reads and writes its streams past this library. That is right for native
//! descriptors. A placeholder gets a stream with functions of this file instead.

use super::data::{lseek, read, write};
use super::descriptors::{close, dup3};
use super::opens::open_at;
use crate::export::c_functions;
use crate::files::{end_number, make_native};
use crate::inside::{Outcome, route, routes_calls, run_quietly, warn_once};
use crate::raw::{self, ProgramText, load, next, store};
use crate::session::session;
use crate::start::{descriptor_path, find_start};
use crate::table::{DescriptorKind, file_of, kind_of};
use libc::{AT_FDCWD, FILE};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tatami_wire::Errno;

/// The descriptors of streams with functions of this file.
static COOKIES: Mutex<Option<HashMap<usize, c_int>>> = Mutex::new(None);

/// The functions of a stream, as fopencookie(3) takes them.
#[repr(C)]
struct StreamFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: StreamFunctions,
    ) -> *mut FILE;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

fn cookie_fd(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read_cookie(cookie: *mut c_void, place: *mut c_char, len: usize) -> isize {
    // SAFETY: the C library passes room of this length.
    unsafe { read(cookie_fd(cookie), place.cast(), len) }
}

unsafe extern "C" fn write_cookie(cookie: *mut c_void, bytes: *const c_char, len: usize) -> isize {
    // SAFETY: the C library passes bytes of this length. It takes 0 as a failure.
    unsafe { write(cookie_fd(cookie), bytes.cast(), len) }.max(0)
}

unsafe extern "C" fn seek_cookie(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    let Some(to) = load(offset) else { return -1 };
    // SAFETY: a plain call.
    let at = unsafe { lseek(cookie_fd(cookie), to, whence) };
    if at < 0 {
        return -1;
    }
    store(offset, at);
    0
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    // SAFETY: the stream owns the descriptor.
    unsafe { close(cookie_fd(cookie)) }
}

fn make_cookie(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = StreamFunctions {
        read: read_cookie,
        write: write_cookie,
        seek: seek_cookie,
        close: close_cookie,
    };
    // SAFETY: the functions are valid for ever, and the mode is the program's.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        COOKIES.lock().get_or_insert_default().insert(stream as usize, fd);
    }
    stream
}

/// Makes a descriptor native if it can be. Returns whether the C library may use it.
fn is_native(fd: c_int) -> Result<bool, Errno> {
    let Some(file) = file_of(fd) else { return Ok(true) };
    if kind_of(fd) == DescriptorKind::Placeholder && !file.is_path {
        make_native(&*session()?, &file)?;
    }
    Ok(kind_of(fd) == DescriptorKind::Native)
}

/// Makes a stream of a descriptor.
fn stream_of(fd: c_int, mode: *const c_char) -> *mut FILE {
    let pass = || next!(fdopen(fd => c_int, mode => *const c_char) -> *mut FILE, null_mut());
    if kind_of(fd) == DescriptorKind::Foreign {
        return pass();
    }
    route(
        || match is_native(fd)? {
            true => Ok(Outcome::Pass),
            false => Ok(Outcome::Done(make_cookie(fd, mode))),
        },
        |_| pass(),
    )
}

/// Returns the flags of open(2) for a mode of fopen(3).
fn parse_mode(mode: &[u8]) -> Option<c_int> {
    let options = mode.split(|b| *b == b',').next().unwrap_or_default();
    let (first, rest) = options.split_first()?;
    let both = rest.contains(&b'+');
    let access = if both { libc::O_RDWR } else { libc::O_WRONLY };
    let mut flags = match first {
        b'r' if both => libc::O_RDWR,
        b'r' => libc::O_RDONLY,
        b'w' => access | libc::O_CREAT | libc::O_TRUNC,
        b'a' => access | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    if rest.contains(&b'x') {
        flags |= libc::O_EXCL;
    }
    if rest.contains(&b'e') {
        flags |= libc::O_CLOEXEC;
    }
    Some(flags)
}

/// Returns whether a path is one of the volume.
fn is_own_path(path: *const c_char) -> bool {
    let text = ProgramText(path);
    let Some(path) = text.bytes() else { return false };
    routes_calls()
        && (descriptor_path(path).is_some() || matches!(find_start(AT_FDCWD, path), Ok(Some(_))))
}

fn open_stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    if !is_own_path(path) {
        return None;
    }
    let text = ProgramText(mode);
    let Some(flags) = text.bytes().and_then(parse_mode) else {
        raw::set_errno(libc::EINVAL);
        return Some(null_mut());
    };
    let fd = open_at(AT_FDCWD, path, flags, 0o666);
    if fd < 0 {
        return Some(null_mut());
    }
    let stream = stream_of(fd, mode);
    if stream.is_null() {
        let error = raw::errno();
        // SAFETY: the descriptor was opened above.
        unsafe { close(fd) };
        raw::set_errno(error);
    }
    Some(stream)
}

/// Returns the descriptor of a stream, of any kind.
fn number_of(stream: *mut FILE) -> c_int {
    if let Some(fd) = COOKIES.lock().as_ref().and_then(|all| all.get(&(stream as usize)).copied()) {
        return fd;
    }
    next!(fileno(stream => *mut FILE) -> c_int, -1)
}

/// Ends the use of a native descriptor of a stream, which the C library is about to close.
fn end_stream(stream: *mut FILE) {
    if stream.is_null() || !routes_calls() {
        return;
    }
    let fd = number_of(stream);
    if kind_of(fd) != DescriptorKind::Native {
        return;
    }
    let before = raw::errno();
    next!(fflush(stream => *mut FILE) -> c_int, -1);
    raw::set_errno(before);
    run_quietly(|| {
        // The error of the report is in the log of the node; the stream has none to give.
        let _ = end_number(fd);
    });
}

fn reopen_stream(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> Option<*mut FILE> {
    if path.is_null() || !is_own_path(path) {
        end_stream(stream);
        return None;
    }
    let text = ProgramText(mode);
    let Some(flags) = text.bytes().and_then(parse_mode) else {
        raw::set_errno(libc::EINVAL);
        return Some(null_mut());
    };
    let fd = open_at(AT_FDCWD, path, flags, 0o666);
    if fd < 0 {
        return Some(null_mut());
    }
    let ready = route(|| is_native(fd).map(|native| Outcome::Done(c_int::from(native))), |_| 1);
    if ready != 1 {
        static SAID: AtomicBool = AtomicBool::new(false);
        warn_once(&SAID, "freopen(3) needs a file whose bytes are on this node");
        // SAFETY: the descriptor was opened above.
        unsafe { close(fd) };
        raw::set_errno(libc::EOPNOTSUPP);
        return Some(null_mut());
    }
    end_stream(stream);
    let null = c"/dev/null".as_ptr();
    let opened = next!(
        freopen(null => *const c_char, mode => *const c_char, stream => *mut FILE) -> *mut FILE,
        null_mut()
    );
    if !opened.is_null() {
        let to = number_of(opened);
        // SAFETY: both are open; the stream then refers to the file of the volume.
        unsafe {
            dup3(fd, to, flags & libc::O_CLOEXEC);
            close(fd);
        }
    }
    Some(opened)
}

c_functions! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode).unwrap_or_else(|| {
            next!(fopen(path => *const c_char, mode => *const c_char) -> *mut FILE, null_mut())
        })
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode).unwrap_or_else(|| {
            next!(fopen64(path => *const c_char, mode => *const c_char) -> *mut FILE, null_mut())
        })
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        reopen_stream(path, mode, stream).unwrap_or_else(|| {
            next!(freopen(
                path => *const c_char, mode => *const c_char, stream => *mut FILE
            ) -> *mut FILE, null_mut())
        })
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        reopen_stream(path, mode, stream).unwrap_or_else(|| {
            next!(freopen64(
                path => *const c_char, mode => *const c_char, stream => *mut FILE
            ) -> *mut FILE, null_mut())
        })
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE { stream_of(fd, mode) }
    fn fileno(stream: *mut FILE) -> c_int { number_of(stream) }
    fn fileno_unlocked(stream: *mut FILE) -> c_int { number_of(stream) }
    fn fclose(stream: *mut FILE) -> c_int {
        end_stream(stream);
        if let Some(all) = &mut *COOKIES.lock() {
            all.remove(&(stream as usize));
        }
        next!(fclose(stream => *mut FILE) -> c_int, -1)
    }
}

/// Gives the standard stream of a number functions of this file, because its descriptor is a
/// placeholder. They serve all descriptors that get the number later.
pub(crate) fn adopt_standard_stream(fd: c_int) {
    static DONE: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let known = usize::try_from(fd).ok().and_then(|fd| DONE.get(fd));
    if known.is_none_or(|done| done.swap(true, Relaxed)) {
        return;
    }
    let made = make_cookie(fd, if fd == 0 { c"r".as_ptr() } else { c"w".as_ptr() });
    if made.is_null() {
        return;
    }
    let buffering = [libc::_IOFBF, libc::_IOLBF, libc::_IONBF][fd as usize];
    let room = null_mut();
    next!(setvbuf(
        made => *mut FILE, room => *mut c_char, buffering => c_int, 4096 => usize
    ) -> c_int, -1);
    // SAFETY: the variables are those of the C library. A program that uses a stream in one thread
    // while another redirects it gets one of both streams, as with freopen(3).
    unsafe {
        match fd {
            0 => stdin = made,
            1 => stdout = made,
            _ => stderr = made,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_fopen() {
        assert_eq!(parse_mode(b"rb"), Some(libc::O_RDONLY));
        assert_eq!(parse_mode(b"r+e"), Some(libc::O_RDWR | libc::O_CLOEXEC));
        assert_eq!(parse_mode(b"w,ccs=+"), Some(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC));
        assert_eq!(parse_mode(b"ab+"), Some(libc::O_RDWR | libc::O_CREAT | libc::O_APPEND));
        assert_eq!(parse_mode(b""), None);
        assert_eq!(parse_mode(b"q"), None);
    }
}
