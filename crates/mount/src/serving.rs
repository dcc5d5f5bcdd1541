//! How a mount is served until it ends.

use crate::signals::Event;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tatami_fuse::Session;

/// How long programs that still use files have when the mount is told to end.
const GRACE: Duration = Duration::from_secs(2);

/// Why a mount has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Somebody has unmounted it.
    Unmounted,
    /// SIGTERM or SIGINT; nothing was open any more.
    Told,
    /// SIGTERM or SIGINT, while files were open. What was written to them has
    /// been told to the volume; programs that use them on get `ENOTCONN`.
    ToldWhileBusy,
}

/// Waits until somebody unmounts it or the process is told to end (SIGTERM, SIGINT), and unmounts it then.
///
/// # Errors
/// When the system is short of descriptors or threads.
pub(crate) fn until_end(session: &Arc<Session>) -> io::Result<Ended> {
    let event = Event::of_signals()?;
    let (served, waiter) = (session.clone(), event.clone());
    // Not waited for: it ends with the session, or with the process.
    std::thread::Builder::new().name("unmounted".into()).spawn(move || {
        served.wait(None);
        waiter.raise();
    })?;
    event.wait();
    if session.wait(Some(Duration::ZERO)) {
        return Ok(Ended::Unmounted);
    }
    if let Err(error) = session.channel().unmount(false) {
        tracing::warn!(%error, "unmounting as soon as nobody uses it");
        if let Err(error) = session.channel().unmount(true) {
            tracing::error!(%error, "left mounted");
        }
    }
    Ok(if session.wait(Some(GRACE)) { Ended::Told } else { Ended::ToldWhileBusy })
}
