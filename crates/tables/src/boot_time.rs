//! When this machine was started: what is older may have lost to a power cut what was not synced.

use rustix::time::{ClockId, clock_gettime};

/// Seconds since 1970 at which this machine was started, by its clock as it is now.
pub fn boot_seconds() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec - clock_gettime(ClockId::Boottime).tv_sec
}
