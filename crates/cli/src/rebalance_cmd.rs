//! `tatami node add`, `drain` and `rebalance`: move shards of the namespace to other executors, of
//! the same nodes or of others, while the volume is in use.
//!
//! The daemons migrate the shards block by block. This module only plans the migration, and
//! rewrites `volume.toml` at its end. The shard maps of the daemons are authoritative: after an
//! interruption the same command continues with their state.

use crate::absence::Absence;
use crate::daemon;
use crate::error::{CommandFailure, CommandResult};
use crate::json::serialize_optional_wide;
use crate::keys::name;
use crate::ports;
use crate::shard_plan::{
    MigrationStep, check_executors, compute_quotas, count_by_key, executors_by_node, plan_steps,
    shard_holders, target_executors,
};
use crate::term::{self, HEAD, TermOutput};
use crate::volume_dir::{ADMIN_TIMEOUT, AdminCallError, VolumeArgs, VolumeDir, executor_name};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tatami_cluster::{NODES_MAX, NodeEntry, VolumeFile};
use tatami_hosts::network::{IpNetwork, check_brackets, join_address};
use tatami_wire::admin::{AdminCall, AdminReply, ClusterMap};
use tatami_wire::{EXECUTORS_MAX, Errno, ExecutorId, NodeId};

/// Pause between two queries of a daemon's shard map.
const POLL_PAUSE: Duration = Duration::from_millis(5);
/// After this time without a change, the command repeats its request to the daemon.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Objects listed per request.
const OBJECTS_PER_REQUEST: u32 = 4096;

/// `tatami node add`
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    #[command(flatten)]
    pub at: VolumeArgs,
    /// Hosts, for a volume that was started on hosts: one node on each
    #[arg(value_name = "HOST", conflicts_with_all = ["nodes", "address"])]
    pub hosts: Vec<String>,
    /// Network of the new nodes' addresses [default: that of `tatami up --network`]
    #[arg(long, value_name = "CIDR", requires = "hosts")]
    pub network: Option<IpNetwork>,
    /// Do not mount the volume on the new hosts
    #[arg(long, requires = "hosts")]
    pub no_mount: bool,
    /// Number of nodes
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    nodes: u16,
    /// Address of a node on another machine. The command only adds it to the volume file; start its
    /// daemon on that machine
    #[arg(long, value_name = "HOST:PORT", requires = "node_dir", conflicts_with = "nodes",
          value_parser = check_brackets)]
    address: Option<String>,
    /// Data directory of that node, on its machine
    #[arg(long, value_name = "NODEDIR", requires = "address")]
    node_dir: Option<PathBuf>,
    /// Partition, loop device or file for the small files of directories with the policy
    /// `engine=region`. {node} in it stands for the node's name
    #[arg(long, value_name = "PATH", conflicts_with_all = ["hosts", "address"])]
    region_device: Option<PathBuf>,
    /// Do not move shards
    #[arg(long)]
    no_rebalance: bool,
    /// Executors of each node: threads that serve the namespace, each with shards and a store of
    /// its own [default: as many as the node with most has now]
    #[arg(long, value_name = "N", conflicts_with_all = ["no_rebalance", "address"],
          value_parser = clap::value_parser!(u8).range(1..=i64::from(EXECUTORS_MAX)))]
    executors: Option<u8>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `tatami node drain`
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Nodes by number or name
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

/// `tatami node rebalance`
#[derive(Debug, clap::Args)]
pub struct RebalanceArgs {
    #[command(flatten)]
    pub at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Executors of each node: threads that serve the namespace, each with shards and a store of
    /// its own [default: as many as the node with most has now]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=i64::from(EXECUTORS_MAX)))]
    executors: Option<u8>,
    /// Nodes, by number or name, that also get shards, besides the nodes with shards
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
}

/// The result. `--json` prints it.
#[derive(Serialize)]
struct RebalanceReport {
    volume: String,
    /// Shards that have moved.
    moved: usize,
    nodes: Vec<RebalancedNode>,
}

