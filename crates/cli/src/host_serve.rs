//! `tatami host serve`: the part of `tatami up --hosts` and the like on one host. It carries out
//! orders that arrive on standard input, one line each, and replies on standard output
//! ([`tatami_hosts::host_protocol`]).
//!
//! If its input ends before the order to keep everything, it undoes what it has made. So nothing is
//! left on a host if `ssh` breaks, or if a user kills `tatami up`.

use crate::certificates;
use crate::config::ConfigOverrides;
use crate::erase_node;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::interfaces;
use crate::job_remains::{self, JobCleaner};
use crate::keeper_note::KeeperNote;
use crate::keys::find_key;
use crate::leased_input::LeasedInput;
use crate::made_files::MadeFiles;
use crate::mounts::MountRecord;
use crate::ports;
use crate::started_parts::StartedParts;
use crate::stopping::{self, MountsHere};
use crate::term;
use crate::up_token::{TOKEN_FILE, lock_token, parse_token};
use crate::volume_dir::{VolumeArgs, VolumeDir};
use crate::volume_layout;
use rustix::fs::Mode;
use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use tatami_cluster::trusted;
use tatami_cluster::{KeyFile, NodeEntry, VolumeFile};
use tatami_hosts::host_protocol::{
    CheckOrder, CheckedHost, HostFailure, HostHello, HostOrder, HostReply, LayOutOrder, ORDER_MAX,
    format_greeting, format_message, parse_order, read_line,
};
use tatami_hosts::machine::MachineFile;

/// Device number of /dev/fuse.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// `tatami host`
#[derive(Debug, clap::Subcommand)]
pub enum HostCommand {
    /// Carry out the orders of a `tatami` on another machine
    Serve,
    /// Remove the volume of a batch job from this host
    Clean(CleanArgs),
}

/// `tatami host clean`
#[derive(Debug, clap::Args)]
pub struct CleanArgs {
    /// Remove the volume in this directory
    #[arg(long, value_name = "DIR", requires = "wait", conflicts_with_all = ["job", "places"])]
    dir: Option<PathBuf>,
    /// Wait for the end of standard input before
    #[arg(long, requires = "dir")]
    wait: bool,
    /// Remove the volume of this job; without it, of all jobs that no longer have a process
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Directories in which jobs have their volumes
    #[arg(value_name = "PLACE")]
    places: Vec<PathBuf>,
}

/// Runs a subcommand of `tatami host`.
///
/// # Errors
/// Standard input or output fails, or an order is not understood.
pub fn run(command: &HostCommand) -> CommandResult {
    match command {
        HostCommand::Serve => serve_orders(),
        HostCommand::Clean(CleanArgs { dir: Some(dir), .. }) => job_remains::await_and_remove(dir),
        HostCommand::Clean(args) => job_remains::remove_job(args.job.as_deref(), &args.places),
    }
}

fn serve_orders() -> CommandResult {
    // On this machine it was started as /proc/self/exe, and `ps` would show that as its name.
    if let Err(error) = rustix::thread::set_name(c"tatami") {
        tracing::debug!(%error, "this process keeps its name");
    }
    let mut far = FarSide::default();
    let mut input = BufReader::new(LeasedInput::start(far.is_held.clone())?);
    let result = far.converse(&mut input);
    // After `Keep` there is nothing to undo.
    far.undo_all();
    result
}

/// The state of a connection.
#[derive(Default)]
struct FarSide {
    volume_dir: Option<OpenedDir>,
    started: StartedParts,
    /// The files before the first that this connection has made.
    made: Option<MadeFiles>,
    /// The files before the first that the side that orders has made, in its own directory.
    /// The lock on their record is held until this side has ended.
    made_there: Option<(MadeFiles, File)>,
    /// Whether the volume lives as long as this connection.
    is_held: Rc<Cell<bool>>,
    /// Removes the volume of a batch job, as the last step.
    cleaner: Option<JobCleaner>,
    job: Option<String>,
}

