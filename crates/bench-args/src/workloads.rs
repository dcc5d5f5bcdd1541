//! The arguments of workloads that run on any file system: mdtest, ior, wire.

use crate::size;
use std::path::PathBuf;
use tatami_wire::batch::BATCH_OPS_MAX;

/// Most processes of one workload.
pub const PROCS_MAX: usize = 1024;

/// Parses the number of processes.
///
/// # Errors
/// A sentence with the bounds.
pub(crate) fn parse_procs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=PROCS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a workload has 1 to {PROCS_MAX} processes")),
    }
}

/// Parses the number of operations in one request.
///
/// # Errors
/// A sentence with the bounds.
fn parse_bulk(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=BATCH_OPS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a request has 1 to {BATCH_OPS_MAX} operations")),
    }
}

/// Options of `tatami bench mdtest`.
#[derive(Clone, Debug, clap::Args)]
pub struct MdtestArgs {
    /// Directory to work in: on any file system, or with --library a path from the volume's root.
    /// Several: the same directory on several mounts, which the processes take in turn
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Files, and directories, that each process makes
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub items: u64,
    /// Number of processes
    #[arg(short = 'p', long, default_value_t = 1, value_parser = parse_procs)]
    pub procs: usize,
    /// How often everything is repeated
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub iterations: u32,
    /// All processes in one directory (default: each in its own)
    #[arg(long)]
    pub shared: bool,
    /// Each process stats what the process this many numbers further has made
    #[arg(long, default_value_t = 0)]
    pub shift: usize,
    /// Open the directory once and resolve names from there (default: whole paths)
    #[arg(long)]
    pub relative: bool,
    /// Through the client library instead of system calls
    #[arg(long)]
    pub library: bool,
    /// With --library: so many operations in one request
    #[arg(long, default_value_t = 1, requires = "library", value_name = "N", value_parser = parse_bulk)]
    pub bulk: usize,
    /// Threads of each process, each with a part of its items
    #[arg(short = 't', long, default_value_t = 1, value_parser = parse_procs)]
    pub threads: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `tatami bench ior`. Letters are IOR's where it has one.
#[derive(Clone, Debug, clap::Args)]
pub struct IorArgs {
    /// Test file: on any file system, or with --library a path from the volume's root
    pub file: PathBuf,
    /// Number of processes
    #[arg(short = 'p', long, default_value_t = 1, value_parser = parse_procs)]
    pub procs: usize,
    /// Bytes of one read or write (k, m, g)
    #[arg(short = 't', long, default_value = "1m", value_parser = size::parse)]
    pub transfer: u64,
    /// Bytes of one process in a segment (k, m, g)
    #[arg(short = 'b', long, default_value = "64m", value_parser = size::parse)]
    pub block: u64,
    /// Number of segments
    #[arg(short = 's', long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub segments: u64,
    /// A file for each process (default: one shared file)
    #[arg(short = 'F', long)]
    pub file_per_process: bool,
    /// Each process reads what the next one has written
    #[arg(short = 'C', long)]
    pub reorder: bool,
    /// Sync before close, in the time of the write
    #[arg(short = 'e', long)]
    pub fsync: bool,
    /// Transfers in random order
    #[arg(short = 'z', long)]
    pub random: bool,
    /// With O_DIRECT
    #[arg(long, conflicts_with = "mmap")]
    pub direct: bool,
    /// Through a shared mapping
    #[arg(long)]
    pub mmap: bool,
    /// Stamp every byte with its place, and check all in a phase of its own
    #[arg(long)]
    pub verify: bool,
    /// Write only
    #[arg(short = 'w', long)]
    pub write_only: bool,
    /// Read only, what an earlier run with --keep has written
    #[arg(short = 'r', long, conflicts_with = "write_only")]
    pub read_only: bool,
    /// Write over the existing file (default: remove it first)
    #[arg(short = 'E', long)]
    pub existing: bool,
    /// Leave the files
    #[arg(short = 'k', long)]
    pub keep: bool,
    /// How often everything is repeated
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub iterations: u32,
    /// Distinguishes the bytes of one run from those of another
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Through the client library instead of system calls
    #[arg(long, conflicts_with_all = ["direct", "mmap"])]
    pub library: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `tatami bench wire`.
#[derive(Clone, Debug, clap::Args)]
pub struct WireArgs {
    /// Number of client processes
    #[arg(short = 'p', long, default_value_t = 1, value_parser = parse_procs)]
    pub procs: usize,
    /// Requests of each process in a phase
    #[arg(short = 'n', long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub requests: u64,
    /// How often everything is repeated
    #[arg(short = 'i', long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub iterations: u32,
    /// Over TCP on the loopback (default: a UNIX socket)
    #[arg(long)]
    pub tcp: bool,
    /// Echo the bytes, without encoding, checksums and decoding
    #[arg(long)]
    pub bytes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
