//! Opens that rank 0 has begun and not opened yet, with the state that it keeps for them.

use parking_lot::Mutex;

/// Most begun opens that are kept; the oldest was surely abandoned.
const BEGUN_MAX: usize = 64;

/// The begun opens of this process, by number.
pub struct BegunOpens<T>(Mutex<Vec<(u64, T)>>);

impl<T> BegunOpens<T> {
    /// None yet.
    pub const fn new() -> BegunOpens<T> {
        BegunOpens(Mutex::new(Vec::new()))
    }

    /// Keeps the state of an open until it is taken.
    pub fn keep_open(&self, open: u64, state: T) {
        let mut begun = self.0.lock();
        // A program may begin an open and never open it; its files must not stay open for ever.
        if begun.len() >= BEGUN_MAX {
            begun.remove(0);
        }
        begun.push((open, state));
    }

    /// Takes the state of an open, if this process has begun it.
    pub fn take_open(&self, open: u64) -> Option<T> {
        let mut begun = self.0.lock();
        let at = begun.iter().position(|(number, _)| *number == open)?;
        Some(begun.remove(at).1)
    }
}
