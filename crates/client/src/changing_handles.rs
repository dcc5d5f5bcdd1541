//! The handles of a client that are in the middle of changes to files that keep versions.

use parking_lot::Mutex;
use std::collections::HashMap;
use tatami_wire::Ino;

/// What a handle has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HandleChanges {
    /// No change yet.
    #[default]
    None,
    /// Changes since the last flush.
    UnderWay,
    /// Changes that are flushed.
    Flushed,
}

/// The handles of this client that are in the middle of changes, by inode.
#[derive(Default)]
pub(crate) struct ChangingHandles(Mutex<HashMap<Ino, u32>>);

impl ChangingHandles {
    /// Adds a handle. Returns whether it is the only one.
    pub(crate) fn add_handle(&self, ino: Ino) -> bool {
        let mut handles = self.0.lock();
        let count = handles.entry(ino).or_default();
        *count += 1;
        *count == 1
    }

    pub(crate) fn remove_handle(&self, ino: Ino) {
        let mut handles = self.0.lock();
        if let Some(count) = handles.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                handles.remove(&ino);
            }
        }
    }

    pub(crate) fn has_handle(&self, ino: Ino) -> bool {
        self.0.lock().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_handle_in_the_middle_of_changes_is_the_only_one() {
        let handles = ChangingHandles::default();
        assert!(handles.add_handle(Ino(5)));
        assert!(!handles.add_handle(Ino(5)) && handles.add_handle(Ino(6)));
        handles.remove_handle(Ino(5));
        assert!(handles.has_handle(Ino(5)) && !handles.add_handle(Ino(5)));
        handles.remove_handle(Ino(5));
        handles.remove_handle(Ino(5));
        assert!(!handles.has_handle(Ino(5)) && handles.has_handle(Ino(6)));
    }
}
