//! Names over several servers, through the client library. The figures are the CPU time of clients
//! and servers for an operation in one shared directory, with 1, 2, 4 and 5 servers. All servers
//! share a few CPUs here, so names scale if an operation costs the same with more servers. Another
//! figure compares a rename between servers with one within a server.
//!
//! Servers are nodes with one executor, at random addresses as usual or at the same ones, or the
//! executors of one node, which are threads of one process.
//!
//! A server handles all requests that have arrived meanwhile in one round, so the number of
//! requests under way matters. Four programs with one request each keep one server's rounds filled,
//! but leave the rounds of five servers empty. So there are measurements with programs of one
//! thread, and of [`THREADS`].
//!
//! Every round has a directory of its own, because the split of a growing directory is part of the
//! cost. Programs reach all servers by TCP, as servers on other machines. A UNIX socket, by which
//! the program of one node would reach its own server, takes half the CPU time.

use super::SuiteContext;
use super::addresses::SameAddresses;
use super::figure::{Figure, FigureRuns, GoalDirection};
use super::pairs::{self, PairedRuns};
use super::volume::BenchVolume;
use crate::clock::{Steal, StealSum, own_cpu_ns, process_cpu_ns};
use crate::error::{BenchError, io_error, volume_error};
use crate::mdtest::{MdtestOp, MdtestPart, MdtestSite, WorkloadPlace, own_cred};
use crate::null_server::WireDepth;
use crate::volume_access::VolumeAccess;
use crate::wire::{NullServerPhase, NullServerRun};
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use std::collections::BTreeMap;
use tatami_client::Client;
use tatami_wire::meta::{InodeTemplate, RenameMode};
use tatami_wire::{Cred, Errno, ExecutorId, Ino};

/// The servers of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerSetup {
    nodes: u16,
    /// Number of executors of each node.
    executors: u8,
    /// Whether the code of all nodes lies at the same addresses.
    alike: bool,
}

impl std::fmt::Display for ServerSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerSetup { nodes, alike: true, .. } => {
                write!(f, "{nodes} of them at the same addresses")
            }
            ServerSetup { nodes, executors: 1, .. } => write!(f, "{nodes} of them"),
            ServerSetup { executors, .. } => write!(f, "{executors} executors of one node"),
        }
    }
}

const fn plain_nodes(nodes: u16) -> ServerSetup {
    ServerSetup { nodes, executors: 1, alike: false }
}

/// The measured sets of servers, the baseline first.
const SERVERS: [ServerSetup; 6] = [
    plain_nodes(1),
    plain_nodes(2),
    plain_nodes(4),
    GOAL_SERVERS,
    SAME_ADDRESS_SERVERS,
    EXECUTOR_SERVERS,
];
/// These servers may cost at most [`GOAL`] times the cost of one.
const GOAL_SERVERS: ServerSetup = plain_nodes(5);
const SAME_ADDRESS_SERVERS: ServerSetup = ServerSetup { alike: true, ..GOAL_SERVERS };
const EXECUTOR_SERVERS: ServerSetup = ServerSetup { executors: 5, ..plain_nodes(1) };
const GOAL: f64 = 1.1;
/// The sets of servers between which a file is renamed.
const RENAMES: [ServerSetup; 3] = [GOAL_SERVERS, SAME_ADDRESS_SERVERS, EXECUTOR_SERVERS];
/// Limit of the cost of a rename between servers, as a multiple of one within a server.
const RENAME_GOAL: f64 = 4.0;
/// CPU time of the servers that a create may take, in microseconds.
pub(super) const SERVER_GOAL_US: f64 = 8.0;
const PROCS: usize = 4;
/// Factor of the entries that each program makes in the directory of a round. The first thousand
/// entries are on one server until the directory splits. From then on, names and inodes lie on
/// different servers, which costs more.
const ENTRIES: u64 = 2;
/// Threads of each program, and the sets of servers that are measured with them.
const THREADS: [(usize, &[ServerSetup]); 2] =
    [(1, &SERVERS), (16, &[SERVERS[0], GOAL_SERVERS, SAME_ADDRESS_SERVERS, EXECUTOR_SERVERS])];
