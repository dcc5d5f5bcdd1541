//! Metadata and small files through the mount against an empty FUSE file system that gets the same
//! requests. The figures are CPU time and system calls per operation of all processes that take
//! part (the program, the mount's process, the daemons). A create makes a file on the disk, so the
//! disk's part is measured beside it. A written file does the same; for it the empty file system
//! gets one more request, with the bytes, whereas the kernel of Tatami's mount writes them to the
//! disk by passthrough. Reads of small files stand against the same files on the disk, as rates.
//!
//! One program works in one directory, which it has open, so that an operation needs no walk
//! through a path. Every round has a directory of its own, and all rounds create before any
//! removes. The reason is ext4: after it has removed thousands of inodes, it takes many times
//! longer to find a free one, because it passes over recently removed ones one by one.

use super::context::{SuiteContext, baseline_name};
use super::pairs::{self, PairedRuns, run_in_turn};
use crate::clock::process_cpu_ns;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::null_mount::NullMountProcess;
use crate::progress::print_progress;
use crate::strace::{self, SyscallCounts, SyscallTrace};
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use std::path::{Path, PathBuf};

const GOAL: f64 = 2.0;

/// The other sides of an operation, the baseline first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountBaseline {
    /// The empty file system.
    Null,
    /// The empty file system, and the disk. The disk's part of the cost is another figure.
    NullAndDisk,
    /// Files of the disk: the empty file system has no bytes.
    Disk,
}

/// A measured operation.
struct MountOperation {
    op: MdtestOp,
    name: &'static str,
    /// Whether the files are written; otherwise they stay empty.
    written: bool,
    baseline: MountBaseline,
    goal: Option<f64>,
}

const PARTS: [MountOperation; 5] = [
    MountOperation {
        op: MdtestOp::FileCreate,
        name: "create",
        written: false,
        baseline: MountBaseline::NullAndDisk,
        goal: Some(GOAL),
    },
    MountOperation {
        op: MdtestOp::FileStat,
        name: "stat",
        written: false,
        baseline: MountBaseline::Null,
        goal: Some(GOAL),
    },
    MountOperation {
        op: MdtestOp::FileWrite,
        name: "create and write 4k",
        written: true,
        baseline: MountBaseline::NullAndDisk,
        goal: None,
    },
    MountOperation {
        op: MdtestOp::FileRead,
        name: "open and read 4k",
        written: true,
        baseline: MountBaseline::Disk,
        goal: None,
    },
    MountOperation {
        op: MdtestOp::FileRemove,
        name: "unlink",
        written: false,
        baseline: MountBaseline::Null,
        goal: Some(GOAL),
    },
];
/// Operations under strace, which makes each a hundred times slower.
const TRACED: u64 = 300;

/// One side: for each round a program with a directory of its own, and the processes that serve it.
struct MountSide {
    programs: Vec<WorkerGroup>,
    site: MdtestSite,
    /// The directory that contains the site.
    base: PathBuf,
    servers: Vec<u32>,
}

/// The cost of an operation.
#[derive(Clone, Copy, Debug)]
struct MountCost {
    cpu_us: f64,
    rate: f64,
}

impl MountSide {
    fn start(
        bench: &SuiteContext,
        place: &WorkloadPlace,
        servers: Vec<u32>,
        rounds: usize,
        items: u64,
    ) -> Result<MountSide, BenchError> {
        // Objects of all files share their directories.
        let (WorkloadPlace::Objects { dir: base } | WorkloadPlace::Path { dir: base, .. }) = place
        else {
            return Err(BenchError::Usage("figures of a mount are taken in a directory".into()));
        };
        std::fs::create_dir(base).map_err(path_error("creating", base))?;
        let shared = matches!(place, WorkloadPlace::Objects { .. });
        let site = MdtestSite::create(place, rounds, shared)?;
        let tasks =
            site.process_parts(rounds, items, shared, 0).into_iter().map(WorkerTask::Mdtest);
        let programs: Result<_, _> =
            tasks.map(|task| WorkerGroup::start(&bench.launcher, vec![task])).collect();
        Ok(MountSide { programs: programs?, site, base: base.clone(), servers })
    }

