//! `tatami down`: unmounts the volume and stops its daemons.

use crate::error::{CommandResult, FailureContext};
use crate::hosts_down;
use crate::stopping::{self, MountsHere};
use crate::term::{self, TermOutput};
use crate::up_token;
use crate::volume_dir::VolumeArgs;
use std::io::Write;

/// `tatami down`
#[derive(Debug, clap::Args)]
pub struct DownArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Detach mounts even while programs use them, and kill daemons that do not end
    #[arg(long)]
    force: bool,
    /// Stop only the part on this machine, if the volume was started on several hosts
    #[arg(long)]
    here: bool,
}

/// Unmounts and stops everything. A volume that does not run is no error.
///
/// # Errors
/// A mount is in use or belongs to another user (then nothing is stopped), or a process does not
/// end.
pub fn run(args: &DownArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    if up_token::remove_unfinished(&place)? {
        return Ok(());
    }
    let volume = place.load_volume()?;
    // If the user calls this from within a mount, this process must not keep the mount busy.
    std::env::set_current_dir("/").context(|| "cannot leave the working directory".to_owned())?;
    let machine = place.load_machine()?.filter(|machine| !machine.hosts.is_empty());
    if let Some(machine) = machine.filter(|_| !args.here) {
        hosts_down::refuse_job_volume(&machine, "down")?;
        return hosts_down::stop_volume(&place, &volume, &machine, args.force);
    }
    let _lock = place.lock()?;
    let how = format!("tatami down --force{}", place.dir_flag());
    let mounts = MountsHere::find_all(&place);
    if !args.force {
        mounts.refuse_used(&how)?;
    }
    let spinner = term::new_spinner("unmounting");
    let unmounted = mounts.end_all(&place, args.force, &how, &spinner)?;
    let nodes = place.nodes_here(&volume);
    let stopped = stopping::stop_nodes(&place, &volume, &nodes, args.force, &spinner)?;
    spinner.finish_and_clear();
    let mut out = TermOutput::new();
    let elsewhere = volume.nodes.len() - nodes.len();
    let (name, flag) = (&volume.name, place.dir_flag());
    let here = if elsewhere == 0 { "" } else { " on this machine" };
    if unmounted + stopped == 0 {
        writeln!(out, "Volume {name} did not run{here}.")?;
    } else {
        writeln!(
            out,
            "Volume {name} is down{here}: {unmounted} mounts and {stopped} daemons stopped. \
             `tatami up{flag}` starts it again."
        )?;
    }
    if elsewhere > 0 {
        let nodes = if elsewhere == 1 { "1 node" } else { &format!("{elsewhere} nodes") };
        writeln!(out, "The volume has {nodes} on other machines, which this command left alone.")?;
    }
    out.flush()?;
    Ok(())
}
