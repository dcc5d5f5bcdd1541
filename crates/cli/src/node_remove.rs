//! `tatami node remove`: takes an emptied node out of the volume, while the volume is in use.
//!
//! The command first marks the node as leaving, on all other nodes. From then on no file gets an
//! object there, so that the search for files that follows stays true. An interrupted command is
//! repeated: a mark is never taken back.

use crate::daemon;
use crate::erase_node;
use crate::error::{CommandFailure, CommandResult};
use crate::host_group::{ORDER_WAIT, PROCESS_WAIT};
use crate::hosts_down::{access_of, check_order};
use crate::hosts_files;
use crate::rebalance_cmd::{count_objects, merge_maps, save_volume, send_map, sleep_for};
use crate::shard_plan::shard_holders;
use crate::ssh_session::HostSession;
use crate::stopping::MountsHere;
use crate::term::{self, HEAD, TermOutput};
use crate::up_token::TokenMark;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};
use tatami_client::files_on_node::FilesOnNode;
use tatami_cluster::{NodeEntry, VolumeFile};
use tatami_hosts::host_protocol::HostOrder;
use tatami_hosts::machine::MachineFile;
use tatami_wire::NodeId;
use tatami_wire::admin::{AdminCall, AdminReply};

/// How long the command waits for the objects of files that were just moved or removed.
const GARBAGE_WAIT: Duration = Duration::from_secs(15);
/// How long a node may take to learn of the end of a mount.
const MOUNT_WAIT: Duration = Duration::from_secs(5);
/// Pause between two looks at the objects of the node.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// `tatami node remove`
#[derive(Debug, clap::Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    pub at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The node, by number or name
    #[arg(value_name = "NODE")]
    node: String,
}

/// The result. `--json` prints it.
#[derive(Serialize)]
struct RemovalReport {
    volume: String,
    node: u16,
    name: String,
    removed: bool,
    /// Nodes that are left.
    nodes: usize,
}

/// The machine of the node.
enum NodePlace {
    /// This one.
    Here,
    /// A host that is reached by ssh.
    Host(Box<HostSession>),
    /// A machine that no command reaches.
    Elsewhere,
}

/// Takes a node out of the volume.
///
/// # Errors
/// It has names or files, its mount is in use, or a node does not answer.
pub fn remove_node(args: &RemoveArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let _shards = place.lock_shards()?;
    let mut volume = place.load_volume()?;
    let entry = place.find_node(&volume, &args.node)?.clone();
    let node = NodeId(entry.id);
    let machine = place.load_machine()?.filter(|machine| !machine.hosts.is_empty());
    if machine.is_some() && place.is_here(&entry) {
        return Err(CommandFailure::usage(format!("{} is the node of this host", entry.name))
            .try_this(format!(
                "run it on another host of the volume: tatami node remove{} {}",
                place.dir_flag(),
                entry.name
            )));
    }
    volume.merge_map(&merge_maps(&place, &volume)?);
    let is_member = volume.node(node).is_some();
    if is_member {
        refuse_shards(&place, &volume, &entry)?;
        let mut far = find_place(&place, &volume, &entry, machine.as_deref())?;
        end_mounts(&place, &volume, &entry, &mut far)?;
        // The session locks the directory there, and the list of nodes goes to all hosts.
        drop(far);
        mark_leaving(&place, &mut volume, node)?;
        refuse_files(&place, &volume, &entry)?;
        take_out(&place, &mut volume, node)?;
    }
    let spinner = term::new_spinner("stopping its daemon");
    let mut far = find_place(&place, &volume, &entry, machine.as_deref())?;
    stop_and_erase(&place, &volume, &entry, &mut far)?;
    save_volume(&place, &volume)?;
    if let Some(machine) = machine {
        let mut left = MachineFile::clone(&machine);
        left.hosts.retain(|host| host.node != entry.id);
        place.save_machine(left)?;
        spinner.set_message("writing the list of nodes to the hosts");
        hosts_files::spread_files(&place)?;
    }
    spinner.finish_and_clear();
    let mut out = TermOutput::new();
    if args.json {
        let (volume, nodes, name) = (volume.name.clone(), volume.nodes.len(), entry.name.clone());
        out.write_json(&RemovalReport { volume, node: entry.id, name, removed: true, nodes })?;
    } else {
        let name = out.paint_text(HEAD, &entry.name);
        writeln!(out, "{name} is removed; {} nodes are left", volume.nodes.len())?;
        if matches!(far, NodePlace::Elsewhere) {
            let dir = entry.dir.display();
            writeln!(out, "On its machine, {}, remove by hand: {dir}", entry.address)?;
        }
    }
    out.flush()?;
    Ok(())
}

