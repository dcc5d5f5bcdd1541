//! The executors of the node: those that run, their handles, and the start of one that is needed
//! for the first time.

use crate::executor::{Executor, ExecutorHandle, ExecutorOrder};
use crate::node::{StopOnDeath, spawn_thread};
use crate::options::StartError;
use crate::shards::ExecutorShards;
use crate::shared::NodeShared;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use tatami_meta::FjallStore;
use tatami_wire::admin::ClusterMap;
use tatami_wire::{EXECUTORS_MAX, ExecutorId};

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

struct RunningExecutor {
    handle: ExecutorHandle,
    thread: ExecutorThread,
    condition: Arc<ShardCondition>,
}

#[derive(Default)]
struct ExecutorsState {
    /// The node ends: no executor starts any more.
    closed: bool,
    running: BTreeMap<u8, RunningExecutor>,
    /// Executors that do not run because their stores are damaged, with the reason.
    refused: BTreeMap<u8, String>,
}

/// See the module.
pub(crate) struct Executors {
    /// The directory of their stores.
    dir: PathBuf,
    inner: Mutex<ExecutorsState>,
}

impl Executors {
    pub(crate) fn new(dir: PathBuf) -> Executors {
        Executors { dir, inner: Mutex::default() }
    }

    /// Starts the executors that must run from the beginning: the first, and all that have or have
    /// had shards, because others may ask them for the outcome of a transaction. An executor whose
    /// store is damaged is refused, and the others run.
    ///
    /// # Errors
    /// A store that does not open for another reason, or no descriptors or threads.
    pub(crate) fn start_all(&self, shared: &Arc<NodeShared>) -> Result<(), StartError> {
        let (here, map) = (shared.node(), shared.map());
        let is_needed = |index: &u8| {
            let executor = ExecutorId { node: here, index: *index };
            *index == 0
                || ExecutorShards::has_store(&self.dir, *index)
                || map.shards.contains(&executor)
        };
        // All stores open before the first executor runs: each may hold a newer map than the ones
        // before it.
        let mut opened = Vec::new();
        for index in (0..EXECUTORS_MAX).filter(is_needed) {
            match self.open_shards(shared, index, false) {
                Ok(shards) => opened.push((index, shards)),
                Err(e) if e.is_damage() => {
                    tracing::error!(index, error = %e, "an executor is refused; the others run");
                    self.inner.lock().refused.insert(index, e.to_string());
                }
                Err(e) => return Err(e),
            }
        }
        // Each store may know more than those that were opened before it.
        let map = shared.map();
        let mut inner = self.inner.lock();
        for (index, mut shards) in opened {
            shards.merge_map(&map);
            start_executor(&mut inner, &self.dir, shared, index, shards)?;
        }
        Ok(())
    }

    fn open_shards(
        &self,
        shared: &NodeShared,
        index: u8,
        accept_loss: bool,
    ) -> Result<ExecutorShards<FjallStore>, StartError> {
        let known = ClusterMap::clone(&shared.map());
        let (shards, map) = ExecutorShards::open(&self.dir, shared, index, known, accept_loss)?;
        shared.merge_map(&map);
        Ok(shards)
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

    /// Starts the refused executors with the readable part of their stores. Returns a sentence on
    /// each. [`Executors::refusal_reasons`] reports those that do not start even so.
    pub(crate) fn accept_loss(&self, shared: &Arc<NodeShared>) -> Vec<String> {
        let mut inner = self.inner.lock();
        let mut told = Vec::new();
        for index in std::mem::take(&mut inner.refused).into_keys() {
            let started = self.open_shards(shared, index, true).and_then(|mut shards| {
                let cut = shards.log_cut();
                start_executor(&mut inner, &self.dir, shared, index, shards).map(|_| cut)
            });
            match started {
                Ok(cut) => told.push(cut.unwrap_or_else(|| format!("executor {index} runs"))),
                Err(e) => {
                    tracing::error!(index, error = %e, "an executor is refused still");
                    inner.refused.insert(index, e.to_string());
                }
            }
        }
        told
    }

    /// Returns the handle of an executor, if it runs.
    pub(crate) fn get(&self, index: u8) -> Option<ExecutorHandle> {
        self.inner.lock().running.get(&index).map(|running| running.handle.clone())
    }

    /// Returns the handle of an executor, and starts it if it does not run: another executor may
    /// want to move shards to it. `None` when the node ends or the executor cannot be started.
    pub(crate) fn get_or_start(
        &self,
        shared: &Arc<NodeShared>,
        index: u8,
    ) -> Option<ExecutorHandle> {
        // The lock is held while the store opens: two callers must not open it twice.
        let mut inner = self.inner.lock();
        if let Some(running) = inner.running.get(&index) {
            return Some(running.handle.clone());
        }
        if inner.closed || index >= EXECUTORS_MAX || inner.refused.contains_key(&index) {
            return None;
        }
        let started = self
            .open_shards(shared, index, false)
            .and_then(|shards| start_executor(&mut inner, &self.dir, shared, index, shards));
        if let Err(error) = &started {
            tracing::error!(index, %error, "an executor does not start");
        }
        started.ok()
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

fn start_executor(
    inner: &mut ExecutorsState,
    dir: &std::path::Path,
    shared: &Arc<NodeShared>,
    index: u8,
    shards: ExecutorShards<FjallStore>,
) -> Result<ExecutorHandle, StartError> {
    let condition = Arc::new(ShardCondition::default());
    // `status` must be right from the first request on.
    condition.inodes.store(shards.inode_count(), Relaxed);
    let (executor, handle) =
        Executor::new(shared.clone(), index, shards, dir, condition.clone())
            .map_err(|source| StartError::System { what: "make an event queue", source })?;
    let alarm = StopOnDeath(shared.clone());
    let thread = spawn_thread("executor", move || {
        let _alarm = alarm;
        executor.run()
    })?;
    inner.running.insert(index, RunningExecutor { handle: handle.clone(), thread, condition });
    Ok(handle)
}

impl NodeShared {
    /// Merges the newer entries of a map into the one that all threads share.
    pub(crate) fn merge_map(&self, map: &ClusterMap) {
        let mut current = self.current_map.write();
        let mut merged = ClusterMap::clone(&current);
        if merged.merge_newer(map) {
            *current = Arc::new(merged);
        }
    }

    /// Returns the executors that must carry an order out; none if no executor here can.
    pub(crate) fn executors_for(&self, order: &ExecutorOrder) -> Vec<ExecutorHandle> {
        match order {
            ExecutorOrder::MergeMap(_) => self.executors.all_handles(),
            ExecutorOrder::MoveShards { first, .. } => {
                let owner = self.map().owner(tatami_wire::ShardId(*first));
                let owner = owner.filter(|owner| owner.node == self.node());
                owner.and_then(|owner| self.executors.get(owner.index)).into_iter().collect()
            }
        }
    }
}
