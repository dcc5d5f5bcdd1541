//! The volume, the places and the extent of a run of the suite: the state that all parts need.

use crate::figure::Figure;
use crate::progress::print_progress;
use crate::table::format_percent;
use crate::volume::BenchVolume;
use crate::worker_group::Launcher;
use std::path::PathBuf;
use tatami_bench_args::Prefix;
use tatami_plot::format_number;

/// Nodes of most volumes: one is local, one is remote.
pub const NODES: u16 = 2;
/// The nodes of these volumes that have names: one, and programs reach it by its socket. The parts
/// `servers`, `mounts`, `commands`, `peers` and `scaling` measure the cost of more.
pub const NAMES: &str = "0";

/// The state that all parts need.
pub struct SuiteContext {
    /// Starts the processes of workloads.
    pub launcher: Launcher,
    /// The `tatami` command that starts volumes.
    pub program: PathBuf,
    /// The volume of the part: with a local and a remote node, or with several mounts.
    pub volume: BenchVolume,
    /// For files on the plain disk.
    pub plain: PathBuf,
    /// For sockets, mounts and other things that are not measured.
    pub work: PathBuf,
    /// Number of runs of each side.
    pub runs: usize,
    /// Entries of the large directory.
    pub entries: u64,
    /// Whether little of everything is measured.
    pub quick: bool,
    /// Prefixes of the names of the wanted figures; empty for all.
    pub only: Vec<Prefix>,
}

impl SuiteContext {
    /// Returns whether a figure of this name is to be taken.
    pub fn wants_figure(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|prefix| prefix.matches_figure(name))
    }

    /// Returns bytes of a test file: small enough to stay in the page cache.
    pub fn file_bytes(&self) -> u64 {
        if self.quick { 8 << 20 } else { 512 << 20 }
    }

    /// Returns the number of metadata operations of one run.
    pub fn items_per_run(&self) -> u64 {
        if self.quick { 400 } else { 8000 }
    }

    /// Returns how often an operation runs for the figure of its slowest times.
    pub fn latency_repetitions(&self) -> usize {
        if self.quick { 5 } else { 100 }
    }

    /// Returns the number of files of a command that works on a tree.
    pub fn command_files(&self) -> u64 {
        if self.quick { 300 } else { 20_000 }
    }

    /// Returns the number of entries of a large directory.
    pub fn large_dir_entries(&self) -> u64 {
        if self.quick { 2000 } else { self.entries }
    }

    /// Returns whether a figure or its baseline is wanted: the two are taken together.
    pub fn wants_with_baseline(&self, name: &str) -> bool {
        self.wants_figure(name) || self.wants_figure(&baseline_name(name))
    }

    /// Reports a finished figure and adds it, if it is wanted.
    pub fn add_figure(&self, figures: &mut Vec<Figure>, figure: Figure) {
        if !self.wants_figure(&figure.name) {
            return;
        }
        if !figure.is_measured() {
            print_progress(&format!("  {}: not measured", figure.name));
            figures.push(figure);
            return;
        }
        print_progress(&format!(
            "  {}: {} {} against {}, ratio {:.2}, stolen {}",
            figure.name,
            format_number(figure.value),
            figure.unit,
            format_number(figure.baseline),
            figure.ratio,
            format_percent(figure.stolen)
        ));
        figures.push(figure);
    }

    /// Does the same as [`SuiteContext::add_figure`], and reports the note, too.
    pub fn add_figure_with_note(&self, figures: &mut Vec<Figure>, figure: Figure) {
        let note = format!("    {}", figure.note);
        let wanted = self.wants_figure(&figure.name);
        self.add_figure(figures, figure);
        if wanted {
            print_progress(&note);
        }
    }
}

/// Returns the name of a figure's baseline: the cost of the kernel or the disk without Tatami.
pub fn baseline_name(figure: &str) -> String {
    format!("{figure}, floor")
}
