//! The handles of a client that are in the middle of changes to files that keep versions.
//!
//! The client seals a file when no handle is in the middle of changes. A handle that begins changes
//! meanwhile waits for that: else the seal could come between two of its writes, and the half of a
//! state would become a version.

use crate::waiting::lock_interruptibly;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use tatami_wire::{Errno, Ino};

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

/// One inode.
#[derive(Default)]
struct ChangingInode {
    /// Handles in the middle of changes.
    handles: AtomicU32,
    /// Held while a handle is added, and during a seal.
    order: Mutex<()>,
}

/// The inodes with handles of this client that are in the middle of changes, or that are sealed
/// now.
#[derive(Default)]
pub(crate) struct ChangingHandles(Mutex<HashMap<Ino, Arc<ChangingInode>>>);

impl ChangingHandles {
    /// Adds a handle, after `seal`, which gets whether it is the only one.
    ///
    /// # Errors
    /// Those of `seal`: the handle is not added then. `EHOSTDOWN` when the program that asked is
    /// being ended.
    pub(crate) fn add_handle(
        &self,
        ino: Ino,
        seal: impl FnOnce(bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.run_in_order(ino, |inode| {
            let is_only = inode.handles.load(SeqCst) == 0;
            seal(is_only)?;
            inode.handles.fetch_add(1, SeqCst);
            Ok(())
        })
    }

    /// Calls `seal` unless a handle is in the middle of changes.
    ///
    /// # Errors
    /// As [`ChangingHandles::add_handle`]
    pub(crate) fn seal_idle(
        &self,
        ino: Ino,
        seal: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.run_in_order(ino, |inode| match inode.handles.load(SeqCst) {
            0 => seal(),
            _ => Ok(()),
        })
    }

    /// Runs `work` while no other handle of the inode is added, and no other thread seals it.
    fn run_in_order(
        &self,
        ino: Ino,
        work: impl FnOnce(&ChangingInode) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let inode = self.0.lock().entry(ino).or_default().clone();
        let result = lock_interruptibly(&inode.order).and_then(|_order| work(&inode));
        drop(inode);
        self.forget_unused(ino, &mut self.0.lock());
        result
    }

    /// Removes a handle that was added.
    pub(crate) fn remove_handle(&self, ino: Ino) {
        let mut inodes = self.0.lock();
        if let Some(inode) = inodes.get(&ino) {
            let before = inode.handles.fetch_sub(1, SeqCst);
            assert!(before > 0, "a handle that is removed was not added");
        }
        self.forget_unused(ino, &mut inodes);
    }

    /// Removes the inode from the table if no thread uses it and no handle changes it.
    fn forget_unused(&self, ino: Ino, inodes: &mut HashMap<Ino, Arc<ChangingInode>>) {
        // A thread that uses the inode has got it under the lock of the table.
        let is_unused = |inode: &Arc<ChangingInode>| {
            Arc::strong_count(inode) == 1 && inode.handles.load(SeqCst) == 0
        };
        if inodes.get(&ino).is_some_and(is_unused) {
            inodes.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Adds a handle. Returns whether it is the only one.
    fn add_without_seal(handles: &ChangingHandles, ino: u64) -> bool {
        let mut only = false;
        let added = handles.add_handle(Ino(ino), |is_only| {
            only = is_only;
            Ok(())
        });
        added.expect("added");
        only
    }

    /// Seals the inode, if no handle is in the middle of changes. Returns whether it did.
    fn try_seal(handles: &ChangingHandles, ino: u64) -> bool {
        let mut sealed = false;
        let done = handles.seal_idle(Ino(ino), || {
            sealed = true;
            Ok(())
        });
        done.expect("no error");
        sealed
    }

    #[test]
    fn the_first_handle_in_the_middle_of_changes_is_the_only_one() {
        let handles = ChangingHandles::default();
        assert!(add_without_seal(&handles, 5));
        assert!(!add_without_seal(&handles, 5) && add_without_seal(&handles, 6));
        handles.remove_handle(Ino(5));
        assert!(!try_seal(&handles, 5) && !add_without_seal(&handles, 5));
        handles.remove_handle(Ino(5));
        handles.remove_handle(Ino(5));
        assert!(try_seal(&handles, 5) && !try_seal(&handles, 6));
        assert_eq!(handles.0.lock().len(), 1, "what no handle changes is forgotten");
    }

    #[test]
    fn a_handle_whose_seal_fails_is_not_added() {
        let handles = ChangingHandles::default();
        assert_eq!(handles.add_handle(Ino(5), |_| Err(Errno::EIO)), Err(Errno::EIO));
        assert!(handles.0.lock().is_empty() && add_without_seal(&handles, 5));
    }

    #[test]
    fn a_handle_begins_changes_before_or_after_a_seal() {
        let handles = ChangingHandles::default();
        let (begins, begun) = channel();
        std::thread::scope(|scope| {
            let sealed = handles.seal_idle(Ino(5), || {
                let adder = scope.spawn(|| {
                    begins.send(()).expect("the test waits");
                    add_without_seal(&handles, 5)
                });
                begun.recv().expect("it runs");
                // It waits for the end of the seal, so it cannot be there yet.
                assert!(handles.0.lock()[&Ino(5)].order.is_locked());
                assert_eq!(handles.0.lock()[&Ino(5)].handles.load(SeqCst), 0);
                drop(adder);
                Ok(())
            });
            sealed.expect("no error");
        });
        assert!(!try_seal(&handles, 5));
    }
}
