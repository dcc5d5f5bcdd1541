//! Walks through a large directory: the time of find, ls and du through the mount, against the same
//! commands in a directory of the plain disk with as many entries. Other figures are of the
//! commands of Tatami for the same task, which let the servers do the work.
//!
//! Each walk through the mount is in a directory of its own, made through the mount of another
//! node, so that no cache of this node has it. The directory on the disk is the same each time, and
//! in the kernel's memory.

use super::SuiteContext;
use super::figure::{Figure, FigureRuns, GoalDirection};
use super::pairs::{self, PairedRuns};
use crate::clock::{Steal, now_ns};
use crate::error::{BenchError, path_error};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// A command for both sides, without the directory.
const COMMANDS: [(&str, &[&str]); 3] =
    [("find", &["find"]), ("ls -l", &["ls", "-lU"]), ("du", &["du", "-s"])];
/// A command of Tatami, and the usual command that is its baseline.
const OWN: [(&str, &[&str], &[&str]); 2] =
    [("tatami ls -l", &["ls", "-l"], &["ls", "-l"]), ("tatami du", &["du", "-s"], &["du", "-s"])];

/// The result of one walk.
#[derive(Clone, Copy, Debug)]
struct WalkSample {
    /// Entries per second.
    rate: f64,
    /// Metadata requests per entry.
    requests: f64,
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let entries = bench.walk_entries();
    let (there, here) = (bench.volume.mount_path(1), bench.volume.mount_path(0));
    let plain = bench.plain.join("walk");
    create_files(&plain, entries)?;
    create_files(&there.join("walk"), entries)?;
    let mut made = 0;
    let mut unknown = || {
        made += 1;
        let name = format!("walk{made}");
        create_files(&there.join(&name), entries)?;
        Ok::<_, BenchError>(here.join(name))
    };
    let note = format!("{entries} entries");
    let rate = |walk: &WalkSample| walk.rate;
    let figure = |name: &str, runs: &FigureRuns| {
        let better = (GoalDirection::Higher, None);
        Figure::new(format!("walk {name}, rate"), "entries/s", "the plain disk", better, runs)
            .with_note(&note)
    };
    let mut figures = Vec::new();
    for (name, command) in COMMANDS {
        if !bench.wants_any(&[&format!("walk {name}, rate"), &format!("walk {name}, requests")]) {
            continue;
        }
        let walk = |dir: &Path| bench.run_walk(command, dir.as_os_str(), entries);
        let pairs: PairedRuns<WalkSample> =
            pairs::run_alternating(bench.runs, || walk(&unknown()?), || walk(&plain))?;
        bench.add_figure(&mut figures, figure(name, &pairs.figure_runs(rate)));
        let asked = pairs.our_runs().iter().map(|walk| walk.requests).collect();
        let runs = FigureRuns {
            ours: asked,
            baseline: vec![1.0; bench.runs],
            stolen: pairs.figure_runs(rate).stolen,
        };
        let name = format!("walk {name}, requests");
        let better = (GoalDirection::Lower, None);
        bench.add_figure(
            &mut figures,
            Figure::new(name, "requests/entry", "one each", better, &runs).with_note(&note),
        );
    }
    for (name, command, usual) in OWN {
        if bench.wants_figure(&format!("walk {name}, rate")) {
            let pairs: PairedRuns<WalkSample> = pairs::run_alternating(
                bench.runs,
                || bench.run_tatami_walk(command, entries),
                || bench.run_walk(usual, plain.as_os_str(), entries),
            )?;
            bench.add_figure(&mut figures, figure(name, &pairs.figure_runs(rate)));
        }
    }
    if !bench.wants_figure("walk tatami rm -r, rate") {
        return Ok(figures);
    }
    // Only one run: afterwards the directory is gone.
    let steal = Steal::now();
    let removed = bench.run_tatami_walk(&["rm", "-r"], entries)?;
    let usual = bench.run_walk(&["rm", "-r"], plain.as_os_str(), entries)?;
    let runs = FigureRuns {
        ours: vec![removed.rate],
        baseline: vec![usual.rate],
        stolen: steal.stolen_share(),
    };
    bench.add_figure(&mut figures, figure("tatami rm -r", &runs));
    Ok(figures)
}

impl SuiteContext {
    /// Returns the entries of a directory that is walked through.
    fn walk_entries(&self) -> u64 {
        if self.quick { 2000 } else { self.entries.min(50_000) }
    }

    fn wants_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.wants_figure(name))
    }

    /// Runs a usual command.
    fn run_walk(
        &self,
        words: &[&str],
        dir: &std::ffi::OsStr,
        entries: u64,
    ) -> Result<WalkSample, BenchError> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(dir);
        self.time_command(command, words[0], entries)
    }

    /// Runs a command of Tatami, without the mount.
    fn run_tatami_walk(&self, words: &[&str], entries: u64) -> Result<WalkSample, BenchError> {
        let mut command = Command::new(&self.program);
        command.arg(words[0]).arg("--dir").arg(self.volume.dir()).args(&words[1..]).arg(":/walk");
        self.time_command(command, "tatami", entries)
    }

    fn time_command(
        &self,
        mut command: Command,
        name: &str,
        entries: u64,
    ) -> Result<WalkSample, BenchError> {
        let requests = || Ok::<_, BenchError>(self.volume.node_status(0)?.meta_requests);
        // Without the user's locale.
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
        let (before, start) = (requests()?, now_ns());
        let status = command.status().map_err(|e| BenchError::Program {
            program: name.into(),
            problem: format!("can't be started: {e}"),
        })?;
        let seconds = (now_ns() - start) as f64 / 1e9;
        if !status.success() {
            let problem = format!("ended with {status}");
            return Err(BenchError::Program { program: name.into(), problem });
        }
        let asked = requests()?.saturating_sub(before);
        Ok(WalkSample { rate: entries as f64 / seconds, requests: asked as f64 / entries as f64 })
    }
}

/// Creates a directory of empty files.
fn create_files(dir: &Path, entries: u64) -> Result<(), BenchError> {
    std::fs::create_dir(dir).map_err(path_error("creating", dir))?;
    for n in 0..entries {
        let path = dir.join(format!("file.{n}"));
        File::create_new(&path).map_err(path_error("creating", &path))?;
    }
    Ok(())
}
