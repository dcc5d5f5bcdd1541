//! Watches the input while the I/O process waits for a lock. A process that waits reads nothing, so
//! it would not notice that the program at the other site has ended.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Whether this process waits for a lock, and whether its input has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct LockWatch {
    is_waiting: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
}

impl LockWatch {
    /// Starts the thread that watches `input`.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn start(input: OwnedFd) -> io::Result<LockWatch> {
        let watch = LockWatch::default();
        let of_thread = watch.clone();
        let body = move || {
            // Only its end counts, not the bytes that arrive.
            let mut events = [PollFd::new(&input, PollFlags::RDHUP)];
            while poll(&mut events, None) == Err(rustix::io::Errno::INTR) {}
            of_thread.has_ended.store(true, Ordering::SeqCst);
            if of_thread.is_waiting.load(Ordering::SeqCst) {
                end_this_process();
            }
        };
        thread::Builder::new().name("lock-watch".to_owned()).spawn(body)?;
        Ok(watch)
    }

    /// Runs a wait for a lock. This process ends if its input ends meanwhile.
    pub(crate) fn run_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.is_waiting.store(true, Ordering::SeqCst);
        if self.has_ended.load(Ordering::SeqCst) {
            end_this_process();
        }
        let result = wait();
        self.is_waiting.store(false, Ordering::SeqCst);
        result
    }
}

fn end_this_process() {
    // The call fails only for a process that does not exist.
    let _ = kill_process(getpid(), Signal::TERM);
}
