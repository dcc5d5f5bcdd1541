//! The session of a client with an executor about locks, and its lease.

use crate::uptime::uptime;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// One part in `MARGIN` of each lease stays unused, because clocks run at different speeds.
const MARGIN: u32 = 10;
/// The lease, in case the executor has not stated it yet.
const SHORT_LEASE: Duration = Duration::from_secs(1);

/// The lock session of this client at one executor.
pub(crate) struct LockSession {
    /// 0 while the client holds nothing there. Requests about one file hold it shared. A caller
    /// that begins a session, or reclaims all locks, holds it alone. Lock order: this one, then
    /// that of a file, then that of the table of files.
    pub(crate) id: RwLock<u64>,
    /// Goes up when a recall connection begins, and when it ends: odd while there is one.
    pub(crate) connection: AtomicU64,
    /// The connection on which the client has reclaimed its locks.
    pub(crate) claimed: AtomicU64,
    /// The end of the lease, by [`uptime`] in microseconds: until then no other client gets these
    /// locks.
    pub(crate) until: AtomicU64,
    /// In microseconds.
    pub(crate) lease: AtomicU64,
    /// Shards have moved to the executor, and the client has not yet reclaimed its locks in them.
    pub(crate) to_claim: AtomicBool,
}

impl Default for LockSession {
    fn default() -> LockSession {
        LockSession {
            id: RwLock::new(0),
            connection: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            until: AtomicU64::new(0),
            lease: AtomicU64::new(SHORT_LEASE.as_micros() as u64),
            to_claim: AtomicBool::new(false),
        }
    }
}

impl LockSession {
    /// Makes the client reclaim its locks from this executor before its next request.
    pub(crate) fn require_reclaim(&self) {
        self.to_claim.store(true, SeqCst);
    }

    /// Begins a recall connection.
    pub(crate) fn begin_connection(&self) {
        let now = self.connection.load(SeqCst);
        // The next odd number, also if the end of the last connection was missed: a number never
        // stands for two connections.
        self.connection.store(now + 1 + now % 2, SeqCst);
    }

    /// Ends the recall connection.
    pub(crate) fn end_connection(&self) {
        let now = self.connection.load(SeqCst);
        self.connection.store(now + now % 2, SeqCst);
    }

    /// Extends the lease: the executor received a message that was sent after `from`, by
    /// [`uptime`], and keeps the locks of a silent client for `lease`.
    pub(crate) fn extend_lease(&self, from: Duration, lease: Duration) {
        self.lease.store(lease.as_micros() as u64, SeqCst);
        let until = from + (lease - lease / MARGIN);
        self.until.fetch_max(until.as_micros() as u64, SeqCst);
    }

    pub(crate) fn renew_lease(&self, from: Duration) {
        self.extend_lease(from, Duration::from_micros(self.lease.load(SeqCst)));
    }

    /// Returns whether the executor may delegate locks to this client.
    pub(crate) fn may_delegate(&self) -> bool {
        // Without a recall connection, the executor could not ask for them back. And before the
        // reclaim on this very connection, it may be a new incarnation that does not know of the
        // delegation.
        let now = self.connection.load(SeqCst);
        now % 2 == 1 && self.claimed.load(SeqCst) == now
    }

    pub(crate) fn is_lease_valid(&self) -> bool {
        uptime().as_micros() < u128::from(self.until.load(SeqCst))
    }
}
