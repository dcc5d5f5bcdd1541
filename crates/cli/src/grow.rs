//! `tatami node add`, `drain` and `rebalance`: shards of the namespace move to other nodes while the volume is in use.
//!
//! The daemons move them, a block at a time; here it is only said which, and `volume.toml` is rewritten when
//! it is done. What counts is what the daemons say: whatever breaks off, the same command goes on where that was.

use crate::daemon;
use crate::error::{Failure, Outcome};
use crate::keys::name;
use crate::place::{AskError, At, Place};
use crate::term::{self, HEAD, Out};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tatami_cluster::{NODES_MAX, NodeEntry, VolumeFile};
use tatami_wire::admin::{AdminCall, AdminReply, ClusterMap};
use tatami_wire::{Errno, NodeId};

/// Pause between two looks at how far a daemon is.
const LOOK: Duration = Duration::from_millis(5);
/// After so long without a change the daemon is asked what it is at.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Objects asked for at a time.
const OBJECTS: u32 = 4096;

/// `tatami node add`
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    #[command(flatten)]
    at: At,
    /// How many nodes
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    nodes: u16,
    /// A node on another machine, where others reach it: then it is only written down, and its
    /// daemon is started there
    #[arg(long, value_name = "HOST:PORT", requires = "node_dir", conflicts_with = "nodes")]
    address: Option<String>,
    /// Its data directory there
    #[arg(long, value_name = "NODEDIR", requires = "address")]
    node_dir: Option<PathBuf>,
    /// Leave the shards where they are
    #[arg(long)]
    no_rebalance: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// `tatami node drain`
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    at: At,
    /// As one JSON object
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
    at: At,
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// Nodes, by number or name, that get shards besides those that have some
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
}

/// What was done. This is what `--json` prints.
#[derive(Serialize)]
struct Told {
    volume: String,
    /// Shards that have moved.
    moved: usize,
    nodes: Vec<NodeTold>,
}

