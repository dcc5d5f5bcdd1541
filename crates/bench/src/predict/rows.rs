//! The results of the simulator, in rows.

use super::measure::{self, Measurements};
use super::network::{network_delay, network_name, predicted_kinds, request_depth};
use super::times::{MeasuredTimes, kind_name};
use crate::error::BenchError;
use crate::progress::print_progress;
use crate::stats::ratio_or_zero;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use tatami_bench_args::{PredictArgs, PredictNetwork};
use tatami_sim::scale::{self, CountWindow, Machines, ScalePhase, ScaleSetting, SharedDirectory};

/// Processes that fill a new directory until it has spread: as many as the requests that a server
/// takes in one round.
const GROWERS: u32 = 1024;

/// Operations of one kind, with a number of servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictRow {
    /// The network.
    pub network: String,
    /// Number of servers.
    pub servers: u16,
    /// Whether all processes work in one directory; otherwise each has its own.
    pub shared: bool,
    /// `create`, `mkdir`, `stat` or `unlink`
    pub operation: String,
    /// Whether the files were made before the directory had spread.
    pub old: bool,
    /// Operations per second.
    pub rate: f64,
    /// The rate per server, divided by that of the smallest number of servers.
    pub efficiency: f64,
    /// Share of the servers' time for requests that do the operation, …
    pub own: f64,
    /// … for wake-ups, …
    pub woken: f64,
    /// … for replies that redirect clients to another partition, …
    pub corrected: f64,
    /// … for inodes that are elsewhere than their names, …
    pub second: f64,
    /// … and for messages between servers. The rest is idle time.
    pub peer: f64,
    /// Requests per operation.
    pub requests: f64,
    /// Messages between servers per operation, sent and received.
    pub messages: f64,
    /// Requests and messages per round.
    pub round: f64,
    /// Busy share of the busiest server, 0 to 1.
    pub busiest: f64,
    /// Most requests and messages that waited at one server at the same time.
    pub longest: u64,
}

impl PredictRow {
    /// Returns the idle share of the servers' time.
    pub fn idle_share(&self) -> f64 {
        let worked = self.own + self.woken + self.corrected + self.second + self.peer;
        // A round counts when it begins, which may be before its share of the time.
        (1.0 - worked).max(0.0)
    }

    fn from_phase(network: PredictNetwork, shared: bool, phase: &ScalePhase) -> PredictRow {
        let sums = &phase.sums;
        let each = |count: u64| ratio_or_zero(count as f64, sums.done as f64);
        PredictRow {
            network: network_name(network).into(),
            servers: phase.servers,
            shared,
            operation: kind_name(phase.kind).into(),
            old: phase.old,
            rate: phase.ops_per_sec(),
            efficiency: 0.0,
            own: phase.cpu_share(sums.own),
            woken: phase.cpu_share(sums.wake),
            corrected: phase.cpu_share(sums.corrected),
            second: phase.cpu_share(sums.second),
            peer: phase.cpu_share(sums.peer),
            requests: each(sums.requests),
            messages: each(sums.messages),
            round: ratio_or_zero((sums.requests + sums.messages / 2) as f64, sums.rounds as f64),
            busiest: phase.busiest,
            longest: phase.longest,
        }
    }
}

/// The spread of a new directory in which all processes begin to make files at the same moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictGrowth {
    /// The network.
    pub network: String,
    /// Number of servers.
    pub servers: u16,
    /// Seconds until it has spread.
    pub seconds: f64,
    /// Entries by then.
    pub entries: u64,
    /// Whether the directory has spread. If not, some partitions were too large when they could
    /// have split.
    pub complete: bool,
    /// Requests per create until then.
    pub requests: f64,
    /// Most requests and messages that waited at one server at the same time.
    pub longest: u64,
    /// The largest share of all names on one server, divided by an equal share.
    pub largest: f64,
    /// How often a process that begins then is redirected to another partition in its first 4,096
    /// creates.
    pub newcomer: u64,
}

/// A measurement, and the simulator's result for the same setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictCheck {
    /// Number of servers, with 4 client processes, all on one CPU.
    pub servers: u16,
    /// The operation.
    pub operation: String,
    /// Wake-ups of servers per operation: measured and predicted.
    pub wakes: [f64; 2],
    /// CPU time of the servers per operation, in microseconds.
    pub server_us: [f64; 2],
    /// CPU time of servers and clients together.
    pub cpu_us: [f64; 2],
    /// Operations per second.
    pub rate: [f64; 2],
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PredictRows {
    pub rows: Vec<PredictRow>,
    pub growths: Vec<PredictGrowth>,
    pub checks: Vec<PredictCheck>,
}

impl PredictRows {
    /// Runs the simulator.
    ///
    /// # Errors
    /// The message of the simulator.
    pub fn predict_all(
        args: &PredictArgs,
        measured: &Measurements,
    ) -> Result<PredictRows, BenchError> {
        let networks =
            if args.network.is_empty() { PredictNetwork::value_variants() } else { &args.network };
        let jobs: Vec<_> = networks
            .iter()
            .flat_map(|network| args.servers.iter().map(move |servers| (*network, *servers)))
            .collect();
        let mut all =
            PredictRows { checks: build_checks(args, measured)?, ..PredictRows::default() };
        for (rows, growth) in run_parallel(&jobs, |job| predict_job(args, &measured.times, *job))? {
            all.rows.extend(rows);
            all.growths.push(growth);
        }
        all.compute_efficiency();
        Ok(all)
    }

