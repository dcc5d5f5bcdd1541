//! `tatami down`: unmounts the volume and stops its daemons.

use crate::daemon;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::mountinfo;
use crate::mountpoints;
use crate::mounts::{self, ForeignMount, MountRecord};
use crate::term::{self, TermOutput};
use crate::user_name::describe_user;
use crate::users;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use std::io::Write;
use std::path::PathBuf;
use tatami_cluster::VolumeFile;

/// `tatami down`
#[derive(Debug, clap::Args)]
pub struct DownArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Detach mounts even while programs use them, and kill daemons that do not end
    #[arg(long)]
    force: bool,
}

/// Unmounts and stops everything. A volume that does not run is no error.
///
/// # Errors
/// A mount is in use or belongs to another user (then nothing is stopped), or a process does not
/// end.
pub fn run(args: &DownArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let _lock = place.lock()?;
    // If the user calls this from within a mount, this process must not keep the mount busy.
    std::env::set_current_dir("/").context(|| "cannot leave the working directory".to_owned())?;
    let how = format!("tatami down --force{}", place.dir_flag());
    let foreign = mounts::list_foreign(&place.dir);
    let mut paths: Vec<PathBuf> =
        MountRecord::list_volume(&place.dir).into_iter().map(|record| record.path).collect();
    paths.retain(|path| foreign.iter().all(|mount| mount.path != *path));
    // The superuser ends the mounts of all users.
    let (ended, kept) = match rustix::process::geteuid().is_root() {
        true => (foreign, Vec::new()),
        false => (Vec::new(), foreign),
    };
    paths.extend(ended.into_iter().map(|mount| mount.path));
    if !args.force {
        // All mounts are checked before the first is unmounted, so that a busy one stops nothing.
        refuse_foreign(&kept, &how)?;
        refuse_busy(&paths, &how)?;
    }
    for ForeignMount { path, owner } in &kept {
        term::print_note(&format!(
            "{}, a mount of {}, stays; programs that use it wait for the volume",
            path.display(),
            describe_user(*owner)
        ));
    }
    let spinner = term::new_spinner("unmounting");
    let mut unmounted = 0;
    for path in &paths {
        spinner.set_message(format!("unmounting {}", path.display()));
        unmounted += usize::from(mountinfo::mount_at(path).is_some());
        mounts::end_mount(&place.dir, path, args.force, &how)?;
        mountpoints::remove_made(&place, path);
    }
    let stopped = stop_nodes(&place, &volume, args.force, &spinner)?;
    spinner.finish_and_clear();
    let mut out = TermOutput::new();
    if unmounted + stopped == 0 {
        writeln!(out, "Volume {} did not run.", volume.name)?;
    } else {
        writeln!(
            out,
            "Volume {} is down: {unmounted} mounts and {stopped} daemons stopped. \
             `tatami up{}` starts it again.",
            volume.name,
            place.dir_flag()
        )?;
    }
    out.flush()?;
    Ok(())
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

fn stop_nodes(
    place: &VolumeDir,
    volume: &VolumeFile,
    force: bool,
    spinner: &indicatif::ProgressBar,
) -> CommandResult<usize> {
    let mut stopped = 0;
    let mut result = Ok(());
    // Nodes with shards stop last: the other nodes still send them their final updates.
    let serves = |id: u16| volume.shards.iter().any(|owner| owner.node.0 == id);
    let mut order: Vec<_> = volume.nodes.iter().collect();
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
