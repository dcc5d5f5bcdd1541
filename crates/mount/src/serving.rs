//! Serves a mount until its end.

use crate::signals::SignalEvent;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tatami_fuse::FuseSession;

/// Time that programs have to close their files after SIGTERM or SIGINT.
const GRACE: Duration = Duration::from_secs(2);

/// The reason for the end of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountEnd {
    /// A user has unmounted it.
    Unmounted,
    /// SIGTERM or SIGINT; no file was open any more.
    Signaled,
    /// SIGTERM or SIGINT, while files were open. Their writes are committed. Programs that continue
    /// to use them get `ENOTCONN`.
    SignaledWhileBusy,
}

/// Waits for an unmount, or for SIGTERM or SIGINT; then unmounts.
///
/// # Errors
/// When the system is short of descriptors or threads.
pub fn serve_until_end(session: &Arc<FuseSession>) -> io::Result<MountEnd> {
    let event = SignalEvent::from_signals()?;
    let (served, waiter) = (session.clone(), event.clone());
    // Not joined: the thread ends with the session or with the process.
    std::thread::Builder::new().name("unmounted".into()).spawn(move || {
        served.wait_until_unmounted(None);
        waiter.raise();
    })?;
    event.wait();
    if session.wait_until_unmounted(Some(Duration::ZERO)) {
        return Ok(MountEnd::Unmounted);
    }
    if let Err(error) = session.channel().unmount(false) {
        tracing::warn!(%error, "unmounting as soon as nobody uses it");
        if let Err(error) = session.channel().unmount(true) {
            tracing::error!(%error, "left mounted");
        }
    }
    Ok(if session.wait_until_unmounted(Some(GRACE)) {
        MountEnd::Signaled
    } else {
        MountEnd::SignaledWhileBusy
    })
}
