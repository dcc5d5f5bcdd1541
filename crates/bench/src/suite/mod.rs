//! `tatami bench suite`: the figures of `docs/performance.md`, each next to its baseline on the
//! same machine, in the same minutes. A goal of the project hangs on each, or it is the part of the
//! kernel, of the disk or of the messages in one that has a goal.
//!
//! A small module of its own measures every figure. Both sides take turns, medians are compared,
//! and the share of stolen CPU time stands beside each ratio. A figure that misses its goal is
//! reported as such; the suite fails only when something could not be run.

mod commands;
mod context;
mod copies;
mod encryption;
mod large;
mod library_names;
mod mount_latency;
mod mount_names;
mod mounts;
mod pairs;
mod passthrough;
mod peers;
mod preload_names;
mod remote;
mod scaling;
mod servers;
mod small_files;

use crate::error::{BenchError, io_error, path_error};
use crate::figure::Figure;
use crate::machine::{Machine, pin_to_one_cpu};
use crate::progress::print_progress;
use crate::summary::{check_summary_path, render_summary, write_summary};
use crate::volume::BenchVolume;
use crate::worker_group::Launcher;
use context::{NAMES, NODES, SuiteContext};
use std::io::Write;
use std::path::Path;
use tatami_bench_args::{SUITE_PARTS, SuiteArgs};

type Parts<'a> = &'a [(&'static str, fn(&SuiteContext) -> Result<Vec<Figure>, BenchError>)];

/// Parts of the suite that run on one volume.
struct PartGroup<'a> {
    parts: Parts<'a>,
    /// Nodes of the volume.
    nodes: u16,
    /// The nodes that have names, as `volume.shards` names them.
    shards: &'static str,
    one_cpu: bool,
}

/// Takes all figures, writes the summary, and the table to `out`.
///
/// # Errors
/// A part that could not be run, and [`BenchError::Output`]. A figure that misses its goal is no
/// error.
pub fn run(args: &SuiteArgs, out: &mut impl Write) -> Result<(), BenchError> {
    let launcher = Launcher::this_program()?;
    check_summary_path(&args.out)?;
    std::fs::create_dir_all(&args.work).map_err(path_error("creating", &args.work))?;
    // Daemons and mounts have other working directories, so the path must be absolute.
    let dir = args.work.canonicalize().map_err(path_error("finding", &args.work))?;
    let (plain, work) = (dir.join("plain"), dir.join("other"));
    for made in [&plain, &work] {
        std::fs::create_dir_all(made).map_err(path_error("creating", made))?;
    }
    let machine = Machine::from_dir(&plain);
    print_progress(&machine.summary_line());
    let figures = take_figures(args, &launcher, &dir);
    // Removes the directory after a failure, too; the first error is the one to report.
    let removed = std::fs::remove_dir_all(&dir).map_err(path_error("removing", &dir));
    let figures = figures?;
    removed?;
    write_summary(&args.out, &figures, &machine)?;
    let text = render_summary(&args.out, &figures);
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::Output)
}

/// Takes the figures of bytes and of several mounts on all CPUs, then those of names on one CPU,
/// each with a volume of its own.
fn take_figures(
    args: &SuiteArgs,
    launcher: &Launcher,
    dir: &Path,
) -> Result<Vec<Figure>, BenchError> {
    let [
        local,
        far,
        encrypted,
        copy,
        mount,
        mounts,
        commands,
        peers,
        library,
        preload,
        servers,
        large,
        scaling,
        smallfiles,
    ] = SUITE_PARTS;
    let bytes: Parts<'_> = &[
        (local, passthrough::take_figures),
        (far, remote::take_figures),
        (encrypted, encryption::take_figures),
        (copy, copies::take_figures),
    ];
    let names: Parts<'_> = &[
        (mount, mount_names::take_figures),
        (library, library_names::take_figures),
        (preload, preload_names::take_figures),
        (servers, servers::take_figures),
        (large, large::take_figures),
    ];
    let several: Parts<'_> = &[
        (mounts, mounts::take_figures),
        (commands, commands::take_figures),
        (peers, peers::take_figures),
        (scaling, scaling::take_figures),
        (smallfiles, small_files::take_figures),
    ];
    let groups = [
        PartGroup { parts: bytes, nodes: NODES, shards: NAMES, one_cpu: false },
        PartGroup { parts: several, nodes: mounts::MOUNTS, shards: "all", one_cpu: false },
        PartGroup { parts: names, nodes: NODES, shards: NAMES, one_cpu: !args.all_cpus },
    ];
    let mut all = Vec::new();
    for PartGroup { parts, nodes, shards, one_cpu } in groups {
        let wanted =
            |part: &str| args.only.is_empty() || args.only.iter().any(|p| p.matches_part(part));
        if !parts.iter().any(|(part, _)| wanted(part)) {
            continue;
        }
        if one_cpu {
            pin_to_one_cpu().map_err(io_error("choosing a CPU"))?;
        }
        let program = launcher.tatami_command(args.program.as_deref());
        let volume = BenchVolume::start(&program, &dir.join("vol"), nodes, shards)?;
        let runs = if args.quick { args.runs.min(2) } else { args.runs };
        let bench = SuiteContext {
            launcher: launcher.clone(),
            program,
            volume,
            plain: dir.join("plain"),
            work: dir.join("other"),
            runs: runs.into(),
            entries: args.entries,
            quick: args.quick,
            only: args.only.clone(),
        };
        for (part, take) in parts.iter().filter(|(part, _)| wanted(part)) {
            print_progress(&format!("{part}:"));
            all.extend(take(&bench)?);
        }
    }
    match args.only.iter().find(|prefix| !all.iter().any(|f| prefix.matches_figure(&f.name))) {
        Some(prefix) => {
            Err(BenchError::Usage(format!("no figure has a name that begins '{}'", prefix.text())))
        }
        None => Ok(all),
    }
}
