//! Deferred closes. The mount reports closes to the shard in batches: of the last writer if there
//! is nothing to commit, and of the last reader.
//!
//! Until then the shard believes that this client may still write, or read a file without names,
//! which is harmless. But a report must not overtake a new open: see
//! [`DeferredCloses::cancel_write_close`] and [`DeferredCloses::cancel_read_close`].

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tatami_client::Client;
use tatami_wire::Ino;
use tatami_wire::meta::REPORT_CLOSED_MAX;

/// Time for which closes are collected.
const COLLECT_TIME: Duration = Duration::from_millis(50);

/// Id of a deferred close, so that it is not confused with a later one of the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredClose(u64);

/// The deferred close of a writer.
struct PendingClose {
    closing: DeferredClose,
    /// The file has no object.
    is_empty: bool,
}

#[derive(Default)]
struct CloseQueue {
    pending_writes: BTreeMap<Ino, PendingClose>,
    /// Files with a deferred close of the last reader.
    pending_reads: BTreeSet<Ino>,
    /// Number of deferred closes so far.
    count: u64,
    under_way: HashSet<Ino>,
    read_under_way: HashSet<Ino>,
    /// Number of reports so far.
    reports: u64,
    ended: bool,
}

impl CloseQueue {
    fn is_empty(&self) -> bool {
        self.pending_writes.is_empty() && self.pending_reads.is_empty()
    }

    fn len(&self) -> usize {
        self.pending_writes.len() + self.pending_reads.len()
    }

    /// Returns the lowest inode with a deferred close.
    fn first_pending(&self) -> Option<Ino> {
        let (write, read) = (self.pending_writes.keys().next(), self.pending_reads.first());
        write.into_iter().chain(read).min().copied()
    }

    fn is_under_way(&self) -> bool {
        !(self.under_way.is_empty() && self.read_under_way.is_empty())
    }
}

#[derive(Default)]
struct SharedCloseQueue {
    state: Mutex<CloseQueue>,
    /// Signals the first close of a batch, a full batch, and the end.
    wake: Condvar,
    /// Signals the end of a report.
    reported: Condvar,
}

/// The deferred closes of a mount. Dropping it reports all of them.
pub(crate) struct DeferredCloses {
    shared: Arc<SharedCloseQueue>,
    client: Arc<Client>,
    thread: Option<JoinHandle<()>>,
}

impl DeferredCloses {
    /// Starts the thread. Without a thread, each close is reported at once.
    pub(crate) fn new(client: Arc<Client>) -> DeferredCloses {
        let shared = Arc::new(SharedCloseQueue::default());
        let run = {
            let (shared, client) = (shared.clone(), client.clone());
            move || shared.run_reporter(&client)
        };
        let thread = std::thread::Builder::new()
            .name("closings".into())
            .spawn(run)
            .inspect_err(|error| tracing::warn!(%error, "each close is told by itself"))
            .ok();
        DeferredCloses { shared, client, thread }
    }

    /// Defers the close of the last writer of `ino`. Returns `None` if it was reported at once.
    pub(crate) fn defer_write_close(&self, ino: Ino) -> Option<DeferredClose> {
        let mut state = self.shared.state.lock();
        if self.thread.is_none() || state.ended {
            drop(state);
            report_closes(&self.client, vec![ino], Vec::new(), Vec::new());
            return None;
        }
        state.count += 1;
        let closing = DeferredClose(state.count);
        state.pending_writes.insert(ino, PendingClose { closing, is_empty: false });
        self.shared.wake_reporter(&state);
        Some(closing)
    }

    /// Defers the close of the last reader of `ino`.
    pub(crate) fn defer_read_close(&self, ino: Ino) {
        let mut state = self.shared.state.lock();
        if self.thread.is_none() || state.ended {
            drop(state);
            return report_closes(&self.client, Vec::new(), Vec::new(), vec![ino]);
        }
        if state.pending_reads.insert(ino) {
            self.shared.wake_reporter(&state);
        }
    }

