//! Moments some milliseconds apart.

use tatami_wire::Timestamp;

/// Returns the moment `ms` milliseconds after `since`.
pub(crate) fn add_millis(since: Timestamp, ms: u64) -> Timestamp {
    let nanos = u64::from(since.nsec) + ms % 1000 * 1_000_000;
    let sec = since.sec.saturating_add((ms / 1000 + nanos / 1_000_000_000) as i64);
    Timestamp { sec, nsec: (nanos % 1_000_000_000) as u32 }
}
