//! `tatami up`: creates a volume, starts its daemons and mounts it. A repeated call only does the
//! missing steps.

use crate::certificates;
use crate::daemon;
use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult};
use crate::host_args::HostsArgs;
use crate::hosts_down;
use crate::hosts_up::{self, HostsPlan};
use crate::keys::name;
use crate::mount_cmd;
use crate::mounts;
use crate::root_dir;
use crate::shard_plan;
use crate::started_parts::StartedParts;
use crate::term::{self, HEAD, TermOutput};
use crate::up_token;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use crate::volume_layout;
use clap::builder::PossibleValuesParser;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use tatami_cluster::{Encryption, KeyFile, NodeEntry, VolumeFile};
use tatami_wire::EXECUTORS_MAX;

/// Most nodes on one machine: each has a daemon and a mount.
const NODES_MAX: u16 = 256;

/// `tatami up`
#[derive(Debug, clap::Args)]
pub struct UpArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Number of nodes on this machine, when the volume is created [default: 1]
    #[arg(long, short = 'n', value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: Option<u16>,
    /// Executors of each node: threads that serve the namespace, each with shards and a store of
    /// its own, when the volume is created [default: 1]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=i64::from(EXECUTORS_MAX)))]
    executors: Option<u8>,
    /// Protection of the connections between machines, when the volume is created: none, or tls
    /// [default: none]
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(Encryption::NAMES))]
    encryption: Option<String>,
    /// Mount point: with one node PATH, with several PATH/node0, PATH/node1 and so on. Later calls
    /// mount there, too [default: /mnt/tatami as root, else DIR/mnt]
    #[arg(long, short = 'm', value_name = "PATH", conflicts_with = "no_mount")]
    mount: Option<PathBuf>,
    /// Start the daemons only. A later call without this mounts the volume
    #[arg(long)]
    no_mount: bool,
    /// Let all users create files in the root directory of the volume: mode 1777, as /tmp
    #[arg(long)]
    users: bool,
    /// If metadata are damaged, continue with the readable records; acknowledged changes are lost.
    /// The damaged files are kept beside the new ones, as NAME.cut
    #[arg(long)]
    accept_loss: bool,
    /// Name of the volume, when it is created [default: tatami]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    hosts: HostsArgs,
    /// Start only the part on this machine, if the volume was started on several hosts
    #[arg(long, conflicts_with_all = ["hosts", "hostfile"])]
    here: bool,
}

/// Creates, starts and mounts the volume.
///
/// # Errors
/// A part does not start. The parts that this call had started are stopped again.
pub fn run(args: &UpArgs) -> CommandResult {
    let (mut place, mut remembered) = open_configured(args)?;
    if up_token::remove_unfinished(&place)? {
        // Its settings are gone, too.
        (place, remembered) = open_configured(args)?;
    }
    crate::log::start_logging(&place.config, false)?;
    let is_new = !place.volume_file().exists();
    if let Some(plan) = plan_hosts(&place, args, is_new, &remembered)? {
        return run_on_hosts(&plan, args, is_new);
    }
    volume_layout::make_dir(&place.dir)?;
    remember_flags(&place, &remembered)?;
    let _lock = place.lock()?;
    let fresh = !place.volume_file().exists();
    let volume = match fresh {
        true => volume_layout::create_volume(&place, args.nodes.unwrap_or(1))?,
        false => place.load_volume()?,
    };
    check_arguments(&place, &volume, args)?;
    verify_key(&place, &volume)?;
    certificates::renew_if_near_end(&place, &volume)?;
    let nodes = place.nodes_here(&volume);
    if nodes.is_empty() {
        return Err(nowhere_failure(&place, &volume));
    }
    place.record_nodes_here(&volume, nodes.iter().map(|entry| entry.id))?;

    let spinner = term::new_spinner("starting daemons");
    let mut started = StartedParts::default();
    let mut damage = None;
    let outcome = started.start_nodes(&place, &volume, &nodes, &spinner).and_then(|()| {
        let here = nodes.iter().copied();
        damage = daemon::resolve_damage(&place, &volume, here, args.accept_loss)?;
        root_dir::prepare_root(&place, args.users)?;
        match place.config.bool_value(name::MOUNT_ENABLED) {
            true => started.start_mounts(&place, &volume, &spinner),
            false => Ok(()),
        }
    });
    spinner.finish_and_clear();
    match (outcome, damage) {
        (Ok(()), None) => print_summary(&place, &volume, fresh, &started, args),
        (Err(e), None) => Err(started.stop_started(&place, &volume, e)),
        // The intact part of the namespace stays served. Another failure is most likely a
        // consequence of the damage, so it is only a note.
        (outcome, Some(damage)) => {
            if let Err(e) = outcome {
                term::print_note(&e.report());
            }
            Err(damage)
        }
    }
}

