//! One process of a workload: takes its task, then prepares and runs the ordered phases until its
//! orders end.

use crate::clock;
use crate::error::{BenchError, io_error};
use crate::ior::rank::{IorPart, IorRank};
use crate::mdtest::rank::{MdtestPart, MdtestRank};
use crate::null_server::{NullServer, NullServerPart};
use crate::smallfiles::rank::{SmallFilesPart, SmallFilesRank};
use crate::tcp_copy::{TcpCopy, TcpCopyPart};
use crate::workload::{PhaseTotals, Workload};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// The task of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum WorkerTask {
    /// Metadata operations.
    Mdtest(MdtestPart),
    /// Reads and writes.
    Ior(IorPart),
    /// The null server or one of its clients.
    NullServer(NullServerPart),
    /// One side of a TCP copy.
    Stream(TcpCopyPart),
    /// A part of a data set of small files.
    SmallFiles(SmallFilesPart),
}

/// From the starter to a process.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerOrder {
    /// The task; comes first and once.
    Take(Box<WorkerTask>),
    /// Prepares everything that the phase's time must not include.
    Prepare(String),
    /// Run the prepared phase.
    Go,
}

/// From a process to its starter.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerMessage {
    /// The task is taken, or the phase prepared. The text depends on the task.
    Ready(String),
    /// The phase is done.
    Report(WorkerReport),
    /// The process failed; the text is the reason.
    Failed(String),
}

/// The work of one process in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Monotonic clock at the start, in nanoseconds.
    pub start_ns: u64,
    /// Monotonic clock at the end, in nanoseconds.
    pub end_ns: u64,
    /// CPU time of the process in between (user and system), in nanoseconds.
    pub cpu_ns: u64,
    /// Operations done.
    pub ops: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Slow operations, see [`PhaseTotals`].
    pub slow_ops: u64,
    /// Nanoseconds of the slowest operation, see [`PhaseTotals`].
    pub slowest_ns: u64,
    /// See [`PhaseTotals`].
    pub median_ns: u64,
    /// See [`PhaseTotals`].
    pub p99_ns: u64,
}

fn create_workload(task: WorkerTask) -> Result<Box<dyn Workload>, BenchError> {
    Ok(match task {
        WorkerTask::Mdtest(part) => Box::new(MdtestRank::new(part)?),
        WorkerTask::Ior(part) => Box::new(IorRank::new(part)?),
        WorkerTask::NullServer(part) => Box::new(NullServer::new(part)),
        WorkerTask::Stream(part) => Box::new(TcpCopy::new(part)),
        WorkerTask::SmallFiles(part) => Box::new(SmallFilesRank::new(part)?),
    })
}

/// Runs as a process of a workload, with orders from standard input and reports to `says`.
///
/// # Errors
/// Those of the pipes. A failure of the task is reported instead.
pub fn main(says: &mut impl Write) -> Result<(), BenchError> {
    serve_orders(&mut std::io::stdin().lock(), says)
}

fn serve_orders(orders: &mut impl BufRead, says: &mut impl Write) -> Result<(), BenchError> {
    match handle_orders(orders, says) {
        // A report suffices: the starter shows the error to the user.
        Err(e) => send_message(says, &WorkerMessage::Failed(e.to_string())),
        Ok(()) => Ok(()),
    }
}

fn handle_orders(orders: &mut impl BufRead, says: &mut impl Write) -> Result<(), BenchError> {
    let mut workload: Option<Box<dyn Workload>> = None;
    let mut prepared = None;
    let mut line = String::new();
    loop {
        line.clear();
        if orders.read_line(&mut line).map_err(io_error("reading orders"))? == 0 {
            return Ok(());
        }
        let order = serde_json::from_str(&line).map_err(|e| {
            BenchError::Usage(format!("this subcommand is for tatami bench itself: {e}"))
        })?;
        let early = || BenchError::Usage("an order came before its task or phase".into());
        let answer = match order {
            WorkerOrder::Take(task) => {
                workload = Some(create_workload(*task)?);
                WorkerMessage::Ready(String::new())
            }
            WorkerOrder::Prepare(phase) => {
                let report = workload.as_mut().ok_or_else(early)?.prepare_phase(&phase)?;
                prepared = Some(phase);
                WorkerMessage::Ready(report)
            }
            WorkerOrder::Go => {
                let phase = prepared.take().ok_or_else(early)?;
                let workload = workload.as_mut().ok_or_else(early)?;
                // Reads the CPU clock first and last, so that the wall clock covers the phase
                // alone.
                let (cpu, start_ns) = (clock::own_cpu_ns(), clock::now_ns());
                let PhaseTotals { ops, bytes, slow_ops, slowest_ns, median_ns, p99_ns } =
                    workload.run_phase(&phase)?;
                let end_ns = clock::now_ns();
                let cpu_ns = clock::own_cpu_ns() - cpu;
                WorkerMessage::Report(WorkerReport {
                    start_ns,
                    end_ns,
                    cpu_ns,
                    ops,
                    bytes,
                    slow_ops,
                    slowest_ns,
                    median_ns,
                    p99_ns,
                })
            }
        };
        send_message(says, &answer)?;
    }
}

fn send_message(says: &mut impl Write, what: &WorkerMessage) -> Result<(), BenchError> {
    let mut line = serde_json::to_vec(what).expect("reports are plain data");
    line.push(b'\n');
    says.write_all(&line).and_then(|()| says.flush()).map_err(io_error("reporting"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(orders: &str) -> String {
        let mut says = Vec::new();
        serve_orders(&mut orders.as_bytes(), &mut says).expect("memory takes all reports");
        String::from_utf8(says).expect("JSON is text")
    }

    #[test]
    fn the_end_of_orders_is_a_good_end() {
        assert_eq!(talk(""), "");
    }

    #[test]
    fn orders_out_of_turn_are_refused_and_reported() {
        for orders in ["\"Go\"\n", "{\"Prepare\":\"x\"}\n", "hello\n"] {
            let said = talk(orders);
            assert!(said.starts_with("{\"Failed\":"), "{said}");
        }
    }
}
