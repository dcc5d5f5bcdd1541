//! `tatami run`: runs a program that sees the volume without a mount.
//!
//! A library is loaded before the C library (`LD_PRELOAD`). It answers the calls on paths of the
//! volume inside the program, through the client library.

use crate::elf::{is_dynamic, read_interpreter};
use crate::error::{CommandFailure, CommandResult};
use crate::keys::name;
use crate::mount_cmd;
use crate::mounts::MountRecord;
use crate::node_cmd;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use rustix::process::{getegid, geteuid};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tatami_cluster::{NodeEntry, VolumeFile};

/// The library that is preloaded.
const LIBRARY: &str = "libtatami_preload.so";
/// The environment variable with another path of the library.
const LIBRARY_VARIABLE: &str = "TATAMI_PRELOAD_LIBRARY";

/// `tatami run`
#[derive(Debug, clap::Args)]
pub struct RunProgramArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// The home node of the program, by number or name; `rank`: the rank of the process in its MPI
    /// or Slurm job, modulo the number of nodes [default: the first node of this machine]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Path at which the program sees the volume [default: the paths at which the node is mounted,
    /// or at which `tatami up` mounts it]
    #[arg(long = "at", value_name = "PATH")]
    at_path: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Replaces this process by the program.
///
/// # Errors
/// The library is not installed, no library can be loaded into the program, or the program does not
/// exist.
pub fn run(args: &RunProgramArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let library = find_library()?;
    let node = home_node(args, &place, &volume)?;
    let paths = match &args.at_path {
        Some(path) => vec![mount_cmd::resolve_path(path)?],
        None => default_paths(&place, &volume, node),
    };
    check_paths(&paths)?;
    // A path of the volume itself is checked by the library.
    if !paths.iter().any(|path| Path::new(program).starts_with(path)) {
        check_program(program)?;
    }
    let patience = place.config.duration_value(name::CLIENT_PATIENCE).as_secs();
    let at = std::env::join_paths(&paths)
        .map_err(|e| CommandFailure::usage("a path has a colon in it").because(e))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload_list(&library))
        .env("TATAMI_PRELOAD_AT", at)
        .env("TATAMI_PRELOAD_DIR", &place.dir)
        .env("TATAMI_PRELOAD_NODE", node.id.to_string())
        .env("TATAMI_PRELOAD_PATIENCE", patience.to_string())
        .env_remove("TATAMI_PRELOAD_CWD")
        .env_remove("TATAMI_PRELOAD_FILES");
    let error = command.exec();
    Err(CommandFailure::new(format!("cannot run {}", program.display())).because(error))
}

fn home_node<'a>(
    args: &RunProgramArgs,
    place: &VolumeDir,
    volume: &'a VolumeFile,
) -> CommandResult<&'a NodeEntry> {
    let mut near = place.nodes_here(volume);
    if near.is_empty() {
        near = volume.nodes.iter().collect();
    }
    let wanted = match args.node.as_deref() {
        // Of several nodes on one machine, each rank has its own.
        Some("rank") => near.get(node_cmd::job_rank()? % near.len().max(1)),
        Some(node) => return place.find_node(volume, node),
        None => near.first(),
    };
    wanted.copied().ok_or_else(|| CommandFailure::new("the volume has no nodes"))
}

/// Returns the mounts of a node, and the path at which `up` mounts it.
fn default_paths(place: &VolumeDir, volume: &VolumeFile, node: &NodeEntry) -> Vec<PathBuf> {
    let mounted = MountRecord::list_volume(&place.dir);
    let mut paths: Vec<PathBuf> =
        mounted.into_iter().filter(|m| m.node == node.id).map(|m| m.path).collect();
    let planned = mount_cmd::planned_mounts(place, volume);
    let own = planned.into_iter().find(|(other, _)| other.id == node.id);
    paths.extend(own.map(|(_, path)| path));
    paths.sort();
    paths.dedup();
    paths
}

fn check_paths(paths: &[PathBuf]) -> CommandResult {
    match paths.iter().find(|path| path.parent().is_none()) {
        Some(path) => Err(CommandFailure::usage(format!(
            "the volume cannot take the place of {}",
            path.display()
        ))
        .try_this("name a directory: --at /mnt/tatami")),
        None => Ok(()),
    }
}

/// Finds the library beside this program, as it was installed or built.
fn find_library() -> CommandResult<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join("../lib/tatami"), folder.to_owned(), folder.join("deps")];
    places
        .iter()
        .map(|place| place.join(LIBRARY))
        .find_map(|path| path.canonicalize().ok())
        .ok_or_else(|| {
            CommandFailure::new(format!("{LIBRARY} is not installed"))
                .try_this(format!("make install; or set {LIBRARY_VARIABLE} to its path"))
        })
}

/// Returns the list for `LD_PRELOAD`: the libraries that were in it, then this one.
fn preload_list(library: &Path) -> OsString {
    let given = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let own = library.as_os_str();
    let parts = given.as_encoded_bytes().split(|b| matches!(b, b':' | b' '));
    let others: Vec<&[u8]> =
        parts.filter(|part| !part.is_empty() && !part.ends_with(LIBRARY.as_bytes())).collect();
    let mut all: Vec<u8> = others.join(&b':');
    if !all.is_empty() {
        all.push(b':');
    }
    all.extend_from_slice(own.as_encoded_bytes());
    std::os::unix::ffi::OsStringExt::from_vec(all)
}

/// Refuses programs into which no library is loaded: they would see the machine's files instead of
/// the volume's.
fn check_program(program: &OsStr) -> CommandResult {
    let Some(path) = find_program(program) else {
        // The attempt to run it gives the reason.
        return Ok(());
    };
    let shown = path.display();
    // The interpreter of a script is the program that runs.
    let path = match read_interpreter(&path) {
        Some(line) => match line.split_whitespace().next() {
            Some(interpreter) => PathBuf::from(interpreter),
            None => return Ok(()),
        },
        None => path.clone(),
    };
    if path.is_file() && !is_dynamic(&path) {
        return Err(CommandFailure::new(format!("{} is linked statically", path.display()))
            .because(format!("{shown} would not see the volume: nothing can be loaded into it"))
            .try_this("use a mount: tatami mount; or a program with shared libraries"));
    }
    if let Ok(meta) = path.metadata() {
        let mode = meta.permissions().mode();
        let gains = mode & 0o4000 != 0 && meta.uid() != geteuid().as_raw()
            || mode & 0o2000 != 0 && meta.gid() != getegid().as_raw();
        if gains {
            return Err(CommandFailure::new(format!(
                "{} runs with the rights of another user or group",
                path.display()
            ))
            .because("the dynamic linker loads no library of yours into such a program")
            .try_this("use a mount: tatami mount"));
        }
    }
    Ok(())
}

fn find_program(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_owned());
    }
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join(path))
        .find(|candidate| candidate.is_file())
}
