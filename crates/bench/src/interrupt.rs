//! An interrupted benchmark cleans up, too: volumes stop, mounts and work directories go.
//!
//! On SIGINT, SIGTERM and SIGHUP a thread ends the processes that this one has started. So what
//! waits for one of them fails, and every value on the way out removes what it has made. A second
//! signal ends this process at once.

use crate::error::{BenchError, io_error};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static WAS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// The pipe's end that the handler writes to.
static WRITE_END: AtomicI32 = AtomicI32::new(-1);
static PIPE: OnceLock<[OwnedFd; 2]> = OnceLock::new();

extern "C" fn note_signal(signal: libc::c_int) {
    if WAS_INTERRUPTED.swap(true, Ordering::SeqCst) {
        // SAFETY: _exit(2) may be called in a handler.
        unsafe { libc::_exit(128 + signal) };
    }
    let byte = [0u8];
    // SAFETY: write(2) may be called in a handler; the byte lives until it returns.
    unsafe { libc::write(WRITE_END.load(Ordering::SeqCst), byte.as_ptr().cast(), 1) };
}

/// Watches for interruptions from now on.
///
/// # Errors
/// Those of pipe(2) and of starting a thread.
pub fn watch_interruptions() -> Result<(), BenchError> {
    let (read, write) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|e| io_error("making a pipe")(e.into()))?;
    let [read, write] = PIPE.get_or_init(|| [read, write]);
    WRITE_END.store(write.as_raw_fd(), Ordering::SeqCst);
    let wait = move || {
        // Nothing else closes the pipe, so a return means a signal.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(read, &mut [0u8; 1]));
        end_children();
    };
    let started = std::thread::Builder::new().name("interrupts".into()).spawn(wait);
    started.map_err(io_error("starting a thread"))?;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an all-zero sigaction is a valid value, and the handler does only what may be
        // done in one. A new program starts without it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_signal as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
    Ok(())
}

/// Returns an error once the benchmark was interrupted. It is called before each step that starts
/// processes.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub fn check_interruption() -> Result<(), BenchError> {
    if WAS_INTERRUPTED.load(Ordering::SeqCst) { Err(BenchError::Interrupted) } else { Ok(()) }
}

/// Sends SIGTERM to all processes that this one has started.
fn end_children() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        for pid in pids.filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}
