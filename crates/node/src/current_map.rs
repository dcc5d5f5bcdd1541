//! The cluster map as this node knows it.

use parking_lot::RwLock;
use std::sync::Arc;
use tatami_wire::NodeId;
use tatami_wire::admin::ClusterMap;

/// See the module. It only gets newer.
pub(crate) struct CurrentMap(RwLock<Arc<ClusterMap>>);

impl CurrentMap {
    pub(crate) fn new(map: ClusterMap) -> CurrentMap {
        CurrentMap(RwLock::new(Arc::new(map)))
    }

    /// Returns the map. It stays as it is while the caller keeps it.
    pub(crate) fn current(&self) -> Arc<ClusterMap> {
        self.0.read().clone()
    }

    /// Merges the newer entries of another map.
    pub(crate) fn merge_newer(&self, map: &ClusterMap) {
        let mut current = self.0.write();
        let mut merged = ClusterMap::clone(&current);
        if merged.merge_newer(map) {
            *current = Arc::new(merged);
        }
    }

    /// Number of shards that a node serves.
    pub(crate) fn shard_count(&self, node: NodeId) -> usize {
        self.current().shards.iter().filter(|executor| executor.node == node).count()
    }
}
