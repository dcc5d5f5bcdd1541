//! Makes the directory in which a workload is to run, when it is missing. A user names a new
//! directory for a measurement more often than an old one.

use crate::error::{BenchError, path_error, volume_error};
use std::path::Path;
use tatami_client::tree::VolumeTree;
use tatami_wire::Errno;

/// Makes the directory `dir` and its missing parents.
///
/// # Errors
/// Those of mkdir(2).
pub fn make_local_dir(dir: &Path) -> Result<(), BenchError> {
    std::fs::create_dir_all(dir).map_err(path_error("creating", dir))
}

/// Makes the directory with this path from the volume's root, and its missing parents.
///
/// # Errors
/// Those of the volume.
pub fn make_volume_dir(tree: &VolumeTree, dir: &str) -> Result<(), BenchError> {
    let dir = dir.trim_end_matches('/');
    let ends = dir.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    for end in ends.chain([dir.len()]).filter(|end| *end > 0) {
        let part = &dir.as_bytes()[..end];
        match tree.mkdir(part, 0o755, 0) {
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(volume_error("creating", part)(errno)),
        }
    }
    Ok(())
}
