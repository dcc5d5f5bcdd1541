//! fork(2), execve(2), posix_spawn(3), wait(2), exit and their relatives.

use super::opens::open_at;
use crate::export::c_functions;
use crate::files::{make_all_native, report_all};
use crate::inside::{Outcome, route, routes_calls, run_quietly};
use crate::names::PathAt;
use crate::process::{
    export_environment, extend_environment, is_executable, prepare_program, ready_program,
};
use crate::raw::{self, ProgramText, next};
use crate::start::find_start;
use crate::umask;
use crate::walk::forget_dirs;
use libc::{AT_FDCWD, FILE, mode_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use tatami_wire::Errno;

type Texts = *const *const c_char;

unsafe extern "C" {
    static environ: Texts;
}

/// Replaces the program of this process.
fn exec_at(
    dirfd: c_int,
    path: *const c_char,
    arguments: Texts,
    given: Texts,
    flags: c_int,
) -> c_int {
    let text = ProgramText(path);
    let pass = |path: *const c_char, arguments: Texts, variables: Texts| {
        if dirfd == AT_FDCWD && flags == 0 {
            let args = [path as usize, arguments as usize, variables as usize];
            return raw::call_int(libc::SYS_execve, &args);
        }
        let (path, flags) = (path as usize, flags as usize);
        let args = [dirfd as usize, path, arguments as usize, variables as usize, flags];
        raw::call_int(libc::SYS_execveat, &args)
    };
    route(
        || {
            let bytes = text.bytes().unwrap_or_default();
            let is_own = find_start(dirfd, bytes)?.is_some();
            if !is_own && !bytes.is_empty() && !is_executable(dirfd, path) {
                return Ok(Outcome::Pass);
            }
            let ready = ready_program(PathAt { dirfd, path: text.bytes() }, arguments)?;
            prepare_program(true);
            let variables = extend_environment(given, true);
            let arguments = ready.arguments().unwrap_or(arguments);
            pass(ready.path().unwrap_or(path), arguments, variables.as_ptr());
            let error = Errno(raw::errno());
            if let Some(copy) = ready.copy {
                raw::call(libc::SYS_close, &[copy as usize]);
            }
            Err(error)
        },
        |_| pass(path, arguments, given),
    )
}

/// Returns the places where a program of this name may be, in the order of `PATH`.
fn search_places(name: &[u8]) -> Vec<CString> {
    // SAFETY: the name ends with a zero byte.
    let path = ProgramText(unsafe { libc::getenv(c"PATH".as_ptr()) });
    let path = path.bytes().unwrap_or(b"/bin:/usr/bin");
    let place = |dir: &[u8]| {
        let dir = if dir.is_empty() { b"." } else { dir };
        CString::new([dir, b"/", name].concat()).ok()
    };
    path.split(|b| *b == b':').filter_map(place).collect()
}

/// Runs a file that is no program with the shell, as execvp(3) does.
fn exec_with_shell(path: *const c_char, arguments: Texts, given: Texts) -> c_int {
    let mut all = vec![c"/bin/sh".as_ptr(), path];
    let mut at = 1;
    // SAFETY: the array ends with a null pointer.
    unsafe {
        if !arguments.is_null() && !(*arguments).is_null() {
            while !(*arguments.add(at)).is_null() {
                all.push(*arguments.add(at));
                at += 1;
            }
        }
    }
    all.push(std::ptr::null());
    exec_at(AT_FDCWD, c"/bin/sh".as_ptr(), all.as_ptr(), given, 0)
}

fn exec_found(name: *const c_char, arguments: Texts, given: Texts) -> c_int {
    let text = ProgramText(name);
    let bytes = text.bytes().unwrap_or_default();
    if bytes.is_empty() {
        raw::set_errno(libc::ENOENT);
        return -1;
    }
    let try_path = |path: *const c_char| {
        exec_at(AT_FDCWD, path, arguments, given, 0);
        if raw::errno() == libc::ENOEXEC {
            exec_with_shell(path, arguments, given);
        }
        raw::errno()
    };
    if bytes.contains(&b'/') {
        try_path(name);
        return -1;
    }
    let mut denied = false;
    let mut last = libc::ENOENT;
    for place in search_places(bytes) {
        last = try_path(place.as_ptr());
        match last {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return -1,
        }
    }
    raw::set_errno(if denied { libc::EACCES } else { last });
    -1
}

fn own_environment() -> Texts {
    // SAFETY: the C library's variable.
    unsafe { environ }
}

c_functions! {
    fn execve(path: *const c_char, arguments: Texts, given: Texts) -> c_int {
        exec_at(AT_FDCWD, path, arguments, given, 0)
    }
    fn execveat(
        dirfd: c_int,
        path: *const c_char,
        arguments: Texts,
        given: Texts,
        flags: c_int,
    ) -> c_int {
        exec_at(dirfd, path, arguments, given, flags)
    }
    fn fexecve(fd: c_int, arguments: Texts, given: Texts) -> c_int {
        exec_at(fd, c"".as_ptr(), arguments, given, libc::AT_EMPTY_PATH)
    }
    fn execv(path: *const c_char, arguments: Texts) -> c_int {
        exec_at(AT_FDCWD, path, arguments, own_environment(), 0)
    }
    fn execvp(name: *const c_char, arguments: Texts) -> c_int {
        exec_found(name, arguments, own_environment())
    }
    fn execvpe(name: *const c_char, arguments: Texts, given: Texts) -> c_int {
        exec_found(name, arguments, given)
    }
}

/// The functions with a list of arguments: `execl`, `execlp` and `execle`.
#[cfg(all(target_arch = "x86_64", not(test)))]
mod lists {
    use super::{AT_FDCWD, Texts, exec_at, exec_found, own_environment};
    use std::ffi::{c_char, c_int};

    /// Registers that pass arguments to a function.
    const REGISTERS: usize = 6;

    /// Returns the arguments after the first one, up to the null pointer, and the one after it.
    fn collect(registers: *const usize, stack: *const usize) -> (Vec<*const c_char>, usize) {
        let argument = |n: usize| {
            // SAFETY: the caller has passed so many arguments, and a null pointer ends them.
            unsafe {
                match n < REGISTERS {
                    true => *registers.add(n),
                    false => *stack.add(n - REGISTERS),
                }
            }
        };
        let mut found = Vec::new();
        let mut at = 1;
        while argument(at) != 0 {
            found.push(argument(at) as *const c_char);
            at += 1;
        }
        found.push(std::ptr::null());
        (found, at + 1)
    }

    fn first(registers: *const usize) -> *const c_char {
        // SAFETY: the saved registers of the call.
        unsafe { *registers as *const c_char }
    }

    extern "C" fn run_list(registers: *const usize, stack: *const usize) -> c_int {
        let (arguments, _) = collect(registers, stack);
        exec_at(AT_FDCWD, first(registers), arguments.as_ptr(), own_environment(), 0)
    }

    extern "C" fn run_list_path(registers: *const usize, stack: *const usize) -> c_int {
        let (arguments, _) = collect(registers, stack);
        exec_found(first(registers), arguments.as_ptr(), own_environment())
    }

    extern "C" fn run_list_environment(registers: *const usize, stack: *const usize) -> c_int {
        let (arguments, after) = collect(registers, stack);
        // SAFETY: the environment follows the null pointer.
        let given = unsafe {
            match after < REGISTERS {
                true => *registers.add(after),
                false => *stack.add(after - REGISTERS),
            }
        };
        exec_at(AT_FDCWD, first(registers), arguments.as_ptr(), given as Texts, 0)
    }

    macro_rules! list_function {
        ($name:ident, $run:ident) => {
            /// Saves the registers, and passes their place and that of the other arguments.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                std::arch::naked_asm!(
                    "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi",
                    "mov rdi, rsp",
                    "lea rsi, [rsp + 56]",
                    "sub rsp, 8",
                    "call {run}",
                    "add rsp, 56",
                    "ret",
                    run = sym $run,
                )
            }
        };
    }

    list_function!(execl, run_list);
    list_function!(execlp, run_list_path);
    list_function!(execle, run_list_environment);
}

