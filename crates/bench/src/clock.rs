//! Time, CPU time and stolen time.
//!
//! On a virtual machine the host may take the CPU away for long stretches. The kernel counts that
//! in `/proc/stat`. Every report carries the share, so that a bad measurement can be distinguished
//! from a bad result.

use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// Returns nanoseconds of the monotonic clock, which all processes of a machine share.
pub fn now_ns() -> u64 {
    timespec_ns(clock_gettime(ClockId::Monotonic))
}

/// Returns nanoseconds of CPU time (user and system) that this process has used.
pub fn own_cpu_ns() -> u64 {
    timespec_ns(clock_gettime(ClockId::ProcessCPUTime))
}

fn timespec_ns(t: rustix::time::Timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Process numbers are below this on every Linux. A larger one would not fit
/// into a clock's number.
const PID_LIMIT: u32 = 1 << 22;

/// Returns nanoseconds of CPU time (user and system) that process `pid` has used, with all its
/// threads, ended ones too. `None` when there is no such process.
pub fn process_cpu_ns(pid: u32) -> Option<u64> {
    if pid == 0 || pid >= PID_LIMIT {
        return None;
    }
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write to the local variables handed in, and to nothing else.
    let ok = unsafe {
        libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    ok.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A reading of the machine's CPU time counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steal {
    stolen: u64,
    wanted: u64,
}

impl Steal {
    /// Reads the counters now. Where there is no `/proc/stat`, nothing counts as stolen.
    pub fn now() -> Steal {
        fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|s| Steal::parse(&s))
            .unwrap_or(Steal { stolen: 0, wanted: 0 })
    }

    /// Parses the first line: user nice system idle iowait irq softirq steal guest guest_nice.
    fn parse(stat: &str) -> Option<Steal> {
        let fields: Vec<u64> = stat
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .map_while(|f| f.parse().ok())
            .collect();
        let stolen = *fields.get(7)?;
        // Idle time was not wanted; guest time is contained in user time.
        let wanted = fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + stolen;
        Some(Steal { stolen, wanted })
    }

    /// Adds the time since this reading to `sum`.
    pub fn add_to(self, sum: &mut StealSum) {
        let now = Steal::now();
        sum.stolen += now.stolen.saturating_sub(self.stolen);
        sum.wanted += now.wanted.saturating_sub(self.wanted);
    }

    /// Returns the share of wanted CPU time since this reading that the host gave to others, 0 to
    /// 1. Wanted time is the time in which some process of this machine was ready to run.
    pub fn stolen_share(self) -> f64 {
        self.share_until(Steal::now())
    }

    fn share_until(self, later: Steal) -> f64 {
        let stolen = later.stolen.saturating_sub(self.stolen) as f64;
        crate::stats::ratio_or_zero(stolen, later.wanted.saturating_sub(self.wanted) as f64)
    }
}

/// Stolen time over several stretches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StealSum {
    stolen: u64,
    wanted: u64,
}

impl StealSum {
    /// Returns the share over all stretches, 0 to 1, as [`Steal::stolen_share`].
    pub fn stolen_share(self) -> f64 {
        crate::stats::ratio_or_zero(self.stolen as f64, self.wanted as f64)
    }
}

/// A reading of the counters of all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineUse {
    /// Microseconds in which any process or the kernel ran, in steps of 10 ms.
    pub busy_us: u64,
    /// Context switches.
    pub switches: u64,
}

impl MachineUse {
    /// Microseconds of a clock tick of `/proc/stat`, on every Linux of our architectures.
    const TICK_US: u64 = 10_000;

    /// Reads the counters now. Where there is no `/proc/stat`, they are 0.
    pub fn now() -> MachineUse {
        fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|stat| MachineUse::parse(&stat))
            .unwrap_or_default()
    }

    fn parse(stat: &str) -> Option<MachineUse> {
        let Steal { stolen, wanted } = Steal::parse(stat)?;
        let switches = stat.lines().find_map(|line| line.strip_prefix("ctxt "))?;
        let busy_us = (wanted - stolen) * MachineUse::TICK_US;
        Some(MachineUse { busy_us, switches: switches.trim().parse().ok()? })
    }

    /// Returns the use since this reading.
    pub fn used_since(self) -> MachineUse {
        let now = MachineUse::now();
        MachineUse {
            busy_us: now.busy_us.saturating_sub(self.busy_us),
            switches: now.switches.saturating_sub(self.switches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_what_was_wanted() {
        let a = Steal::parse("cpu  100 0 50 1000 10 0 0 10 0 0\ncpu0 1 2 3").expect("a stat line");
        let b = Steal::parse("cpu  130 0 70 9000 10 0 0 60 0 0\n").expect("a stat line");
        assert_eq!(a.share_until(b), 0.5);
        assert_eq!(a.share_until(a), 0.0);
        assert_eq!(Steal::parse("intr 1"), None);
    }

    #[test]
    fn the_use_of_the_machine_leaves_out_what_was_idle_or_stolen() {
        let stat = "cpu  130 0 70 9000 10 0 0 60 0 0\ncpu0 1 2 3\nintr 5\nctxt 77\n";
        let all = MachineUse::parse(stat).expect("a stat file");
        assert_eq!(all, MachineUse { busy_us: 2_000_000, switches: 77 });
        assert_eq!(MachineUse::parse("cpu  130 0 70 9000 10 0 0 60 0 0\n"), None);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = own_cpu_ns();
        let mut x = 1u64;
        while own_cpu_ns() == before {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(process_cpu_ns(std::process::id()).expect("we exist") > before);
        assert_eq!(process_cpu_ns(PID_LIMIT), None);
    }
}
