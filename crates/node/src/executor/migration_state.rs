//! The state of shard migrations at an executor.

use crate::executor::locks::LockRequest;
use std::sync::Arc;
use tatami_wire::admin::ClusterMap;
use tatami_wire::{Cred, ShardId};

/// The state of migrations at an executor.
pub(crate) struct MigrationState {
    /// The map that all threads of the node have.
    pub(crate) map: Arc<ClusterMap>,
    /// The epoch of the shards' own map at the last check.
    pub(super) seen_epoch: u64,
    /// Requests about locks that wait until a migration is over.
    pub(super) deferred_locks: Vec<IncomingLockRequest>,
    /// All nodes must be informed of the map.
    pub(super) announce_map: bool,
}

/// A request about locks, with the connection that it came on.
pub(crate) struct IncomingLockRequest {
    pub(crate) at: usize,
    pub(crate) seq: u64,
    pub(crate) shard: ShardId,
    pub(crate) trusted: bool,
    pub(crate) cred: Cred,
    pub(crate) question: LockRequest,
}

impl MigrationState {
    pub(crate) fn new(map: Arc<ClusterMap>) -> MigrationState {
        MigrationState { map, seen_epoch: 0, deferred_locks: Vec::new(), announce_map: false }
    }

    /// Forgets the requests of a connection that has ended.
    pub(crate) fn drop_connection(&mut self, at: usize) {
        self.deferred_locks.retain(|request| request.at != at);
    }
}