/// Most directories that are made to find two on different servers.
const DIRS_MAX: usize = 64;

/// The operations, in the order in which they can run, with mdtest's name and the name in figures.
const OPERATIONS: [(MdtestOp, &str); 6] = [
    (MdtestOp::DirCreate, "mkdir"),
    (MdtestOp::DirStat, "stat of a directory"),
    (MdtestOp::DirRemove, "rmdir"),
    (MdtestOp::FileCreate, "create"),
    (MdtestOp::FileStat, "stat"),
    (MdtestOp::FileRemove, "unlink"),
];

/// The result of one run.
#[derive(Clone, Copy, Debug)]
struct ServersCost {
    /// Operations per second, all processes together.
    rate: f64,
    /// CPU time of programs and servers for one operation, in microseconds.
    cpu_us: f64,
    /// CPU time of the servers alone.
    server_us: f64,
}

/// A volume with a certain set of servers.
struct ServersSide {
    servers: ServerSetup,
    /// The volume ends when it is dropped.
    _volume: BenchVolume,
    daemons: Vec<u32>,
    reach: VolumeAccess,
    /// The runs of each operation.
    costs: [Vec<ServersCost>; OPERATIONS.len()],
}

impl ServersSide {
    fn start(bench: &SuiteContext, servers: ServerSetup) -> Result<ServersSide, BenchError> {
        let ServerSetup { nodes, executors, alike } = servers;
        let how = if alike { "-alike" } else { "" };
        let dir = bench.work.join(format!("servers-{nodes}-{executors}{how}"));
        let _alike = alike
            .then(SameAddresses::disable_randomization)
            .transpose()
            .map_err(io_error("giving up random addresses"))?;
        let volume =
            BenchVolume::start_with_executors(&bench.program, &dir, nodes, "all", executors)?;
        let (daemons, reach) = (volume.daemon_pids()?, VolumeAccess::from(&volume.tcp_options()?));
        Ok(ServersSide { servers, _volume: volume, daemons, reach, costs: Default::default() })
    }

    fn server_cpu_ns(&self) -> u64 {
        self.daemons.iter().filter_map(|pid| process_cpu_ns(*pid)).sum()
    }

