//! `tatami untar`: unpacks a tar archive into the volume, without a mount.

use crate::archive_input::open_archive;
use crate::error::{CommandFailure, CommandResult, ExitStatus};
use crate::files::open_volume_at;
use crate::interrupt::catch_interrupts;
use crate::term::TermOutput;
use crate::untar_job::{UntarJob, UntarRules};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::{AnyPath, read_umask};
use rustix::process::geteuid;
use tatami_client::tree::VolumeTree;
use tatami_wire::{Errno, Ino, InodeKind};

/// `tatami untar`
#[derive(Debug, clap::Args)]
pub struct UntarArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Node for new files, by number or name [default: the first that answers]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// As root, do not keep the owners: all members are yours
    #[arg(long)]
    no_same_owner: bool,
    /// Print the name of each member
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print what was unpacked as JSON
    #[arg(long)]
    json: bool,
    /// The archive: a file of this machine or of the volume; - is standard input
    archive: AnyPath,
    /// The directory to unpack into, with a colon in front. It is made if it does not exist
    directory: AnyPath,
}

/// Unpacks an archive.
///
/// # Errors
/// A damaged archive, a member that leads out of the directory, and any member that cannot be
/// unpacked. Ctrl-C.
pub fn run(args: &UntarArgs) -> CommandResult {
    let into = args.directory.require_volume()?;
    let (_place, tree) = open_volume_at(&args.at, args.node.as_deref())?;
    let (mut archive, length) = open_archive(&args.archive, &tree)?;
    let umask = read_umask();
    let root = open_target(&tree, &args.directory, into, umask)?;
    catch_interrupts();
    let rules = UntarRules {
        keeps_owner: geteuid().is_root() && !args.no_same_owner,
        verbose: args.verbose,
    };
    let mut job = UntarJob::new(&tree, root, umask, &args.archive, length, rules);
    let unpacked = job.unpack_all(&mut archive);
    let totals = job.totals;
    drop(job);
    if args.json {
        TermOutput::new().write_json(&totals.to_json())?;
    }
    unpacked.map_err(|failure| match failure.exit {
        ExitStatus::Quiet => failure,
        ExitStatus::Interrupted => CommandFailure {
            what: format!("interrupted: {}; no file is incomplete", totals.describe()),
            ..failure
        }
        .try_this("the same command unpacks the archive from its beginning"),
        _ => CommandFailure { what: format!("{}; {}", failure.what, totals.describe()), ..failure },
    })
}

/// Returns the directory to unpack into.
fn open_target(tree: &VolumeTree, path: &AnyPath, dir: &[u8], umask: u16) -> CommandResult<Ino> {
    let found = match tree.stat(dir, true) {
        Err(Errno::ENOENT) => tree.mkdir(dir, 0o777, umask),
        found => found,
    };
    match found {
        Ok(attr) if attr.kind == InodeKind::Dir => Ok(attr.ino),
        Ok(_) => Err(path.operation_failure("cannot unpack into", Errno::ENOTDIR)),
        Err(e) => Err(path.operation_failure("cannot unpack into", e)),
    }
}
