//! Numbers that mark what was written since an extent or a half of the journal was begun anew.

/// Returns a number that no earlier record on the disk has: what is left from before, and what a
/// power cut has brought back, does not count.
pub(crate) fn make_generation() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        // Without the kernel's random numbers, the time is as good as unique.
        Err(_) => read_nanoseconds(),
    }
}

fn read_nanoseconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}