    /// Marks that `ino` had no object at this close, if it is still deferred.
    pub(crate) fn mark_empty(&self, ino: Ino, closing: DeferredClose) {
        let mut state = self.shared.state.lock();
        if let Some(waiting) = state.pending_writes.get_mut(&ino).filter(|w| w.closing == closing) {
            waiting.is_empty = true;
        }
    }

    /// Returns the current moment, for [`DeferredCloses::cancel_write_close`].
    pub(crate) fn current_moment(&self) -> u64 {
        self.shared.state.lock().reports
    }

    /// Cancels a deferred close, before or after `ino` is opened for writing again. Waits for a
    /// report under way. Returns whether a report since `moment` may have included the close.
    pub(crate) fn cancel_write_close(&self, ino: Ino, moment: u64) -> bool {
        let mut state = self.shared.state.lock();
        if state.pending_writes.remove(&ino).is_some() {
            return false;
        }
        // A report under way may reach the shard after the new open, so wait for its end.
        while state.under_way.contains(&ino) {
            self.shared.reported.wait(&mut state);
        }
        state.reports != moment
    }

    /// Like [`DeferredCloses::cancel_write_close`], for a file that is opened for reading.
    pub(crate) fn cancel_read_close(&self, ino: Ino, moment: u64) -> bool {
        let mut state = self.shared.state.lock();
        if state.pending_reads.remove(&ino) {
            return false;
        }
        // As in `reopen`.
        while state.read_under_way.contains(&ino) {
            self.shared.reported.wait(&mut state);
        }
        state.reports != moment
    }

    /// Reports all deferred closes. Later ones are reported at once.
    pub(crate) fn report_all(&self) {
        let mut state = self.shared.state.lock();
        state.ended = true;
        self.shared.wake.notify_one();
        while self.thread.is_some() && (!state.is_empty() || state.is_under_way()) {
            self.shared.reported.wait(&mut state);
        }
    }
}

impl Drop for DeferredCloses {
    fn drop(&mut self) {
        self.report_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and has no result.
            let _ = thread.join();
        }
    }
}

impl SharedCloseQueue {
    /// Wakes the thread at the first close, which starts the collection, and at a full batch, which
    /// ends it.
    fn wake_reporter(&self, state: &CloseQueue) {
        if matches!(state.len(), 1 | REPORT_CLOSED_MAX) {
            self.wake.notify_one();
        }
    }

    fn run_reporter(&self, client: &Client) {
        let mut state = self.state.lock();
        loop {
            while state.is_empty() && !state.ended {
                self.wake.wait(&mut state);
            }
            if state.len() < REPORT_CLOSED_MAX && !state.ended {
                self.wake.wait_for(&mut state, COLLECT_TIME);
            }
            // Only send the closes that are here now. Later ones are collected again; otherwise
            // each request would have only a few.
            let mut left = state.len();
            while left > 0
                && let Some(first) = state.first_pending()
            {
                let map = client.map();
                let executor = map.owner(first.owner_shard());
                let [mut inos, mut empty, mut read] = [const { Vec::new() }; 3];
                while inos.len() + empty.len() + read.len() < REPORT_CLOSED_MAX
                    && let Some(next) = state.first_pending()
                    // A request goes to one executor.
                    && map.owner(next.owner_shard()) == executor
                {
                    if let Some(waiting) = state.pending_writes.remove(&next) {
                        if waiting.is_empty { &mut empty } else { &mut inos }.push(next);
                    } else if state.pending_reads.remove(&next) {
                        read.push(next);
                    }
                }
                left = left.saturating_sub(inos.len() + empty.len() + read.len());
                // Set under the lock, so that a reopen from now on waits for the report.
                state.under_way = inos.iter().chain(&empty).copied().collect();
                state.read_under_way = read.iter().copied().collect();
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    report_closes(client, inos, empty, read)
                });
                state.under_way.clear();
                state.read_under_way.clear();
                state.reports += 1;
                self.reported.notify_all();
            }
            if state.ended && state.is_empty() {
                return;
            }
        }
    }
}

fn report_closes(client: &Client, inos: Vec<Ino>, empty: Vec<Ino>, read: Vec<Ino>) {
    if let Err(error) = client.report_closed(inos, empty, read) {
        tracing::warn!(%error, "the shard believes that some files are open that are closed");
    }
}
