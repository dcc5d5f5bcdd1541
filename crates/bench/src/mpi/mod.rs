//! `tatami bench mpi`: shared files written by MPI programs, with the layer and without it. The
//! baselines are the MPI library on one plain file and on a file per process, on the same disk.
//!
//! The programs are those of `mpi-bench` in the sources: the patterns of IOR, HPIO and BT-IO. They
//! use nothing but MPI, and verify all bytes that they read.

mod calls;
mod comparison;
mod launch;
mod parts;
mod place;
pub(crate) mod svg;
mod sweeps;

pub use launch::MpiLibrary;

use crate::error::{BenchError, path_error};
use crate::print_progress;
use crate::suite::volume::BenchVolume;
use crate::suite::{self, Figure, Machine, figure};
use crate::worker_group::Launcher;
use comparison::{ComparedSide, Comparison, ComparisonLimits};
use launch::{MpiRunner, find_beside};
use place::MpiPlace;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Nodes of the volume.
const NODES: u16 = 4;

/// Options of `tatami bench mpi`.
#[derive(Clone, Debug, clap::Args)]
pub struct MpiArgs {
    /// Further directories to measure, without the layer, in the part "places"
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub dir: Vec<PathBuf>,
    /// Directory for files, containers and the volume, on the disk to be measured
    #[arg(long, default_value = "bench-results/work-mpi")]
    pub work: PathBuf,
    /// Where the summary goes, as JSON; plots go beside it
    #[arg(long, default_value = "bench-results/summary-mpi.json")]
    pub out: PathBuf,
    /// MPI libraries (default: all that there are programs for)
    #[arg(long, value_delimiter = ',')]
    pub mpi: Vec<MpiLibrary>,
    /// Only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<MpiPart>,
    /// How often each figure is taken, on all sides
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// No further runs of a figure are begun after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub budget: u64,
    /// Processes, where the workload does not need another number
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Little of everything: to see that it works, not to measure
    #[arg(long)]
    pub quick: bool,
    /// Print the table as Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
    /// The folder with the programs, a folder for each MPI
    #[arg(long)]
    pub programs: Option<PathBuf>,
    /// The layer's library
    #[arg(long)]
    pub layer: Option<PathBuf>,
    /// The layer's side without the layer: to try this command where there is none
    #[arg(long, hide = true)]
    pub without_layer: bool,
    /// The tatami command that starts the volume, if it is not this one
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// A part that can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MpiPart {
    /// IOR's pattern, strided
    Ior,
    /// HPIO's patterns
    Hpio,
    /// BT-IO
    Btio,
    /// Reads with other processes and views than the writers'
    Reread,
    /// System calls and CPU time
    Calls,
    /// The same in all places, a volume among them
    Places,
    /// The plots
    Plots,
}

const PARTS: [MpiPart; 7] = [
    MpiPart::Ior,
    MpiPart::Hpio,
    MpiPart::Btio,
    MpiPart::Reread,
    MpiPart::Calls,
    MpiPart::Places,
    MpiPart::Plots,
];

/// The places of the figures' sides.
#[derive(Clone, Debug)]
pub(crate) struct MpiPlaces {
    /// With the layer, in a container on the local disk.
    layer: MpiPlace,
    /// One plain file on the local disk.
    disk: MpiPlace,
    /// A plain file for each process there.
    each: MpiPlace,
    /// The further places of the table of places.
    others: Vec<MpiPlace>,
}

/// The state that all parts need.
pub(crate) struct MpiSession {
    runner: MpiRunner,
    mpi: MpiLibrary,
    places: MpiPlaces,
    /// For files that are not measured.
    scratch: PathBuf,
    limits: ComparisonLimits,
    ranks: u32,
    quick: bool,
}

impl MpiSession {
    fn compare_sides(&self, sides: &[ComparedSide]) -> Result<Comparison, BenchError> {
        comparison::run_comparison(&self.runner, self.mpi, sides, self.limits)
    }
}

