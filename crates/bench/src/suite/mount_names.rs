//! Metadata through the mount against an empty FUSE file system that gets the same requests. The
//! figures are CPU time and system calls per operation of all processes that take part (the
//! program, the mount's process, the daemons). A create makes a file on the disk, so the disk's
//! part is measured beside it. A written file does the same; for it the empty file system gets one
//! more request, with the bytes, whereas the kernel of Tatami's mount writes them to the disk by
//! passthrough.
//!
//! One program works in one directory, which it has open, so that an operation needs no walk
//! through a path. Every round has a directory of its own, and all rounds create before any
//! removes. The reason is ext4: after it has removed thousands of inodes, it takes many times
//! longer to find a free one, because it passes over recently removed ones one by one.

use super::figure::{Better, Figure, Runs};
use super::null::NullMount;
use super::pairs::{self, Pairs, in_turn};
use super::strace::{self, Calls, Trace};
use super::{Bench, floor_of};
use crate::clock::cpu_ns_of;
use crate::error::{BenchError, at};
use crate::gang::{Gang, Outcome};
use crate::mdtest::{Op, Place, Site};
use crate::tell;
use crate::worker::Task;
use std::path::{Path, PathBuf};

const GOAL: f64 = 2.0;

/// A measured operation.
struct Part {
    op: Op,
    name: &'static str,
    /// Whether the files are written; otherwise they stay empty.
    written: bool,
    /// Whether a part of the cost is the disk's own.
    on_disk: bool,
    goal: Option<f64>,
}

const PARTS: [Part; 5] = [
    Part { op: Op::FileCreate, name: "create", written: false, on_disk: true, goal: Some(GOAL) },
    Part { op: Op::FileStat, name: "stat", written: false, on_disk: false, goal: Some(GOAL) },
    Part {
        op: Op::FileWrite,
        name: "create and write 4k",
        written: true,
        on_disk: true,
        goal: None,
    },
    Part { op: Op::FileRemove, name: "unlink", written: false, on_disk: false, goal: Some(GOAL) },
    Part { op: Op::FileRemove, name: "unlink of 4k", written: true, on_disk: true, goal: None },
];
/// Operations under strace, which makes each a hundred times slower.
const TRACED: u64 = 300;

/// One side: for each round a program with a directory of its own, and the processes that serve it.
struct Side {
    programs: Vec<Gang>,
    site: Site,
    /// The directory that contains the site.
    base: PathBuf,
    servers: Vec<u32>,
}

/// The cost of an operation.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu_us: f64,
    rate: f64,
}

impl Side {
    fn start(
        bench: &Bench,
        place: &Place,
        servers: Vec<u32>,
        rounds: usize,
        items: u64,
    ) -> Result<Side, BenchError> {
        // Objects of all files share their directories.
        let (Place::Objects { dir: base } | Place::Path { dir: base, .. }) = place else {
            return Err(BenchError::Usage("figures of a mount are taken in a directory".into()));
        };
        std::fs::create_dir(base).map_err(at("creating", base))?;
        let shared = matches!(place, Place::Objects { .. });
        let site = Site::make(place, rounds, shared)?;
        let tasks = site.parts(rounds, items, shared, 0).into_iter().map(Task::Mdtest);
        let programs: Result<_, _> =
            tasks.map(|task| Gang::start(&bench.launcher, vec![task])).collect();
        Ok(Side { programs: programs?, site, base: base.clone(), servers })
    }

    fn processes(&self, round: usize) -> Vec<u32> {
        self.programs[round].pids().into_iter().chain(self.servers.iter().copied()).collect()
    }

    fn phase(&mut self, op: Op, round: usize) -> Result<Cost, BenchError> {
        self.programs[round].prepare(op.name())?;
        let cpu = || -> u64 { self.servers.iter().filter_map(|p| cpu_ns_of(*p)).sum() };
        // Read after the preparation, so that the servers' work for it does not count.
        let cpu_before = cpu();
        self.programs[round].go()?;
        let outcome = Outcome::of(&self.programs[round].collect()?);
        let cpu = || -> u64 { self.servers.iter().filter_map(|p| cpu_ns_of(*p)).sum() };
        let cpu_ns = outcome.cpu_ns + cpu().saturating_sub(cpu_before);
        Ok(Cost { cpu_us: cpu_ns as f64 / 1e3 / outcome.ops as f64, rate: outcome.rate() })
    }

    /// Returns the system calls of one phase, by process: the program first.
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
        self.site.remove()?;
        std::fs::remove_dir(&self.base).map_err(at("removing", &self.base))
    }
}

/// Returns a directory below `dir`, which the program has open.
fn in_one(dir: &Path, sub: &str) -> Place {
    Place::Path { dir: dir.join(sub), relative: true }
}