/// Returns a failure because this machine has no node of the volume.
fn nowhere_failure(place: &VolumeDir, volume: &VolumeFile) -> CommandFailure {
    let entries = volume.nodes.iter().map(|n| format!("{}: {}", n.name, n.address));
    let cause =
        format!("its nodes are on other machines: {}", entries.collect::<Vec<_>>().join(", "));
    CommandFailure::usage(format!("no node of volume {} is on this machine", volume.name))
        .because(cause)
        .try_this(format!("run there: tatami up{0}; here: tatami mount{0} PATH", place.dir_flag()))
}

/// Returns the hosts on which the volume is to run; `None` if it is a matter of this machine.
fn plan_hosts<'a>(
    place: &'a VolumeDir,
    args: &UpArgs,
    is_new: bool,
    remembered: &[(&'static str, String)],
) -> CommandResult<Option<HostsPlan<'a>>> {
    let named = args.hosts.list_hosts()?;
    check_network(args, is_new, named.is_some())?;
    let known = if is_new { None } else { place.load_machine()? };
    let known = known.filter(|machine| !machine.hosts.is_empty());
    if let Some(known) = known.as_ref().filter(|_| !args.here) {
        hosts_down::refuse_job_volume(known, "up")?;
    }
    let mut access = known.as_deref().map(hosts_down::access_of).unwrap_or_default();
    // Of several values of an option, ssh takes the first: those of this call win.
    access.options.splice(..0, args.hosts.ssh_option.iter().cloned());
    access.program = args.hosts.program.clone().or(access.program);
    access.network = args.hosts.network.or(access.network);
    let on_hosts: Option<Vec<String>> =
        known.as_ref().map(|known| known.hosts.iter().map(|host| host.name.clone()).collect());
    let hosts = match (named, on_hosts) {
        _ if args.here => return Ok(None),
        (None, None) => return Ok(None),
        (None, Some(hosts)) => hosts,
        (Some(hosts), None) if is_new => hosts,
        (Some(_), None) => {
            let what = format!("the volume in {} was not started on hosts", place.dir.display());
            return Err(CommandFailure::usage(what).try_this(format!(
                "start it as it is: tatami up{}; or make another: tatami up --dir DIR --hosts LIST",
                place.dir_flag()
            )));
        }
        (Some(hosts), Some(there)) => {
            let sorted = |hosts: &[String]| hosts.iter().cloned().collect::<BTreeSet<String>>();
            if sorted(&hosts) != sorted(&there) {
                let what = format!(
                    "the volume in {} has the hosts {}",
                    place.dir.display(),
                    there.join(",")
                );
                return Err(CommandFailure::usage(what).try_this(format!(
                    "start it as it is: tatami up{0}; more hosts: tatami node add{0} HOST",
                    place.dir_flag()
                )));
            }
            there
        }
    };
    Ok(Some(HostsPlan {
        place,
        hosts,
        access,
        allow_missing: args.hosts.allow_missing.unwrap_or(0),
        mounts: place.config.bool_value(name::MOUNT_ENABLED),
        for_all_users: args.users,
        remembered: remembered
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.clone()))
            .collect(),
        job: None,
    }))
}

/// Checks that the flag for the network has a use.
fn check_network(args: &UpArgs, is_new: bool, has_hosts: bool) -> CommandResult {
    match args.hosts.network {
        Some(_) if !is_new => Err(CommandFailure::usage("the volume exists already")
            .because("the network of its nodes is set when a volume is created")
            .try_this("start it as it is: tatami up, without --network")),
        Some(_) if !has_hosts => Err(CommandFailure::usage("--network is for several hosts")
            .try_this("name them: --hosts LIST; or for one machine its address: --node-listen")),
        _ => Ok(()),
    }
}

/// Creates and starts the volume on several hosts.
fn run_on_hosts(plan: &HostsPlan, args: &UpArgs, is_new: bool) -> CommandResult {
    let place = plan.place;
    let up = match is_new {
        true => hosts_up::create_volume(plan)?,
        false => {
            let volume = place.load_volume()?;
            check_arguments(place, &volume, args)?;
            certificates::renew_if_near_end(place, &volume)?;
            hosts_up::start_volume(plan, &volume)?
        }
    };
    let mut out = TermOutput::new();
    let did = match (is_new, up.started + up.mounted) {
        (true, _) => "is created and runs",
        (false, 0) => "ran already",
        (false, _) => "runs",
    };
    let (there, flag) = (plan.hosts.len() - up.missing.len(), place.dir_flag());
    let head = format!("Volume {} {did} on {there} hosts.", up.volume.name);
    writeln!(out, "{}", out.paint_text(HEAD, &head))?;
    writeln!(out, "  directory  {}, on each host", place.dir.display())?;
    match up.mounts.first() {
        Some(path) => writeln!(out, "  mounted at {path}, on each host")?,
        None => writeln!(out, "  not mounted; without a mount: tatami ls{flag} :/")?,
    }
    for fault in &up.missing {
        writeln!(out, "  without {}: {}", fault.host, fault.failure.what)?;
    }
    if is_new && root_dir::is_for_root_only(place) {
        writeln!(
            out,
            "  only root can create files in it; for all users: tatami up{flag} --users"
        )?;
    }
    writeln!(out, "\nNext, on any of the hosts:")?;
    writeln!(out, "  tatami status{flag}")?;
    writeln!(out, "  tatami down{flag}")?;
    out.flush()?;
    drop(out);
    if is_new {
        return Ok(());
    }
    let is_reached = |entry: &&NodeEntry| up.missing.iter().all(|fault| fault.host != entry.name);
    let nodes = up.volume.nodes.iter().filter(is_reached);
    let damage = daemon::resolve_damage(place, &up.volume, nodes, args.accept_loss)?;
    damage.map_or(Ok(()), Err)
}