/// Takes the figures, draws the plots, and writes the report to `out`.
///
/// # Errors
/// A part that could not be run, wrong bytes, and [`BenchError::Output`]. A figure that misses its
/// goal is no error.
pub fn run(args: &MpiArgs, out: &mut impl Write) -> Result<(), BenchError> {
    let runner = find_runner(args)?;
    let mpis = match args.mpi.is_empty() {
        true => runner.available_mpis(),
        false => args.mpi.clone(),
    };
    if mpis.is_empty() {
        return Err(BenchError::Usage(format!(
            "there are no programs in {}: `make bench-mpi` builds them",
            runner.programs.display()
        )));
    }
    std::fs::create_dir_all(&args.work).map_err(path_error("creating", &args.work))?;
    let work = args.work.canonicalize().map_err(path_error("finding", &args.work))?;
    let machine = Machine::from_dir(&work);
    print_progress(&machine.summary_line());
    let taken = take_figures(args, &runner, &mpis, &work);
    let removed = std::fs::remove_dir_all(&work).map_err(path_error("removing", &work));
    let (figures, plots) = taken?;
    removed?;
    suite::write_summary(&args.out, &figures, &machine)?;
    write_plots(&args.out, &plots)?;
    let text = match args.json {
        true => std::fs::read_to_string(&args.out).map_err(path_error("reading", &args.out))?,
        false => render_report(args, &figures),
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::Output)
}

fn find_runner(args: &MpiArgs) -> Result<MpiRunner, BenchError> {
    let this = Launcher::this_program()?.program;
    let programs = args.programs.clone();
    let programs =
        programs.or_else(|| find_beside(&this, &["../mpi-bench", "../lib/tatami/mpi-bench"]));
    let programs = programs.unwrap_or_else(|| "target/mpi-bench".into());
    if !programs.is_dir() {
        return Err(BenchError::Usage(format!(
            "the workloads are not in {}: with an MPI library's development package (libopenmpi-dev or \
             libmpich-dev), `make install` or `make bench-mpi` in Tatami's sources builds them; tell where they \
             are with --programs",
            programs.display()
        )));
    }
    let names =
        ["mpi/libtatami_mpi.so", "../lib/tatami/libtatami_mpi.so", "../mpi/libtatami_mpi.so"];
    let layer = args.layer.clone().or_else(|| find_beside(&this, &names));
    if layer.is_none() && !args.without_layer {
        return Err(BenchError::Usage(
            "libtatami_mpi.so is not beside this program: tell where it is with --layer".into(),
        ));
    }
    let absolute = |path: PathBuf| path.canonicalize().map_err(path_error("finding", &path));
    Ok(MpiRunner {
        programs: absolute(programs)?,
        layer: layer.filter(|_| !args.without_layer).map(absolute).transpose()?,
        tatami: args.program.clone().unwrap_or(this),
    })
}

fn take_figures(
    args: &MpiArgs,
    runner: &MpiRunner,
    mpis: &[MpiLibrary],
    work: &Path,
) -> Result<(Vec<Figure>, Vec<sweeps::NamedPlot>), BenchError> {
    let wanted = |part: MpiPart| args.only.is_empty() || args.only.contains(&part);
    let mut places = create_local_places(work)?;
    let volume = match wanted(MpiPart::Places) {
        true => Some(BenchVolume::start(&runner.tatami, &work.join("vol"), NODES, "all")?),
        false => None,
    };
    if let Some(volume) = &volume {
        places.others.extend(create_volume_places(volume)?);
    }
    for dir in &args.dir {
        places.others.push(MpiPlace::plain_dir(
            &dir.to_string_lossy(),
            &create_empty_dir(dir, "tatami-bench-mpi")?,
        ));
    }
    let patience =
        ComparisonLimits { runs: args.runs.into(), budget: Duration::from_secs(args.budget) };
    let (mut figures, mut plots) = (Vec::new(), Vec::new());
    for mpi in mpis {
        let session = MpiSession {
            runner: runner.clone(),
            mpi: *mpi,
            places: places.clone(),
            scratch: create_empty_dir(work, "scratch")?,
            limits: patience,
            ranks: args.ranks,
            quick: args.quick,
        };
        for part in PARTS.into_iter().filter(|part| wanted(*part)) {
            print_progress(&format!("{} {part:?}:", mpi.name()));
            figures.extend(part.take_figures(&session)?);
            plots.extend(part.take_plots(&session)?);
        }
    }
    for dir in &args.dir {
        let made = dir.join("tatami-bench-mpi");
        std::fs::remove_dir_all(&made).map_err(path_error("removing", &made))?;
    }
    Ok((figures, plots))
}

