//! The executors of the node: which run, how to reach each, and starting one that is needed for the first time.

use crate::executor::{Executor, ExecutorHandle, Order};
use crate::node::{Alarm, spawn};
use crate::options::StartError;
use crate::shards::Shards;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use tatami_meta::FjallStore;
use tatami_wire::admin::ClusterMap;
use tatami_wire::{EXECUTORS_MAX, ExecutorId};

/// How the shards of an executor are, for other threads.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    /// Inodes on its shards.
    pub(crate) inodes: AtomicU64,
    /// What is wrong with them.
    pub(crate) trouble: Mutex<Option<String>>,
}

/// A thread that has run an executor, and ends with its shards.
pub(crate) type Thread = JoinHandle<Shards<FjallStore>>;

struct Running {
    handle: ExecutorHandle,
    thread: Thread,
    condition: Arc<Condition>,
}

#[derive(Default)]
struct Inner {
    /// The node ends: none is started any more.
    closed: bool,
    running: BTreeMap<u8, Running>,
    /// Those that do not run, since their stores are damaged, and what is wrong.
    refused: BTreeMap<u8, String>,
}

/// See the module.
pub(crate) struct Executors {
    /// Where their stores lie.
    dir: PathBuf,
    inner: Mutex<Inner>,
}

impl Executors {
    pub(crate) fn new(dir: PathBuf) -> Executors {
        Executors { dir, inner: Mutex::default() }
    }

