//! Workloads and their reports: `tatami bench`.
//!
//! Everything here runs without MPI and on any file system, so that Tatami can be
//! compared with whatever else there is on the same machine.
//!
//! - [`mdtest`] and [`ior`] are the two classic benchmarks, on a path or through
//!   the client library.
//! - [`wire`] is the floor of a metadata request.
//! - [`suite`] starts a volume of its own and takes the figures of
//!   `docs/PERFORMANCE.md`, each next to its baseline.

mod args;
pub mod clock;
pub mod echo;
mod error;
pub mod gang;
pub mod ior;
pub mod mdtest;
pub mod pattern;
mod reach;
pub mod size;
pub mod stats;
pub mod stream;
pub mod suite;
pub mod table;
pub mod wire;
pub mod worker;

pub use args::BenchArgs;
pub use error::BenchError;
pub use gang::Launcher;
pub use reach::Reach;

use args::WorkloadArgs;
use tatami_client::Options;

/// Runs what the command line asks for and prints the report.
///
/// `options` is called only where the client library is used.
///
/// # Errors
/// A workload that could not be run to its end. A figure that misses its goal
/// is no error.
pub fn run(
    args: BenchArgs,
    options: impl FnOnce() -> Result<Options, BenchError>,
) -> Result<(), BenchError> {
    match args.workload {
        WorkloadArgs::Worker => worker::main(),
        WorkloadArgs::NullMount { path } => suite::null_mount(&path),
        WorkloadArgs::Mdtest(args) => {
            let report = mdtest::run(&args, &Launcher::this_program()?, options)?;
            show(args.json, &report, || report.render());
            Ok(())
        }
        WorkloadArgs::Ior(args) => {
            let report = ior::run(&args, &Launcher::this_program()?, options)?;
            show(args.json, &report, || report.render());
            Ok(())
        }
        WorkloadArgs::Wire(args) => {
            let report = wire::run(&args, &Launcher::this_program()?)?;
            show(args.json, &report, || report.render());
            Ok(())
        }
        WorkloadArgs::Suite(args) => suite::run(&args),
    }
}

fn show(json: bool, report: &impl serde::Serialize, render: impl FnOnce() -> String) {
    if json {
        println!("{}", serde_json::to_string_pretty(report).expect("reports are plain data"));
    } else {
        print!("{}", render());
    }
}
