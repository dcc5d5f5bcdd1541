//! `tatami up`: creates a volume, starts its daemons and mounts it. A repeated call only does the
//! missing steps.

use crate::daemon;
use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::keys::{KEYS, name};
use crate::mount_cmd;
use crate::mountinfo::{self, FS_TYPE};
use crate::mountpoints;
use crate::mounts;
use crate::ports;
use crate::rebalance_cmd;
use crate::replace_file::replace_file;
use crate::start_process::StartingProcess;
use crate::term::{self, HEAD, TermOutput};
use crate::volume_dir::{VolumeArgs, VolumeDir};
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use tatami_cluster::trusted::{TrustError, TrustedDir};
use tatami_cluster::{KeyFile, NodeEntry, SOCKET_PATH_MAX, VolumeFile};
use tatami_wire::{
    Cred, EXECUTORS_MAX, ExecutorId, Ino, NodeId, SHARDS_MAX, SetAttr, ShardId, ShardMap, VolumeId,
};

/// Mode of the root directory with `--users`: as of `/tmp`, all create, and the owner removes.
const OPEN_TO_ALL: u16 = 0o1777;
/// The permission bits with which others than the owner create files.
const OTHERS_WRITE: u16 = 0o022;
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
}

/// Creates, starts and mounts the volume.
///
/// # Errors
/// A part does not start. The parts that this call had started are stopped again.
pub fn run(args: &UpArgs) -> CommandResult {
    let place = open_configured(args)?;
    crate::log::start_logging(&place.config, false)?;
    make_dir(&place.dir)?;
    let _lock = place.lock()?;
    let fresh = !place.volume_file().exists();
    let volume = if fresh { create_volume(&place, args)? } else { place.load_volume()? };
    check_arguments(&place, &volume, args)?;
    verify_key(&place, &volume)?;

    let spinner = term::new_spinner("starting daemons");
    let mut started =
        StartedParts { place: &place, volume: &volume, nodes: vec![], mounts: vec![] };
    let paths = mount_cmd::planned_paths(&place, &volume);
    let mut damage = None;
    let outcome = started.start_nodes(&spinner).and_then(|()| {
        damage = daemon::resolve_damage(&place, &volume, &volume.nodes, args.accept_loss)?;
        prepare_root(&place, args.users)?;
        match place.config.bool_value(name::MOUNT_ENABLED) {
            true => started.start_mounts(&paths, &spinner),
            false => Ok(()),
        }
    });
    spinner.finish_and_clear();
    match (outcome, damage) {
        (Ok(()), None) => print_summary(&place, &volume, fresh, &started, args),
        (Err(e), None) => Err(started.stop_started(e)),
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

/// Opens the directory with a configuration that includes the flags of `up`.
fn open_configured(args: &UpArgs) -> CommandResult<VolumeDir> {
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
    if !remember.is_empty() {
        make_dir(&place.dir)?;
        place.remember_settings(&remember)?;
    }
    // Earlier versions remembered that a call had mounted nothing.
    if place.remembered_setting(name::MOUNT_ENABLED).is_some() {
        place.forget_setting(name::MOUNT_ENABLED)?;
    }
    Ok(place)
}

/// Makes the directory of a volume, unless it exists.
///
/// # Errors
/// The directory cannot be made, or lies in a mount of Tatami: the daemons would wait for files
/// that only daemons can give them.
fn make_dir(dir: &Path) -> CommandResult {
    if let Some(mount) = mountinfo::mount_above(dir).filter(|m| m.fs_type == FS_TYPE) {
        let what = format!("a volume cannot keep its data in {}", dir.display());
        let cause = format!("it lies in {}, a mount of Tatami", mount.path.display());
        return Err(CommandFailure::usage(what)
            .because(cause)
            .try_this("name a directory on a local disk: --dir DIR"));
    }
    let mode = rustix::fs::Mode::from_raw_mode(0o755);
    match TrustedDir::open_or_create(dir, mode) {
        Ok(_) => Ok(()),
        Err(TrustError::Io { source, .. }) => Err(CommandFailure::new(format!(
            "cannot make the volume's directory {}",
            dir.display()
        ))
        .because(source)
        .try_this("name another one: --dir DIR")),
        Err(untrusted) => Err(untrusted.into()),
    }
}

/// Creates the files of a new volume. `volume.toml` comes last: without it there is no volume yet.
fn create_volume(place: &VolumeDir, args: &UpArgs) -> CommandResult<VolumeFile> {
    let count = args.nodes.unwrap_or(1);
    // The range of the key excludes other values.
    let executors = place.config.int_value(name::VOLUME_EXECUTORS).try_into().unwrap_or(1);
    let shards = assign_shards(&place.config.text_value(name::VOLUME_SHARDS), count, executors)?;
    let dir = |id: u16| place.dir.join(format!("node{id}"));
    let longest = dir(count - 1).join("socket");
    if longest.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(CommandFailure::usage(format!(
            "the path of the directory {} is too long",
            place.dir.display()
        ))
        .because(format!(
            "the path of a UNIX socket has at most {SOCKET_PATH_MAX} bytes, and {} has {}",
            longest.display(),
            longest.as_os_str().len()
        ))
        .try_this("choose a shorter one: --dir DIR"));
    }
    let config = place.dir.join("tatami.toml");
    if !config.exists() {
        replace_file(&config, &document_config(place))?;
    }
    let key = place.key_file();
    let key = if key.exists() { KeyFile::load(&key) } else { KeyFile::create(&key) };
    key.map_err(|e| CommandFailure::new(e.to_string()))?;
    let mut id = [0; 16];
    getrandom::fill(&mut id).context(|| "no random numbers for the volume's id".to_owned())?;
    let host = place.config.text_value(name::NODE_LISTEN);
    if host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified()) {
        return Err(CommandFailure::usage(format!("node.listen: {host} means every address"))
            .because("other nodes connect to the address in the volume file")
            .try_this("name the address, or the host name, by which others reach this machine"));
    }
    let ports = ports::find_free_ports(&host, count)?;
    let node = |(id, port): (u16, u16)| NodeEntry {
        id,
        name: format!("node{id}"),
        address: if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        },
        socket: dir(id).join("socket"),
        dir: dir(id),
    };
    let volume = VolumeFile {
        volume: VolumeId(id),
        name: place.config.text_value(name::VOLUME_NAME),
        // The range of the key excludes other values.
        durability: place.config.text_value(name::VOLUME_DURABILITY).parse().unwrap_or_default(),
        epoch: 1,
        moves: vec![0; shards.len()],
        shards,
        nodes: (0..count).zip(ports).map(node).collect(),
    };
    volume.save(&place.volume_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
    Ok(volume)
}

