//! Names over several servers. The figures are the CPU time of programs and servers for an
//! operation in one shared directory, with five servers and with one. All servers share a few CPUs
//! here, so names scale if an operation costs the same with more servers. Another figure compares a
//! rename between servers with one within a server.
//!
//! Servers are nodes with one executor, or the executors of one node, which are threads of one
//! process. Programs use the client library, or the mounts of five nodes. One of these nodes serves
//! names, or all of them do.
//!
//! Every round has a directory of its own, because the split of a growing directory is part of the
//! cost. Through the library, programs reach all servers by TCP, as servers on other machines. A
//! UNIX socket, by which the program of one node would reach its own server, takes half the CPU
//! time.

use super::context::SuiteContext;
use super::pairs;
use crate::clock::{Steal, StealSum, own_cpu_ns, process_cpu_ns};
use crate::error::{BenchError, volume_error};
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::null_server::WireDepth;
use crate::server_dirs::{ServerDirs, find_server_dirs};
use crate::volume::BenchVolume;
use crate::volume_access::own_cred;
use crate::wire::NullServerRun;
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use tatami_wire::Ino;
use tatami_wire::meta::{InodeTemplate, RenameMode};

/// The servers of a measurement, and the way of programs to them.
#[derive(Clone, Copy, Debug)]
struct ServerSetup {
    nodes: u16,
    /// The nodes that have names, as `volume.shards` names them.
    shards: &'static str,
    /// Number of executors of each node.
    executors: u8,
    through_mounts: bool,
}

const ONE: ServerSetup =
    ServerSetup { nodes: 1, shards: "all", executors: 1, through_mounts: false };
const FIVE: ServerSetup = ServerSetup { nodes: SERVERS, ..ONE };
const FIVE_EXECUTORS: ServerSetup = ServerSetup { executors: 5, ..ONE };
const MOUNTS: ServerSetup = ServerSetup { through_mounts: true, ..FIVE };
const MOUNTS_OF_ONE: ServerSetup = ServerSetup { shards: "0", ..MOUNTS };

/// Number of servers that may cost at most [`GOAL`] times the cost of one.
const SERVERS: u16 = 5;
const GOAL: f64 = 1.1;
/// Limit of the cost of a rename between servers, as a multiple of one within a server.
const RENAME_GOAL: f64 = 4.0;
/// CPU time of the servers that a create may take, in microseconds.
const SERVER_GOAL_US: f64 = 8.0;
const PROCS: usize = 4;

/// The operations, in the order in which they can run, with mdtest's name and the name in figures.
const OPERATIONS: [(MdtestOp, &str); 4] = [
    (MdtestOp::FileCreate, "create"),
    (MdtestOp::FileStat, "stat"),
    (MdtestOp::FileRemove, "unlink"),
    (MdtestOp::DirCreate, "mkdir"),
];

const SERVER_CPU: &str = "servers create, 1 of them, server's CPU";
const EXECUTORS_CPU: &str = "servers create, 5 executors of one node, CPU";
const ECHO_CPU: &str = "servers echo of a create, 5 of them, CPU";
const RENAME_CPU: &str = "servers rename between two, CPU";

