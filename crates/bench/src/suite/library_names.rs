//! Metadata through the client library: the number of requests for an operation, and its rate
//! compared with the null server's. The null server runs in turn with the same number of processes,
//! kind of socket and size of messages.

use super::Bench;
use super::figure::{Better, Figure, Runs};
use super::pairs::Pairs;
use super::servers::SERVER_GOAL_US;
use crate::clock::cpu_ns_of;
use crate::echo::Depth;
use crate::error::BenchError;
use crate::gang::Gang;
use crate::mdtest::{Op, Place, Site};
use crate::reach::Reach;
use crate::wire::{EchoRun, Echoed};
use crate::worker::Task;

const GOAL: f64 = 0.6;

/// The operations: mdtest's name, and the name of the null server's messages.
const OPERATIONS: [(Op, &str); 3] =
    [(Op::FileCreate, "create"), (Op::FileStat, "stat"), (Op::FileRemove, "unlink")];

/// The result of one run.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Requests per second, all processes together.
    rate: f64,
    /// CPU time of both sides for one request, in microseconds.
    cpu_us: f64,
    /// CPU time of the server alone.
    server_us: f64,
}

impl Cost {
    fn of(echoed: &Echoed) -> Cost {
        let (all, server_us) = (&echoed.all, echoed.server_us_per_op());
        Cost { rate: all.rate(), cpu_us: all.cpu_us_per_op(), server_us }
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for procs in [1, 4] {
        let names = OPERATIONS.iter().map(|(_, name)| Names::of(name, procs));
        let mut names = names.flat_map(Names::all);
        if names.any(|name| bench.wants(&name)) {
            figures.extend(with_procs(bench, procs)?);
        }
    }
    Ok(figures)
}

/// The names of the figures of one operation.
struct Names {
    rate: String,
    cpu: String,
    /// Counted once: the number of requests does not depend on the number of processes.
    requests: Option<String>,
    /// Names for the server's CPU time of a create that comes with others, as on a busy server:
    /// against the limit, and against the null server.
    server: Option<[String; 2]>,
}

impl Names {
    fn of(operation: &str, procs: usize) -> Names {
        let with = if procs == 1 { "1 process".into() } else { format!("{procs} processes") };
        Names {
            rate: format!("library {operation}, {with}"),
            cpu: format!("library {operation}, {with}, CPU"),
            requests: (procs == 1).then(|| format!("library {operation}, requests")),
            server: (procs > 1 && operation == "create").then(|| {
                let name = format!("library {operation}, {with}, server's CPU");
                [name.clone(), format!("{name}, floor")]
            }),
        }
    }

    fn all(self) -> impl Iterator<Item = String> {
        let counted = self.requests.into_iter().chain(self.server.into_iter().flatten());
        [self.rate, self.cpu].into_iter().chain(counted)
    }
}

fn with_procs(bench: &Bench, procs: usize) -> Result<Vec<Figure>, BenchError> {
    let items = bench.items() / procs as u64;
    let reach = Reach::from(&bench.volume.options()?);
    let place = Place::Library { reach, dir: "/".into() };
    let site = Site::make(&place, procs, false)?;
    let tasks = site.parts(procs, items, false, 0).into_iter().map(Task::Mdtest).collect();
    let mut library = Gang::start(&bench.launcher, tasks)?;
    let socket = bench.work.join("echo");
    let mut echo = EchoRun::start(&bench.launcher, procs, items, Depth::Messages, Some(&socket))?;
    let daemons = bench.volume.daemons()?;
    let mut costs: [Pairs<Cost>; 3] = Default::default();
    let mut requests: [Vec<f64>; 3] = Default::default();
    // The first round warms up.
    for round in 0..=bench.runs {
        for (i, (op, message)) in OPERATIONS.into_iter().enumerate() {
            // Only the library's side sends requests to the volume, so the difference over both
            // runs is its own.
            let before = bench.volume.status(0)?.meta_requests;
            costs[i].take(
                || {
                    let before: u64 = daemons.iter().filter_map(|p| cpu_ns_of(*p)).sum();
                    let mut all = library.phase(op.name())?;
                    let after: u64 = daemons.iter().filter_map(|p| cpu_ns_of(*p)).sum();
                    let server_ns = after.saturating_sub(before);
                    all.cpu_ns += server_ns;
                    Ok(Cost::of(&Echoed { all, server_ns }))
                },
                || Ok(Cost::of(&echo.phase(message)?)),
            )?;
            let asked = bench.volume.status(0)?.meta_requests - before;
            requests[i].push(asked as f64 / (items * procs as u64) as f64);
            if round == 0 {
                costs[i].forget();
                requests[i].clear();
            }
        }
    }
    drop(library);
    site.remove()?;
    let mut figures = Vec::new();
    for (i, (_, operation)) in OPERATIONS.into_iter().enumerate() {
        let names = Names::of(operation, procs);
        let runs = costs[i].runs(|c| c.rate);
        let goal = (Better::Higher, Some(GOAL));
        let figure = Figure::new(names.rate, "requests/s", "wire echo", goal, &runs);
        bench.keep(&mut figures, figure);
        let (cpu, no_goal) = (costs[i].runs(|c| c.cpu_us), (Better::Lower, None));
        let figure = Figure::new(names.cpu, "µs/request", "wire echo", no_goal, &cpu);
        bench.keep(&mut figures, figure);
        if let Some([name, floor_name]) = names.server {
            let against_echo = costs[i].runs(|c| c.server_us);
            let floor = vec![SERVER_GOAL_US; against_echo.ours.len()];
            let held = Runs { ours: against_echo.ours.clone(), floor, stolen: against_echo.stolen };
            let goal = (Better::Lower, Some(1.0));
            let figure = Figure::new(name, "µs/request", "what it may take", goal, &held);
            bench.keep(&mut figures, figure);
            let figure = Figure::new(floor_name, "µs/request", "wire echo", no_goal, &against_echo);
            bench.keep(&mut figures, figure);
        }
        if let Some(name) = names.requests {
            let one = vec![1.0; requests[i].len()];
            let counts = Runs { ours: requests[i].clone(), floor: one, stolen: runs.stolen };
            let goal = (Better::Lower, Some(1.0));
            bench.keep(&mut figures, Figure::new(name, "requests/op", "one", goal, &counts));
        }
    }
    Ok(figures)
}
