//! Ends the parts of a volume that run on this machine: mounts, then daemons.

use crate::daemon;
use crate::error::{CommandFailure, CommandResult};
use crate::mountinfo;
use crate::mountpoints;
use crate::mounts::{self, ForeignMount, MountRecord};
use crate::term;
use crate::user_name::describe_user;
use crate::users;
use crate::volume_dir::VolumeDir;
use indicatif::ProgressBar;
use std::path::PathBuf;
use tatami_cluster::{NodeEntry, VolumeFile};

/// The mounts of a volume on this machine.
pub struct MountsHere {
    /// Those that this user can end.
    paths: Vec<PathBuf>,
    /// Those of other users.
    kept: Vec<ForeignMount>,
}

impl MountsHere {
    /// Finds the mounts of the volume. The superuser ends those of all users.
    pub fn find_all(place: &VolumeDir) -> MountsHere {
        let foreign = mounts::list_foreign(&place.dir);
        let mut paths: Vec<PathBuf> =
            MountRecord::list_volume(&place.dir).into_iter().map(|record| record.path).collect();
        paths.retain(|path| foreign.iter().all(|mount| mount.path != *path));
        let (ended, kept) = match rustix::process::geteuid().is_root() {
            true => (foreign, Vec::new()),
            false => (Vec::new(), foreign),
        };
        paths.extend(ended.into_iter().map(|mount| mount.path));
        MountsHere { paths, kept }
    }

    /// Finds this user's mounts of a node.
    pub fn find_node(place: &VolumeDir, node: u16) -> MountsHere {
        let records = MountRecord::list_volume(&place.dir).into_iter();
        let paths = records.filter(|record| record.node == node).map(|record| record.path);
        MountsHere { paths: paths.collect(), kept: Vec::new() }
    }

    /// Checks that no other user has a mount and no program uses one. All mounts are checked before
    /// the first is unmounted, so that a busy one stops nothing.
    ///
    /// # Errors
    /// A mount is in use, or belongs to another user. `how` is the command that forces it.
    pub fn refuse_used(&self, how: &str) -> CommandResult {
        refuse_foreign(&self.kept, how)?;
        refuse_busy(&self.paths, how)
    }

    /// Ends the mounts of this user, and returns how many there were.
    ///
    /// # Errors
    /// Those of [`mounts::end_mount`].
    pub fn end_all(
        &self,
        place: &VolumeDir,
        force: bool,
        how: &str,
        spinner: &ProgressBar,
    ) -> CommandResult<usize> {
        for ForeignMount { path, owner } in &self.kept {
            term::print_note(&format!(
                "{}, a mount of {}, stays; programs that use it wait for the volume",
                path.display(),
                describe_user(*owner)
            ));
        }
        let mut unmounted = 0;
        for path in &self.paths {
            spinner.set_message(format!("unmounting {}", path.display()));
            unmounted += usize::from(mountinfo::mount_at(path).is_some());
            mounts::end_mount(&place.dir, path, force, how)?;
            mountpoints::remove_made(place, path);
        }
        Ok(unmounted)
    }
}

fn refuse_foreign(foreign: &[ForeignMount], how: &str) -> CommandResult {
    let Some(first) = foreign.first() else { return Ok(()) };
    let said: Vec<String> = foreign
        .iter()
        .map(|m| format!("{} is a mount of {}", m.path.display(), describe_user(m.owner)))
        .collect();
    let (shown, user) = (first.path.display(), describe_user(first.owner));
    Err(CommandFailure::new("the volume is mounted by other users; nothing was stopped")
        .because(said.join("\n"))
        .try_this(format!(
            "ask {user} for this: tatami umount {shown}; or stop the daemons, and leave the \
             mounts waiting for them: {how}"
        )))
}

fn refuse_busy(paths: &[PathBuf], how: &str) -> CommandResult {
    let mut said = Vec::new();
    for path in paths {
        if mountinfo::mount_at(path).is_some() {
            let users = users::find_affected_users(path);
            if !users.is_empty() {
                said.push(format!("{}: {}", path.display(), users::describe_users(&users)));
            }
        }
    }
    if said.is_empty() {
        return Ok(());
    }
    Err(CommandFailure::new("the volume is in use; nothing was stopped")
        .because(said.join("\n"))
        .try_this(format!(
            "end these programs or let them leave the directory; or force it: {how}"
        )))
}

/// Stops the daemons of these nodes of this machine, and returns how many ran.
///
/// # Errors
/// A daemon does not end. The others are stopped all the same.
pub fn stop_nodes(
    place: &VolumeDir,
    volume: &VolumeFile,
    nodes: &[&NodeEntry],
    force: bool,
    spinner: &ProgressBar,
) -> CommandResult<usize> {
    let mut stopped = 0;
    let mut result = Ok(());
    // Nodes with shards stop last: the other nodes still send them their final updates.
    let serves = |id: u16| volume.shards.iter().any(|owner| owner.node.0 == id);
    let mut order = nodes.to_vec();
    order.sort_by_key(|n| serves(n.id));
    for entry in order {
        spinner.set_message(format!("stopping {}", entry.name));
        match daemon::stop_daemon(place, volume, entry, force) {
            Ok(ran) => stopped += usize::from(ran),
            Err(e) => {
                if let Err(earlier) = std::mem::replace(&mut result, Err(e)) {
                    term::print_error(&earlier.report());
                }
            }
        }
    }
    result.map(|()| stopped)
}
