//! The user that runs a node's daemon: `tatami node chown`. `tatami up` runs daemons as the user
//! that calls it. The system service of a volume has a user of its own, to which the data directory
//! belongs.

use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult};
use crate::term::TermOutput;
use crate::user_name::{describe_user, find_user};
use crate::volume_dir::{VolumeArgs, VolumeDir};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::process::geteuid;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tatami_cluster::trusted::{self, TrustedDir};
use tatami_cluster::{DEFAULT_NAME, NodeEntry, SYSTEM_DIR};

/// Permissions of a data directory: others pass through to the socket.
const DATA_DIR: Mode = Mode::from_raw_mode(0o711);
/// Permissions of the directory in which daemons record that nodes have had data.
const REGISTER_DIR: Mode = Mode::from_raw_mode(0o755);

/// `tatami node chown`
#[derive(Debug, clap::Args)]
pub struct ChownArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// The user, by name or number
    #[arg(value_name = "USER")]
    user: String,
    /// Nodes by number or name [default: all nodes of this machine]
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
}

/// The new owner of a tree, and the one that it has now. Entries of other owners are no part of a
/// data directory, and so a link to a file of the system keeps its owner.
struct OwnerChange {
    from: u32,
    uid: u32,
    gid: u32,
}

/// Gives the data directories of nodes of this machine to another user.
///
/// # Errors
/// This user is not the superuser; a daemon runs; those of the file system.
pub fn change_owner(args: &ChownArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    if !geteuid().is_root() {
        return Err(CommandFailure::new("only the superuser may change owners")
            .try_this("run it with sudo"));
    }
    let (uid, gid) = find_user(&args.user).ok_or_else(|| {
        CommandFailure::usage(format!("there is no user {:?}", args.user)).try_this(
            "a package of Tatami makes the user `tatami`: systemd-sysusers, or name another one",
        )
    })?;
    let named: Vec<&NodeEntry> = args
        .nodes
        .iter()
        .map(|node| place.find_node(&volume, node))
        .collect::<CommandResult<_>>()?;
    let entries = if named.is_empty() { place.nodes_here(&volume) } else { named };
    let _lock = place.lock()?;
    let mut out = TermOutput::new();
    for entry in entries {
        match give_data(entry, uid, gid)? {
            true => writeln!(out, "{} belongs to {} now", entry.name, describe_user(uid))?,
            false => writeln!(out, "{} belongs to {}", entry.name, describe_user(uid))?,
        }
    }
    give_register(&place, uid, gid)?;
    out.flush()?;
    Ok(())
}

/// Gives the data directory of a node to a user, with all files in it. Returns false if the user
/// has it already.
fn give_data(entry: &NodeEntry, uid: u32, gid: u32) -> CommandResult<bool> {
    if !entry.dir.exists() {
        TrustedDir::open_or_create(&entry.dir, DATA_DIR)?;
    }
    // A link may lead to a disk of the node's own.
    let failed = |e: std::io::Error| owner_failure(&entry.dir, e);
    let dir = entry.dir.canonicalize().map_err(failed)?;
    let meta = dir.metadata().map_err(failed)?;
    if meta.uid() == uid {
        return Ok(false);
    }
    if let Some(process) = daemon_files::running_daemon(entry) {
        let what = format!("the daemon of {} runs (process {})", entry.name, process.pid);
        let owner = describe_user(meta.uid());
        return Err(CommandFailure::new(what)
            .because(format!("it writes to {} as {owner}", entry.dir.display()))
            .try_this(format!("tatami node stop {}", entry.name)));
    }
    give_tree(&dir, &OwnerChange { from: meta.uid(), uid, gid })?;
    Ok(true)
}

/// Gives the register of data directories to the user of the daemons, which write to it.
fn give_register(place: &VolumeDir, uid: u32, gid: u32) -> CommandResult {
    let dir = place.dir.join("made");
    if !dir.exists() {
        TrustedDir::open_or_create(&dir, REGISTER_DIR)?;
    }
    let from = dir.metadata().map_err(|e| owner_failure(&dir, e))?.uid();
    if from == uid { Ok(()) } else { give_tree(&dir, &OwnerChange { from, uid, gid }) }
}

fn owner_failure(path: &Path, e: impl Into<std::io::Error>) -> CommandFailure {
    CommandFailure::new(format!("cannot change the owner of {}", path.display())).because(e.into())
}

fn give_tree(path: &Path, change: &OwnerChange) -> CommandResult {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(CommandFailure::usage(format!("{} is no data directory", path.display())));
    };
    // The directory above must be closed to others, or the name could lead elsewhere by now.
    TrustedDir::open(parent)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |e: rustix::io::Errno| owner_failure(path, e);
    let above = rustix::fs::open(parent, flags, Mode::empty()).map_err(failed)?;
    let dir = rustix::fs::openat(&above, name, flags, Mode::empty()).map_err(failed)?;
    give_entries(&dir, path, change)?;
    // The directory comes last: its owner shows that all entries are done, also after a call that
    // was interrupted.
    rustix::fs::fchown(&dir, Some(Uid::from_raw(change.uid)), Some(Gid::from_raw(change.gid)))
        .map_err(failed)
}

fn give_entries(dir: &OwnedFd, path: &Path, change: &OwnerChange) -> CommandResult {
    let failed = |path: PathBuf| move |e: rustix::io::Errno| owner_failure(&path, e);
    let entries = Dir::read_from(dir).map_err(failed(path.to_owned()))?;
    for entry in entries {
        let entry = entry.map_err(failed(path.to_owned()))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = path.join(name.to_string_lossy().as_ref());
        let stat = rustix::fs::statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed(path.clone()))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = rustix::fs::openat(dir, name, flags, Mode::empty());
            give_entries(&below.map_err(failed(path.clone()))?, &path, change)?;
        }
        if stat.st_uid == change.from {
            let (uid, gid) = (Uid::from_raw(change.uid), Gid::from_raw(change.gid));
            rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed(path))?;
        }
    }
    Ok(())
}

/// Refuses to run the daemon of a node as the superuser if its data belong to the user of a
/// service.
///
/// # Errors
/// They do. The message names the service.
pub fn refuse_foreign(place: &VolumeDir, entry: &NodeEntry) -> CommandResult {
    let Ok(meta) = entry.dir.metadata() else { return Ok(()) };
    // The owner of the volume's directory is checked elsewhere.
    if !geteuid().is_root() || meta.uid() == 0 || !trusted::is_own(&place.dir) {
        return Ok(());
    }
    let owner = describe_user(meta.uid());
    let what = format!("the data of {} belong to {owner}, whose service runs it", entry.name);
    Err(CommandFailure::new(what).try_this(format!(
        "systemctl start tatami-node@{}; or, to run it without the service: tatami node chown{} \
         root {}",
        find_system_name(&place.dir).unwrap_or_else(|| "NAME".to_owned()),
        place.dir_flag(),
        entry.name
    )))
}

/// Returns the name of the volume in [`SYSTEM_DIR`], if the administrator has given it one.
fn find_system_name(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let entries = std::fs::read_dir(SYSTEM_DIR).ok()?.flatten();
    let same = entries.filter(|entry| entry.path().canonicalize().is_ok_and(|of| of == dir));
    let names: Vec<String> =
        same.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // The default is mostly a link to the name under which the service runs.
    let own = names.iter().find(|name| *name != DEFAULT_NAME);
    own.or(names.first()).cloned()
}
