//! One directory that all processes share, from ten entries to a million, and from one client to
//! 64. Does a rate collapse, or does an operation wait long, before the directory splits, while it
//! does, or after?
//!
//! Directories of some sizes are used through the mounts of four nodes. The largest ones and those
//! of many clients are used through the client library: each process is a client of its own, as a
//! mount is. Each process looks at what the next one has made, and removes its own entries.

use super::context::SuiteContext;
use super::mounts::MOUNTS;
use crate::clock::{Steal, StealSum};
use crate::error::BenchError;
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::mdtest::rank::MdtestPart;
use crate::stats::ratio_or_zero;
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use tatami_plot::format_number;

/// Entries of the directories that are used through mounts, from the smallest.
const MOUNT_ENTRIES: [u64; 4] = [10, 1000, 10_000, 100_000];
/// Those that are used through the library; the last one also depends on `--entries`.
const LIBRARY_ENTRIES: [u64; 5] = [10, 1000, 10_000, 100_000, 1_000_000];
/// Entries of the directory that the others stand against. So few do not make it split.
const BASE_ENTRIES: u64 = 1000;
/// Small directories are made again until so many entries are counted.
const ENTRIES_MIN: u64 = 1000;
/// Numbers of clients of a directory with [`CLIENT_ENTRIES`] entries. The first is the baseline.
const CLIENTS: [usize; 4] = [1, 4, 16, 64];
const CLIENT_ENTRIES: u64 = 19_200;
/// Goal of each rate against its baseline: less would be a collapse. Smaller directories than the
/// baseline have none: there, the first request of each client counts most.
const GOAL: f64 = 0.5;

const OPERATIONS: [(MdtestOp, &str); 3] = [
    (MdtestOp::FileCreate, "create"),
    (MdtestOp::FileStat, "stat"),
    (MdtestOp::FileRemove, "remove"),
];

/// How the processes reach the directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScalingPath {
    Mounts,
    Library,
}

/// A directory to measure.
#[derive(Clone, Copy)]
struct ScalingCase {
    through: ScalingPath,
    procs: usize,
    entries: u64,
}

/// The sums of one operation over all directories of a case.
#[derive(Clone, Copy, Default)]
struct ScalingSum {
    seconds: f64,
    ops: u64,
    slow_ops: u64,
    slowest_ns: u64,
}

impl ScalingSum {
    fn add_outcome(&mut self, outcome: &PhaseOutcome) {
        self.seconds += outcome.seconds;
        self.ops += outcome.ops;
        self.slow_ops += outcome.slow_ops;
        self.slowest_ns = self.slowest_ns.max(outcome.slowest_ns);
    }

    fn rate(&self) -> f64 {
        ratio_or_zero(self.ops as f64, self.seconds)
    }
}

impl ScalingCase {
    /// Returns the names of the figures, one for each operation. `varies` is what the case has
    /// another number of than its baseline.
    fn figure_names(&self, varies: &str) -> [String; 3] {
        let through = if self.through == ScalingPath::Mounts { "mounts" } else { "library" };
        OPERATIONS.map(|(_, op)| format!("scaling {through} {op}, {varies}"))
    }

