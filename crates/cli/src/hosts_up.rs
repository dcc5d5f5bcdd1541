//! `tatami up --hosts`: creates a volume on several hosts, or starts it again there, and mounts it
//! on each. A host has one node. If a host fails, the others are left as they were.

use crate::certificates;
use crate::error::{CommandFailure, CommandResult};
use crate::host_group::{self, HostFault, ORDER_WAIT, PROCESS_WAIT};
use crate::host_serve::shared_failure;
use crate::hosts_down::check_order;
use crate::hosts_files::{self, FirstFiles, HostFiles};
use crate::interrupt;
use crate::made_files::MadeFiles;
use crate::rebalance_cmd;
use crate::root_dir;
use crate::ssh_session::{HostSession, SshAccess};
use crate::status;
use crate::term;
use crate::up_token::{self, TokenMark};
use crate::volume_dir::VolumeDir;
use crate::volume_layout;
use indicatif::ProgressBar;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tatami_cluster::VolumeFile;
use tatami_hosts::host_protocol::{CheckOrder, CheckedHost, HostOrder, HostReply};
use tatami_hosts::machine::MachineFile;
use tatami_hosts::network::{host_of_address, join_address};

/// Least space for a new node, in bytes. A node on a small disk needs less for its log than others.
pub const SPACE_MIN: u64 = 128 << 20;

/// The volume that is to run.
pub struct HostsPlan<'a> {
    /// Its directory, the same on each host.
    pub place: &'a VolumeDir,
    /// The names of the hosts.
    pub hosts: Vec<String>,
    /// How they are reached.
    pub access: SshAccess,
    /// So many hosts may fail.
    pub allow_missing: usize,
    /// Whether the hosts mount it.
    pub mounts: bool,
    /// Whether all users may create files in its root directory.
    pub for_all_users: bool,
    /// Settings for later calls of `up` on each host.
    pub remembered: Vec<(String, String)>,
    /// The batch job with which the volume ends.
    pub job: Option<String>,
}

/// The result of `up`.
pub struct HostsUp {
    /// The volume.
    pub volume: VolumeFile,
    /// Daemons that were started.
    pub started: usize,
    /// The mount points on the first host, which are those of the others, too.
    pub mounts: Vec<String>,
    /// Mounts that are new.
    pub mounted: usize,
    /// The hosts that failed and may be missing.
    pub missing: Vec<HostFault>,
}

/// Creates a volume on the hosts, starts and mounts it.
///
/// # Errors
/// More hosts fail than may be missing. Then nothing is left of the volume on any host.
pub fn create_volume(plan: &HostsPlan) -> CommandResult<HostsUp> {
    let place = plan.place;
    let made = MadeFiles::record_before(&place.dir);
    volume_layout::make_dir(&place.dir)?;
    let result = place.lock().and_then(|_lock| {
        let token = TokenMark::write(place, Some(&made))?;
        interrupt::catch_interrupts();
        create_locked(plan, &token.text)
    });
    if result.is_err() {
        made.remove_all();
    }
    let (up, sessions) = result?;
    host_group::end_sessions(sessions);
    Ok(up)
}

/// Creates the volume of a batch job in a directory that was made for it. The caller catches
/// signals. The volume lives as long as the sessions that are returned, and the caller removes the
/// directory.
///
/// # Errors
/// A host fails. Then nothing is left of the volume on the other hosts.
pub fn create_held_volume(plan: &HostsPlan) -> CommandResult<(HostsUp, Vec<HostSession>)> {
    let _lock = plan.place.lock()?;
    let token = TokenMark::write(plan.place, None)?;
    create_locked(plan, &token.text)
}

fn create_locked(plan: &HostsPlan, token: &str) -> CommandResult<(HostsUp, Vec<HostSession>)> {
    let total = u16::try_from(plan.hosts.len()).unwrap_or(u16::MAX);
    volume_layout::check_socket_length(plan.place, total)?;
    let spinner = term::new_spinner("reaching the hosts");
    let (mut sessions, faults) = host_group::open_sessions(&plan.access, &plan.hosts);
    let result = create_in_sessions(plan, token, &mut sessions, faults, &spinner);
    spinner.finish_and_clear();
    match result {
        Ok(up) => Ok((up, sessions)),
        Err(failure) => {
            host_group::end_sessions(sessions);
            Err(failure)
        }
    }
}

