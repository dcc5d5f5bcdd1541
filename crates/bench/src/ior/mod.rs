//! The classic bandwidth benchmark: N processes write and read one shared file
//! or a file each, in transfers, blocks and segments as IOR has them. Needs no MPI.

pub mod file;
pub mod rank;
pub mod shape;

use crate::clock::Steal;
use crate::error::BenchError;
use crate::stats::RunSpread;
use crate::table::{ReportTable, format_percent};
use crate::volume_access::VolumeAccess;
use crate::worker::WorkerTask;
use crate::worker_group::{Launcher, PhaseOutcome, WorkerGroup};
use file::{IoMethod, TestFilePlace};
use rank::{ExistingFile, IorPart};
use serde::{Deserialize, Serialize};
use shape::IorShape;
use tatami_bench_args::{IorArgs, size};
use tatami_plot::format_number;

fn shape_of(args: &IorArgs) -> IorShape {
    IorShape {
        transfer: args.transfer,
        block: args.block,
        segments: args.segments,
        procs: args.procs,
        file_per_process: args.file_per_process,
        random: args.random,
    }
}

fn phase_names(args: &IorArgs) -> Vec<&'static str> {
    let chosen = [(!args.read_only, "write"), (!args.write_only, "read"), (args.verify, "verify")];
    chosen.into_iter().filter(|(wanted, _)| *wanted).map(|(_, phase)| phase).collect()
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
    access: impl FnOnce() -> Result<VolumeAccess, BenchError>,
) -> Result<IorReport, BenchError> {
    let shape = shape_of(args);
    shape.validate().map_err(BenchError::Usage)?;
    let (place, through) = test_place(args, access)?;
    if !args.read_only {
        file::make_parent(&place)?;
    }
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
    let phases = phase_names(args);
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
    access: impl FnOnce() -> Result<VolumeAccess, BenchError>,
) -> Result<(TestFilePlace, &'static str), BenchError> {
    if args.library {
        let path = args.file.to_str().filter(|f| f.starts_with('/')).ok_or_else(|| {
            BenchError::Usage(
                "with --library, FILE is a path from the volume's root, such as /data".into(),
            )
        })?;
        return Ok((TestFilePlace::Library(access()?, path.into()), "library"));
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
