//! The workloads of `tatami bench`, and their reports.
//!
//! The program lies beside `tatami`, which starts it. It starts volumes by the `tatami` command, as
//! a user would. Everything here but [`mpi`] runs without MPI. [`mdtest`] and [`ior`] run on any
//! file system, so that Tatami can be compared with the other file systems of the machine.
//!
//! - [`mdtest`] and [`ior`] are the two classic benchmarks, on a path or through the client
//!   library.
//! - [`wire`] measures the baseline of a metadata request.
//! - [`smallfiles`] makes, reads and removes a data set of small files, on a volume of its own or
//!   any mounts. [`regions`] measures the engine of such files beside fio.
//! - [`suite`] starts a volume of its own and takes the figures of `docs/performance.md`, each next
//!   to its baseline.
//! - [`predict`] predicts the speed of many servers.
//! - [`mpi`] runs the programs of `mpi-bench` with and without the MPI-IO layer.

mod bare_fs;
mod caches;
mod clock;
mod error;
mod figure;
mod interrupt;
mod ior;
mod loop_disk;
mod machine;
mod mdtest;
mod missing_dirs;
mod moosefs;
mod mpi;
mod null_fs;
mod null_mount;
mod null_server;
mod pattern;
mod predict;
mod process_use;
mod progress;
mod regions;
mod server_dirs;
mod smallfiles;
mod stats;
mod strace;
mod suite;
mod summary;
mod table;
mod tcp_copy;
mod volume;
mod volume_access;
mod wire;
mod work_dir;
mod worker;
mod worker_group;
mod workload;

use clap::Parser;
use error::BenchError;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use tatami_bench_args::{BenchVolumeArgs, WorkloadArgs};
use volume_access::VolumeAccess;
use worker_group::Launcher;

/// The allocator of the `tatami` command, so that workloads through the client library cost as much
/// as they do there.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measure this or any other file system
#[derive(Debug, clap::Parser)]
#[command(name = "tatami-bench", bin_name = "tatami bench", version, max_term_width = 100)]
struct BenchCli {
    #[command(flatten)]
    at: BenchVolumeArgs,
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    #[command(flatten)]
    Workload(WorkloadArgs),
    /// One process of a workload
    #[command(hide = true)]
    Worker,
    /// An empty FUSE file system, until the end of the standard input
    #[command(hide = true)]
    NullMount {
        /// Where. Several have the same names
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Not empty: this file, by passthrough
        #[arg(long)]
        file: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let failed = match run(BenchCli::parse()) {
        Ok(()) => return ExitCode::SUCCESS,
        // What an interruption ended has failed for this reason.
        Err(failed) => interrupt::check_interruption().err().unwrap_or(failed),
    };
    let (text, code) = match &failed {
        // The reader of the output has gone: no message, as after SIGPIPE.
        BenchError::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => {
            return ExitCode::from(128 + 13);
        }
        BenchError::Usage(text) => (text.clone(), 2),
        BenchError::Interrupted => (format!("the workload did not finish: {failed}"), 128 + 2),
        failed => (format!("the workload did not finish\n  cause: {failed}"), 1),
    };
    progress::print_progress(&format!("tatami: {text}"));
    ExitCode::from(code)
}

fn run(cli: BenchCli) -> Result<(), BenchError> {
    let out = &mut io::stdout().lock();
    let access = || VolumeAccess::from_args(&cli.at);
    if matches!(cli.command, BenchCommand::Workload(_)) {
        interrupt::watch_interruptions()?;
    }
    match cli.command {
        BenchCommand::Worker => worker::main(out),
        BenchCommand::NullMount { paths, file } => {
            null_mount::serve_null_mounts(&paths, file.as_deref(), out)
        }
        BenchCommand::Workload(WorkloadArgs::Mdtest(args)) => {
            let report = mdtest::run(&args, &Launcher::this_program()?, access)?;
            print_report(out, args.json, &report, || report.render())
        }
        BenchCommand::Workload(WorkloadArgs::Ior(args)) => {
            let report = ior::run(&args, &Launcher::this_program()?, access)?;
            print_report(out, args.json, &report, || report.render())
        }
        BenchCommand::Workload(WorkloadArgs::Wire(args)) => {
            let report = wire::run(&args, &Launcher::this_program()?)?;
            print_report(out, args.json, &report, || report.render())
        }
        BenchCommand::Workload(WorkloadArgs::Regions(args)) => {
            let report = regions::run(&args)?;
            print_report(out, args.json, &report, || report.render())
        }
        BenchCommand::Workload(WorkloadArgs::Smallfiles(args)) => {
            let report = smallfiles::run(&args, &Launcher::this_program()?)?;
            print_report(out, args.json, &report, || report.render())
        }
        BenchCommand::Workload(WorkloadArgs::Suite(args)) => suite::run(&args, out),
        BenchCommand::Workload(WorkloadArgs::Predict(args)) => predict::run(&args, out),
        BenchCommand::Workload(WorkloadArgs::Mpi(args)) => mpi::run(&args, out),
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
