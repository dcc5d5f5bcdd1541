//! The figures with goals, and a table of all places.

use super::MpiSession;
use super::comparison::{ComparedSide, Comparison};
use super::launch::MpiSample;
use super::place::{MpiPlace, MpiWorkload};
use crate::error::BenchError;
use crate::stats::median;
use crate::suite::{Figure, FigureRuns, GoalDirection};

type SampleValue = fn(&MpiSample) -> f64;

fn new_side(place: &MpiPlace, workload: &MpiWorkload, ranks: u32) -> ComparedSide {
    ComparedSide { place: place.clone(), workload: workload.clone(), ranks }
}

/// Compares one side with another.
fn rate_figure(
    name: String,
    (outcome, ours, theirs): (&Comparison, usize, usize),
    value: SampleValue,
    against: &str,
    goal: Option<f64>,
) -> Figure {
    let runs = FigureRuns {
        ours: outcome.side_values(ours, value),
        baseline: outcome.side_values(theirs, value),
        stolen: outcome.stolen,
    };
    Figure::new(name, "MiB/s", against, (GoalDirection::Higher, goal), &runs)
}

/// Returns the times of a run's opens and closes, and the cost of its calls alone; without goals.
fn cost_figures(
    name: &str,
    outcome: &Comparison,
    (ours, theirs): (usize, usize),
    against: &str,
) -> Vec<Figure> {
    let values: [(&str, &str, SampleValue); 5] = [
        ("open for writing", "ms", |s| s.seconds.open * 1e3),
        ("close after writing", "ms", |s| s.seconds.close * 1e3),
        ("open for reading", "ms", |s| s.seconds.reopen * 1e3),
        ("writing calls alone, CPU", "s/GiB", |s| seconds_per_gib(s.cpu.write, s)),
        ("reading calls alone, CPU", "s/GiB", |s| seconds_per_gib(s.cpu.read, s)),
    ];
    let figure = |(what, unit, value): (&str, &str, SampleValue)| {
        let runs = FigureRuns {
            ours: outcome.side_values(ours, value),
            baseline: outcome.side_values(theirs, value),
            stolen: outcome.stolen,
        };
        Figure::new(format!("{name}, {what}"), unit, against, (GoalDirection::Lower, None), &runs)
    };
    values.into_iter().map(figure).collect()
}

fn seconds_per_gib(seconds: f64, sample: &MpiSample) -> f64 {
    seconds * f64::from(1 << 30) / sample.bytes as f64
}

const EACH: &str = "a file per process, MPI-IO";
const SHARED: [&str; 2] =
    ["independent calls on one plain file", "collective calls on one plain file"];

/// Takes the figures of IOR's pattern: against a file per process, and against one plain file.
pub fn ior_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let mpi = s.mpi.name();
    let mut figures = Vec::new();
    for (size, segments) in [("64k", 1024), ("4k", 4096)] {
        let segments = if s.quick { 32 } else { segments };
        let line = format!("--view --block {size} --transfer {size} --segments {segments}");
        let work = MpiWorkload::new("ior", &line);
        // One collective call for each block of 4 KiB would take minutes, so one call writes all
        // blocks.
        let all =
            work.with_args(if size == "4k" { "--collective --strided" } else { "--collective" });
        let p = &s.places;
        let sides = [
            new_side(&p.layer, &work, s.ranks),
            new_side(&p.each, &work, s.ranks),
            new_side(&p.disk, &work, s.ranks),
            new_side(&p.disk, &all, s.ranks),
        ];
        let outcome = s.compare_sides(&sides)?;
        for (what, value) in
            [("write", MpiSample::write_rate as SampleValue), ("read", MpiSample::read_rate)]
        {
            let name = format!("{mpi} ior strided {what} {size}");
            figures.push(rate_figure(name.clone(), (&outcome, 0, 1), value, EACH, Some(0.95)));
            let best = outcome.best_side(&[2, 3], value);
            let goal = (what == "write").then_some(2.0);
            let name = format!("{name}, shared");
            figures.push(rate_figure(name, (&outcome, 0, best), value, SHARED[best - 2], goal));
        }
        figures.extend(cost_figures(&format!("{mpi} ior strided {size}"), &outcome, (0, 1), EACH));
    }
    figures.extend(large_figures(s)?);
    Ok(figures)
}

