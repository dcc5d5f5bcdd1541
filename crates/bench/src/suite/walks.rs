//! Walks through a large directory: the time of find, ls and du through the mount, against the same
//! commands in a directory of the plain disk with as many entries. Other figures are of the
//! commands of Tatami for the same task, which let the servers do the work.
//!
//! Each walk through the mount is in a directory of its own, made through the mount of another
//! node, so that no cache of this node has it. The directory on the disk is the same each time, and
//! in the kernel's memory.

use super::Bench;
use super::figure::{Better, Figure, Runs};
use super::pairs::{self, Pairs};
use crate::clock::{Steal, now_ns};
use crate::error::{BenchError, at};
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
struct Walk {
    /// Entries per second.
    rate: f64,
    /// Metadata requests per entry.
    requests: f64,
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let entries = bench.walked();
    let (there, here) = (bench.volume.mount(1), bench.volume.mount(0));
    let plain = bench.plain.join("walk");
    fill(&plain, entries)?;
    fill(&there.join("walk"), entries)?;
    let mut made = 0;
    let mut unknown = || {
        made += 1;
        let name = format!("walk{made}");
        fill(&there.join(&name), entries)?;
        Ok::<_, BenchError>(here.join(name))
    };
    let note = format!("{entries} entries");
    let rate = |walk: &Walk| walk.rate;
    let figure = |name: &str, runs: &Runs| {
        let better = (Better::Higher, None);
        Figure::new(format!("walk {name}, rate"), "entries/s", "the plain disk", better, runs)
            .note(&note)
    };
    let mut figures = Vec::new();
    for (name, command) in COMMANDS {
        if !bench.wants_any(&[&format!("walk {name}, rate"), &format!("walk {name}, requests")]) {
            continue;
        }
        let walk = |dir: &Path| bench.walk(command, dir.as_os_str(), entries);
        let pairs: Pairs<Walk> =
            pairs::alternate(bench.runs, || walk(&unknown()?), || walk(&plain))?;
        bench.keep(&mut figures, figure(name, &pairs.runs(rate)));
        let asked = pairs.ours().iter().map(|walk| walk.requests).collect();
        let runs =
            Runs { ours: asked, floor: vec![1.0; bench.runs], stolen: pairs.runs(rate).stolen };
        let name = format!("walk {name}, requests");
        let better = (Better::Lower, None);
        bench.keep(
            &mut figures,
            Figure::new(name, "requests/entry", "one each", better, &runs).note(&note),
        );
    }
    for (name, command, usual) in OWN {
        if bench.wants(&format!("walk {name}, rate")) {
            let pairs: Pairs<Walk> = pairs::alternate(
                bench.runs,
                || bench.walk_by_tatami(command, entries),
                || bench.walk(usual, plain.as_os_str(), entries),
            )?;
            bench.keep(&mut figures, figure(name, &pairs.runs(rate)));
        }
    }
    if !bench.wants("walk tatami rm -r, rate") {
        return Ok(figures);
    }
    // Only one run: afterwards the directory is gone.
    let steal = Steal::now();
    let removed = bench.walk_by_tatami(&["rm", "-r"], entries)?;
    let usual = bench.walk(&["rm", "-r"], plain.as_os_str(), entries)?;
    let runs = Runs { ours: vec![removed.rate], floor: vec![usual.rate], stolen: steal.share() };
    bench.keep(&mut figures, figure("tatami rm -r", &runs));
    Ok(figures)
}

impl Bench {
    /// Returns the entries of a directory that is walked through.
    fn walked(&self) -> u64 {
        if self.quick { 2000 } else { self.entries.min(50_000) }
    }

    fn wants_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.wants(name))
    }

    /// Runs a usual command.
    fn walk(
        &self,
        words: &[&str],
        dir: &std::ffi::OsStr,
        entries: u64,
    ) -> Result<Walk, BenchError> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(dir);
        self.time(command, words[0], entries)
    }

    /// Runs a command of Tatami, without the mount.
    fn walk_by_tatami(&self, words: &[&str], entries: u64) -> Result<Walk, BenchError> {
        let mut command = Command::new(&self.program);
        command.arg(words[0]).arg("--dir").arg(self.volume.dir()).args(&words[1..]).arg(":/walk");
        self.time(command, "tatami", entries)
    }

    fn time(&self, mut command: Command, name: &str, entries: u64) -> Result<Walk, BenchError> {
        let requests = || Ok::<_, BenchError>(self.volume.status(0)?.meta_requests);
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
        Ok(Walk { rate: entries as f64 / seconds, requests: asked as f64 / entries as f64 })
    }
}

/// Creates a directory of empty files.
fn fill(dir: &Path, entries: u64) -> Result<(), BenchError> {
    std::fs::create_dir(dir).map_err(at("creating", dir))?;
    for n in 0..entries {
        let path = dir.join(format!("file.{n}"));
        File::create_new(&path).map_err(at("creating", &path))?;
    }
    Ok(())
}
