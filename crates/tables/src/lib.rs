//! Tables that a client and a daemon both keep, so that they follow the same rules: the spare files
//! of a mount, in memory that both share, and the locked bytes of a file, each on its own side.

mod lock_table;
mod spare_table;
mod table_word;

pub use lock_table::{HeldLock, LockTable};
use rustix::time::{ClockId, clock_gettime};
pub use spare_table::{ClaimCount, SLOTS, SpareTable};

/// Seconds since 1970 at which this machine was started, by its clock as it is now. A power cut may
/// have taken what is older and was not synced.
pub fn boot_seconds() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec - clock_gettime(ClockId::Boottime).tv_sec
}
