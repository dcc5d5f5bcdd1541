//! How every thread learns that the node is to end.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A flag that can be waited for with poll(2): once set, its descriptor stays
/// readable for everybody.
#[derive(Debug)]
pub(crate) struct Stop {
    set: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Stop> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { set: AtomicBool::new(false), event })
    }

    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::Release);
        // Fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Waits until it is set, no longer than `timeout`. Whether it is.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // Interrupted is as good as a time that is over: the caller comes again.
        let _ = poll(&mut fds, Some(&timeout));
        self.is_set()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
