//! The boundary to C: the number that a call returns, and the sentence that goes with it.

use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tatami_tiled::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Remembers why a call of this thread failed.
pub fn remember(why: &str) {
    let text = CString::new(why.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no use for it any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Returns the thread's last error, for `tio_error`.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// An error on its way to C.
pub enum Failure {
    /// An error of the engine.
    Engine(Error),
    /// An invalid argument.
    Argument(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Engine(error)
    }
}

impl Failure {
    fn number(&self) -> i64 {
        let errno = match self {
            Failure::Engine(error) => error.errno,
            Failure::Argument(_) => Errno::INVAL,
        };
        -i64::from(errno.raw_os_error())
    }

    fn remember(&self) {
        match self {
            Failure::Engine(error) => remember(&error.to_string()),
            Failure::Argument(what) => remember(what),
        }
    }
}

/// Runs `call`; errors and panics become negative numbers.
pub fn count(call: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    // A panic must not unwind into C: that is undefined behaviour.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(n)) => n,
        Ok(Err(failure)) => {
            failure.remember();
            failure.number()
        }
        Err(_) => {
            remember("an internal defect of libtatami_io (a panic)");
            -i64::from(libc::EIO)
        }
    }
}

/// As [`count`], for calls whose success is 0 or a small number.
pub fn status(call: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    count(|| call().map(i64::from)) as i32
}
