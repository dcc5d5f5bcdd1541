//! Names through the client library, many in one request, against the same one by one. The figures
//! are the CPU time of both sides and the requests for an entry, on one server and in turn.

use super::Bench;
use super::figure::{Better, Figure, Runs};
use super::pairs::Pairs;
use crate::clock::cpu_ns_of;
use crate::error::BenchError;
use crate::gang::Gang;
use crate::mdtest::{MdtestPart, Op, Place, Site};
use crate::reach::Reach;
use crate::worker::Task;

/// Operations in one request.
const BULK: usize = 256;

const OPERATIONS: [(Op, &str); 3] =
    [(Op::FileCreate, "create"), (Op::FileStat, "stat"), (Op::FileRemove, "unlink")];

/// The result of one run, for each entry.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Entries per second.
    rate: f64,
    /// CPU time of both sides, in microseconds.
    cpu_us: f64,
    requests: f64,
}

/// One side: a process with a directory of its own.
struct Side {
    site: Site,
    gang: Gang,
}

impl Side {
    fn start(bench: &Bench, items: u64, bulk: usize) -> Result<Side, BenchError> {
        let reach = Reach::from(&bench.volume.options()?);
        let dir = format!("/bulk.{bulk}");
        let tree = tatami_client::tree::Tree::new(
            std::sync::Arc::new(reach.client()?),
            crate::mdtest::own_cred(),
        );
        tree.mkdir(dir.as_bytes(), 0o755, 0)
            .map_err(crate::error::on("creating", dir.as_bytes()))?;
        let site = Site::make(&Place::Library { reach, dir }, 1, false)?;
        let parts = site.parts(1, items, false, 0);
        let parts = parts.into_iter().map(|part| Task::Mdtest(MdtestPart { bulk, ..part }));
        Ok(Side { gang: Gang::start(&bench.launcher, parts.collect())?, site })
    }

    fn run(&mut self, bench: &Bench, daemons: &[u32], op: Op) -> Result<Cost, BenchError> {
        let cpu = || daemons.iter().filter_map(|pid| cpu_ns_of(*pid)).sum::<u64>();
        let asked = || Ok::<_, BenchError>(bench.volume.status(0)?.meta_requests);
        self.gang.prepare(op.name())?;
        let before = (cpu(), asked()?);
        self.gang.go()?;
        let mut outcome = crate::gang::Outcome::of(&self.gang.collect()?);
        outcome.cpu_ns += cpu().saturating_sub(before.0);
        let requests = (asked()? - before.1) as f64 / outcome.ops as f64;
        Ok(Cost { rate: outcome.rate(), cpu_us: outcome.cpu_us_per_op(), requests })
    }
}

/// Returns the names of the figures of rate, CPU time and requests of an operation.
fn names_of(operation: &str) -> [String; 3] {
    ["", ", CPU", ", requests"].map(|what| format!("library {operation}, {BULK} at a time{what}"))
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut names = OPERATIONS.iter().flat_map(|(_, name)| names_of(name));
    if !names.any(|name| bench.wants(&name)) {
        return Ok(Vec::new());
    }
    let daemons = bench.volume.daemons()?;
    let (mut many, mut single) =
        (Side::start(bench, bench.items(), BULK)?, Side::start(bench, bench.items(), 1)?);
    let mut costs: [Pairs<Cost>; OPERATIONS.len()] = Default::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        for (costs, (op, _)) in costs.iter_mut().zip(OPERATIONS) {
            costs.take(|| many.run(bench, &daemons, op), || single.run(bench, &daemons, op))?;
            if round == 0 {
                costs.forget();
            }
        }
    }
    for side in [many, single] {
        drop(side.gang);
        side.site.remove()?;
    }
    let mut figures = Vec::new();
    for (costs, (_, operation)) in costs.iter().zip(OPERATIONS) {
        let [rate, cpu, requests] = names_of(operation);
        let against = "one by one";
        let mut keep = |name, unit, better, runs: &Runs| {
            bench.keep(&mut figures, Figure::new(name, unit, against, (better, None), runs));
        };
        keep(rate, "entries/s", Better::Higher, &costs.runs(|c| c.rate));
        keep(cpu, "µs/entry", Better::Lower, &costs.runs(|c| c.cpu_us));
        keep(requests, "requests/entry", Better::Lower, &costs.runs(|c| c.requests));
    }
    Ok(figures)
}
