//! Names through the mounts of several nodes, as a job uses them: each process has the mount of its
//! own node, every call takes a whole path, and the scheduler chooses the CPUs.
//!
//! The CPU time of an operation in private directories is that of the whole machine. It stands
//! against an empty FUSE file system with as many mounts. Each operation must also reach a server,
//! so its baseline has the CPU time of a request to the null server, too. Each process stats the
//! files that the next process has made: its own mount has not cached them, and has to ask. The
//! rate in one shared directory stands against the rate in private ones.
//!
//! Every round has directories of its own, and all rounds create before any looks or removes, for
//! the reason that [`super::mount_names`] gives. Directories are made in fresh ones, too: one that
//! has been large stays on several servers. A private directory has too few entries to split. The
//! shared one splits. The private ones that it stands against have as many entries a process, and
//! split only above 8,192.

use super::context::SuiteContext;
use super::mount_latency;
use super::pairs::{SideRun, SideRuns, run_in_turn};
use crate::clock::MachineUse;
use crate::error::BenchError;
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::mdtest::rank::MdtestPart;
use crate::null_mount::NullMountProcess;
use crate::null_server::WireDepth;
use crate::process_use::{await_quiet_servers, total_cpu_ns};
use crate::stats::{median, ratio_or_zero};
use crate::wire::NullServerRun;
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use std::path::PathBuf;
use tatami_plot::format_number;

/// Number of mounts, each of a node of its own, and of processes.
pub const MOUNTS: u16 = 4;
const PROCS: usize = MOUNTS as usize;
/// Limit of the CPU time, as a multiple of the baseline.
const CPU_GOAL: f64 = 2.0;
/// Goal of the rate in a shared directory against that in private ones.
const SHARED_GOAL: f64 = 0.8;

/// A measured operation.
struct MountsOperation {
    op: MdtestOp,
    name: &'static str,
    /// The null server's message.
    message: &'static str,
}

/// The operations on files and on directories, each in the order in which they can run.
const OPERATIONS: [&[MountsOperation]; 2] = [
    &[
        MountsOperation { op: MdtestOp::FileCreate, name: "create", message: "create" },
        MountsOperation { op: MdtestOp::FileStat, name: "stat", message: "stat" },
        MountsOperation { op: MdtestOp::FileRemove, name: "remove", message: "unlink" },
    ],
    &[
        MountsOperation { op: MdtestOp::DirCreate, name: "mkdir", message: "create" },
        MountsOperation { op: MdtestOp::DirRemove, name: "rmdir", message: "unlink" },
    ],
];

impl MountsOperation {
    fn private_name(&self) -> String {
        format!("mounts private {}, CPU", self.name)
    }

    fn shared_name(&self) -> String {
        format!("mounts shared {}, rate", self.name)
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct MountsCost {
    /// CPU time of the whole machine for one operation, in microseconds.
    pub(super) machine_us: f64,
    /// That of programs, mounts and daemons alone.
    processes_us: f64,
    pub(super) rate: f64,
    slow_ops: u64,
    slowest_ms: f64,
}

impl MountsCost {
    /// Computes the cost of a phase. `servers_ns` is the CPU time of mounts and daemons.
    fn from_outcome(outcome: &PhaseOutcome, servers_ns: u64, machine_us: u64) -> MountsCost {
        let per_op = |us: f64| ratio_or_zero(us, outcome.ops as f64);
        MountsCost {
            machine_us: per_op(machine_us as f64),
            processes_us: per_op((outcome.cpu_ns + servers_ns) as f64 / 1e3),
            rate: outcome.ops_per_sec(),
            slow_ops: outcome.slow_ops,
            slowest_ms: outcome.slowest_ns as f64 / 1e6,
        }
    }
}

/// The names that the processes of one side make.
#[derive(Clone, Copy, Debug)]
pub(super) struct MountsLoad<'a> {
    /// The first part of the names of the directories.
    pub(super) sub: &'a str,
    /// All processes work in one directory.
    pub(super) shared: bool,
    /// Files, and directories, of each process.
    pub(super) items: u64,
}

/// The processes of all rounds on one file system, and the processes that serve it.
pub(super) struct MountsSide {
    programs: Vec<WorkerGroup>,
    servers: Vec<u32>,
}

impl MountsSide {
    /// Creates the directories of each round below `mounts`, which are all of one file system, and
    /// starts the processes. The directories go with the file system.
    pub(super) fn start(
        bench: &SuiteContext,
        mounts: &[PathBuf],
        load: MountsLoad<'_>,
        servers: &[u32],
    ) -> Result<MountsSide, BenchError> {
        let MountsLoad { sub, shared, items } = load;
        // The first round warms up.
        let start = |round: usize| {
            let kind = if shared { "shared" } else { "private" };
            let sub = format!("{sub}.{kind}{items}.{round}");
            let place = WorkloadPlace::Path { dir: mounts[0].join(&sub), relative: false };
            let site = MdtestSite::create(&place, PROCS, shared)?;
            let parts = site.process_parts(PROCS, items, shared, 1);
            let task = |(part, mount): (MdtestPart, &PathBuf)| {
                let place = part.place.through_mount(&mount.join(&sub));
                WorkerTask::Mdtest(MdtestPart { place, ..part })
            };
            let tasks = parts.into_iter().zip(mounts).map(task).collect();
            WorkerGroup::start(&bench.launcher, tasks)
        };
        let programs = (0..=bench.runs).map(start).collect::<Result<_, _>>()?;
        Ok(MountsSide { programs, servers: servers.to_vec() })
    }