    /// Measures all operations in fresh directories.
    fn measure(&self, bench: &SuiteContext) -> Result<([ScalingSum; 3], f64), BenchError> {
        let mut sums = [ScalingSum::default(); 3];
        let mut stolen = StealSum::default();
        let items = (self.entries / self.procs as u64).max(1);
        let repeats = (ENTRIES_MIN / self.entries).max(1);
        for _ in 0..if bench.quick { 1 } else { repeats } {
            let place = match self.through {
                ScalingPath::Mounts => {
                    let dir = bench.volume.mount_path(0);
                    WorkloadPlace::Path { dir, relative: false }
                }
                ScalingPath::Library => {
                    WorkloadPlace::Library { reach: bench.volume.access(), dir: "/".into() }
                }
            };
            let site = MdtestSite::create(&place, self.procs, true)?;
            let parts = site.process_parts(self.procs, items, true, 1).into_iter().enumerate();
            let task = |(rank, part): (usize, MdtestPart)| {
                // A place of the library stays as it is.
                let mount = bench.volume.mount_path(rank as u16 % MOUNTS);
                let place = part.place.through_mount(&mount);
                WorkerTask::Mdtest(MdtestPart { place, ..part })
            };
            let mut group = WorkerGroup::start(&bench.launcher, parts.map(task).collect())?;
            for ((op, _), sum) in OPERATIONS.into_iter().zip(&mut sums) {
                let steal = Steal::now();
                sum.add_outcome(&group.run_phase(op.name())?);
                steal.add_to(&mut stolen);
            }
            drop(group);
            site.remove()?;
        }
        Ok((sums, stolen.stolen_share()))
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let largest = bench.large_dir_entries();
    let sizes = |through: ScalingPath, entries: &[u64]| {
        let entries = entries.iter().filter(|n| **n <= largest);
        let case = |n: &u64| ScalingCase { through, procs: MOUNTS.into(), entries: *n };
        entries.map(|n| (case(n), format!("{n} entries"))).collect::<Vec<_>>()
    };
    let client_entries = CLIENT_ENTRIES.min(largest);
    let clients = CLIENTS.map(|procs| {
        let varies = if procs == 1 { "1 client".into() } else { format!("{procs} clients") };
        (ScalingCase { through: ScalingPath::Library, procs, entries: client_entries }, varies)
    });
    let sets = [
        (sizes(ScalingPath::Mounts, &MOUNT_ENTRIES), format!("{BASE_ENTRIES} entries")),
        (sizes(ScalingPath::Library, &LIBRARY_ENTRIES), format!("{BASE_ENTRIES} entries")),
        (clients.to_vec(), "1 client".to_owned()),
    ];
    for (cases, base) in sets {
        let wanted = |(case, varies): &(ScalingCase, String)| {
            case.figure_names(varies).iter().any(|name| bench.wants_figure(name))
        };
        if !cases.iter().any(wanted) {
            continue;
        }
        let Some(base_case) = cases.iter().find(|(_, varies)| *varies == base) else { continue };
        let base_runs = base_case.0.measure(bench)?;
        for case in cases.iter().filter(|case| wanted(case)) {
            let (case, varies) = case;
            let (sums, stolen) = if *varies == base { base_runs } else { case.measure(bench)? };
            for ((sum, floor), name) in sums.iter().zip(&base_runs.0).zip(case.figure_names(varies))
            {
                let runs =
                    FigureRuns { ours: vec![sum.rate()], baseline: vec![floor.rate()], stolen };
                let goal = (case.entries >= BASE_ENTRIES).then_some(GOAL);
                let better = (GoalDirection::Higher, goal);
                let note = format!(
                    "{} operations, over 20 ms: {}, slowest {} ms",
                    sum.ops,
                    sum.slow_ops,
                    format_number(sum.slowest_ns as f64 / 1e6)
                );
                let figure = Figure::new(name, "op/s", &base, better, &runs).with_note(note);
                bench.add_figure_with_note(&mut figures, figure);
            }
        }
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_all_directories_and_the_slowest_of_any() {
        let mut sum = ScalingSum::default();
        for (seconds, slowest_ns) in [(1.0, 5), (3.0, 9), (0.0, 2)] {
            let outcome = PhaseOutcome {
                seconds,
                ops: 10,
                bytes: 0,
                cpu_ns: 0,
                slow_ops: 1,
                slowest_ns,
                median_ns: 0,
                p99_ns: 0,
            };
            sum.add_outcome(&outcome);
        }
        assert_eq!((sum.rate(), sum.slow_ops, sum.slowest_ns), (7.5, 3, 9));
    }
}
