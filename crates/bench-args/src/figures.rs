//! The arguments of the commands that take figures beside baselines: suite, predict, mpi.

use crate::prefix::Prefix;
use std::path::PathBuf;

/// Most servers of a prediction.
pub const SERVERS_MAX: u16 = 1024;

/// Options of `tatami bench suite`.
#[derive(Clone, Debug, clap::Args)]
pub struct SuiteArgs {
    /// Directory for the volume and the local files it is compared with, on the disk to be measured
    #[arg(long, default_value = "bench-results/work", alias = "dir")]
    pub work: PathBuf,
    /// Where the summary goes, as JSON; the table goes beside it, as Markdown
    #[arg(long, default_value = "bench-results/summary.json")]
    pub out: PathBuf,
    /// How often each figure is taken, on both sides
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Measure only figures whose names begin with one of these words: a part (passthrough, remote,
    /// encryption, copy, mount, mounts, commands, peers, library, preload, servers, large,
    /// scaling, smallfiles), or more of the name without its commas, such as "passthrough write
    /// cached" or "mount create"
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Prefix::parse)]
    pub only: Vec<Prefix>,
    /// Entries of the large directory (10,000,000 take some 15 minutes and 8 GB of disk)
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    pub entries: u64,
    /// Little of everything: to see that it works, not to measure
    #[arg(long)]
    pub quick: bool,
    /// Names on all CPUs, too (default: except in the parts mounts, commands, peers, scaling and
    /// smallfiles, daemons, mounts and programs share one there)
    #[arg(long)]
    pub all_cpus: bool,
    /// The tatami command that starts the volume, if it is not the one beside this program
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// Options of `tatami bench predict`.
#[derive(Clone, Debug, clap::Args)]
pub struct PredictArgs {
    /// Numbers of servers; efficiency is relative to the first
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,5,8,16,32,64,128,256,512,1024",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    pub servers: Vec<u16>,
    /// Networks (default: all)
    #[arg(long, value_delimiter = ',')]
    pub network: Vec<PredictNetwork>,
    /// Client processes for each server
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Operations of each server that are counted
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub each: u64,
    /// What things take, from the results of an earlier run; nothing is measured then
    #[arg(long, value_name = "FILE")]
    pub times: Option<PathBuf>,
    /// Directory for the volumes that are measured
    #[arg(long, default_value = "bench-results/work-predict", alias = "dir")]
    pub work: PathBuf,
    /// Where the results go, as JSON
    #[arg(long, default_value = "bench-results/predicted.json")]
    pub out: PathBuf,
    /// Where plots go, as SVG (default: beside the results)
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// How often each time is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Servers take messages of other servers before requests: what that would change
    #[arg(long)]
    pub peers_first: bool,
    /// From which everything random follows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Little of everything: to see that it works
    #[arg(long)]
    pub quick: bool,
    /// Print the tables as Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// The tatami command that is measured, if it is not the one beside this program
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// A network between servers and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PredictNetwork {
    /// 25 to 50 µs one way
    Ethernet,
    /// 1.5 to 2.5 µs one way
    Infiniband,
    /// 4.5 to 5.5 ms one way
    WideArea,
}

/// An MPI library, by the suffix that Debian gives its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MpiLibrary {
    /// Open MPI
    Openmpi,
    /// MPICH
    Mpich,
}

impl MpiLibrary {
    /// Both libraries.
    pub const ALL: [MpiLibrary; 2] = [MpiLibrary::Openmpi, MpiLibrary::Mpich];

    /// Returns the name that is part of the names of commands and figures.
    pub fn name(self) -> &'static str {
        match self {
            MpiLibrary::Openmpi => "openmpi",
            MpiLibrary::Mpich => "mpich",
        }
    }
}

/// Options of `tatami bench mpi`.
#[derive(Clone, Debug, clap::Args)]
pub struct MpiArgs {
    /// Further directories to measure, without the layer, in the part "places"
    #[arg(long, value_name = "PATH", num_args = 1.., alias = "dir")]
    pub places: Vec<PathBuf>,
    /// Directory for files, containers and the volume, on the disk to be measured
    #[arg(long, default_value = "bench-results/work-mpi")]
    pub work: PathBuf,
    /// Where the summary goes, as JSON; the table, as Markdown, and plots go beside it
    #[arg(long, default_value = "bench-results/summary-mpi.json")]
    pub out: PathBuf,
    /// MPI libraries (default: all that there are programs for)
    #[arg(long, value_delimiter = ',')]
    pub mpi: Vec<MpiLibrary>,
    /// Only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<MpiPart>,
    /// How often each figure is taken, on all sides
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// No further runs of a figure are begun after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub budget: u64,
    /// Processes, where the workload does not need another number
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Little of everything: to see that it works, not to measure
    #[arg(long)]
    pub quick: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
    /// The folder with the programs, a folder for each MPI
    #[arg(long)]
    pub programs: Option<PathBuf>,
    /// The layer's library
    #[arg(long)]
    pub layer: Option<PathBuf>,
    /// The layer's side without the layer: to try this command where there is none
    #[arg(long, hide = true)]
    pub without_layer: bool,
    /// The tatami command that starts the volume, if it is not the one beside this program
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// A part that can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MpiPart {
    /// IOR's pattern, strided
    Ior,
    /// HPIO's patterns
    Hpio,
    /// BT-IO
    Btio,
    /// Reads with other processes and views than the writers'
    Reread,
    /// System calls
    Calls,
    /// The same writes on a volume, and in further directories
    Places,
    /// The plots
    Plots,
}