fn find_place(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
    machine: Option<&MachineFile>,
) -> CommandResult<NodePlace> {
    if place.is_here(entry) {
        return Ok(NodePlace::Here);
    }
    let host = machine.and_then(|machine| Some((machine, machine.host_of(entry.id)?)));
    let Some((machine, host)) = host else { return Ok(NodePlace::Elsewhere) };
    let mut session = access_of(machine).open_session(&host.name)?;
    let token = TokenMark::write(place, None)?;
    session.order(&check_order(place, volume, &token.text), ORDER_WAIT)?;
    Ok(NodePlace::Host(Box::new(session)))
}

fn refuse_shards(place: &VolumeDir, volume: &VolumeFile, entry: &NodeEntry) -> CommandResult {
    let holders = shard_holders(&volume.shards);
    if !holders.contains(&NodeId(entry.id)) {
        return Ok(());
    }
    if volume.nodes.len() == 1 {
        let what = format!("{} is the only node of the volume", entry.name);
        return Err(CommandFailure::usage(what).try_this("add another node first: tatami node add"));
    }
    let what = format!("{} serves a part of the namespace", entry.name);
    let drain = format!("tatami node drain{} {}", place.dir_flag(), entry.name);
    Err(CommandFailure::usage(what).try_this(format!("move it to the other nodes first: {drain}")))
}

/// Ends the mount of the node: it would make files there.
fn end_mounts(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
    far: &mut NodePlace,
) -> CommandResult {
    match far {
        NodePlace::Host(session) => {
            session.order(&HostOrder::CheckIdle, ORDER_WAIT)?;
            session.order(&HostOrder::Unmount { force: false }, PROCESS_WAIT).map(drop)
        }
        NodePlace::Here => {
            let how = format!("tatami umount --force{}", place.dir_flag());
            let spinner = term::new_spinner("unmounting");
            let mounts = MountsHere::find_node(place, entry.id);
            mounts.refuse_used(&how)?;
            mounts.end_all(place, false, &how, &spinner).map(drop)
        }
        NodePlace::Elsewhere => Ok(()),
    }?;
    refuse_mounts(place, volume, entry)
}

/// Refuses a node with a mount that this command cannot end: of another user or machine.
fn refuse_mounts(place: &VolumeDir, volume: &VolumeFile, entry: &NodeEntry) -> CommandResult {
    let start = Instant::now();
    loop {
        let answer = place.send_admin(volume, entry, &AdminCall::Status);
        // If it does not answer, the next steps say so.
        let Ok(AdminReply::Status(status)) = answer else { return Ok(()) };
        let Some(mount) = status.mounts.first() else { return Ok(()) };
        // The node learns of the end of a mount a moment later.
        if start.elapsed() >= MOUNT_WAIT {
            let (name, path) = (&entry.name, &mount.path);
            return Err(CommandFailure::usage(format!("{name} is mounted, on {path}"))
                .try_this(format!("run on its machine: tatami umount {path}")));
        }
        sleep_for(LOOK_PAUSE);
    }
}

