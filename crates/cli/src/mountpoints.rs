//! Mount points that `tatami up` makes. Without the mount they must take no files, which would lie
//! on the local disk and be hidden later: they have mode 0 below the mount, and go with it.

use crate::error::{CommandFailure, CommandResult};
use crate::term;
use crate::volume_dir::VolumeDir;
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Nobody but root can create a file in a directory of this mode.
const CLOSED: u32 = 0o000;
/// fusermount3 asks for permission to write before it mounts there.
const OPEN: u32 = 0o700;

/// A mount point that `up` has made, held open: the mount hides its path.
pub struct MadeMountpoint(File);

/// Makes the mount point `path` and missing directories above it. Returns `None` for a directory
/// that was there, which stays as it is.
///
/// # Errors
/// It cannot be made.
pub fn make_mountpoint(place: &VolumeDir, path: &Path) -> CommandResult<Option<MadeMountpoint>> {
    let failed = |e: std::io::Error| {
        CommandFailure::new(format!("cannot make the mount point {}", path.display()))
            .because(e)
            .try_this("choose another path: tatami up --mount PATH")
    };
    let missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|dir| {
            dir.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        })
        .map(Path::to_owned)
        .collect();
    for dir in missing.iter().rev() {
        // Remembered first: a directory without a record would never be removed.
        place.remember_settings(&[(record_key(dir).as_str(), "made".to_owned())])?;
        match DirBuilder::new().mode(0o755).create(dir) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
    }
    if !is_made(place, path) {
        return match path.is_dir() {
            true => Ok(None),
            false => Err(failed(std::io::ErrorKind::NotADirectory.into())),
        };
    }
    std::fs::set_permissions(path, Permissions::from_mode(OPEN)).map_err(failed)?;
    File::open(path).map(|dir| Some(MadeMountpoint(dir))).map_err(failed)
}

/// Whether `up` has made the mount point `path` of this volume.
pub fn is_made(place: &VolumeDir, path: &Path) -> bool {
    place.remembered_setting(&record_key(path)).is_some()
}

impl MadeMountpoint {
    /// Lets nobody create files in the directory below the mount.
    pub fn close_below(&self) {
        if let Err(error) = self.0.set_permissions(Permissions::from_mode(CLOSED)) {
            term::print_note(&format!("a mount point stays writable without its mount: {error}"));
        }
    }
}

/// Removes an unmounted mount point that `up` has made, and the directories that it made above.
/// A directory with entries stays.
pub fn remove_made(place: &VolumeDir, path: &Path) {
    for dir in path.ancestors().take_while(|dir| is_made(place, dir)) {
        if std::fs::remove_dir(dir).is_err() {
            return;
        }
    }
}

/// Returns the key under which `up` remembers a directory that it has made.
fn record_key(path: &Path) -> String {
    format!("mountpoint {}", path.display())
}
