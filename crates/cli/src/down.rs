//! `tatami down`: unmounts the volume and stops its daemons.

use crate::daemon;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::mountinfo;
use crate::mountpoints;
use crate::mounts::{self, MountRecord};
use crate::term::{self, TermOutput};
use crate::users;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use std::io::Write;

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
/// A mount is in use (then nothing is stopped), or a process does not end.
pub fn run(args: &DownArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let _lock = place.lock()?;
    // If the user calls this from within a mount, this process must not keep the mount busy.
    std::env::set_current_dir("/").context(|| "cannot leave the working directory".to_owned())?;
    let how = format!("tatami down --force{}", place.dir_flag());
    let records = MountRecord::list_volume(&place.dir);
    if !args.force {
        // All mounts are checked before the first is unmounted, so that a busy one stops nothing.
        refuse_busy(&records, &how)?;
    }
    let spinner = term::new_spinner("unmounting");
    let mut unmounted = 0;
    for record in &records {
        spinner.set_message(format!("unmounting {}", record.path.display()));
        unmounted += usize::from(mountinfo::mount_at(&record.path).is_some());
        mounts::end_mount(&place.dir, &record.path, args.force, &how)?;
        mountpoints::remove_made(&place, &record.path);
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

fn refuse_busy(records: &[MountRecord], how: &str) -> CommandResult {
    let mut said = Vec::new();
    for record in records {
        if mountinfo::mount_at(&record.path).is_some() {
            let users = users::find_affected_users(&record.path);
            if !users.is_empty() {
                said.push(format!("{}: {}", record.path.display(), users::describe_users(&users)));
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
    volume: &tatami_cluster::VolumeFile,
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
