//! The clock of terms and leases.

use std::time::Duration;
use tatami_wire::Timestamp;

/// Returns the time since the machine was started. Unlike [`std::time::Instant`] it goes on while
/// the machine sleeps, as does the daemon's count of the term.
pub(crate) fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Converts a time that a node has reported to [`uptime`], or to some time later. As accurate as
/// the node's clock: it serves to guess how often a directory changes.
pub(crate) fn to_uptime(time: Timestamp) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    // In whole seconds, less the one that may not be over.
    let ago = now.tv_sec.saturating_sub(time.sec).saturating_sub(1);
    uptime().saturating_sub(Duration::from_secs(u64::try_from(ago).unwrap_or_default()))
}