impl MpiPart {
    fn take_figures(self, session: &MpiSession) -> Result<Vec<Figure>, BenchError> {
        match self {
            MpiPart::Ior => parts::ior_figures(session),
            MpiPart::Hpio => parts::hpio_figures(session),
            MpiPart::Btio => parts::btio_figures(session),
            MpiPart::Reread => parts::reread_figures(session),
            MpiPart::Calls => calls::take_figures(session),
            MpiPart::Places => parts::place_figures(session),
            MpiPart::Plots => Ok(Vec::new()),
        }
    }

    fn take_plots(self, session: &MpiSession) -> Result<Vec<sweeps::NamedPlot>, BenchError> {
        if self != MpiPart::Plots {
            return Ok(Vec::new());
        }
        let mut all = sweeps::plot_ranks(session)?;
        all.extend(sweeps::plot_regions(session)?);
        all.extend(sweeps::plot_btio(session)?);
        Ok(all)
    }
}

/// Creates a new empty folder of this name.
fn create_empty_dir(dir: &Path, name: &str) -> Result<PathBuf, BenchError> {
    let path = dir.join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path).map_err(path_error("removing", &path))?;
    }
    std::fs::create_dir_all(&path).map_err(path_error("creating", &path))?;
    Ok(path)
}

fn create_local_places(work: &Path) -> Result<MpiPlaces, BenchError> {
    let layer =
        MpiPlace::layer_dir("layer, container on the disk", &create_empty_dir(work, "layer")?);
    let each = MpiPlace::plain_dir("file per process", &create_empty_dir(work, "each")?);
    Ok(MpiPlaces {
        others: vec![layer.clone()],
        layer,
        disk: MpiPlace::plain_dir("plain file", &create_empty_dir(work, "disk")?),
        each: MpiPlace { per_process: true, ..each },
    })
}

/// Returns the places on a volume, each process on its own node's mount, with the layer and
/// without.
fn create_volume_places(volume: &BenchVolume) -> Result<Vec<MpiPlace>, BenchError> {
    let mut places = Vec::new();
    for (name, folder, layer, container) in [
        ("layer, tiled file of a volume", "tiled", true, false),
        ("layer, container on a volume", "layer", true, true),
        ("volume without layer", "plain", false, false),
    ] {
        let inside = volume.mount_path(0).join(folder);
        std::fs::create_dir_all(&inside).map_err(path_error("creating", &inside))?;
        places.push(MpiPlace {
            layer,
            container,
            volume: Some(volume.dir().to_owned()),
            ..MpiPlace::plain_dir(name, &volume.dir().join("mnt").join(folder))
        });
    }
    Ok(places)
}

fn write_plots(summary: &Path, plots: &[sweeps::NamedPlot]) -> Result<(), BenchError> {
    for (name, plot) in plots {
        let path = summary.with_file_name(name).with_extension("svg");
        std::fs::write(&path, plot.to_svg()).map_err(path_error("writing", &path))?;
        print_progress(&format!("plot: {}", path.display()));
    }
    Ok(())
}

fn render_report(args: &MpiArgs, figures: &[Figure]) -> String {
    let table = figure::build_table(figures);
    let mut text = if args.markdown { table.render_markdown() } else { table.render() };
    text.push('\n');
    for f in figures {
        text += &format!("{}: against {}", f.name, f.against);
        text += &if f.note.is_empty() { "\n".into() } else { format!("; {}\n", f.note) };
    }
    let missed = figures.iter().filter(|f| f.met == Some(false)).count();
    let held = figures.iter().filter(|f| f.met.is_some()).count();
    text + &format!("{} of {held} goals met; written to {}\n", held - missed, args.out.display())
}