#[derive(Serialize)]
struct RebalancedNode {
    node: u16,
    name: String,
    shards: usize,
    /// Its executors that have shards.
    executors: usize,
    /// This call added the node.
    added: bool,
    /// For a drained node: the objects that are still there, and their bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "serialize_optional_wide")]
    bytes: Option<u64>,
}

impl AddArgs {
    /// Returns the arguments of the new daemons that the volume's configuration does not have.
    fn daemon_arguments(&self) -> CommandResult<Vec<OsString>> {
        let Some(device) = &self.region_device else { return Ok(Vec::new()) };
        let device = std::path::absolute(device).map_err(|e| {
            CommandFailure::new(format!("{}: no absolute path: {e}", device.display()))
        })?;
        let names_each = device.to_string_lossy().contains("{node}");
        if self.nodes > 1 && !names_each {
            let what = "each node needs a region device of its own";
            return Err(CommandFailure::usage(what).try_this("--region-device '/path/{node}'"));
        }
        Ok(vec!["--node-region-device".into(), device.into()])
    }
}

/// Adds nodes to the volume.
///
/// # Errors
/// Those of the file system and of the daemons.
pub fn add_nodes(args: &AddArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    if place.load_machine()?.is_some_and(|machine| !machine.hosts.is_empty()) {
        let what = "the volume was started on hosts, and a host has one node";
        return Err(CommandFailure::usage(what)
            .try_this(format!("name a new host: tatami node add{} HOST", place.dir_flag())));
    }
    let more = args.daemon_arguments()?;
    let _lock = place.lock_shards()?;
    let mut volume = place.load_volume()?;
    // All old nodes must have the new entries before a client contacts a new node.
    let map = merge_maps(&place, &volume)?;
    volume.merge_map(&map);
    let count = if args.address.is_some() { 1 } else { args.nodes };
    let first = volume.nodes.len();
    if usize::from(volume.next_node()) + usize::from(count) > NODES_MAX {
        return Err(CommandFailure::usage(format!("a volume has at most {NODES_MAX} nodes")));
    }
    check_executors(
        &volume,
        shard_holders(&volume.shards).len() + usize::from(count),
        args.executors,
    )?;
    let entries = match (&args.address, &args.node_dir) {
        (Some(address), Some(dir)) => vec![remote_entry(&volume, address, dir)?],
        _ => local_entries(&place, &volume, count)?,
    };
    volume.epoch += u64::from(count);
    volume.nodes.extend(entries.iter().cloned());
    save_volume(&place, &volume)?;
    let map = volume.map();
    for entry in volume.nodes.iter().take(first) {
        send_map(&place, &volume, entry, &map)?;
    }
    let added: BTreeSet<u16> = entries.iter().map(|entry| entry.id).collect();
    if args.address.is_some() {
        return print_remote(args, &place, &volume, &entries[0]);
    }
    place.record_nodes_here(&volume, added.iter().copied())?;
    let spinner = term::new_spinner("starting daemons");
    for entry in &entries {
        daemon::start_daemon_with(&place, entry, &more)?.wait_ready()?;
        daemon::record_in_use(&place, entry)?;
        // The other nodes may have received a newer shard map meanwhile.
        send_map(&place, &volume, entry, &map)?;
    }
    spinner.finish_and_clear();
    balance_added(args, &place, &mut volume, &added)
}

/// Moves shards to nodes that were added, unless the user wants none moved, and prints the result.
///
/// # Errors
/// Those of the daemons.
pub(crate) fn balance_added(
    args: &AddArgs,
    place: &VolumeDir,
    volume: &mut VolumeFile,
    added: &BTreeSet<u16>,
) -> CommandResult {
    let moved = if args.no_rebalance {
        Ok(0)
    } else {
        let mut nodes = shard_holders(&volume.shards);
        nodes.extend(added.iter().map(|id| NodeId(*id)));
        let targets = target_executors(volume, &nodes, args.executors);
        run_migration(place, volume, &targets)
    };
    finish_change(place, volume, moved, args.json, added, &BTreeSet::new())
}

