//! Announces the mount to the node on this machine, for `tatami status`.
//!
//! The announcement lasts as long as its connection. So one connection stays open, and is replaced
//! after a restart of the daemon.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tatami_client::connection::{Caller, Connection, Endpoint};
use tatami_wire::admin::{AdminCall, AdminResult, MountInfo};
use tatami_wire::frame::FrameClass;
use tatami_wire::handshake::Role;

/// Interval between checks of the connection.
const INTERVAL: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(10);

/// The announcement. Dropping it ends it.
pub(crate) struct Announcer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Announcer {
    /// Announces now, and again after each restart of the daemon. A failure does not prevent the
    /// mount.
    pub(crate) fn start(endpoint: Endpoint, caller: Caller, info: MountInfo) -> Announcer {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let connection = announce_mount(&endpoint, &caller, &info);
        let thread = std::thread::Builder::new()
            .name("announce".into())
            .spawn({
                let stop = stop.clone();
                move || keep_announced(connection, &endpoint, &caller, &info, &stop)
            })
            .map_err(|error| tracing::warn!(%error, "the mount will not show in `status`"))
            .ok();
        Announcer { stop, thread }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and has no result.
            let _ = thread.join();
        }
    }
}

fn keep_announced(
    mut connection: Option<Connection>,
    endpoint: &Endpoint,
    caller: &Caller,
    info: &MountInfo,
    stop: &(Mutex<bool>, Condvar),
) {
    let mut stopped = stop.0.lock();
    while !*stopped {
        stop.1.wait_for(&mut stopped, INTERVAL);
        if *stopped {
            return;
        }
        if connection.as_ref().is_none_or(Connection::is_stale) {
            parking_lot::MutexGuard::unlocked(&mut stopped, || {
                connection = announce_mount(endpoint, caller, info);
            });
        }
    }
}

fn announce_mount(endpoint: &Endpoint, caller: &Caller, info: &MountInfo) -> Option<Connection> {
    let mut connection = Connection::open(endpoint, caller, Role::Admin, 0, TIMEOUT)
        .map_err(|error| tracing::debug!(%error, "not announced"))
        .ok()?;
    let call = AdminCall::Announce(info.clone());
    match connection.call::<_, AdminResult>(FrameClass::Admin, 0, &call) {
        Ok(Ok(_)) => Some(connection),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the node will not be told of the mount");
            None
        }
        Err(error) => {
            tracing::debug!(%error, "not announced");
            None
        }
    }
}
