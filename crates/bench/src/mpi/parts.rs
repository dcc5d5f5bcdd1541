//! The figures with goals, one function a part.

use super::comparison::{ComparedSide, Comparison};
use super::launch::MpiSample;
use super::place::{MpiPlace, MpiWorkload};
use super::session::MpiSession;
use crate::error::BenchError;
use crate::figure::{Figure, FigureRuns, GoalDirection};

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

const EACH: &str = "a file per process, MPI-IO";
const SHARED: [&str; 2] =
    ["independent calls on one plain file", "collective calls on one plain file"];

/// Takes the figures of IOR's pattern: against a file per process, and against one plain file.
pub fn ior_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let segments = if s.quick { 32 } else { 1024 };
    let line = format!("--view --block 64k --transfer 64k --segments {segments}");
    let work = MpiWorkload::new("ior", &line);
    let p = &s.places;
    let outcome = s.compare_sides(&[
        new_side(&p.layer, &work, s.ranks),
        new_side(&p.each, &work, s.ranks),
        new_side(&p.disk, &work, s.ranks),
        new_side(&p.disk, &work.with_args("--collective"), s.ranks),
    ])?;
    let name = |what: &str| format!("{} ior strided {what}", s.mpi.name());
    let (write, read): (SampleValue, SampleValue) = (MpiSample::write_rate, MpiSample::read_rate);
    let best = outcome.best_side(&[2, 3], write);
    let against = SHARED[best - 2];
    Ok(vec![
        rate_figure(name("write 64k"), (&outcome, 0, 1), write, EACH, Some(0.95)),
        rate_figure(name("read 64k"), (&outcome, 0, 1), read, EACH, Some(0.95)),
        rate_figure(name("write 64k, shared"), (&outcome, 0, best), write, against, Some(2.0)),
    ])
}

/// Takes the figure of HPIO's pattern: small regions with spaces between them.
pub fn hpio_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let count = if s.quick { 4096 } else { 1 << 20 };
    let line = format!("--pattern nc-nc --count {count} --size 8 --spacing 8 --collective");
    let work = MpiWorkload::new("hpio", &line);
    let p = &s.places;
    let outcome =
        s.compare_sides(&[new_side(&p.layer, &work, s.ranks), new_side(&p.disk, &work, s.ranks)])?;
    let name = format!("{} hpio nc-nc 8 B collective write", s.mpi.name());
    let against = "the MPI library with its defaults on one plain file";
    Ok(vec![rate_figure(name, (&outcome, 0, 1), MpiSample::write_rate, against, Some(10.0))])
}

/// Takes the figure of BT-IO: the time of its I/O, as a rate.
pub fn btio_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let (class, dumps) = if s.quick { ("S", 3) } else { ("B", 10) };
    let work = MpiWorkload::new("btio", &format!("--class {class} --dumps {dumps}"));
    let p = &s.places;
    let outcome = s.compare_sides(&[new_side(&p.layer, &work, 4), new_side(&p.disk, &work, 4)])?;
    let name = format!("{} btio {class} full write", s.mpi.name());
    let against = "collective I/O on one plain file";
    Ok(vec![rate_figure(name, (&outcome, 0, 1), MpiSample::write_rate, against, Some(3.0))])
}

/// Takes the figure of reads by another number of processes, in other blocks than the writers'.
pub fn reread_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let p = &s.places;
    let segments = if s.quick { 64 } else { 1024 };
    let write =
        format!("--view --strided --write-only --block 64k --transfer 64k --segments {segments}");
    let write = MpiWorkload::new("ior", &write);
    for place in [&p.layer, &p.disk] {
        place.clear()?;
        let mut command = s.runner.mpirun_command(s.mpi, place, s.ranks, write.program);
        command.args(write.place_arguments(place));
        s.runner.run_program(command)?;
    }
    let bytes = u64::from(s.ranks) * segments * (64 << 10);
    let work = MpiWorkload::new("reread", &format!("--size {bytes} --block 48k"));
    let outcome = s.compare_sides(&[new_side(&p.layer, &work, 3), new_side(&p.disk, &work, 3)])?;
    p.layer.clear()?;
    p.disk.clear()?;
    let name = format!("{} reread of 64k blocks by 3 in blocks of 48k", s.mpi.name());
    let against = "the MPI library on a plain file";
    Ok(vec![rate_figure(name, (&outcome, 0, 1), MpiSample::read_rate, against, Some(1.0))])
}

/// Takes the figures of the same writes in further places, against a file per process on the local
/// disk.
pub fn place_figures(s: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let segments = if s.quick { 32 } else { 512 };
    let line = format!("--view --block 64k --transfer 64k --segments {segments}");
    let work = MpiWorkload::new("ior", &line);
    let mut sides = vec![new_side(&s.places.each, &work, s.ranks)];
    sides.extend(s.places.others.iter().map(|place| new_side(place, &work, s.ranks)));
    let outcome = s.compare_sides(&sides)?;
    let figure = |(i, side): (usize, &ComparedSide)| {
        let name = format!("{} places strided write 64k, {}", s.mpi.name(), side.place.name);
        rate_figure(name, (&outcome, i, 0), MpiSample::write_rate, EACH, None)
    };
    Ok(sides.iter().enumerate().skip(1).map(figure).collect())
}
