//! Daemons of nodes: running one in this process, starting and stopping them in the background.

use crate::absence::Absence;
use crate::config::ValueOrigin;
use crate::daemon_files::{log_file, pid_file, running_daemon};
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::keys::name;
use crate::node_owner;
use crate::own_address::{self, AddressNews};
use crate::process::{DaemonRole, ProcessRecord};
use crate::start_process::{self, ReadyPipe, StartingProcess};
use crate::term;
use crate::volume_dir::{self, AdminCallError, VolumeArgs, VolumeDir, in_use_key};
use rustix::fs::Mode;
use rustix::process::Signal;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tatami_client::TlsTrust;
use tatami_client::connection::Caller;
use tatami_cluster::trusted::TrustedDir;
use tatami_cluster::{KeyFile, NodeEntry, VolumeFile, resolve_system_name};
use tatami_node::{NodeDaemon, NodeOptions};
use tatami_wire::NodeId;
use tatami_wire::admin::{AdminCall, AdminReply};

/// Longest wait for a daemon to end: it syncs its files first.
const END_WAIT: Duration = Duration::from_secs(120);
/// Longest wait for the end of a daemon that does not answer: it may be shutting down.
const DYING_WAIT: Duration = Duration::from_secs(10);
/// Longest wait for the end of a daemon that was killed.
const KILLED_WAIT: Duration = Duration::from_secs(15);

/// Longest wait for a node to read the intact part of its damaged stores and to rewrite them.
const ACCEPT_WAIT: Duration = Duration::from_secs(300);

/// The arguments of `tatami node run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Data directory of the node, created if it is missing [default: the one in the volume file]
    // Release 0.1.0 called it --dir, which is the volume's directory elsewhere.
    #[arg(long, value_name = "NODEDIR", alias = "dir")]
    pub node_dir: Option<PathBuf>,
    /// The node of the volume, by number or name [default: the one with the data directory NODEDIR]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// The map of nodes [default: NODEDIR/../volume.toml]
    #[arg(long, value_name = "FILE")]
    pub volume_file: Option<PathBuf>,
    /// The volume's key; a file with mode 0600 [default: beside the volume file]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Configuration file [default: beside the volume file]
    #[arg(long, value_name = "FILE", env = "TATAMI_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Keys of the configuration, as flags.
    #[command(flatten)]
    pub overrides: crate::config::ConfigOverrides,
    /// Descriptor of a pipe for the report that the process is ready
    #[arg(long, value_name = "FD", hide = true)]
    pub ready_fd: Option<i32>,
}

/// Runs a daemon in this process until a signal or a request ends it.
///
/// # Errors
/// The daemon does not start, or ends with an error.
pub fn run_daemon(args: &RunArgs) -> CommandResult {
    let mut ready = ReadyPipe::from_descriptor(args.ready_fd)?;
    DaemonRole::Node.name_this_process();
    tatami_node::record_panics();
    let (node, pid_file, news) = launch_node(args).map_err(|e| ready.report_failure(e))?;
    ready.report_ready();
    news.into_iter().for_each(AddressNews::tell_others);
    let result = node.run();
    // The file is removed before the lock on the directory is released. Another process may have
    // removed the directory and made it again; then the file is not ours.
    if ProcessRecord::load(&pid_file) == Some(ProcessRecord::of_self()) {
        let _ = std::fs::remove_file(pid_file);
    }
    result.map_err(|e| CommandFailure::new(e.to_string()))
}

