//! Files that nobody here has open for writing any more, with nothing to tell of
//! their bytes: the shard hears of many at a time.
//!
//! Until it does, it believes that we may still write, which harms nobody. But what
//! it is told must not overtake a new open: see [`Closings::reopen`].

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tatami_client::Client;
use tatami_wire::Ino;
use tatami_wire::meta::CLOSED_MAX;

/// For so long closings gather.
const GATHER: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    waiting: BTreeSet<Ino>,
    under_way: HashSet<Ino>,
    /// How many times something was told.
    times: u64,
    ended: bool,
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

    /// The last writer of `ino` is gone.
    pub(crate) fn add(&self, ino: Ino) {
        let mut state = self.shared.state.lock();
        if self.thread.is_none() || state.ended {
            drop(state);
            tell(&self.client, vec![ino]);
            return;
        }
        state.waiting.insert(ino);
        if matches!(state.waiting.len(), 1 | CLOSED_MAX) {
            self.shared.wanted.notify_one();
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
        if state.waiting.remove(&ino) {
            return false;
        }
        while state.under_way.contains(&ino) {
            self.shared.told.wait(&mut state);
        }
        state.times != moment
    }

    /// Tells everything. What is added later is told at once.
    pub(crate) fn end(&self) {
        let mut state = self.shared.state.lock();
        state.ended = true;
        self.shared.wanted.notify_one();
        while self.thread.is_some() && !(state.waiting.is_empty() && state.under_way.is_empty()) {
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
    fn tell_until_the_end(&self, client: &Client) {
        let mut state = self.state.lock();
        loop {
            while state.waiting.is_empty() && !state.ended {
                self.wanted.wait(&mut state);
            }
            if state.waiting.len() < CLOSED_MAX && !state.ended {
                self.wanted.wait_for(&mut state, GATHER);
            }
            while let Some(first) = state.waiting.first().copied() {
                // A request is for one shard; numbers of one shard follow each other.
                let here = |ino: &Ino| ino.shard() == first.shard();
                let inos: Vec<Ino> =
                    state.waiting.iter().copied().take_while(here).take(CLOSED_MAX).collect();
                state.waiting.retain(|ino| !inos.contains(ino));
                state.under_way = inos.iter().copied().collect();
                parking_lot::MutexGuard::unlocked(&mut state, || tell(client, inos));
                state.under_way.clear();
                state.times += 1;
                self.told.notify_all();
            }
            if state.ended {
                return;
            }
        }
    }
}

fn tell(client: &Client, inos: Vec<Ino>) {
    if let Err(error) = client.closed(inos) {
        tracing::warn!(%error, "the shard believes that we may still write to some files");
    }
}
