//! The machine on which the figures were taken, and its CPUs.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The properties of a machine that a comparison of figures needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// Number of CPUs that this process may use.
    pub cpus: usize,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Type of the file system below the working directory.
    pub disk: String,
    /// Whether requests of FUSE come over io_uring, where the mount agrees.
    #[serde(default)]
    pub fuse_io_uring: bool,
}

impl Machine {
    /// Describes this machine, with the file system on which `dir` lies.
    pub fn from_dir(dir: &Path) -> Machine {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, v)| v.trim().to_owned()).unwrap_or_default()
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Machine {
            cpu: field("/proc/cpuinfo", "model name"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib / 1024,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            disk: file_system_type(dir),
            fuse_io_uring: fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
                .is_ok_and(|switch| switch.trim() == "Y"),
        }
    }

    /// Describes the machine in one line.
    pub fn summary_line(&self) -> String {
        let fuse = if self.fuse_io_uring { "FUSE over io_uring" } else { "FUSE over /dev/fuse" };
        format!(
            "{} × {}, {} MiB memory, Linux {}, {}, {fuse}",
            self.cpus, self.cpu, self.memory_mib, self.kernel, self.disk
        )
    }
}

/// Returns the type of the mount with the longest path that contains `dir`.
fn file_system_type(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(at, _)| dir.starts_with(at))
        .max_by_key(|(at, _)| at.len())
        .map_or_else(|| "unknown file system".into(), |(_, kind)| kind.to_owned())
}

/// Pins this process, and all that it starts from now on, to the last CPU it may use.
///
/// A request for a name is a relay between processes that each work for a few microseconds. The
/// scheduler may put two of them on one CPU or on two. That changes the time of a hand-over by a
/// factor of up to ten, more so on virtual machines, and by more than any figure here.
pub fn pin_to_one_cpu() -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let may = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| may.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(last.unwrap_or(0));
    Ok(sched_setaffinity(None, &one)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_tells_what_it_is() {
        let machine = Machine::from_dir(Path::new("/proc"));
        assert_eq!(machine.disk, "proc");
        assert!(machine.cpus > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty());
    }
}