fn create_in_sessions(
    plan: &HostsPlan,
    token: &str,
    sessions: &mut Vec<HostSession>,
    mut faults: Vec<HostFault>,
    spinner: &ProgressBar,
) -> CommandResult<HostsUp> {
    let place = plan.place;
    interrupt::check_interrupt()?;
    refuse_twins(sessions)?;
    host_group::note_clocks(sessions);
    faults.extend(hosts_files::remove_strangers(&plan.access, sessions));
    give_up_if_many(plan, &faults)?;
    let order = |_: &HostSession| {
        HostOrder::Check(CheckOrder {
            dir: place.dir.display().to_string(),
            token: token.to_owned(),
            volume: None,
            mounts: plan.mounts,
            settings: place.forwarded_settings(),
            job: plan.job.clone(),
        })
    };
    let (replies, unfit) = host_group::order_all(sessions, ORDER_WAIT, order);
    faults.extend(unfit);
    interrupt::check_interrupt()?;
    let mut checked = name_replies(sessions, replies);
    refuse_shared(place, &checked)?;
    sessions.retain(|session| {
        let available = checked.get(&session.host).map_or(0, |host| host.available);
        let is_fit = available >= SPACE_MIN;
        if !is_fit {
            faults.push(HostFault::new(&session.host, full_failure(place, available)));
        }
        is_fit
    });
    // A host that fails later goes, and the others begin anew: the map names all nodes.
    loop {
        give_up_if_many(plan, &faults)?;
        checked.retain(|host, _| sessions.iter().any(|session| session.host == *host));
        spinner.set_message("laying out the volume");
        match try_hosts(plan, sessions, &checked, spinner)? {
            Attempt::Failed(mut more) => {
                end_if_interrupted(sessions, &mut more)?;
                faults.extend(more);
                host_group::undo_all(sessions, &mut faults);
            }
            Attempt::Runs(up) => {
                return Ok(HostsUp { missing: faults, ..up });
            }
        }
    }
}

/// Fails if more hosts have failed than may.
fn give_up_if_many(plan: &HostsPlan, faults: &[HostFault]) -> CommandResult {
    let total = plan.hosts.len();
    if faults.len() <= plan.allow_missing && faults.len() < total {
        return Ok(());
    }
    let headline = |count: &str| format!("{count} failed; nothing was started");
    let failure = host_group::join_faults(faults, &plan.hosts, headline);
    Err(match failure.remedy.clone() {
        Some(remedy) if faults.len() < total && plan.job.is_none() => {
            let count = faults.len();
            failure
                .try_this(format!("{remedy}\nor go without: tatami up --allow-missing {count} …"))
        }
        _ => failure,
    })
}

/// Returns a failure because the disk of a host has too little space.
pub fn full_failure(place: &VolumeDir, available: u64) -> CommandFailure {
    CommandFailure::new(format!(
        "its disk is full: {} has {} available, and a node needs {}",
        place.dir.display(),
        term::format_size(available),
        term::format_size(SPACE_MIN)
    ))
    .try_this("make space there, or use another disk: tatami up --dir DIR")
}

/// Refuses two names of one machine.
fn refuse_twins(sessions: &[HostSession]) -> CommandResult {
    let mut seen = BTreeMap::new();
    for session in sessions {
        let machine = (&session.hello.name, &session.hello.machine);
        if let Some(other) = seen.insert(machine, &session.host) {
            return Err(CommandFailure::usage(format!(
                "{other} and {} are the same machine, {}: a host has one node",
                session.host, session.hello.name
            ))
            .try_this("name each host once"));
        }
    }
    Ok(())
}

/// Refuses hosts that have one directory, such as a home directory on NFS.
fn refuse_shared(place: &VolumeDir, checked: &BTreeMap<String, CheckedHost>) -> CommandResult {
    let same: Vec<&str> =
        checked.iter().filter(|(_, host)| host.is_same).map(|(name, _)| name.as_str()).collect();
    match same[..] {
        [] | [_] => Ok(()),
        [first, ..] => Err(shared_failure(place, first)),
    }
}