/// Settings that later calls of `up` remember.
type RememberedFlags = Vec<(&'static str, String)>;

/// Opens the directory with a configuration that includes the flags of `up`. Writes nothing.
fn open_configured(args: &UpArgs) -> CommandResult<(VolumeDir, RememberedFlags)> {
    let mut at = args.at.clone();
    let mut remember = Vec::new();
    let mut set = |name: &'static str, value: String| {
        let key = crate::keys::find_key(name).expect("a key of the table");
        at.overrides.0.push((key, value.clone()));
        remember.push((name, value));
    };
    if let Some(path) = &args.mount {
        let path = mount_cmd::resolve_path(path)?;
        let text =
            path.to_str().ok_or_else(|| CommandFailure::usage("--mount: the path is not UTF-8"))?;
        set(name::MOUNT_PATH, text.to_owned());
    }
    // Of this call alone.
    let made_with = [
        (name::VOLUME_NAME, args.name.clone()),
        (name::VOLUME_EXECUTORS, args.executors.map(|n| n.to_string())),
        (name::VOLUME_ENCRYPTION, args.encryption.clone()),
        (name::MOUNT_ENABLED, args.mount.as_ref().map(|_| "true".to_owned())),
        (name::MOUNT_ENABLED, args.no_mount.then(|| "false".to_owned())),
    ];
    for (name, value) in made_with {
        let key = crate::keys::find_key(name).expect("a key of the table");
        at.overrides.0.extend(value.map(|value| (key, value)));
    }
    let mut place = at.open()?;
    // Daemons get the settings of the user, without those derived from flags of `up`.
    place.at.overrides = args.at.overrides.clone();
    Ok((place, remember))
}