/// Returns the executor of each shard. `wanted` names the nodes that keep names: `all`, or numbers
/// and ranges below `count`. Each gets `executors` executors.
fn assign_shards(wanted: &str, count: u16, executors: u8) -> CommandResult<Vec<ExecutorId>> {
    let mut nodes = BTreeSet::new();
    let wrong = |what: String| {
        CommandFailure::usage(format!("volume.shards: {what}"))
            .try_this("use all, or numbers of nodes, for example 0,4-7")
    };
    for part in wanted.split(',') {
        let (first, last) = match part.trim() {
            "all" => (0, count - 1),
            part => {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
                    (Ok(first), Ok(last)) if first <= last => (first, last),
                    _ => return Err(wrong(format!("{part:?} is no node and no range of nodes"))),
                }
            }
        };
        if last >= count {
            return Err(wrong(format!("there is no node {last} of {count}")));
        }
        nodes.extend((first..=last).map(NodeId));
    }
    let keepers = nodes.len();
    let of = |node| (0..executors).map(move |index| ExecutorId { node, index });
    let all: Vec<_> = nodes.into_iter().flat_map(of).collect();
    if all.len() > SHARDS_MAX {
        return Err(CommandFailure::usage(format!(
            "{keepers} nodes with {executors} executors each are more than the {SHARDS_MAX} \
            shards of a volume"
        ))
        .try_this(format!("at most --executors {}", SHARDS_MAX / keepers)));
    }
    let map = ShardMap::with_even_blocks(1, SHARDS_MAX, &all);
    let map = map.ok_or_else(|| wrong("no node is left".to_owned()))?;
    let owners = (0..SHARDS_MAX).map(|shard| map.owner(ShardId(shard as u16)));
    Ok(owners.flatten().collect())
}

