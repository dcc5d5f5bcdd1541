//! SIGTERM and SIGINT as a flag that a thread can wait for.

use crate::stop::StopFlag;
use std::io;
use std::sync::OnceLock;

static SIGNALLED: OnceLock<StopFlag> = OnceLock::new();

extern "C" fn on_signal(_: libc::c_int) {
    // Only an atomic store and write(2): both are async-signal-safe.
    if let Some(stop) = SIGNALLED.get() {
        stop.set();
    }
}

/// Makes SIGTERM and SIGINT set the returned flag instead of ending the process. A file over
/// RLIMIT_FSIZE becomes an error instead of a signal.
///
/// # Errors
/// When the system has no descriptor left.
pub(crate) fn catch_signals() -> io::Result<&'static StopFlag> {
    if SIGNALLED.get().is_none() {
        let stop = StopFlag::new()?;
        // Another thread may have been faster; then its flag is used.
        let _ = SIGNALLED.set(stop);
    }
    // The flag exists before the handlers: a signal that comes at once must find it.
    let install = |signal, handler| {
        // SAFETY: an all-zero sigaction is a valid value. The handler makes only async-signal-safe
        // calls, and lives for ever.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    };
    let handler = on_signal as extern "C" fn(libc::c_int);
    install(libc::SIGTERM, handler as libc::sighandler_t);
    install(libc::SIGINT, handler as libc::sighandler_t);
    install(libc::SIGXFSZ, libc::SIG_IGN);
    Ok(SIGNALLED.get().expect("it was set above"))
}
