//! What other processes use: CPU time and memory of daemons and mounts.

use crate::clock::process_cpu_ns;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Servers are quiet when they use less than a twentieth of a CPU for this long.
const QUIET: Duration = Duration::from_millis(20);
/// Most intervals to wait for that.
const QUIET_TRIES: u32 = 100;

/// The memory of some processes, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Number of processes.
    pub processes: usize,
    /// Resident memory of all together, now.
    pub resident_mib: f64,
    /// The most that one of them has had so far.
    pub peak_mib: f64,
}

impl MemoryUse {
    /// Reads the memory of these processes. One that has ended counts as nothing.
    pub fn of_processes(pids: &[u32]) -> MemoryUse {
        let mut all = MemoryUse { processes: pids.len(), ..MemoryUse::default() };
        for pid in pids {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let (resident, peak) = parse_memory(&text);
            all.resident_mib += resident;
            all.peak_mib = all.peak_mib.max(peak);
        }
        all
    }
}

/// Returns resident and peak memory of `/proc/PID/status`, in MiB.
fn parse_memory(status: &str) -> (f64, f64) {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kib.unwrap_or(0.0) / 1024.0
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Returns nanoseconds of CPU time that these processes have used.
pub fn total_cpu_ns(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|pid| process_cpu_ns(*pid)).sum()
}

/// Waits until the servers have done the work that they left for later, so that it counts here and
/// not to the next side.
pub fn await_quiet_servers(pids: &[u32]) {
    for _ in 0..QUIET_TRIES {
        let before = total_cpu_ns(pids);
        #[expect(clippy::disallowed_methods, reason = "servers send no event at such an end")]
        std::thread::sleep(QUIET);
        let used = total_cpu_ns(pids).saturating_sub(before);
        if u128::from(used) < QUIET.as_nanos() / 20 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernel() {
        let status = "Name:\tx\nVmHWM:\t    3072 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!(parse_memory(status), (2.0, 3.0));
        assert_eq!(parse_memory(""), (0.0, 0.0));
        let own = MemoryUse::of_processes(&[std::process::id(), u32::MAX]);
        assert!(own.resident_mib > 0.5 && own.peak_mib >= own.resident_mib, "{own:?}");
        assert_eq!(own.processes, 2);
    }
}
