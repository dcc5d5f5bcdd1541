//! Files that nobody here has open for writing any more, with nothing to tell of
//! their bytes, or for reading: the shard hears of many at a time.
//!
//! Until it does, it believes that we may still write, or read a file that has lost its last name, which harms nobody. But
//! what it is told must not overtake a new open: see [`Closings::reopen`] and [`Closings::reopen_to_read`].

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tatami_client::Client;
use tatami_wire::Ino;
use tatami_wire::meta::CLOSED_MAX;

/// For so long closings gather.
const GATHER: Duration = Duration::from_millis(50);

/// Names a closing that waits, so that a later one of the same file is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closing(u64);

/// A file of which the shard shall hear.
struct Waiting {
    closing: Closing,
    /// It has no object.
    is_empty: bool,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<Ino, Waiting>,
    /// Files that nobody reads any more.
    read: BTreeSet<Ino>,
    /// Closings so far.
    closings: u64,
    under_way: HashSet<Ino>,
    read_under_way: HashSet<Ino>,
    /// How many times something was told.
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

    /// The first that waits.
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
    /// Something waits, much waits, or the end has come.
    wanted: Condvar,
    /// Nothing is under way.
    told: Condvar,
}

/// See the module. Dropped, everything is told.
pub(crate) struct Closings {
    shared: Arc<Shared>,
    client: Arc<Client>,
    thread: Option<JoinHandle<()>>,
}

impl Closings {
    /// Without a thread to be had, each closing is told at once.
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

    /// The last writer of `ino` is gone. `None` when the shard has been told already.
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

    /// The last reader of `ino` is gone.
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

    /// At that closing of `ino` there was no object: told with it, if it still waits.
    pub(crate) fn add_empty(&self, ino: Ino, closing: Closing) {
        let mut state = self.shared.state.lock();
        if let Some(waiting) = state.waiting.get_mut(&ino).filter(|w| w.closing == closing) {
            waiting.is_empty = true;
        }
    }

    /// A moment, for [`Closings::reopen`].
    pub(crate) fn now(&self) -> u64 {
        self.shared.state.lock().times
    }

    /// `ino` is open for writing again, or is about to be: an earlier end of it
    /// is not told from now on. Returns whether it may have been told since `moment`.
    pub(crate) fn reopen(&self, ino: Ino, moment: u64) -> bool {
        let mut state = self.shared.state.lock();
        if state.waiting.remove(&ino).is_some() {
            return false;
        }
        while state.under_way.contains(&ino) {
            self.shared.told.wait(&mut state);
        }
        state.times != moment
    }

    /// As [`Closings::reopen`], of a file that is read again.
    pub(crate) fn reopen_to_read(&self, ino: Ino, moment: u64) -> bool {
        let mut state = self.shared.state.lock();
        if state.read.remove(&ino) {
            return false;
        }
        while state.read_under_way.contains(&ino) {
            self.shared.told.wait(&mut state);
        }
        state.times != moment
    }

    /// Tells everything. What is added later is told at once.
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
            // It does not panic, and its result is nothing.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// One more waits: the first begins the time for which they gather, and so many end it.
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
            // What comes meanwhile gathers in its turn, or each request would bring a few.
            let mut left = state.len();
            while left > 0
                && let Some(first) = state.first()
            {
                let map = client.map();
                let executor = map.owner(first.shard());
                let [mut inos, mut empty, mut read] = [const { Vec::new() }; 3];
                while inos.len() + empty.len() + read.len() < CLOSED_MAX
                    && let Some(next) = state.first()
                    // A request is for one executor.
                    && map.owner(next.shard()) == executor
                {
                    if let Some(waiting) = state.waiting.remove(&next) {
                        if waiting.is_empty { &mut empty } else { &mut inos }.push(next);
                    } else if state.read.remove(&next) {
                        read.push(next);
                    }
                }
                left = left.saturating_sub(inos.len() + empty.len() + read.len());
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