/// Moves all shards of some nodes to the others.
///
/// # Errors
/// Those of the daemons.
pub fn drain_nodes(args: &DrainArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let _lock = place.lock_shards()?;
    let mut volume = place.load_volume()?;
    let found = args.nodes.iter().map(|which| place.find_node(&volume, which).map(|n| n.id));
    let drained: BTreeSet<u16> = found.collect::<CommandResult<_>>()?;
    let map = merge_maps(&place, &volume)?;
    volume.merge_map(&map);
    let mut nodes = shard_holders(&volume.shards);
    nodes.retain(|node| !drained.contains(&node.0));
    if nodes.is_empty() {
        // If all nodes with shards are drained, the nodes without shards get them.
        let serving = volume.nodes.iter().filter(|entry| !entry.leaving);
        let others = serving.map(|entry| entry.id).filter(|id| !drained.contains(id));
        nodes = others.map(NodeId).collect();
    }
    if nodes.is_empty() {
        return Err(CommandFailure::usage("no node is left to serve the namespace")
            .try_this("add a node first: tatami node add"));
    }
    let targets = target_executors(&volume, &nodes, None);
    let moved = run_migration(&place, &mut volume, &targets);
    finish_change(&place, &volume, moved, args.json, &BTreeSet::new(), &drained)
}

/// Distributes the shards evenly over nodes, and over the executors of each.
///
/// # Errors
/// Those of the daemons.
pub fn rebalance_shards(args: &RebalanceArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let _lock = place.lock_shards()?;
    let mut volume = place.load_volume()?;
    let found =
        args.nodes.iter().map(|which| place.find_node(&volume, which).map(|n| NodeId(n.id)));
    let named: BTreeSet<NodeId> = found.collect::<CommandResult<_>>()?;
    let map = merge_maps(&place, &volume)?;
    volume.merge_map(&map);
    let mut nodes = shard_holders(&volume.shards);
    nodes.extend(named);
    check_executors(&volume, nodes.len(), args.executors)?;
    let targets = target_executors(&volume, &nodes, args.executors);
    let moved = run_migration(&place, &mut volume, &targets);
    finish_change(&place, &volume, moved, args.json, &BTreeSet::new(), &BTreeSet::new())
}

pub(crate) fn save_volume(place: &VolumeDir, volume: &VolumeFile) -> CommandResult {
    let _lock = place.lock()?;
    volume.save(&place.volume_file()).map_err(|e| CommandFailure::new(e.to_string()))
}

/// Returns the entries of new nodes on this machine.
fn local_entries(
    place: &VolumeDir,
    volume: &VolumeFile,
    count: u16,
) -> CommandResult<Vec<NodeEntry>> {
    let host = place.config.text_value(name::NODE_LISTEN);
    let first = volume.next_node();
    let mut entries = Vec::new();
    for (id, port) in (first..).zip(ports::find_free_ports(&host, count)?) {
        let name = format!("node{id}");
        let dir = place.dir.join(&name);
        let address = join_address(&host, port);
        entries.push(NodeEntry {
            id,
            name,
            address,
            socket: dir.join("socket"),
            dir,
            leaving: false,
            moved: 0,
        });
    }
    Ok(entries)
}

/// Returns the entry of a new node on another machine.
fn remote_entry(
    volume: &VolumeFile,
    address: &str,
    dir: &std::path::Path,
) -> CommandResult<NodeEntry> {
    if !dir.is_absolute() {
        return Err(CommandFailure::usage("--node-dir: the path must begin with a slash"));
    }
    let (id, dir) = (volume.next_node(), dir.to_owned());
    let socket = dir.join("socket");
    Ok(NodeEntry {
        id,
        name: format!("node{id}"),
        address: address.to_owned(),
        socket,
        dir,
        leaving: false,
        moved: 0,
    })
}