    fn traced_processes(&self, round: usize) -> Vec<u32> {
        self.programs[round].process_ids().into_iter().chain(self.servers.iter().copied()).collect()
    }

    fn run_phase(&mut self, op: MdtestOp, round: usize) -> Result<MountCost, BenchError> {
        self.programs[round].prepare_phase(op.name())?;
        let cpu = || -> u64 { self.servers.iter().filter_map(|p| process_cpu_ns(*p)).sum() };
        // Read after the preparation, so that the servers' work for it does not count.
        let cpu_before = cpu();
        self.programs[round].start_phase()?;
        let outcome = PhaseOutcome::from_reports(&self.programs[round].collect_reports()?);
        let cpu = || -> u64 { self.servers.iter().filter_map(|p| process_cpu_ns(*p)).sum() };
        let cpu_ns = outcome.cpu_ns + cpu().saturating_sub(cpu_before);
        Ok(MountCost {
            cpu_us: cpu_ns as f64 / 1e3 / outcome.ops as f64,
            rate: outcome.ops_per_sec(),
        })
    }

    /// Returns the system calls of one phase, by process: the program first.
    fn trace_calls(&mut self, op: MdtestOp, dir: &Path) -> Result<Vec<SyscallCounts>, BenchError> {
        self.programs[0].prepare_phase(op.name())?;
        let traces: Vec<SyscallTrace> = self
            .traced_processes(0)
            .into_iter()
            .map(|pid| SyscallTrace::attach(pid, dir))
            .collect::<Result<_, _>>()?;
        self.programs[0].start_phase()?;
        self.programs[0].collect_reports()?;
        traces.into_iter().map(SyscallTrace::finish_trace).collect()
    }

    fn remove_site(self) -> Result<(), BenchError> {
        drop(self.programs);
        self.site.remove()?;
        std::fs::remove_dir(&self.base).map_err(path_error("removing", &self.base))
    }
}

/// Returns a directory below `dir`, which the program has open.
fn place_below(dir: &Path, sub: &str) -> WorkloadPlace {
    WorkloadPlace::Path { dir: dir.join(sub), relative: true }
}

impl MountOperation {
    /// Returns the name of the figure of CPU time, or of the rate against files of the disk.
    fn cost_name(&self) -> String {
        let number = if self.baseline == MountBaseline::Disk { "rate" } else { "CPU" };
        format!("mount {}, {number}", self.name)
    }

