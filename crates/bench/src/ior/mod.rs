//! The classic bandwidth benchmark: N processes write and read one shared file
//! or a file each, in transfers, blocks and segments as IOR has them. Needs no MPI.

mod file;
mod rank;
mod shape;

pub use file::{IoMethod, TestFilePlace, page_bytes};
pub use rank::{ExistingFile, IorPart, IorRank};
pub use shape::IorShape;

use crate::clock::Steal;
use crate::error::BenchError;
use crate::size;
use crate::stats::RunSpread;
use crate::table::{ReportTable, format_number, format_percent};
use crate::volume_access::VolumeAccess;
use crate::worker::WorkerTask;
use crate::worker_group::{Launcher, PhaseOutcome, WorkerGroup};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tatami_client::ClientOptions;

/// Options of `tatami bench ior`. Letters are IOR's where it has one.
#[derive(Clone, Debug, clap::Args)]
pub struct IorArgs {
    /// Test file: on any file system, or with --library a path from the volume's root
    pub file: PathBuf,
    /// Number of processes
    #[arg(short = 'p', long, default_value_t = 1, value_parser = crate::args::procs)]
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

impl IorArgs {
    fn to_shape(&self) -> IorShape {
        IorShape {
            transfer: self.transfer,
            block: self.block,
            segments: self.segments,
            procs: self.procs,
            file_per_process: self.file_per_process,
            random: self.random,
        }
    }

    fn phase_names(&self) -> Vec<&'static str> {
        let mut phases = Vec::new();
        if !self.read_only {
            phases.push("write");
        }
        if !self.write_only {
            phases.push("read");
        }
        if self.verify {
            phases.push("verify");
        }
        phases
    }
}

/// One phase over all iterations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IorPhaseResult {
    /// `write`, `read` or `verify`
    pub phase: String,
    /// MiB per second of all processes together, with open, sync and close.
    pub mib_per_sec: RunSpread,
    /// Transfers per second of all processes together. Median.
    pub ops_per_sec: f64,
    /// CPU time (user and system) of the processes for one transfer, in microseconds. Median.
    pub cpu_us_per_op: f64,
    /// Bytes of one iteration.
    pub bytes: u64,
    /// Share of CPU time that the host gave to others, 0 to 1. Largest.
    pub stolen: f64,
}

/// The report of IOR.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IorReport {
    /// `ior`
    pub workload: String,
    /// The test file.
    pub file: String,
    /// `posix`, `direct`, `mmap` or `library`
    pub through: String,
    /// The geometry.
    pub shape: IorShape,
    /// Number of iterations.
    pub iterations: u32,
    /// The phases, in order.
    pub phases: Vec<IorPhaseResult>,
}

/// Runs the benchmark and removes its files, unless `keep` is set.
///
/// # Errors
/// The first operation that fails, and bytes with a wrong value.
pub fn run(
    args: &IorArgs,
    launcher: &Launcher,
    options: impl FnOnce() -> Result<ClientOptions, BenchError>,
) -> Result<IorReport, BenchError> {
    let shape = args.to_shape();
    shape.validate().map_err(BenchError::Usage)?;
    let (place, through) = test_place(args, options)?;
    let part = |rank| IorPart {
        place: place.clone(),
        shape,
        rank,
        reorder: args.reorder,
        fsync: args.fsync,
        before: if args.existing { ExistingFile::Keep } else { ExistingFile::Remove },
        stamp: args.verify,
        seed: args.seed,
    };
    let mut gang =
        WorkerGroup::start(launcher, (0..args.procs).map(|r| WorkerTask::Ior(part(r))).collect())?;
    let phases = args.phase_names();
    let mut runs: Vec<Vec<(PhaseOutcome, f64)>> = vec![Vec::new(); phases.len()];
    for _ in 0..args.iterations {
        for (phase, runs) in phases.iter().zip(&mut runs) {
            let steal = Steal::now();
            let outcome = gang.run_phase(phase)?;
            runs.push((outcome, steal.stolen_share()));
        }
    }
    if !args.keep && !args.read_only {
        gang.run_phase("remove")?;
    }
    let phases =
        phases.iter().zip(&runs).map(|(phase, runs)| summarize_phase(phase, runs)).collect();
    Ok(IorReport {
        workload: "ior".into(),
        file: args.file.display().to_string(),
        through: through.into(),
        shape,
        iterations: args.iterations,
        phases,
    })
}

fn test_place(
    args: &IorArgs,
    options: impl FnOnce() -> Result<ClientOptions, BenchError>,
) -> Result<(TestFilePlace, &'static str), BenchError> {
    if args.library {
        let path = args.file.to_str().filter(|f| f.starts_with('/')).ok_or_else(|| {
            BenchError::Usage(
                "with --library, FILE is a path from the volume's root, such as /data".into(),
            )
        })?;
        return Ok((
            TestFilePlace::Library(VolumeAccess::from(&options()?), path.into()),
            "library",
        ));
    }
    let (method, through) = match (args.direct, args.mmap) {
        (true, _) => (IoMethod::Direct, "direct"),
        (_, true) => (IoMethod::Mapped, "mmap"),
        _ => (IoMethod::Buffered, "posix"),
    };
    Ok((TestFilePlace::Path(args.file.clone(), method), through))
}

fn summarize_phase(phase: &str, runs: &[(PhaseOutcome, f64)]) -> IorPhaseResult {
    let all = |f: &dyn Fn(&PhaseOutcome) -> f64| {
        RunSpread::from_values(&runs.iter().map(|(o, _)| f(o)).collect::<Vec<_>>())
    };
    IorPhaseResult {
        phase: phase.into(),
        mib_per_sec: all(&|o| o.mib_per_sec()),
        ops_per_sec: all(&|o| o.ops_per_sec()).median,
        cpu_us_per_op: all(&|o| o.cpu_us_per_op()).median,
        bytes: runs.first().map_or(0, |(o, _)| o.bytes),
        stolen: runs.iter().map(|(_, stolen)| *stolen).fold(0.0, f64::max),
    }
}

impl IorReport {
    /// Renders the report for people.
    pub fn render(&self) -> String {
        let mut table =
            ReportTable::new(&["phase", "min MiB/s", "median", "max", "CPU µs/op", "stolen"]);
        for p in &self.phases {
            table.add_row(vec![
                p.phase.clone(),
                format_number(p.mib_per_sec.min),
                format_number(p.mib_per_sec.median),
                format_number(p.mib_per_sec.max),
                format_number(p.cpu_us_per_op),
                format_percent(p.stolen),
            ]);
        }
        format!(
            "ior on {} ({}): {} processes, {}, transfer {}, block {}, {} segments{}, {} iterations\n{}",
            self.file,
            self.through,
            self.shape.procs,
            if self.shape.file_per_process { "a file each" } else { "one shared file" },
            size::format_size(self.shape.transfer),
            size::format_size(self.shape.block),
            self.shape.segments,
            if self.shape.random { ", random order" } else { "" },
            self.iterations,
            table.render()
        )
    }
}
