//! Handles: the numbers by which the kernel refers to open files and directories.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tatami_wire::hash;

const SHARDS: usize = 16;

/// A table of open files or directories. Numbers are never reused.
pub(crate) struct HandleTable<T> {
    shards: Vec<RwLock<HashMap<u64, Arc<T>, hash::HashBuilder>>>,
    next: AtomicU64,
}

impl<T> HandleTable<T> {
    pub(crate) fn new() -> HandleTable<T> {
        let shards = (0..SHARDS).map(|_| RwLock::new(HashMap::default())).collect();
        HandleTable { shards, next: AtomicU64::new(1) }
    }

    fn shard_of(&self, handle: u64) -> &RwLock<HashMap<u64, Arc<T>, hash::HashBuilder>> {
        &self.shards[handle as usize % SHARDS]
    }

    pub(crate) fn insert(&self, value: Arc<T>) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        self.shard_of(handle).write().insert(handle, value);
        handle
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.shard_of(handle).read().get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.shard_of(handle).write().remove(&handle)
    }

    /// Returns all open values.
    pub(crate) fn list_open(&self) -> Vec<Arc<T>> {
        self.shards.iter().flat_map(|s| s.read().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Removes and returns all values, for the end of the mount.
    pub(crate) fn drain_open(&self) -> Vec<Arc<T>> {
        self.shards.iter().flat_map(|s| std::mem::take(&mut *s.write()).into_values()).collect()
    }
}
