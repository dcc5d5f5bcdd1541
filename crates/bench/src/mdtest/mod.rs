//! The classic metadata benchmark: N processes create, stat and remove directories and files, each
//! in its own directory or all in one.
//!
//! The phases and their meaning follow mdtest (of the IOR distribution), without MPI and without
//! the tree: only one directory counts.

pub mod names;
pub mod rank;

use crate::clock::{MachineUse, Steal};
use crate::error::{BenchError, path_error, volume_error};
use crate::missing_dirs;
use crate::stats::{RunSpread, ratio_or_zero};
use crate::table::{ReportTable, format_percent};
use crate::volume_access::{VolumeAccess, own_cred};
use crate::worker::WorkerTask;
use crate::worker_group::{Launcher, PhaseOutcome, WorkerGroup};
use names::{MdtestOp, WorkloadPlace};
use rank::MdtestPart;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tatami_bench_args::MdtestArgs;
use tatami_client::tree::VolumeTree;
use tatami_plot::format_number;

/// One phase over all iterations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MdtestPhaseResult {
    /// Its name.
    pub phase: String,
    /// Operations per second of all processes together.
    pub ops_per_sec: RunSpread,
    /// CPU time (user and system) of the processes for one operation, in microseconds, without that
    /// of daemons and mounts. Median.
    pub cpu_us_per_op: f64,
    /// Operations of one iteration.
    pub ops: u64,
    /// CPU time of the whole machine for one operation, in microseconds: with daemons, mounts and
    /// whatever else ran. Median.
    pub machine_cpu_us_per_op: f64,
    /// Context switches of the whole machine for one operation. Median.
    pub switches_per_op: f64,
    /// Operations of all iterations that took longer than 20 ms.
    pub slow_ops: u64,
    /// The slowest operation of all iterations, in milliseconds.
    pub slowest_ms: f64,
    /// Share of CPU time that the host gave to others, 0 to 1. Largest.
    pub stolen: f64,
}

/// The report of mdtest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MdtestReport {
    /// `mdtest`
    pub workload: String,
    /// The directory, by the first of its paths.
    pub dir: String,
    /// Number of paths that lead to it, such as mounts. The processes take them in turn.
    pub mounts: usize,
    /// `posix` or `library`
    pub through: String,
    /// Number of processes.
    pub procs: usize,
    /// Files, and directories, of each.
    pub items: u64,
    /// Whether all worked in one directory.
    pub shared: bool,
    /// Operations in one request.
    pub bulk: usize,
    /// Threads of each process.
    pub threads: usize,
    /// Number of iterations.
    pub iterations: u32,
    /// The phases, in order.
    pub phases: Vec<MdtestPhaseResult>,
}

/// Runs the benchmark and removes its files.
///
/// # Errors
/// The first operation that fails.
pub fn run(
    args: &MdtestArgs,
    launcher: &Launcher,
    access: impl FnOnce() -> Result<VolumeAccess, BenchError>,
) -> Result<MdtestReport, BenchError> {
    let place = if args.library {
        let dir = args.dirs[0].to_str().filter(|d| d.starts_with('/')).ok_or_else(|| {
            BenchError::Usage(
                "with --library, DIR is a path from the volume's root, such as /".into(),
            )
        })?;
        WorkloadPlace::Library { reach: access()?, dir: dir.into() }
    } else {
        WorkloadPlace::Path { dir: args.dirs[0].clone(), relative: args.relative }
    };
    let site = MdtestSite::create(&place, args.procs, args.shared)?;
    let phases = measure_phases(args, launcher, &site);
    let removed = site.remove();
    let phases = phases?;
    removed?;
    Ok(MdtestReport {
        workload: "mdtest".into(),
        dir: args.dirs[0].display().to_string(),
        mounts: args.dirs.len(),
        through: if args.library { "library" } else { "posix" }.into(),
        procs: args.procs,
        items: args.items,
        shared: args.shared,
        bulk: args.bulk,
        threads: args.threads,
        iterations: args.iterations,
        phases,
    })
}

/// A phase of one iteration.
struct MdtestRun {
    outcome: PhaseOutcome,
    machine: MachineUse,
    stolen: f64,
}

fn measure_phases(
    args: &MdtestArgs,
    launcher: &Launcher,
    site: &MdtestSite,
) -> Result<Vec<MdtestPhaseResult>, BenchError> {
    let parts = site.process_parts(args.procs, args.items, args.shared, args.shift);
    let parts = parts.into_iter().enumerate().map(|(rank, part)| MdtestPart {
        place: part.place.through_mount(&args.dirs[rank % args.dirs.len()]),
        bulk: args.bulk,
        threads: args.threads,
        ..part
    });
    let mut gang = WorkerGroup::start(launcher, parts.map(WorkerTask::Mdtest).collect())?;
    let mut runs: [Vec<MdtestRun>; 6] = Default::default();
    for _ in 0..args.iterations {
        for (op, runs) in MdtestOp::ALL.into_iter().zip(&mut runs) {
            gang.prepare_phase(op.name())?;
            let (steal, machine) = (Steal::now(), MachineUse::now());
            gang.start_phase()?;
            let outcome = PhaseOutcome::from_reports(&gang.collect_reports()?);
            let machine = machine.used_since();
            runs.push(MdtestRun { outcome, machine, stolen: steal.stolen_share() });
        }
    }
    Ok(MdtestOp::ALL
        .into_iter()
        .zip(&runs)
        .map(|(op, runs)| {
            let all = |f: &dyn Fn(&MdtestRun) -> f64| {
                RunSpread::from_values(&runs.iter().map(f).collect::<Vec<_>>())
            };
            let per_op =
                |run: &MdtestRun, all: u64| ratio_or_zero(all as f64, run.outcome.ops as f64);
            MdtestPhaseResult {
                phase: op.name().into(),
                ops_per_sec: all(&|run| run.outcome.ops_per_sec()),
                cpu_us_per_op: all(&|run| run.outcome.cpu_us_per_op()).median,
                machine_cpu_us_per_op: all(&|run| per_op(run, run.machine.busy_us)).median,
                switches_per_op: all(&|run| per_op(run, run.machine.switches)).median,
                ops: runs[0].outcome.ops,
                slow_ops: runs.iter().map(|run| run.outcome.slow_ops).sum(),
                slowest_ms: all(&|run| run.outcome.slowest_ns as f64 / 1e6).max,
                stolen: all(&|run| run.stolen).max,
            }
        })
        .collect())
}

