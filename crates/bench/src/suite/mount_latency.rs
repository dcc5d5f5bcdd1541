//! How long one change of names takes in a quiet directory that another mount knows, against the
//! same change in a directory that only the own mount knows.
//!
//! A mount that has looked at a directory may hold rights to it. A change then waits until these
//! are given back. Means and rates hide such a wait, so the figures are 99th percentiles. Every
//! repetition has a directory of its own, because a directory may cost less after its first change.

use super::context::SuiteContext;
use crate::clock::{Steal, StealSum};
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::stats::{median, percentile};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;
use tatami_plot::format_number;

/// Milliseconds that the 99th percentile of each operation may take.
const LIMIT_MS: f64 = 2.0;

/// The names in the directory of a repetition: a file, two directories, and names to be made.
const FILE: &str = "file";
const SUB: &str = "sub";
const EMPTY: &str = "empty";
const NEW: &str = "new";
const NEW_IN_SUB: &str = "sub/new";
const CONTENT: [u8; 4096] = [0x5a; 4096];

/// A change of names. It runs once in each directory.
struct LatencyOperation {
    name: &'static str,
    run: fn(&Path) -> io::Result<()>,
}

const OPERATIONS: [LatencyOperation; 11] = [
    LatencyOperation { name: "create", run: |dir| File::create_new(dir.join(NEW)).map(drop) },
    LatencyOperation {
        name: "write",
        run: |dir| File::create_new(dir.join(NEW))?.write_all(&CONTENT),
    },
    LatencyOperation { name: "mkdir", run: |dir| fs::create_dir(dir.join(NEW)) },
    LatencyOperation { name: "unlink", run: |dir| fs::remove_file(dir.join(FILE)) },
    LatencyOperation {
        name: "symlink",
        run: |dir| std::os::unix::fs::symlink(FILE, dir.join(NEW)),
    },
    LatencyOperation {
        name: "rename within the directory",
        run: |dir| fs::rename(dir.join(FILE), dir.join(NEW)),
    },
    LatencyOperation {
        name: "rename into a subdirectory",
        run: |dir| fs::rename(dir.join(FILE), dir.join(NEW_IN_SUB)),
    },
    LatencyOperation {
        name: "link into a subdirectory",
        run: |dir| fs::hard_link(dir.join(FILE), dir.join(NEW_IN_SUB)),
    },
    LatencyOperation { name: "rmdir", run: |dir| fs::remove_dir(dir.join(EMPTY)) },
    LatencyOperation {
        name: "chmod",
        run: |dir| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(dir.join(FILE), mode)
        },
    },
    LatencyOperation {
        // open, ftruncate, close
        name: "truncate",
        run: |dir| OpenOptions::new().write(true).open(dir.join(FILE))?.set_len(100),
    },
];

impl LatencyOperation {
    fn figure_name(&self) -> String {
        format!("mounts latency {}, known elsewhere", self.name)
    }
}

const WORST: &str = "mounts latency, slowest operation";

/// The times of an operation, in milliseconds.
struct LatencySpread {
    median: f64,
    p99: f64,
    max: f64,
}

impl LatencySpread {
    fn from_times(times: &[f64]) -> LatencySpread {
        LatencySpread {
            median: median(times),
            p99: percentile(times, 0.99),
            max: percentile(times, 1.0),
        }
    }

    fn describe(&self) -> String {
        [self.median, self.p99, self.max].map(format_number).join(" / ")
    }
}

