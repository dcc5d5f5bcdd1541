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
use std::path::Path;

const GOAL: f64 = 3.0;
/// The path at which the preloaded process sees the volume. Nothing is there.
const AT: &str = "/tatami-bench-preload";

/// Returns how to start a process of a workload with the volume in it.
fn preload_launcher(bench: &SuiteContext) -> Launcher {
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

/// The two directories of a round, and a process of each side in each of them.
struct PreloadPlaces {
    sites: Vec<MdtestSite>,
    mount: Vec<WorkerGroup>,
    preload: Vec<WorkerGroup>,
}

impl PreloadPlaces {
    fn create(bench: &SuiteContext, name: &str) -> Result<PreloadPlaces, BenchError> {
        let own = preload_launcher(bench);
        let mut places = PreloadPlaces { sites: vec![], mount: vec![], preload: vec![] };
        for side in ["mount", "preload"] {
            let name = format!("preload-{name}-{side}");
            let dir = bench.volume.mount_path(0).join(&name);
            std::fs::create_dir(&dir).map_err(path_error("creating", &dir))?;
            let place = WorkloadPlace::Path { dir: dir.clone(), relative: false };
            let site = MdtestSite::create(&place, 1, false)?;
            places.mount.push(start_process(bench, &bench.launcher, &site, &dir)?);
            let at = Path::new(AT).join(&name);
            places.preload.push(start_process(bench, &own, &site, &at)?);
            places.sites.push(site);
        }
        Ok(places)
    }

    /// Runs an operation of each side in its own directory, or in that of the other side.
    fn run_pair(
        &mut self,
        op: MdtestOp,
        swaps: bool,
        costs: &mut PairedRuns<PhaseOutcome>,
    ) -> Result<(), BenchError> {
        let (of_mount, of_preload) = if swaps { (1, 0) } else { (0, 1) };
        let PreloadPlaces { mount, preload, .. } = self;
        costs.run_pair(
            || preload[of_preload].run_phase(op.name()),
            || mount[of_mount].run_phase(op.name()),
        )
    }

    fn remove(self) -> Result<(), BenchError> {
        drop((self.mount, self.preload));
        self.sites.iter().try_for_each(MdtestSite::remove)
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let [mut create, mut stat, mut unlink, mut unmeasured] =
        [(); 4].map(|()| PairedRuns::default());
    // The first round warms up.
    for round in 0..=bench.runs {
        let mut own = PreloadPlaces::create(bench, &format!("own.{round}"))?;
        own.run_pair(MdtestOp::FileCreate, false, &mut create)?;
        own.run_pair(MdtestOp::FileRemove, false, &mut unlink)?;
        own.remove()?;
        // A mount that has seen names must be asked before another client removes them, so the
        // directories of the stats are others.
        let mut seen = PreloadPlaces::create(bench, &format!("seen.{round}"))?;
        seen.run_pair(MdtestOp::FileCreate, false, &mut unmeasured)?;
        seen.run_pair(MdtestOp::FileStat, true, &mut stat)?;
        seen.remove()?;
        if round == 0 {
            [&mut create, &mut stat, &mut unlink].into_iter().for_each(PairedRuns::discard_runs);
        }
    }
    let mut figures = Vec::new();
    for (name, costs) in [("create", &create), ("stat", &stat), ("unlink", &unlink)] {
        let runs = costs.figure_runs(PhaseOutcome::ops_per_sec);
        let goal = (GoalDirection::Higher, Some(GOAL));
        let figure =
            Figure::new(format!("preload {name}, 1 process"), "ops/s", "mount", goal, &runs);
        bench.add_figure(&mut figures, figure);
    }
    Ok(figures)
}
