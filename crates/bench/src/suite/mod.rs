//! `tatami bench suite`: the figures of `docs/performance.md`, each next to its baseline on the
//! same machine, in the same minutes.
//!
//! A small module of its own measures every figure. Both sides take turns, medians are compared,
//! and the share of stolen CPU time stands beside each ratio. A figure that misses its goal is
//! reported as such; the suite fails only when something could not be run.

mod addresses;
pub(crate) mod figure;
mod large;
mod library_bulk;
mod library_names;
mod machine;
mod mount_names;
mod null_mount;
mod only;
mod pairs;
mod passthrough;
mod remote;
pub(crate) mod servers;
pub(crate) mod strace;
pub(crate) mod volume;
mod walks;

pub use figure::{Figure, FigureRuns, GoalDirection};
pub use machine::Machine;
pub use null_mount::serve_null_mount as null_mount;
pub use only::Prefix;

use crate::error::{BenchError, io_error, path_error};
use crate::print_progress;
use crate::table::format_percent;
use crate::worker_group::Launcher;
use only::PARTS;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use volume::BenchVolume;

/// Options of `tatami bench suite`.
#[derive(Clone, Debug, clap::Args)]
pub struct SuiteArgs {
    /// Directory for the volume and the local files it is compared with, on the disk to be measured
    #[arg(long, default_value = "bench-results/work")]
    pub dir: PathBuf,
    /// Where the summary goes, as JSON
    #[arg(long, default_value = "bench-results/summary.json")]
    pub out: PathBuf,
    /// How often each figure is taken, on both sides
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Only figures whose names begin so: a part (passthrough, remote, mount, library, servers,
    /// large, walk), or
    /// more of the name without its commas, such as "passthrough write cached" or "mount create"
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Prefix::parse)]
    pub only: Vec<Prefix>,
    /// Entries of the large directory (10,000,000 take some 15 minutes and 8 GB of disk)
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    pub entries: u64,
    /// Little of everything: to see that it works, not to measure
    #[arg(long)]
    pub quick: bool,
    /// Names on all CPUs, too (default: daemons, mounts and programs share one there)
    #[arg(long)]
    pub all_cpus: bool,
    /// Print the table as Markdown
    #[arg(long)]
    pub markdown: bool,
    /// The tatami command that starts the volume, if it is not this one
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// Nodes of the volume: one is local, one is remote.
const NODES: u16 = 2;

/// The state that all parts need.
pub struct SuiteContext {
    launcher: Launcher,
    /// The `tatami` command that starts volumes.
    program: PathBuf,
    volume: BenchVolume,
    /// For files on the plain disk.
    plain: PathBuf,
    /// For sockets, mounts and other things that are not measured.
    work: PathBuf,
    runs: usize,
    entries: u64,
    quick: bool,
    /// Prefixes of the names of the wanted figures; empty for all.
    only: Vec<Prefix>,
}

impl SuiteContext {
    /// Returns whether a figure of this name is to be taken.
    fn wants_figure(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|prefix| prefix.matches_figure(name))
    }

    /// Returns bytes of a test file: small enough to stay in the page cache.
    fn file_bytes(&self) -> u64 {
        if self.quick { 8 << 20 } else { 512 << 20 }
    }

    /// Returns the number of metadata operations of one run.
    fn items_per_run(&self) -> u64 {
        if self.quick { 400 } else { 8000 }
    }

    /// Returns the number of entries of a large directory.
    fn large_dir_entries(&self) -> u64 {
        if self.quick { 2000 } else { self.entries }
    }

    /// Returns whether a figure or its baseline is wanted: the two are taken together.
    fn wants_with_baseline(&self, name: &str) -> bool {
        self.wants_figure(name) || self.wants_figure(&baseline_name(name))
    }

    /// Reports a finished figure and adds it, if it is wanted.
    fn add_figure(&self, figures: &mut Vec<Figure>, figure: Figure) {
        if !self.wants_figure(&figure.name) {
            return;
        }
        print_progress(&format!(
            "  {}: {} {} against {}, ratio {:.2}, stolen {}",
            figure.name,
            crate::table::format_number(figure.value),
            figure.unit,
            crate::table::format_number(figure.baseline),
            figure.ratio,
            format_percent(figure.stolen)
        ));
        figures.push(figure);
    }
}

/// Returns the name of a figure's baseline: the cost of the kernel or the disk without Tatami.
fn baseline_name(figure: &str) -> String {
    format!("{figure}, floor")
}

/// One object of the summary: a figure, the command and the machine.
#[derive(Debug, Serialize, Deserialize)]
pub struct SummaryEntry {
    /// The figure.
    #[serde(flatten)]
    pub figure: Figure,
    /// The command line.
    pub command: String,
    /// The machine.
    pub machine: Machine,
}

