//! Metadata through the mount against an empty FUSE file system that gets the
//! same requests: CPU time and system calls of everybody who takes part
//! (the program, the mount's process, the daemons), per operation.
//!
//! One program works in one directory, which it has open, so that an
//! operation is what the kernel needs for it and no walk through a path. Every
//! round has a directory of its own, and all rounds create before any removes: an
//! ext4 that has just removed thousands of inodes takes many times longer to find
//! a free one (it passes over those removed lately, one by one).

use super::Bench;
use super::figure::{Better, Figure, Runs};
use super::null::NullMount;
use super::pairs::Pairs;
use super::strace::{self, Calls, Trace};
use crate::clock::cpu_ns_of;
use crate::error::BenchError;
use crate::gang::{Gang, Outcome};
use crate::mdtest::{Op, Place, Site};
use crate::worker::Task;
use std::path::Path;

const GOAL: f64 = 2.0;
const OPERATIONS: [(Op, &str); 3] =
    [(Op::FileCreate, "create"), (Op::FileStat, "stat"), (Op::FileRemove, "unlink")];
/// Operations under strace, which makes each a hundred times slower.
const TRACED: u64 = 300;

/// One side: for each round a program with a directory of its own, and the
/// processes that serve them.
struct Side {
    programs: Vec<Gang>,
    site: Site,
    servers: Vec<u32>,
}

/// What an operation cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu_us: f64,
    rate: f64,
}

impl Side {
    fn start(
        bench: &Bench,
        dir: &Path,
        servers: Vec<u32>,
        rounds: usize,
        items: u64,
    ) -> Result<Side, BenchError> {
        let place = Place::Path { dir: dir.into(), relative: true };
        let site = Site::make(&place, rounds, false)?;
        let tasks = site.parts(rounds, items, false, 0).into_iter().map(Task::Mdtest);
        let programs: Result<_, _> =
            tasks.map(|task| Gang::start(&bench.launcher, vec![task])).collect();
        Ok(Side { programs: programs?, site, servers })
    }

    fn processes(&self, round: usize) -> Vec<u32> {
        self.programs[round].pids().into_iter().chain(self.servers.iter().copied()).collect()
    }

    fn phase(&mut self, op: Op, round: usize) -> Result<Cost, BenchError> {
        self.programs[round].prepare(op.name())?;
        let cpu = || -> u64 { self.servers.iter().filter_map(|p| cpu_ns_of(*p)).sum() };
        let cpu_before = cpu();
        self.programs[round].go()?;
        let outcome = Outcome::of(&self.programs[round].collect()?);
        let cpu = || -> u64 { self.servers.iter().filter_map(|p| cpu_ns_of(*p)).sum() };
        let cpu_ns = outcome.cpu_ns + cpu().saturating_sub(cpu_before);
        Ok(Cost { cpu_us: cpu_ns as f64 / 1e3 / outcome.ops as f64, rate: outcome.rate() })
    }

    /// The system calls of one phase, by process: the program first.
    fn calls(&mut self, op: Op, dir: &Path) -> Result<Vec<Calls>, BenchError> {
        self.programs[0].prepare(op.name())?;
        let traces: Vec<Trace> = self
            .processes(0)
            .into_iter()
            .map(|pid| Trace::attach(pid, dir))
            .collect::<Result<_, _>>()?;
        self.programs[0].go()?;
        self.programs[0].collect()?;
        traces.into_iter().map(Trace::finish).collect()
    }

    fn finish(self) -> Result<(), BenchError> {
        drop(self.programs);
        self.site.remove()
    }
}

/// What the figures of one operation are called.
fn names_of(operation: &str) -> [String; 3] {
    ["CPU", "rate", "system calls"].map(|what| format!("mount {operation}, {what}"))
}

