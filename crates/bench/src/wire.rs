//! `tatami bench wire`: the request rate that the sockets, the frames and the encoding allow with
//! no work behind them.

use crate::clock::Steal;
use crate::echo::{Depth, EchoPart};
use crate::error::{BenchError, doing};
use crate::gang::{Gang, Launcher, Outcome};
use crate::stats::Spread;
use crate::table::{Table, number, percent};
use crate::worker::Task;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The operations that send messages to the null server.
pub const OPERATIONS: [&str; 3] = ["create", "stat", "unlink"];

/// Options of `tatami bench wire`.
#[derive(Clone, Debug, clap::Args)]
pub struct WireArgs {
    /// Number of client processes
    #[arg(short = 'p', long, default_value_t = 1, value_parser = crate::args::procs)]
    pub procs: usize,
    /// Requests of each process in a phase
    #[arg(short = 'n', long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub requests: u64,
    /// How often everything is repeated
    #[arg(short = 'i', long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub iterations: u32,
    /// Over TCP on the loopback (default: a UNIX socket)
    #[arg(long)]
    pub tcp: bool,
    /// Echo the bytes, without encoding, checksums and decoding
    #[arg(long)]
    pub bytes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// One kind of message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WireResult {
    /// `create`, `stat` or `unlink`
    pub operation: String,
    /// Requests per second of all processes together.
    pub requests_per_sec: Spread,
    /// CPU time (user and system) of clients and server for one request, in microseconds. Median.
    pub cpu_us_per_request: f64,
    /// Share of CPU time that the host gave to others, 0 to 1. Largest.
    pub stolen: f64,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WireReport {
    /// `wire`
    pub workload: String,
    /// `unix` or `tcp`
    pub socket: String,
    /// Whether messages were encoded and decoded.
    pub depth: Depth,
    /// Number of client processes.
    pub procs: usize,
    /// By kind of message.
    pub operations: Vec<WireResult>,
}

/// The figures of one phase of the null server.
#[derive(Clone, Debug)]
pub struct Echoed {
    /// Time of the clients; CPU time of clients and servers.
    pub all: Outcome,
    /// Nanoseconds of CPU time of the servers.
    pub server_ns: u64,
}

impl Echoed {
    /// Returns microseconds of the servers' CPU time per request.
    pub fn server_us_per_op(&self) -> f64 {
        crate::stats::ratio(self.server_ns as f64 / 1e3, self.all.ops as f64)
    }
}

/// A null server with its clients. The servers are restarted for every phase; the clients stay.
pub struct EchoRun<'a> {
    launcher: &'a Launcher,
    clients: Gang,
    procs: usize,
    servers: usize,
    depth: Depth,
    socket: Option<PathBuf>,
}

impl<'a> EchoRun<'a> {
    /// Starts the clients.
    ///
    /// # Errors
    /// As [`Gang::start`].
    pub fn start(
        launcher: &'a Launcher,
        procs: usize,
        requests: u64,
        depth: Depth,
        socket: Option<&Path>,
    ) -> Result<EchoRun<'a>, BenchError> {
        let tasks = (0..procs).map(|_| Task::Echo(EchoPart::Client { requests, depth })).collect();
        let socket = socket.map(Path::to_path_buf);
        let clients = Gang::start(launcher, tasks)?;
        Ok(EchoRun { launcher, clients, procs, servers: 1, depth, socket })
    }

    /// Uses several servers, reached by TCP. Each client sends each request to a random one.
    pub fn with_servers(self, servers: usize) -> EchoRun<'a> {
        EchoRun { servers, socket: None, ..self }
    }

    /// Runs one phase.
    ///
    /// # Errors
    /// The first process that fails.
    pub fn phase(&mut self, operation: &str) -> Result<Echoed, BenchError> {
        let part = EchoPart::Server {
            clients: self.procs,
            socket: self.socket.clone(),
            depth: self.depth,
        };
        let parts = (0..self.servers).map(|_| Task::Echo(part.clone())).collect();
        let mut servers = Gang::start(self.launcher, parts)?;
        // The servers listen before the clients connect, and accept before the clients send.
        let addresses = servers.prepare("serve")?.join(",");
        servers.go()?;
        let mut all = self.clients.phase(&format!("{operation} {addresses}"))?;
        let server_ns = Outcome::of(&servers.collect()?).cpu_ns;
        // The servers' report covers all clients, since a server ends with its last connection.
        all.cpu_ns += server_ns;
        Ok(Echoed { all, server_ns })
    }
}

/// Runs the null server and its clients.
///
/// # Errors
/// The first process that fails.
pub fn run(args: &WireArgs, launcher: &Launcher) -> Result<WireReport, BenchError> {
    let depth = if args.bytes { Depth::Bytes } else { Depth::Messages };
    let dir = tempfile::tempdir().map_err(doing("making a place for the socket"))?;
    let path = dir.path().join("socket");
    let socket = (!args.tcp).then_some(path.as_path());
    let operations = measure(args, launcher, depth, socket)?;
    Ok(WireReport {
        workload: "wire".into(),
        socket: if args.tcp { "tcp" } else { "unix" }.into(),
        depth,
        procs: args.procs,
        operations,
    })
}

fn measure(
    args: &WireArgs,
    launcher: &Launcher,
    depth: Depth,
    socket: Option<&Path>,
) -> Result<Vec<WireResult>, BenchError> {
    let mut echo = EchoRun::start(launcher, args.procs, args.requests, depth, socket)?;
    let mut results = Vec::new();
    for operation in OPERATIONS {
        let (mut rates, mut cpu, mut stolen) = (Vec::new(), Vec::new(), 0.0);
        for _ in 0..args.iterations {
            let steal = Steal::now();
            let outcome = echo.phase(operation)?.all;
            rates.push(outcome.rate());
            cpu.push(outcome.cpu_us_per_op());
            stolen = f64::max(stolen, steal.share());
        }
        results.push(WireResult {
            operation: operation.into(),
            requests_per_sec: Spread::of(&rates),
            cpu_us_per_request: crate::stats::median(&cpu),
            stolen,
        });
    }
    Ok(results)
}

impl WireReport {
    /// Renders the report for people.
    pub fn render(&self) -> String {
        let mut table =
            Table::new(&["messages of", "min req/s", "median", "max", "CPU µs/req", "stolen"]);
        for r in &self.operations {
            table.row(vec![
                r.operation.clone(),
                number(r.requests_per_sec.min),
                number(r.requests_per_sec.median),
                number(r.requests_per_sec.max),
                number(r.cpu_us_per_request),
                percent(r.stolen),
            ]);
        }
        let depth = match self.depth {
            Depth::Messages => "encoded and decoded",
            Depth::Bytes => "bytes only",
        };
        format!(
            "wire echo over {} ({depth}): {} processes\n{}",
            self.socket,
            self.procs,
            table.render()
        )
    }
}