/// Returns the names of the figures of one operation.
fn names_of(operation: &str) -> [String; 3] {
    ["CPU", "rate", "system calls"].map(|what| format!("mount {operation}, {what}"))
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let null = NullMount::start(&bench.launcher, &bench.work.join("null"), None)?;
    let ours = bench.volume.mount(0);
    let mut servers = bench.volume.daemons()?;
    servers.extend(bench.volume.status(0)?.mounts.iter().map(|m| m.pid));
    let floor = bench.work.join("null");
    let mut figures = Vec::new();
    let names = PARTS.map(|part| names_of(part.name));
    if names.iter().any(|[cpu, rate, _]| bench.wants_like(cpu) || bench.wants_like(rate)) {
        figures.extend(timed(bench, &ours, servers.clone(), &floor, null.pid())?);
    }
    if !names.iter().any(|[_, _, calls]| bench.wants(calls)) {
        return Ok(figures);
    }
    if strace::available() {
        figures.extend(system_calls(bench, &ours, servers, &floor, null.pid())?);
    } else {
        tell("strace is not installed: system calls are not counted (apt-get install strace)");
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
    let rounds = bench.runs + 1;
    let start = |sub: &str, items: u64| -> Result<[Side; 3], BenchError> {
        let objects = Place::Objects { dir: bench.plain.join(sub) };
        Ok([
            Side::start(bench, &in_one(ours, sub), servers.clone(), rounds, items)?,
            Side::start(bench, &in_one(floor, sub), vec![null], rounds, items)?,
            Side::start(bench, &objects, Vec::new(), rounds, items)?,
        ])
    };
    let mut empty = start("empty", bench.items() / 4)?;
    let mut written = start("written", bench.items() / 8)?;
    let mut figures = Vec::new();
    for part in PARTS {
        let sides = if part.written { &mut written } else { &mut empty };
        let sides = sides.iter_mut().take(if part.on_disk { 3 } else { 2 });
        let sides = sides.map(|side| round_by_round(side, part.op));
        let turns = in_turn(bench.runs, sides.collect())?;
        let against = "empty FUSE file system";
        let [cpu, rate, _] = names_of(part.name);
        let by_cpu = |name, side, goal| {
            let runs = turns.runs(side, 1, |c| c.cpu_us);
            Figure::new(name, "µs/op", against, (Better::Lower, goal), &runs)
        };
        let by_rate = |name, side| {
            let runs = turns.runs(side, 1, |c| c.rate);
            Figure::new(name, "op/s", against, (Better::Higher, None), &runs)
        };
        bench.keep(&mut figures, by_cpu(cpu.clone(), 0, part.goal));
        bench.keep(&mut figures, by_rate(rate.clone(), 0));
        if part.on_disk {
            let note = "the same with the files of the disk that a node makes objects of, and nothing else";
            let figure = by_cpu(floor_of(&cpu), 2, None);
            bench.keep(&mut figures, figure.note(note));
            bench.keep(&mut figures, by_rate(floor_of(&rate), 2));
        }
    }
    for side in empty.into_iter().chain(written) {
        side.finish()?;
    }
    Ok(figures)
}

/// Returns the runs of one operation: one round at each call.
fn round_by_round(side: &mut Side, op: Op) -> pairs::Side<'_, Cost> {
    let mut round = 0;
    Box::new(move || {
        let cost = side.phase(op, round)?;
        round += 1;
        Ok(cost)
    })
}

fn system_calls(
    bench: &Bench,
    ours: &Path,
    servers: Vec<u32>,
    floor: &Path,
    null: u32,
) -> Result<Vec<Figure>, BenchError> {
    let start = |sub: &str| -> Result<[Side; 2], BenchError> {
        Ok([
            Side::start(bench, &in_one(ours, sub), servers.clone(), 1, TRACED)?,
            Side::start(bench, &in_one(floor, sub), vec![null], 1, TRACED)?,
        ])
    };
    let (mut empty, mut written) = (start("empty")?, start("written")?);
    let mut figures = Vec::new();
    for part in PARTS {
        let [a, b] = if part.written { &mut written } else { &mut empty };
        let mut pairs: Pairs<Vec<Calls>> = Pairs::default();
        pairs.take(|| a.calls(part.op, &bench.work), || b.calls(part.op, &bench.work))?;
        let per_op = |calls: &Vec<Calls>| {
            calls.iter().map(strace::total).sum::<u64>() as f64 / TRACED as f64
        };
        let runs: Runs = pairs.runs(per_op);
        let note = describe(&pairs, TRACED);
        let [_, _, name] = names_of(part.name);
        let goal = (Better::Lower, part.goal);
        let figure = Figure::new(name, "per op", "empty FUSE file system", goal, &runs);
        bench.keep(&mut figures, figure.note(note));
    }
    for side in empty.into_iter().chain(written) {
        side.finish()?;
    }
    Ok(figures)
}

/// Lists the calls of each process: the program, the daemons, the mount; then the program and the
/// mount of the baseline.
fn describe(pairs: &Pairs<Vec<Calls>>, operations: u64) -> String {
    let side = |calls: &Vec<Calls>| {
        let list: Vec<_> = calls.iter().map(|c| strace::describe(c, operations)).collect();
        list.join(" | ")
    };
    let ours = pairs.ours().first().map(side).unwrap_or_default();
    let floor = pairs.floor().first().map(side).unwrap_or_default();
    format!("program | daemons | mount: {ours}; floor, program | mount: {floor}")
}