fn launch_node(args: &RunArgs) -> CommandResult<(NodeDaemon, PathBuf, Option<AddressNews>)> {
    let absolute = |path: &Path| std::path::absolute(path).context(|| path.display().to_string());
    let beside = args.node_dir.as_deref().map(absolute).transpose()?;
    let beside = beside.as_deref().and_then(Path::parent);
    let volume_file = match (&args.volume_file, beside) {
        (Some(file), _) => absolute(file)?,
        (None, Some(dir)) => dir.join("volume.toml"),
        (None, None) => {
            return Err(CommandFailure::usage(
                "no node is named: neither --node-dir nor --volume-file is given",
            )
            .try_this(
                "tatami node run --node-dir NODEDIR; or start all nodes of this machine: \
                 tatami up",
            ));
        }
    };
    let base = volume_file.parent().unwrap_or(Path::new("/")).to_owned();
    let base = resolve_system_name(base);
    let volume_file = base.join(volume_file.file_name().unwrap_or_default());
    TrustedDir::open(&base)?;
    let at = VolumeArgs {
        dir: Some(base.clone()),
        config: args.config.clone(),
        overrides: args.overrides.clone(),
    };
    let place = at.open()?;
    crate::log::start_logging(&place.config, true)?;
    let mut volume =
        VolumeFile::load(&volume_file).map_err(|e| CommandFailure::new(e.to_string()))?;
    let entry = &select_node(&place, &volume, args)?.clone();
    let key_file = args.key_file.clone().unwrap_or_else(|| base.join("key"));
    let key = KeyFile::load(&key_file).map_err(|e| match e.is_foreign() && !place.is_own() {
        true => place.owner_failure(e.to_string()),
        false => CommandFailure::new(e.to_string()),
    })?;
    let dir =
        args.node_dir.as_deref().map(absolute).transpose()?.unwrap_or_else(|| entry.dir.clone());
    let certificates = key_file.parent().unwrap_or(&base);
    let tls = TlsTrust::open(certificates, &volume).map_err(|e| {
        CommandFailure::new(e.to_string())
            .try_this("copy certificates.toml from another machine of the volume, mode 0600")
    })?;
    let caller = Caller {
        client: volume_dir::random_client()?,
        volume: Some(volume.volume),
        key: Some(key.clone()),
        tls: tls.clone(),
    };
    let news = own_address::follow_address(&place, &mut volume, entry.id, caller);
    let mut options = NodeOptions::new(dir.clone(), volume.map(), NodeId(entry.id), key);
    options.tls = tls;
    options.lease = place.config.duration_value(name::NODE_LEASE);
    options.reserve = place.config.int_value(name::NODE_RESERVE) << 20;
    options.durability = volume.durability;
    let device = place.config.text_value(name::NODE_REGION_DEVICE).replace("{node}", &entry.name);
    options.region_device = Some(device).filter(|path| path != "none").map(|path| base.join(path));
    // A volume of the superuser is open to others by default, also if its daemon is a service of
    // another user.
    let (_, origin) = place.config.get(name::MOUNT_ALLOW_OTHER);
    options.allow_other = match *origin == ValueOrigin::Default {
        true => base.metadata().is_ok_and(|meta| meta.uid() == 0) || options.allow_other,
        false => place.config.bool_value(name::MOUNT_ALLOW_OTHER),
    };
    options.version = env!("CARGO_PKG_VERSION").to_owned();
    let register = register_file(&base, entry);
    options.had_directory =
        is_registered(&register, &volume) || place.remembered_setting(&in_use_key(entry)).is_some();
    let node = NodeDaemon::start(options).map_err(|e| CommandFailure::new(e.to_string()))?;
    if let Err(error) = register_directory(&register, &volume) {
        tracing::warn!(
            "{}: status cannot report a later loss of the data directory",
            error.report()
        );
    }
    let pid_file = pid_file(&dir);
    ProcessRecord::of_self().save(&pid_file)?;
    Ok((node, pid_file, news))
}

/// Returns the node of the arguments: by its name, or by its directory.
fn select_node<'a>(
    place: &VolumeDir,
    volume: &'a VolumeFile,
    args: &RunArgs,
) -> CommandResult<&'a NodeEntry> {
    if let Some(node) = &args.node {
        return place.find_node(volume, node);
    }
    let dir = args.node_dir.as_deref().map(|d| std::path::absolute(d).unwrap_or_else(|_| d.into()));
    // The service of a volume names no node: each machine has its own.
    if dir.is_none()
        && let [only] = place.nodes_here(volume)[..]
    {
        return Ok(only);
    }
    match (dir, &volume.nodes[..]) {
        (None, [only]) => Ok(only),
        (Some(dir), nodes) => nodes.iter().find(|n| n.dir == dir).ok_or_else(|| {
            CommandFailure::usage(format!(
                "no node of the volume has the directory {}",
                dir.display()
            ))
            .try_this("name the node: --node N")
        }),
        _ => Err(CommandFailure::usage("the volume has several nodes").try_this("--node N")),
    }
}