    fn run_phase(&self, gang: &mut WorkerGroup, op: MdtestOp) -> Result<ServersCost, BenchError> {
        gang.prepare_phase(op.name())?;
        let before = self.server_cpu_ns();
        gang.start_phase()?;
        let outcome = PhaseOutcome::from_reports(&gang.collect_reports()?);
        let server_us =
            self.server_cpu_ns().saturating_sub(before) as f64 / 1e3 / outcome.ops as f64;
        Ok(ServersCost {
            rate: outcome.ops_per_sec(),
            cpu_us: outcome.cpu_us_per_op() + server_us,
            server_us,
        })
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for (threads, servers) in THREADS {
        let servers: Vec<ServerSetup> = servers.iter().copied().filter(can_start).collect();
        let of = |name| servers.iter().flat_map(move |n| figure_names(name, *n, threads));
        let mut names = OPERATIONS.iter().flat_map(|(_, name)| of(name));
        if names.any(|name| bench.wants_figure(&name))
            || threads == 1 && bench.wants_figure(&server_figure_name())
        {
            let sides = servers
                .iter()
                .map(|n| ServersSide::start(bench, *n))
                .collect::<Result<Vec<_>, _>>()?;
            figures.extend(measure_one_directory(bench, sides, threads)?);
        }
    }
    let mut echo_names = SERVERS.iter().map(|servers| null_server_name(servers.nodes));
    if echo_names.any(|name| bench.wants_figure(&name))
        || bench.wants_figure(&null_server_cpu_name())
    {
        figures.extend(measure_null_servers(bench)?);
    }
    let wanted =
        RENAMES.into_iter().filter(|servers| bench.wants_figure(&rename_figure_name(*servers)));
    for servers in wanted.filter(can_start) {
        figures.extend(measure_renames(bench, servers)?);
    }
    Ok(figures)
}

/// Returns whether these servers can be started. Some containers do not allow turning random
/// addresses off.
fn can_start(servers: &ServerSetup) -> bool {
    !servers.alike || SameAddresses::disable_randomization().is_ok()
}

/// Returns the names of the figures of CPU time and rate of an operation.
fn figure_names(operation: &str, servers: ServerSetup, threads: usize) -> [String; 2] {
    let many = threads_suffix(threads);
    ["CPU", "rate"].map(|what| format!("servers {operation}{many}, {servers}, {what}"))
}

fn threads_suffix(threads: usize) -> String {
    match threads {
        1 => String::new(),
        threads => format!(" by {} threads", PROCS * threads),
    }
}

fn server_figure_name() -> String {
    "servers create, 1 of them, server's CPU".into()
}

fn null_server_cpu_name() -> String {
    "servers echo of a create, 1 of them, server's CPU".into()
}

fn null_server_name(servers: u16) -> String {
    format!("servers echo of a create, {servers} of them, CPU")
}

/// Measures the cost of several null servers: the cost of processes that share CPUs.
fn measure_null_servers(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let requests = bench.items_per_run() / 2;
    let start = |servers: u16| -> Result<NullServerRun<'_>, BenchError> {
        let run =
            NullServerRun::start(&bench.launcher, PROCS, requests, WireDepth::Messages, None)?;
        Ok(run.with_servers(servers.into()))
    };
    let mut one = start(SERVERS[0].nodes)?;
    let (mut figures, mut of_one) = (Vec::new(), PairedRuns::default());
    let several = SERVERS.iter().filter(|servers| servers.nodes > 1 && !servers.alike);
    for servers in several.map(|servers| servers.nodes) {
        let mut several = start(servers)?;
        let pairs = pairs::run_alternating(
            bench.runs,
            || several.run_phase("create"),
            || one.run_phase("create"),
        )?;
        let runs = pairs.figure_runs(|echoed| echoed.all.cpu_us_per_op());
        let goal = (GoalDirection::Lower, None);
        bench.add_figure(
            &mut figures,
            Figure::new(null_server_name(servers), "µs/op", "one server", goal, &runs),
        );
        of_one = pairs;
    }
    let runs = of_one.figure_runs(NullServerPhase::server_us_per_op);
    let runs = FigureRuns {
        baseline: vec![SERVER_GOAL_US; runs.baseline.len()],
        ours: runs.baseline,
        ..runs
    };
    let goal = (GoalDirection::Lower, None);
    bench.add_figure(
        &mut figures,
        Figure::new(null_server_cpu_name(), "µs/op", "what a create may take", goal, &runs),
    );
    Ok(figures)
}

fn rename_figure_name(servers: ServerSetup) -> String {
    let of = match servers {
        ServerSetup { nodes: 1, .. } => " executors of one node",
        ServerSetup { alike: true, .. } => " at the same addresses",
        _ => "",
    };
    format!("servers rename between two{of}, CPU")
}

