//! `tatami exec`: runs a program that sees one node's mount at a common path.
//!
//! On a real cluster every node mounts the volume at the same path. Several nodes on one machine
//! cannot do so. Therefore the program gets a mount namespace of its own, in which that path shows
//! the mount of its node.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::keys::name;
use crate::mount_cmd;
use crate::mountinfo::{self, FS_TYPE};
use crate::mounts::MountRecord;
use crate::node_cmd;
use crate::volume_dir::VolumeArgs;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `tatami exec`
#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// The node of the mount, by number or name; `rank`: the rank of the process in its MPI or
    /// Slurm job, modulo the number of nodes
    #[arg(long, value_name = "NODE", default_value = "0")]
    node: String,
    /// Path at which the program sees the mount [default: the path at which `tatami up` mounts]
    #[arg(long = "at", value_name = "PATH")]
    at_path: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Replaces this process by the program.
///
/// # Errors
/// The node has no mount, no mount namespace is available, or the program does not exist.
pub fn run(args: &ExecArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let here = place.nodes_here(&volume);
    let entry = if args.node == "rank" {
        // Of several nodes on one machine, each rank has its own.
        let own = here.get(node_cmd::job_rank()? % here.len().max(1));
        own.copied().ok_or_else(|| CommandFailure::usage("no node is on this machine"))?
    } else {
        place.find_node(&volume, &args.node)?
    };
    let source = find_mount(&place.dir, entry.id).ok_or_else(|| {
        CommandFailure::degraded(format!("{} is not mounted on this machine", entry.name))
            .try_this(format!("tatami up{}", place.dir_flag()))
    })?;
    let target = match &args.at_path {
        Some(path) => path.clone(),
        None => PathBuf::from(place.config.text_value(name::MOUNT_PATH)),
    };
    let target = mount_cmd::resolve_path(&target)?;
    if target != source {
        if !target.is_dir() {
            return Err(CommandFailure::new(format!("{} is not a directory", target.display()))
                .try_this(format!("mkdir -p {}", target.display())));
        }
        let here = std::env::current_dir();
        bind_mount(&source, &target)?;
        // The working directory is entered again by its path: the new mount may cover the old one.
        if let Ok(here) = here
            && let Err(error) = std::env::set_current_dir(&here)
        {
            tracing::debug!(%error, "the working directory could not be entered again");
        }
    }
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let error = Command::new(program).args(arguments).exec();
    Err(CommandFailure::new(format!("cannot run {}", program.display())).because(error))
}

/// Returns where `up` has mounted the node, if it is still mounted there.
fn find_mount(dir: &Path, node: u16) -> Option<PathBuf> {
    let records = MountRecord::list_volume(dir);
    let alive = |r: &&MountRecord| {
        r.node == node && mountinfo::mount_at(&r.path).is_some_and(|m| m.fs_type == FS_TYPE)
    };
    records.iter().find(alive).map(|r| r.path.clone())
}

fn bind_mount(source: &Path, target: &Path) -> CommandResult {
    enter_namespace()?;
    let what = || format!("cannot show {} at {}", source.display(), target.display());
    // Mounts in this namespace stay invisible outside. Unmounts outside still propagate into it.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).context(what)?;
    mount_bind(source, target).context(what)
}

fn enter_namespace() -> CommandResult {
    // SAFETY: the process has one thread, and no descriptors are shared or closed.
    let own = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    let Err(error) = own else { return Ok(()) };
    // An ordinary user may mount within a user namespace.
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: as above.
    let user =
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) };
    let mapped = user.map_err(std::io::Error::from).and_then(|()| {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
    });
    mapped.map_err(|second| {
        CommandFailure::new("cannot get a mount namespace")
            .because(format!("{error}; a user namespace failed, too: {second}"))
            .try_this("run it as root; or use the node's mount by its own path")
    })
}