/// Returns the name of the figure of an operation with several servers.
fn figure_name(operation: &str, through_mounts: bool) -> String {
    let how = if through_mounts { " through mounts" } else { "" };
    format!("servers {operation}{how}, {SERVERS} of them, CPU")
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
struct ServersCost {
    /// CPU time of programs, mounts and servers for one operation, in microseconds.
    cpu_us: f64,
    /// CPU time of servers, and of mounts where programs use them.
    server_us: f64,
}

/// A volume with a certain set of servers.
struct ServersSide {
    setup: ServerSetup,
    volume: BenchVolume,
    /// The daemons, and the mounts where programs use them.
    processes: Vec<u32>,
    /// The runs of each operation.
    costs: [Vec<ServersCost>; OPERATIONS.len()],
}

impl ServersSide {
    fn start(bench: &SuiteContext, setup: ServerSetup) -> Result<ServersSide, BenchError> {
        let ServerSetup { nodes, shards, executors, through_mounts } = setup;
        let dir = bench.work.join(format!("servers-{nodes}-{shards}-{executors}-{through_mounts}"));
        let volume =
            BenchVolume::start_with_executors(&bench.program, &dir, nodes, shards, executors)?;
        let mut processes = volume.daemon_pids()?;
        for node in (0..nodes).filter(|_| through_mounts) {
            processes.extend(volume.node_status(node)?.mounts.iter().map(|mount| mount.pid));
        }
        Ok(ServersSide { setup, volume, processes, costs: Default::default() })
    }

    fn server_cpu_ns(&self) -> u64 {
        self.processes.iter().filter_map(|pid| process_cpu_ns(*pid)).sum()
    }

    /// Starts programs in a new directory. Through mounts, each has the mount of another node.
    fn start_programs(
        &self,
        bench: &SuiteContext,
        items: u64,
    ) -> Result<(MdtestSite, WorkerGroup), BenchError> {
        let place = match self.setup.through_mounts {
            true => WorkloadPlace::Path { dir: self.volume.mount_path(0), relative: true },
            false => WorkloadPlace::Library { reach: self.volume.tcp_access(), dir: "/".into() },
        };
        let site = MdtestSite::create(&place, PROCS, true)?;
        let mut parts = site.process_parts(PROCS, items, true, 0);
        for (node, part) in (0..self.setup.nodes).zip(&mut parts) {
            if let WorkloadPlace::Path { dir, .. } = &mut part.place
                && let Some(name) = dir.file_name()
            {
                *dir = self.volume.mount_path(node).join(name);
            }
        }
        let tasks = parts.into_iter().map(WorkerTask::Mdtest).collect();
        Ok((site, WorkerGroup::start(&bench.launcher, tasks)?))
    }

    fn run_phase(&self, gang: &mut WorkerGroup, op: MdtestOp) -> Result<ServersCost, BenchError> {
        gang.prepare_phase(op.name())?;
        let before = self.server_cpu_ns();
        gang.start_phase()?;
        let outcome = PhaseOutcome::from_reports(&gang.collect_reports()?);
        let server_us =
            self.server_cpu_ns().saturating_sub(before) as f64 / 1e3 / outcome.ops as f64;
        Ok(ServersCost { cpu_us: outcome.cpu_us_per_op() + server_us, server_us })
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let wants_any = |through_mounts| {
        OPERATIONS.iter().any(|(_, name)| bench.wants_figure(&figure_name(name, through_mounts)))
    };
    if wants_any(false) || bench.wants_figure(SERVER_CPU) || bench.wants_figure(EXECUTORS_CPU) {
        // The first thousand entries are on one server until the directory splits. From then on,
        // names and inodes lie on different servers, which costs more. So there are many.
        let sides =
            OneDirectory::measure(bench, &[ONE, FIVE, FIVE_EXECUTORS], bench.items_per_run() * 2)?;
        figures.extend(sides.library_figures(bench));
    }
    if wants_any(true) {
        let sides =
            OneDirectory::measure(bench, &[MOUNTS_OF_ONE, MOUNTS], bench.items_per_run() / 2)?;
        figures.extend(sides.several_figures(bench, true));
    }
    if bench.wants_figure(ECHO_CPU) {
        figures.extend(measure_null_servers(bench)?);
    }
    if bench.wants_figure(RENAME_CPU) {
        figures.extend(measure_renames(bench)?);
    }
    Ok(figures)
}

/// The costs in one shared directory, of the baseline first.
struct OneDirectory {
    sides: Vec<ServersSide>,
    stolen: f64,
}

impl OneDirectory {
    /// Measures all operations, `items` of each program in a round.
    fn measure(
        bench: &SuiteContext,
        setups: &[ServerSetup],
        items: u64,
    ) -> Result<OneDirectory, BenchError> {
        let sides = setups.iter().map(|setup| ServersSide::start(bench, *setup));
        let mut sides = sides.collect::<Result<Vec<_>, _>>()?;
        let mut stolen = StealSum::default();
        // The first round warms up.
        for round in 0..=bench.runs {
            let steal = Steal::now();
            let runs = sides.iter().map(|side| side.start_programs(bench, items));
            let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
            for (i, (op, _)) in OPERATIONS.into_iter().enumerate() {
                // The sides take turns within an operation, so that a disturbance affects all.
                for (side, (_, gang)) in sides.iter_mut().zip(&mut runs) {
                    let cost = side.run_phase(gang, op)?;
                    side.costs[i].push(cost);
                }
            }
            for (site, gang) in runs {
                // The programs' sessions end before their directories are removed.
                drop(gang);
                site.remove()?;
            }
            match round {
                0 => sides.iter_mut().for_each(|side| side.costs = Default::default()),
                _ => steal.add_to(&mut stolen),
            }
        }
        Ok(OneDirectory { sides, stolen: stolen.stolen_share() })
    }

    /// Returns the CPU time of an operation at a side, beside that of the baseline.
    fn figure(&self, name: String, side: usize, operation: usize, goal: Option<f64>) -> Figure {
        let costs = |side: &ServersSide| side.costs[operation].iter().map(|c| c.cpu_us).collect();
        let runs = FigureRuns {
            ours: costs(&self.sides[side]),
            baseline: costs(&self.sides[0]),
            stolen: self.stolen,
        };
        Figure::new(name, "µs/op", "one server", (GoalDirection::Lower, goal), &runs)
    }

    /// Returns the figures of several servers: the second side.
    fn several_figures(&self, bench: &SuiteContext, through_mounts: bool) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (i, (_, operation)) in OPERATIONS.into_iter().enumerate() {
            let name = figure_name(operation, through_mounts);
            bench.add_figure(&mut figures, self.figure(name, 1, i, Some(GOAL)));
        }
        figures
    }

    /// Returns all figures of programs that use the library. The executors are the third side.
    fn library_figures(&self, bench: &SuiteContext) -> Vec<Figure> {
        let mut figures = self.several_figures(bench, false);
        // A create is the first operation.
        bench.add_figure(&mut figures, self.figure(EXECUTORS_CPU.into(), 2, 0, None));
        let ours: Vec<f64> = self.sides[0].costs[0].iter().map(|c| c.server_us).collect();
        let floor = vec![SERVER_GOAL_US; ours.len()];
        let runs = FigureRuns { ours, baseline: floor, stolen: self.stolen };
        let goal = (GoalDirection::Lower, Some(1.0));
        let figure = Figure::new(SERVER_CPU, "µs/op", "what it may take", goal, &runs);
        bench.add_figure(&mut figures, figure);
        figures
    }
}

/// Measures the cost of several null servers: the cost of processes that share CPUs.
fn measure_null_servers(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let requests = bench.items_per_run() / 2;
    let start = |servers: usize| -> Result<NullServerRun<'_>, BenchError> {
        let run =
            NullServerRun::start(&bench.launcher, PROCS, requests, WireDepth::Messages, None)?;
        Ok(run.with_servers(servers))
    };
    let (mut one, mut several) = (start(1)?, start(SERVERS.into())?);
    let pairs = pairs::run_alternating(
        bench.runs,
        || several.run_phase("create"),
        || one.run_phase("create"),
    )?;
    let runs = pairs.figure_runs(PhaseOutcome::cpu_us_per_op);
    let goal = (GoalDirection::Lower, None);
    let mut figures = Vec::new();
    bench.add_figure(&mut figures, Figure::new(ECHO_CPU, "µs/op", "one server", goal, &runs));
    Ok(figures)
}