/// Writes the settings that later calls remember.
fn remember_flags(place: &VolumeDir, remember: &[(&'static str, String)]) -> CommandResult {
    if !remember.is_empty() {
        place.remember_settings(remember)?;
    }
    // Earlier versions remembered that a call had mounted nothing.
    if place.remembered_setting(name::MOUNT_ENABLED).is_some() {
        place.forget_setting(name::MOUNT_ENABLED)?;
    }
    Ok(())
}

fn check_arguments(place: &VolumeDir, volume: &VolumeFile, args: &UpArgs) -> CommandResult {
    let there = volume.nodes.len();
    if args.nodes.is_some_and(|n| usize::from(n) != there) {
        let wanted = args.nodes.unwrap_or_default();
        return Err(CommandFailure::usage(format!(
            "the volume in {} has {there} node{}, not {wanted}",
            place.dir.display(),
            if there == 1 { "" } else { "s" }
        ))
        .because("the number of nodes is set when a volume is created")
        .try_this(format!(
            "start it as it is: tatami up{0}; more nodes: tatami node add{0}; or make another \
             volume: tatami up --nodes {wanted} --dir DIR",
            place.dir_flag()
        )));
    }
    let executors = shard_plan::most_executors(&volume.shards);
    if args.executors.is_some_and(|n| usize::from(n) != executors) {
        let wanted = args.executors.unwrap_or_default();
        return Err(CommandFailure::usage(format!(
            "the volume in {} has {executors} executor{} a node, not {wanted}",
            place.dir.display(),
            if executors == 1 { "" } else { "s" }
        ))
        .try_this(format!(
            "start it as it is: tatami up{0}; then change it: tatami node rebalance{0} \
            --executors {wanted}",
            place.dir_flag()
        )));
    }
    let there = volume.encryption.name();
    if args.encryption.as_ref().is_some_and(|wanted| wanted != there) {
        return Err(CommandFailure::usage(format!(
            "the volume in {} has encryption {there}",
            place.dir.display()
        ))
        .because("the encryption is set when a volume is created")
        .try_this(format!(
            "start it as it is: tatami up{}; or make another volume: tatami up --dir DIR",
            place.dir_flag()
        )));
    }
    if let Some(name) = args.name.as_ref().filter(|name| **name != volume.name) {
        let what = format!(
            "the volume in {} is named {:?}, not {name:?}",
            place.dir.display(),
            volume.name
        );
        return Err(CommandFailure::usage(what).try_this("omit --name, or use another --dir"));
    }
    Ok(())
}

/// Verifies that the key file is whole, and that it holds the key of the running daemons. The
/// daemons keep the key in memory. Without this check a bad file would stay unnoticed until their
/// next start, when it may be too late to make a copy.
///
/// # Errors
/// The file is missing or damaged, or has another key than a daemon that runs.
fn verify_key(place: &VolumeDir, volume: &VolumeFile) -> CommandResult {
    let path = place.key_file();
    let path = path.display();
    let here: Vec<&NodeEntry> =
        volume.nodes.iter().filter(|entry| daemon_files::running_daemon(entry).is_some()).collect();
    let key = match KeyFile::load(&place.key_file()) {
        Ok(key) => key,
        // A user without permission to read the key has requested no part that needs it.
        Err(e) if e.is_foreign() => return Ok(()),
        Err(e) => {
            let others = "put a copy of the file there, mode 0600, from another machine of the volume or from a backup";
            let last = format!(
                "no copy is left: end all daemons (tatami down{}), make a new key (the line below), and copy that file to all \
                 machines of the volume\n\
                 d=$(mktemp -d) && tatami up --no-mount --dir $d && tatami down --dir $d && \
                 mv $d/key {path} && rm -r $d",
                place.dir_flag()
            );
            let remedy = match here.is_empty() {
                true => format!("{others}\n{last}"),
                false => format!(
                    "the daemons that run go on, and none starts anew without the key: before they end, {others}\n{last}"
                ),
            };
            return Err(CommandFailure::new(e.to_string()).try_this(remedy));
        }
    };
    for entry in here {
        // A daemon that cannot be reached in this way has another fault, which the next command
        // that needs the daemon reports.
        let Err(error) = place.prove_key(volume, entry, key.clone()) else { continue };
        if error.is_wrong_key() {
            let what = format!("{} runs with another key than {path} holds", entry.name);
            return Err(CommandFailure::new(what).because(error).try_this(format!(
                "put the volume's key there again, from another machine of the volume or from a backup; or, if the file is \
                 right, start the daemon anew: tatami node stop{0} {1}, then tatami up{0}",
                place.dir_flag(),
                entry.name
            )));
        }
    }
    Ok(())
}

fn print_summary(
    place: &VolumeDir,
    volume: &VolumeFile,
    fresh: bool,
    started: &StartedParts,
    args: &UpArgs,
) -> CommandResult {
    let mut out = TermOutput::new();
    let nodes = volume.nodes.len();
    let did = match (fresh, started.nodes.len()) {
        (true, _) => "is created and runs",
        (false, 0) if started.mounts.is_empty() => "ran already",
        (false, _) => "runs",
    };
    let here = place.nodes_here(volume).len();
    let of_them =
        if here == nodes { String::new() } else { format!(", {here} of them on this machine") };
    let plural = if nodes == 1 { "" } else { "s" };
    let head = format!("Volume {} {did}, {nodes} node{plural}{of_them}.", volume.name);
    writeln!(out, "{}", out.paint_text(HEAD, &head))?;
    writeln!(out, "  directory  {}", place.dir.display())?;
    let mounted: Vec<_> = mounts::MountRecord::list_volume(&place.dir);
    for (i, record) in mounted.iter().enumerate() {
        let label = if i == 0 { "mounted at" } else { "" };
        writeln!(out, "  {label:10} {}", record.path.display())?;
    }
    if mounted.is_empty() {
        writeln!(out, "  not mounted; without a mount: tatami ls{} :/", place.dir_flag())?;
    }
    let flag = place.dir_flag();
    if fresh && root_dir::is_for_root_only(place) {
        writeln!(
            out,
            "  only root can create files in it; for all users: tatami up{flag} --users"
        )?;
    }
    if args.mount.is_some() && !mounted.is_empty() {
        writeln!(out, "  later calls of `tatami up` mount there, too")?;
    }
    writeln!(out, "\nNext:")?;
    if let Some(record) = mounted.first() {
        let file = record.path.join("hello");
        let file = file.display();
        writeln!(out, "  echo hello > {file}")?;
        writeln!(out, "  tatami where {file}")?;
    } else {
        writeln!(out, "  tatami cp{flag} /etc/hostname :/hello")?;
        writeln!(out, "  tatami cat{flag} :/hello")?;
    }
    writeln!(out, "  tatami status{flag}")?;
    writeln!(out, "  tatami down{flag}")?;
    out.flush()?;
    Ok(())
}
