//! The report of a data set of small files.

use super::side::SmallFilesCost;
use crate::process_use::MemoryUse;
use crate::stats::ratio_or_zero;
use crate::table::{ReportTable, format_percent};
use serde::{Deserialize, Serialize};
use tatami_bench_args::{SmallfilesArgs, size};
use tatami_plot::format_number;

/// A phase on one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SidePhase {
    /// Its name.
    pub phase: String,
    /// Files per second of all processes together.
    pub files_per_sec: f64,
    /// The rate against that of the first side; absent for that one.
    pub ratio: Option<f64>,
    /// Median time of a file, of the process with the largest one, in microseconds.
    pub median_us: f64,
    /// The 99th percentile, likewise.
    pub p99_us: f64,
    /// The slowest file, in milliseconds.
    pub slowest_ms: f64,
    /// Files that took longer than 20 ms.
    pub slow_files: u64,
    /// CPU time of the processes for a file, in microseconds.
    pub cpu_us_per_file: f64,
    /// That of daemons and mounts, if they are the benchmark's own.
    pub server_cpu_us_per_file: Option<f64>,
    /// Memory of daemons at the end of the phase.
    pub daemons: Option<MemoryUse>,
    /// Memory of mounts at the end of the phase.
    pub mounts: Option<MemoryUse>,
    /// Share of CPU time that the host gave to others, 0 to 1.
    pub stolen: f64,
}

impl SidePhase {
    /// Makes the row of a phase. Without own servers, their cost is not known.
    pub fn new(phase: &str, cost: &SmallFilesCost, has_servers: bool) -> SidePhase {
        SidePhase {
            phase: phase.into(),
            files_per_sec: cost.outcome.ops_per_sec(),
            ratio: None,
            median_us: cost.outcome.median_ns as f64 / 1e3,
            p99_us: cost.outcome.p99_ns as f64 / 1e3,
            slowest_ms: cost.outcome.slowest_ns as f64 / 1e6,
            slow_files: cost.outcome.slow_ops,
            cpu_us_per_file: cost.outcome.cpu_us_per_op(),
            server_cpu_us_per_file: has_servers.then(|| cost.servers_us()),
            daemons: has_servers.then_some(cost.daemons),
            mounts: has_servers.then_some(cost.mounts),
            stolen: cost.stolen,
        }
    }

    /// Describes it in a few words.
    pub fn describe(&self) -> String {
        format!("{} files/s", format_number(self.files_per_sec))
    }
}

/// All phases of one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SideReport {
    /// The kind of files of a volume, or the directory.
    pub name: String,
    /// Number of paths that lead to the directory, such as mounts.
    pub paths: usize,
    /// Whether the volume is the benchmark's own.
    pub has_servers: bool,
    /// Bytes that a file takes on the disk, with its inode and what metadata it needs.
    pub bytes_per_file: f64,
    /// The phases, in order.
    pub phases: Vec<SidePhase>,
}

impl SideReport {
    /// Makes a report without phases.
    pub fn new(name: String, paths: usize, has_servers: bool) -> SideReport {
        SideReport { name, paths, has_servers, bytes_per_file: 0.0, phases: Vec::new() }
    }
}

/// The report of `tatami bench smallfiles`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SmallFilesReport {
    /// `smallfiles`
    pub workload: String,
    /// Files of the data set.
    pub files: u64,
    /// Its directories.
    pub directories: u64,
    /// Bytes of a file.
    pub size: u64,
    /// Number of processes.
    pub procs: usize,
    /// Whether the caches of the kernel were dropped before the first read.
    pub cold: bool,
    /// All sides, the baseline first.
    pub sides: Vec<SideReport>,
}

impl SmallFilesReport {
    /// Puts the reports of all sides together.
    pub fn new(args: &SmallfilesArgs, mut sides: Vec<SideReport>, cold: bool) -> SmallFilesReport {
        if let Some((first, others)) = sides.split_first_mut() {
            for side in others {
                for (row, floor) in side.phases.iter_mut().zip(&first.phases) {
                    row.ratio = Some(ratio_or_zero(row.files_per_sec, floor.files_per_sec));
                }
            }
        }
        SmallFilesReport {
            workload: "smallfiles".into(),
            files: args.files,
            directories: args.directories,
            size: args.size,
            procs: args.procs,
            cold,
            sides,
        }
    }

