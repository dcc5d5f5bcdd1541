//! Tables that a client and a daemon both keep, so that they follow the same rules: the spare files
//! of a mount, in memory that both share, and the locked bytes of a file, each on its own side.

mod boot_time;
mod lock_table;
mod spare_table;
mod table_word;

pub use boot_time::boot_seconds;
pub use lock_table::{HeldLock, LockTable};
pub use spare_table::{ClaimCount, SLOTS, SpareTable};
