//! The command line of `tatami bench`: definitions alone.
//!
//! Two programs need them. `tatami-bench` runs the workloads. `tatami` shows them in its help, its
//! manual and its completions, and starts `tatami-bench`.

mod figures;
mod prefix;
pub mod size;
mod small;
mod workloads;

pub use figures::{
    MpiArgs, MpiLibrary, MpiPart, PredictArgs, PredictNetwork, SERVERS_MAX, SuiteArgs,
};
pub use prefix::{Prefix, SUITE_PARTS};
pub use small::{DEPTH_MAX, PeerPaths, RegionsArgs, SmallFileKind, SmallfilesArgs};
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
    /// Directory of the volume, for --library [default: /etc/tatami/default if there is one, else
    /// /var/lib/tatami as root, or ~/.local/share/tatami]
    #[arg(long, value_name = "DIR", env = "TATAMI_DIR", hide_env_values = true,
          value_hint = clap::ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// The workloads.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum WorkloadArgs {
    /// Create, stat and remove directories and files
    #[command(after_help = "\
Examples:
  tatami bench mdtest /mnt/tatami/bench
  tatami bench mdtest -n 1000 -p 4 --shared /mnt/tatami/bench    all in one directory
  tatami bench mdtest -n 1000 --library --bulk 100 /bench        without a mount

The directory is made when it is missing. Files of the measurement are removed.")]
    Mdtest(MdtestArgs),
    /// Write, read and verify large files
    #[command(after_help = "\
Examples:
  tatami bench ior -t 1m -b 256m --verify /mnt/tatami/bench/file
  tatami bench ior -p 4 -F -C -e -b 16m /mnt/tatami/bench/file    a file for each process
  tatami bench ior -b 16m --library /bench/file                   without a mount

The directory of the file is made when it is missing.")]
    Ior(IorArgs),
    /// The bare rate of requests that do nothing
    #[command(after_help = "\
Examples:
  tatami bench wire
  tatami bench wire -p 4 -n 1000 --tcp")]
    Wire(WireArgs),
    /// Small objects on a region device, without a file system, beside fio
    #[command(after_help = "\
Examples:
  tatami bench regions
  tatami bench regions -n 200000 --depth 1,64 --work /scratch/work
  tatami bench regions -n 1024 --json

It needs about 3 times the room of all objects. A device must be empty, and is empty afterwards.")]
    Regions(RegionsArgs),
    /// Make, read and remove a data set of small files; makes its own volume
    #[command(after_help = "\
Examples:
  tatami bench smallfiles
  tatami bench smallfiles -n 100000 --all-kinds --peer /scratch/plain
  tatami bench smallfiles -n 2000 --directories 20 -p 2 /mnt/tatami/bench

Every byte that is read is compared. As root, caches of the machine are dropped before the first
read. Files of the measurement are removed.")]
    Smallfiles(SmallfilesArgs),
    /// All figures, next to the local disk; makes its own volume
    #[command(after_help = "\
Examples:
  tatami bench suite
  tatami bench suite --quick --runs 1 --only 'mount create'    to see that it works
  tatami bench suite --dir /scratch/work --out /scratch/summary.json")]
    Suite(SuiteArgs),
    /// How fast up to 1,024 servers would be, from what things take here
    #[command(after_help = "\
Examples:
  tatami bench predict
  tatami bench predict --servers 1,16,1024 --network ethernet
  tatami bench predict --quick --servers 1,2 --network infiniband --json")]
    Predict(PredictArgs),
    /// Shared files by MPI-IO: with the layer, without it, on the local disk
    #[command(after_help = "\
Examples:
  tatami bench mpi
  tatami bench mpi --mpi openmpi --only btio
  tatami bench mpi --quick --runs 1 --mpi openmpi --only ior")]
    Mpi(MpiArgs),
}
