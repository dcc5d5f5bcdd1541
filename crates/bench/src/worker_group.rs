//! The processes of a workload, and the barrier between its phases.
//!
//! Every process is this same program, started with a hidden subcommand. A process receives its
//! task over standard input and reports over standard output, one JSON line per message. Before a
//! phase, all processes prepare and report ready. When the last one is ready, the starter lets all
//! of them run. No process sleeps or polls, and no timeout decides anything. All processes read the
//! same monotonic clock, so a phase lasts from the first start to the last end, as in mdtest and
//! IOR.

use crate::error::{BenchError, io_error};
use crate::interrupt::check_interruption;
use crate::worker::{WorkerMessage, WorkerOrder, WorkerReport, WorkerTask};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tatami_bench_args::PROCS_MAX;

/// How to start this program as a process of a workload.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// The arguments that make it call [`crate::worker::main`].
    pub args: Vec<String>,
}

impl Launcher {
    /// Returns the running program with `worker`.
    ///
    /// # Errors
    /// When the system does not report which program is running.
    pub fn this_program() -> Result<Launcher, BenchError> {
        let program = std::env::current_exe().map_err(io_error("finding the running program"))?;
        Ok(Launcher { program, args: vec!["worker".into()] })
    }

    /// Returns the `tatami` command: `named`, or the one beside this program.
    pub fn tatami_command(&self, named: Option<&Path>) -> PathBuf {
        named.map_or_else(|| self.program.with_file_name("tatami"), Path::to_path_buf)
    }
}

struct WorkerProcess {
    child: Child,
    orders: Option<ChildStdin>,
    messages: BufReader<ChildStdout>,
    rank: usize,
}

/// The figures of a phase, over all processes.
#[derive(Clone, Debug)]
pub struct PhaseOutcome {
    /// Seconds from the first start to the last end.
    pub seconds: f64,
    /// Operations of all processes.
    pub ops: u64,
    /// Bytes of all processes.
    pub bytes: u64,
    /// Nanoseconds of CPU time (user and system) of all processes.
    pub cpu_ns: u64,
    /// Slow operations of all processes, see [`crate::workload::PhaseTotals`].
    pub slow_ops: u64,
    /// Nanoseconds of the slowest operation.
    pub slowest_ns: u64,
    /// The largest median of any process, see [`crate::workload::PhaseTotals`].
    pub median_ns: u64,
    /// The largest 99th percentile of any process.
    pub p99_ns: u64,
}

impl PhaseOutcome {
    /// Combines the reports of all processes, at least one.
    pub fn from_reports(reports: &[WorkerReport]) -> PhaseOutcome {
        let start = reports.iter().map(|r| r.start_ns).min().unwrap_or(0);
        let end = reports.iter().map(|r| r.end_ns).max().unwrap_or(0);
        PhaseOutcome {
            seconds: (end.saturating_sub(start)) as f64 / 1e9,
            ops: reports.iter().map(|r| r.ops).sum(),
            bytes: reports.iter().map(|r| r.bytes).sum(),
            cpu_ns: reports.iter().map(|r| r.cpu_ns).sum(),
            slow_ops: reports.iter().map(|r| r.slow_ops).sum(),
            slowest_ns: reports.iter().map(|r| r.slowest_ns).max().unwrap_or(0),
            median_ns: reports.iter().map(|r| r.median_ns).max().unwrap_or(0),
            p99_ns: reports.iter().map(|r| r.p99_ns).max().unwrap_or(0),
        }
    }

    /// Returns operations per second.
    pub fn ops_per_sec(&self) -> f64 {
        crate::stats::ratio_or_zero(self.ops as f64, self.seconds)
    }

    /// Returns MiB per second.
    pub fn mib_per_sec(&self) -> f64 {
        crate::stats::ratio_or_zero(self.bytes as f64 / (1 << 20) as f64, self.seconds)
    }

    /// Returns microseconds of CPU time per operation.
    pub fn cpu_us_per_op(&self) -> f64 {
        crate::stats::ratio_or_zero(self.cpu_ns as f64 / 1e3, self.ops as f64)
    }
}

/// The running processes of one workload. Dropping the value ends them.
pub struct WorkerGroup {
    processes: Vec<WorkerProcess>,
}

impl WorkerGroup {
    /// Starts one process for each task and waits until each has its task.
    ///
    /// # Errors
    /// Too many or no tasks, a process that does not start, or one that refuses its task.
    pub fn start(launcher: &Launcher, tasks: Vec<WorkerTask>) -> Result<WorkerGroup, BenchError> {
        if tasks.is_empty() || tasks.len() > PROCS_MAX {
            return Err(BenchError::Usage(format!(
                "a workload has 1 to {PROCS_MAX} processes, not {}",
                tasks.len()
            )));
        }
        check_interruption()?;
        let mut gang = WorkerGroup { processes: Vec::with_capacity(tasks.len()) };
        for (rank, task) in tasks.into_iter().enumerate() {
            let mut child = Command::new(&launcher.program)
                .args(&launcher.args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(crate::error::path_error("starting", &launcher.program))?;
            let orders = child.stdin.take();
            let says = BufReader::new(child.stdout.take().expect("its output was asked for"));
            gang.processes.push(WorkerProcess { child, orders, messages: says, rank });
            gang.processes[rank].send_order(&WorkerOrder::Take(Box::new(task)))?;
        }
        // Waits only after all are started, so that they start in parallel.
        gang.await_ready()?;
        Ok(gang)
    }

    /// Returns the process numbers, by rank.
    pub fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().map(|p| p.child.id()).collect()
    }

