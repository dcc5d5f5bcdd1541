//! The record of one client in the lock table.

use std::collections::BTreeSet;
use tatami_wire::Ino;
use tatami_wire::lock::Lock;

/// The session of one client.
#[derive(Debug, Default)]
pub(super) struct ServerLockSession {
    pub(super) id: u64,
    /// Number of locks, without those that are delegated.
    pub(super) lock_count: usize,
    /// Number of waits.
    pub(super) wait_count: usize,
    /// Files of which the client holds locks, waits for some, or has them delegated.
    pub(super) files: BTreeSet<Ino>,
    /// Files whose locks are delegated to the client.
    pub(super) delegated: BTreeSet<Ino>,
    /// The locks of a reclaim that is not complete yet.
    pub(super) partial_claims: Vec<(Ino, Lock)>,
}
