//! The boundary to the program: which calls are routed, and how their results go back.
//!
//! The client library itself opens files and uses sockets. While a thread works inside this
//! library, all its calls go straight to the kernel.

use crate::raw;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tatami_wire::Errno;

thread_local! {
    /// The depth of calls of this library in this thread. It has no destructor, so that it works
    /// until the end of the thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether there is a volume for this process.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Begins to route calls.
pub(crate) fn activate() {
    ACTIVE.store(true, Relaxed);
}

/// Returns whether calls of this thread are routed.
pub(crate) fn routes_calls() -> bool {
    ACTIVE.load(Relaxed) && DEPTH.get() == 0
}

/// The time in which a thread works inside this library.
pub(crate) struct InsideScope(());

impl InsideScope {
    pub(crate) fn enter() -> InsideScope {
        DEPTH.set(DEPTH.get() + 1);
        InsideScope(())
    }
}

impl Drop for InsideScope {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// What becomes of a call.
pub(crate) enum Outcome<T> {
    /// The volume has answered.
    Done(T),
    /// The call is not about the volume: it goes on as it is.
    Pass,
    /// The path has led out of the volume, to this path of the machine.
    PassAt(CString),
}

/// The result of a call that has failed.
pub(crate) trait FailedResult {
    const FAILED: Self;
}

impl FailedResult for c_int {
    const FAILED: c_int = -1;
}

impl FailedResult for isize {
    const FAILED: isize = -1;
}

impl FailedResult for i64 {
    const FAILED: i64 = -1;
}

impl<T> FailedResult for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Runs `work` inside the library if calls are routed, and `pass` with the path that has led out
/// otherwise. A panic becomes `EIO`: it must not unwind into the program.
pub(crate) fn route<T: FailedResult>(
    work: impl FnOnce() -> Result<Outcome<T>, Errno>,
    pass: impl FnOnce(Option<&CStr>) -> T,
) -> T {
    if !routes_calls() {
        return pass(None);
    }
    let before = raw::errno();
    let done = {
        let _inside = InsideScope::enter();
        catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::EIO))
    };
    raw::set_errno(before);
    match done {
        Ok(Outcome::Done(value)) => value,
        Ok(Outcome::Pass) => pass(None),
        Ok(Outcome::PassAt(path)) => pass(Some(&path)),
        Err(errno) => {
            raw::set_errno(errno.0);
            T::FAILED
        }
    }
}

/// Runs work that has no result for the program.
pub(crate) fn run_quietly(work: impl FnOnce()) {
    if !routes_calls() {
        return;
    }
    let before = raw::errno();
    {
        let _inside = InsideScope::enter();
        // A panic has printed its message already.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }
    raw::set_errno(before);
}

/// Prints one line for the user; `once` makes sure that a process prints it once.
pub(crate) fn warn_once(once: &AtomicBool, text: &str) {
    if once.swap(true, Relaxed) {
        return;
    }
    let line = format!("tatami-preload: {text}\n");
    raw::call(libc::SYS_write, &[2, line.as_ptr() as usize, line.len()]);
}