/// Returns whether the daemon of this node runs and answers. Waits for the end of a daemon that is
/// shutting down.
///
/// # Errors
/// The daemon runs and does not answer.
pub fn is_answering(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
) -> CommandResult<bool> {
    let Some(process) = running_daemon(entry) else { return Ok(false) };
    let Err(error) = place.send_admin(volume, entry, &AdminCall::Ping) else { return Ok(true) };
    // A daemon that is shutting down refuses connections; one that hangs does not reply.
    if !error.is_timeout() && process.wait_for_end(DYING_WAIT) {
        return Ok(false);
    }
    let what = format!("{} runs (process {}) and does not answer", entry.name, process.pid);
    if let AdminCallError::Connect(error) = &error
        && !error.is_timeout()
    {
        let Absence { why, remedy, .. } = Absence::from_connect_error(place, entry, error);
        return Err(CommandFailure::degraded(what).because(why).try_this(remedy));
    }
    Err(CommandFailure::degraded(what).because(error).try_this(format!(
        "see its log, {}; to end it: tatami node stop --force{} {}",
        log_file(&entry.dir).display(),
        place.dir_flag(),
        entry.name
    )))
}

/// Starts the daemon of a node in the background.
///
/// # Errors
/// Those of the system.
pub fn start_daemon(place: &VolumeDir, entry: &NodeEntry) -> CommandResult<StartingProcess> {
    start_daemon_with(place, entry, &[])
}

/// As [`start_daemon`], with these arguments besides.
///
/// # Errors
/// Those of the system.
pub fn start_daemon_with(
    place: &VolumeDir,
    entry: &NodeEntry,
    more: &[OsString],
) -> CommandResult<StartingProcess> {
    if place.remembered_setting(&in_use_key(entry)).is_some() && !entry.dir.join("FORMAT").exists()
    {
        // The daemon would take an empty directory for a new node, and the files of the old node
        // would be lost.
        return Err(CommandFailure::new(format!("the data of {} is not there", entry.name))
            .because(format!(
                "{} held the data of a node, and its file FORMAT is missing now",
                entry.dir.display()
            ))
            .try_this(format!(
                "mount the disk of this directory; or, if the data are lost for good, start {0} \
                 empty: tatami node start --empty{1} {0}",
                entry.name,
                place.dir_flag()
            )));
    }
    node_owner::refuse_foreign(place, entry)?;
    // Other users may pass through to the socket, where the daemon checks their user id. The files
    // beside the socket are closed to them.
    TrustedDir::open_or_create(&entry.dir, Mode::from_raw_mode(0o711))?;
    let mut arguments: Vec<OsString> = ["node", "run", "--node-dir"].map(Into::into).into();
    arguments.push(entry.dir.clone().into());
    arguments.extend(["--node".into(), OsString::from(&entry.name)]);
    arguments.extend(["--volume-file".into(), place.volume_file().into()]);
    arguments.extend(["--key-file".into(), place.key_file().into()]);
    arguments.extend(place.at.to_arguments());
    arguments.extend_from_slice(more);
    let log = log_file(&entry.dir);
    start_process::start_background(DaemonRole::Node, &entry.name, &arguments, Some(&log))
}

/// Allows the node to begin empty, if its data directory is missing.
///
/// # Errors
/// Those of the file system.
pub fn allow_empty_start(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
) -> CommandResult {
    if place.remembered_setting(&in_use_key(entry)).is_some() {
        register_directory(&register_file(&place.dir, entry), volume)?;
    }
    place.forget_setting(&in_use_key(entry))
}

/// Returns the register file of a node: its presence records that the node has had a data
/// directory. It lies beside the volume file, because the data directory itself may be lost.
fn register_file(base: &Path, entry: &NodeEntry) -> PathBuf {
    base.join("made").join(entry.id.to_string())
}

/// Records that the node has a data directory, so that `status` can report its loss later.
fn register_directory(register: &Path, volume: &VolumeFile) -> CommandResult {
    if is_registered(register, volume) {
        return Ok(());
    }
    let (Some(parent), Some(name)) = (register.parent(), register.file_name()) else {
        return Ok(());
    };
    let text = format!("{}\n", volume.volume);
    TrustedDir::open_or_create(parent, Mode::from_raw_mode(0o755))
        .and_then(|dir| {
            let mode = Mode::from_raw_mode(0o644);
            dir.replace_file(&name.to_string_lossy(), text.as_bytes(), mode, true)
        })
        .map_err(|e| CommandFailure::new(format!("cannot write {}", register.display())).because(e))
}

/// Returns whether a node of this volume is registered as having, or having had, a data directory.
fn is_registered(register: &Path, volume: &VolumeFile) -> bool {
    std::fs::read_to_string(register).is_ok_and(|text| text.trim_end() == volume.volume.to_string())
}

/// Records that the node's data directory is in use. From now on a missing directory is an error
/// and `up` does not create it again.
///
/// # Errors
/// Those of the file system.
pub fn record_in_use(place: &VolumeDir, entry: &NodeEntry) -> CommandResult {
    place.remember_settings(&[(in_use_key(entry).as_str(), entry.dir.display().to_string())])
}

