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

use super::Bench;
use super::addresses::SameAddresses;
use super::figure::{Better, Figure, Runs};
use super::pairs::{self, Pairs};
use super::volume::Volume;
use crate::clock::{Steal, StealSum, cpu_ns_of, own_cpu_ns};
use crate::echo::Depth;
use crate::error::{BenchError, doing, on};
use crate::gang::{Gang, Outcome};
use crate::mdtest::{MdtestPart, Op, Place, Site, own_cred};
use crate::reach::Reach;
use crate::wire::{EchoRun, Echoed};
use crate::worker::Task;
use std::collections::BTreeMap;
use tatami_client::Client;
use tatami_wire::meta::{NewNode, RenameMode};
use tatami_wire::{Cred, Errno, ExecutorId, Ino};

/// The servers of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Servers {
    nodes: u16,
    /// Number of executors of each node.
    executors: u8,
    /// Whether the code of all nodes lies at the same addresses.
    alike: bool,
}

impl std::fmt::Display for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Servers { nodes, alike: true, .. } => {
                write!(f, "{nodes} of them at the same addresses")
            }
            Servers { nodes, executors: 1, .. } => write!(f, "{nodes} of them"),
            Servers { executors, .. } => write!(f, "{executors} executors of one node"),
        }
    }
}

const fn nodes(nodes: u16) -> Servers {
    Servers { nodes, executors: 1, alike: false }
}

/// The measured sets of servers, the baseline first.
const SERVERS: [Servers; 6] = [nodes(1), nodes(2), nodes(4), HELD, ALIKE, THREADED];
/// These servers may cost at most [`GOAL`] times the cost of one.
const HELD: Servers = nodes(5);
const ALIKE: Servers = Servers { alike: true, ..HELD };
const THREADED: Servers = Servers { executors: 5, ..nodes(1) };
const GOAL: f64 = 1.1;
/// The sets of servers between which a file is renamed.
const RENAMES: [Servers; 3] = [HELD, ALIKE, THREADED];
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
const THREADS: [(usize, &[Servers]); 2] =
    [(1, &SERVERS), (16, &[SERVERS[0], HELD, ALIKE, THREADED])];
/// Most directories that are made to find two on different servers.
const DIRS_MAX: usize = 64;

/// The operations, in the order in which they can run, with mdtest's name and the name in figures.
const OPERATIONS: [(Op, &str); 6] = [
    (Op::DirCreate, "mkdir"),
    (Op::DirStat, "stat of a directory"),
    (Op::DirRemove, "rmdir"),
    (Op::FileCreate, "create"),
    (Op::FileStat, "stat"),
    (Op::FileRemove, "unlink"),
];

/// The result of one run.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Operations per second, all processes together.
    rate: f64,
    /// CPU time of programs and servers for one operation, in microseconds.
    cpu_us: f64,
    /// CPU time of the servers alone.
    server_us: f64,
}

/// A volume with a certain set of servers.
struct Side {
    servers: Servers,
    /// The volume ends when it is dropped.
    _volume: Volume,
    daemons: Vec<u32>,
    reach: Reach,
    /// The runs of each operation.
    costs: [Vec<Cost>; OPERATIONS.len()],
}

impl Side {
    fn start(bench: &Bench, servers: Servers) -> Result<Side, BenchError> {
        let Servers { nodes, executors, alike } = servers;
        let how = if alike { "-alike" } else { "" };
        let dir = bench.work.join(format!("servers-{nodes}-{executors}{how}"));
        let _alike = alike
            .then(SameAddresses::begin)
            .transpose()
            .map_err(doing("giving up random addresses"))?;
        let volume = Volume::with_executors(&bench.program, &dir, nodes, "all", executors)?;
        let (daemons, reach) = (volume.daemons()?, Reach::from(&volume.options_by_tcp()?));
        Ok(Side { servers, _volume: volume, daemons, reach, costs: Default::default() })
    }

    fn server_ns(&self) -> u64 {
        self.daemons.iter().filter_map(|pid| cpu_ns_of(*pid)).sum()
    }

