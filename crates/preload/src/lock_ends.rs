//! Locks that end with the close of a descriptor.

use crate::session::session;
use crate::table::ProgramFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tatami_client::Unbuffered;
use tatami_wire::lock::{ByteRange, LockSort};

/// This process has taken a lock of a range of bytes.
static HAS_RANGES: AtomicBool = AtomicBool::new(false);

/// Records that this process has taken a lock of a range.
pub(crate) fn record_range_lock() {
    HAS_RANGES.store(true, Relaxed);
}

/// Returns the owner of the process's locks of ranges.
pub(crate) fn process_owner() -> u64 {
    u64::from(std::process::id())
}

/// Returns the owner of the locks of an open file.
pub(crate) fn file_owner(file: &Arc<ProgramFile>) -> u64 {
    Arc::as_ptr(file) as u64
}

/// Releases the process's locks of a file, as the close of any descriptor does.
pub(crate) fn end_process_locks(file: &ProgramFile) {
    if !HAS_RANGES.load(Relaxed) {
        return;
    }
    if let Ok(session) = session() {
        let owner = (LockSort::Range, process_owner());
        // A lock that cannot be released ends with the lease of this client.
        let _ = session.client.free_lock(file.ino, owner, ByteRange::ALL, &Unbuffered);
    }
}

/// Releases the locks of an open file after its last close.
pub(crate) fn end_file_locks(file: &Arc<ProgramFile>) {
    if !file.is_locked.load(Relaxed) {
        return;
    }
    if let Ok(session) = session() {
        for sort in [LockSort::Whole, LockSort::Range] {
            let owner = (sort, file_owner(file));
            let _ = session.client.free_lock(file.ino, owner, ByteRange::ALL, &Unbuffered);
        }
    }
}