    /// Returns the name of the figure of system calls, where there is one.
    fn calls_name(&self) -> Option<String> {
        self.goal.map(|_| format!("mount {}, system calls", self.name))
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let null = NullMountProcess::start(&bench.launcher, &bench.work.join("null"), None)?;
    let ours = bench.volume.mount_path(0);
    let mut servers = bench.volume.daemon_pids()?;
    servers.extend(bench.volume.node_status(0)?.mounts.iter().map(|m| m.pid));
    let floor = bench.work.join("null");
    let mut figures = Vec::new();
    if PARTS.iter().any(|part| bench.wants_with_baseline(&part.cost_name())) {
        figures.extend(measure_costs(bench, &ours, servers.clone(), &floor, null.process_id())?);
    }
    if !PARTS.iter().filter_map(MountOperation::calls_name).any(|name| bench.wants_figure(&name)) {
        return Ok(figures);
    }
    if strace::is_installed() {
        figures.extend(measure_calls(bench, &ours, servers, &floor, null.process_id())?);
    } else {
        print_progress(
            "strace is not installed: system calls are not counted (apt-get install strace)",
        );
    }
    Ok(figures)
}

fn measure_costs(
    bench: &SuiteContext,
    ours: &Path,
    servers: Vec<u32>,
    floor: &Path,
    null: u32,
) -> Result<Vec<Figure>, BenchError> {
    // The first round warms up.
    let rounds = bench.runs + 1;
    let start = |sub: &str, items: u64| -> Result<[MountSide; 3], BenchError> {
        let objects = WorkloadPlace::Objects { dir: bench.plain.join(sub) };
        Ok([
            MountSide::start(bench, &place_below(ours, sub), servers.clone(), rounds, items)?,
            MountSide::start(bench, &place_below(floor, sub), vec![null], rounds, items)?,
            MountSide::start(bench, &objects, Vec::new(), rounds, items)?,
        ])
    };
    let mut empty = start("empty", bench.items_per_run() / 4)?;
    let mut written = start("written", bench.items_per_run() / 8)?;
    let mut figures = Vec::new();
    for part in PARTS {
        let [ours, null, disk] = if part.written { &mut written } else { &mut empty };
        let sides = match part.baseline {
            MountBaseline::Null => vec![ours, null],
            MountBaseline::NullAndDisk => vec![ours, null, disk],
            MountBaseline::Disk => vec![ours, disk],
        };
        let sides = sides.into_iter().map(|side| side_rounds(side, part.op));
        let turns = run_in_turn(bench.runs, sides.collect())?;
        let name = part.cost_name();
        if part.baseline == MountBaseline::Disk {
            let runs = turns.figure_runs(0, 1, |c| c.rate);
            let better = (GoalDirection::Higher, part.goal);
            bench.add_figure(&mut figures, Figure::new(name, "op/s", "the disk", better, &runs));
            continue;
        }
        let by_cpu = |name, side, goal| {
            let runs = turns.figure_runs(side, 1, |c| c.cpu_us);
            let against = "empty FUSE file system";
            Figure::new(name, "µs/op", against, (GoalDirection::Lower, goal), &runs)
        };
        bench.add_figure(&mut figures, by_cpu(name.clone(), 0, part.goal));
        if part.baseline == MountBaseline::NullAndDisk {
            let note = "the same with the files of the disk that a node makes objects of, and \
                        nothing else";
            let figure = by_cpu(baseline_name(&name), 2, None);
            bench.add_figure(&mut figures, figure.with_note(note));
        }
    }
    for side in empty.into_iter().chain(written) {
        side.remove_site()?;
    }
    Ok(figures)
}

/// Returns the runs of one operation: one round at each call.
fn side_rounds(side: &mut MountSide, op: MdtestOp) -> pairs::SideRun<'_, MountCost> {
    let mut round = 0;
    Box::new(move || {
        let cost = side.run_phase(op, round)?;
        round += 1;
        Ok(cost)
    })
}

fn measure_calls(
    bench: &SuiteContext,
    ours: &Path,
    servers: Vec<u32>,
    floor: &Path,
    null: u32,
) -> Result<Vec<Figure>, BenchError> {
    let mut a = MountSide::start(bench, &place_below(ours, "traced"), servers, 1, TRACED)?;
    let mut b = MountSide::start(bench, &place_below(floor, "traced"), vec![null], 1, TRACED)?;
    let mut figures = Vec::new();
    for part in PARTS {
        let Some(name) = part.calls_name() else { continue };
        let mut pairs: PairedRuns<Vec<SyscallCounts>> = PairedRuns::default();
        pairs.run_pair(
            || a.trace_calls(part.op, &bench.work),
            || b.trace_calls(part.op, &bench.work),
        )?;
        let per_op = |calls: &Vec<SyscallCounts>| {
            calls.iter().map(strace::total_calls).sum::<u64>() as f64 / TRACED as f64
        };
        let runs: FigureRuns = pairs.figure_runs(per_op);
        let note = describe_pair(&pairs, TRACED);
        let goal = (GoalDirection::Lower, part.goal);
        let figure = Figure::new(name, "per op", "empty FUSE file system", goal, &runs);
        bench.add_figure(&mut figures, figure.with_note(note));
    }
    for side in [a, b] {
        side.remove_site()?;
    }
    Ok(figures)
}

/// Lists the calls of each process: the program, the daemons, the mount; then the program and the
/// mount of the baseline.
fn describe_pair(pairs: &PairedRuns<Vec<SyscallCounts>>, operations: u64) -> String {
    let side = |calls: &Vec<SyscallCounts>| {
        let list: Vec<_> = calls.iter().map(|c| strace::describe_calls(c, operations)).collect();
        list.join(" | ")
    };
    let ours = pairs.our_runs().first().map(side).unwrap_or_default();
    let floor = pairs.baseline_runs().first().map(side).unwrap_or_default();
    format!("program | daemons | mount: {ours}; floor, program | mount: {floor}")
}