/// Marks the node as leaving, on all nodes. They refuse new files on it from then on.
fn mark_leaving(place: &VolumeDir, volume: &mut VolumeFile, node: NodeId) -> CommandResult {
    let mut is_new = false;
    if let Some(entry) = volume.nodes.iter_mut().find(|entry| entry.id == node.0) {
        is_new = !std::mem::replace(&mut entry.leaving, true);
        volume.epoch += u64::from(is_new);
    }
    save_volume(place, volume)?;
    send_to_all(place, volume)?;
    if is_new { hosts_files::spread_files(place) } else { Ok(()) }
}

fn send_to_all(place: &VolumeDir, volume: &VolumeFile) -> CommandResult {
    let map = volume.map();
    volume.nodes.iter().try_for_each(|entry| send_map(place, volume, entry, &map))
}

/// Looks for files with an object on the node.
fn refuse_files(place: &VolumeDir, volume: &VolumeFile, entry: &NodeEntry) -> CommandResult {
    let spinner = term::new_spinner("looking for its files");
    let client = place.connect_client(None)?;
    client.refresh_map();
    let failed = |errno| {
        CommandFailure::degraded("a node could not say which files it knows").because(errno)
    };
    let FilesOnNode { files, bytes, unnamed } =
        client.count_files_on(NodeId(entry.id)).map_err(failed)?;
    if files > 0 && files == unnamed {
        return Err(unnamed_failure(entry, files));
    }
    if files > 0 {
        let (name, flag) = (&entry.name, place.dir_flag());
        return Err(CommandFailure::usage(format!(
            "{name} still has {files} files, {}; it gets no new ones",
            term::format_size(bytes)
        ))
        .try_this(format!("move them to other nodes: tatami relayout{flag} -r --from {name} :/")));
    }
    // Transactions that this node has led must survive a power cut of the others without it.
    client.sync().map_err(failed)?;
    spinner.set_message("waiting for the end of its objects");
    let start = Instant::now();
    loop {
        match count_objects(place, volume, entry) {
            Some((0, _)) => return Ok(()),
            None => {
                return Err(CommandFailure::degraded(format!("{} does not answer", entry.name))
                    .because("only the node itself knows which objects it has")
                    .try_this(format!(
                        "tatami node start{} {}; a node that is lost for good: tatami node start \
                         --empty",
                        place.dir_flag(),
                        entry.name
                    )));
            }
            Some((objects, _)) if start.elapsed() >= GARBAGE_WAIT => {
                return Err(unnamed_failure(entry, objects));
            }
            Some(_) => sleep_for(LOOK_PAUSE),
        }
    }
}

fn unnamed_failure(entry: &NodeEntry, count: u64) -> CommandFailure {
    let what = format!("{} still has {count} files without a name", entry.name);
    CommandFailure::degraded(what)
        .because("programs have removed files open")
        .try_this("repeat this command when they have closed them")
}

/// Takes the node out of the map of all others.
fn take_out(place: &VolumeDir, volume: &mut VolumeFile, node: NodeId) -> CommandResult {
    volume.remove_node(node);
    send_to_all(place, volume)
}

fn stop_and_erase(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
    far: &mut NodePlace,
) -> CommandResult {
    match far {
        NodePlace::Here => {
            let _lock = place.lock()?;
            daemon::stop_daemon(place, volume, entry, false)?;
            erase_node::erase_node(place, entry, true)
        }
        NodePlace::Host(session) => {
            let nodes = vec![entry.id];
            session.order(&HostOrder::StopNodes { nodes, force: false }, PROCESS_WAIT)?;
            session.order(&HostOrder::Erase { node: entry.id }, ORDER_WAIT).map(drop)
        }
        NodePlace::Elsewhere => {
            // A daemon that is gone already cannot answer.
            let _ = place.send_admin(volume, entry, &AdminCall::Shutdown);
            Ok(())
        }
    }
}