    fn run_phase(&mut self, op: MdtestOp, round: usize) -> Result<MountsCost, BenchError> {
        self.programs[round].prepare_phase(op.name())?;
        let (machine, servers) = (MachineUse::now(), total_cpu_ns(&self.servers));
        self.programs[round].start_phase()?;
        let outcome = PhaseOutcome::from_reports(&self.programs[round].collect_reports()?);
        await_quiet_servers(&self.servers);
        let servers = total_cpu_ns(&self.servers).saturating_sub(servers);
        Ok(MountsCost::from_outcome(&outcome, servers, machine.used_since().busy_us))
    }

    /// Returns the runs of one operation: one round at each call.
    pub(super) fn rounds_of(&mut self, op: MdtestOp) -> SideRun<'_, MountsCost> {
        let mut round = 0;
        Box::new(move || {
            let cost = self.run_phase(op, round)?;
            round += 1;
            Ok(cost)
        })
    }
}

/// Returns the number of files, and directories, of a process: fewer than make a directory split.
fn few_items(bench: &SuiteContext) -> u64 {
    bench.items_per_run() / 8
}

/// As [`few_items`], for a directory that splits.
pub(super) fn many_items(bench: &SuiteContext) -> u64 {
    few_items(bench) * 5
}

/// Takes all figures of this module and of [`mount_latency`].
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let wanted = |part: &MountsOperation| {
        bench.wants_figure(&part.private_name()) || bench.wants_figure(&part.shared_name())
    };
    let mut figures = Vec::new();
    for operations in OPERATIONS {
        if operations.iter().any(wanted) {
            figures.extend(measure_costs(bench, operations)?);
        }
    }
    figures.extend(mount_latency::take_figures(bench)?);
    Ok(figures)
}

/// Positions of the sides that take turns.
const PRIVATE: usize = 0;
const PRIVATE_MANY: usize = 1;
const SHARED: usize = 2;
const NULL: usize = 3;
const REQUEST: usize = 4;

fn measure_costs(
    bench: &SuiteContext,
    operations: &[MountsOperation],
) -> Result<Vec<Figure>, BenchError> {
    let ours: Vec<PathBuf> = (0..MOUNTS).map(|node| bench.volume.mount_path(node)).collect();
    let servers = bench.volume.server_pids()?;
    let floor = |i: u16| bench.work.join(format!("nulls/mount{i}"));
    let floor: Vec<PathBuf> = (0..MOUNTS).map(floor).collect();
    let null = NullMountProcess::start_several(&bench.launcher, floor.clone())?;
    let sub = operations[0].name;
    let few = MountsLoad { sub, shared: false, items: few_items(bench) };
    let many = MountsLoad { items: many_items(bench), ..few };
    let mut private = MountsSide::start(bench, &ours, few, &servers)?;
    let mut private_many = MountsSide::start(bench, &ours, many, &servers)?;
    let mut shared =
        MountsSide::start(bench, &ours, MountsLoad { shared: true, ..many }, &servers)?;
    let mut empty = MountsSide::start(bench, &floor, few, &[null.process_id()])?;
    let (items, socket) = (few.items, bench.work.join("null-server"));
    let depth = WireDepth::Messages;
    let mut requests = NullServerRun::start(&bench.launcher, PROCS, items, depth, Some(&socket))?;
    let mut figures = Vec::new();
    for part in operations {
        let sides = [&mut private, &mut private_many, &mut shared, &mut empty];
        let mut sides = Vec::from(sides.map(|side| side.rounds_of(part.op)));
        let requests = &mut requests;
        sides.push(Box::new(move || {
            let outcome = requests.run_phase(part.message)?;
            // The start of the null server must not count, so only processes do.
            Ok(MountsCost::from_outcome(&outcome, 0, outcome.cpu_ns / 1000))
        }));
        let turns = run_in_turn(bench.runs, sides)?;
        bench.add_figure_with_note(&mut figures, build_private(part, &turns));
        bench.add_figure_with_note(&mut figures, build_shared(part, &turns));
    }
    Ok(figures)
}