/// Takes the figures of a long run, in which opening and closing count for little.
fn large_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let segments = if s.quick { 32 } else { 8192 };
    let line = format!("--view --block 64k --transfer 64k --segments {segments}");
    let work = MpiWorkload::new("ior", &line);
    let places = [&s.places.layer, &s.places.each];
    let outcome = s.compare_sides(&places.map(|place| new_side(place, &work, s.ranks)))?;
    let values = [("write", MpiSample::write_rate as SampleValue), ("read", MpiSample::read_rate)];
    let figure = |(what, value): (&str, SampleValue)| {
        let name = format!("{} ior strided {what} 64k, 2 GiB", s.mpi.name());
        rate_figure(name, (&outcome, 0, 1), value, EACH, None)
    };
    Ok(values.into_iter().map(figure).collect())
}

/// Takes the figures of HPIO's patterns: small regions, and the influence of the space between
/// them.
pub fn hpio_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let mpi = s.mpi.name();
    let mut figures = Vec::new();
    let p = &s.places;
    let many = if s.quick { 4096 } else { 1 << 20 };
    for (call, flags) in [("independent", ""), ("collective", "--collective")] {
        let line = format!("--pattern nc-nc --count {many} --size 8 --spacing 8 {flags}");
        let work = MpiWorkload::new("hpio", &line);
        let sides = [new_side(&p.layer, &work, s.ranks), new_side(&p.disk, &work, s.ranks)];
        let outcome = s.compare_sides(&sides)?;
        let against = "the MPI library with its defaults on one plain file";
        for (what, value, goal) in [
            ("write", MpiSample::write_rate as SampleValue, Some(10.0)),
            ("read", MpiSample::read_rate, None),
        ] {
            let name = format!("{mpi} hpio nc-nc 8 B {call} {what}");
            figures.push(rate_figure(name, (&outcome, 0, 1), value, against, goal));
        }
    }
    let count = if s.quick { 256 } else { 65536 };
    for pattern in ["nc-nc", "c-nc", "nc-c"] {
        let line = format!("--pattern {pattern} --count {count} --size 128 --spacing 128");
        let work = MpiWorkload::new("hpio", &line);
        let all = work.with_args("--collective");
        let sides = [
            new_side(&p.layer, &work, s.ranks),
            new_side(&p.disk, &work, s.ranks),
            new_side(&p.disk, &all, s.ranks),
        ];
        let outcome = s.compare_sides(&sides)?;
        for (what, value) in
            [("write", MpiSample::write_rate as SampleValue), ("read", MpiSample::read_rate)]
        {
            let best = outcome.best_side(&[1, 2], value);
            let goal = (what == "write" && pattern != "nc-c").then_some(2.0);
            let name = format!("{mpi} hpio {pattern} 128 B {what}");
            figures.push(rate_figure(name, (&outcome, 0, best), value, SHARED[best - 1], goal));
        }
    }
    figures.push(spacing_figure(s, many)?);
    Ok(figures)
}

/// Compares the slowest with the fastest spacing.
fn spacing_figure(s: &MpiSession, count: u64) -> Result<Figure, BenchError> {
    let spacings = [8, 64, 512, 4096];
    let sides: Vec<ComparedSide> = spacings
        .iter()
        .map(|spacing| {
            // Contiguous in memory: spaces there are memory's cost, not the file's. Several calls,
            // since one takes too little time to compare.
            let line = format!(
                "--pattern c-nc --count {count} --size 8 --spacing {spacing} --repeats 8 --write-only"
            );
            new_side(&s.places.layer, &MpiWorkload::new("hpio", &line), s.ranks)
        })
        .collect();
    let outcome = s.compare_sides(&sides)?;
    let all: Vec<usize> = (0..sides.len()).collect();
    let rate = |i: &usize| median(&outcome.side_values(*i, MpiSample::write_rate));
    let fast = outcome.best_side(&all, MpiSample::write_rate);
    let slow = all.iter().copied().min_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap_or(0);
    let name = format!("{} hpio c-nc 8 B write, slowest spacing", s.mpi.name());
    let against = "the fastest spacing, also with the layer";
    let note = format!("spacing {} B against {} B", spacings[slow], spacings[fast]);
    let figure =
        rate_figure(name, (&outcome, slow, fast), MpiSample::write_rate, against, Some(0.8));
    Ok(figure.with_note(note))
}

