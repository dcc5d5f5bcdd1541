//! The flag by which every thread learns that the node must end.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A flag that threads can wait for with poll(2). Once set, its descriptor stays readable for all
/// of them, because no thread reads the event.
#[derive(Debug)]
pub(crate) struct StopFlag {
    set: AtomicBool,
    event: OwnedFd,
}

impl StopFlag {
    pub(crate) fn new() -> io::Result<StopFlag> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(StopFlag { set: AtomicBool::new(false), event })
    }

    pub(crate) fn set(&self) {
        // The flag before the event: a thread that the event wakes must see the flag. `Release`
        // pairs with the `Acquire` of `is_set`.
        self.set.store(true, Ordering::Release);
        // Fails only when the counter is full, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Waits until the flag is set, at most `timeout`. Returns whether it is set.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // An interrupted wait is handled as one whose time is over: the caller calls again.
        let _ = poll(&mut fds, Some(&timeout));
        self.is_set()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }
}

impl AsFd for StopFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
