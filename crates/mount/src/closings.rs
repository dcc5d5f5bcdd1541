//! Deferred closes. The mount reports closes to the shard in batches: of the last writer if there
//! is nothing to commit, and of the last reader.
//!
//! Until then the shard believes that this client may still write, or read a file without names,
//! which is harmless. But a report must not overtake a new open: see [`Closings::reopen`] and
//! [`Closings::reopen_to_read`].

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tatami_client::Client;
use tatami_wire::Ino;
use tatami_wire::meta::CLOSED_MAX;

/// Time for which closes are collected.
const GATHER: Duration = Duration::from_millis(50);

/// Id of a deferred close, so that it is not confused with a later one of the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closing(u64);

/// The deferred close of a writer.
struct Waiting {
    closing: Closing,
    /// The file has no object.
    is_empty: bool,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<Ino, Waiting>,
    /// Files with a deferred close of the last reader.
    read: BTreeSet<Ino>,
    /// Number of deferred closes so far.
    closings: u64,
    under_way: HashSet<Ino>,
    read_under_way: HashSet<Ino>,
    /// Number of reports so far.
    times: u64,
    ended: bool,
}

impl State {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.read.is_empty()
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.read.len()
    }

    /// Returns the lowest inode with a deferred close.
    fn first(&self) -> Option<Ino> {
        let (write, read) = (self.waiting.keys().next(), self.read.first());
        write.into_iter().chain(read).min().copied()
    }

    fn is_under_way(&self) -> bool {
        !(self.under_way.is_empty() && self.read_under_way.is_empty())
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals the first close of a batch, a full batch, and the end.
    wanted: Condvar,
    /// Signals the end of a report.
    told: Condvar,
}

/// The deferred closes of a mount. Dropping it reports all of them.
pub(crate) struct Closings {
    shared: Arc<Shared>,
    client: Arc<Client>,
    thread: Option<JoinHandle<()>>,
}

impl Closings {
    /// Starts the thread. Without a thread, each close is reported at once.
    pub(crate) fn new(client: Arc<Client>) -> Closings {
        let shared = Arc::new(Shared::default());
        let run = {
            let (shared, client) = (shared.clone(), client.clone());
            move || shared.tell_until_the_end(&client)
        };
        let thread = std::thread::Builder::new()
            .name("closings".into())
            .spawn(run)
            .inspect_err(|error| tracing::warn!(%error, "each close is told by itself"))
            .ok();
        Closings { shared, client, thread }
    }

    /// Defers the close of the last writer of `ino`. Returns `None` if it was reported at once.
    pub(crate) fn add(&self, ino: Ino) -> Option<Closing> {
        let mut state = self.shared.state.lock();
        if self.thread.is_none() || state.ended {
            drop(state);
            tell(&self.client, vec![ino], Vec::new(), Vec::new());
            return None;
        }
        state.closings += 1;
        let closing = Closing(state.closings);
        state.waiting.insert(ino, Waiting { closing, is_empty: false });
        self.shared.note(&state);
        Some(closing)
    }

    /// Defers the close of the last reader of `ino`.
    pub(crate) fn add_read(&self, ino: Ino) {
        let mut state = self.shared.state.lock();
        if self.thread.is_none() || state.ended {
            drop(state);
            return tell(&self.client, Vec::new(), Vec::new(), vec![ino]);
        }
        if state.read.insert(ino) {
            self.shared.note(&state);
        }
    }

    /// Marks that `ino` had no object at this close, if it is still deferred.
    pub(crate) fn add_empty(&self, ino: Ino, closing: Closing) {
        let mut state = self.shared.state.lock();
        if let Some(waiting) = state.waiting.get_mut(&ino).filter(|w| w.closing == closing) {
            waiting.is_empty = true;
        }
    }

    /// Returns the current moment, for [`Closings::reopen`].
    pub(crate) fn now(&self) -> u64 {
        self.shared.state.lock().times
    }

    /// Cancels a deferred close, before or after `ino` is opened for writing again. Waits for a
    /// report under way. Returns whether a report since `moment` may have included the close.
    pub(crate) fn reopen(&self, ino: Ino, moment: u64) -> bool {
        let mut state = self.shared.state.lock();
        if state.waiting.remove(&ino).is_some() {
            return false;
        }
        // A report under way may reach the shard after the new open, so wait for its end.
        while state.under_way.contains(&ino) {
            self.shared.told.wait(&mut state);
        }
        state.times != moment
    }

    /// Like [`Closings::reopen`], for a file that is opened for reading.
    pub(crate) fn reopen_to_read(&self, ino: Ino, moment: u64) -> bool {
        let mut state = self.shared.state.lock();
        if state.read.remove(&ino) {
            return false;
        }
        // As in `reopen`.
        while state.read_under_way.contains(&ino) {
            self.shared.told.wait(&mut state);
        }
        state.times != moment
    }

    /// Reports all deferred closes. Later ones are reported at once.
    pub(crate) fn end(&self) {
        let mut state = self.shared.state.lock();
        state.ended = true;
        self.shared.wanted.notify_one();
        while self.thread.is_some() && (!state.is_empty() || state.is_under_way()) {
            self.shared.told.wait(&mut state);
        }
    }
}

impl Drop for Closings {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and has no result.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Wakes the thread at the first close, which starts the collection, and at a full batch, which
    /// ends it.
    fn note(&self, state: &State) {
        if matches!(state.len(), 1 | CLOSED_MAX) {
            self.wanted.notify_one();
        }
    }

    fn tell_until_the_end(&self, client: &Client) {
        let mut state = self.state.lock();
        loop {
            while state.is_empty() && !state.ended {
                self.wanted.wait(&mut state);
            }
            if state.len() < CLOSED_MAX && !state.ended {
                self.wanted.wait_for(&mut state, GATHER);
            }
            // Only send the closes that are here now. Later ones are collected again; otherwise
            // each request would have only a few.
            let mut left = state.len();
            while left > 0
                && let Some(first) = state.first()
            {
                let map = client.map();
                let executor = map.owner(first.shard());
                let [mut inos, mut empty, mut read] = [const { Vec::new() }; 3];
                while inos.len() + empty.len() + read.len() < CLOSED_MAX
                    && let Some(next) = state.first()
                    // A request goes to one executor.
                    && map.owner(next.shard()) == executor
                {
                    if let Some(waiting) = state.waiting.remove(&next) {
                        if waiting.is_empty { &mut empty } else { &mut inos }.push(next);
                    } else if state.read.remove(&next) {
                        read.push(next);
                    }
                }
                left = left.saturating_sub(inos.len() + empty.len() + read.len());
                // Set under the lock, so that a reopen from now on waits for the report.
                state.under_way = inos.iter().chain(&empty).copied().collect();
                state.read_under_way = read.iter().copied().collect();
                parking_lot::MutexGuard::unlocked(&mut state, || tell(client, inos, empty, read));
                state.under_way.clear();
                state.read_under_way.clear();
                state.times += 1;
                self.told.notify_all();
            }
            if state.ended && state.is_empty() {
                return;
            }
        }
    }
}

fn tell(client: &Client, inos: Vec<Ino>, empty: Vec<Ino>, read: Vec<Ino>) {
    if let Err(error) = client.closed(inos, empty, read) {
        tracing::warn!(%error, "the shard believes that some files are open that are closed");
    }
}
