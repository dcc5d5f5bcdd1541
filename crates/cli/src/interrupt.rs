//! Ctrl-C for commands that copy: they finish the file in hand or drop it, and say what is done. A
//! second Ctrl-C ends the process at once.

use crate::error::{CommandFailure, CommandResult, ExitStatus, FailureContext};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::time::Duration;

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

/// Sets the flag as a signal does.
pub fn request_interrupt() {
    INTERRUPTED.store(true, Relaxed);
}

/// The signals that ask a process to end.
pub const END_SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Where the handler writes the numbers of signals.
static SIGNAL_WRITER: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_piped_signal(signal: libc::c_int) {
    if END_SIGNALS.contains(&signal) {
        INTERRUPTED.store(true, Relaxed);
    }
    let byte = u8::try_from(signal).unwrap_or_default();
    // SAFETY: write(2) may be called by a signal handler. It reads one byte of this stack, and the
    // descriptor lives for ever. The code that the signal interrupts finds its `errno` unchanged.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        libc::write(SIGNAL_WRITER.load(Relaxed), (&raw const byte).cast(), 1);
        *errno = kept;
    }
}

/// Signals as bytes of a pipe, for a process that waits for other events, too. A program that this
/// process starts has the default actions again.
#[derive(Debug)]
pub struct SignalPipe {
    reader: OwnedFd,
}

impl SignalPipe {
    /// Catches these signals from now on. A process has one such pipe.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn install(signals: &[libc::c_int]) -> CommandResult<SignalPipe> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (reader, writer) = pipe_with(flags).context(|| "a pipe for signals".to_owned())?;
        SIGNAL_WRITER.store(writer.into_raw_fd(), Relaxed);
        for signal in signals {
            // SAFETY: an all-zero sigaction is a valid value. The handler calls only functions
            // that a handler may call, and lives for ever.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction =
                    on_piped_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(*signal, &action, std::ptr::null_mut());
            }
        }
        Ok(SignalPipe { reader })
    }

    /// Returns the signals that have come since the last call.
    pub fn take_signals(&self) -> Vec<libc::c_int> {
        let mut bytes = [0; 64];
        let count = rustix::io::read(&self.reader, &mut bytes).unwrap_or(0);
        bytes[..count].iter().map(|byte| libc::c_int::from(*byte)).collect()
    }

    /// Waits until one of the descriptors can be read or is closed, until a signal comes, or until
    /// the time is over. Returns whether a signal has come, and then the same for each descriptor.
    pub fn wait_beside(&self, others: &[BorrowedFd], limit: Duration) -> (bool, Vec<bool>) {
        let mut all = vec![PollFd::new(&self.reader, PollFlags::IN)];
        all.extend(others.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let timeout = Timespec::try_from(limit).ok();
        // Interrupted by a signal: the caller waits again, and then finds it in the pipe.
        if poll(&mut all, timeout.as_ref()).is_err() {
            return (false, vec![false; others.len()]);
        }
        let ready = |fd: &PollFd| !fd.revents().is_empty();
        (ready(&all[0]), all[1..].iter().map(ready).collect())
    }
}

impl AsFd for SignalPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Makes this process ignore the signals that ask it to end.
pub fn ignore_end_signals() {
    for signal in END_SIGNALS {
        // SAFETY: an all-zero sigaction with SIG_IGN is a valid value.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_IGN;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}
