//! Threads that hold the mount's delegations from the executors of the namespace.

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

/// One thread for each executor, and one that starts threads when further executors get shards.
/// Dropping this value ends them and all delegations.
pub(crate) struct MountRecalls {
    shared: Arc<SharedRecalls>,
    watch: Option<JoinHandle<()>>,
}

struct SharedRecalls {
    client: Arc<Client>,
    /// Readable at the end.
    end: OwnedFd,
    ended: AtomicBool,
    threads: Mutex<BTreeMap<ExecutorId, JoinHandle<()>>>,
    /// The kernel's cache, if it may be used.
    kernel: Option<Arc<dyn KernelCache>>,
    fs: Arc<FileSystem>,
}

impl OpenFiles for FileSystem {
    fn list_read_only(&self) -> Vec<Ino> {
        self.open_inodes.list_readers()
    }

    fn confirm_reported(&self, inos: &[Ino]) {
        for ino in inos {
            self.open_inodes.run_unless_read(*ino, || self.deferred_closes.defer_read_close(*ino));
        }
    }
}

impl MountRecalls {
    /// Starts the threads. A mount also works without them, but slower.
    ///
    /// # Errors
    /// When the system is short of descriptors.
    pub(crate) fn start(
        fs: &Arc<FileSystem>,
        kernel: Option<Arc<dyn KernelCache>>,
    ) -> std::io::Result<MountRecalls> {
        let shared = Arc::new(SharedRecalls {
            client: fs.client.clone(),
            end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ended: AtomicBool::new(false),
            threads: Mutex::default(),
            kernel,
            fs: fs.clone(),
        });
        let epoch = start_missing_threads(&shared);
        let watched = shared.clone();
        let watch = move || watch_map(&watched, epoch);
        let watch = std::thread::Builder::new().name("map".into()).spawn(watch);
        let watch = watch
            .inspect_err(
                |error| tracing::warn!(%error, "names of new executors are asked for each time"),
            )
            .ok();
        Ok(MountRecalls { shared, watch })
    }
}

/// Starts a thread for each executor that has none. Returns the epoch of the map.
fn start_missing_threads(shared: &Arc<SharedRecalls>) -> u64 {
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

/// Starts threads for executors that get shards by a migration.
fn watch_map(shared: &Arc<SharedRecalls>, mut epoch: u64) {
    loop {
        shared.client.wait_for_map(epoch, &shared.ended);
        if shared.ended.load(SeqCst) {
            return;
        }
        epoch = start_missing_threads(shared);
    }
}

impl Drop for MountRecalls {
    fn drop(&mut self) {
        // Set before the wake-ups, so that each thread sees the end.
        self.shared.ended.store(true, SeqCst);
        self.shared.client.wake_map_waiters();
        // The write fails only if the counter is full. Then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        // The threads do not panic, and have no result.
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
        // After the end of `watch`, which may start further threads.
        for thread in std::mem::take(&mut *self.shared.threads.lock()).into_values() {
            let _ = thread.join();
        }
    }
}