fn name_replies(
    sessions: &[HostSession],
    replies: Vec<HostReply>,
) -> BTreeMap<String, CheckedHost> {
    let named = sessions.iter().zip(replies).filter_map(|(session, reply)| match reply {
        HostReply::Checked(host) => Some((session.host.clone(), host)),
        _ => None,
    });
    named.collect()
}

/// The result of one attempt with certain hosts.
enum Attempt {
    Runs(HostsUp),
    Failed(Vec<HostFault>),
}

fn try_hosts(
    plan: &HostsPlan,
    sessions: &mut Vec<HostSession>,
    checked: &BTreeMap<String, CheckedHost>,
    spinner: &ProgressBar,
) -> CommandResult<Attempt> {
    let place = plan.place;
    let addresses = hosts_files::find_addresses(&plan.access, sessions);
    let order = |session: &HostSession| HostOrder::FindPort {
        address: addresses.get(&session.host).cloned().unwrap_or_default(),
    };
    let (ports, faults) = host_group::order_all(sessions, ORDER_WAIT, order);
    if !faults.is_empty() {
        return Ok(Attempt::Failed(faults));
    }
    let entries = (0..).zip(sessions.iter().zip(ports)).map(|(id, (session, reply))| {
        let port = if let HostReply::Port(port) = reply { port } else { 0 };
        let address = addresses.get(&session.host).map_or("", String::as_str);
        volume_layout::new_entry(place, id, session.host.clone(), (address, port))
    });
    let volume = volume_layout::plan_volume(place, entries.collect())?;
    let machine = MachineFile {
        job: plan.job.clone(),
        ..hosts_files::describe_machines(&plan.access, &volume)
    };
    volume_layout::make_key(place)?;
    certificates::make_for_volume(place, &volume)?;
    let files = HostFiles::prepare(place, &volume, &machine)?;
    let first = FirstFiles::read(place, &plan.remembered)?;
    let order = |session: &HostSession| {
        let is_same = checked.get(&session.host).is_some_and(|host| host.is_same);
        files.order_for(&session.host, Some(&first), is_same)
    };
    let (_, faults) = host_group::order_all(sessions, ORDER_WAIT, order);
    if !faults.is_empty() {
        return Ok(Attempt::Failed(faults));
    }
    if !checked.values().any(|host| host.is_same) {
        // This machine has no node. Its copy lets it use and stop the volume.
        volume_layout::write_config(place)?;
        place.remember_settings(&named_settings(&plan.remembered))?;
        place.save_machine(machine)?;
        volume.save(&place.volume_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
    } else {
        place.forget_machine();
    }
    start_and_mount(plan, &volume, sessions, true, spinner)
}

/// Starts the daemons of all hosts, then the mounts, and makes it final.
fn start_and_mount(
    plan: &HostsPlan,
    volume: &VolumeFile,
    sessions: &mut Vec<HostSession>,
    is_new: bool,
    spinner: &ProgressBar,
) -> CommandResult<Attempt> {
    spinner.set_message("starting daemons");
    let order = |_: &HostSession| HostOrder::StartNodes { nodes: Vec::new() };
    let (replies, faults) = host_group::order_all(sessions, PROCESS_WAIT, order);
    if !faults.is_empty() {
        return Ok(Attempt::Failed(faults));
    }
    let counts = replies.iter().map(|reply| match reply {
        HostReply::Changed(count) => *count as usize,
        _ => 0,
    });
    let started = counts.sum();
    // The node of the root directory may be missing in a volume that has run before.
    if is_new || plan.for_all_users {
        root_dir::prepare_root(plan.place, plan.for_all_users)?;
    }
    let (mut mounts, mut mounted) = (Vec::new(), 0);
    if plan.mounts {
        spinner.set_message("mounting");
        let (replies, faults) = host_group::order_all(sessions, PROCESS_WAIT, |_| HostOrder::Mount);
        if !faults.is_empty() {
            return Ok(Attempt::Failed(faults));
        }
        for reply in replies {
            if let HostReply::Mounted { paths, new } = reply {
                mounted += new as usize;
                mounts = if mounts.is_empty() { paths } else { mounts };
            }
        }
    }
    if plan.job.is_some() {
        let keeper = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let order = |_: &HostSession| HostOrder::Hold { keeper: keeper.clone() };
        let (_, faults) = host_group::order_all(sessions, ORDER_WAIT, order);
        if !faults.is_empty() {
            return Ok(Attempt::Failed(faults));
        }
        let volume = volume.clone();
        return Ok(Attempt::Runs(HostsUp {
            volume,
            started,
            mounts,
            mounted,
            missing: Vec::new(),
        }));
    }
    if is_new {
        up_token::forget_made_files(plan.place)?;
    }
    for fault in host_group::order_all(sessions, ORDER_WAIT, |_| HostOrder::Keep).1 {
        // The host may have undone its part. The volume says so itself: `tatami status`.
        term::print_note(&format!("{}: {}", fault.host, fault.failure.what));
    }
    let volume = volume.clone();
    Ok(Attempt::Runs(HostsUp { volume, started, mounts, mounted, missing: Vec::new() }))
}

/// Starts an existing volume on its hosts, and mounts it.
///
/// # Errors
/// More hosts fail than may be missing. Then the parts that this call has started are stopped.
pub fn start_volume(plan: &HostsPlan, volume: &VolumeFile) -> CommandResult<HostsUp> {
    let _lock = plan.place.lock()?;
    let token = TokenMark::write(plan.place, None)?;
    interrupt::catch_interrupts();
    let spinner = term::new_spinner("reaching the hosts");
    let (mut sessions, faults) = host_group::open_sessions(&plan.access, &plan.hosts);
    let result = start_in_sessions(plan, volume, &token.text, &mut sessions, faults, &spinner);
    host_group::end_sessions(sessions);
    spinner.finish_and_clear();
    result
}

fn start_in_sessions(
    plan: &HostsPlan,
    volume: &VolumeFile,
    token: &str,
    sessions: &mut Vec<HostSession>,
    mut faults: Vec<HostFault>,
    spinner: &ProgressBar,
) -> CommandResult<HostsUp> {
    host_group::note_clocks(sessions);
    let moved = &move_nodes(plan, volume, sessions)?;
    let volume = moved.as_ref().unwrap_or(volume);
    let order = |_: &HostSession| match check_order(plan.place, volume, token) {
        HostOrder::Check(order) => HostOrder::Check(CheckOrder { mounts: plan.mounts, ..order }),
        other => other,
    };
    let (replies, unfit) = host_group::order_all(sessions, ORDER_WAIT, order);
    faults.extend(unfit);
    interrupt::check_interrupt()?;
    let checked = name_replies(sessions, replies);
    give_up_if_many(plan, &faults)?;
    let volume = &agree_on_map(plan, volume, sessions, &checked)?;
    match start_and_mount(plan, volume, sessions, false, spinner)? {
        Attempt::Runs(up) => Ok(HostsUp { missing: faults, ..up }),
        Attempt::Failed(mut more) => {
            end_if_interrupted(sessions, &mut more)?;
            faults.extend(more);
            host_group::undo_all(sessions, &mut faults);
            let headline = |count: &str| format!("{count} failed; the rest is as it was");
            Err(host_group::join_faults(&faults, &plan.hosts, headline))
        }
    }
}

/// Writes the new addresses of hosts that have others than when the volume was created. Returns the
/// changed volume; `None` if all have the same.
///
/// # Errors
/// A daemon runs. It and the mounts would go on with the old address, and never reach the node.
fn move_nodes(
    plan: &HostsPlan,
    volume: &VolumeFile,
    sessions: &[HostSession],
) -> CommandResult<Option<VolumeFile>> {
    let place = plan.place;
    let addresses = hosts_files::find_addresses(&plan.access, sessions);
    let mut moved = volume.clone();
    let mut changes = Vec::new();
    for session in sessions {
        let entry = moved.nodes.iter_mut().find(|entry| entry.name == session.host);
        let (Some(entry), Some(now)) = (entry, addresses.get(&session.host)) else { continue };
        let host = host_of_address(&entry.address);
        // A name is resolved anew at each connection, and so follows its host by itself.
        let Ok(before) = host.parse::<IpAddr>() else { continue };
        let has_it = before.is_loopback() || session.hello.addresses.contains(&before);
        if has_it || session.hello.addresses.is_empty() {
            continue;
        }
        let port = entry.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        changes.push(format!("{} was at {before}, and is at {now} now", session.host));
        entry.address = join_address(now, port.unwrap_or_default());
        entry.moved += 1;
        moved.epoch += 1;
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let answers = status::ask_all_nodes(place, volume);
    let running = volume.nodes.iter().zip(&answers).find(|(_, answer)| answer.is_ok());
    if let Some((entry, _)) = running {
        // A daemon that starts on a host with a new address sends that address to the other
        // daemons.
        let mut known = volume.clone();
        known.merge_map(&rebalance_cmd::merge_maps(place, volume)?);
        let addresses =
            |of: &VolumeFile| of.nodes.iter().map(|n| n.address.clone()).collect::<Vec<_>>();
        if addresses(&known) == addresses(&moved) {
            known.save(&place.volume_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
            return Ok(Some(known));
        }
        let what = format!("{} runs with the old address of another host", entry.name);
        return Err(CommandFailure::new(what).because(changes.join("\n")).try_this(format!(
            "stop all parts first, and start them with the new addresses: tatami down{0}; tatami \
             up{0}",
            place.dir_flag()
        )));
    }
    changes.iter().for_each(|change| term::print_note(change));
    moved.save(&place.volume_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
    Ok(Some(moved))
}

/// Fails if the user has interrupted this command. Then all sessions, also those with faults, are
/// to end side by side.
fn end_if_interrupted(sessions: &mut Vec<HostSession>, faults: &mut [HostFault]) -> CommandResult {
    interrupt::check_interrupt().inspect_err(|_| {
        sessions.extend(faults.iter_mut().filter_map(HostFault::take_session));
    })
}

/// Returns the newest volume file of this machine and the hosts, and writes it to those that have
/// another one: a host may have been away when nodes were added or names were moved.
fn agree_on_map(
    plan: &HostsPlan,
    own: &VolumeFile,
    sessions: &mut Vec<HostSession>,
    checked: &BTreeMap<String, CheckedHost>,
) -> CommandResult<VolumeFile> {
    let place = plan.place;
    let mut newest = own.clone();
    let texts: BTreeSet<&str> =
        checked.values().filter_map(|host| host.volume.as_deref()).collect();
    for text in texts {
        match volume_layout::parse_volume(place, text) {
            Ok(volume) if volume.epoch > newest.epoch => newest = volume,
            Ok(_) => {}
            Err(e) => tracing::warn!("{}", e.report()),
        }
    }
    if newest != *own {
        newest.save(&place.volume_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
    }
    let mut machine = hosts_files::describe_machines(&plan.access, &newest);
    let files = HostFiles::prepare(place, &newest, &machine)?;
    let is_current = |session: &HostSession| {
        let text = checked.get(&session.host).and_then(|host| host.volume.as_deref());
        // A host may have missed the last rotation of the certificates, or its own may end soon.
        !files.has_certificates() && text == Some(files.volume_text())
    };
    let (current, mut old): (Vec<_>, Vec<_>) = sessions.drain(..).partition(is_current);
    let order = |session: &HostSession| files.order_for(&session.host, None, false);
    for fault in host_group::order_all(&mut old, ORDER_WAIT, order).1 {
        term::print_note(&format!("{}: {}", fault.host, fault.failure.what));
    }
    sessions.extend(current.into_iter().chain(old));
    if let Some(known) = place.load_machine()? {
        machine.nodes.clone_from(&known.nodes);
        if *known != machine {
            place.save_machine(machine)?;
        }
    }
    Ok(newest)
}

/// Returns settings with borrowed names.
pub fn named_settings(settings: &[(String, String)]) -> Vec<(&str, String)> {
    settings.iter().map(|(name, value)| (name.as_str(), value.clone())).collect()
}
