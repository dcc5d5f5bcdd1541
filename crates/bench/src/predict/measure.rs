//! Measures the times of this machine, and the figures of real servers, with which the prediction
//! is compared.
//!
//! Everything runs on one CPU, as the figures of names do, so that no hand-over between CPUs is
//! part of a server's time. The number of times that a server goes to sleep separates the cost of a
//! wake-up from that of a request: with more clients, the server finds more requests at each
//! wake-up.

use super::times::{Each, Point, Times, fit, name_of};
use crate::clock::{Steal, cpu_ns_of, now_ns, own_cpu_ns};
use crate::error::{BenchError, at, doing, on};
use crate::gang::{Gang, Launcher, Outcome};
use crate::mdtest::{Op, Place, Site, own_cred};
use crate::reach::Reach;
use crate::stats::median;
use crate::suite::servers::{Homes, homes};
use crate::suite::volume::Volume;
use crate::tell;
use crate::worker::Task;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use tatami_sim::scale::{Kind, Split};
use tatami_wire::meta::{NewNode, RenameMode};

/// Numbers of client processes of one server, from which the times are computed.
const PROCS: [usize; 5] = [1, 2, 4, 8, 16];
/// Numbers of servers, all with [`CHECK_PROCS`] processes, with which the prediction is compared.
pub const CHECK_SERVERS: [u16; 4] = [1, 2, 4, 5];
/// See [`CHECK_SERVERS`].
pub const CHECK_PROCS: usize = 4;
/// The operations in the directory, in order.
const PHASES: [(Op, Kind); 4] = [
    (Op::FileCreate, Kind::Create),
    (Op::FileStat, Kind::Stat),
    (Op::FileRemove, Kind::Unlink),
    (Op::DirCreate, Kind::Mkdir),
];
/// The kinds of [`PHASES`], in their order.
pub const ORDER: [Kind; 4] = [Kind::Create, Kind::Stat, Kind::Unlink, Kind::Mkdir];
/// Bytes of a message on the wire, about: a reply with attributes.
const ANSWER: usize = 200;

/// The setup of the measurements.
pub struct Means<'a> {
    /// Starts client processes, and has the `tatami` command.
    pub launcher: &'a Launcher,
    /// Directory of the volumes.
    pub dir: &'a Path,
    /// Number of runs of each measurement.
    pub runs: usize,
    /// Operations of a phase, of all processes together.
    pub items: u64,
}

/// The results of the measurements.
pub struct Measured {
    /// The input of the prediction.
    pub times: Times,
    /// The figures of real servers, medians of all runs.
    pub points: Vec<Point>,
    /// Operations of a phase, of all processes together.
    pub items: u64,
    /// The share of the wanted CPU time that the host gave to others.
    pub stolen: f64,
}

/// A running volume.
struct Side {
    servers: u16,
    volume: Volume,
    daemons: Vec<u32>,
    reach: Reach,
}

impl Side {
    fn start(means: &Means<'_>, servers: u16) -> Result<Side, BenchError> {
        let dir = means.dir.join(format!("servers-{servers}"));
        let volume = Volume::start(&means.launcher.program, &dir, servers, "all")?;
        let (daemons, reach) = (volume.daemons()?, Reach::from(&volume.options_by_tcp()?));
        Ok(Side { servers, volume, daemons, reach })
    }

    fn server_ns(&self) -> u64 {
        self.daemons.iter().filter_map(|pid| cpu_ns_of(*pid)).sum()
    }

    /// Returns how often the servers have gone to sleep.
    fn sleeps(&self) -> Result<u64, BenchError> {
        self.daemons.iter().map(|pid| sleeps_of(*pid)).sum()
    }

    /// Returns the number of messages between servers so far.
    fn messages(&self) -> Result<u64, BenchError> {
        (0..self.servers).map(|node| Ok(self.volume.status(node)?.peer_messages)).sum()
    }

    fn run(&self, means: &Means<'_>, procs: usize) -> Result<Vec<Point>, BenchError> {
        let place = Place::Library { reach: self.reach.clone(), dir: "/".into() };
        let site = Site::make(&place, procs, true)?;
        let parts = site.parts(procs, means.items / procs as u64, true, 0);
        let tasks = parts.into_iter().map(Task::Mdtest).collect();
        let mut gang = Gang::start(means.launcher, tasks)?;
        let mut points = Vec::new();
        for (op, kind) in PHASES {
            gang.prepare(op.name())?;
            let before = (self.server_ns(), self.sleeps()?);
            gang.go()?;
            let outcome = Outcome::of(&gang.collect()?);
            let each = |total: u64| total as f64 / outcome.ops as f64;
            points.push(Point {
                servers: self.servers,
                procs,
                operation: name_of(kind).into(),
                server_us: each(self.server_ns().saturating_sub(before.0)) / 1e3,
                client_us: outcome.cpu_us_per_op(),
                sleeps: each(self.sleeps()?.saturating_sub(before.1)),
                rate: outcome.rate(),
            });
        }
        drop(gang);
        site.remove()?;
        Ok(points)
    }

