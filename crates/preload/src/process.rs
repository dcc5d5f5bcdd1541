//! The start and the end of a process, and what a new process or program needs of this one.

use crate::files::{
    data_of, make_all_native, may_access, report_all, set_stream_adopter, settle_number,
};
use crate::inherit::{adopt_descriptors, encode_files, list_handed, record_marks};
use crate::inside::{InsideScope, activate, routes_calls, run_quietly};
use crate::names::PathAt;
use crate::raw;
use crate::session::{SessionForkGuard, cred, session};
use crate::settings::{
    AT_VARIABLE, CWD_VARIABLE, DIR_VARIABLE, FILES_VARIABLE, NODE_VARIABLE, PATIENCE_VARIABLE,
    read_variable, settings,
};
use crate::start::{find_start, set_working_dir, working_dir};
use crate::walk::{PathTarget, find, forget_dirs};
use crate::{closes, start, table, umask, walk};
use libc::{AT_FDCWD, c_char};
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::fd::RawFd;
use std::sync::OnceLock;
use tatami_wire::{Access, Errno, InodeKind};

/// The name of this library's file.
const LIBRARY: &str = "libtatami_preload.so";
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Longest first line of a script that names its interpreter, in bytes.
const INTERPRETER_MAX: usize = 256;
/// Most scripts that interpret each other.
const INTERPRETERS_MAX: u32 = 5;
/// Bytes of one read while a program is copied.
const COPY_STEP: usize = 1 << 20;

