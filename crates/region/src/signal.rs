//! A signal that one thread waits for and any other raises.

use parking_lot::{Condvar, Mutex};

/// See the module. A signal that is raised twice before the wait counts once.
#[derive(Debug, Default)]
pub struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Raises the signal.
    pub fn raise(&self) {
        *self.raised.lock() = true;
        self.changed.notify_one();
    }

    /// Waits until the signal is raised, and takes it.
    pub fn wait(&self) {
        let mut raised = self.raised.lock();
        while !std::mem::take(&mut *raised) {
            self.changed.wait(&mut raised);
        }
    }
}
