//! Workloads and their reports: `tatami bench`.
//!
//! Everything here but [`mpi`] runs without MPI, and on any file system, so that Tatami can be
//! compared with the other file systems of the machine.
//!
//! - [`mdtest`] and [`ior`] are the two classic benchmarks, on a path or through the client
//!   library.
//! - [`wire`] measures the baseline of a metadata request.
//! - [`suite`] starts a volume of its own and takes the figures of `docs/performance.md`, each next
//!   to its baseline.
//! - [`predict`] predicts the speed of many servers.
//! - [`mpi`] runs the programs of `mpi-bench` with and without the MPI-IO layer.

mod args;
pub mod clock;
mod error;
pub mod ior;
pub mod mdtest;
pub mod mpi;
pub mod null_server;
pub mod pattern;
pub mod predict;
pub mod size;
pub mod stats;
pub mod suite;
pub mod table;
pub mod tcp_copy;
mod volume_access;
pub mod wire;
pub mod worker;
pub mod worker_group;

pub use args::BenchArgs;
pub use error::BenchError;
pub use volume_access::VolumeAccess;
pub use worker_group::Launcher;

use args::WorkloadArgs;
use std::io::Write;
use tatami_client::ClientOptions;

/// Runs the workload of the command line and prints the report.
///
/// `options` is called only where the client library is used. Reports go to `out`.
///
/// # Errors
/// A workload that could not be run to its end, and a failed write to `out`
/// ([`BenchError::Output`]). A figure that misses its goal is no error.
pub fn run(
    args: BenchArgs,
    options: impl FnOnce() -> Result<ClientOptions, BenchError>,
    out: &mut impl Write,
) -> Result<(), BenchError> {
    match args.workload {
        WorkloadArgs::Worker => worker::main(),
        WorkloadArgs::NullMount { path, file } => suite::null_mount(&path, file.as_deref()),
        WorkloadArgs::Mdtest(args) => {
            let report = mdtest::run(&args, &Launcher::this_program()?, options)?;
            print_report(out, args.json, &report, || report.render())
        }
        WorkloadArgs::Ior(args) => {
            let report = ior::run(&args, &Launcher::this_program()?, options)?;
            print_report(out, args.json, &report, || report.render())
        }
        WorkloadArgs::Wire(args) => {
            let report = wire::run(&args, &Launcher::this_program()?)?;
            print_report(out, args.json, &report, || report.render())
        }
        WorkloadArgs::Suite(args) => suite::run(&args, out),
        WorkloadArgs::Predict(args) => predict::run(&args, out),
        WorkloadArgs::Mpi(args) => mpi::run(&args, out),
    }
}

fn print_report(
    out: &mut impl Write,
    json: bool,
    report: &impl serde::Serialize,
    render: impl FnOnce() -> String,
) -> Result<(), BenchError> {
    let text = if json {
        serde_json::to_string_pretty(report).expect("reports are plain data") + "\n"
    } else {
        render()
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::Output)
}

/// Reports progress on standard error. A closed standard error does not stop the measurement.
fn print_progress(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