fn print_remote(
    args: &AddArgs,
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
) -> CommandResult {
    let mut out = TermOutput::new();
    if args.json {
        let report = build_report(place, volume, 0, &BTreeSet::from([entry.id]), &BTreeSet::new());
        out.write_json(&report)?;
    } else {
        let (file, flag) = (place.volume_file(), place.dir_flag());
        writeln!(out, "{} is in the volume file now; next:", out.paint_text(HEAD, &entry.name))?;
        writeln!(out, "  copy {} and the key to its machine, and run there:", file.display())?;
        writeln!(
            out,
            "  tatami node run --node {} --volume-file FILE --key-file FILE",
            entry.name
        )?;
        writeln!(
            out,
            "  then run here, to move shards to it: tatami node rebalance{flag} {}",
            entry.name
        )?;
    }
    out.flush()?;
    Ok(())
}

/// Returns the shard map, merged from the maps of all daemons that reply.
pub(crate) fn merge_maps(place: &VolumeDir, volume: &VolumeFile) -> CommandResult<ClusterMap> {
    let mut map = volume.map();
    for entry in &volume.nodes {
        match place.send_admin(volume, entry, &AdminCall::Map) {
            Ok(AdminReply::Map(known)) => drop(map.merge_newer(&known)),
            Ok(_) | Err(_) => tracing::debug!(node = entry.name, "no shard map from it"),
        }
    }
    Ok(map)
}

pub(crate) fn send_map(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
    map: &ClusterMap,
) -> CommandResult {
    let answer = place.send_admin(volume, entry, &AdminCall::MergeMap(map.clone()));
    answer.map(drop).map_err(|e| no_answer_failure(place, entry, &e))
}

fn no_answer_failure(
    place: &VolumeDir,
    entry: &NodeEntry,
    error: &AdminCallError,
) -> CommandFailure {
    let absence = match error {
        AdminCallError::Connect(e) if !e.is_timeout() => {
            Absence::from_connect_error(place, entry, e)
        }
        _ => Absence::from_timeout(place, entry, ADMIN_TIMEOUT),
    };
    CommandFailure::degraded(format!("{} does not answer", entry.name))
        .because(absence.why)
        .try_this(format!("{}; then repeat this command: it continues", absence.remedy))
}

/// Makes the daemons move shards until the plan is fulfilled, and returns how many moved. Updates
/// `volume` to the actual state.
fn run_migration(
    place: &VolumeDir,
    volume: &mut VolumeFile,
    targets: &BTreeSet<ExecutorId>,
) -> CommandResult<usize> {
    let patience = place.config.duration_value(name::CLIENT_PATIENCE);
    let mut moved = 0;
    let quotas = compute_quotas(&volume.shards, targets);
    let total = plan_steps(&volume.shards, &quotas).iter().map(|step| u64::from(step.count)).sum();
    let bar = term::count_bar(total, "shards");
    let mut last_progress = Instant::now();
    let result = loop {
        let steps = plan_steps(&volume.shards, &quotas);
        let Some(step) = steps.first() else { break Ok(()) };
        let before = steps.iter().map(|step| usize::from(step.count)).sum::<usize>();
        match order_step(place, volume, *step) {
            Ok(()) => {}
            Err(failure) if last_progress.elapsed() > patience => break Err(failure),
            // The source or the destination is unreachable or busy. The loop retries until the
            // operation timeout.
            Err(failure) if failure.exit == crate::error::ExitStatus::Degraded => {
                sleep_for(RETRY_PAUSE)
            }
            Err(failure) => break Err(failure),
        }
        let after: usize =
            plan_steps(&volume.shards, &quotas).iter().map(|step| usize::from(step.count)).sum();
        if after < before {
            last_progress = Instant::now();
            moved += before - after;
            bar.inc((before - after) as u64);
        }
    };
    bar.finish_and_clear();
    let result = result.and_then(|()| await_destinations(place, volume, patience));
    // The file is saved also after a failure: clients and daemons start from the actual shard map.
    let saved = save_volume(place, volume);
    result.and(saved).map(|()| moved)
}

