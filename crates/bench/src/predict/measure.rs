//! Measures the times of this machine, and the figures of real servers, with which the prediction
//! is compared.
//!
//! Everything runs on one CPU, as the figures of names do, so that no hand-over between CPUs is
//! part of a server's time. The number of times that a server goes to sleep separates the cost of a
//! wake-up from that of a request: with more clients, the server finds more requests at each
//! wake-up.

use super::times::{MeasuredPoint, MeasuredTimes, OperationTimes, fit_times, kind_name};
use crate::clock::{Steal, now_ns, own_cpu_ns, process_cpu_ns};
use crate::error::{BenchError, io_error, path_error, volume_error};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::progress::print_progress;
use crate::server_dirs::{ServerDirs, find_server_dirs};
use crate::stats::median;
use crate::volume::BenchVolume;
use crate::volume_access::{VolumeAccess, own_cred};
use crate::worker::WorkerTask;
use crate::worker_group::{Launcher, PhaseOutcome, WorkerGroup};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use tatami_sim::scale::{DirectorySplit, OperationKind};
use tatami_wire::meta::{InodeTemplate, RenameMode};

/// Numbers of client processes of one server, from which the times are computed.
const PROCS: [usize; 5] = [1, 2, 4, 8, 16];
/// Numbers of servers, all with [`CHECK_PROCS`] processes, with which the prediction is compared.
pub const CHECK_SERVERS: [u16; 4] = [1, 2, 4, 5];
/// See [`CHECK_SERVERS`].
pub const CHECK_PROCS: usize = 4;
/// The operations in the directory, in order.
const PHASES: [(MdtestOp, OperationKind); 4] = [
    (MdtestOp::FileCreate, OperationKind::Create),
    (MdtestOp::FileStat, OperationKind::Stat),
    (MdtestOp::FileRemove, OperationKind::Unlink),
    (MdtestOp::DirCreate, OperationKind::Mkdir),
];
/// The kinds of [`PHASES`], in their order.
pub const ORDER: [OperationKind; 4] =
    [OperationKind::Create, OperationKind::Stat, OperationKind::Unlink, OperationKind::Mkdir];
/// Bytes of a message on the wire, about: a reply with attributes.
const ANSWER: usize = 200;

/// The setup of the measurements.
pub struct MeasureSetup<'a> {
    /// Starts client processes.
    pub launcher: &'a Launcher,
    /// The `tatami` command that is measured.
    pub tatami: PathBuf,
    /// Directory of the volumes.
    pub dir: &'a Path,
    /// Number of runs of each measurement.
    pub runs: usize,
    /// Operations of a phase, of all processes together.
    pub items: u64,
}

/// The results of the measurements.
pub struct Measurements {
    /// The input of the prediction.
    pub times: MeasuredTimes,
    /// The figures of real servers, medians of all runs.
    pub points: Vec<MeasuredPoint>,
    /// Operations of a phase, of all processes together.
    pub items: u64,
    /// The share of the wanted CPU time that the host gave to others.
    pub stolen: f64,
}

/// A running volume.
struct PredictSide {
    servers: u16,
    volume: BenchVolume,
    daemons: Vec<u32>,
    reach: VolumeAccess,
}

impl PredictSide {
    fn start(means: &MeasureSetup<'_>, servers: u16) -> Result<PredictSide, BenchError> {
        let dir = means.dir.join(format!("servers-{servers}"));
        let volume = BenchVolume::start(&means.tatami, &dir, servers, "all")?;
        let (daemons, reach) = (volume.daemon_pids()?, volume.tcp_access());
        Ok(PredictSide { servers, volume, daemons, reach })
    }

    fn server_cpu_ns(&self) -> u64 {
        self.daemons.iter().filter_map(|pid| process_cpu_ns(*pid)).sum()
    }

    /// Returns how often the servers have gone to sleep.
    fn count_sleeps(&self) -> Result<u64, BenchError> {
        self.daemons.iter().map(|pid| process_sleeps(*pid)).sum()
    }

    /// Returns the number of messages between servers so far.
    fn count_messages(&self) -> Result<u64, BenchError> {
        (0..self.servers).map(|node| Ok(self.volume.node_status(node)?.peer_messages)).sum()
    }

    fn run_phases(
        &self,
        means: &MeasureSetup<'_>,
        procs: usize,
    ) -> Result<Vec<MeasuredPoint>, BenchError> {
        let place = WorkloadPlace::Library { reach: self.reach.clone(), dir: "/".into() };
        let site = MdtestSite::create(&place, procs, true)?;
        let parts = site.process_parts(procs, means.items / procs as u64, true, 0);
        let tasks = parts.into_iter().map(WorkerTask::Mdtest).collect();
        let mut gang = WorkerGroup::start(means.launcher, tasks)?;
        let mut points = Vec::new();
        for (op, kind) in PHASES {
            gang.prepare_phase(op.name())?;
            let before = (self.server_cpu_ns(), self.count_sleeps()?);
            gang.start_phase()?;
            let outcome = PhaseOutcome::from_reports(&gang.collect_reports()?);
            let each = |total: u64| total as f64 / outcome.ops as f64;
            points.push(MeasuredPoint {
                servers: self.servers,
                procs,
                operation: kind_name(kind).into(),
                server_us: each(self.server_cpu_ns().saturating_sub(before.0)) / 1e3,
                client_us: outcome.cpu_us_per_op(),
                sleeps: each(self.count_sleeps()?.saturating_sub(before.1)),
                rate: outcome.ops_per_sec(),
            });
        }
        drop(gang);
        site.remove()?;
        Ok(points)
    }

