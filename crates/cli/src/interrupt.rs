//! Ctrl-C for commands that copy: they finish the file in hand or drop it, and say what is done. A
//! second Ctrl-C ends the process at once.

use crate::error::{CommandFailure, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    // An atomic store is all that a signal handler does here.
    INTERRUPTED.store(true, Relaxed);
}

/// Makes the first SIGINT or SIGTERM set a flag instead of ending the process.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: an all-zero sigaction is a valid value. The handler only stores an atomic, and
        // lives for ever.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // Without SA_RESTART a read from a silent pipe ends, too.
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Whether a signal has come.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Returns an error once a signal has come.
///
/// # Errors
/// The command was interrupted; the caller says what is done.
pub fn check_interrupt() -> Result<(), CommandFailure> {
    match is_interrupted() {
        true => Err(CommandFailure {
            exit: ExitStatus::Interrupted,
            ..CommandFailure::new("interrupted")
        }),
        false => Ok(()),
    }
}
