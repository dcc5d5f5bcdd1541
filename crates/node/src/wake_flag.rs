//! A flag that wakes a sleeping thread.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// Wakes housekeeping when there may be work for it.
#[derive(Default)]
pub(crate) struct WakeFlag {
    wanted: Mutex<bool>,
    changed: Condvar,
}

impl WakeFlag {
    pub(crate) fn wake_up(&self) {
        // A flag, not a count: any number of wake-ups before the next pass are one.
        let mut wanted = self.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.changed.notify_one();
        }
    }

    /// Waits for a wake-up, at most `timeout`. Returns whether there was one.
    pub(crate) fn wait_for_wake(&self, timeout: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        // The flag may have been set while housekeeping was busy; then it does not sleep.
        if !*wanted {
            self.changed.wait_for(&mut wanted, timeout);
        }
        std::mem::take(&mut *wanted)
    }
}
