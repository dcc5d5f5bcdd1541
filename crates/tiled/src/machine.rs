//! The identity of this machine, and its clock.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a number of this machine since its start; never 0. Processes with the same number share
/// memory through files.
pub fn machine_id() -> u32 {
    static ID: OnceLock<u32> = OnceLock::new();
    *ID.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Containers of one machine have one boot id and one page cache, so the host name is only
        // used without one.
        let name = match boot.is_empty() {
            true => rustix::system::uname().nodename().to_bytes().to_vec(),
            false => boot,
        };
        // 0 stands for "several machines".
        crc32c::crc32c(&name).max(1)
    })
}

/// Microseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Seconds since 1970 at which this machine was started.
pub fn boot_time() -> i64 {
    let clock = |id| rustix::time::clock_gettime(id).tv_sec;
    clock(rustix::time::ClockId::Realtime) - clock(rustix::time::ClockId::Boottime)
}

/// Draws a random number that no other process has, never 0.
///
/// # Errors
/// `EIO` where the system's generator fails.
pub fn draw_number() -> Result<u64, rustix::io::Errno> {
    getrandom::u64().map(|n| n.max(1)).map_err(|_| rustix::io::Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_microseconds_since_1970() {
        let clock =
            || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        let (before, at, after) = (clock(), u128::from(now()), clock());
        assert!((before..=after).contains(&at), "{at} is not in {before} to {after}");
    }

    /// The kernel computes the same from the same clocks, at another moment.
    #[test]
    fn the_machine_was_started_when_the_kernel_says() {
        let stat = std::fs::read_to_string("/proc/stat").expect("proc is mounted");
        let kernel = stat.lines().find_map(|line| line.strip_prefix("btime "));
        let kernel: i64 = kernel.and_then(|text| text.parse().ok()).expect("a time");
        assert!(boot_time().abs_diff(kernel) <= 2, "{} and {kernel}", boot_time());
    }
}