    /// Starts those that are to run from the beginning: the first, and whichever has shards or has had
    /// some, since others may ask it what became of a transaction. One whose store is damaged is refused, and the others
    /// run.
    ///
    /// # Errors
    /// A store that does not open for another reason, or no descriptors or threads.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> Result<(), StartError> {
        let (here, map) = (shared.node(), shared.map());
        let is_needed = |index: &u8| {
            let executor = ExecutorId { node: here, index: *index };
            *index == 0 || Shards::is_made(&self.dir, *index) || map.shards.contains(&executor)
        };
        let mut opened = Vec::new();
        for index in (0..EXECUTORS_MAX).filter(is_needed) {
            match self.open(shared, index, false) {
                Ok(shards) => opened.push((index, shards)),
                Err(e) if e.is_damage() => {
                    tracing::error!(index, error = %e, "an executor is refused; the others run");
                    self.inner.lock().refused.insert(index, e.to_string());
                }
                Err(e) => return Err(e),
            }
        }
        // Each may know more than those that were opened before it.
        let map = shared.map();
        let mut inner = self.inner.lock();
        for (index, mut shards) in opened {
            shards.learn(&map);
            run(&mut inner, &self.dir, shared, index, shards)?;
        }
        Ok(())
    }

    fn open(
        &self,
        shared: &Shared,
        index: u8,
        accept_loss: bool,
    ) -> Result<Shards<FjallStore>, StartError> {
        let known = ClusterMap::clone(&shared.map());
        let (shards, map) = Shards::open(&self.dir, shared, index, known, accept_loss)?;
        shared.learn(&map);
        Ok(shards)
    }

    /// Why an executor does not run, if its store is damaged.
    pub(crate) fn refused(&self, index: u8) -> Option<String> {
        let inner = self.inner.lock();
        let why = inner.refused.get(&index)?;
        Some(format!("executor {index} of this node does not run: {why}"))
    }

    /// The same of all such executors.
    pub(crate) fn all_refused(&self) -> Vec<String> {
        let refused = self.inner.lock().refused.clone();
        refused.iter().map(|(index, why)| format!("executor {index} does not run: {why}")).collect()
    }

    /// Starts those that were refused with what can be read of their stores. What was done, a sentence each; of one that
    /// does not start even so, [`Executors::all_refused`] tells.
    pub(crate) fn accept_loss(&self, shared: &Arc<Shared>) -> Vec<String> {
        let mut inner = self.inner.lock();
        let mut told = Vec::new();
        for index in std::mem::take(&mut inner.refused).into_keys() {
            let started = self.open(shared, index, true).and_then(|mut shards| {
                let cut = shards.cut();
                run(&mut inner, &self.dir, shared, index, shards).map(|_| cut)
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

    /// How to reach an executor, if it runs.
    pub(crate) fn get(&self, index: u8) -> Option<ExecutorHandle> {
        self.inner.lock().running.get(&index).map(|running| running.handle.clone())
    }

    /// How to reach an executor, which is started if it does not run: somebody may want to give it shards.
    /// `None` when the node ends or it cannot be started.
    pub(crate) fn get_or_start(&self, shared: &Arc<Shared>, index: u8) -> Option<ExecutorHandle> {
        let mut inner = self.inner.lock();
        if let Some(running) = inner.running.get(&index) {
            return Some(running.handle.clone());
        }
        if inner.closed || index >= EXECUTORS_MAX || inner.refused.contains_key(&index) {
            return None;
        }
        let started = self
            .open(shared, index, false)
            .and_then(|shards| run(&mut inner, &self.dir, shared, index, shards));
        if let Err(error) = &started {
            tracing::error!(index, %error, "an executor does not start");
        }
        started.ok()
    }

    /// All that run, by number.
    pub(crate) fn all(&self) -> Vec<ExecutorHandle> {
        self.inner.lock().running.values().map(|running| running.handle.clone()).collect()
    }

    /// Lets all but one know of a map.
    pub(crate) fn tell_map(&self, from: u8, map: &Arc<ClusterMap>) {
        for (_, running) in self.inner.lock().running.iter().filter(|(index, _)| **index != from) {
            running.handle.tell_map(map.clone());
        }
    }

    /// How many run.
    pub(crate) fn count(&self) -> usize {
        self.inner.lock().running.len()
    }

    /// Inodes on all shards of the node.
    pub(crate) fn inodes(&self) -> u64 {
        self.inner.lock().running.values().map(|r| r.condition.inodes.load(Relaxed)).sum()
    }

    /// What is wrong with shards of the node.
    pub(crate) fn trouble(&self) -> Vec<String> {
        let mut trouble = self.all_refused();
        let inner = self.inner.lock();
        trouble.extend(inner.running.values().filter_map(|r| r.condition.trouble.lock().clone()));
        trouble
    }

    /// Wakes all, which end since the node does, and returns what they leave. None is started any more.
    pub(crate) fn close(&self) -> Vec<Thread> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let all = std::mem::take(&mut inner.running).into_values();
        let ended = |running: Running| {
            running.handle.wake();
            running.thread
        };
        all.map(ended).collect()
    }
}

fn run(
    inner: &mut Inner,
    dir: &std::path::Path,
    shared: &Arc<Shared>,
    index: u8,
    shards: Shards<FjallStore>,
) -> Result<ExecutorHandle, StartError> {
    let condition = Arc::new(Condition::default());
    // Known from the first question on.
    condition.inodes.store(shards.inodes(), Relaxed);
    let (executor, handle) =
        Executor::new(shared.clone(), index, shards, dir, condition.clone())
            .map_err(|source| StartError::System { what: "make an event queue", source })?;
    let alarm = Alarm(shared.clone());
    let thread = spawn("executor", move || {
        let _alarm = alarm;
        executor.run()
    })?;
    inner.running.insert(index, Running { handle: handle.clone(), thread, condition });
    Ok(handle)
}

impl Shared {
    /// Puts in what a map knows better than the one that all threads have.
    pub(crate) fn learn(&self, map: &ClusterMap) {
        let mut current = self.current_map.write();
        let mut merged = ClusterMap::clone(&current);
        if merged.merge(map) {
            *current = Arc::new(merged);
        }
    }

    /// Who carries an order out; `None` where nobody here can.
    pub(crate) fn executors_for(&self, order: &Order) -> Vec<ExecutorHandle> {
        match order {
            Order::Learn(_) => self.executors.all(),
            Order::Move { first, .. } => {
                let owner = self.map().owner(tatami_wire::ShardId(*first));
                let owner = owner.filter(|owner| owner.node == self.node());
                owner.and_then(|owner| self.executors.get(owner.index)).into_iter().collect()
            }
        }
    }
}