    /// Computes the efficiency of each row.
    fn compute_efficiency(&mut self) {
        let first: Vec<_> = self.rows.clone();
        for row in &mut self.rows {
            let same = |other: &&PredictRow| {
                (&other.network, other.shared, &other.operation)
                    == (&row.network, row.shared, &row.operation)
                    && !other.old
            };
            let least = first.iter().filter(same).min_by_key(|other| other.servers);
            let of_one = least.map_or(0.0, |least| least.rate / f64::from(least.servers));
            row.efficiency = ratio_or_zero(row.rate / f64::from(row.servers), of_one);
        }
    }
}

/// Returns the results of all jobs, in their order. Starts the last jobs, which are the largest,
/// first.
fn run_parallel<J: Sync, T: Send>(
    jobs: &[J],
    work: impl Fn(&J) -> Result<T, BenchError> + Sync,
) -> Result<Vec<T>, BenchError> {
    let left = AtomicUsize::new(jobs.len());
    let (sender, found) = channel();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            let (sender, left, work) = (sender.clone(), &left, &work);
            scope.spawn(move || {
                let less = |left: usize| left.checked_sub(1);
                while let Ok(left) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
                    // The receiver lives until all threads have ended.
                    let _ = sender.send((left - 1, work(&jobs[left - 1])));
                }
            });
        }
    });
    drop(sender);
    let mut all: Vec<_> = found.into_iter().collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

fn build_setting(
    args: &PredictArgs,
    times: &MeasuredTimes,
    (network, servers): (PredictNetwork, u16),
) -> ScaleSetting {
    ScaleSetting {
        servers,
        processes: args.clients * u32::from(servers),
        depth: request_depth(network),
        growers: GROWERS,
        network: network_delay(network),
        costs: times.to_costs(),
        machines: Machines::Each,
        split_above: None,
        peers_first: args.peers_first,
        seed: args.seed,
    }
}

fn predict_job(
    args: &PredictArgs,
    times: &MeasuredTimes,
    job: (PredictNetwork, u16),
) -> Result<(Vec<PredictRow>, PredictGrowth), BenchError> {
    let setting = build_setting(args, times, job);
    let failed = |what: String| BenchError::Usage(format!("the simulator: {what}"));
    let (network, servers) = job;
    let SharedDirectory { growth, newcomer, phases } =
        setting.run_shared(predicted_kinds(network), count_window(args)).map_err(failed)?;
    let mut rows: Vec<_> =
        phases.iter().map(|phase| PredictRow::from_phase(network, true, phase)).collect();
    let private =
        setting.run_private(predicted_kinds(network), count_window(args)).map_err(failed)?;
    rows.extend(private.iter().map(|phase| PredictRow::from_phase(network, false, phase)));
    let sums = &growth.phase.sums;
    let growth = PredictGrowth {
        network: network_name(network).into(),
        servers,
        seconds: growth.phase.seconds,
        entries: growth.entries,
        complete: growth.complete,
        requests: ratio_or_zero(sums.requests as f64, sums.done as f64),
        longest: growth.phase.longest,
        largest: growth.largest,
        newcomer: newcomer.sums.corrections,
    };
    let create = rows.first().map_or(0.0, |row| row.rate);
    print_progress(&format!(
        "  {}, {servers} servers: {create:.0} creates/s in one directory",
        network_name(network)
    ));
    Ok((rows, growth))
}

/// Returns the measurements beside the simulator's results.
fn build_checks(
    args: &PredictArgs,
    measured: &Measurements,
) -> Result<Vec<PredictCheck>, BenchError> {
    let Measurements { times, points, items, .. } = measured;
    let mut all = Vec::new();
    for servers in measure::CHECK_SERVERS {
        let found: Vec<_> = points
            .iter()
            .filter(|p| p.servers == servers && p.procs == measure::CHECK_PROCS)
            .collect();
        if found.is_empty() {
            continue;
        }
        let setting = ScaleSetting {
            processes: measure::CHECK_PROCS as u32,
            depth: 1,
            network: scale::NetworkDelay::NONE,
            machines: Machines::One,
            ..build_setting(args, times, (PredictNetwork::Ethernet, servers))
        };
        let phases = setting.run_whole(&measure::ORDER, items / measure::CHECK_PROCS as u64);
        for phase in phases.map_err(|what| BenchError::Usage(format!("the simulator: {what}")))? {
            let name = kind_name(phase.kind);
            let Some(point) = found.iter().find(|p| p.operation == name) else { continue };
            let done = phase.sums.done as f64;
            let server_us = phase.sums.busy as f64 / 1e3 / done;
            let client_us = phase.sums.client as f64 / 1e3 / done;
            all.push(PredictCheck {
                servers,
                operation: name.into(),
                wakes: [point.sleeps, phase.sums.wakes as f64 / done],
                server_us: [point.server_us, server_us],
                cpu_us: [point.server_us + point.client_us, server_us + client_us],
                rate: [point.rate, phase.ops_per_sec()],
            });
        }
    }
    Ok(all)
}

fn count_window(args: &PredictArgs) -> CountWindow {
    match args.quick {
        true => CountWindow { each: 40, least: 400 },
        false => CountWindow { each: args.each, least: 10_000 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        let found = run_parallel(&jobs, |job| Ok(job * job)).expect("all work");
        assert!(found.iter().zip(&jobs).all(|(square, job)| *square == job * job));
        assert!(run_parallel(&jobs, |_| Err::<(), _>(BenchError::Usage("no".into()))).is_err());
    }
}
