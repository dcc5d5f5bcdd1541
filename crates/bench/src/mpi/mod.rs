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
mod session;
mod sweeps;

use crate::error::{BenchError, path_error};
use crate::figure::Figure;
use crate::machine::Machine;
use crate::progress::print_progress;
use crate::summary::{check_summary_path, render_summary, write_summary};
use crate::volume::BenchVolume;
use crate::worker_group::Launcher;
use comparison::ComparisonLimits;
use launch::{MpiRunner, find_beside};
use place::MpiPlace;
use session::{MpiPlaces, MpiSession};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tatami_bench_args::{MpiArgs, MpiLibrary, MpiPart};

/// Nodes of the volume.
const NODES: u16 = 4;

const PARTS: [MpiPart; 7] = [
    MpiPart::Ior,
    MpiPart::Hpio,
    MpiPart::Btio,
    MpiPart::Reread,
    MpiPart::Calls,
    MpiPart::Places,
    MpiPart::Plots,
];

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
    check_summary_path(&args.out)?;
    std::fs::create_dir_all(&args.work).map_err(path_error("creating", &args.work))?;
    let work = args.work.canonicalize().map_err(path_error("finding", &args.work))?;
    let machine = Machine::from_dir(&work);
    print_progress(&machine.summary_line());
    let taken = take_figures(args, &runner, &mpis, &work);
    let removed = std::fs::remove_dir_all(&work).map_err(path_error("removing", &work));
    let (figures, plots) = taken?;
    removed?;
    write_summary(&args.out, &figures, &machine)?;
    write_plots(&args.out, &plots)?;
    let text = match args.json {
        true => std::fs::read_to_string(&args.out).map_err(path_error("reading", &args.out))?,
        false => render_summary(&args.out, &figures),
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::Output)
}

fn find_runner(args: &MpiArgs) -> Result<MpiRunner, BenchError> {
    let launcher = Launcher::this_program()?;
    let this = launcher.program.clone();
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
        tatami: launcher.tatami_command(args.program.as_deref()),
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
    for dir in &args.places {
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
            figures.extend(take_part_figures(part, &session)?);
            if part == MpiPart::Plots {
                plots.extend(take_plots(&session)?);
            }
        }
    }
    for dir in &args.places {
        let made = dir.join("tatami-bench-mpi");
        std::fs::remove_dir_all(&made).map_err(path_error("removing", &made))?;
    }
    Ok((figures, plots))
}

fn take_part_figures(part: MpiPart, session: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    match part {
        MpiPart::Ior => parts::ior_figures(session),
        MpiPart::Hpio => parts::hpio_figures(session),
        MpiPart::Btio => parts::btio_figures(session),
        MpiPart::Reread => parts::reread_figures(session),
        MpiPart::Calls => calls::take_figures(session),
        MpiPart::Places => parts::place_figures(session),
        MpiPart::Plots => Ok(Vec::new()),
    }
}

fn take_plots(session: &MpiSession) -> Result<Vec<sweeps::NamedPlot>, BenchError> {
    let mut all = sweeps::plot_ranks(session)?;
    all.extend(sweeps::plot_regions(session)?);
    all.extend(sweeps::plot_btio(session)?);
    Ok(all)
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
    let layer = MpiPlace::layer_dir("layer", &create_empty_dir(work, "layer")?);
    let each = MpiPlace::plain_dir("file per process", &create_empty_dir(work, "each")?);
    Ok(MpiPlaces {
        others: Vec::new(),
        layer,
        disk: MpiPlace::plain_dir("plain file", &create_empty_dir(work, "disk")?),
        each: MpiPlace { per_process: true, ..each },
    })
}

/// Returns the places on a volume, with the layer, each process on its own node's mount.
fn create_volume_places(volume: &BenchVolume) -> Result<Vec<MpiPlace>, BenchError> {
    let mut places = Vec::new();
    for (name, folder, container) in
        [("tiled file of a volume", "tiled", false), ("container on a volume", "layer", true)]
    {
        let inside = volume.mount_path(0).join(folder);
        std::fs::create_dir_all(&inside).map_err(path_error("creating", &inside))?;
        places.push(MpiPlace {
            layer: true,
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
        plot.draw(&path)?;
        print_progress(&format!("plot: {}", path.display()));
    }
    Ok(())
}
