//! Repeated attempts to reach a daemon.

use crate::awaited_node::{AwaitedNode, WaitReason};
use crate::waiting::Silence;
use std::time::Duration;

/// First and longest pause between attempts to reach a daemon that is away.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_LONGEST: Duration = Duration::from_millis(250);

/// Repeats attempts until a deadline, with growing pauses.
pub(crate) struct Retry {
    pub(crate) silence: Silence,
    patience: Duration,
    pause: Duration,
}

impl Retry {
    pub(crate) fn new(patience: Duration) -> Retry {
        Retry { silence: Silence::new(Duration::ZERO), patience, pause: PAUSE_FIRST }
    }

    /// Returns how long an attempt may still wait.
    pub(crate) fn time_left(&self) -> Duration {
        self.silence.time_left(self.patience)
    }

    /// Waits a little. Returns false when the time is over, or when the program that asked is being
    /// ended.
    pub(crate) fn pause(&mut self) -> bool {
        if self.silence.continue_waiting(self.patience).is_err() {
            return false;
        }
        #[allow(clippy::disallowed_methods)] // a daemon that is down sends no event
        std::thread::sleep(self.pause.min(self.time_left()));
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        true
    }

    /// As [`Retry::pause`], while `node` is away.
    pub(crate) fn pause_for(&mut self, node: &AwaitedNode, reason: WaitReason) -> bool {
        let goes_on = self.pause();
        if goes_on {
            node.record_wait(reason, &self.silence, self.patience);
        }
        goes_on
    }

    /// Records that a reply came.
    pub(crate) fn record_answer(&self) {
        self.silence.record_answer();
    }
}
