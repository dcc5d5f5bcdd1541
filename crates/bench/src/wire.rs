//! `tatami bench wire`: the request rate that the sockets, the frames and the encoding allow with
//! no work behind them.

use crate::clock::Steal;
use crate::error::{BenchError, io_error};
use crate::null_server::{NullServerPart, WireDepth};
use crate::stats::RunSpread;
use crate::table::{ReportTable, format_percent};
use crate::worker::WorkerTask;
use crate::worker_group::{Launcher, PhaseOutcome, WorkerGroup};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tatami_bench_args::WireArgs;
use tatami_plot::format_number;

/// The operations that send messages to the null server.
const OPERATIONS: [&str; 3] = ["create", "stat", "unlink"];

/// One kind of message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WireResult {
    /// `create`, `stat` or `unlink`
    pub operation: String,
    /// Requests per second of all processes together.
    pub requests_per_sec: RunSpread,
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
    pub depth: WireDepth,
    /// Number of client processes.
    pub procs: usize,
    /// By kind of message.
    pub operations: Vec<WireResult>,
}

/// A null server with its clients. The servers are restarted for every phase; the clients stay.
pub struct NullServerRun<'a> {
    launcher: &'a Launcher,
    clients: WorkerGroup,
    procs: usize,
    servers: usize,
    depth: WireDepth,
    socket: Option<PathBuf>,
}

impl<'a> NullServerRun<'a> {
    /// Starts the clients.
    ///
    /// # Errors
    /// As [`WorkerGroup::start`].
    pub fn start(
        launcher: &'a Launcher,
        procs: usize,
        requests: u64,
        depth: WireDepth,
        socket: Option<&Path>,
    ) -> Result<NullServerRun<'a>, BenchError> {
        let tasks = (0..procs)
            .map(|_| WorkerTask::NullServer(NullServerPart::Client { requests, depth }))
            .collect();
        let socket = socket.map(Path::to_path_buf);
        let clients = WorkerGroup::start(launcher, tasks)?;
        Ok(NullServerRun { launcher, clients, procs, servers: 1, depth, socket })
    }

    /// Uses several servers, reached by TCP. Each client sends each request to a random one.
    pub fn with_servers(self, servers: usize) -> NullServerRun<'a> {
        NullServerRun { servers, socket: None, ..self }
    }

    /// Runs one phase. Returns the time of the clients, and the CPU time of clients and servers.
    ///
    /// # Errors
    /// The first process that fails.
    pub fn run_phase(&mut self, operation: &str) -> Result<PhaseOutcome, BenchError> {
        let part = NullServerPart::Server {
            clients: self.procs,
            socket: self.socket.clone(),
            depth: self.depth,
        };
        let parts = (0..self.servers).map(|_| WorkerTask::NullServer(part.clone())).collect();
        let mut servers = WorkerGroup::start(self.launcher, parts)?;
        // The servers listen before the clients connect, and accept before the clients send.
        let addresses = servers.prepare_phase("serve")?.join(",");
        servers.start_phase()?;
        let mut all = self.clients.run_phase(&format!("{operation} {addresses}"))?;
        // The servers' report covers all clients, since a server ends with its last connection.
        all.cpu_ns += PhaseOutcome::from_reports(&servers.collect_reports()?).cpu_ns;
        Ok(all)
    }
}

/// Runs the null server and its clients.
///
/// # Errors
/// The first process that fails.
pub fn run(args: &WireArgs, launcher: &Launcher) -> Result<WireReport, BenchError> {
    let depth = if args.bytes { WireDepth::Bytes } else { WireDepth::Messages };
    let dir = tempfile::tempdir().map_err(io_error("making a place for the socket"))?;
    let path = dir.path().join("socket");
    let socket = (!args.tcp).then_some(path.as_path());
    let operations = measure_operations(args, launcher, depth, socket)?;
    Ok(WireReport {
        workload: "wire".into(),
        socket: if args.tcp { "tcp" } else { "unix" }.into(),
        depth,
        procs: args.procs,
        operations,
    })
}

fn measure_operations(
    args: &WireArgs,
    launcher: &Launcher,
    depth: WireDepth,
    socket: Option<&Path>,
) -> Result<Vec<WireResult>, BenchError> {
    let mut echo = NullServerRun::start(launcher, args.procs, args.requests, depth, socket)?;
    let mut results = Vec::new();
    for operation in OPERATIONS {
        let (mut rates, mut cpu, mut stolen) = (Vec::new(), Vec::new(), 0.0);
        for _ in 0..args.iterations {
            let steal = Steal::now();
            let outcome = echo.run_phase(operation)?;
            rates.push(outcome.ops_per_sec());
            cpu.push(outcome.cpu_us_per_op());
            stolen = f64::max(stolen, steal.stolen_share());
        }
        results.push(WireResult {
            operation: operation.into(),
            requests_per_sec: RunSpread::from_values(&rates),
            cpu_us_per_request: crate::stats::median(&cpu),
            stolen,
        });
    }
    Ok(results)
}

impl WireReport {
    /// Renders the report for people.
    pub fn render(&self) -> String {
        let mut table = ReportTable::new(&[
            "messages of",
            "min req/s",
            "median",
            "max",
            "CPU µs/req",
            "stolen",
        ]);
        for r in &self.operations {
            table.add_row(vec![
                r.operation.clone(),
                format_number(r.requests_per_sec.min),
                format_number(r.requests_per_sec.median),
                format_number(r.requests_per_sec.max),
                format_number(r.cpu_us_per_request),
                format_percent(r.stolen),
            ]);
        }
        let depth = match self.depth {
            WireDepth::Messages => "encoded and decoded",
            WireDepth::Bytes => "bytes only",
        };
        format!(
            "wire echo over {} ({depth}): {} processes\n{}",
            self.socket,
            self.procs,
            table.render()
        )
    }
}