    /// Lets all processes prepare `phase` at the same time. Returns the text that each reports, by
    /// rank.
    ///
    /// # Errors
    /// The first process that fails.
    pub fn prepare_phase(&mut self, phase: &str) -> Result<Vec<String>, BenchError> {
        check_interruption()?;
        for process in &mut self.processes {
            process.send_order(&WorkerOrder::Prepare(phase.to_owned()))?;
        }
        self.await_ready()
    }

    /// Lets all processes run the prepared phase.
    ///
    /// # Errors
    /// A process that has ended.
    pub fn start_phase(&mut self) -> Result<(), BenchError> {
        self.processes.iter_mut().try_for_each(|p| p.send_order(&WorkerOrder::Go))
    }

    /// Waits for the reports of all, by rank.
    ///
    /// # Errors
    /// The first process that fails.
    pub fn collect_reports(&mut self) -> Result<Vec<WorkerReport>, BenchError> {
        let mut reports = Vec::with_capacity(self.processes.len());
        for process in &mut self.processes {
            match process.receive_message()? {
                WorkerMessage::Report(report) => reports.push(report),
                other => return Err(process.unexpected_message(&other)),
            }
        }
        Ok(reports)
    }

    /// Prepares a phase, starts all processes at once, and waits for the last.
    ///
    /// # Errors
    /// The first process that fails.
    pub fn run_phase(&mut self, phase: &str) -> Result<PhaseOutcome, BenchError> {
        self.prepare_phase(phase)?;
        self.start_phase()?;
        Ok(PhaseOutcome::from_reports(&self.collect_reports()?))
    }

    fn await_ready(&mut self) -> Result<Vec<String>, BenchError> {
        let mut reports = Vec::with_capacity(self.processes.len());
        for process in &mut self.processes {
            match process.receive_message()? {
                WorkerMessage::Ready(text) => reports.push(text),
                other => return Err(process.unexpected_message(&other)),
            }
        }
        Ok(reports)
    }
}

impl WorkerProcess {
    fn send_order(&mut self, order: &WorkerOrder) -> Result<(), BenchError> {
        let mut line = serde_json::to_vec(order).expect("orders are plain data");
        line.push(b'\n');
        let sent = match &mut self.orders {
            Some(pipe) => pipe.write_all(&line),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        // A process that failed reported the reason before it closed its end of the pipe.
        sent.or_else(|_| match self.receive_message()? {
            WorkerMessage::Failed(message) => Err(BenchError::Worker { rank: self.rank, message }),
            other => Err(self.unexpected_message(&other)),
        })
    }

    fn receive_message(&mut self) -> Result<WorkerMessage, BenchError> {
        let failed = |rank, message: String| Err(BenchError::Worker { rank, message });
        let mut line = String::new();
        match self.messages.read_line(&mut line) {
            Err(e) => return failed(self.rank, format!("its report cannot be read: {e}")),
            Ok(0) => {
                self.orders = None;
                // The pipe is closed, so the process has ended or is about to: the wait is short.
                let end = match self.child.wait() {
                    Ok(status) => status.to_string(),
                    Err(e) => e.to_string(),
                };
                return failed(self.rank, format!("it ended without a report ({end})"));
            }
            Ok(_) => {}
        }
        match serde_json::from_str(&line) {
            Ok(WorkerMessage::Failed(message)) => failed(self.rank, message),
            Ok(say) => Ok(say),
            Err(e) => failed(self.rank, format!("it said '{}': {e}", line.trim_end())),
        }
    }

    fn unexpected_message(&self, say: &WorkerMessage) -> BenchError {
        BenchError::Worker { rank: self.rank, message: format!("out of turn it said {say:?}") }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // The end of its orders ends a healthy process. A process that hangs in a phase after
        // another has failed must not outlive the starter.
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_lasts_from_the_first_start_to_the_last_end() {
        let report = |start_ns, end_ns| WorkerReport {
            start_ns,
            end_ns,
            cpu_ns: 500,
            ops: 10,
            bytes: 1 << 20,
            slow_ops: 2,
            slowest_ns: end_ns - start_ns,
            median_ns: start_ns,
            p99_ns: 3,
        };
        let outcome = PhaseOutcome::from_reports(&[
            report(1_000_000_000, 2_000_000_000),
            report(1_500_000_000, 3_000_000_000),
        ]);
        assert_eq!(outcome.seconds, 2.0);
        assert_eq!((outcome.slow_ops, outcome.slowest_ns), (4, 1_500_000_000));
        assert_eq!((outcome.median_ns, outcome.p99_ns), (1_500_000_000, 3));
        assert_eq!(outcome.ops_per_sec(), 10.0);
        assert_eq!(outcome.mib_per_sec(), 1.0);
        assert_eq!(outcome.cpu_us_per_op(), 0.05);
    }

    #[test]
    fn a_process_that_says_nothing_is_an_error_that_tells_how_it_ended() {
        let launcher = Launcher { program: "/bin/false".into(), args: Vec::new() };
        let task = WorkerTask::NullServer(crate::null_server::NullServerPart::Server {
            clients: 1,
            socket: None,
            depth: crate::null_server::WireDepth::Bytes,
        });
        let error = WorkerGroup::start(&launcher, vec![task]).err().expect("false says nothing");
        assert!(error.to_string().contains("process 0"), "{error}");
        assert!(WorkerGroup::start(&launcher, Vec::new()).is_err());
    }
}