/// The times of one operation, in directories that another mount knows, and in others.
struct LatencyRuns {
    known: LatencySpread,
    own: LatencySpread,
    stolen: f64,
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let mut worst: Option<(&str, LatencyRuns)> = None;
    for operation in OPERATIONS {
        let name = operation.figure_name();
        if !bench.wants_figure(&name) && !bench.wants_figure(WORST) {
            continue;
        }
        let runs = measure_operation(bench, &operation)?;
        let (known, own) = (runs.known.describe(), runs.own.describe());
        let note = format!("median / 99th percentile / slowest, in ms: {known} against {own}");
        let p99 = one_run(runs.known.p99, runs.own.p99, runs.stolen);
        let better = (GoalDirection::Lower, None);
        let figure = Figure::new(name, "ms, p99", "known to the own mount only", better, &p99);
        bench.add_figure_with_note(&mut figures, figure.with_note(note));
        if worst.as_ref().is_none_or(|(_, slowest)| slowest.known.p99 < runs.known.p99) {
            worst = Some((operation.name, runs));
        }
    }
    if let Some((operation, runs)) = worst {
        let p99 = one_run(runs.known.p99, LIMIT_MS, runs.stolen);
        let better = (GoalDirection::Lower, Some(1.0));
        let figure = Figure::new(WORST, "ms, p99", "what it may take", better, &p99);
        bench.add_figure_with_note(&mut figures, figure.with_note(operation));
    }
    Ok(figures)
}

fn one_run(ours: f64, baseline: f64, stolen: f64) -> FigureRuns {
    FigureRuns { ours: vec![ours], baseline: vec![baseline], stolen }
}

fn measure_operation(
    bench: &SuiteContext,
    operation: &LatencyOperation,
) -> Result<LatencyRuns, BenchError> {
    let sub = format!("latency.{}", operation.name);
    let [own, other] = [0, 1].map(|node| bench.volume.mount_path(node).join(&sub));
    let name = operation.name;
    fs::create_dir(&own).map_err(path_error(name, &own))?;
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    let mut stolen = StealSum::default();
    // The first repetition warms up. Both sides take turns.
    for repetition in 0..=bench.latency_repetitions() {
        let steal = Steal::now();
        for (times, look) in [(&mut known, true), (&mut unknown, false)] {
            let sub = format!("{}.{repetition}", if look { "known" } else { "unknown" });
            let dir = own.join(&sub);
            make_directory(&dir).map_err(path_error(name, &dir))?;
            if look {
                look_at_directory(&other.join(&sub)).map_err(path_error(name, &other))?;
            }
            let start = Instant::now();
            (operation.run)(&dir).map_err(path_error(name, &dir))?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        if repetition > 0 {
            steal.add_to(&mut stolen);
        }
    }
    Ok(LatencyRuns {
        known: LatencySpread::from_times(&known[1..]),
        own: LatencySpread::from_times(&unknown[1..]),
        stolen: stolen.stolen_share(),
    })
}

/// Makes a directory with everything that the operations need.
fn make_directory(dir: &Path) -> io::Result<()> {
    for dir in [dir, &dir.join(SUB), &dir.join(EMPTY)] {
        fs::create_dir(dir)?;
    }
    fs::write(dir.join(FILE), CONTENT)
}

/// Looks up all names of the directory, and lists it. Some names do not exist yet.
fn look_at_directory(dir: &Path) -> io::Result<()> {
    for name in [FILE, SUB, EMPTY, NEW, NEW_IN_SUB] {
        match fs::symlink_metadata(dir.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    for dir in [dir, &dir.join(SUB)] {
        fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_runs_in_a_directory_that_another_mount_has_seen() {
        let base = tempfile::tempdir().expect("a temporary directory");
        for operation in OPERATIONS {
            let dir = base.path().join(operation.name);
            make_directory(&dir).expect("a fresh directory");
            look_at_directory(&dir).expect("it is there");
            (operation.run)(&dir).expect("the directory has all that it needs");
            let names = fs::read_dir(&dir).expect("it is there").count()
                + fs::read_dir(dir.join(SUB)).expect("it is there").count();
            let expected = match operation.name {
                "create" | "write" | "mkdir" | "symlink" | "link into a subdirectory" => 4,
                "unlink" | "rmdir" => 2,
                _ => 3,
            };
            assert_eq!(names, expected, "{}", operation.name);
        }
    }

    #[test]
    fn a_spread_has_the_slowest_of_all() {
        let times: Vec<f64> = (1..=200).map(f64::from).collect();
        let spread = LatencySpread::from_times(&times);
        assert_eq!((spread.median, spread.p99, spread.max), (100.5, 198.0, 200.0));
    }
}
