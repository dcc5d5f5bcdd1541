//! Metadata through the client library: the number of requests for an operation, and its rate
//! compared with the null server's. The null server runs in turn with the same kind of socket and
//! size of messages.

use super::context::SuiteContext;
use super::pairs::PairedRuns;
use crate::error::BenchError;
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::null_server::WireDepth;
use crate::wire::NullServerRun;
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};

const GOAL: f64 = 0.6;

/// The operations: mdtest's name, and the name of the null server's messages.
const OPERATIONS: [(MdtestOp, &str); 3] = [
    (MdtestOp::FileCreate, "create"),
    (MdtestOp::FileStat, "stat"),
    (MdtestOp::FileRemove, "unlink"),
];

/// Returns the names of the figures of one operation: rate and requests.
fn figure_names(operation: &str) -> [String; 2] {
    ["1 process", "requests"].map(|what| format!("library {operation}, {what}"))
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let items = bench.items_per_run();
    let place = WorkloadPlace::Library { reach: bench.volume.access(), dir: "/".into() };
    let site = MdtestSite::create(&place, 1, false)?;
    let tasks = site.process_parts(1, items, false, 0).into_iter().map(WorkerTask::Mdtest);
    let mut library = WorkerGroup::start(&bench.launcher, tasks.collect())?;
    let socket = bench.work.join("echo");
    let mut echo =
        NullServerRun::start(&bench.launcher, 1, items, WireDepth::Messages, Some(&socket))?;
    let mut costs: [PairedRuns<PhaseOutcome>; OPERATIONS.len()] = Default::default();
    let mut requests: [Vec<f64>; OPERATIONS.len()] = Default::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        for (i, (op, message)) in OPERATIONS.into_iter().enumerate() {
            // Only the library's side sends requests to the volume, so the difference over both
            // runs is its own.
            let before = bench.volume.node_status(0)?.meta_requests;
            costs[i].run_pair(|| library.run_phase(op.name()), || echo.run_phase(message))?;
            let asked = bench.volume.node_status(0)?.meta_requests - before;
            requests[i].push(asked as f64 / items as f64);
            if round == 0 {
                costs[i].discard_runs();
                requests[i].clear();
            }
        }
    }
    drop(library);
    site.remove()?;
    let mut figures = Vec::new();
    for (i, (_, operation)) in OPERATIONS.into_iter().enumerate() {
        let [rate, count] = figure_names(operation);
        let runs = costs[i].figure_runs(PhaseOutcome::ops_per_sec);
        let goal = (GoalDirection::Higher, Some(GOAL));
        let figure = Figure::new(rate, "requests/s", "wire echo", goal, &runs);
        bench.add_figure(&mut figures, figure);
        let one = vec![1.0; requests[i].len()];
        let counts = FigureRuns { ours: requests[i].clone(), baseline: one, stolen: runs.stolen };
        let goal = (GoalDirection::Lower, Some(1.0));
        bench.add_figure(&mut figures, Figure::new(count, "requests/op", "one", goal, &counts));
    }
    Ok(figures)
}
