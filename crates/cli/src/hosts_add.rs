//! `tatami node add HOST`: adds hosts to a volume that was started on hosts, while it is in use.

use crate::error::{CommandFailure, CommandResult};
use crate::host_group::{self, ORDER_WAIT, PROCESS_WAIT};
use crate::host_serve::shared_failure;
use crate::hosts_down::{access_of, refuse_job_volume};
use crate::hosts_files::{self, FirstFiles, HostFiles};
use crate::hosts_up::{SPACE_MIN, full_failure};
use crate::keys::name;
use crate::rebalance_cmd::{self, AddArgs};
use crate::ssh_session::{HostSession, SshAccess};
use crate::term;
use crate::up_token::TokenMark;
use crate::volume_dir::VolumeDir;
use crate::volume_layout;
use std::collections::BTreeSet;
use tatami_cluster::{NODES_MAX, NodeEntry, VolumeFile};
use tatami_hosts::host_list::parse_host_list;
use tatami_hosts::host_protocol::{CheckOrder, HostOrder, HostReply};
use tatami_hosts::machine::MachineFile;
use tatami_hosts::network::host_of_address;

/// Starts a node on each of the named hosts, mounts the volume there and moves shards to the nodes.
///
/// # Errors
/// A host fails: then none is added. Or the shards cannot be moved.
pub fn add_hosts(args: &AddArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let _lock = place.lock_shards()?;
    let mut volume = place.load_volume()?;
    let known = place.load_machine()?.filter(|machine| !machine.hosts.is_empty());
    let Some(machine) = known else {
        let what = format!("the volume in {} was not started on hosts", place.dir.display());
        return Err(CommandFailure::usage(what).try_this(
            "add another machine by hand: tatami node add --address HOST:PORT --node-dir DIR",
        ));
    };
    refuse_job_volume(&machine, "node add")?;
    let hosts = list_new_hosts(args, &machine, &volume)?;
    volume.merge_map(&rebalance_cmd::merge_maps(&place, &volume)?);
    let known = access_of(&machine);
    let spinner = term::new_spinner("reaching the hosts");
    let access = SshAccess { network: args.network.or(known.network), ..known };
    let (mut sessions, mut faults) = host_group::open_sessions(&access, &hosts);
    faults.extend(hosts_files::remove_strangers(&access, &mut sessions));
    let fail = |faults: &[host_group::HostFault]| match faults {
        [] => Ok(()),
        faults => {
            let headline = |count: &str| format!("{count} failed; no host was added");
            Err(host_group::join_faults(faults, &hosts, headline))
        }
    };
    fail(&faults)?;
    host_group::note_clocks(&sessions);
    check_hosts(&place, &mut sessions, &fail)?;

    let entries = plan_entries(&place, &volume, &access, &mut sessions, &fail)?;
    volume.epoch += entries.len() as u64;
    volume.nodes.extend(entries.iter().cloned());
    let all = MachineFile {
        nodes: machine.nodes.clone(),
        ..hosts_files::describe_machines(&access_of(&machine), &volume)
    };
    let files = HostFiles::prepare(&place, &volume, &all)?;
    let path = place.remembered_setting(name::MOUNT_PATH);
    let remembered: Vec<_> =
        path.into_iter().map(|path| (name::MOUNT_PATH.to_owned(), path)).collect();
    let first = FirstFiles::read(&place, &remembered)?;
    spinner.set_message("starting daemons");
    let order = |session: &HostSession| files.order_for(&session.host, Some(&first), false);
    fail(&host_group::order_all(&mut sessions, ORDER_WAIT, order).1)?;
    let order = |_: &HostSession| HostOrder::StartNodes { nodes: Vec::new() };
    fail(&host_group::order_all(&mut sessions, PROCESS_WAIT, order).1)?;

    // All old nodes must have the new entries before a client contacts a new node.
    let map = volume.map();
    for entry in &volume.nodes {
        rebalance_cmd::send_map(&place, &volume, entry, &map)?;
    }
    rebalance_cmd::save_volume(&place, &volume)?;
    place.save_machine(all)?;
    // From here on the nodes are members: a failure no longer takes them out.
    host_group::order_all(&mut sessions, ORDER_WAIT, |_| HostOrder::Keep);
    if place.config.bool_value(name::MOUNT_ENABLED) && !args.no_mount {
        spinner.set_message("mounting");
        let order = |_: &HostSession| HostOrder::Mount;
        for fault in host_group::order_all(&mut sessions, PROCESS_WAIT, order).1 {
            term::print_note(&format!(
                "{} is not mounted: {}; try again: tatami up{}",
                fault.host,
                fault.failure.what,
                place.dir_flag()
            ));
        }
        host_group::order_all(&mut sessions, ORDER_WAIT, |_| HostOrder::Keep);
    }
    drop(sessions);
    spinner.finish_and_clear();
    let added: BTreeSet<u16> = entries.iter().map(|entry| entry.id).collect();
    rebalance_cmd::balance_added(args, &place, &mut volume, &added)
}

