//! What TLS costs between nodes: the same work on two volumes that run side by side, one with
//! encryption and one without. A file of node 1 through the mount of node 0, and new names on node
//! 0 by programs that reach it over TCP.

use super::context::{NAMES, NODES, SuiteContext};
use super::pairs::run_alternating;
use super::remote::{drop_pages, run_through_daemon, start_file};
use crate::error::BenchError;
use crate::figure::{Figure, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::volume::BenchVolume;
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use std::cell::RefCell;

const FILE: &str = "encryption";
/// Programs that make names at the same time.
const PROCS: usize = 2;
const AGAINST: &str = "without encryption";
const GOAL: (GoalDirection, Option<f64>) = (GoalDirection::Higher, None);

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let dir = bench.work.join("encrypted");
    let volume = BenchVolume::start_encrypted(&bench.program, &dir, NODES, NAMES)?;
    let mut figures = Vec::new();
    let phases = [("write", "encryption remote write 1m"), ("read", "encryption remote read 1m")];
    if phases.iter().any(|(_, name)| bench.wants_figure(name)) {
        let encrypted = RefCell::new(start_file(bench, &volume, FILE)?);
        let plain = RefCell::new(start_file(bench, &bench.volume, FILE)?);
        for (phase, name) in phases.into_iter().filter(|(_, name)| bench.wants_figure(name)) {
            let pairs = run_alternating(
                bench.runs,
                || transfer_file(&volume, &encrypted, phase),
                || transfer_file(&bench.volume, &plain, phase),
            )?;
            let speed = pairs.figure_runs(PhaseOutcome::mib_per_sec);
            bench.add_figure(&mut figures, Figure::new(name, "MiB/s", AGAINST, GOAL, &speed));
        }
    }
    let name = "encryption create over TCP";
    if bench.wants_figure(name) {
        let pairs = run_alternating(
            bench.runs,
            || create_names(bench, &volume),
            || create_names(bench, &bench.volume),
        )?;
        let rate = pairs.figure_runs(|rate| *rate);
        bench.add_figure(&mut figures, Figure::new(name, "op/s", AGAINST, GOAL, &rate));
    }
    Ok(figures)
}

/// Writes or reads the file of a volume as a whole.
fn transfer_file(
    volume: &BenchVolume,
    group: &RefCell<WorkerGroup>,
    phase: &str,
) -> Result<PhaseOutcome, BenchError> {
    if phase == "read" {
        drop_pages(&volume.mount_path(0).join(FILE))?;
    }
    run_through_daemon(volume, phase, || group.borrow_mut().run_phase(phase))
}

/// Makes files in a new directory, and returns how many a second.
fn create_names(bench: &SuiteContext, volume: &BenchVolume) -> Result<f64, BenchError> {
    let place = WorkloadPlace::Library { reach: volume.tcp_access(), dir: "/".into() };
    let site = MdtestSite::create(&place, PROCS, true)?;
    let parts = site.process_parts(PROCS, bench.items_per_run(), true, 0);
    let tasks = parts.into_iter().map(WorkerTask::Mdtest).collect();
    let mut group = WorkerGroup::start(&bench.launcher, tasks)?;
    let rate = group.run_phase(MdtestOp::FileCreate.name())?.ops_per_sec();
    drop(group);
    site.remove()?;
    Ok(rate)
}
