//! Validity of the kernel's page cache.
//!
//! The kernel may keep pages of a remote file from one open to the next if the bytes have not
//! changed. The mount asks the node that has the bytes. That node's disk knows every write at once,
//! also those through mappings, which the shard does not see.
//!
//! A store through a mapping changes the times of the file only after the disk's kernel has written
//! the page back. So a state counts only if it is older than the longest delay of a write-back.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tatami_client::DataFile;
use tatami_wire::object::ObjectState;
use tatami_wire::{Attr, Errno, Ino, Timestamp, hash};

/// Most files in the table. It is cleared when full.
const FILES_MAX: usize = 64 * 1024;
/// Longest delay of a page's write-back in seconds (usually 35), with much room for clocks that
/// differ.
const SETTLED_SEC: i64 = 180;

/// The states of files at their last open for cached reading.
#[derive(Default)]
pub(crate) struct PageValidity(Mutex<HashMap<Ino, Option<ObjectState>, hash::HashBuilder>>);

impl PageValidity {
    /// Records an open of a file. Returns whether the kernel may keep its cached pages.
    ///
    /// # Errors
    /// Those of the object's node.
    pub(crate) fn record_open(&self, attr: &Attr, data: &DataFile) -> Result<bool, Errno> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp::from_sec(now.as_secs() as i64);
        let known = self.0.lock().contains_key(&attr.ino);
        // Ask the node only if the answer may be yes.
        let state = match known && is_settled(attr.mtime, now) {
            true => Some(data.stat()?).filter(|state| is_settled(state.changed, now)),
            false => None,
        };
        Ok(self.record_state(attr.ino, state))
    }

    fn record_state(&self, ino: Ino, state: Option<ObjectState>) -> bool {
        let mut stamps = self.0.lock();
        if stamps.len() >= FILES_MAX && !stamps.contains_key(&ino) {
            stamps.clear();
        }
        let before = stamps.insert(ino, state).flatten();
        before.is_some() && before == state
    }

    /// Records a change of the bytes through this mount.
    pub(crate) fn forget_state(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }
}

fn is_settled(time: Timestamp, now: Timestamp) -> bool {
    time.plus_sec(SETTLED_SEC) < now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_keeps_what_is_of_the_same_state() {
        let stamps = PageValidity::default();
        let state = ObjectState { exists: true, size: 5, ..ObjectState::default() };
        let other = ObjectState { changed: Timestamp::from_sec(9), ..state };
        assert!(!stamps.record_state(Ino(5), None));
        assert!(!stamps.record_state(Ino(5), None));
        assert!(!stamps.record_state(Ino(5), Some(state)));
        assert!(stamps.record_state(Ino(5), Some(state)));
        assert!(!stamps.record_state(Ino(5), Some(other)));
        stamps.forget_state(Ino(5));
        assert!(!stamps.record_state(Ino(5), Some(other)));
    }

    #[test]
    fn a_fresh_state_does_not_count() {
        let now = Timestamp::from_sec(1000);
        assert!(!is_settled(Timestamp::from_sec(999), now));
        assert!(!is_settled(Timestamp::from_sec(1000 - SETTLED_SEC), now));
        assert!(is_settled(Timestamp::from_sec(999 - SETTLED_SEC), now));
    }
}