fn measure_one_directory(
    bench: &SuiteContext,
    mut sides: Vec<ServersSide>,
    threads: usize,
) -> Result<Vec<Figure>, BenchError> {
    let items = bench.items_per_run() * ENTRIES;
    let mut stolen = StealSum::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        let steal = Steal::now();
        let mut runs = Vec::new();
        for side in &sides {
            let place = WorkloadPlace::Library { reach: side.reach.clone(), dir: "/".into() };
            let site = MdtestSite::create(&place, PROCS, true)?;
            let parts = site.process_parts(PROCS, items, true, 0).into_iter();
            let tasks = parts.map(|part| WorkerTask::Mdtest(MdtestPart { threads, ..part }));
            let gang = WorkerGroup::start(&bench.launcher, tasks.collect())?;
            runs.push((site, gang));
        }
        for (i, (op, _)) in OPERATIONS.into_iter().enumerate() {
            // The sides take turns within an operation, so that a disturbance affects all of them.
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
    let mut figures = Vec::new();
    let (one, more) = (&sides[0], &sides[1..]);
    let runs = |ours: &ServersSide, i: usize, number: fn(&ServersCost) -> f64| FigureRuns {
        ours: ours.costs[i].iter().map(number).collect(),
        baseline: one.costs[i].iter().map(number).collect(),
        stolen: stolen.stolen_share(),
    };
    for (i, (_, operation)) in OPERATIONS.into_iter().enumerate() {
        for side in more {
            let [cpu, rate] = figure_names(operation, side.servers, threads);
            let goal = (side.servers == GOAL_SERVERS && threads == 1).then_some(GOAL);
            let figure = Figure::new(
                cpu,
                "µs/op",
                "one server",
                (GoalDirection::Lower, goal),
                &runs(side, i, |c| c.cpu_us),
            );
            bench.add_figure(&mut figures, figure);
            let figure = Figure::new(
                rate,
                "op/s",
                "one server",
                (GoalDirection::Higher, None),
                &runs(side, i, |c| c.rate),
            );
            bench.add_figure(&mut figures, figure);
        }
    }
    if threads > 1 {
        return Ok(figures);
    }
    let create =
        OPERATIONS.iter().position(|(op, _)| *op == MdtestOp::FileCreate).unwrap_or_default();
    let ours: Vec<f64> = one.costs[create].iter().map(|c| c.server_us).collect();
    let floor = vec![SERVER_GOAL_US; ours.len()];
    let runs = FigureRuns { ours, baseline: floor, stolen: stolen.stolen_share() };
    let figure = Figure::new(
        server_figure_name(),
        "µs/op",
        "what it may take",
        (GoalDirection::Lower, Some(1.0)),
        &runs,
    );
    bench.add_figure(&mut figures, figure);
    Ok(figures)
}

/// Two directories on one server, each with a file in it, and one more on another server.
pub(crate) struct ServerDirs {
    pub(crate) here: [Ino; 2],
    pub(crate) there: Ino,
}

/// Creates directories until there are three such ones.
///
/// # Errors
/// The error of a directory or file that cannot be made.
pub(crate) fn find_server_dirs(client: &Client, cred: &Cred) -> Result<Option<ServerDirs>, Errno> {
    let map = client.map();
    let mut found: BTreeMap<ExecutorId, Vec<Ino>> = BTreeMap::new();
    for i in 0..DIRS_MAX {
        let name = format!("dir.{i}");
        let new = |dir, name: &str, node| {
            client.create(cred, dir, name.as_bytes(), node, 0o755, 0, true, None)
        };
        let dir = new(Ino::ROOT, &name, InodeTemplate::Dir)?.attr.ino;
        new(dir, "one", InodeTemplate::File(client.new_layout()))?;
        let Some(server) = map.owner(dir.owner_shard()) else { continue };
        found.entry(server).or_default().push(dir);
        let here = found
            .iter()
            .find_map(|(server, dirs)| Some((*server, [*dirs.first()?, *dirs.get(1)?])));
        let Some((server, here)) = here else { continue };
        if let Some(there) =
            found.iter().find(|(other, _)| **other != server).and_then(|(_, dirs)| dirs.first())
        {
            return Ok(Some(ServerDirs { here, there: *there }));
        }
    }
    Ok(None)
}

fn measure_renames(bench: &SuiteContext, servers: ServerSetup) -> Result<Vec<Figure>, BenchError> {
    let side = ServersSide::start(bench, servers)?;
    let (client, cred) = (side.reach.connect_client()?, own_cred());
    let failed = |errno| volume_error("renaming", b"one")(errno);
    let Some(homes) = find_server_dirs(&client, &cred).map_err(failed)? else {
        let problem = format!("has all of {DIRS_MAX} directories on one server");
        return Err(BenchError::Program { program: "tatami up".into(), problem });
    };
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
    let [here, next] = homes.here;
    let new = InodeTemplate::File(client.new_layout());
    client.create(&cred, here, b"two", new, 0o644, 0, true, None).map_err(failed)?;
    let pairs =
        pairs::run_alternating(bench.runs, || moves(here, homes.there), || moves(here, next))?;
    let against = "between two directories of one server";
    let goal = (GoalDirection::Lower, Some(RENAME_GOAL));
    let figure = Figure::new(
        rename_figure_name(servers),
        "µs/op",
        against,
        goal,
        &pairs.figure_runs(|us| *us),
    );
    let mut figures = Vec::new();
    bench.add_figure(&mut figures, figure);
    Ok(figures)
}