/// Returns the figure of CPU time in private directories.
fn build_private(part: &MountsOperation, turns: &SideRuns<MountsCost>) -> Figure {
    let mut runs = turns.figure_runs(PRIVATE, NULL, |cost| cost.machine_us);
    let alone = turns.figure_runs(PRIVATE, NULL, |cost| cost.processes_us);
    let mut note = format!(
        "CPU time of programs, mounts and daemons alone: {} µs against {}",
        format_number(median(&alone.ours)),
        format_number(median(&alone.baseline)),
    );
    let requests = turns.figure_runs(REQUEST, NULL, |cost| cost.machine_us).ours;
    add_to_baseline(&mut runs, &requests);
    note += &format!(" (and {} of the request)", format_number(median(&requests)));
    let against = "empty FUSE file system and a request to the null server";
    note += &format!("; {}", describe_slow(turns, PRIVATE));
    let goal = (GoalDirection::Lower, Some(CPU_GOAL));
    Figure::new(part.private_name(), "µs/op", against, goal, &runs).with_note(note)
}

/// Returns the figure of the rate in a shared directory.
fn build_shared(part: &MountsOperation, turns: &SideRuns<MountsCost>) -> Figure {
    let runs = turns.figure_runs(SHARED, PRIVATE_MANY, |cost| cost.rate);
    let cpu = turns.figure_runs(SHARED, PRIVATE_MANY, |cost| cost.machine_us);
    let note = format!(
        "CPU time of the machine for an operation: {} µs against {}; {}",
        format_number(median(&cpu.ours)),
        format_number(median(&cpu.baseline)),
        describe_slow(turns, SHARED),
    );
    let better = (GoalDirection::Higher, Some(SHARED_GOAL));
    Figure::new(part.shared_name(), "op/s", "private directories", better, &runs).with_note(note)
}

/// Adds a cost of each run to that of the baseline.
fn add_to_baseline(runs: &mut FigureRuns, more: &[f64]) {
    for (cost, more) in runs.baseline.iter_mut().zip(more) {
        *cost += more;
    }
}

/// Counts the slow operations of a side.
pub(super) fn describe_slow(turns: &SideRuns<MountsCost>, side: usize) -> String {
    let slow: f64 = turns.figure_runs(side, side, |cost| cost.slow_ops as f64).ours.iter().sum();
    let slowest = turns.figure_runs(side, side, |cost| cost.slowest_ms).ours;
    let slowest = slowest.into_iter().fold(0.0, f64::max);
    format!("operations over 20 ms: {slow:.0}, slowest {} ms", format_number(slowest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_of_an_operation_has_the_request_too() {
        let mut costs = [10.0, 12.0, 99.0, 4.0, 3.0].map(|us| {
            let outcome = PhaseOutcome {
                seconds: 2.0,
                ops: 10,
                bytes: 0,
                cpu_ns: 20_000,
                slow_ops: 2,
                slowest_ns: 30_000_000,
                median_ns: 0,
                p99_ns: 0,
            };
            let cost = MountsCost::from_outcome(&outcome, 10_000, 10 * us as u64);
            assert_eq!((cost.machine_us, cost.processes_us, cost.rate), (us, 3.0, 5.0));
            Some(cost)
        });
        let sides = costs.iter_mut().map(|cost| {
            let cost = &*cost;
            let side: SideRun<'_, MountsCost> = Box::new(move || Ok(cost.expect("it is there")));
            side
        });
        let turns = run_in_turn(2, sides.collect()).expect("no error");
        let figure = build_private(&OPERATIONS[0][0], &turns);
        assert_eq!((figure.value, figure.baseline, figure.met), (10.0, 7.0, Some(true)));
        assert!(figure.note.contains("operations over 20 ms: 4, slowest 30.0 ms"), "{figure:?}");
        let figure = build_private(&OPERATIONS[0][1], &turns);
        assert_eq!((figure.value, figure.baseline, figure.met), (10.0, 7.0, Some(true)));
        let figure = build_shared(&OPERATIONS[0][1], &turns);
        assert_eq!((figure.value, figure.baseline, figure.met), (5.0, 5.0, Some(true)));
        assert!(figure.note.contains("99.0 µs against 12.0"), "{figure:?}");
    }
}