/// Makes an ordinary user the owner of the root directory of a new volume. Without that, the user
/// could create nothing in it. With `for_all`, all users can.
fn prepare_root(place: &VolumeDir, for_all: bool) -> CommandResult {
    let me = crate::volume_path::current_cred();
    if me.is_root() && !for_all {
        return Ok(());
    }
    let client = place.connect_client(None)?;
    let failed =
        |e| crate::volume_path::volume_failure("cannot set up the root directory of the volume", e);
    let root = client.getattr(&Cred::ROOT, Ino::ROOT).map_err(failed)?;
    let mut set = SetAttr::default();
    if root.uid == 0 && !me.is_root() {
        (set.uid, set.gid) = (Some(me.uid), Some(me.gid));
    }
    if for_all && root.mode != OPEN_TO_ALL {
        set.mode = Some(OPEN_TO_ALL);
    }
    if set != SetAttr::default() {
        client.setattr(&Cred::ROOT, Ino::ROOT, set).map_err(failed)?;
    }
    Ok(())
}

/// Returns whether nobody but root can create files in the root directory of the volume.
fn is_for_root_only(place: &VolumeDir) -> bool {
    let root = place.connect_client(None).and_then(|client| {
        client.getattr(&Cred::ROOT, Ino::ROOT).map_err(|e| CommandFailure::new(e.to_string()))
    });
    root.is_ok_and(|root| root.uid == 0 && root.mode & OTHERS_WRITE == 0)
}

/// Returns a configuration file that explains every key and sets none.
fn document_config(place: &VolumeDir) -> String {
    let mut text = String::from(
        "# Configuration of this Tatami volume. Lines that begin with # show defaults.\n\
         # Each key can also be given as a flag (--section-key=value) or in the\n\
         # environment (TATAMI_SECTION_KEY); `tatami config` shows the values in force.\n",
    );
    let mut section = "";
    for key in &KEYS {
        let (own, short) = key.name.split_once('.').unwrap_or(("", key.name));
        if own != section {
            let _ = writeln!(text, "\n[{own}]"); // writing to a String cannot fail
            section = own;
        }
        text.push('\n');
        for line in wrap_words(key.doc, 76) {
            let _ = writeln!(text, "# {line}");
        }
        let unit = if key.unit.is_empty() { String::new() } else { format!(" {}", key.unit) };
        let _ = writeln!(text, "# {}{unit}; {}", key.range, key.env);
        let value = key.default_value(&place.dir);
        let quoted = match value {
            crate::keys::KeyValue::Text(s) => toml::Value::String(s).to_string(),
            other => other.to_string(),
        };
        let _ = writeln!(text, "#{short} = {quoted}");
    }
    text
}

/// Breaks text into lines of at most `width` characters.
pub fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("it starts with one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
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
    let executors = rebalance_cmd::most_executors(&volume.shards);
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

/// The parts that this call has started. They are stopped again if the rest fails.
struct StartedParts<'a> {
    place: &'a VolumeDir,
    volume: &'a VolumeFile,
    nodes: Vec<NodeEntry>,
    mounts: Vec<PathBuf>,
}

