//! The writes of an inode whose replies have not come, and the errors of those that failed.

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

/// Writes under way, and failures.
#[derive(Debug, Default)]
pub(crate) struct WriteState {
    counts: Mutex<WriteCounts>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct WriteCounts {
    under_way: usize,
    failures: u64,
    last: Option<Errno>,
}

impl WriteState {
    /// Counts a write that is about to be sent.
    pub(crate) fn begin_write(&self) {
        self.counts.lock().under_way += 1;
    }

    /// Counts the reply to a write.
    pub(crate) fn end_write(&self, result: Result<(), Errno>) {
        let mut counts = self.counts.lock();
        counts.under_way -= 1;
        if let Err(errno) = result {
            counts.failures += 1;
            counts.last = Some(errno);
        }
        if counts.under_way == 0 {
            self.done.notify_all();
        }
    }

    /// Returns the number of failures so far, for [`WriteState::check_since`].
    pub(crate) fn count_failures(&self) -> u64 {
        self.counts.lock().failures
    }

    /// Checks that no write has failed since `failures` were counted. An open file keeps an error
    /// until it is closed: nothing may seem to be written that is not.
    ///
    /// # Errors
    /// The last failure.
    pub(crate) fn check_since(&self, failures: u64) -> Result<(), Errno> {
        let counts = self.counts.lock();
        match counts.failures > failures {
            true => Err(counts.last.unwrap_or(Errno::IO)),
            false => Ok(()),
        }
    }

    /// Waits until no write is under way. The session answers each within a bounded time.
    pub(crate) fn await_writes(&self) {
        let mut counts = self.counts.lock();
        self.done.wait_while(&mut counts, |counts| counts.under_way > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_stays_for_files_that_were_open_before_it() {
        let state = WriteState::default();
        let before = state.count_failures();
        state.begin_write();
        state.begin_write();
        state.end_write(Err(Errno::NOSPC));
        state.end_write(Ok(()));
        state.await_writes();
        for _ in 0..2 {
            assert_eq!(state.check_since(before), Err(Errno::NOSPC));
        }
        assert_eq!(state.check_since(state.count_failures()), Ok(()));
    }
}
