//! `tatami cp` and `sync` beside `cp` and `rsync`, which copy the same files on the plain disk:
//! many small files, and one large file. Whole commands are timed, with their start, as users
//! run them. What a command has to do beyond the disk: requests to the servers, and their disk.

use super::context::SuiteContext;
use super::pairs::run_alternating;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, GoalDirection};
use crate::pattern::fill_pattern;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Most runs of each side: a run takes seconds, and the differences are large.
const RUNS_MAX: usize = 2;
/// Files of a directory of the source.
const FILES_IN_DIR: u64 = 100;
/// Bytes of a small file.
const SMALL: usize = 4096;
/// Bytes that are written at a time.
const CHUNK: usize = 1 << 20;

/// One command, and what must be gone before it runs.
struct TimedCommand {
    program: OsString,
    args: Vec<OsString>,
    removes: Option<Removal>,
}

/// A path that must be gone before a command runs. That is not timed.
enum Removal {
    Plain(PathBuf),
    /// By the servers of the volume: through the mount it would take longer than the copy.
    Volume(Box<TimedCommand>),
}

/// The files to copy, and where copies go.
struct CopyPlaces<'a> {
    bench: &'a SuiteContext,
    small: PathBuf,
    large: PathBuf,
    files: u64,
    bytes: u64,
}

/// Takes all figures of this module.
///
/// # Errors
/// A command that could not be run, or failed.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let root = bench.plain.join("copy");
    let places = CopyPlaces {
        bench,
        small: root.join("small"),
        large: root.join("large"),
        files: if bench.quick { 500 } else { 100_000 },
        bytes: if bench.quick { 8 << 20 } else { 4 << 30 },
    };
    places.make_sources()?;
    let mount = bench.volume.mount_path(0);
    let (small, large) = (&places.small, &places.large);
    let plain = |name: &str| root.join(name);
    let sync = |from: &Path, to: &Path| {
        // The slash makes rsync copy the entries of the directory, as `tatami sync` does.
        let mut from = from.as_os_str().to_owned();
        if Path::new(&from).is_dir() {
            from.push("/");
        }
        timed_command("rsync", ["-a".into(), from, to.into()])
    };
    let copy = |from: &Path, to: &Path| timed_command("cp", ["-r".into(), from.into(), to.into()]);
    let tatami = |verb: &[&str], from: OsString, to: OsString| {
        let mut args: Vec<OsString> = verb.iter().map(Into::into).collect();
        args.extend(["--dir".into(), bench.volume.dir().into(), from, to]);
        timed_command(&bench.program, args)
    };
    let volume = |name: &str| OsString::from(format!(":/{name}"));
    let gone = |name: &str| {
        let args = ["rm", "-rf", "--dir"].map(OsString::from).into_iter();
        let args = args.chain([bench.volume.dir().into(), volume(name)]);
        timed_command(&bench.program, args.collect::<Vec<_>>())
    };
    let mut figures = Vec::new();
    let mut take = |name: &str, against: &str, ours: TimedCommand, floor: TimedCommand| {
        places.take_figure(&mut figures, name, against, &ours, &floor)
    };
    take(
        "copy small files in, cp",
        "cp on the plain disk",
        tatami(&["cp", "-r"], small.into(), volume("in")).after(gone("in")),
        copy(small, &plain("in")).after_removing(plain("in")),
    )?;
    take(
        "copy small files in, cp, beside the mount",
        "cp to the mount",
        tatami(&["cp", "-r"], small.into(), volume("in")).after(gone("in")),
        copy(small, &mount.join("by-mount")).after(gone("by-mount")),
    )?;
    take(
        "copy small files out, cp",
        "cp on the plain disk",
        tatami(&["cp", "-r"], volume("in"), plain("out").into()).after_removing(plain("out")),
        copy(small, &plain("in")).after_removing(plain("in")),
    )?;
    take(
        "copy small files in, sync",
        "rsync on the plain disk",
        tatami(&["sync"], small.into(), volume("synced")).after(gone("synced")),
        sync(small, &plain("synced")).after_removing(plain("synced")),
    )?;
    take(
        "copy small files in, sync again",
        "rsync on the plain disk",
        tatami(&["sync"], small.into(), volume("synced")),
        sync(small, &plain("synced")),
    )?;
    // Less of the disk is in use at a time so.
    for name in ["in", "by-mount", "synced"] {
        gone(name).time_run()?;
    }
    for name in ["in", "out", "synced"] {
        remove_path(&plain(name))?;
    }
    take(
        "copy one file in, cp",
        "cp on the plain disk",
        tatami(&["cp"], large.into(), volume("file")).after(gone("file")),
        copy(large, &plain("file")).after_removing(plain("file")),
    )?;
    take(
        "copy one file out, cp",
        "cp on the plain disk",
        tatami(&["cp"], volume("file"), plain("back").into()).after_removing(plain("back")),
        copy(large, &plain("file")).after_removing(plain("file")),
    )?;
    gone("file").time_run()?;
    remove_path(&plain("file"))?;
    remove_path(&plain("back"))?;
    take(
        "copy one file in, sync",
        "rsync on the plain disk",
        tatami(&["sync"], large.into(), volume("sync")).after(gone("sync")),
        sync(large, &plain("sync")).after_removing(plain("sync")),
    )?;
    gone("sync").time_run()?;
    remove_path(&root)?;
    Ok(figures)
}

