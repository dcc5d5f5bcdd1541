//! The boundary to C: the number that a call returns, and the sentence that goes with it.

use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tatami_tiled::TiledError;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Remembers why a call of this thread failed.
pub fn remember_error(why: &str) {
    let text = CString::new(why.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no use for it any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Returns the thread's last error, for `tio_error`.
pub fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// An error on its way to C.
pub enum CallFailure {
    /// An error of the engine.
    Engine(TiledError),
    /// An invalid argument.
    Argument(&'static str),
}

impl From<TiledError> for CallFailure {
    fn from(error: TiledError) -> CallFailure {
        CallFailure::Engine(error)
    }
}

impl CallFailure {
    fn errno_number(&self) -> i64 {
        let errno = match self {
            CallFailure::Engine(error) => error.errno,
            CallFailure::Argument(_) => Errno::INVAL,
        };
        -i64::from(errno.raw_os_error())
    }

    fn remember_failure(&self) {
        match self {
            CallFailure::Engine(error) => remember_error(&error.to_string()),
            CallFailure::Argument(what) => remember_error(what),
        }
    }
}

/// Runs `call`; errors and panics become negative numbers.
pub fn run_counted(call: impl FnOnce() -> Result<i64, CallFailure>) -> i64 {
    // A panic must not unwind into C: that is undefined behaviour.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(n)) => n,
        Ok(Err(failure)) => {
            failure.remember_failure();
            failure.errno_number()
        }
        Err(_) => {
            remember_error("an internal defect of libtatami_io (a panic)");
            -i64::from(libc::EIO)
        }
    }
}

/// Runs a call as [`run_counted`] does, where the result of a success is 0 or a small number.
pub fn run_status(call: impl FnOnce() -> Result<i32, CallFailure>) -> i32 {
    run_counted(|| call().map(i64::from)) as i32
}
