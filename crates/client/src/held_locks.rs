//! The locks that this client holds, and the notifications about them.

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tatami_tables::LockTable;
use tatami_wire::lock::{Lock, LockSort};
use tatami_wire::{ExecutorId, Ino, hash};

/// Notifications from executors about locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LockNotices {
    /// Files whose locks must be given back, by [`crate::Client::return_locks`].
    pub wanted: BTreeSet<Ino>,
    /// Waits that have come to their end.
    pub ready: BTreeSet<u64>,
    /// Executors that need all locks again, by [`crate::Client::reclaim_locks`].
    pub reclaim: BTreeSet<ExecutorId>,
}

impl LockNotices {
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.ready.is_empty() && self.reclaim.is_empty()
    }
}

/// The data that is stored with a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockTag {
    /// The open file through which it was taken.
    pub(crate) handle: u64,
    pub(crate) pid: u32,
}

/// The locks of this client on one file.
#[derive(Default)]
pub(crate) struct FileLocks {
    pub(crate) whole: LockTable<u64, LockTag>,
    pub(crate) range: LockTable<u64, LockTag>,
    pub(crate) delegated: bool,
    /// Calls that got a lock from the executor and have not yet dropped the bytes that were read
    /// before.
    pub(crate) stale: u32,
    /// The table of files has no record of it any more.
    pub(crate) gone: bool,
}

impl FileLocks {
    pub(crate) fn table(&mut self, sort: LockSort) -> &mut LockTable<u64, LockTag> {
        match sort {
            LockSort::Whole => &mut self.whole,
            LockSort::Range => &mut self.range,
        }
    }

    pub(crate) fn record_lock(&mut self, lock: &Lock, handle: u64) {
        let tag = LockTag { handle, pid: lock.pid };
        self.table(lock.sort).set_lock(lock.owner, lock.span, lock.kind, tag);
    }

    pub(crate) fn list_locks(&self) -> impl Iterator<Item = (Lock, u64)> + '_ {
        let tables = [(LockSort::Whole, &self.whole), (LockSort::Range, &self.range)];
        tables.into_iter().flat_map(|(sort, table)| {
            table.iter().map(move |held| {
                let (owner, span, kind) = (held.owner, held.span, held.kind);
                (Lock { sort, owner, pid: held.tag.pid, span, kind }, held.tag.handle)
            })
        })
    }

    /// Returns the number of locks.
    pub(crate) fn len(&self) -> usize {
        self.whole.len() + self.range.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The locks of this client on all files.
#[derive(Default)]
pub(crate) struct ClientLocks {
    pub(crate) files: Mutex<HashMap<Ino, Arc<Mutex<FileLocks>>, hash::HashBuilder>>,
    pub(crate) notices: Mutex<LockNotices>,
    pub(crate) notified: Condvar,
}

impl ClientLocks {
    pub(crate) fn find_file(&self, ino: Ino) -> Option<Arc<Mutex<FileLocks>>> {
        self.files.lock().get(&ino).cloned()
    }

    pub(crate) fn enter_file(&self, ino: Ino) -> Arc<Mutex<FileLocks>> {
        self.files.lock().entry(ino).or_default().clone()
    }

    /// Removes the record of a file without locks.
    pub(crate) fn remove_idle(&self, ino: Ino, file: &mut FileLocks) {
        if file.is_empty() && !file.delegated && !file.gone && file.stale == 0 {
            file.gone = true;
            self.files.lock().remove(&ino);
        }
    }

    /// Adds a notification and wakes the callers of [`crate::Client::take_lock_notices`].
    pub(crate) fn notify_waiters(&self, note: impl FnOnce(&mut LockNotices)) {
        note(&mut self.notices.lock());
        self.notified.notify_all();
    }
}