/// The directory of the volume, once the first order has named it.
struct OpenedDir {
    place: VolumeDir,
    is_same: bool,
    /// Keeps other commands out; the side that orders does so in its own directory.
    lock: Option<File>,
}

impl FarSide {
    fn converse(&mut self, input: &mut impl std::io::BufRead) -> CommandResult {
        send_text(&format_greeting(&describe_self()))?;
        let failed = || "an order from another machine".to_owned();
        while let Some(line) = read_line(input, ORDER_MAX).context(failed)? {
            let order = parse_order(&line).context(failed)?;
            let reply = self.carry_out(order).unwrap_or_else(|failure| fold_failure(&failure));
            send_text(&format_message(&reply))?;
        }
        Ok(())
    }

    fn carry_out(&mut self, order: HostOrder) -> CommandResult<HostReply> {
        let spinner = term::new_spinner("");
        match order {
            HostOrder::Check(order) => self.open_dir(&order).map(HostReply::Checked),
            HostOrder::FindPort { address } => {
                let ports = ports::find_free_ports(&address, 1)?;
                ports.first().map(|port| HostReply::Port(*port)).ok_or_else(unordered_failure)
            }
            HostOrder::LayOut(order) => {
                let opened = self.volume_dir.as_mut().ok_or_else(unordered_failure)?;
                lay_out_files(&opened.place, &order)?;
                // The files have settings.
                opened.place = opened.place.at.open()?;
                Ok(HostReply::Done)
            }
            HostOrder::StartNodes { nodes } => {
                let place = &self.volume_dir.as_ref().ok_or_else(unordered_failure)?.place;
                let volume = place.load_volume()?;
                let entries = select_nodes(place, &volume, &nodes)?;
                let before = self.started.nodes.len();
                self.started.start_nodes(place, &volume, &entries, &spinner)?;
                Ok(HostReply::Changed(count_since(self.started.nodes.len(), before)))
            }
            HostOrder::Mount => {
                let place = &self.volume_dir.as_ref().ok_or_else(unordered_failure)?.place;
                let volume = place.load_volume()?;
                let before = self.started.mounts.len();
                self.started.start_mounts(place, &volume, &spinner)?;
                let new = count_since(self.started.mounts.len(), before);
                let records = MountRecord::list_volume(&place.dir);
                let paths = records.iter().map(|record| record.path.display().to_string());
                Ok(HostReply::Mounted { paths: paths.collect(), new })
            }
            HostOrder::CheckIdle => {
                let place = &self.opened()?.place;
                let how = format!("tatami down --force{}", place.dir_flag());
                MountsHere::find_all(place).refuse_used(&how)?;
                Ok(HostReply::Done)
            }
            HostOrder::Unmount { force } => {
                let place = &self.opened()?.place;
                let how = format!("tatami down --force{}", place.dir_flag());
                let ended = MountsHere::find_all(place).end_all(place, force, &how, &spinner)?;
                Ok(HostReply::Changed(count_since(ended, 0)))
            }
            HostOrder::StopNodes { nodes, force } => {
                let place = &self.opened()?.place;
                let volume = place.load_volume()?;
                let entries = select_nodes(place, &volume, &nodes)?;
                let stopped = stopping::stop_nodes(place, &volume, &entries, force, &spinner)?;
                Ok(HostReply::Changed(count_since(stopped, 0)))
            }
            HostOrder::Erase { node } => {
                let place = &self.opened()?.place;
                let volume = place.load_volume()?;
                let entries = select_nodes(place, &volume, &[node])?;
                let keeps_volume = place.nodes_here(&volume).len() > entries.len();
                entries.iter().try_for_each(|e| erase_node::erase_node(place, e, keeps_volume))?;
                Ok(HostReply::Done)
            }
            HostOrder::Keep => {
                self.started = StartedParts::default();
                (self.made, self.made_there) = (None, None);
                Ok(HostReply::Done)
            }
            HostOrder::Hold { keeper } => {
                let opened = self.volume_dir.as_mut().ok_or_else(unordered_failure)?;
                let job = self.job.clone().ok_or_else(unordered_failure)?;
                // Commands of the job may change the volume from now on.
                opened.lock = None;
                if !opened.is_same {
                    KeeperNote { job, host: keeper, process: None }.save(&opened.place.dir)?;
                }
                self.started = StartedParts::default();
                self.is_held.set(true);
                Ok(HostReply::Done)
            }
            HostOrder::Beat => Ok(HostReply::Done),
            HostOrder::UndoMounts => {
                let place = &self.volume_dir.as_ref().ok_or_else(unordered_failure)?.place;
                self.started.end_mounts(place);
                Ok(HostReply::Done)
            }
            HostOrder::Undo => {
                self.undo_all();
                Ok(HostReply::Done)
            }
        }
    }

