//! The executors of the node: those that run, with their handles, and those that are refused.

use crate::executor::handle::ExecutorHandle;
use crate::executor::shards::ExecutorShards;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use tatami_meta::FjallStore;
use tatami_wire::admin::ClusterMap;

/// The condition of an executor's shards, for other threads.
#[derive(Debug, Default)]
pub(crate) struct ShardCondition {
    /// Number of inodes on its shards.
    pub(crate) inodes: AtomicU64,
    /// The trouble of its shards.
    pub(crate) trouble: Mutex<Option<String>>,
}

/// A thread that runs an executor, and returns its shards.
pub(crate) type ExecutorThread = JoinHandle<ExecutorShards<FjallStore>>;

/// An executor that runs.
pub(super) struct RunningExecutor {
    pub(super) handle: ExecutorHandle,
    pub(super) thread: ExecutorThread,
    pub(super) condition: Arc<ShardCondition>,
}

/// The state of the table, under its lock.
#[derive(Default)]
pub(super) struct ExecutorTableState {
    /// The node ends: no executor starts any more.
    pub(super) closed: bool,
    pub(super) running: BTreeMap<u8, RunningExecutor>,
    /// ExecutorTable that do not run because their stores are damaged, with the reason.
    pub(super) refused: BTreeMap<u8, String>,
}

/// See the module.
pub(crate) struct ExecutorTable {
    /// The directory of their stores.
    pub(super) dir: PathBuf,
    pub(super) inner: Mutex<ExecutorTableState>,
}

impl ExecutorTable {
    pub(crate) fn new(dir: PathBuf) -> ExecutorTable {
        ExecutorTable { dir, inner: Mutex::default() }
    }

    /// Returns why an executor does not run, if its store is damaged.
    pub(crate) fn refusal_reason(&self, index: u8) -> Option<String> {
        let inner = self.inner.lock();
        let why = inner.refused.get(&index)?;
        Some(format!("executor {index} of this node does not run: {why}"))
    }

    /// Returns the reason for each executor that does not run.
    pub(crate) fn refusal_reasons(&self) -> Vec<String> {
        let refused = self.inner.lock().refused.clone();
        refused.iter().map(|(index, why)| format!("executor {index} does not run: {why}")).collect()
    }

    /// Returns the handle of an executor, if it runs.
    pub(crate) fn get(&self, index: u8) -> Option<ExecutorHandle> {
        self.inner.lock().running.get(&index).map(|running| running.handle.clone())
    }

    /// Returns all that run, by number.
    pub(crate) fn all_handles(&self) -> Vec<ExecutorHandle> {
        self.inner.lock().running.values().map(|running| running.handle.clone()).collect()
    }

    /// Hands a map to all executors but one.
    pub(crate) fn send_map(&self, from: u8, map: &Arc<ClusterMap>) {
        for (_, running) in self.inner.lock().running.iter().filter(|(index, _)| **index != from) {
            running.handle.send_map(map.clone());
        }
    }

    /// Returns the number of executors that run.
    pub(crate) fn running_count(&self) -> usize {
        self.inner.lock().running.len()
    }

    /// Returns the number of inodes on all shards of the node.
    pub(crate) fn inode_count(&self) -> u64 {
        self.inner.lock().running.values().map(|r| r.condition.inodes.load(Relaxed)).sum()
    }

    /// Returns the troubles of the shards of the node.
    pub(crate) fn shard_troubles(&self) -> Vec<String> {
        let mut trouble = self.refusal_reasons();
        let inner = self.inner.lock();
        trouble.extend(inner.running.values().filter_map(|r| r.condition.trouble.lock().clone()));
        trouble
    }

    /// Ends all executors and returns their threads. No executor starts any more.
    pub(crate) fn close(&self) -> Vec<ExecutorThread> {
        let mut inner = self.inner.lock();
        // Under the lock that `get_or_start` takes: no executor can slip in after this.
        inner.closed = true;
        let all = std::mem::take(&mut inner.running).into_values();
        let ended = |running: RunningExecutor| {
            running.handle.wake();
            running.thread
        };
        all.map(ended).collect()
    }
}