/// What every program needs that this process starts: the variables as they were at the start.
static HANDED_ON: OnceLock<Vec<(&'static str, Vec<u8>)>> = OnceLock::new();

/// Called when the library is loaded.
pub(crate) fn start_library(adopt_stream: fn(RawFd)) {
    let inside = InsideScope::enter();
    if settings().is_none() {
        return;
    }
    umask::read_at_start();
    let names = [AT_VARIABLE, DIR_VARIABLE, NODE_VARIABLE, PATIENCE_VARIABLE];
    let mut kept: Vec<_> =
        names.into_iter().filter_map(|name| Some((name, read_variable(name)?))).collect();
    let preloaded = read_variable(PRELOAD_VARIABLE).unwrap_or_default();
    let own = preloaded.split(|b| matches!(b, b':' | b' ')).find(|path| {
        let name = path.rsplit(|b| *b == b'/').next();
        name == Some(LIBRARY.as_bytes())
    });
    if let Some(own) = own {
        kept.push((PRELOAD_VARIABLE, own.to_vec()));
    }
    _ = HANDED_ON.set(kept);
    // SAFETY: the functions are valid for ever. The last one runs after all other functions that
    // run at the exit, because it is registered before the program starts.
    unsafe {
        libc::pthread_atfork(Some(prepare_fork), Some(end_fork_in_parent), Some(end_fork_in_child));
        __cxa_atexit(end_process, std::ptr::null_mut(), std::ptr::null_mut());
    }
    if let Some(path) = read_variable(CWD_VARIABLE).filter(|path| !path.is_empty()) {
        enter_inherited_dir(&path);
    }
    adopt_descriptors();
    activate();
    set_stream_adopter(adopt_stream);
    (0..=libc::STDERR_FILENO).for_each(settle_number);
    drop(inside);
}

unsafe extern "C" {
    fn __cxa_atexit(
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

/// Enters the working directory of the program that started this one. It is a path as the program
/// saw it.
fn enter_inherited_dir(path: &[u8]) {
    let Ok(Some(start)) = find_start(AT_FDCWD, path) else { return };
    let Ok(session) = session() else { return };
    match find(&session, start, true) {
        Ok(PathTarget::Inode(found)) if found.attr.kind == InodeKind::Dir => {
            let _ = set_working_dir(Some(found.as_position()));
        }
        // The directory was removed or moved: relative paths fail, as they do in a removed
        // directory.
        _ => {}
    }
}

extern "C" fn end_process(_: *mut c_void) {
    if !routes_calls() {
        return;
    }
    // The streams are flushed after this function otherwise.
    let all = std::ptr::null_mut();
    raw::next!(fflush(all => *mut libc::FILE) -> c_int, -1);
    run_quietly(|| report_all(true));
}

/// The locks of this library, held during a fork, so that the child finds them free.
struct ForkGuards {
    _inside: InsideScope,
    _closes: Box<dyn HeldGuard>,
    _tables: Box<dyn HeldGuard>,
    _dirs: Box<dyn HeldGuard>,
    _cwd: Box<dyn HeldGuard>,
    session: SessionForkGuard,
}

/// A guard of any lock.
trait HeldGuard {}
impl<T> HeldGuard for T {}

struct ForkCell(UnsafeCell<Option<ForkGuards>>);

// SAFETY: only the thread that forks uses it, while it holds all locks of the guards.
unsafe impl Sync for ForkCell {}

static FORKING: ForkCell = ForkCell(UnsafeCell::new(None));

extern "C" fn prepare_fork() {
    if !routes_calls() {
        return;
    }
    let inside = InsideScope::enter();
    make_all_native();
    closes::send_closes();
    forget_dirs();
    let guards = ForkGuards {
        _inside: inside,
        _closes: Box::new(closes::hold_for_fork()),
        _cwd: Box::new(start::hold_for_fork()),
        _dirs: Box::new(walk::hold_for_fork()),
        _tables: Box::new(table::hold_for_fork()),
        session: SessionForkGuard::acquire(),
    };
    // SAFETY: this thread holds all locks, so no other thread forks.
    unsafe { *FORKING.0.get() = Some(guards) };
}

extern "C" fn end_fork_in_parent() {
    // SAFETY: it is the thread of `prepare_fork`.
    drop(unsafe { (*FORKING.0.get()).take() });
}

extern "C" fn end_fork_in_child() {
    // SAFETY: it is the thread of `prepare_fork`, the only one of the child.
    let Some(mut guards) = (unsafe { (*FORKING.0.get()).take() }) else { return };
    guards.session.forget_client();
    drop(guards);
    let _inside = InsideScope::enter();
    record_marks();
}

/// Prepares for another program that inherits the descriptors; `takes_over` if it runs in this
/// process.
pub(crate) fn prepare_program(takes_over: bool) {
    make_all_native();
    if takes_over {
        report_all(true);
    } else {
        closes::send_closes();
    }
    forget_dirs();
}

/// The environment of another program.
pub(crate) struct ProgramEnvironment {
    /// Keeps the texts that `pointers` has.
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl ProgramEnvironment {
    /// Returns the array for execve(2).
    pub(crate) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Returns the variables of a text array that ends with a null pointer.
fn list_texts(array: *const *const c_char) -> Vec<*const c_char> {
    let mut found = Vec::new();
    if array.is_null() {
        return found;
    }
    loop {
        // SAFETY: the array ends with a null pointer.
        let text = unsafe { *array.add(found.len()) };
        if text.is_null() {
            return found;
        }
        found.push(text);
    }
}

/// Adds to the program's variables what the library needs in the new program.
pub(crate) fn extend_environment(
    given: *const *const c_char,
    takes_over: bool,
) -> ProgramEnvironment {
    let mut wanted: Vec<(&str, Vec<u8>)> = HANDED_ON.get().cloned().unwrap_or_default();
    let cwd = working_dir().map(|dir| dir.program_path()).unwrap_or_default();
    wanted.push((CWD_VARIABLE, cwd));
    wanted.push((FILES_VARIABLE, encode_files(&list_handed(takes_over)).into_bytes()));
    let mut pointers = Vec::new();
    let mut preloaded: Vec<u8> = Vec::new();
    for text in list_texts(given) {
        // SAFETY: a text of the array.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
        let name = bytes.split(|b| *b == b'=').next().unwrap_or_default();
        if name == PRELOAD_VARIABLE.as_bytes() {
            preloaded = bytes.get(name.len() + 1..).unwrap_or_default().to_vec();
        }
        if !wanted.iter().any(|(wanted, _)| wanted.as_bytes() == name) {
            pointers.push(text);
        }
    }
    let mut texts = Vec::new();
    for (name, mut value) in wanted {
        if name == PRELOAD_VARIABLE {
            value = join_preloads(&preloaded, &value);
        }
        let text = [name.as_bytes(), b"=", &value].concat();
        texts.extend(CString::new(text));
    }
    pointers.extend(texts.iter().map(|text| text.as_ptr()));
    pointers.push(std::ptr::null());
    ProgramEnvironment { _texts: texts, pointers }
}

/// Returns the list of libraries to load, with this one.
fn join_preloads(given: &[u8], own: &[u8]) -> Vec<u8> {
    let mut parts = given.split(|b| matches!(b, b':' | b' '));
    if given.is_empty() {
        return own.to_vec();
    }
    if parts.any(|part| part == own) {
        return given.to_vec();
    }
    [given, b":", own].concat()
}

/// Sets the variables in this process's own environment, for functions of the C library that start
/// programs by themselves.
pub(crate) fn export_environment() {
    let cwd = working_dir().map(|dir| dir.program_path()).unwrap_or_default();
    let files = encode_files(&list_handed(false)).into_bytes();
    for (name, value) in [(CWD_VARIABLE, cwd), (FILES_VARIABLE, files)] {
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
        // SAFETY: both are texts; the program starts another one now, and does not change its
        // environment in the same moment.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
    }
}

/// A program to run.
pub(crate) enum Program {
    /// One of the machine, by this path if it is not the given one.
    Host(Option<CString>),
    /// One of the volume: a copy in memory.
    Copy(RawFd),
    /// A script of the volume: its interpreter, and the arguments before the script's own ones.
    Script(Vec<Vec<u8>>),
}

/// Finds a program by its path.
///
/// # Errors
/// Those of execve(2).
pub(crate) fn find_program(at: PathAt<'_>) -> Result<Program, Errno> {
    let Some(path) = at.path else { return Ok(Program::Host(None)) };
    let Some(start) = find_start(at.dirfd, path)? else { return Ok(Program::Host(None)) };
    let session = session()?;
    let found = match find(&session, start, true)? {
        PathTarget::Host(path) => return Ok(Program::Host(Some(path))),
        PathTarget::Inode(found) => found,
    };
    if found.attr.kind != InodeKind::File || !may_access(&found.attr, &cred(), 1) {
        return Err(Errno::EACCES);
    }
    // Execution needs no read permission, which only the superuser and the owner can leave out.
    let (attr, cap) = session.client.open(&cred(), found.attr.ino, Access::READ)?;
    let file = table::ProgramFile::new(attr.ino, attr.kind, Access::READ);
    *file.opened.lock() = Some((attr, cap));
    let data = data_of(&session, &file)?;
    let mut head = [0u8; INTERPRETER_MAX];
    let got = data.read_at(&mut head, 0)?;
    if let Some(line) = head[..got].strip_prefix(b"#!") {
        let parts = split_interpreter(line).ok_or(Errno(libc::ENOEXEC))?;
        return Ok(Program::Script(parts));
    }
    if !head[..got].starts_with(b"\x7fELF") {
        return Err(Errno(libc::ENOEXEC));
    }
    let name = CString::new(path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec());
    let name = name.unwrap_or_default();
    let flags = libc::MFD_CLOEXEC as usize;
    let fd = raw::call_int(libc::SYS_memfd_create, &[name.as_ptr() as usize, flags]);
    if fd < 0 {
        return Err(Errno(raw::errno()));
    }
    let mut step = vec![0; COPY_STEP];
    let mut offset = 0;
    loop {
        let n = data.read_at(&mut step, offset)?;
        if n == 0 {
            return Ok(Program::Copy(fd));
        }
        let args = [fd as usize, step.as_ptr() as usize, n, offset as usize];
        if raw::call(libc::SYS_pwrite64, &args) != n as i64 {
            raw::call(libc::SYS_close, &[fd as usize]);
            return Err(Errno::ENOMEM);
        }
        offset += n as u64;
    }
}

/// Returns the interpreter and its argument, if it has one.
fn split_interpreter(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let line = line.split(|b| *b == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t')).unwrap_or(line.len());
    if end == 0 {
        return None;
    }
    let argument = line[end..].trim_ascii();
    let mut parts = vec![line[..end].to_vec()];
    if !argument.is_empty() {
        parts.push(argument.to_vec());
    }
    Some(parts)
}

/// A program with its arguments, as execve(2) takes them.
pub(crate) struct ReadyProgram {
    path: Option<CString>,
    /// The copy of a program of the volume.
    pub(crate) copy: Option<RawFd>,
    _texts: Vec<CString>,
    arguments: Option<Vec<*const c_char>>,
}

impl ReadyProgram {
    /// Returns the path, if it is not the given one.
    pub(crate) fn path(&self) -> Option<*const c_char> {
        self.path.as_ref().map(|path| path.as_ptr())
    }

    /// Returns the arguments, if they are not the given ones.
    pub(crate) fn arguments(&self) -> Option<*const *const c_char> {
        self.arguments.as_ref().map(Vec::as_ptr)
    }
}

/// Finds a program, and its interpreter where it is a script of the volume.
///
/// # Errors
/// Those of execve(2).
pub(crate) fn ready_program(
    at: PathAt<'_>,
    arguments: *const *const c_char,
) -> Result<ReadyProgram, Errno> {
    let mut ready = ReadyProgram { path: None, copy: None, _texts: Vec::new(), arguments: None };
    let mut before: Vec<Vec<u8>> = Vec::new();
    let mut path = at.path.unwrap_or_default().to_vec();
    let mut dirfd = at.dirfd;
    for _ in 0..INTERPRETERS_MAX {
        match find_program(PathAt { dirfd, path: Some(&path) })? {
            Program::Host(host) => {
                let is_interpreter = !before.is_empty();
                ready.path = match host {
                    None if is_interpreter => CString::new(path).ok(),
                    host => host,
                };
            }
            Program::Copy(fd) => {
                ready.path = CString::new(format!("/proc/self/fd/{fd}")).ok();
                ready.copy = Some(fd);
            }
            Program::Script(parts) => {
                let mut parts = parts;
                if before.is_empty() {
                    parts.push(path);
                }
                path = parts[0].clone();
                dirfd = AT_FDCWD;
                before.splice(0..before.len().min(1), parts);
                continue;
            }
        }
        if !before.is_empty() {
            ready._texts = before.into_iter().filter_map(|text| CString::new(text).ok()).collect();
            let own = list_texts(arguments).into_iter().skip(1);
            let texts = ready._texts.iter().map(|text| text.as_ptr());
            ready.arguments = Some(texts.chain(own).chain([std::ptr::null()]).collect());
        }
        return Ok(ready);
    }
    Err(Errno::ELOOP)
}

/// Returns whether the machine's program at a path can be run: then it is worth to prepare for it.
pub(crate) fn is_executable(dirfd: c_int, path: *const c_char) -> bool {
    let x = libc::X_OK as usize;
    raw::call(libc::SYS_faccessat, &[dirfd as usize, path as usize, x]) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_its_interpreter_and_one_argument() {
        let split = |line: &str| {
            let parts = split_interpreter(line.as_bytes())?;
            Some(parts.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect::<Vec<_>>())
        };
        assert_eq!(split("/bin/sh\necho").as_deref(), Some(&["/bin/sh".to_owned()][..]));
        assert_eq!(
            split(" /usr/bin/env  python3 -u \n").map(|p| p.join("|")).as_deref(),
            Some("/usr/bin/env|python3 -u")
        );
        assert_eq!(split("\n"), None);
    }

    #[test]
    fn the_library_is_loaded_once() {
        assert_eq!(join_preloads(b"", b"/l.so"), b"/l.so");
        assert_eq!(join_preloads(b"/a.so /l.so", b"/l.so"), b"/a.so /l.so");
        assert_eq!(join_preloads(b"/a.so", b"/l.so"), b"/a.so:/l.so");
    }
}