    /// Returns the CPU time of the servers for a message, without the cost of wake-ups. Compares
    /// renames between two servers with renames within one.
    fn measure_message_us(&self, means: &MeasureSetup<'_>, wake: f64) -> Result<f64, BenchError> {
        let (client, cred) = (self.reach.connect_client()?, own_cred());
        let failed = |errno| volume_error("renaming", b"one")(errno);
        let ServerDirs { here: [here, next], there } = find_server_dirs(&client, &cred)?;
        let file = InodeTemplate::File(client.new_layout());
        client.create(&cred, here, b"two", file, 0o644, 0, true, None).map_err(failed)?;
        let items = means.items / 8;
        // Returns CPU time without wake-ups, and messages.
        let moves = |to| -> Result<(f64, f64), BenchError> {
            let before = (self.server_cpu_ns(), self.count_sleeps()?, self.count_messages()?);
            for i in 0..items {
                let (from, to) = if i % 2 == 0 { (here, to) } else { (to, here) };
                let renamed =
                    client.rename(&cred, from, b"two", to, b"two", RenameMode::NoReplace, false);
                renamed.map_err(failed)?;
            }
            let sleeps = self.count_sleeps()?.saturating_sub(before.1) as f64;
            let us = self.server_cpu_ns().saturating_sub(before.0) as f64 / 1e3 - sleeps * wake;
            Ok((us, self.count_messages()?.saturating_sub(before.2) as f64))
        };
        let mut found = Vec::new();
        for _ in 0..=means.runs {
            let ((far, messages), (near, _)) = (moves(there)?, moves(next)?);
            // Each message is sent and received, so it counts twice.
            found.push((far - near).max(0.0) / (2.0 * messages).max(1.0));
        }
        // The first run warms up.
        Ok(median(&found[1..]))
    }
}

fn process_sleeps(pid: u32) -> Result<u64, BenchError> {
    let tasks = format!("/proc/{pid}/task");
    let tasks = Path::new(&tasks);
    let mut all = 0;
    for task in std::fs::read_dir(tasks).map_err(path_error("listing", tasks))? {
        let path = task.map_err(path_error("listing", tasks))?.path().join("status");
        // A thread may have ended meanwhile.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(all)
}

/// Takes all measurements.
///
/// # Errors
/// A measurement that could not be run.
pub fn measure_all(means: &MeasureSetup<'_>) -> Result<Measurements, BenchError> {
    let steal = Steal::now();
    let sides = CHECK_SERVERS.map(|servers| PredictSide::start(means, servers));
    let sides = sides.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut runs: Vec<Vec<MeasuredPoint>> = Vec::new();
    for round in 0..=means.runs {
        let mut points = Vec::new();
        for side in &sides {
            let procs = if side.servers == 1 { &PROCS[..] } else { &[CHECK_PROCS] };
            for procs in procs {
                points.extend(side.run_phases(means, *procs)?);
            }
        }
        print_progress(&format!("  measured {round} of {} times, after a warm-up", means.runs));
        runs.push(points);
    }
    let points = median_points(&runs[1..]);
    let one: Vec<_> = points.iter().filter(|point| point.servers == 1).collect();
    let missing = || BenchError::Usage("nothing was measured".into());
    let (request, wake) = fit_times(&one).ok_or_else(missing)?;
    let client = OperationTimes::from_kinds(|kind| {
        let ours = one.iter().filter(|p| p.operation == kind_name(kind) && p.procs == CHECK_PROCS);
        median(&ours.map(|p| p.client_us).collect::<Vec<_>>())
    });
    let last = sides.last().ok_or_else(missing)?;
    let message = last.measure_message_us(means, wake)?;
    let send = measure_send_us().map_err(io_error("sending over TCP"))?;
    let times = MeasuredTimes {
        request,
        wake,
        send,
        message,
        record: measure_record_us(means.runs)?,
        client,
    };
    Ok(Measurements { times, points, items: means.items, stolen: steal.stolen_share() })
}

/// Returns the medians of runs that have the same points.
fn median_points(runs: &[Vec<MeasuredPoint>]) -> Vec<MeasuredPoint> {
    let of = |i: usize, number: fn(&MeasuredPoint) -> f64| {
        median(&runs.iter().map(|run| number(&run[i])).collect::<Vec<_>>())
    };
    let first = runs.first().map_or(&[][..], Vec::as_slice).iter().enumerate();
    first
        .map(|(i, point)| MeasuredPoint {
            server_us: of(i, |p| p.server_us),
            client_us: of(i, |p| p.client_us),
            sleeps: of(i, |p| p.sleeps),
            rate: of(i, |p| p.rate),
            ..point.clone()
        })
        .collect()
}

/// Measures the time to send a message of the size of a reply to a peer that is awake.
fn measure_send_us() -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut from = TcpStream::connect(listener.local_addr()?)?;
    from.set_nodelay(true)?;
    let (mut to, _) = listener.accept()?;
    let mut bytes = [7; ANSWER];
    let mut times = Vec::new();
    for _ in 0..4000 {
        let start = now_ns();
        from.write_all(&bytes)?;
        times.push((now_ns() - start) as f64 / 1e3);
        to.read_exact(&mut bytes)?;
    }
    Ok(median(&times))
}

/// Measures the cost of moving an entry to another server when a directory splits, for each of the
/// two servers.
fn measure_record_us(runs: usize) -> Result<f64, BenchError> {
    let mut found = Vec::new();
    for _ in 0..=runs {
        let split = DirectorySplit::prepare().map_err(BenchError::Usage)?;
        let before = own_cpu_ns();
        let records = split.run_split().map_err(BenchError::Usage)?;
        found.push((own_cpu_ns() - before) as f64 / 1e3 / (2 * records).max(1) as f64);
    }
    Ok(median(&found[1..]))
}
