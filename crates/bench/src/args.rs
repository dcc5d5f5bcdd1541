//! The command line of `tatami bench`.

use crate::ior::IorArgs;
use crate::mdtest::MdtestArgs;
use crate::mpi::MpiArgs;
use crate::predict::PredictArgs;
use crate::suite::SuiteArgs;
use crate::wire::WireArgs;
use crate::worker_group::PROCS_MAX;
use std::path::PathBuf;
use tatami_wire::batch::BATCH_OPS_MAX;

/// Measure this or any other file system.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) workload: WorkloadArgs,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum WorkloadArgs {
    /// Create, stat and remove directories and files
    Mdtest(MdtestArgs),
    /// Write, read and verify large files
    Ior(IorArgs),
    /// The bare rate of requests that do nothing
    Wire(WireArgs),
    /// All figures, next to the local disk; makes its own volume
    Suite(SuiteArgs),
    /// How fast up to 1,024 servers would be, from what things take here
    Predict(PredictArgs),
    /// Shared files by MPI-IO: with the layer, without it, on the local disk
    Mpi(MpiArgs),
    /// One process of a workload
    #[command(hide = true)]
    Worker,
    /// An empty FUSE file system, until the end of the standard input
    #[command(hide = true)]
    NullMount {
        /// Where
        path: PathBuf,
        /// Not empty: this file, by passthrough
        #[arg(long)]
        file: Option<PathBuf>,
    },
}

/// Number of processes on the command line.
///
/// # Errors
/// A sentence with the bounds.
pub(crate) fn procs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=PROCS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a workload has 1 to {PROCS_MAX} processes")),
    }
}

/// Number of operations in one request on the command line.
///
/// # Errors
/// A sentence with the bounds.
pub(crate) fn bulk(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=BATCH_OPS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a request has 1 to {BATCH_OPS_MAX} operations")),
    }
}