    fn phase(&self, gang: &mut Gang, op: Op) -> Result<Cost, BenchError> {
        gang.prepare(op.name())?;
        let before = self.server_ns();
        gang.go()?;
        let outcome = Outcome::of(&gang.collect()?);
        let server_us = self.server_ns().saturating_sub(before) as f64 / 1e3 / outcome.ops as f64;
        Ok(Cost { rate: outcome.rate(), cpu_us: outcome.cpu_us_per_op() + server_us, server_us })
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for (threads, servers) in THREADS {
        let servers: Vec<Servers> = servers.iter().copied().filter(can_start).collect();
        let of = |name| servers.iter().flat_map(move |n| names_of(name, *n, threads));
        let mut names = OPERATIONS.iter().flat_map(|(_, name)| of(name));
        if names.any(|name| bench.wants(&name)) || threads == 1 && bench.wants(&server_name()) {
            let sides =
                servers.iter().map(|n| Side::start(bench, *n)).collect::<Result<Vec<_>, _>>()?;
            figures.extend(in_one_directory(bench, sides, threads)?);
        }
    }
    let mut echo_names = SERVERS.iter().map(|servers| echo_name(servers.nodes));
    if echo_names.any(|name| bench.wants(&name)) || bench.wants(&echo_server_name()) {
        figures.extend(echoes(bench)?);
    }
    let wanted = RENAMES.into_iter().filter(|servers| bench.wants(&rename_name(*servers)));
    for servers in wanted.filter(can_start) {
        figures.extend(renames(bench, servers)?);
    }
    Ok(figures)
}

/// Returns whether these servers can be started. Some containers do not allow turning random
/// addresses off.
fn can_start(servers: &Servers) -> bool {
    !servers.alike || SameAddresses::begin().is_ok()
}

/// Returns the names of the figures of CPU time and rate of an operation.
fn names_of(operation: &str, servers: Servers, threads: usize) -> [String; 2] {
    let many = under_way(threads);
    ["CPU", "rate"].map(|what| format!("servers {operation}{many}, {servers}, {what}"))
}

fn under_way(threads: usize) -> String {
    match threads {
        1 => String::new(),
        threads => format!(" by {} threads", PROCS * threads),
    }
}

fn server_name() -> String {
    "servers create, 1 of them, server's CPU".into()
}

fn echo_server_name() -> String {
    "servers echo of a create, 1 of them, server's CPU".into()
}

fn echo_name(servers: u16) -> String {
    format!("servers echo of a create, {servers} of them, CPU")
}

/// Measures the cost of several null servers: the cost of processes that share CPUs.
fn echoes(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let requests = bench.items() / 2;
    let start = |servers: u16| -> Result<EchoRun<'_>, BenchError> {
        let run = EchoRun::start(&bench.launcher, PROCS, requests, Depth::Messages, None)?;
        Ok(run.with_servers(servers.into()))
    };
    let mut one = start(SERVERS[0].nodes)?;
    let (mut figures, mut of_one) = (Vec::new(), Pairs::default());
    let several = SERVERS.iter().filter(|servers| servers.nodes > 1 && !servers.alike);
    for servers in several.map(|servers| servers.nodes) {
        let mut several = start(servers)?;
        let pairs =
            pairs::alternate(bench.runs, || several.phase("create"), || one.phase("create"))?;
        let runs = pairs.runs(|echoed| echoed.all.cpu_us_per_op());
        let goal = (Better::Lower, None);
        bench.keep(
            &mut figures,
            Figure::new(echo_name(servers), "µs/op", "one server", goal, &runs),
        );
        of_one = pairs;
    }
    let runs = of_one.runs(Echoed::server_us_per_op);
    let runs = Runs { floor: vec![SERVER_GOAL_US; runs.floor.len()], ours: runs.floor, ..runs };
    let goal = (Better::Lower, None);
    bench.keep(
        &mut figures,
        Figure::new(echo_server_name(), "µs/op", "what a create may take", goal, &runs),
    );
    Ok(figures)
}

fn rename_name(servers: Servers) -> String {
    let of = match servers {
        Servers { nodes: 1, .. } => " executors of one node",
        Servers { alike: true, .. } => " at the same addresses",
        _ => "",
    };
    format!("servers rename between two{of}, CPU")
}

