//! The input of `tatami host serve`: it ends when the other side closes it, when a signal asks this
//! process to end, or when the other side of a held connection is silent for too long.

use crate::error::CommandResult;
use crate::interrupt::{END_SIGNALS, SignalPipe};
use std::cell::Cell;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

/// How often the side that holds a connection gives a sign of life.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Longest silence of that side. It is counted in pauses, so that a process that was stopped with
/// the whole job, and then continues, waits anew.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSES_MAX: u32 = 18;
/// Longest wait of that side for the reply to a sign of life.
pub const LEASE: Duration = Duration::from_secs(5 * 18);

/// Standard input with a lease.
pub struct LeasedInput {
    signals: SignalPipe,
    is_held: Rc<Cell<bool>>,
    has_ended: bool,
}

impl LeasedInput {
    /// Catches the signals that ask this process to end. The lease begins when `is_held` is set.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn start(is_held: Rc<Cell<bool>>) -> CommandResult<LeasedInput> {
        Ok(LeasedInput { signals: SignalPipe::install(&END_SIGNALS)?, is_held, has_ended: false })
    }
}

impl Read for LeasedInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        let mut silent = 0;
        while !self.has_ended {
            let (has_signal, ready) = self.signals.wait_beside(&[stdin.as_fd()], PAUSE);
            if has_signal {
                self.has_ended = true;
            } else if ready[0] {
                // Not through the buffer of the standard library, which `poll` does not see.
                return rustix::io::read(stdin.as_fd(), buffer).map_err(io::Error::from);
            } else {
                silent += 1;
                self.has_ended = self.is_held.get() && silent >= PAUSES_MAX;
            }
        }
        Ok(0)
    }
}
