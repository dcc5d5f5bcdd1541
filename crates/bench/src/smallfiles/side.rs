//! A data set on one file system, and the processes that use it.

use super::rank::{SmallFileSet, SmallFilesPart};
use crate::clock::Steal;
use crate::error::{BenchError, path_error, volume_error};
use crate::mdtest::names::WorkloadPlace;
use crate::missing_dirs::make_local_dir;
use crate::process_use::{MemoryUse, await_quiet_servers, total_cpu_ns};
use crate::stats::ratio_or_zero;
use crate::volume::BenchVolume;
use crate::volume_access::{VolumeAccess, own_cred};
use crate::worker::WorkerTask;
use crate::worker_group::{Launcher, PhaseOutcome, WorkerGroup};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tatami_client::tree::VolumeTree;

/// Sides that this process has started.
static SIDES: AtomicU64 = AtomicU64::new(0);

/// The processes that serve a file system.
#[derive(Clone, Debug, Default)]
pub struct ServingProcesses {
    /// Daemons.
    pub daemons: Vec<u32>,
    /// Mounts.
    pub mounts: Vec<u32>,
}

impl ServingProcesses {
    /// Finds those of a volume.
    ///
    /// # Errors
    /// When a daemon does not answer.
    pub fn of_volume(volume: &BenchVolume) -> Result<ServingProcesses, BenchError> {
        let daemons = volume.daemon_pids()?;
        let mut mounts = volume.server_pids()?;
        mounts.retain(|pid| !daemons.contains(pid));
        Ok(ServingProcesses { daemons, mounts })
    }

    fn process_ids(&self) -> Vec<u32> {
        [&self.daemons[..], &self.mounts].concat()
    }
}

/// How processes reach the directory of a side.
#[derive(Clone, Debug)]
pub enum SideReach {
    /// The same directory by several paths, at least one. The processes take them in turn.
    Paths(Vec<PathBuf>),
    /// A directory of a volume, by the client library.
    Library(VolumeAccess, String),
    /// As before, but each file is made with all its bytes by one call.
    WholeFiles(VolumeAccess, String),
}

/// The result of a phase on one side.
#[derive(Clone, Debug)]
pub struct SmallFilesCost {
    /// Rates and times of the processes.
    pub outcome: PhaseOutcome,
    /// Nanoseconds of CPU time of daemons and mounts.
    pub servers_ns: u64,
    /// Memory of daemons at the end.
    pub daemons: MemoryUse,
    /// Memory of mounts at the end.
    pub mounts: MemoryUse,
    /// Share of CPU time that the host gave to others, 0 to 1.
    pub stolen: f64,
}

impl SmallFilesCost {
    /// Returns microseconds of CPU time of daemons and mounts for a file.
    pub fn servers_us(&self) -> f64 {
        ratio_or_zero(self.servers_ns as f64 / 1e3, self.outcome.ops as f64)
    }
}

/// The new directory in which a side works. A drop removes it, with all that is left.
enum SideDirectory {
    Path(PathBuf),
    Volume(VolumeTree, String),
}

impl SideDirectory {
    fn make(reach: &SideReach, name: &str) -> Result<SideDirectory, BenchError> {
        match reach {
            SideReach::Paths(paths) => {
                make_local_dir(&paths[0])?;
                let dir = paths[0].join(name);
                std::fs::create_dir(&dir).map_err(path_error("creating", &dir))?;
                Ok(SideDirectory::Path(dir))
            }
            SideReach::Library(access, parent) | SideReach::WholeFiles(access, parent) => {
                let tree = VolumeTree::new(Arc::new(access.connect_client()?), own_cred());
                let dir = format!("{}/{name}", parent.trim_end_matches('/'));
                let made = tree.mkdir(dir.as_bytes(), 0o755, 0);
                made.map_err(volume_error("creating", dir.as_bytes()))?;
                Ok(SideDirectory::Volume(tree, dir))
            }
        }
    }
}

impl Drop for SideDirectory {
    fn drop(&mut self) {
        // It is empty unless a phase failed, and that failure is the one to report.
        match self {
            SideDirectory::Path(dir) => {
                let _ = std::fs::remove_dir_all(dir);
            }
            SideDirectory::Volume(tree, dir) => {
                let _ = tree.remove_all(dir.as_bytes(), false, &mut |_| {});
            }
        }
    }
}

/// See the module. The processes end before the directory is removed.
pub struct SmallFilesSide {
    group: WorkerGroup,
    servers: ServingProcesses,
    directory: SideDirectory,
}

impl SmallFilesSide {
    /// Makes a directory named `name`, and starts the processes.
    ///
    /// # Errors
    /// A directory that cannot be made, and a process that does not start.
    pub fn start(
        launcher: &Launcher,
        reach: &SideReach,
        name: &str,
        servers: ServingProcesses,
        (set, procs): (SmallFileSet, usize),
    ) -> Result<SmallFilesSide, BenchError> {
        // No name comes twice: another mount may remember that an earlier one was removed.
        let number = SIDES.fetch_add(1, Ordering::Relaxed);
        let name = format!("tatami-smallfiles.{}.{number}.{name}", std::process::id());
        let directory = SideDirectory::make(reach, &name)?;
        let place = |rank: usize| match reach {
            SideReach::Paths(paths) => {
                let dir = paths[rank % paths.len()].join(&name);
                WorkloadPlace::Path { dir, relative: false }
            }
            SideReach::Library(access, parent) | SideReach::WholeFiles(access, parent) => {
                let dir = format!("{}/{name}", parent.trim_end_matches('/'));
                WorkloadPlace::Library { reach: access.clone(), dir }
            }
        };
        let as_whole = matches!(reach, SideReach::WholeFiles(..));
        let part = |rank| SmallFilesPart { place: place(rank), rank, procs, set, as_whole };
        let tasks = (0..procs).map(|rank| WorkerTask::SmallFiles(part(rank))).collect();
        let group = WorkerGroup::start(launcher, tasks)?;
        Ok(SmallFilesSide { group, servers, directory })
    }

    /// Returns the path of its directory; `None` through the library.
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.directory {
            SideDirectory::Path(path) => Some(path),
            SideDirectory::Volume(..) => None,
        }
    }

    /// Runs a phase, and waits for the work that servers leave for later.
    ///
    /// # Errors
    /// The first process that fails.
    pub fn run_phase(&mut self, phase: &str) -> Result<SmallFilesCost, BenchError> {
        let servers = self.servers.process_ids();
        self.group.prepare_phase(phase)?;
        await_quiet_servers(&servers);
        let (steal, before) = (Steal::now(), total_cpu_ns(&servers));
        self.group.start_phase()?;
        let outcome = PhaseOutcome::from_reports(&self.group.collect_reports()?);
        await_quiet_servers(&servers);
        Ok(SmallFilesCost {
            outcome,
            servers_ns: total_cpu_ns(&servers).saturating_sub(before),
            daemons: MemoryUse::of_processes(&self.servers.daemons),
            mounts: MemoryUse::of_processes(&self.servers.mounts),
            stolen: steal.stolen_share(),
        })
    }
}