    /// Returns the CPU time of the servers for a message, without the cost of wake-ups. Compares
    /// renames between two servers with renames within one.
    fn message_us(&self, means: &Means<'_>, wake: f64) -> Result<f64, BenchError> {
        let (client, cred) = (self.reach.client()?, own_cred());
        let failed = |errno| on("renaming", b"one")(errno);
        let Some(Homes { here: [here, next], there }) = homes(&client, &cred).map_err(failed)?
        else {
            let problem = "has all directories on one node".into();
            return Err(BenchError::Program { program: "tatami up".into(), problem });
        };
        let file = NewNode::File(client.new_layout());
        client.create(&cred, here, b"two", file, 0o644, 0, true, None).map_err(failed)?;
        let items = means.items / 8;
        // Returns CPU time without wake-ups, and messages.
        let moves = |to| -> Result<(f64, f64), BenchError> {
            let before = (self.server_ns(), self.sleeps()?, self.messages()?);
            for i in 0..items {
                let (from, to) = if i % 2 == 0 { (here, to) } else { (to, here) };
                let renamed =
                    client.rename(&cred, from, b"two", to, b"two", RenameMode::NoReplace, false);
                renamed.map_err(failed)?;
            }
            let sleeps = self.sleeps()?.saturating_sub(before.1) as f64;
            let us = self.server_ns().saturating_sub(before.0) as f64 / 1e3 - sleeps * wake;
            Ok((us, self.messages()?.saturating_sub(before.2) as f64))
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

fn sleeps_of(pid: u32) -> Result<u64, BenchError> {
    let tasks = format!("/proc/{pid}/task");
    let tasks = Path::new(&tasks);
    let mut all = 0;
    for task in std::fs::read_dir(tasks).map_err(at("listing", tasks))? {
        let path = task.map_err(at("listing", tasks))?.path().join("status");
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
pub fn measure(means: &Means<'_>) -> Result<Measured, BenchError> {
    let steal = Steal::now();
    let sides = CHECK_SERVERS.map(|servers| Side::start(means, servers));
    let sides = sides.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut runs: Vec<Vec<Point>> = Vec::new();
    for round in 0..=means.runs {
        let mut points = Vec::new();
        for side in &sides {
            let procs = if side.servers == 1 { &PROCS[..] } else { &[CHECK_PROCS] };
            for procs in procs {
                points.extend(side.run(means, *procs)?);
            }
        }
        tell(&format!("  measured {round} of {} times, after a warm-up", means.runs));
        runs.push(points);
    }
    let points = medians(&runs[1..]);
    let one: Vec<_> = points.iter().filter(|point| point.servers == 1).collect();
    let missing = || BenchError::Usage("nothing was measured".into());
    let (request, wake) = fit(&one).ok_or_else(missing)?;
    let client = Each::of(|kind| {
        let ours = one.iter().filter(|p| p.operation == name_of(kind) && p.procs == CHECK_PROCS);
        median(&ours.map(|p| p.client_us).collect::<Vec<_>>())
    });
    let last = sides.last().ok_or_else(missing)?;
    let message = last.message_us(means, wake)?;
    let send = send_us().map_err(doing("sending over TCP"))?;
    let times = Times { request, wake, send, message, record: record_us(means.runs)?, client };
    Ok(Measured { times, points, items: means.items, stolen: steal.share() })
}

/// Returns the medians of runs that have the same points.
fn medians(runs: &[Vec<Point>]) -> Vec<Point> {
    let of = |i: usize, number: fn(&Point) -> f64| {
        median(&runs.iter().map(|run| number(&run[i])).collect::<Vec<_>>())
    };
    let first = runs.first().map_or(&[][..], Vec::as_slice).iter().enumerate();
    first
        .map(|(i, point)| Point {
            server_us: of(i, |p| p.server_us),
            client_us: of(i, |p| p.client_us),
            sleeps: of(i, |p| p.sleeps),
            rate: of(i, |p| p.rate),
            ..point.clone()
        })
        .collect()
}

/// Measures the time to send a message of the size of a reply to a peer that is awake.
fn send_us() -> std::io::Result<f64> {
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
fn record_us(runs: usize) -> Result<f64, BenchError> {
    let mut found = Vec::new();
    for _ in 0..=runs {
        let split = Split::prepare().map_err(BenchError::Usage)?;
        let before = own_cpu_ns();
        let records = split.run().map_err(BenchError::Usage)?;
        found.push((own_cpu_ns() - before) as f64 / 1e3 / (2 * records).max(1) as f64);
    }
    Ok(median(&found[1..]))
}
