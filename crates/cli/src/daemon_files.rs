//! The files of a daemon in the data directory of its node, and the process that they name.

use crate::process::{self, RunningProcess};
use std::path::{Path, PathBuf};
use tatami_cluster::NodeEntry;

/// Returns the file in which a daemon records its process.
pub fn pid_file(node_dir: &Path) -> PathBuf {
    node_dir.join("pid")
}

/// Returns the log file of a daemon in the background.
pub fn log_file(node_dir: &Path) -> PathBuf {
    node_dir.join("log")
}

/// Returns the process of the node's daemon, if it runs on this machine.
pub fn running_daemon(entry: &NodeEntry) -> Option<RunningProcess> {
    process::find_recorded(&pid_file(&entry.dir))
}