type SpawnFunction = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    Texts,
    Texts,
) -> c_int;

/// Starts a program; the result is the error.
fn spawn(
    spawn: SpawnFunction,
    child: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Texts,
    given: Texts,
) -> c_int {
    // SAFETY: the arguments are those of the program for the same function.
    let pass = |path, arguments, given| unsafe {
        spawn(child, path, actions, attributes, arguments, given)
    };
    if !routes_calls() {
        return pass(path, arguments, given);
    }
    let text = ProgramText(path);
    let before = raw::errno();
    let mut result = 0;
    let done: c_int = route(
        || {
            let ready = ready_program(PathAt { dirfd: AT_FDCWD, path: text.bytes() }, arguments)?;
            prepare_program(false);
            let variables = extend_environment(given, false);
            let arguments = ready.arguments().unwrap_or(arguments);
            result = pass(ready.path().unwrap_or(path), arguments, variables.as_ptr());
            if let Some(copy) = ready.copy {
                raw::call(libc::SYS_close, &[copy as usize]);
            }
            Ok(Outcome::Done(0))
        },
        |_| 0,
    );
    if done != 0 {
        result = raw::errno();
        raw::set_errno(before);
    }
    result
}

fn spawn_by_path() -> Option<SpawnFunction> {
    static NEXT: raw::NextFunction = raw::NextFunction::new(c"posix_spawn");
    find_spawn(&NEXT)
}

fn spawn_by_name() -> Option<SpawnFunction> {
    static NEXT: raw::NextFunction = raw::NextFunction::new(c"posix_spawnp");
    find_spawn(&NEXT)
}

fn find_spawn(next: &raw::NextFunction) -> Option<SpawnFunction> {
    match next.find_address() {
        0 => None,
        // SAFETY: the C library declares both functions with this type.
        address => Some(unsafe { std::mem::transmute::<usize, SpawnFunction>(address) }),
    }
}

