//! The file mode mask of the process. There is no call that only reads it, so the library follows
//! the changes.

use crate::raw;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static MASK: AtomicU32 = AtomicU32::new(0o022);

/// Reads the mask at the start of the process, while it has one thread.
pub(crate) fn read_at_start() {
    let mask = raw::call(libc::SYS_umask, &[0o077]);
    raw::call(libc::SYS_umask, &[mask as usize]);
    MASK.store(mask as u32 & 0o777, Relaxed);
}

/// Returns the mask.
pub(crate) fn current() -> u32 {
    MASK.load(Relaxed)
}

/// Sets the mask and returns the one before.
pub(crate) fn set(mask: u32) -> u32 {
    MASK.store(mask & 0o777, Relaxed);
    raw::call(libc::SYS_umask, &[mask as usize]) as u32
}
