//! Names through the client library, many in one request, against the same one by one. The figures
//! are the CPU time of both sides and the requests for an entry, on one server and in turn.

use super::SuiteContext;
use super::figure::{Figure, FigureRuns, GoalDirection};
use super::pairs::PairedRuns;
use crate::clock::process_cpu_ns;
use crate::error::BenchError;
use crate::mdtest::{MdtestOp, MdtestPart, MdtestSite, WorkloadPlace};
use crate::volume_access::VolumeAccess;
use crate::worker::WorkerTask;
use crate::worker_group::WorkerGroup;

/// Operations in one request.
const BULK: usize = 256;

const OPERATIONS: [(MdtestOp, &str); 3] = [
    (MdtestOp::FileCreate, "create"),
    (MdtestOp::FileStat, "stat"),
    (MdtestOp::FileRemove, "unlink"),
];

/// The result of one run, for each entry.
#[derive(Clone, Copy, Debug)]
struct BulkCost {
    /// Entries per second.
    rate: f64,
    /// CPU time of both sides, in microseconds.
    cpu_us: f64,
    requests: f64,
}

/// One side: a process with a directory of its own.
struct BulkSide {
    site: MdtestSite,
    gang: WorkerGroup,
}

impl BulkSide {
    fn start(bench: &SuiteContext, items: u64, bulk: usize) -> Result<BulkSide, BenchError> {
        let reach = VolumeAccess::from(&bench.volume.client_options()?);
        let dir = format!("/bulk.{bulk}");
        let tree = tatami_client::tree::VolumeTree::new(
            std::sync::Arc::new(reach.connect_client()?),
            crate::mdtest::own_cred(),
        );
        tree.mkdir(dir.as_bytes(), 0o755, 0)
            .map_err(crate::error::volume_error("creating", dir.as_bytes()))?;
        let site = MdtestSite::create(&WorkloadPlace::Library { reach, dir }, 1, false)?;
        let parts = site.process_parts(1, items, false, 0);
        let parts = parts.into_iter().map(|part| WorkerTask::Mdtest(MdtestPart { bulk, ..part }));
        Ok(BulkSide { gang: WorkerGroup::start(&bench.launcher, parts.collect())?, site })
    }

    fn run_phase(
        &mut self,
        bench: &SuiteContext,
        daemons: &[u32],
        op: MdtestOp,
    ) -> Result<BulkCost, BenchError> {
        let cpu = || daemons.iter().filter_map(|pid| process_cpu_ns(*pid)).sum::<u64>();
        let asked = || Ok::<_, BenchError>(bench.volume.node_status(0)?.meta_requests);
        self.gang.prepare_phase(op.name())?;
        let before = (cpu(), asked()?);
        self.gang.start_phase()?;
        let mut outcome =
            crate::worker_group::PhaseOutcome::from_reports(&self.gang.collect_reports()?);
        outcome.cpu_ns += cpu().saturating_sub(before.0);
        let requests = (asked()? - before.1) as f64 / outcome.ops as f64;
        Ok(BulkCost { rate: outcome.ops_per_sec(), cpu_us: outcome.cpu_us_per_op(), requests })
    }
}

/// Returns the names of the figures of rate, CPU time and requests of an operation.
fn figure_names(operation: &str) -> [String; 3] {
    ["", ", CPU", ", requests"].map(|what| format!("library {operation}, {BULK} at a time{what}"))
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut names = OPERATIONS.iter().flat_map(|(_, name)| figure_names(name));
    if !names.any(|name| bench.wants_figure(&name)) {
        return Ok(Vec::new());
    }
    let daemons = bench.volume.daemon_pids()?;
    let (mut many, mut single) = (
        BulkSide::start(bench, bench.items_per_run(), BULK)?,
        BulkSide::start(bench, bench.items_per_run(), 1)?,
    );
    let mut costs: [PairedRuns<BulkCost>; OPERATIONS.len()] = Default::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        for (costs, (op, _)) in costs.iter_mut().zip(OPERATIONS) {
            costs.run_pair(
                || many.run_phase(bench, &daemons, op),
                || single.run_phase(bench, &daemons, op),
            )?;
            if round == 0 {
                costs.discard_runs();
            }
        }
    }
    for side in [many, single] {
        drop(side.gang);
        side.site.remove()?;
    }
    let mut figures = Vec::new();
    for (costs, (_, operation)) in costs.iter().zip(OPERATIONS) {
        let [rate, cpu, requests] = figure_names(operation);
        let against = "one by one";
        let mut keep = |name, unit, better, runs: &FigureRuns| {
            bench.add_figure(&mut figures, Figure::new(name, unit, against, (better, None), runs));
        };
        keep(rate, "entries/s", GoalDirection::Higher, &costs.figure_runs(|c| c.rate));
        keep(cpu, "µs/entry", GoalDirection::Lower, &costs.figure_runs(|c| c.cpu_us));
        keep(requests, "requests/entry", GoalDirection::Lower, &costs.figure_runs(|c| c.requests));
    }
    Ok(figures)
}