/// Takes all figures, writes the summary, and the table to `out`.
///
/// # Errors
/// A part that could not be run, and [`BenchError::Output`]. A figure that misses its goal is no
/// error.
pub fn run(args: &SuiteArgs, out: &mut impl Write) -> Result<(), BenchError> {
    let launcher = Launcher::this_program()?;
    std::fs::create_dir_all(&args.dir).map_err(path_error("creating", &args.dir))?;
    // Daemons and mounts have other working directories, so the path must be absolute.
    let dir = args.dir.canonicalize().map_err(path_error("finding", &args.dir))?;
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
    let text = render_report(args, &figures);
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::Output)
}

/// Takes the figures of bytes on all CPUs, then those of names on one CPU, each with a volume of
/// its own.
fn take_figures(
    args: &SuiteArgs,
    launcher: &Launcher,
    dir: &Path,
) -> Result<Vec<Figure>, BenchError> {
    type Figures = fn(&SuiteContext) -> Result<Vec<Figure>, BenchError>;
    type Parts<'a> = &'a [(&'static str, Figures)];
    let [local, far, mount, library, servers, large, walk] = PARTS;
    let bytes: Parts<'_> = &[(local, passthrough::take_figures), (far, remote::take_figures)];
    let names: Parts<'_> = &[
        (mount, mount_names::take_figures),
        (library, library_names::take_figures),
        (library, library_bulk::take_figures),
        (servers, servers::take_figures),
        (large, large::take_figures),
        (walk, walks::take_figures),
    ];
    let mut all = Vec::new();
    for (parts, one_cpu) in [(bytes, false), (names, !args.all_cpus)] {
        let wanted =
            |part: &str| args.only.is_empty() || args.only.iter().any(|p| p.matches_part(part));
        if !parts.iter().any(|(part, _)| wanted(part)) {
            continue;
        }
        if one_cpu {
            pin_to_one_cpu().map_err(io_error("choosing a CPU"))?;
        }
        let program = args.program.as_ref().unwrap_or(&launcher.program);
        // Only one node has names here, and programs reach it by its socket. The part `servers`
        // measures the cost of more nodes.
        let volume = BenchVolume::start(program, &dir.join("vol"), NODES, "0")?;
        let runs = if args.quick { args.runs.min(2) } else { args.runs };
        let bench = SuiteContext {
            launcher: launcher.clone(),
            program: program.clone(),
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

/// Pins this process, and all that it starts from now on, to the last CPU it may use.
///
/// A request for a name is a relay between processes that each work for a few microseconds. The
/// scheduler may put two of them on one CPU or on two. That changes the time of a hand-over by a
/// factor of up to ten, more so on virtual machines, and by more than any figure here.
pub(crate) fn pin_to_one_cpu() -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let may = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| may.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(last.unwrap_or(0));
    Ok(sched_setaffinity(None, &one)?)
}

/// Writes a summary: an array of figures, each with the command and the machine.
///
/// # Errors
/// When the file can't be written.
pub(crate) fn write_summary(
    out: &Path,
    figures: &[Figure],
    machine: &Machine,
) -> Result<(), BenchError> {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(program) = words.first_mut() {
        "tatami".clone_into(program);
    }
    let command = words.join(" ");
    let entry = |figure: &Figure| SummaryEntry {
        figure: figure.clone(),
        command: command.clone(),
        machine: machine.clone(),
    };
    let entries: Vec<SummaryEntry> = figures.iter().map(entry).collect();
    let text = serde_json::to_string_pretty(&entries).expect("a summary is plain data");
    if let Some(parent) = out.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(path_error("creating", parent))?;
    }
    std::fs::write(out, text + "\n").map_err(path_error("writing", out))
}

fn render_report(args: &SuiteArgs, figures: &[Figure]) -> String {
    let table = figure::build_table(figures);
    let mut text = if args.markdown { table.render_markdown() } else { table.render() };
    text.push('\n');
    for f in figures.iter().filter(|f| !f.note.is_empty()) {
        text += &format!("{}: {}\n", f.name, f.note);
    }
    let missed = figures.iter().filter(|f| f.met == Some(false)).count();
    let held = figures.iter().filter(|f| f.met.is_some()).count();
    text + &format!("{} of {held} goals met; written to {}\n", held - missed, args.out.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_an_array_of_figures_with_command_and_machine() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let out = dir.path().join("results/summary.json");
        let runs = FigureRuns { ours: vec![1.0], baseline: vec![2.0], stolen: 0.5 };
        let figure = Figure::new("x", "op/s", "y", (GoalDirection::Higher, Some(0.6)), &runs);
        write_summary(&out, &[figure], &Machine::from_dir(dir.path())).expect("writable");
        let text = std::fs::read_to_string(&out).expect("it was written");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let first = &json.as_array().expect("an array")[0];
        assert_eq!(first["ratio"], 0.5);
        assert_eq!(first["stolen"], 0.5);
        assert_eq!(first["met"], false);
        assert!(first["command"].as_str().is_some_and(|c| c.starts_with("tatami")));
        assert!(first["machine"]["kernel"].is_string());
    }
}
