//! `tatami down` and `tatami node start`, `stop` on all machines of a volume that was started on
//! hosts.

use crate::error::{CommandFailure, CommandResult};
use crate::host_group::{self, HostFault, ORDER_WAIT, PROCESS_WAIT};
use crate::ssh_session::{HostLauncher, HostSession, SshAccess};
use crate::stopping::MountsHere;
use crate::term::{self, TermOutput};
use crate::volume_dir::VolumeDir;
use std::io::Write;
use tatami_cluster::{NodeEntry, VolumeFile};
use tatami_hosts::host_protocol::{CheckOrder, HostOrder, HostReply};
use tatami_hosts::machine::MachineFile;

/// Returns how the hosts of a volume are reached.
pub fn access_of(machine: &MachineFile) -> SshAccess {
    SshAccess {
        launcher: HostLauncher::Ssh,
        options: machine.ssh_options.clone(),
        program: machine.program.clone(),
        // The file was checked when it was read.
        network: machine.network.as_deref().and_then(|network| network.parse().ok()),
    }
}

/// Refuses a command for all hosts of the volume of a batch job: its keeper starts and ends them.
///
/// # Errors
/// The volume belongs to a job.
pub fn refuse_job_volume(machine: &MachineFile, command: &str) -> CommandResult {
    let Some(job) = &machine.job else { return Ok(()) };
    Err(CommandFailure::usage(format!(
        "tatami {command}: this is the volume of the batch job {job}"
    ))
    .because("its hosts are those of the job, and it ends with the job")
    .try_this("to end it before, in the job: tatami job down"))
}

/// Returns the first order of a connection about an existing volume.
pub fn check_order(place: &VolumeDir, volume: &VolumeFile, token: &str) -> HostOrder {
    HostOrder::Check(CheckOrder {
        dir: place.dir.display().to_string(),
        token: token.to_owned(),
        volume: Some(volume.volume.to_string()),
        mounts: false,
        settings: place.forwarded_settings(),
        job: None,
    })
}

/// Ends the mounts and then the daemons of all hosts.
///
/// # Errors
/// A mount is in use on one (then nothing is stopped), or a host cannot be reached or stopped (the
/// others are stopped).
pub fn stop_volume(
    place: &VolumeDir,
    volume: &VolumeFile,
    machine: &MachineFile,
    force: bool,
) -> CommandResult {
    // The mounts of this machine, if it has no node of its own.
    let is_observer = machine.nodes.is_empty();
    let lock = if is_observer { Some(place.lock()?) } else { None };
    let spinner = term::new_spinner("reaching the hosts");
    let hosts: Vec<String> = machine.hosts.iter().map(|host| host.name.clone()).collect();
    let (mut sessions, mut faults) = host_group::open_sessions(&access_of(machine), &hosts);
    let order = |_: &HostSession| check_order(place, volume, "none");
    let (_, unfit) = host_group::order_all(&mut sessions, ORDER_WAIT, order);
    faults.extend(unfit);
    let how = format!("tatami down --force{}", place.dir_flag());
    let mounts = is_observer.then(|| MountsHere::find_all(place));
    if !force {
        if let Some(mounts) = &mounts {
            mounts.refuse_used(&how)?;
        }
        let replies = host_group::try_all(&mut sessions, ORDER_WAIT, |_| HostOrder::CheckIdle);
        let busy = sessions
            .iter()
            .zip(replies)
            .filter_map(|(session, reply)| Some(HostFault::new(&session.host, reply.err()?)));
        let busy: Vec<HostFault> = busy.collect();
        if !busy.is_empty() {
            let headline =
                |count: &str| format!("the volume is in use on {count}; nothing was stopped");
            return Err(host_group::join_faults(&busy, &hosts, headline));
        }
    }
    spinner.set_message("unmounting");
    let mut unmounted = match &mounts {
        Some(mounts) => mounts.end_all(place, force, &how, &spinner)?,
        None => 0,
    };
    let (replies, failed) =
        host_group::order_all(&mut sessions, PROCESS_WAIT, |_| HostOrder::Unmount { force });
    faults.extend(failed);
    unmounted += count_changes(&replies);
    spinner.set_message("stopping daemons");
    // Nodes with shards stop last: the other nodes still send them their final updates.
    let mut stopped = 0;
    for with_shards in [false, true] {
        let is_of_turn =
            |node: u16| volume.shards.iter().any(|owner| owner.node.0 == node) == with_shards;
        let (mut turn, later): (Vec<_>, Vec<_>) = sessions.into_iter().partition(|session| {
            machine.hosts.iter().any(|host| host.name == session.host && is_of_turn(host.node))
        });
        let order = |_: &HostSession| HostOrder::StopNodes { nodes: Vec::new(), force };
        let (replies, failed) = host_group::order_all(&mut turn, PROCESS_WAIT, order);
        faults.extend(failed);
        stopped += count_changes(&replies);
        sessions = later;
    }
    spinner.finish_and_clear();
    drop(lock);
    let mut out = TermOutput::new();
    let (name, flag, count) = (&volume.name, place.dir_flag(), hosts.len());
    if unmounted + stopped == 0 && faults.is_empty() {
        writeln!(out, "Volume {name} did not run on its {count} hosts.")?;
    } else {
        let reached = count - faults.len();
        writeln!(
            out,
            "Volume {name} is down on {reached} of {count} hosts: {unmounted} mounts and {stopped} \
             daemons stopped. `tatami up{flag}` starts it again."
        )?;
    }
    out.flush()?;
    drop(out);
    if faults.is_empty() {
        return Ok(());
    }
    let headline = |count: &str| format!("{count} could not be stopped");
    Err(host_group::join_faults(&faults, &hosts, headline))
}

fn count_changes(replies: &[HostReply]) -> usize {
    let of = |reply: &HostReply| match reply {
        HostReply::Changed(count) => *count as usize,
        _ => 0,
    };
    replies.iter().map(of).sum()
}

/// Starts or stops one node on its host, and returns whether that has changed anything.
///
/// # Errors
/// The host cannot be reached, or the daemon does not start or end.
pub fn order_node(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
    order: HostOrder,
) -> CommandResult<bool> {
    let machine = place.load_machine()?;
    let Some((machine, host)) =
        machine.as_ref().and_then(|machine| Some((machine, machine.host_of(entry.id)?)))
    else {
        return Err(elsewhere_failure(place, entry, &order));
    };
    let at_host = |failure: CommandFailure| CommandFailure {
        what: format!("{} on the host {}: {}", entry.name, host.name, failure.what),
        ..failure
    };
    let mut session = access_of(machine).open_session(&host.name).map_err(at_host)?;
    session.order(&check_order(place, volume, "none"), ORDER_WAIT).map_err(at_host)?;
    let reply = session.order(&order, PROCESS_WAIT).map_err(at_host)?;
    session.order(&HostOrder::Keep, ORDER_WAIT).map_err(at_host)?;
    Ok(matches!(reply, HostReply::Changed(1..)))
}

fn elsewhere_failure(place: &VolumeDir, entry: &NodeEntry, order: &HostOrder) -> CommandFailure {
    let verb = match order {
        HostOrder::StopNodes { .. } => "stop",
        _ => "start",
    };
    let name = &entry.name;
    CommandFailure::usage(format!("{name} is on another machine, {}", entry.address))
        .try_this(format!("run there: tatami node {verb}{} {name}", place.dir_flag()))
}
