//! The command line of `tatami bench`: definitions alone.
//!
//! Two programs need them. `tatami-bench` runs the workloads. `tatami` shows them in its help, its
//! manual and its completions, and starts `tatami-bench`.

mod figures;
mod prefix;
pub mod size;
mod workloads;

pub use figures::{
    MpiArgs, MpiLibrary, MpiPart, PredictArgs, PredictNetwork, SERVERS_MAX, SuiteArgs,
};
pub use prefix::{Prefix, SUITE_PARTS};
pub use workloads::{IorArgs, MdtestArgs, PROCS_MAX, WireArgs};

use std::path::PathBuf;

/// The name of the program that runs the workloads.
pub const PROGRAM: &str = "tatami-bench";

/// Measure this or any other file system.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// The volume of workloads with --library.
    #[command(flatten)]
    pub at: BenchVolumeArgs,
    /// The workload.
    #[command(subcommand)]
    pub workload: WorkloadArgs,
}

/// The volume of workloads that use the client library.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchVolumeArgs {
    /// Directory of the volume, for --library [default: /var/lib/tatami as root, else
    /// ~/.local/share/tatami]
    #[arg(long, value_name = "DIR", env = "TATAMI_DIR", hide_env_values = true,
          value_hint = clap::ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// The workloads.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum WorkloadArgs {
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
}
