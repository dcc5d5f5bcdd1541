//! Metadata through the client library: the number of requests for an operation, and its rate
//! compared with the null server's. The null server runs in turn with the same number of processes,
//! kind of socket and size of messages.

use super::SuiteContext;
use super::figure::{Figure, FigureRuns, GoalDirection};
use super::pairs::PairedRuns;
use super::servers::SERVER_GOAL_US;
use crate::clock::process_cpu_ns;
use crate::error::BenchError;
use crate::mdtest::{MdtestOp, MdtestSite, WorkloadPlace};
use crate::null_server::WireDepth;
use crate::volume_access::VolumeAccess;
use crate::wire::{NullServerPhase, NullServerRun};
use crate::worker::WorkerTask;
use crate::worker_group::WorkerGroup;

const GOAL: f64 = 0.6;

/// The operations: mdtest's name, and the name of the null server's messages.
const OPERATIONS: [(MdtestOp, &str); 3] = [
    (MdtestOp::FileCreate, "create"),
    (MdtestOp::FileStat, "stat"),
    (MdtestOp::FileRemove, "unlink"),
];

/// The result of one run.
#[derive(Clone, Copy, Debug)]
struct LibraryCost {
    /// Requests per second, all processes together.
    rate: f64,
    /// CPU time of both sides for one request, in microseconds.
    cpu_us: f64,
    /// CPU time of the server alone.
    server_us: f64,
}

impl LibraryCost {
    fn from_phase(echoed: &NullServerPhase) -> LibraryCost {
        let (all, server_us) = (&echoed.all, echoed.server_us_per_op());
        LibraryCost { rate: all.ops_per_sec(), cpu_us: all.cpu_us_per_op(), server_us }
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for procs in [1, 4] {
        let names =
            OPERATIONS.iter().map(|(_, name)| LibraryFigureNames::from_operation(name, procs));
        let mut names = names.flat_map(LibraryFigureNames::into_names);
        if names.any(|name| bench.wants_figure(&name)) {
            figures.extend(measure_with_procs(bench, procs)?);
        }
    }
    Ok(figures)
}

/// The names of the figures of one operation.
struct LibraryFigureNames {
    rate: String,
    cpu: String,
    /// Counted once: the number of requests does not depend on the number of processes.
    requests: Option<String>,
    /// Names for the server's CPU time of a create that comes with others, as on a busy server:
    /// against the limit, and against the null server.
    server: Option<[String; 2]>,
}

impl LibraryFigureNames {
    fn from_operation(operation: &str, procs: usize) -> LibraryFigureNames {
        let with = if procs == 1 { "1 process".into() } else { format!("{procs} processes") };
        LibraryFigureNames {
            rate: format!("library {operation}, {with}"),
            cpu: format!("library {operation}, {with}, CPU"),
            requests: (procs == 1).then(|| format!("library {operation}, requests")),
            server: (procs > 1 && operation == "create").then(|| {
                let name = format!("library {operation}, {with}, server's CPU");
                [name.clone(), format!("{name}, floor")]
            }),
        }
    }

    fn into_names(self) -> impl Iterator<Item = String> {
        let counted = self.requests.into_iter().chain(self.server.into_iter().flatten());
        [self.rate, self.cpu].into_iter().chain(counted)
    }
}

fn measure_with_procs(bench: &SuiteContext, procs: usize) -> Result<Vec<Figure>, BenchError> {
    let items = bench.items_per_run() / procs as u64;
    let reach = VolumeAccess::from(&bench.volume.client_options()?);
    let place = WorkloadPlace::Library { reach, dir: "/".into() };
    let site = MdtestSite::create(&place, procs, false)?;
    let tasks =
        site.process_parts(procs, items, false, 0).into_iter().map(WorkerTask::Mdtest).collect();
    let mut library = WorkerGroup::start(&bench.launcher, tasks)?;
    let socket = bench.work.join("echo");
    let mut echo =
        NullServerRun::start(&bench.launcher, procs, items, WireDepth::Messages, Some(&socket))?;
    let daemons = bench.volume.daemon_pids()?;
    let mut costs: [PairedRuns<LibraryCost>; 3] = Default::default();
    let mut requests: [Vec<f64>; 3] = Default::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        for (i, (op, message)) in OPERATIONS.into_iter().enumerate() {
            // Only the library's side sends requests to the volume, so the difference over both
            // runs is its own.
            let before = bench.volume.node_status(0)?.meta_requests;
            costs[i].run_pair(
                || {
                    let before: u64 = daemons.iter().filter_map(|p| process_cpu_ns(*p)).sum();
                    let mut all = library.run_phase(op.name())?;
                    let after: u64 = daemons.iter().filter_map(|p| process_cpu_ns(*p)).sum();
                    let server_ns = after.saturating_sub(before);
                    all.cpu_ns += server_ns;
                    Ok(LibraryCost::from_phase(&NullServerPhase { all, server_ns }))
                },
                || Ok(LibraryCost::from_phase(&echo.run_phase(message)?)),
            )?;
            let asked = bench.volume.node_status(0)?.meta_requests - before;
            requests[i].push(asked as f64 / (items * procs as u64) as f64);
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
        let names = LibraryFigureNames::from_operation(operation, procs);
        let runs = costs[i].figure_runs(|c| c.rate);
        let goal = (GoalDirection::Higher, Some(GOAL));
        let figure = Figure::new(names.rate, "requests/s", "wire echo", goal, &runs);
        bench.add_figure(&mut figures, figure);
        let (cpu, no_goal) = (costs[i].figure_runs(|c| c.cpu_us), (GoalDirection::Lower, None));
        let figure = Figure::new(names.cpu, "µs/request", "wire echo", no_goal, &cpu);
        bench.add_figure(&mut figures, figure);
        if let Some([name, floor_name]) = names.server {
            let against_echo = costs[i].figure_runs(|c| c.server_us);
            let floor = vec![SERVER_GOAL_US; against_echo.ours.len()];
            let held = FigureRuns {
                ours: against_echo.ours.clone(),
                baseline: floor,
                stolen: against_echo.stolen,
            };
            let goal = (GoalDirection::Lower, Some(1.0));
            let figure = Figure::new(name, "µs/request", "what it may take", goal, &held);
            bench.add_figure(&mut figures, figure);
            let figure = Figure::new(floor_name, "µs/request", "wire echo", no_goal, &against_echo);
            bench.add_figure(&mut figures, figure);
        }
        if let Some(name) = names.requests {
            let one = vec![1.0; requests[i].len()];
            let counts =
                FigureRuns { ours: requests[i].clone(), baseline: one, stolen: runs.stolen };
            let goal = (GoalDirection::Lower, Some(1.0));
            bench.add_figure(&mut figures, Figure::new(name, "requests/op", "one", goal, &counts));
        }
    }
    Ok(figures)
}