fn in_one_directory(
    bench: &Bench,
    mut sides: Vec<Side>,
    threads: usize,
) -> Result<Vec<Figure>, BenchError> {
    let items = bench.items() * ENTRIES;
    let mut stolen = StealSum::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        let steal = Steal::now();
        let mut runs = Vec::new();
        for side in &sides {
            let place = Place::Library { reach: side.reach.clone(), dir: "/".into() };
            let site = Site::make(&place, PROCS, true)?;
            let parts = site.parts(PROCS, items, true, 0).into_iter();
            let tasks = parts.map(|part| Task::Mdtest(MdtestPart { threads, ..part }));
            let gang = Gang::start(&bench.launcher, tasks.collect())?;
            runs.push((site, gang));
        }
        for (i, (op, _)) in OPERATIONS.into_iter().enumerate() {
            // The sides take turns within an operation, so that a disturbance affects all of them.
            for (side, (_, gang)) in sides.iter_mut().zip(&mut runs) {
                let cost = side.phase(gang, op)?;
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
    let runs = |ours: &Side, i: usize, number: fn(&Cost) -> f64| Runs {
        ours: ours.costs[i].iter().map(number).collect(),
        floor: one.costs[i].iter().map(number).collect(),
        stolen: stolen.share(),
    };
    for (i, (_, operation)) in OPERATIONS.into_iter().enumerate() {
        for side in more {
            let [cpu, rate] = names_of(operation, side.servers, threads);
            let goal = (side.servers == HELD && threads == 1).then_some(GOAL);
            let figure = Figure::new(
                cpu,
                "µs/op",
                "one server",
                (Better::Lower, goal),
                &runs(side, i, |c| c.cpu_us),
            );
            bench.keep(&mut figures, figure);
            let figure = Figure::new(
                rate,
                "op/s",
                "one server",
                (Better::Higher, None),
                &runs(side, i, |c| c.rate),
            );
            bench.keep(&mut figures, figure);
        }
    }
    if threads > 1 {
        return Ok(figures);
    }
    let create = OPERATIONS.iter().position(|(op, _)| *op == Op::FileCreate).unwrap_or_default();
    let ours: Vec<f64> = one.costs[create].iter().map(|c| c.server_us).collect();
    let floor = vec![SERVER_GOAL_US; ours.len()];
    let runs = Runs { ours, floor, stolen: stolen.share() };
    let figure =
        Figure::new(server_name(), "µs/op", "what it may take", (Better::Lower, Some(1.0)), &runs);
    bench.keep(&mut figures, figure);
    Ok(figures)
}

/// Two directories on one server, each with a file in it, and one more on another server.
pub(crate) struct Homes {
    pub(crate) here: [Ino; 2],
    pub(crate) there: Ino,
}

/// Creates directories until there are three such ones.
///
/// # Errors
/// The error of a directory or file that cannot be made.
pub(crate) fn homes(client: &Client, cred: &Cred) -> Result<Option<Homes>, Errno> {
    let map = client.map();
    let mut found: BTreeMap<ExecutorId, Vec<Ino>> = BTreeMap::new();
    for i in 0..DIRS_MAX {
        let name = format!("dir.{i}");
        let new = |dir, name: &str, node| {
            client.create(cred, dir, name.as_bytes(), node, 0o755, 0, true, None)
        };
        let dir = new(Ino::ROOT, &name, NewNode::Dir)?.attr.ino;
        new(dir, "one", NewNode::File(client.new_layout()))?;
        let Some(server) = map.owner(dir.shard()) else { continue };
        found.entry(server).or_default().push(dir);
        let here = found
            .iter()
            .find_map(|(server, dirs)| Some((*server, [*dirs.first()?, *dirs.get(1)?])));
        let Some((server, here)) = here else { continue };
        if let Some(there) =
            found.iter().find(|(other, _)| **other != server).and_then(|(_, dirs)| dirs.first())
        {
            return Ok(Some(Homes { here, there: *there }));
        }
    }
    Ok(None)
}

fn renames(bench: &Bench, servers: Servers) -> Result<Vec<Figure>, BenchError> {
    let side = Side::start(bench, servers)?;
    let (client, cred) = (side.reach.client()?, own_cred());
    let failed = |errno| on("renaming", b"one")(errno);
    let Some(homes) = homes(&client, &cred).map_err(failed)? else {
        let problem = format!("has all of {DIRS_MAX} directories on one server");
        return Err(BenchError::Program { program: "tatami up".into(), problem });
    };
    let items = bench.items() / 8;
    // The file goes there and back, so that every round finds the same state as the round before.
    let moves = |from: Ino, to: Ino| -> Result<f64, BenchError> {
        let before = own_cpu_ns() + side.server_ns();
        for i in 0..items {
            let (from, to) = if i % 2 == 0 { (from, to) } else { (to, from) };
            let renamed =
                client.rename(&cred, from, b"two", to, b"two", RenameMode::NoReplace, false);
            renamed.map_err(failed)?;
        }
        Ok((own_cpu_ns() + side.server_ns()).saturating_sub(before) as f64 / 1e3 / items as f64)
    };
    let [here, next] = homes.here;
    let new = NewNode::File(client.new_layout());
    client.create(&cred, here, b"two", new, 0o644, 0, true, None).map_err(failed)?;
    let pairs = pairs::alternate(bench.runs, || moves(here, homes.there), || moves(here, next))?;
    let against = "between two directories of one server";
    let goal = (Better::Lower, Some(RENAME_GOAL));
    let figure = Figure::new(rename_name(servers), "µs/op", against, goal, &pairs.runs(|us| *us));
    let mut figures = Vec::new();
    bench.keep(&mut figures, figure);
    Ok(figures)
}