/// The directories of a run: created before it and removed after it.
pub struct MdtestSite {
    place: WorkloadPlace,
    tree: Option<VolumeTree>,
}

impl MdtestSite {
    /// Creates a fresh directory below `place`, and in it those of the processes.
    ///
    /// # Errors
    /// When a directory cannot be created.
    pub fn create(
        place: &WorkloadPlace,
        procs: usize,
        shared: bool,
    ) -> Result<MdtestSite, BenchError> {
        let name = format!("tatami-mdtest.{}", std::process::id());
        let subs: Vec<String> = if shared {
            vec!["shared".into()]
        } else {
            (0..procs).map(|r| format!("private.{r}")).collect()
        };
        match place {
            WorkloadPlace::Path { dir, relative } => {
                missing_dirs::make_local_dir(dir)?;
                let dir = dir.join(name);
                for dir in std::iter::once(dir.clone()).chain(subs.iter().map(|s| dir.join(s))) {
                    std::fs::create_dir(&dir).map_err(path_error("creating", &dir))?;
                }
                Ok(MdtestSite {
                    place: WorkloadPlace::Path { dir, relative: *relative },
                    tree: None,
                })
            }
            WorkloadPlace::Objects { dir } => {
                let dir = dir.join(name);
                for sub in &subs {
                    for bucket in names::bucket_names() {
                        let path = dir.join(sub).join(bucket);
                        std::fs::create_dir_all(&path).map_err(path_error("creating", &path))?;
                    }
                }
                Ok(MdtestSite { place: WorkloadPlace::Objects { dir }, tree: None })
            }
            WorkloadPlace::Library { reach, dir } => {
                let tree = VolumeTree::new(Arc::new(reach.connect_client()?), own_cred());
                missing_dirs::make_volume_dir(&tree, dir)?;
                let dir = format!("{}/{name}", dir.trim_end_matches('/'));
                for dir in
                    std::iter::once(dir.clone()).chain(subs.iter().map(|s| format!("{dir}/{s}")))
                {
                    tree.mkdir(dir.as_bytes(), 0o755, 0)
                        .map_err(volume_error("creating", dir.as_bytes()))?;
                }
                let reach = reach.clone();
                Ok(MdtestSite { place: WorkloadPlace::Library { reach, dir }, tree: Some(tree) })
            }
        }
    }

    /// Returns the task of each process, by rank.
    pub fn process_parts(
        &self,
        procs: usize,
        items: u64,
        shared: bool,
        shift: usize,
    ) -> Vec<MdtestPart> {
        let place = &self.place;
        (0..procs)
            .map(|rank| MdtestPart {
                place: place.clone(),
                rank,
                procs,
                items,
                shared,
                shift,
                bulk: 1,
                threads: 1,
            })
            .collect()
    }

    /// Removes the directory and everything that is left in it.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn remove(&self) -> Result<(), BenchError> {
        match (&self.place, &self.tree) {
            (WorkloadPlace::Path { dir, .. } | WorkloadPlace::Objects { dir }, _) => {
                std::fs::remove_dir_all(dir).map_err(path_error("removing", dir))
            }
            (WorkloadPlace::Library { dir, .. }, Some(tree)) => tree
                .remove_all(dir.as_bytes(), false, &mut |_| {})
                .map_err(volume_error("removing", dir.as_bytes())),
            (WorkloadPlace::Library { .. }, None) => Ok(()),
        }
    }
}

impl MdtestReport {
    /// Renders the report for people.
    pub fn render(&self) -> String {
        let mut table = ReportTable::new(&[
            "phase",
            "min ops/s",
            "median",
            "max",
            "CPU µs/op",
            "of all",
            "switches/op",
            "over 20 ms",
            "slowest ms",
            "stolen",
        ]);
        for p in &self.phases {
            table.add_row(vec![
                p.phase.clone(),
                format_number(p.ops_per_sec.min),
                format_number(p.ops_per_sec.median),
                format_number(p.ops_per_sec.max),
                format_number(p.cpu_us_per_op),
                format_number(p.machine_cpu_us_per_op),
                format_number(p.switches_per_op),
                p.slow_ops.to_string(),
                format_number(p.slowest_ms),
                format_percent(p.stolen),
            ]);
        }
        format!(
            "mdtest on {}{} ({}): {} processes{} × {} items, {}, {}{} iterations\n{}",
            self.dir,
            if self.mounts > 1 {
                format!(" through {} mounts", self.mounts)
            } else {
                String::new()
            },
            self.through,
            self.procs,
            if self.threads > 1 { format!(" of {} threads", self.threads) } else { String::new() },
            self.items,
            if self.shared { "one shared directory" } else { "a directory each" },
            if self.bulk > 1 { format!("{} in a request, ", self.bulk) } else { String::new() },
            self.iterations,
            table.render()
        )
    }
}
