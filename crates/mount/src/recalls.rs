//! Threads that let the executors of the namespace delegate names to this mount.

use crate::filesystem::FileSystem;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use tatami_client::{Client, KernelCache, OpenFiles};
use tatami_wire::{ExecutorId, Ino};

/// The threads, one for each executor, and one that starts them as executors get shards. Dropped, they end, and nothing
/// is delegated any more.
pub(crate) struct Recalls {
    shared: Arc<Shared>,
    watch: Option<JoinHandle<()>>,
}

struct Shared {
    client: Arc<Client>,
    /// Readable at the end.
    end: OwnedFd,
    ended: AtomicBool,
    threads: Mutex<BTreeMap<ExecutorId, JoinHandle<()>>>,
    /// Keeps what is delegated, if it may.
    kernel: Option<Arc<dyn KernelCache>>,
    fs: Arc<FileSystem>,
}

impl OpenFiles for FileSystem {
    fn open(&self) -> Vec<Ino> {
        self.open.only_read()
    }

    fn told(&self, inos: &[Ino]) {
        for ino in inos {
            self.open.unless_read(*ino, || self.closings.add_read(*ino));
        }
    }
}

impl Recalls {
    /// Starts them. A mount works without, only slower.
    ///
    /// # Errors
    /// When the system is short of descriptors.
    pub(crate) fn start(
        fs: &Arc<FileSystem>,
        kernel: Option<Arc<dyn KernelCache>>,
    ) -> std::io::Result<Recalls> {
        let shared = Arc::new(Shared {
            client: fs.client.clone(),
            end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ended: AtomicBool::new(false),
            threads: Mutex::default(),
            kernel,
            fs: fs.clone(),
        });
        let epoch = start_missing(&shared);
        let watched = shared.clone();
        let watch = move || watch(&watched, epoch);
        let watch = std::thread::Builder::new().name("map".into()).spawn(watch);
        let watch = watch
            .inspect_err(
                |error| tracing::warn!(%error, "names of new executors are asked for each time"),
            )
            .ok();
        Ok(Recalls { shared, watch })
    }
}

/// Starts the threads of executors that have none. Returns the epoch of the map.
fn start_missing(shared: &Arc<Shared>) -> u64 {
    let epoch = shared.client.map().epoch;
    let mut threads = shared.threads.lock();
    for executor in shared.client.name_executors() {
        if threads.contains_key(&executor) {
            continue;
        }
        let held = shared.clone();
        let run = move || {
            let kernel = held.kernel.as_ref();
            let (end, files) = (held.end.as_fd(), Some(&*held.fs as &dyn OpenFiles));
            if let Err(error) = held.client.hold_delegations(executor, end, kernel, files) {
                tracing::error!(%executor, %error, "names are asked for each time");
            }
        };
        match std::thread::Builder::new().name("recalls".into()).spawn(run) {
            Ok(thread) => drop(threads.insert(executor, thread)),
            Err(error) => tracing::warn!(%error, "names are asked for each time"),
        }
    }
    epoch
}

/// Shards move to other executors: those then delegate, too.
fn watch(shared: &Arc<Shared>, mut epoch: u64) {
    loop {
        shared.client.wait_for_map(epoch, &shared.ended);
        if shared.ended.load(SeqCst) {
            return;
        }
        epoch = start_missing(shared);
    }
}

impl Drop for Recalls {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.shared.client.wake_for_map();
        // Fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        // They do not panic, and their result is nothing.
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
        for thread in std::mem::take(&mut *self.shared.threads.lock()).into_values() {
            let _ = thread.join();
        }
    }
}
