//! The requests of the kernel for locks that other owners have.

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;
use tatami_fuse::reply::DeferredReply;
use tatami_wire::lock::Lock;
use tatami_wire::{Ino, hash};

/// Most remembered interruptions of requests that have not arrived yet.
pub(crate) const EARLY_INTERRUPTS_MAX: usize = 1024;
/// Most files in the table of files with locks. It is cleared when full.
const USED_MAX: usize = 64 * 1024;

/// A pending request for a lock.
pub(crate) struct LockWait {
    pub(crate) ino: Ino,
    pub(crate) lock: Lock,
    pub(crate) handle: u64,
    /// `None` while the request is being repeated.
    pub(crate) reply: Option<DeferredReply>,
    /// The lock may be free now.
    pub(crate) ready: bool,
    pub(crate) interrupted: bool,
    /// Time of the next repetition.
    pub(crate) retry_at: Instant,
}

/// The pending requests, and the interruptions that came before their requests.
#[derive(Default)]
pub(crate) struct LockWaitTable {
    /// By the unique number of the FUSE request.
    pub(crate) waits: HashMap<u64, LockWait, hash::HashBuilder>,
    pub(crate) early_interrupts: VecDeque<u64>,
    pub(crate) ended: bool,
}

/// All pending requests for locks.
#[derive(Default)]
pub(crate) struct LockWaits {
    pub(crate) waits: Mutex<LockWaitTable>,
    pub(crate) changed: Condvar,
    /// Files with locks of this mount, now or earlier.
    pub(crate) used: Mutex<HashSet<Ino, hash::HashBuilder>>,
    pub(crate) any_used: AtomicBool,
    /// Counts released open files, for the requests that wait for one.
    pub(crate) releases: Mutex<u64>,
    pub(crate) released: Condvar,
}

impl LockWaits {
    pub(crate) fn record_used(&self, ino: Ino) {
        let mut used = self.used.lock();
        if used.len() >= USED_MAX {
            used.clear();
        }
        used.insert(ino);
        self.any_used.store(true, SeqCst);
    }

    /// Checks whether locks of the file were used through this mount.
    pub(crate) fn are_used(&self, ino: Ino) -> bool {
        self.any_used.load(SeqCst) && self.used.lock().contains(&ino)
    }

    /// Registers a request that may have to wait. Returns false if it was interrupted before.
    pub(crate) fn begin_wait(&self, unique: u64, ino: Ino, lock: Lock, handle: u64) -> bool {
        let mut waits = self.waits.lock();
        if let Some(at) = waits.early_interrupts.iter().position(|early| *early == unique) {
            waits.early_interrupts.remove(at);
            return false;
        }
        let (reply, ready, interrupted, next) = (None, false, false, Instant::now());
        let wait = LockWait { ino, lock, handle, reply, ready, interrupted, retry_at: next };
        waits.waits.insert(unique, wait);
        true
    }

    pub(crate) fn end_wait(&self, unique: u64) {
        self.waits.lock().waits.remove(&unique);
    }

    pub(crate) fn mark_ready(&self, ready: &BTreeSet<u64>) {
        let mut waits = self.waits.lock();
        for unique in ready {
            if let Some(wait) = waits.waits.get_mut(unique) {
                wait.ready = true;
            }
        }
        self.changed.notify_all();
    }

    /// Returns the next request to repeat; `None` at the end.
    pub(crate) fn next_retry(&self) -> Option<(u64, Ino, Lock, u64, DeferredReply)> {
        let mut waits = self.waits.lock();
        loop {
            if waits.ended {
                return None;
            }
            let now = Instant::now();
            let idle = waits.waits.iter_mut().filter(|(_, wait)| wait.reply.is_some());
            let first =
                idle.min_by_key(|(_, wait)| if wait.ready { now } else { wait.retry_at.max(now) });
            let Some((unique, wait)) = first else {
                self.changed.wait(&mut waits);
                continue;
            };
            if !wait.ready && wait.retry_at > now {
                let next = wait.retry_at;
                self.changed.wait_until(&mut waits, next);
                continue;
            }
            wait.ready = false;
            if let Some(reply) = wait.reply.take() {
                return Some((*unique, wait.ino, wait.lock, wait.handle, reply));
            }
        }
    }

    /// Waits for the release of an open file after `before`. Returns false at the deadline.
    pub(crate) fn wait_for_release(&self, before: u64, deadline: Instant) -> bool {
        let mut ends = self.releases.lock();
        while *ends == before {
            if self.released.wait_until(&mut ends, deadline).timed_out() {
                return *ends != before;
            }
        }
        true
    }
}
