//! Removes the files of a node that was taken out of its volume, on its own machine.

use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::volume_dir::{VolumeDir, in_use_key};
use std::io;
use std::path::Path;
use tatami_cluster::NodeEntry;

/// The files of a volume on a machine without a node of it. A configuration that an administrator
/// may have written stays.
const VOLUME_FILES: [&str; 8] = [
    "volume.toml",
    "machine.toml",
    "key",
    "certificates.toml",
    "last-up.toml",
    "mounts",
    "mount-logs",
    "made",
];

/// Removes the data directory of a node, and forgets the node. If it was the last one of this
/// machine, the files of the volume go, too.
///
/// # Errors
/// Its daemon runs, or the file system fails.
pub fn erase_node(place: &VolumeDir, entry: &NodeEntry, keeps_volume: bool) -> CommandResult {
    if daemon_files::running_daemon(entry).is_some() {
        return Err(CommandFailure::new(format!("{} still runs", entry.name))
            .try_this(format!("tatami node stop --force {}", entry.name)));
    }
    let failed = |path: &Path| format!("cannot remove {}", path.display());
    empty_dir(&entry.dir).context(|| failed(&entry.dir))?;
    // A directory that is a disk of its own stays, empty.
    match std::fs::remove_dir(&entry.dir) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy) => {
            return Err(e).context(|| failed(&entry.dir));
        }
        _ => {}
    }
    place.forget_setting(&in_use_key(entry))?;
    if keeps_volume {
        return place.forget_node_here(entry.id);
    }
    for name in VOLUME_FILES {
        let path = place.dir.join(name);
        remove_entry(&path).context(|| failed(&path))?;
    }
    place.forget_machine();
    Ok(())
}

fn empty_dir(dir: &Path) -> io::Result<()> {
    match std::fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        entries => entries?.try_for_each(|entry| remove_entry(&entry?.path())),
    }
}

fn remove_entry(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(e) => Err(e),
    };
    removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
}
