//! Heartbeats: one thread sends all heartbeats of this process, as long as there are any.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A process without a heartbeat for this long counts as dead. The lease spans several heartbeats,
/// because clocks differ and servers may be slow.
pub const LEASE: Duration = Duration::from_secs(30);

/// A message that must be repeated at intervals.
pub trait Heartbeat: Send + Sync {
    /// Sends one heartbeat. Errors are ignored: the reader notices that the heartbeat is missing.
    fn send_heartbeat(&self);
}

#[derive(Default)]
struct HeartbeatRegistry {
    beats: Vec<Weak<dyn Heartbeat>>,
    is_running: bool,
}

static HEARTBEATS: Mutex<HeartbeatRegistry> =
    Mutex::new(HeartbeatRegistry { beats: Vec::new(), is_running: false });

/// Sends the heartbeat of `what` at each interval until `what` is dropped.
pub fn register_heartbeat(what: &Arc<impl Heartbeat + 'static>) {
    // Only a weak reference is kept, so that the owner's drop ends the heartbeat.
    let what: Arc<dyn Heartbeat> = what.clone();
    let mut heart = HEARTBEATS.lock();
    heart.beats.push(Arc::downgrade(&what));
    if !heart.is_running {
        let thread = std::thread::Builder::new().name("tatami-beats".to_owned());
        // Without a thread the process counts as dead after a lease; the next registration tries
        // again.
        heart.is_running = thread.spawn(run_heartbeats).is_ok();
    }
}

fn run_heartbeats() {
    loop {
        #[allow(clippy::disallowed_methods)] // time itself is what is waited for
        std::thread::sleep(HEARTBEAT_INTERVAL);
        let mut heart = HEARTBEATS.lock();
        heart.beats.retain(|beat| beat.strong_count() > 0);
        // Decided under the lock: a registration is either seen here or starts a new thread.
        heart.is_running = !heart.beats.is_empty();
        if !heart.is_running {
            return;
        }
        // Upgrade under the lock, but send without it: a heartbeat may take long on a slow file
        // system.
        let living: Vec<_> = heart.beats.iter().filter_map(Weak::upgrade).collect();
        drop(heart);
        for beat in living {
            beat.send_heartbeat();
        }
    }
}