/// All figures of this module.
///
/// # Errors
/// What could not be run.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let null = NullMount::start(&bench.launcher, &bench.work.join("null"))?;
    let ours = bench.volume.mount(0);
    let mut servers = bench.volume.daemons()?;
    servers.extend(bench.volume.status(0)?.mounts.iter().map(|m| m.pid));
    let floor = bench.work.join("null");
    let mut figures = Vec::new();
    let names = OPERATIONS.map(|(_, name)| names_of(name));
    if names.iter().any(|[cpu, rate, _]| bench.wants(cpu) || bench.wants(rate)) {
        figures.extend(timed(bench, &ours, servers.clone(), &floor, null.pid())?);
    }
    if !names.iter().any(|[_, _, calls]| bench.wants(calls)) {
        return Ok(figures);
    }
    if strace::available() {
        figures.extend(system_calls(bench, &ours, servers, &floor, null.pid())?);
    } else {
        eprintln!("strace is not installed: system calls are not counted (apt-get install strace)");
    }
    Ok(figures)
}

fn timed(
    bench: &Bench,
    ours: &Path,
    servers: Vec<u32>,
    floor: &Path,
    null: u32,
) -> Result<Vec<Figure>, BenchError> {
    // The first round warms up.
    let (rounds, items) = (bench.runs + 1, bench.items() / 4);
    let mut a = Side::start(bench, ours, servers, rounds, items)?;
    let mut b = Side::start(bench, floor, vec![null], rounds, items)?;
    let mut pairs: [Pairs<Cost>; 3] = Default::default();
    for ((op, _), pairs) in OPERATIONS.into_iter().zip(&mut pairs) {
        for round in 0..rounds {
            pairs.take(|| a.phase(op, round), || b.phase(op, round))?;
            if round == 0 {
                pairs.forget();
            }
        }
    }
    a.finish()?;
    b.finish()?;

    let mut figures = Vec::new();
    let against = "empty FUSE file system";
    for ((_, name), pairs) in OPERATIONS.into_iter().zip(&pairs) {
        let [cpu, rate, _] = names_of(name);
        let goal = (Better::Lower, Some(GOAL));
        let runs = pairs.runs(|c| c.cpu_us);
        bench.keep(&mut figures, Figure::new(cpu, "µs/op", against, goal, &runs));
        let no_goal = (Better::Higher, None);
        let runs = pairs.runs(|c| c.rate);
        bench.keep(&mut figures, Figure::new(rate, "op/s", against, no_goal, &runs));
    }
    Ok(figures)
}

fn system_calls(
    bench: &Bench,
    ours: &Path,
    servers: Vec<u32>,
    floor: &Path,
    null: u32,
) -> Result<Vec<Figure>, BenchError> {
    let mut a = Side::start(bench, ours, servers, 1, TRACED)?;
    let mut b = Side::start(bench, floor, vec![null], 1, TRACED)?;
    let mut figures = Vec::new();
    for (op, name) in OPERATIONS {
        let mut pairs: Pairs<Vec<Calls>> = Pairs::default();
        pairs.take(|| a.calls(op, &bench.work), || b.calls(op, &bench.work))?;
        let per_op = |calls: &Vec<Calls>| {
            calls.iter().map(strace::total).sum::<u64>() as f64 / TRACED as f64
        };
        let runs: Runs = pairs.runs(per_op);
        let note = describe(&pairs, TRACED);
        let goal = (Better::Lower, Some(GOAL));
        let [_, _, name] = names_of(name);
        let figure = Figure::new(name, "per op", "empty FUSE file system", goal, &runs);
        bench.keep(&mut figures, figure.note(note));
    }
    a.finish()?;
    b.finish()?;
    Ok(figures)
}

/// Who makes which calls: the program, the daemons, the mount; then the floor's two.
fn describe(pairs: &Pairs<Vec<Calls>>, operations: u64) -> String {
    let side = |calls: &Vec<Calls>| {
        let list: Vec<_> = calls.iter().map(|c| strace::describe(c, operations)).collect();
        list.join(" | ")
    };
    let ours = pairs.ours().first().map(side).unwrap_or_default();
    let floor = pairs.floor().first().map(side).unwrap_or_default();
    format!("program | daemons | mount: {ours}; floor, program | mount: {floor}")
}