impl StartedParts<'_> {
    /// Starts all stopped daemons in parallel.
    fn start_nodes(&mut self, spinner: &ProgressBar) -> CommandResult {
        let mut failure = None;
        let mut starting: Vec<(&NodeEntry, StartingProcess)> = Vec::new();
        for entry in &self.volume.nodes {
            let process = daemon::is_answering(self.place, self.volume, entry).and_then(|there| {
                if there { Ok(None) } else { daemon::start_daemon(self.place, entry).map(Some) }
            });
            match process {
                Ok(process) => starting.extend(process.map(|p| (entry, p))),
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
        }
        // The loop waits also after a failure: a process that is ready can be stopped in an orderly
        // way.
        for (entry, process) in starting {
            spinner.set_message(format!("waiting for {}", entry.name));
            match process.wait_ready() {
                Ok(()) => self.nodes.push(entry.clone()),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        for entry in &self.nodes {
            daemon::record_in_use(self.place, entry)?;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Mounts all nodes that are not mounted, in parallel.
    fn start_mounts(&mut self, paths: &[PathBuf], spinner: &ProgressBar) -> CommandResult {
        let mut failure = None;
        let mut starting = Vec::new();
        for (entry, path) in self.volume.nodes.iter().zip(paths) {
            match mount_cmd::ensure_mounted(self.place, entry, path) {
                Ok(process) => starting.extend(process.map(|p| (path, p))),
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
        }
        for (path, (process, made)) in starting {
            spinner.set_message(format!("mounting {}", path.display()));
            match process.wait_ready() {
                Ok(()) => {
                    if let Some(made) = made {
                        made.close_below();
                    }
                    self.mounts.push(path.clone());
                }
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn stop_started(&mut self, failure: CommandFailure) -> CommandFailure {
        for path in self.mounts.drain(..) {
            if let Err(e) = mounts::end_mount(&self.place.dir, &path, true, "") {
                term::print_note(&e.report());
            }
            mountpoints::remove_made(self.place, &path);
        }
        for entry in self.nodes.drain(..).rev() {
            if let Err(e) = daemon::stop_daemon(self.place, self.volume, &entry, true) {
                term::print_note(&e.report());
            }
        }
        failure
    }
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
    let head =
        format!("Volume {} {did}, {nodes} node{}.", volume.name, if nodes == 1 { "" } else { "s" });
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
    if fresh && is_for_root_only(place) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_is_laid_out_is_valid_and_sets_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = VolumeArgs { dir: Some(dir.path().to_owned()), ..VolumeArgs::default() };
        let text = document_config(&at.open().expect("an empty place"));
        for key in &KEYS {
            assert!(text.contains(key.env), "{}", key.name);
        }
        // With every default uncommented, the file must still be valid.
        let set: String = text
            .lines()
            .map(|l| {
                l.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(l).to_owned() + "\n"
            })
            .collect();
        for text in [text, set] {
            std::fs::write(dir.path().join("tatami.toml"), &text).expect("written");
            at.open().unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }

    #[test]
    fn shards_are_dealt_out_evenly() {
        let counts = |wanted: &str, count| {
            let shards = assign_shards(wanted, count, 1).expect("good");
            assert_eq!(shards.len(), SHARDS_MAX);
            let first = |node| ExecutorId::first_of_node(NodeId(node));
            let of = |node| shards.iter().filter(|owner| **owner == first(node)).count();
            (0..count).map(of).collect::<Vec<_>>()
        };
        assert_eq!(counts("all", 1), [4096]);
        assert_eq!(counts("all", 3), [1366, 1365, 1365]);
        assert_eq!(counts("0", 3), [4096, 0, 0]);
        assert_eq!(counts("1-2, 3", 4), [0, 1366, 1365, 1365]);
        for wrong in ["4", "2-1", "x", "0,", "-"] {
            assert!(assign_shards(wrong, 4, 1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shards_are_dealt_out_to_all_executors_of_a_node_before_the_next() {
        let all = assign_shards("0,2", 3, 3).expect("good");
        let blocks = tatami_wire::shards::first_shards(&all);
        let of = |(shard, owner): &(ShardId, ExecutorId)| (shard.0, owner.node.0, owner.index);
        assert_eq!(
            blocks.iter().map(of).collect::<Vec<_>>(),
            [(0, 0, 0), (683, 0, 1), (1366, 0, 2), (2048, 2, 0), (2731, 2, 1), (3414, 2, 2)]
        );
        assert!(assign_shards("all", 64, 64).is_ok(), "one each");
        let said = assign_shards("all", 65, 64).expect_err("too many").report();
        assert!(said.contains("4096 shards") && said.contains("--executors 63"), "{said}");
    }

    #[test]
    fn words_are_wrapped() {
        assert_eq!(wrap_words("a bb ccc", 4), ["a bb", "ccc"]);
    }
}