    /// Renders the report for people.
    pub fn render(&self) -> String {
        let mut table = ReportTable::new(&[
            "phase",
            "files",
            "files/s",
            "ratio",
            "median µs",
            "99 % µs",
            "slowest ms",
            "CPU µs/file",
            "of servers",
            "daemons MiB",
            "peak",
            "mounts MiB",
            "peak",
            "stolen",
        ]);
        let phases = self.sides.first().map_or(0, |side| side.phases.len());
        let optional = |value: Option<f64>| value.map_or("–".into(), format_number);
        for phase in 0..phases {
            for side in &self.sides {
                let row = &side.phases[phase];
                let memory = [row.daemons, row.mounts];
                let [daemons, mounts] = memory.map(|all| all.map(|all| all.resident_mib));
                let [daemon, mount] = memory.map(|all| all.map(|all| all.peak_mib));
                table.add_row(vec![
                    row.phase.clone(),
                    side.name.clone(),
                    format_number(row.files_per_sec),
                    row.ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")),
                    format_number(row.median_us),
                    format_number(row.p99_us),
                    format_number(row.slowest_ms),
                    format_number(row.cpu_us_per_file),
                    optional(row.server_cpu_us_per_file),
                    optional(daemons),
                    optional(daemon),
                    optional(mounts),
                    optional(mount),
                    format_percent(row.stolen),
                ]);
            }
        }
        let mut text = format!(
            "smallfiles: {} files of {} in {} directories, {} processes, {}\n{}",
            format_number(self.files as f64).trim_end_matches(".0"),
            size::format_size(self.size),
            self.directories,
            self.procs,
            if self.cold {
                "first read without caches of the kernel"
            } else {
                "caches as they were"
            },
            table.render()
        );
        for side in &self.sides {
            // Metadata have room in their log from the beginning.
            let room = match side.bytes_per_file {
                0.0 => "no more room than there was before".into(),
                bytes => format!("{} bytes on the disk for a file", format_number(bytes)),
            };
            text += &format!("{}: {room}, {} path(s)\n", side.name, side.paths);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker_group::PhaseOutcome;
    use clap::Parser;

    #[derive(Debug, clap::Parser)]
    struct ReportLine {
        #[command(flatten)]
        args: SmallfilesArgs,
    }

    #[test]
    fn rates_stand_against_the_first_side() {
        let outcome = |seconds| PhaseOutcome {
            seconds,
            ops: 100,
            bytes: 0,
            cpu_ns: 1_000_000,
            slow_ops: 1,
            slowest_ns: 30_000_000,
            median_ns: 2000,
            p99_ns: 9000,
        };
        let cost = |seconds| SmallFilesCost {
            outcome: outcome(seconds),
            servers_ns: 500_000,
            daemons: MemoryUse { processes: 4, resident_mib: 80.0, peak_mib: 33.0 },
            mounts: MemoryUse::default(),
            stolen: 0.0,
        };
        let mut peer = SideReport::new("/scratch".into(), 1, false);
        peer.phases.push(SidePhase::new("make", &cost(1.0), false));
        let mut own = SideReport::new("region".into(), 4, true);
        own.phases.push(SidePhase::new("make", &cost(2.0), true));
        own.bytes_per_file = 4300.0;
        let args = ReportLine::parse_from(["smallfiles"]).args;
        let report = SmallFilesReport::new(&args, vec![peer, own], true);
        let rows: Vec<_> = report.sides.iter().map(|side| &side.phases[0]).collect();
        assert_eq!((rows[0].ratio, rows[1].ratio), (None, Some(0.5)));
        assert_eq!((rows[1].cpu_us_per_file, rows[1].server_cpu_us_per_file), (10.0, Some(5.0)));
        let text = report.render();
        for part in ["1,000,000 files of 4k", "0.50", "region: 4,300 bytes", "80.0", "30.0"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