/// Waits until each node itself reports its shards. The source of a migration reports the result
/// before the destination.
fn await_destinations(place: &VolumeDir, volume: &VolumeFile, patience: Duration) -> CommandResult {
    let start = Instant::now();
    let of = |shards: &[ExecutorId], node: NodeId| -> Vec<bool> {
        shards.iter().map(|owner| owner.node == node).collect()
    };
    for entry in &volume.nodes {
        let node = NodeId(entry.id);
        if !volume.shards.iter().any(|owner| owner.node == node) {
            continue;
        }
        loop {
            let map = match place.send_admin(volume, entry, &AdminCall::Map) {
                Ok(AdminReply::Map(map)) => Some(map),
                Ok(_) => None,
                Err(error) if start.elapsed() >= patience => {
                    return Err(no_answer_failure(place, entry, &error));
                }
                Err(_) => None,
            };
            let knows = |map: &ClusterMap| of(&map.shards, node) == of(&volume.shards, node);
            // Another command may move the same shards meanwhile. That is no failure of this
            // command.
            if map.as_ref().is_some_and(knows) || start.elapsed() >= patience {
                break;
            }
            sleep_for(POLL_PAUSE);
        }
    }
    Ok(())
}

/// Waits before another question to a daemon.
#[allow(clippy::disallowed_methods)] // a daemon sends no notification
pub(crate) fn sleep_for(time: Duration) {
    std::thread::sleep(time);
}

/// Requests one step of the migration, and waits until a part of it has taken effect.
fn order_step(place: &VolumeDir, volume: &mut VolumeFile, step: MigrationStep) -> CommandResult {
    let MigrationStep { first, count, from, to } = step;
    let entry = |node: NodeId| {
        let missing = || CommandFailure::new(format!("node {node} is not in the volume file"));
        volume.node(node).cloned().ok_or_else(missing)
    };
    let (giver, taker) = (entry(from.node)?, entry(to.node)?);
    let call = AdminCall::MigrateShards { first, count, to };
    let mut answer = place.send_admin(volume, &giver, &call);
    let mut asked = Instant::now();
    loop {
        match answer {
            Ok(_) | Err(AdminCallError::Errno(Errno::EBUSY)) => {}
            Err(AdminCallError::Errno(Errno::ESTALE)) => return refresh_map(place, volume, &giver),
            Err(AdminCallError::Errno(errno)) => {
                return Err(refusal_failure(volume, step, &taker, errno));
            }
            Err(error) => return Err(no_answer_failure(place, &giver, &error)),
        }
        sleep_for(POLL_PAUSE);
        let epoch = volume.epoch;
        refresh_map(place, volume, &giver)?;
        if volume.epoch != epoch {
            return Ok(());
        }
        answer = Ok(AdminReply::Done);
        if asked.elapsed() >= RETRY_PAUSE {
            answer = place.send_admin(volume, &giver, &call);
            asked = Instant::now();
        }
    }
}

fn refresh_map(place: &VolumeDir, volume: &mut VolumeFile, entry: &NodeEntry) -> CommandResult {
    match place.send_admin(volume, entry, &AdminCall::Map) {
        Ok(AdminReply::Map(map)) => {
            volume.merge_map(&map);
            Ok(())
        }
        Ok(_) => Err(CommandFailure::new(format!("{} sent an unexpected reply", entry.name))),
        Err(error) => Err(no_answer_failure(place, entry, &error)),
    }
}

fn refusal_failure(
    volume: &VolumeFile,
    step: MigrationStep,
    taker: &NodeEntry,
    errno: Errno,
) -> CommandFailure {
    let [giver, receiver] = [step.from, step.to].map(|executor| executor_name(volume, executor));
    let what = format!("{giver} could not move shards to {receiver}");
    match errno {
        Errno::EHOSTDOWN => CommandFailure::degraded(what)
            .because(format!("{} does not answer", taker.name))
            .try_this(format!("tatami node start {}; then repeat this command", taker.name)),
        Errno::EAGAIN | Errno::ESTALE => CommandFailure::degraded(what)
            .because("they were in use all the time, or a daemon was restarted")
            .try_this("repeat this command: it continues"),
        Errno::ENOSPC => CommandFailure::new(what)
            .because(format!("the disk of {} has no space", taker.name))
            .try_this("free some space; then repeat this command: it continues"),
        errno => CommandFailure::new(what).because(errno),
    }
}

