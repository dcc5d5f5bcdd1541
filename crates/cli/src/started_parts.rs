//! The parts of a volume that a command starts on this machine: daemons and mounts. If the rest of
//! the command fails, they are stopped again.

use crate::daemon;
use crate::error::{CommandFailure, CommandResult};
use crate::mount_cmd;
use crate::mountpoints;
use crate::mounts;
use crate::start_process::StartingProcess;
use crate::term;
use crate::volume_dir::VolumeDir;
use indicatif::ProgressBar;
use std::path::PathBuf;
use tatami_cluster::{NodeEntry, VolumeFile};

/// The parts that a command has started.
#[derive(Debug, Default)]
pub struct StartedParts {
    /// The nodes whose daemons it has started.
    pub nodes: Vec<NodeEntry>,
    /// The mount points that it has mounted.
    pub mounts: Vec<PathBuf>,
}

impl StartedParts {
    /// Starts those of `nodes` whose daemons do not run, in parallel.
    ///
    /// # Errors
    /// A daemon does not start. Others may have started.
    pub fn start_nodes(
        &mut self,
        place: &VolumeDir,
        volume: &VolumeFile,
        nodes: &[&NodeEntry],
        spinner: &ProgressBar,
    ) -> CommandResult {
        let mut failure = None;
        let mut starting: Vec<(&NodeEntry, StartingProcess)> = Vec::new();
        for entry in nodes {
            let process = daemon::is_answering(place, volume, entry).and_then(|there| {
                if there { Ok(None) } else { daemon::start_daemon(place, entry).map(Some) }
            });
            match process {
                Ok(process) => starting.extend(process.map(|p| (*entry, p))),
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
        }
        // The loop waits also after a failure: a process that is ready can be stopped in an orderly
        // way.
        for (entry, process) in starting {
            spinner.set_message(format!("waiting for {}", entry.name));
            match process.wait_ready() {
                Ok(()) => self.nodes.push(entry.clone()),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        for entry in &self.nodes {
            daemon::record_in_use(place, entry)?;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Mounts all nodes of this machine that are not mounted, in parallel.
    ///
    /// # Errors
    /// One cannot be mounted. Others may be.
    pub fn start_mounts(
        &mut self,
        place: &VolumeDir,
        volume: &VolumeFile,
        spinner: &ProgressBar,
    ) -> CommandResult {
        let mut failure = None;
        let mut starting = Vec::new();
        let planned = mount_cmd::planned_mounts(place, volume);
        for (entry, path) in &planned {
            match mount_cmd::ensure_mounted(place, entry, path) {
                Ok(process) => starting.extend(process.map(|p| (path, p))),
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
        }
        for (path, (process, made)) in starting {
            spinner.set_message(format!("mounting {}", path.display()));
            match process.wait_ready() {
                Ok(()) => {
                    if let Some(made) = made {
                        made.close_below();
                    }
                    mounts::load_root(path);
                    self.mounts.push(path.clone());
                }
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Ends the mounts again.
    pub fn end_mounts(&mut self, place: &VolumeDir) {
        for path in self.mounts.drain(..) {
            if let Err(e) = mounts::end_mount(&place.dir, &path, true, "") {
                term::print_note(&e.report());
            }
            mountpoints::remove_made(place, &path);
        }
    }

    /// Stops the parts again, and returns the failure for which that is done.
    pub fn stop_started(
        &mut self,
        place: &VolumeDir,
        volume: &VolumeFile,
        failure: CommandFailure,
    ) -> CommandFailure {
        self.end_mounts(place);
        for entry in self.nodes.drain(..).rev() {
            if let Err(e) = daemon::stop_daemon(place, volume, &entry, true) {
                term::print_note(&e.report());
            }
        }
        failure
    }
}
