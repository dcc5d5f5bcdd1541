//! SIGTERM and SIGINT as an event that a thread can wait for.

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// The descriptor that the signal handler writes to; -1 if there is none yet.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static EVENT: OnceLock<Arc<OwnedFd>> = OnceLock::new();

/// An event that signals and other threads can raise.
#[derive(Clone)]
pub(crate) struct SignalEvent(Arc<OwnedFd>);

extern "C" fn on_signal(_: libc::c_int) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: write(2) may be called in a signal handler, and `one` outlives it.
    unsafe { libc::write(WAKE.load(SeqCst), one.as_ptr().cast(), one.len()) };
}

impl SignalEvent {
    /// Returns the event of this process. From now on SIGTERM and SIGINT raise it and do not end
    /// the process.
    ///
    /// # Errors
    /// When the system is short of descriptors.
    pub(crate) fn from_signals() -> Result<SignalEvent, Errno> {
        let fd = match EVENT.get() {
            Some(fd) => fd.clone(),
            None => {
                let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
                EVENT.get_or_init(|| Arc::new(fd)).clone()
            }
        };
        WAKE.store(fd.as_raw_fd(), SeqCst);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: an all-zero sigaction is valid. The handler only calls async-signal-safe
            // functions, and its descriptor lives as long as the process.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        Ok(SignalEvent(fd))
    }

    /// Raises the event.
    pub(crate) fn raise(&self) {
        // The write cannot fail while the counter is below 2^64 - 1.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until the event is raised.
    pub(crate) fn wait(&self) {
        let mut count = [0; 8];
        while rustix::io::read(&self.0, &mut count) == Err(Errno::INTR) {}
    }
}