    fn opened(&self) -> CommandResult<&OpenedDir> {
        self.volume_dir.as_ref().ok_or_else(unordered_failure)
    }

    /// Opens the directory of the volume and checks that this machine is fit for a node.
    fn open_dir(&mut self, order: &CheckOrder) -> CommandResult<CheckedHost> {
        let dir = PathBuf::from(&order.dir);
        if self.volume_dir.is_some() || !dir.is_absolute() {
            return Err(unordered_failure());
        }
        let place = open_place(&dir, &order.settings)?;
        let token = std::fs::read_to_string(dir.join(TOKEN_FILE)).unwrap_or_default();
        let (token, made_there) = parse_token(&token);
        let is_same = token == order.token;
        let made_there = match made_there.filter(|_| is_same) {
            Some(made) => Some((made, lock_token(&dir)?)),
            None => None,
        };
        let there = match place.volume_file().exists() {
            true => Some(place.load_volume()?),
            false => None,
        };
        match (&order.volume, &there) {
            (None, Some(there)) => return Err(foreign_volume(&place, there)),
            (Some(wanted), Some(there)) if there.volume.to_string() != *wanted => {
                return Err(foreign_volume(&place, there));
            }
            (Some(_), None) => {
                return Err(CommandFailure::degraded(format!(
                    "the volume is not in {} there",
                    place.dir.display()
                ))
                .because("the files of the volume were removed, or their disk is not mounted"));
            }
            _ => {}
        }
        if order.mounts {
            check_fuse()?;
        }
        if let (Some(job), None) = (&order.job, &order.volume) {
            if !is_same {
                job_remains::make_job_dir(&dir)?;
            }
            self.job = Some(job.clone());
            self.cleaner = Some(JobCleaner::start(&dir)?);
        } else if order.volume.is_none() {
            self.made = Some(MadeFiles::record_before(&dir));
            self.made_there = made_there;
            volume_layout::make_dir(&dir)?;
        }
        let lock = match is_same {
            true => None,
            false => Some(take_lock(&place, &order.token)?),
        };
        let volume = there.as_ref().map(|_| std::fs::read_to_string(place.volume_file()));
        let volume = volume.transpose().context(|| "volume.toml".to_owned())?;
        let disk = rustix::fs::statvfs(&dir).context(|| dir.display().to_string())?;
        let available = disk.f_bavail.saturating_mul(disk.f_frsize);
        self.volume_dir = Some(OpenedDir { place, is_same, lock });
        Ok(CheckedHost { is_same, volume, available })
    }

    fn undo_all(&mut self) {
        let Some(OpenedDir { place, is_same, .. }) = &self.volume_dir else { return };
        if let Ok(volume) = place.load_volume() {
            let _ = self.started.stop_started(place, &volume, CommandFailure::new(""));
        }
        if let Some(made) = &self.made {
            made.remove_all();
            // The same connection may lay out another volume.
            if !is_same {
                let _ = volume_layout::make_dir(&place.dir);
            }
        }
    }
}

