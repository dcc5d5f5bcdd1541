//! The caches of this machine's kernel.

/// Writes all to the disks and drops the caches of pages, names and inodes, of all file systems.
/// Returns whether that was allowed: it is for root.
pub fn drop_machine_caches() -> bool {
    // The kernel drops clean pages only.
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3\n").is_ok()
}
