//! Names through the preload library (`tatami run`) against the same calls through the mount, in
//! the same minutes.
//!
//! One process of each side works in a directory of its own, by whole paths. For the stats the two
//! change places: the kernel has cached what was made through the mount, and a program that starts
//! on files of others finds nothing cached.

use super::context::SuiteContext;
use super::pairs::PairedRuns;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::worker::WorkerTask;
use crate::worker_group::{Launcher, PhaseOutcome, WorkerGroup};
use std::path::{Path, PathBuf};

const GOAL: f64 = 3.0;
/// The path at which the preloaded process sees the volume. Nothing is there.
const AT: &str = "/tatami-bench-preload";

/// The operations, and whether the sides change places.
const OPERATIONS: [(MdtestOp, &str, bool); 3] = [
    (MdtestOp::FileCreate, "create", false),
    (MdtestOp::FileStat, "stat", true),
    (MdtestOp::FileRemove, "unlink", false),
];

/// Returns how to start a process of a workload with the volume in it.
fn preloaded(bench: &SuiteContext) -> Launcher {
    let mut args: Vec<String> =
        ["run", "--node", "0", "--at", AT, "--dir"].map(String::from).into();
    args.push(bench.volume.dir().display().to_string());
    args.extend(["--".to_owned(), bench.launcher.program.display().to_string()]);
    args.extend(bench.launcher.args.iter().cloned());
    Launcher { program: bench.program.clone(), args }
}

/// Starts a process of a side in the directory of a site.
fn start_process(
    bench: &SuiteContext,
    launcher: &Launcher,
    site: &MdtestSite,
    base: &Path,
) -> Result<WorkerGroup, BenchError> {
    let parts = site.process_parts(1, bench.items_per_run(), false, 0).into_iter();
    let tasks = parts.map(|mut part| {
        part.place = part.place.through_mount(base);
        WorkerTask::Mdtest(part)
    });
    WorkerGroup::start(launcher, tasks.collect())
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let names = ["preload-a", "preload-b"];
    let mounted: Vec<PathBuf> =
        names.iter().map(|name| bench.volume.mount_path(0).join(name)).collect();
    let sites = mounted
        .iter()
        .map(|dir| {
            std::fs::create_dir(dir).map_err(path_error("creating", dir))?;
            let place = WorkloadPlace::Path { dir: dir.clone(), relative: false };
            MdtestSite::create(&place, 1, false)
        })
        .collect::<Result<Vec<_>, BenchError>>()?;
    let own = preloaded(bench);
    let at = |name: &str| Path::new(AT).join(name);
    let mut mount = Vec::new();
    let mut preload = Vec::new();
    for ((site, dir), name) in sites.iter().zip(&mounted).zip(names) {
        mount.push(start_process(bench, &bench.launcher, site, dir)?);
        preload.push(start_process(bench, &own, site, &at(name))?);
    }
    let mut costs: [PairedRuns<PhaseOutcome>; OPERATIONS.len()] = Default::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        for (i, (op, _, swaps)) in OPERATIONS.into_iter().enumerate() {
            let (of_mount, of_preload) = if swaps { (1, 0) } else { (0, 1) };
            costs[i].run_pair(
                || preload[of_preload].run_phase(op.name()),
                || mount[of_mount].run_phase(op.name()),
            )?;
            if round == 0 {
                costs[i].discard_runs();
            }
        }
    }
    drop((mount, preload));
    sites.iter().try_for_each(MdtestSite::remove)?;
    let mut figures = Vec::new();
    for (i, (_, name, _)) in OPERATIONS.into_iter().enumerate() {
        let runs = costs[i].figure_runs(PhaseOutcome::ops_per_sec);
        let goal = (GoalDirection::Higher, Some(GOAL));
        let figure =
            Figure::new(format!("preload {name}, 1 process"), "ops/s", "mount", goal, &runs);
        bench.add_figure(&mut figures, figure);
    }
    Ok(figures)
}
