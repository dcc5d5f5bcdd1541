//! Heartbeats: one thread sends all heartbeats of this process, as long as there are any.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two heartbeats.
pub const EVERY: Duration = Duration::from_secs(5);
/// A process without a heartbeat for this long counts as dead. The lease spans several heartbeats,
/// because clocks differ and servers may be slow.
pub const LEASE: Duration = Duration::from_secs(30);

/// A message that must be repeated at intervals.
pub trait Beat: Send + Sync {
    /// Sends one heartbeat. Errors are ignored: the reader notices that the heartbeat is missing.
    fn beat(&self);
}

#[derive(Default)]
struct Heart {
    beats: Vec<Weak<dyn Beat>>,
    runs: bool,
}

static HEART: Mutex<Heart> = Mutex::new(Heart { beats: Vec::new(), runs: false });

/// Sends the heartbeat of `what` at each interval until `what` is dropped.
pub fn keep(what: &Arc<impl Beat + 'static>) {
    // Only a weak reference is kept, so that the owner's drop ends the heartbeat.
    let what: Arc<dyn Beat> = what.clone();
    let mut heart = HEART.lock();
    heart.beats.push(Arc::downgrade(&what));
    if !heart.runs {
        let thread = std::thread::Builder::new().name("tatami-beats".to_owned());
        // Without a thread the process counts as dead after a lease; the next registration tries
        // again.
        heart.runs = thread.spawn(run).is_ok();
    }
}

fn run() {
    loop {
        #[allow(clippy::disallowed_methods)] // time itself is what is waited for
        std::thread::sleep(EVERY);
        let mut heart = HEART.lock();
        heart.beats.retain(|beat| beat.strong_count() > 0);
        // Decided under the lock: a registration is either seen here or starts a new thread.
        heart.runs = !heart.beats.is_empty();
        if !heart.runs {
            return;
        }
        // Upgrade under the lock, but send without it: a heartbeat may take long on a slow file
        // system.
        let living: Vec<_> = heart.beats.iter().filter_map(Weak::upgrade).collect();
        drop(heart);
        for beat in living {
            beat.beat();
        }
    }
}