/// Returns the hosts that the user names; none of them may have a node.
fn list_new_hosts(
    args: &AddArgs,
    machine: &MachineFile,
    volume: &VolumeFile,
) -> CommandResult<Vec<String>> {
    let hosts = parse_host_list(&args.hosts.join(","))
        .map_err(|e| CommandFailure::usage(format!("hosts to add: {e}")))?;
    if let Some(host) = hosts.iter().find(|host| machine.hosts.iter().any(|h| h.name == **host)) {
        return Err(CommandFailure::usage(format!("the volume has a node on {host} already"))
            .try_this("tatami node list"));
    }
    if usize::from(volume.next_node()) + hosts.len() > NODES_MAX {
        return Err(CommandFailure::usage(format!("a volume has at most {NODES_MAX} nodes")));
    }
    let is_loopback = |entry: &&NodeEntry| {
        let host = host_of_address(&entry.address);
        host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    if let Some(entry) = volume.nodes.iter().find(is_loopback) {
        return Err(CommandFailure::usage(format!(
            "{} listens on {}, which other machines cannot reach",
            entry.name, entry.address
        ))
        .try_this("make a volume with all hosts: tatami up --dir DIR --hosts LIST"));
    }
    Ok(hosts)
}

fn check_hosts(
    place: &VolumeDir,
    sessions: &mut Vec<HostSession>,
    fail: &dyn Fn(&[host_group::HostFault]) -> CommandResult,
) -> CommandResult {
    let token = TokenMark::write(place, None)?;
    let order = |_: &HostSession| {
        HostOrder::Check(CheckOrder {
            dir: place.dir.display().to_string(),
            token: token.text.clone(),
            volume: None,
            mounts: place.config.bool_value(name::MOUNT_ENABLED),
            settings: place.forwarded_settings(),
            job: None,
        })
    };
    let (replies, faults) = host_group::order_all(sessions, ORDER_WAIT, order);
    fail(&faults)?;
    for (session, reply) in sessions.iter().zip(replies) {
        let HostReply::Checked(host) = reply else { continue };
        if host.is_same {
            return Err(shared_failure(place, "this machine"));
        }
        if host.available < SPACE_MIN {
            let failure = full_failure(place, host.available);
            return fail(&[host_group::HostFault::new(&session.host, failure)]);
        }
    }
    Ok(())
}

/// Returns the entries of the new nodes.
fn plan_entries(
    place: &VolumeDir,
    volume: &VolumeFile,
    access: &SshAccess,
    sessions: &mut Vec<HostSession>,
    fail: &dyn Fn(&[host_group::HostFault]) -> CommandResult,
) -> CommandResult<Vec<NodeEntry>> {
    let addresses = hosts_files::find_addresses(access, sessions);
    let address_of =
        |session: &HostSession| addresses.get(&session.host).cloned().unwrap_or_default();
    let order = |session: &HostSession| HostOrder::FindPort { address: address_of(session) };
    let (ports, faults) = host_group::order_all(sessions, ORDER_WAIT, order);
    fail(&faults)?;
    let first = volume.next_node();
    let entries = (first..).zip(sessions.iter().zip(ports)).map(|(id, (session, reply))| {
        let port = if let HostReply::Port(port) = reply { port } else { 0 };
        let name = session.host.clone();
        volume_layout::new_entry(place, id, name, (&address_of(session), port))
    });
    Ok(entries.collect())
}