impl Drop for FarSide {
    fn drop(&mut self) {
        let Some(OpenedDir { place, .. }) = self.volume_dir.take() else { return };
        // The lock's file, and the directory that was made for it.
        if let Some(made) = &self.made {
            made.remove_all();
        }
        // The side that orders holds the lock as long as it lives, and removes its files itself.
        if let Some((made, _)) = &self.made_there
            && let Ok(Some(_lock)) = place.try_lock()
        {
            made.remove_all();
        }
    }
}

fn count_since(now: usize, before: usize) -> u32 {
    u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX)
}

fn unordered_failure() -> CommandFailure {
    CommandFailure::new("the orders arrive in an order that this tatami does not know")
}

fn send_text(text: &str) -> CommandResult {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Returns the greeting of this machine.
fn describe_self() -> HostHello {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // sshd sets it: the address and port of the client, and then those of the server.
    let connection = std::env::var("SSH_CONNECTION").ok();
    let address = connection.as_deref().and_then(|text| text.split_whitespace().nth(2));
    // Slurm sets it: the address of the machine on which srun runs.
    let launcher = std::env::var("SLURM_LAUNCH_NODE_IPADDR").ok();
    let towards = launcher.and_then(|launcher| ports::own_address_towards(&launcher));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    HostHello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        wire: tatami_wire::PROTOCOL_VERSION,
        oldest_wire: Some(tatami_wire::OLDEST_PROTOCOL),
        name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        machine: read("/etc/machine-id"),
        address: address.map(str::to_owned).or(towards),
        addresses: interfaces::list_addresses(),
        clock_ms: u64::try_from(clock.as_millis()).unwrap_or(u64::MAX),
        user: rustix::process::geteuid().as_raw(),
    }
}

fn fold_failure(failure: &CommandFailure) -> HostReply {
    HostReply::Failed(HostFailure {
        what: failure.what.clone(),
        causes: failure.list_causes(),
        remedy: failure.remedy.clone(),
        exit: failure.exit.code(),
    })
}

fn open_place(dir: &Path, settings: &[(String, String)]) -> CommandResult<VolumeDir> {
    let mut overrides = ConfigOverrides::default();
    for (name, value) in settings {
        let key = find_key(name)
            .ok_or_else(|| CommandFailure::new(format!("there is no setting {name:?}")))?;
        overrides.0.push((key, value.clone()));
    }
    VolumeArgs { dir: Some(dir.to_owned()), config: None, overrides }.open()
}

/// Keeps other commands out of the directory. The lock's file says for which command, so that a
/// second host with the same directory is recognized.
fn take_lock(place: &VolumeDir, token: &str) -> CommandResult<File> {
    let shown = place.dir.display();
    if let Some(mut lock) = place.try_lock()? {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        lock.set_len(0).context(|| shown.to_string())?;
        write!(lock, "{token} {name}").context(|| shown.to_string())?;
        return Ok(lock);
    }
    let holder = std::fs::read_to_string(place.lock_path()).unwrap_or_default();
    Err(match holder.split_once(' ').filter(|(of, _)| *of == token) {
        Some((_, other)) => shared_failure(place, other),
        None => CommandFailure::new(format!("another command works on {shown} there"))
            .try_this("repeat this one later"),
    })
}

/// Returns a failure because two hosts have one directory, such as a home directory on NFS.
pub fn shared_failure(place: &VolumeDir, other: &str) -> CommandFailure {
    CommandFailure::new(format!("{} is also the directory of {other}", place.dir.display()))
        .because("each host needs a directory of its own for its data")
        .try_this("name a directory on a local disk of each host: tatami up --dir DIR")
}

fn foreign_volume(place: &VolumeDir, there: &VolumeFile) -> CommandFailure {
    let dir = place.dir.display();
    CommandFailure::new(format!("there is a volume in {dir} already: {}", there.name)).try_this(
        format!(
            "to start that one, run there: tatami up{}; or use another directory: tatami up \
             --dir DIR",
            place.dir_flag()
        ),
    )
}

