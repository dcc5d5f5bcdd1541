//! The root directory of a new volume: its owner and mode.

use crate::error::{CommandFailure, CommandResult};
use crate::volume_dir::VolumeDir;
use tatami_wire::{Cred, Ino, SetAttr};

/// Mode of the root directory with `--users`: as of `/tmp`, all create, and the owner removes.
const OPEN_TO_ALL: u16 = 0o1777;
/// The permission bits with which others than the owner create files.
const OTHERS_WRITE: u16 = 0o022;

/// Makes an ordinary user the owner of the root directory of a new volume. Without that, the user
/// could create nothing in it. With `for_all`, all users can.
///
/// # Errors
/// The volume cannot be reached.
pub fn prepare_root(place: &VolumeDir, for_all: bool) -> CommandResult {
    let me = crate::volume_path::current_cred();
    if me.is_root() && !for_all {
        return Ok(());
    }
    let client = place.connect_client(None)?;
    let failed =
        |e| crate::volume_path::volume_failure("cannot set up the root directory of the volume", e);
    let root = client.getattr(&Cred::ROOT, Ino::ROOT).map_err(failed)?;
    let mut set = SetAttr::default();
    if root.uid == 0 && !me.is_root() {
        (set.uid, set.gid) = (Some(me.uid), Some(me.gid));
    }
    if for_all && root.mode != OPEN_TO_ALL {
        set.mode = Some(OPEN_TO_ALL);
    }
    if set != SetAttr::default() {
        client.setattr(&Cred::ROOT, Ino::ROOT, set).map_err(failed)?;
    }
    Ok(())
}

/// Returns whether nobody but root can create files in the root directory of the volume.
pub fn is_for_root_only(place: &VolumeDir) -> bool {
    let root = place.connect_client(None).and_then(|client| {
        client.getattr(&Cred::ROOT, Ino::ROOT).map_err(|e| CommandFailure::new(e.to_string()))
    });
    root.is_ok_and(|root| root.uid == 0 && root.mode & OTHERS_WRITE == 0)
}