fn timed_command(
    program: impl Into<OsString>,
    args: impl IntoIterator<Item = OsString>,
) -> TimedCommand {
    TimedCommand { program: program.into(), args: args.into_iter().collect(), removes: None }
}

impl TimedCommand {
    fn after_removing(mut self, path: PathBuf) -> TimedCommand {
        self.removes = Some(Removal::Plain(path));
        self
    }

    fn after(mut self, removal: TimedCommand) -> TimedCommand {
        self.removes = Some(Removal::Volume(Box::new(removal)));
        self
    }

    /// Runs the command and returns its seconds.
    fn time_run(&self) -> Result<f64, BenchError> {
        match &self.removes {
            Some(Removal::Plain(path)) => remove_path(path)?,
            Some(Removal::Volume(command)) => drop(command.time_run()?),
            None => {}
        }
        let shown = || self.program.to_string_lossy().into_owned();
        let start = Instant::now();
        let output = Command::new(&self.program).args(&self.args).stdin(Stdio::null()).output();
        let seconds = start.elapsed().as_secs_f64();
        let output = output.map_err(|e| BenchError::Program {
            program: shown(),
            problem: format!("does not start ({e}); Debian: apt install rsync"),
        })?;
        if !output.status.success() {
            let problem = format!("fails: {}", String::from_utf8_lossy(&output.stderr).trim());
            return Err(BenchError::Program { program: shown(), problem });
        }
        Ok(seconds)
    }
}

impl CopyPlaces<'_> {
    fn make_sources(&self) -> Result<(), BenchError> {
        remove_path(&self.small)?;
        for dir in 0..self.files.div_ceil(FILES_IN_DIR) {
            let dir = self.small.join(format!("dir{dir}"));
            fs::create_dir_all(&dir).map_err(path_error("creating", &dir))?;
            for file in 0..FILES_IN_DIR {
                let path = dir.join(format!("file{file}"));
                let mut bytes = vec![0; SMALL];
                fill_pattern(file, 0, &mut bytes);
                fs::write(&path, bytes).map_err(path_error("writing", &path))?;
            }
        }
        let path = &self.large;
        let mut large = fs::File::create(path).map_err(path_error("creating", path))?;
        let mut bytes = vec![0; CHUNK];
        fill_pattern(1, 0, &mut bytes);
        for _ in 0..self.bytes / CHUNK as u64 {
            large.write_all(&bytes).map_err(path_error("writing", path))?;
        }
        Ok(())
    }

    fn take_figure(
        &self,
        figures: &mut Vec<Figure>,
        name: &str,
        against: &str,
        ours: &TimedCommand,
        floor: &TimedCommand,
    ) -> Result<(), BenchError> {
        let is_small = name.contains("small");
        if !self.bench.wants_figure(name) {
            // The next figures may copy what this one makes.
            return ours.time_run().map(drop);
        }
        let runs = self.bench.runs.min(RUNS_MAX);
        let pairs = run_alternating(runs, || ours.time_run(), || floor.time_run())?;
        let (amount, unit, note) = match is_small {
            true => {
                (self.files as f64, "files/s", format!("{} files of {SMALL} bytes", self.files))
            }
            false => ((self.bytes >> 20) as f64, "MiB/s", format!("{} MiB", self.bytes >> 20)),
        };
        let runs = pairs.figure_runs(|seconds| amount / seconds);
        let figure = Figure::new(name, unit, against, (GoalDirection::Higher, None), &runs);
        self.bench.add_figure(figures, figure.with_note(note));
        Ok(())
    }
}

/// Removes what is at a path, if anything.
fn remove_path(path: &Path) -> Result<(), BenchError> {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    removed.map_err(path_error("removing", path))
}