#[derive(Serialize)]
struct NodeTold {
    node: u16,
    name: String,
    shards: usize,
    /// Was added by this call.
    added: bool,
    /// Of a node that was drained: objects that lie there still, and their bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Adds nodes to the volume.
///
/// # Errors
/// Those of the file system and of the daemons.
pub fn add(args: &AddArgs) -> Outcome {
    let place = args.at.open()?;
    crate::log::start(&place.config, false)?;
    let _lock = place.lock_shards()?;
    let mut volume = place.volume()?;
    // All must know of the new ones before anybody speaks to them.
    let map = gather(&place, &volume)?;
    volume.learn(&map);
    let count = if args.address.is_some() { 1 } else { args.nodes };
    let first = volume.nodes.len();
    if first + usize::from(count) > NODES_MAX {
        return Err(Failure::usage(format!("a volume has at most {NODES_MAX} nodes")));
    }
    let entries = match (&args.address, &args.node_dir) {
        (Some(address), Some(dir)) => vec![far_entry(&volume, address, dir)?],
        _ => near_entries(&place, &volume, count)?,
    };
    volume.epoch += u64::from(count);
    volume.nodes.extend(entries.iter().cloned());
    save(&place, &volume)?;
    let told = volume.map();
    for entry in volume.nodes.iter().take(first) {
        learn(&place, &volume, entry, &told)?;
    }
    let added: BTreeSet<u16> = entries.iter().map(|entry| entry.id).collect();
    if args.address.is_some() {
        return tell_far(args, &place, &volume, &entries[0]);
    }
    let spinner = term::spinner("starting daemons");
    for entry in &entries {
        daemon::start(&place, entry)?.wait()?;
        daemon::note_made(&place, entry)?;
        // Those that it meets may have learnt more meanwhile.
        learn(&place, &volume, entry, &told)?;
    }
    spinner.finish_and_clear();
    let mut targets = holders(&volume.map());
    if !args.no_rebalance {
        targets.extend(added.iter().map(|id| NodeId(*id)));
    }
    let moved = carry_out(&place, &mut volume, &targets);
    finish(&place, &volume, moved, args.json, &added, &BTreeSet::new())
}

/// Moves all shards of some nodes to the others.
///
/// # Errors
/// Those of the daemons.
pub fn drain(args: &DrainArgs) -> Outcome {
    let place = args.at.open()?;
    crate::log::start(&place.config, false)?;
    let _lock = place.lock_shards()?;
    let mut volume = place.volume()?;
    let found = args.nodes.iter().map(|which| place.find_node(&volume, which).map(|n| n.id));
    let drained: BTreeSet<u16> = found.collect::<Outcome<_>>()?;
    let map = gather(&place, &volume)?;
    volume.learn(&map);
    let mut targets = holders(&map);
    targets.retain(|node| !drained.contains(&node.0));
    if targets.is_empty() {
        // One that has none takes them, if there is one.
        let others = volume.nodes.iter().map(|entry| entry.id).filter(|id| !drained.contains(id));
        targets = others.map(NodeId).collect();
    }
    if targets.is_empty() {
        return Err(Failure::usage("no node is left that could serve the namespace")
            .try_this("add one before: tatami node add"));
    }
    let moved = carry_out(&place, &mut volume, &targets);
    finish(&place, &volume, moved, args.json, &BTreeSet::new(), &drained)
}

/// Deals the shards out evenly.
///
/// # Errors
/// Those of the daemons.
pub fn rebalance(args: &RebalanceArgs) -> Outcome {
    let place = args.at.open()?;
    crate::log::start(&place.config, false)?;
    let _lock = place.lock_shards()?;
    let mut volume = place.volume()?;
    let found =
        args.nodes.iter().map(|which| place.find_node(&volume, which).map(|n| NodeId(n.id)));
    let named: BTreeSet<NodeId> = found.collect::<Outcome<_>>()?;
    let map = gather(&place, &volume)?;
    volume.learn(&map);
    let mut targets = holders(&map);
    targets.extend(named);
    let moved = carry_out(&place, &mut volume, &targets);
    finish(&place, &volume, moved, args.json, &BTreeSet::new(), &BTreeSet::new())
}

fn save(place: &Place, volume: &VolumeFile) -> Outcome {
    let _lock = place.lock()?;
    volume.save(&place.volume_file()).map_err(|e| Failure::new(e.to_string()))
}

fn holders(map: &ClusterMap) -> BTreeSet<NodeId> {
    map.shards.iter().copied().collect()
}

/// Entries of new nodes on this machine.
fn near_entries(place: &Place, volume: &VolumeFile, count: u16) -> Outcome<Vec<NodeEntry>> {
    let host = place.config.text(name::NODE_LISTEN);
    let first = volume.nodes.len() as u16;
    // All are held until all are found, so that they differ.
    let mut held = Vec::new();
    let mut entries = Vec::new();
    for id in first..first + count {
        let what = || format!("no free port on {host}");
        let listener = TcpListener::bind((host.as_str(), 0));
        let listener = listener.map_err(|e| Failure::new(what()).because(e))?;
        let port = listener.local_addr().map_err(|e| Failure::new(what()).because(e))?.port();
        held.push(listener);
        let name = format!("node{id}");
        let dir = place.dir.join(&name);
        let colons = host.contains(':');
        let address = if colons { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        entries.push(NodeEntry { id, name, address, socket: dir.join("socket"), dir });
    }
    Ok(entries)
}

/// The entry of a new node on another machine.
fn far_entry(volume: &VolumeFile, address: &str, dir: &std::path::Path) -> Outcome<NodeEntry> {
    if !dir.is_absolute() {
        return Err(Failure::usage("--node-dir: the path must begin with a slash"));
    }
    let (id, dir) = (volume.nodes.len() as u16, dir.to_owned());
    let socket = dir.join("socket");
    Ok(NodeEntry { id, name: format!("node{id}"), address: address.to_owned(), socket, dir })
}

fn tell_far(args: &AddArgs, place: &Place, volume: &VolumeFile, entry: &NodeEntry) -> Outcome {
    let mut out = Out::new();
    if args.json {
        let told = told(place, volume, 0, &BTreeSet::from([entry.id]), &BTreeSet::new());
        out.json(&told)?;
    } else {
        let (file, flag) = (place.volume_file(), place.dir_flag());
        writeln!(out, "{} is written down; next:", out.paint(HEAD, &entry.name))?;
        writeln!(out, "  copy {} and the key to its machine; there:", file.display())?;
        writeln!(
            out,
            "  tatami node run --node {} --volume-file FILE --key-file FILE",
            entry.name
        )?;
        writeln!(out, "  and here, to give it shards: tatami node rebalance{flag} {}", entry.name)?;
    }
    out.flush()?;
    Ok(())
}

/// What all daemons know together of where shards are.
fn gather(place: &Place, volume: &VolumeFile) -> Outcome<ClusterMap> {
    let mut map = volume.map();
    for entry in &volume.nodes {
        match place.ask(volume, entry, &AdminCall::Map) {
            Ok(AdminReply::Map(known)) => drop(map.merge(&known)),
            Ok(_) | Err(_) => tracing::debug!(node = entry.name, "it does not tell its map"),
        }
    }
    Ok(map)
}

fn learn(place: &Place, volume: &VolumeFile, entry: &NodeEntry, map: &ClusterMap) -> Outcome {
    let answer = place.ask(volume, entry, &AdminCall::Learn(map.clone()));
    answer.map(drop).map_err(|e| no_answer(place, entry, &e))
}

fn no_answer(place: &Place, entry: &NodeEntry, error: &AskError) -> Failure {
    Failure::degraded(format!("{} does not answer", entry.name))
        .because(error.to_string())
        .try_this(format!(
            "start what is down: tatami up{}; then the same command goes on",
            place.dir_flag()
        ))
}

/// Shards from one number on, that one node gives to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    first: u16,
    count: u16,
    from: NodeId,
    to: NodeId,
}

/// What must move so that all of `targets` have as many shards, and nobody else any. Few blocks move, from the
/// ends of those that there are.
fn plan(shards: &[NodeId], targets: &BTreeSet<NodeId>) -> Vec<Step> {
    let have = |node: NodeId| shards.iter().filter(|owner| **owner == node).count();
    let mut order: Vec<_> = targets.iter().map(|node| (have(*node), *node)).collect();
    // Who has more keeps one more, where they do not come out even.
    order.sort_by_key(|(have, node)| (std::cmp::Reverse(*have), *node));
    let (each, more) = (shards.len() / targets.len(), shards.len() % targets.len());
    let quota =
        order.iter().enumerate().map(|(at, (_, node))| (*node, each + usize::from(at < more)));
    let quota: BTreeMap<NodeId, usize> = quota.collect();
    let wants = |node: &NodeId| quota.get(node).copied().unwrap_or(0);
    let owners: BTreeSet<NodeId> = shards.iter().copied().chain(targets.iter().copied()).collect();
    let mut surplus: BTreeMap<NodeId, usize> =
        owners.iter().map(|node| (*node, have(*node).saturating_sub(wants(node)))).collect();
    let mut lack: BTreeMap<NodeId, usize> =
        targets.iter().map(|node| (*node, wants(node).saturating_sub(have(*node)))).collect();
    let (mut steps, mut to): (Vec<Step>, Option<NodeId>) = (Vec::new(), None);
    for (first, from) in shards.iter().enumerate().rev() {
        // There are 4,096 at most.
        let first = first as u16;
        let Some(left) = surplus.get_mut(from).filter(|left| **left > 0) else { continue };
        let goes_on = to.filter(|to| lack.get(to).is_some_and(|lack| *lack > 0));
        let most = || lack.iter().max_by_key(|(node, lack)| (**lack, std::cmp::Reverse(**node)));
        let Some(taker) = goes_on.or_else(|| most().map(|(node, _)| *node)) else { break };
        to = Some(taker);
        *left -= 1;
        if let Some(lack) = lack.get_mut(&taker) {
            *lack = lack.saturating_sub(1);
        }
        match steps.last_mut() {
            Some(last) if last.first == first + 1 && last.from == *from && last.to == taker => {
                (last.first, last.count) = (first, last.count + 1);
            }
            _ => steps.push(Step { first, count: 1, from: *from, to: taker }),
        }
    }
    steps
}

/// Has the daemons move shards until all is as planned; how many moved. `volume` says what is true afterwards.
fn carry_out(place: &Place, volume: &mut VolumeFile, targets: &BTreeSet<NodeId>) -> Outcome<usize> {
    let patience = place.config.duration(name::CLIENT_PATIENCE);
    let mut moved = 0;
    let total = plan(&volume.shards, targets).iter().map(|step| u64::from(step.count)).sum();
    let bar = term::count_bar(total, "shards");
    let mut last_progress = Instant::now();
    let result = loop {
        let steps = plan(&volume.shards, targets);
        let Some(step) = steps.first() else { break Ok(()) };
        let before = steps.iter().map(|step| usize::from(step.count)).sum::<usize>();
        match order(place, volume, *step) {
            Ok(()) => {}
            Err(failure) if last_progress.elapsed() > patience => break Err(failure),
            // One of both is away, or busy: a moment later it may not be.
            Err(failure) if failure.exit == crate::error::Exit::Degraded => pause(ASK_AGAIN),
            Err(failure) => break Err(failure),
        }
        let after: usize =
            plan(&volume.shards, targets).iter().map(|step| usize::from(step.count)).sum();
        if after < before {
            last_progress = Instant::now();
            moved += before - after;
            bar.inc((before - after) as u64);
        }
    };
    bar.finish_and_clear();
    // What is true now is what clients and daemons begin with, whether or not all has moved.
    let saved = save(place, volume);
    result.and(saved).map(|()| moved)
}

#[allow(clippy::disallowed_methods)] // a daemon says nothing by itself
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Has a part of a step done, and waits for it.
fn order(place: &Place, volume: &mut VolumeFile, step: Step) -> Outcome {
    let Step { first, count, from, to } = step;
    let entry = |node: NodeId| {
        let missing = || Failure::new(format!("node {node} is in no volume file"));
        volume.node(node).cloned().ok_or_else(missing)
    };
    let (giver, taker) = (entry(from)?, entry(to)?);
    let call = AdminCall::Move { first, count, to };
    let mut answer = place.ask(volume, &giver, &call);
    let mut asked = Instant::now();
    loop {
        match answer {
            Ok(_) | Err(AskError::Errno(Errno::EBUSY)) => {}
            Err(AskError::Errno(Errno::ESTALE)) => return look(place, volume, &giver),
            Err(AskError::Errno(errno)) => return Err(refused(&giver, &taker, errno)),
            Err(error) => return Err(no_answer(place, &giver, &error)),
        }
        pause(LOOK);
        let epoch = volume.epoch;
        look(place, volume, &giver)?;
        if volume.epoch != epoch {
            return Ok(());
        }
        answer = Ok(AdminReply::Done);
        if asked.elapsed() >= ASK_AGAIN {
            answer = place.ask(volume, &giver, &call);
            asked = Instant::now();
        }
    }
}

fn look(place: &Place, volume: &mut VolumeFile, entry: &NodeEntry) -> Outcome {
    match place.ask(volume, entry, &AdminCall::Map) {
        Ok(AdminReply::Map(map)) => {
            volume.learn(&map);
            Ok(())
        }
        Ok(_) => Err(Failure::new(format!("{} answered something else", entry.name))),
        Err(error) => Err(no_answer(place, entry, &error)),
    }
}

fn refused(giver: &NodeEntry, taker: &NodeEntry, errno: Errno) -> Failure {
    let what = format!("{} could not give shards to {}", giver.name, taker.name);
    match errno {
        Errno::EHOSTDOWN => Failure::degraded(what)
            .because(format!("{} does not answer", taker.name))
            .try_this(format!("tatami node start {}; then the same command goes on", taker.name)),
        Errno::EAGAIN | Errno::ESTALE => Failure::degraded(what)
            .because("they were in use all the time, or a daemon was started anew")
            .try_this("the same command goes on"),
        Errno::ENOSPC => Failure::new(what)
            .because(format!("the disk of {} has no room", taker.name))
            .try_this("make room; then the same command goes on"),
        errno => Failure::new(what).because(errno),
    }
}

fn told(
    place: &Place,
    volume: &VolumeFile,
    moved: usize,
    added: &BTreeSet<u16>,
    drained: &BTreeSet<u16>,
) -> Told {
    let node = |entry: &NodeEntry| {
        let shards = volume.shards.iter().filter(|owner| owner.0 == entry.id).count();
        let left = drained.contains(&entry.id).then(|| objects(place, volume, entry)).flatten();
        NodeTold {
            node: entry.id,
            name: entry.name.clone(),
            shards,
            added: added.contains(&entry.id),
            objects: left.map(|(objects, _)| objects),
            bytes: left.map(|(_, bytes)| bytes),
        }
    };
    let nodes = volume.nodes.iter().map(node).collect();
    Told { volume: volume.name.clone(), moved, nodes }
}

/// Number and bytes of the objects of a node, if it tells.
fn objects(place: &Place, volume: &VolumeFile, entry: &NodeEntry) -> Option<(u64, u64)> {
    let (mut count, mut bytes, mut after) = (0, 0, None);
    loop {
        let call = AdminCall::ListObjects { after, limit: OBJECTS };
        let Ok(AdminReply::Objects { objects, end }) = place.ask(volume, entry, &call) else {
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

fn finish(
    place: &Place,
    volume: &VolumeFile,
    moved: Outcome<usize>,
    json: bool,
    added: &BTreeSet<u16>,
    drained: &BTreeSet<u16>,
) -> Outcome {
    let told = told(place, volume, moved?, added, drained);
    let mut out = Out::new();
    if json {
        out.json(&told)?;
        out.flush()?;
        return Ok(());
    }
    for node in told.nodes.iter().filter(|node| node.added) {
        writeln!(out, "{} is added and runs", out.paint(HEAD, &node.name))?;
    }
    let names = |shards: usize| if shards == 1 { "shard" } else { "shards" };
    writeln!(out, "{} {} of {} moved", told.moved, names(told.moved), volume.shards.len())?;
    for node in &told.nodes {
        writeln!(out, "  {:10} {} {}", node.name, node.shards, names(node.shards))?;
    }
    for node in told.nodes.iter().filter(|node| drained.contains(&node.node)) {
        match (node.objects, node.bytes) {
            (Some(0), _) => writeln!(out, "{} has no names and no bytes any more", node.name)?,
            (Some(objects), Some(bytes)) => writeln!(
                out,
                "{} has no names any more, and {objects} objects of files, {}: it must go on running. To move \
                 them: tatami relayout{} -r --nodes NODE :/",
                node.name,
                term::size(bytes),
                place.dir_flag(),
            )?,
            _ => {
                writeln!(out, "{} has no names any more; objects of files may be there", node.name)?
            }
        }
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(of: &[(u16, usize)]) -> Vec<NodeId> {
        of.iter().flat_map(|(node, count)| std::iter::repeat_n(NodeId(*node), *count)).collect()
    }

    fn set(of: &[u16]) -> BTreeSet<NodeId> {
        of.iter().map(|node| NodeId(*node)).collect()
    }

    fn after(mut shards: Vec<NodeId>, steps: &[Step]) -> Vec<NodeId> {
        for step in steps {
            for shard in step.first..step.first + step.count {
                assert_eq!(shards[usize::from(shard)], step.from);
                shards[usize::from(shard)] = step.to;
            }
        }
        shards
    }

    #[test]
    fn two_nodes_become_four_with_two_moves() {
        let shards = nodes(&[(0, 8), (1, 8)]);
        let steps = plan(&shards, &set(&[0, 1, 2, 3]));
        assert_eq!(steps.len(), 2, "{steps:?}");
        assert_eq!(after(shards, &steps), nodes(&[(0, 4), (3, 4), (1, 4), (2, 4)]));
    }

    #[test]
    fn everybody_gets_as_many_and_few_move() {
        for (before, targets, moves) in [
            (nodes(&[(0, 16)]), set(&[0, 1]), 8),
            (nodes(&[(0, 16)]), set(&[0, 1, 2]), 10),
            (nodes(&[(0, 4), (3, 4), (1, 4), (2, 4)]), set(&[0, 1]), 8),
            (nodes(&[(0, 4), (3, 4), (1, 4), (2, 4)]), set(&[3]), 12),
            (nodes(&[(0, 5), (1, 6), (2, 5)]), set(&[0, 1, 2]), 0),
            (nodes(&[(0, 16)]), set(&[5]), 16),
        ] {
            let steps = plan(&before, &targets);
            assert_eq!(steps.iter().map(|step| step.count).sum::<u16>(), moves, "{before:?}");
            let now = after(before, &steps);
            let counts: Vec<_> =
                targets.iter().map(|node| now.iter().filter(|n| *n == node).count()).collect();
            assert_eq!(counts.iter().sum::<usize>(), 16);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            assert!(plan(&now, &targets).is_empty(), "nothing is left to do");
        }
    }
}