/// Returns the path of a program of this name, if it is one of the volume.
fn find_own_program(name: *const c_char) -> Option<CString> {
    let text = ProgramText(name);
    let bytes = text.bytes().filter(|name| !name.is_empty())?;
    if bytes.contains(&b'/') {
        return None;
    }
    search_places(bytes).into_iter().find(|place| {
        // SAFETY: a text that ends with a zero byte.
        unsafe { super::attributes::access(place.as_ptr(), libc::X_OK) == 0 }
    })
}

c_functions! {
    fn posix_spawn(
        child: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: Texts,
        given: Texts,
    ) -> c_int {
        let Some(next) = spawn_by_path() else { return libc::ENOSYS };
        spawn(next, child, path, actions, attributes, arguments, given)
    }
    fn posix_spawnp(
        child: *mut pid_t,
        name: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: Texts,
        given: Texts,
    ) -> c_int {
        let Some(next) = spawn_by_name() else { return libc::ENOSYS };
        if !routes_calls() {
            return spawn(next, child, name, actions, attributes, arguments, given);
        }
        match find_own_program(name) {
            Some(path) => {
                spawn(next, child, path.as_ptr(), actions, attributes, arguments, given)
            }
            None => spawn(next, child, name, actions, attributes, arguments, given),
        }
    }
    fn posix_spawn_file_actions_addopen(
        actions: *mut posix_spawn_file_actions_t,
        fd: c_int,
        path: *const c_char,
        flags: c_int,
        mode: mode_t,
    ) -> c_int {
        let text = ProgramText(path);
        let is_own = routes_calls()
            && text.bytes().is_some_and(|p| matches!(find_start(AT_FDCWD, p), Ok(Some(_))));
        if !is_own {
            return next!(posix_spawn_file_actions_addopen(
                actions => *mut posix_spawn_file_actions_t, fd => c_int, path => *const c_char,
                flags => c_int, mode => mode_t
            ) -> c_int, libc::ENOSYS);
        }
        // Opened now: the new process cannot. It stays open until this process ends.
        let opened = open_at(AT_FDCWD, path, flags | libc::O_CLOEXEC, mode);
        if opened < 0 {
            return raw::errno();
        }
        run_quietly(make_all_native);
        next!(posix_spawn_file_actions_adddup2(
            actions => *mut posix_spawn_file_actions_t, opened => c_int, fd => c_int
        ) -> c_int, libc::ENOSYS)
    }
    fn vfork() -> pid_t {
        // The child of a vfork(2) shares the memory of its parent, and so would use its client.
        next!(fork() -> pid_t, -1)
    }
    fn system(command: *const c_char) -> c_int {
        start_by_library();
        let done = next!(system(command => *const c_char) -> c_int, -1);
        run_quietly(forget_dirs);
        done
    }
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        start_by_library();
        next!(popen(command => *const c_char, mode => *const c_char) -> *mut FILE, null_mut())
    }
    fn pclose(stream: *mut FILE) -> c_int {
        let done = next!(pclose(stream => *mut FILE) -> c_int, -1);
        run_quietly(forget_dirs);
        done
    }
}

/// Prepares for a function of the C library that starts a program by itself.
fn start_by_library() {
    run_quietly(|| {
        prepare_program(false);
        export_environment();
    });
}

/// Ends a wait for another process: it may have moved directories.
fn after_wait(done: c_int) -> c_int {
    run_quietly(forget_dirs);
    done
}

fn wait_for(child: pid_t, status: *mut c_int, flags: c_int, usage: *mut c_void) -> pid_t {
    let args = [child as usize, status as usize, flags as usize, usage as usize];
    after_wait(raw::call_int(libc::SYS_wait4, &args))
}

fn leave(status: c_int) -> ! {
    run_quietly(|| report_all(true));
    loop {
        raw::call(libc::SYS_exit_group, &[status as usize]);
    }
}

c_functions! {
    fn wait(status: *mut c_int) -> pid_t { wait_for(-1, status, 0, null_mut()) }
    fn waitpid(child: pid_t, status: *mut c_int, flags: c_int) -> pid_t {
        wait_for(child, status, flags, null_mut())
    }
    fn wait3(status: *mut c_int, flags: c_int, usage: *mut c_void) -> pid_t {
        wait_for(-1, status, flags, usage)
    }
    fn wait4(child: pid_t, status: *mut c_int, flags: c_int, usage: *mut c_void) -> pid_t {
        wait_for(child, status, flags, usage)
    }
    fn waitid(kind: c_uint, id: c_uint, info: *mut c_void, flags: c_int) -> c_int {
        let args = [kind as usize, id as usize, info as usize, flags as usize, 0];
        after_wait(raw::call_int(libc::SYS_waitid, &args))
    }
    fn _exit(status: c_int) -> ! { leave(status) }
    #[allow(non_snake_case)] // its name in C
    fn _Exit(status: c_int) -> ! { leave(status) }
    fn umask(mask: mode_t) -> mode_t { umask::set(mask) }
}