fn build_report(
    place: &VolumeDir,
    volume: &VolumeFile,
    moved: usize,
    added: &BTreeSet<u16>,
    drained: &BTreeSet<u16>,
) -> RebalanceReport {
    let shards = count_by_key(volume.shards.iter().map(|owner| owner.node));
    let executors = executors_by_node(&volume.shards);
    let of = |all: &BTreeMap<NodeId, usize>, id| all.get(&NodeId(id)).copied().unwrap_or(0);
    let node = |entry: &NodeEntry| {
        let left =
            drained.contains(&entry.id).then(|| count_objects(place, volume, entry)).flatten();
        RebalancedNode {
            node: entry.id,
            name: entry.name.clone(),
            shards: of(&shards, entry.id),
            executors: of(&executors, entry.id),
            added: added.contains(&entry.id),
            objects: left.map(|(objects, _)| objects),
            bytes: left.map(|(_, bytes)| bytes),
        }
    };
    let nodes = volume.nodes.iter().map(node).collect();
    RebalanceReport { volume: volume.name.clone(), moved, nodes }
}

/// Returns number and bytes of the objects of a node; `None` if the node does not reply.
pub(crate) fn count_objects(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
) -> Option<(u64, u64)> {
    let (mut count, mut bytes, mut after) = (0, 0, None);
    loop {
        let call = AdminCall::ListObjects { after, limit: OBJECTS_PER_REQUEST };
        let Ok(AdminReply::Objects { objects, end }) = place.send_admin(volume, entry, &call)
        else {
            return None;
        };
        count += objects.len() as u64;
        bytes += objects.iter().map(|(_, _, size, _)| size).sum::<u64>();
        after = objects.last().map(|(ino, piece, _, _)| (*ino, *piece));
        if end || after.is_none() {
            return Some((count, bytes));
        }
    }
}

fn finish_change(
    place: &VolumeDir,
    volume: &VolumeFile,
    moved: CommandResult<usize>,
    json: bool,
    added: &BTreeSet<u16>,
    drained: &BTreeSet<u16>,
) -> CommandResult {
    let report = build_report(place, volume, moved?, added, drained);
    let mut out = TermOutput::new();
    if json {
        out.write_json(&report)?;
        out.flush()?;
        return Ok(());
    }
    for node in report.nodes.iter().filter(|node| node.added) {
        writeln!(out, "{} is added and runs", out.paint_text(HEAD, &node.name))?;
    }
    let names = |shards: usize| if shards == 1 { "shard" } else { "shards" };
    writeln!(out, "{} {} of {} moved", report.moved, names(report.moved), volume.shards.len())?;
    let several = report.nodes.iter().any(|node| node.executors > 1);
    for node in &report.nodes {
        let on = match node.executors {
            0 => String::new(),
            _ if !several => String::new(),
            1 => " on 1 executor".to_owned(),
            more => format!(" on {more} executors"),
        };
        writeln!(out, "  {:10} {} {}{on}", node.name, node.shards, names(node.shards))?;
    }
    let mut laden = Vec::new();
    for node in report.nodes.iter().filter(|node| drained.contains(&node.node)) {
        let name = &node.name;
        match (node.objects, node.bytes) {
            (Some(0), _) => writeln!(out, "{name} has no names and no bytes left")?,
            (Some(objects), Some(bytes)) => {
                let bytes = term::format_size(bytes);
                writeln!(
                    out,
                    "{name} has no names left, but {objects} objects of files, {bytes}: it must \
                     keep running"
                )?;
                laden.push(name.as_str());
            }
            _ => writeln!(out, "{name} has no names left; it may still have objects of files")?,
        }
    }
    if !laden.is_empty() {
        writeln!(
            out,
            "To move these files to other nodes: tatami relayout{} -r --from {} :/",
            place.dir_flag(),
            laden.join(",")
        )?;
    }
    out.flush()?;
    Ok(())
}
