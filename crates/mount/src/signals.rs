//! SIGTERM and SIGINT as an event that can be waited for together with others.

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// The descriptor that the handler writes to; -1 before there is one.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static EVENT: OnceLock<Arc<OwnedFd>> = OnceLock::new();

/// An event that signals, and anybody else, can raise.
#[derive(Clone)]
pub(crate) struct Event(Arc<OwnedFd>);

extern "C" fn on_signal(_: libc::c_int) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: write(2) may be called in a signal handler, and `one` outlives it.
    unsafe { libc::write(WAKE.load(SeqCst), one.as_ptr().cast(), one.len()) };
}

impl Event {
    /// The event of this process: from now on SIGTERM and SIGINT raise it
    /// instead of ending the process.
    ///
    /// # Errors
    /// When the system is short of descriptors.
    pub(crate) fn of_signals() -> Result<Event, Errno> {
        let fd = match EVENT.get() {
            Some(fd) => fd.clone(),
            None => {
                let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
                EVENT.get_or_init(|| Arc::new(fd)).clone()
            }
        };
        WAKE.store(fd.as_raw_fd(), SeqCst);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: all zero is a valid sigaction; the handler only does
            // what is allowed in one, and the event lives as long as the process.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        Ok(Event(fd))
    }

    /// Raises it.
    pub(crate) fn raise(&self) {
        // It cannot fail while the counter is below 2^64 - 1.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until it has been raised.
    pub(crate) fn wait(&self) {
        let mut count = [0; 8];
        while rustix::io::read(&self.0, &mut count) == Err(Errno::INTR) {}
    }
}
