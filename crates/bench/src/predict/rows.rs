//! The results of the simulator, in rows.

use super::measure::Measured;
use super::times::{Times, name_of};
use super::{Network, PredictArgs, measure, window};
use crate::error::BenchError;
use crate::stats::ratio;
use crate::tell;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use tatami_sim::scale::{self, Machines, Phase, Setting, Shared};

/// Processes that fill a new directory until it has spread: as many as the requests that a server
/// takes in one round.
const GROWERS: u32 = 1024;

/// Operations of one kind, with a number of servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
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
    pub told: f64,
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

impl Row {
    /// Returns the idle share of the servers' time.
    pub fn idle(&self) -> f64 {
        let worked = self.own + self.woken + self.corrected + self.second + self.told;
        // A round counts when it begins, which may be before its share of the time.
        (1.0 - worked).max(0.0)
    }

    fn of(network: Network, shared: bool, phase: &Phase) -> Row {
        let sums = &phase.sums;
        let each = |count: u64| ratio(count as f64, sums.done as f64);
        Row {
            network: network.name().into(),
            servers: phase.servers,
            shared,
            operation: name_of(phase.kind).into(),
            old: phase.old,
            rate: phase.rate(),
            efficiency: 0.0,
            own: phase.share(sums.own),
            woken: phase.share(sums.wake),
            corrected: phase.share(sums.corrected),
            second: phase.share(sums.second),
            told: phase.share(sums.told),
            requests: each(sums.requests),
            messages: each(sums.messages),
            round: ratio((sums.requests + sums.messages / 2) as f64, sums.rounds as f64),
            busiest: phase.busiest,
            longest: phase.longest,
        }
    }
}

/// The spread of a new directory in which all processes begin to make files at the same moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
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
pub struct Check {
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
pub struct Rows {
    pub rows: Vec<Row>,
    pub growths: Vec<Growth>,
    pub checks: Vec<Check>,
}

impl Rows {
    /// Runs the simulator.
    ///
    /// # Errors
    /// The message of the simulator.
    pub fn predict(args: &PredictArgs, measured: &Measured) -> Result<Rows, BenchError> {
        let networks = if args.network.is_empty() { &Network::ALL[..] } else { &args.network };
        let jobs: Vec<_> = networks
            .iter()
            .flat_map(|network| args.servers.iter().map(move |servers| (*network, *servers)))
            .collect();
        let mut all = Rows { checks: checks(args, measured)?, ..Rows::default() };
        for (rows, growth) in in_parallel(&jobs, |job| predict(args, &measured.times, *job))? {
            all.rows.extend(rows);
            all.growths.push(growth);
        }
        all.compare();
        Ok(all)
    }

    /// Computes the efficiency of each row.
    fn compare(&mut self) {
        let first: Vec<_> = self.rows.clone();
        for row in &mut self.rows {
            let same = |other: &&Row| {
                (&other.network, other.shared, &other.operation)
                    == (&row.network, row.shared, &row.operation)
                    && !other.old
            };
            let least = first.iter().filter(same).min_by_key(|other| other.servers);
            let of_one = least.map_or(0.0, |least| least.rate / f64::from(least.servers));
            row.efficiency = ratio(row.rate / f64::from(row.servers), of_one);
        }
    }
}

/// Returns the results of all jobs, in their order. Starts the last jobs, which are the largest,
/// first.
fn in_parallel<J: Sync, T: Send>(
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

fn setting(args: &PredictArgs, times: &Times, (network, servers): (Network, u16)) -> Setting {
    Setting {
        servers,
        processes: args.clients * u32::from(servers),
        depth: network.depth(),
        growers: GROWERS,
        network: network.way(),
        costs: times.costs(),
        machines: Machines::Each,
        split_above: None,
        peers_first: args.peers_first,
        seed: args.seed,
    }
}

fn predict(
    args: &PredictArgs,
    times: &Times,
    job: (Network, u16),
) -> Result<(Vec<Row>, Growth), BenchError> {
    let setting = setting(args, times, job);
    let failed = |what: String| BenchError::Usage(format!("the simulator: {what}"));
    let (network, servers) = job;
    let Shared { growth, newcomer, phases } =
        setting.shared(network.kinds(), window(args)).map_err(failed)?;
    let mut rows: Vec<_> = phases.iter().map(|phase| Row::of(network, true, phase)).collect();
    let private = setting.private(network.kinds(), window(args)).map_err(failed)?;
    rows.extend(private.iter().map(|phase| Row::of(network, false, phase)));
    let sums = &growth.phase.sums;
    let growth = Growth {
        network: network.name().into(),
        servers,
        seconds: growth.phase.seconds,
        entries: growth.entries,
        complete: growth.complete,
        requests: ratio(sums.requests as f64, sums.done as f64),
        longest: growth.phase.longest,
        largest: growth.largest,
        newcomer: newcomer.sums.corrections,
    };
    let create = rows.first().map_or(0.0, |row| row.rate);
    tell(&format!(
        "  {}, {servers} servers: {create:.0} creates/s in one directory",
        network.name()
    ));
    Ok((rows, growth))
}

/// Returns the measurements beside the simulator's results.
fn checks(args: &PredictArgs, measured: &Measured) -> Result<Vec<Check>, BenchError> {
    let Measured { times, points, items, .. } = measured;
    let mut all = Vec::new();
    for servers in measure::CHECK_SERVERS {
        let found: Vec<_> = points
            .iter()
            .filter(|p| p.servers == servers && p.procs == measure::CHECK_PROCS)
            .collect();
        if found.is_empty() {
            continue;
        }
        let setting = Setting {
            processes: measure::CHECK_PROCS as u32,
            depth: 1,
            network: scale::Network::NONE,
            machines: Machines::One,
            ..setting(args, times, (Network::Ethernet, servers))
        };
        let phases = setting.whole(&measure::ORDER, items / measure::CHECK_PROCS as u64);
        for phase in phases.map_err(|what| BenchError::Usage(format!("the simulator: {what}")))? {
            let name = name_of(phase.kind);
            let Some(point) = found.iter().find(|p| p.operation == name) else { continue };
            let done = phase.sums.done as f64;
            let server_us = phase.sums.busy as f64 / 1e3 / done;
            let client_us = phase.sums.client as f64 / 1e3 / done;
            all.push(Check {
                servers,
                operation: name.into(),
                wakes: [point.sleeps, phase.sums.wakes as f64 / done],
                server_us: [point.server_us, server_us],
                cpu_us: [point.server_us + point.client_us, server_us + client_us],
                rate: [point.rate, phase.rate()],
            });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        let found = in_parallel(&jobs, |job| Ok(job * job)).expect("all work");
        assert!(found.iter().zip(&jobs).all(|(square, job)| *square == job * job));
        assert!(in_parallel(&jobs, |_| Err::<(), _>(BenchError::Usage("no".into()))).is_err());
    }
}