/// Takes the figures of BT-IO: the time of its I/O, as a rate.
pub fn btio_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let mpi = s.mpi.name();
    let p = &s.places;
    let mut figures = Vec::new();
    let classes: &[(&str, u32)] = if s.quick { &[("S", 3)] } else { &[("A", 40), ("B", 10)] };
    for (class, dumps) in classes {
        let work = MpiWorkload::new("btio", &format!("--class {class} --dumps {dumps}"));
        let sides = [
            new_side(&p.layer, &work, 4),
            new_side(&p.disk, &work, 4),
            new_side(&p.each, &work, 4),
        ];
        let outcome = s.compare_sides(&sides)?;
        let against = "collective I/O on one plain file";
        for (what, value, goal) in [
            ("write", MpiSample::write_rate as SampleValue, Some(3.0)),
            ("read", MpiSample::read_rate, None),
        ] {
            let name = format!("{mpi} btio {class} full {what}");
            figures.push(rate_figure(name, (&outcome, 0, 1), value, against, goal));
            let name = format!("{mpi} btio {class} full {what}, N-N");
            figures.push(rate_figure(name, (&outcome, 0, 2), value, "a file per process", None));
        }
    }
    let class = if s.quick { "S" } else { "A" };
    let work = MpiWorkload::new("btio", &format!("--class {class} --mode simple"));
    let outcome = s.compare_sides(&[new_side(&p.layer, &work, 4), new_side(&p.disk, &work, 4)])?;
    let against = "the same calls on one plain file";
    for (what, value) in
        [("write", MpiSample::write_rate as SampleValue), ("read", MpiSample::read_rate)]
    {
        let name = format!("{mpi} btio {class} simple {what}");
        figures.push(rate_figure(name, (&outcome, 0, 1), value, against, None));
    }
    Ok(figures)
}

/// Takes the figures of reads with another number of processes and another view than the writers'.
pub fn reread_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let mpi = s.mpi.name();
    let p = &s.places;
    let mut figures = Vec::new();
    let segments = if s.quick { 64 } else { 1024 };
    for (written, size) in [("64k", 65536u64), ("1k", 1024)] {
        let segments = if size == 1024 { segments * 8 } else { segments };
        let bytes = u64::from(s.ranks) * segments * size;
        let write = format!(
            "--view --strided --write-only --block {size} --transfer {size} --segments {segments}"
        );
        let write = MpiWorkload::new("ior", &write);
        for place in [&p.layer, &p.disk] {
            place.clear()?;
            let mut command = s.runner.mpirun_command(s.mpi, place, s.ranks, write.program);
            s.runner.run_program({
                command.args(write.place_arguments(place));
                command
            })?;
        }
        for (how, ranks, flags) in [
            ("by 2 in stretches", 2, ""),
            ("by 3 in blocks of 48k", 3, "--block 48k"),
            ("by 2 in stretches, collective", 2, "--collective"),
        ] {
            let work = MpiWorkload::new("reread", &format!("--size {bytes} {flags}"));
            let outcome = s.compare_sides(&[
                new_side(&p.layer, &work, ranks),
                new_side(&p.disk, &work, ranks),
            ])?;
            let name = format!("{mpi} reread of {written} blocks {how}");
            let against = "the MPI library on a plain file";
            let value = MpiSample::read_rate as SampleValue;
            figures.push(rate_figure(name, (&outcome, 0, 1), value, against, Some(1.0)));
        }
        p.layer.clear()?;
        p.disk.clear()?;
    }
    Ok(figures)
}

/// Takes the figures of the same two workloads in every place, against one plain file on the local
/// disk.
pub fn place_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let mpi = s.mpi.name();
    let segments = if s.quick { 32 } else { 512 };
    let count = if s.quick { 256 } else { 65536 };
    let works = [
        ("ior 64k", format!("--view --block 64k --transfer 64k --segments {segments}")),
        ("hpio nc-nc 128 B", format!("--pattern nc-nc --count {count} --size 128 --spacing 128")),
    ];
    let mut figures = Vec::new();
    for (what, line) in works {
        let program = if what.starts_with("ior") { "ior" } else { "hpio" };
        let work = MpiWorkload::new(program, &line);
        let mut sides = vec![new_side(&s.places.disk, &work, s.ranks)];
        // The MPI libraries' data sieving reads, changes and writes bytes that other processes
        // write. On several mounts that needs byte-range locks between them, which do not exist.
        let fits = |place: &&MpiPlace| place.layer || place.volume.is_none() || program == "ior";
        let others = s.places.others.iter().filter(fits);
        sides.extend(others.map(|place| new_side(place, &work, s.ranks)));
        sides.push(new_side(&s.places.each, &work, s.ranks));
        let outcome = s.compare_sides(&sides)?;
        for (i, other) in sides.iter().enumerate().skip(1) {
            for (way, value) in
                [("write", MpiSample::write_rate as SampleValue), ("read", MpiSample::read_rate)]
            {
                let name = format!("{mpi} places {what} {way}, {}", other.place.name);
                let against = "one plain file on the local disk";
                figures.push(rate_figure(name, (&outcome, i, 0), value, against, None));
            }
        }
    }
    Ok(figures)
}