/// Checks that this user can mount.
fn check_fuse() -> CommandResult {
    let failed = |cause: String| {
        CommandFailure::new("FUSE cannot be used").because(cause).try_this(
            "install fuse3, and give this user access to /dev/fuse; or do not mount: tatami up \
             --no-mount",
        )
    };
    let device = Path::new("/dev/fuse");
    let opened = File::options().read(true).write(true).open(device);
    let file = opened.map_err(|e| failed(format!("/dev/fuse: {e}")))?;
    let meta = file.metadata().map_err(|e| failed(format!("/dev/fuse: {e}")))?;
    let number = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    if !meta.file_type().is_char_device() || number != FUSE_DEVICE {
        return Err(failed("/dev/fuse is not the device of FUSE".to_owned()));
    }
    let has_helper = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file())
    };
    if !rustix::process::geteuid().is_root() && !has_helper() {
        return Err(failed("fusermount3 is not installed".to_owned()));
    }
    Ok(())
}

/// Writes the files of the volume. `volume.toml` comes last.
fn lay_out_files(place: &VolumeDir, order: &LayOutOrder) -> CommandResult {
    let machine = MachineFile::parse(&order.machine).map_err(CommandFailure::new)?;
    let known = MachineFile::load(&place.machine_file());
    let known = known.map_err(|e| CommandFailure::new(e.to_string()))?;
    if let Some(known) = known.filter(|known| known.nodes != machine.nodes) {
        let others: Vec<&str> = known
            .nodes
            .difference(&machine.nodes)
            .filter_map(|node| machine.host_of(*node))
            .map(|host| host.name.as_str())
            .collect();
        let other = if others.is_empty() { "another host".to_owned() } else { others.join(", ") };
        return Err(shared_failure(place, &other));
    }
    if let Some(key) = &order.key {
        write_key(place, &key.0)?;
    }
    if let Some(text) = &order.certificates {
        certificates::install_authorities(place, &text.0)?;
    }
    let config = place.dir.join("tatami.toml");
    if let Some(text) = order.config.as_ref().filter(|_| !config.exists()) {
        crate::replace_file::replace_file(&config, text)?;
    }
    let remembered: Vec<_> =
        order.remembered.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    if !remembered.is_empty() {
        place.remember_settings(&remembered)?;
    }
    place.save_machine(machine)?;
    let mode = Mode::from_raw_mode(0o644);
    trusted::replace_file(&place.volume_file(), order.volume.as_bytes(), mode, true)?;
    // The text came over a network: it must be a volume before a daemon reads it.
    let volume = place.load_volume()?;
    if order.certificates.is_some() {
        certificates::give_to_daemons(place, &volume);
    }
    Ok(())
}

/// Writes the key file, for its owner alone, and checks it.
fn write_key(place: &VolumeDir, text: &str) -> CommandResult {
    let path = place.key_file();
    if std::fs::read(&path).is_ok_and(|there| there != text.as_bytes()) {
        return Err(CommandFailure::new(format!(
            "there is another key in {} already",
            path.display()
        ))
        .try_this("if no volume needs it, remove it; or use another directory: --dir DIR"));
    }
    trusted::replace_file(&path, text.as_bytes(), Mode::RUSR | Mode::WUSR, true)?;
    KeyFile::load(&path).map(drop).map_err(|e| CommandFailure::new(e.to_string()))
}

/// Returns the entries of these nodes, which must be of this machine; without any, all of it.
fn select_nodes<'a>(
    place: &VolumeDir,
    volume: &'a VolumeFile,
    nodes: &[u16],
) -> CommandResult<Vec<&'a NodeEntry>> {
    let mut here = place.nodes_here(volume);
    if let Some(node) = nodes.iter().find(|node| here.iter().all(|entry| entry.id != **node)) {
        return Err(CommandFailure::new(format!("node {node} is not on this machine")));
    }
    here.retain(|entry| nodes.is_empty() || nodes.contains(&entry.id));
    Ok(here)
}