fn measure_renames(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let side = ServersSide::start(bench, FIVE)?;
    let (client, cred) = (side.volume.tcp_access().connect_client()?, own_cred());
    let failed = |errno| volume_error("renaming", b"one")(errno);
    let ServerDirs { here: [here, next], there } = find_server_dirs(&client, &cred)?;
    let items = bench.items_per_run() / 8;
    // The file goes there and back, so that every round finds the same state as the round before.
    let moves = |from: Ino, to: Ino| -> Result<f64, BenchError> {
        let before = own_cpu_ns() + side.server_cpu_ns();
        for i in 0..items {
            let (from, to) = if i % 2 == 0 { (from, to) } else { (to, from) };
            let renamed =
                client.rename(&cred, from, b"two", to, b"two", RenameMode::NoReplace, false);
            renamed.map_err(failed)?;
        }
        Ok((own_cpu_ns() + side.server_cpu_ns()).saturating_sub(before) as f64 / 1e3 / items as f64)
    };
    let new = InodeTemplate::File(client.new_layout());
    client.create(&cred, here, b"two", new, 0o644, 0, true, None).map_err(failed)?;
    let pairs = pairs::run_alternating(bench.runs, || moves(here, there), || moves(here, next))?;
    let against = "between two directories of one server";
    let goal = (GoalDirection::Lower, Some(RENAME_GOAL));
    let runs = pairs.figure_runs(|us| *us);
    let mut figures = Vec::new();
    bench.add_figure(&mut figures, Figure::new(RENAME_CPU, "µs/op", against, goal, &runs));
    Ok(figures)
}
