//! The start of executors: those that must run from the beginning, and one that is needed for the
//! first time.

use crate::context::NodeContext;
use crate::executor::handle::ExecutorHandle;
use crate::executor::shards::{ExecutorShards, ShardSettings};
use crate::executor::state::Executor;
use crate::executor::table::{ExecutorTableState, RunningExecutor, ShardCondition};
use crate::options::StartError;
use crate::threads::{StopOnDeath, spawn_thread};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tatami_meta::FjallStore;
use tatami_wire::admin::ClusterMap;
use tatami_wire::{EXECUTORS_MAX, ExecutorId};

/// Starts the executors that must run from the beginning: the first, and all that have or have
/// had shards, because others may ask them for the outcome of a transaction. An executor whose
/// store is damaged is refused, and the others run.
///
/// # Errors
/// A store that does not open for another reason, or no descriptors or threads.
pub(crate) fn start_all(shared: &Arc<NodeContext>) -> Result<(), StartError> {
    let (table, here, map) = (&shared.executors, shared.settings.node(), shared.map.current());
    let is_needed = |index: &u8| {
        let executor = ExecutorId { node: here, index: *index };
        *index == 0
            || ExecutorShards::has_store(&table.dir, *index)
            || map.shards.contains(&executor)
    };
    // All stores open before the first executor runs: each may hold a newer map than the ones
    // before it.
    let mut opened = Vec::new();
    for index in (0..EXECUTORS_MAX).filter(is_needed) {
        match open_shards(shared, index, false) {
            Ok(shards) => opened.push((index, shards)),
            Err(e) if e.is_damage() => {
                tracing::error!(index, error = %e, "an executor is refused; the others run");
                table.inner.lock().refused.insert(index, e.to_string());
            }
            Err(e) => return Err(e),
        }
    }
    // Each store may know more than those that were opened before it.
    let map = shared.map.current();
    let mut inner = table.inner.lock();
    for (index, mut shards) in opened {
        shards.merge_map(&map);
        start_executor(&mut inner, shared, index, shards)?;
    }
    Ok(())
}

fn open_shards(
    shared: &NodeContext,
    index: u8,
    accept_loss: bool,
) -> Result<ExecutorShards<FjallStore>, StartError> {
    let settings = ShardSettings {
        identity: &shared.settings.identity,
        reserve: shared.settings.reserve,
        durability: shared.settings.durability,
    };
    let known = ClusterMap::clone(&shared.map.current());
    let (shards, map) =
        ExecutorShards::open(&shared.executors.dir, &settings, index, known, accept_loss)?;
    shared.map.merge_newer(&map);
    Ok(shards)
}

/// Starts the refused executors with the readable part of their stores. Returns a sentence on
/// each. [`ExecutorTable::refusal_reasons`] reports those that do not start even so.
pub(crate) fn accept_loss(shared: &Arc<NodeContext>) -> Vec<String> {
    let mut inner = shared.executors.inner.lock();
    let mut notes = Vec::new();
    for index in std::mem::take(&mut inner.refused).into_keys() {
        let started = open_shards(shared, index, true).and_then(|mut shards| {
            let cut = shards.log_cut();
            start_executor(&mut inner, shared, index, shards).map(|_| cut)
        });
        match started {
            Ok(cut) => notes.push(cut.unwrap_or_else(|| format!("executor {index} runs"))),
            Err(e) => {
                tracing::error!(index, error = %e, "an executor is refused still");
                inner.refused.insert(index, e.to_string());
            }
        }
    }
    notes
}

/// Returns the handle of an executor, and starts it if it does not run: another executor may
/// want to move shards to it. `None` when the node ends or the executor cannot be started.
pub(crate) fn start_if_needed(shared: &Arc<NodeContext>, index: u8) -> Option<ExecutorHandle> {
    // The lock is held while the store opens: two callers must not open it twice.
    let mut inner = shared.executors.inner.lock();
    if let Some(running) = inner.running.get(&index) {
        return Some(running.handle.clone());
    }
    if inner.closed || index >= EXECUTORS_MAX || inner.refused.contains_key(&index) {
        return None;
    }
    let started = open_shards(shared, index, false)
        .and_then(|shards| start_executor(&mut inner, shared, index, shards));
    if let Err(error) = &started {
        tracing::error!(index, %error, "an executor does not start");
    }
    started.ok()
}

fn start_executor(
    inner: &mut ExecutorTableState,
    shared: &Arc<NodeContext>,
    index: u8,
    shards: ExecutorShards<FjallStore>,
) -> Result<ExecutorHandle, StartError> {
    let condition = Arc::new(ShardCondition::default());
    // `status` must be right from the first request on.
    condition.inodes.store(shards.inode_count(), Relaxed);
    let (executor, handle) =
        Executor::new(shared.clone(), index, shards, &shared.executors.dir, condition.clone())
            .map_err(|source| StartError::System { what: "make an event queue", source })?;
    let alarm = StopOnDeath(shared.clone());
    let thread = spawn_thread("executor", move || {
        let _alarm = alarm;
        executor.run()
    })?;
    inner.running.insert(index, RunningExecutor { handle: handle.clone(), thread, condition });
    Ok(handle)
}