/// Returns a failure that names the executors of these nodes that refuse to start because their
/// stores are damaged; `None` if there are none. With `accept_loss` each node first starts them
/// with the records that it can read, and this function prints the result.
///
/// # Errors
/// A node does not answer the request, or refuses it.
pub fn resolve_damage<'a>(
    place: &VolumeDir,
    volume: &VolumeFile,
    entries: impl IntoIterator<Item = &'a NodeEntry>,
    accept_loss: bool,
) -> CommandResult<Option<CommandFailure>> {
    let refused = |entry: &NodeEntry| match place.send_admin(volume, entry, &AdminCall::Status) {
        Ok(AdminReply::Status(status)) => status.refused,
        // `status` reports other faults of the node.
        Ok(_) | Err(_) => Vec::new(),
    };
    let mut all = Vec::new();
    for entry in entries {
        let mut here = refused(entry);
        // Also without a refused store: the node may lack its region device.
        if accept_loss {
            let order = AdminCall::AcceptLoss;
            match place.send_admin_within(ACCEPT_WAIT, volume, entry, &order) {
                Ok(AdminReply::Report(done)) => {
                    done.iter()
                        .for_each(|done| term::print_note(&format!("{}: {done}", entry.name)));
                }
                Ok(_) => {
                    return Err(CommandFailure::new(format!("{}: unexpected reply", entry.name)));
                }
                Err(e) => {
                    return Err(CommandFailure::new(format!(
                        "{} did not accept the loss",
                        entry.name
                    ))
                    .because(e));
                }
            }
            here = refused(entry);
        }
        all.extend(here.into_iter().map(|why| format!("{}: {why}", entry.name)));
    }
    Ok((!all.is_empty()).then(|| {
        let what = "a part of the namespace is damaged and not served; the rest runs";
        let failure = CommandFailure::degraded(what).because(all.join("\n"));
        match accept_loss {
            true => failure,
            false => failure.try_this(format!(
                "restore the damaged files from a copy; or continue with the readable records: \
                 tatami up{0} --accept-loss, then tatami fsck{0} --repair",
                place.dir_flag()
            )),
        }
    }))
}

/// Stops the daemon of a node. Returns false if it does not run.
///
/// # Errors
/// The daemon does not end.
pub fn stop_daemon(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
    force: bool,
) -> CommandResult<bool> {
    let Some(process) = running_daemon(entry) else { return Ok(false) };
    // A daemon that was restarted in between may answer under another process id. Then that daemon
    // receives the request, and the wait below ends at once.
    if let Err(error) = place.send_admin(volume, entry, &AdminCall::Shutdown) {
        tracing::debug!(node = entry.name, %error, "no reply to the request; sending a signal");
        // A daemon that did not reply for the whole timeout would not handle SIGTERM either.
        let hangs = force && error.is_timeout();
        process.send_signal(if hangs { Signal::KILL } else { Signal::TERM });
    }
    let mut ended = process.wait_for_end(if force { KILLED_WAIT } else { END_WAIT });
    if !ended && force {
        process.send_signal(Signal::KILL);
        ended = process.wait_for_end(KILLED_WAIT);
    }
    if !ended {
        return Err(CommandFailure::new(format!(
            "{} (process {}) did not end within {} s",
            entry.name,
            process.pid,
            END_WAIT.as_secs()
        ))
        .because(format!("see its log: {}", log_file(&entry.dir).display()))
        .try_this(format!(
            "tatami down --force{} kills it; its next start recovers the changes that were not \
            synced",
            place.dir_flag()
        )));
    }
    let _ = std::fs::remove_file(pid_file(&entry.dir));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KeyValue, find_key};

    #[test]
    fn defaults_are_those_of_the_library() {
        let default = |name| find_key(name).expect("a key").default_value(Path::new("/"));
        let lease = NodeOptions::LEASE.as_secs();
        assert_eq!(default(name::NODE_LEASE), KeyValue::Int(lease));
        assert_eq!(default(name::NODE_RESERVE), KeyValue::Int(NodeOptions::RESERVE >> 20));
        let durability = tatami_wire::admin::Durability::default().name();
        assert_eq!(default(name::VOLUME_DURABILITY), KeyValue::Text(durability.into()));
        let patience =
            tatami_client::ClientOptions::new(tatami_client::Endpoint::Tcp("x:1".into())).patience;
        assert_eq!(default(name::CLIENT_PATIENCE), KeyValue::Int(patience.as_secs()));
    }
}
