//! `tatami mv`: renames within the volume; moves between the volume and this machine.

use crate::copy::{self, Targets, is_local};
use crate::copy_job::{CopyJob, CopyRules, ExistingRule};
use crate::copy_stream::is_standard_stream;
use crate::copy_trees::CopyTrees;
use crate::error::{CommandFailure, CommandResult, keep_first};
use crate::files::open_volume_at;
use crate::interrupt::catch_interrupts;
use crate::term::TermOutput;
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use std::io::Write;
use tatami_wire::meta::RenameMode;
use tatami_wire::{Errno, InodeKind};

/// `tatami mv`
#[derive(Debug, clap::Args)]
pub struct MvArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Node for new files, by number or name [default: the first that answers]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Leave a path alone if its destination exists
    #[arg(short, long)]
    no_clobber: bool,
    /// The directory to put all PATHs into
    #[arg(short, long, value_name = "DIR", conflicts_with = "no_target_directory")]
    target_directory: Option<AnyPath>,
    /// The destination is no directory to move into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Print each moved path
    #[arg(short, long)]
    verbose: bool,
    /// Replace existing files, also without permission to write them: always on
    #[arg(short, long, hide = true)]
    force: bool,
    /// The sources, and last the destination. At least one is in the volume, with a colon in front
    #[arg(required = true, num_args = 1.., value_name = "PATH")]
    paths: Vec<AnyPath>,
}

/// Moves files and directories.
///
/// # Errors
/// A source that cannot be moved; the others are moved. Ctrl-C.
pub fn run(args: &MvArgs) -> CommandResult {
    let (to, from) = copy::split_paths(args.target_directory.as_ref(), &args.paths)?;
    if is_local(to) && from.iter().all(is_local) {
        return Err(CommandFailure::usage("none of the paths is in the volume").try_this(
            "put a colon in front: tatami mv :/FILE :/DIR/; within this machine, use mv",
        ));
    }
    for site in std::iter::once(to).chain(from).filter(|path| path.is_site()) {
        site.require_volume()?;
    }
    if is_standard_stream(to) || from.iter().any(is_standard_stream) {
        return Err(CommandFailure::usage("- is a stream of bytes, and cannot be moved")
            .try_this("tatami cp - :/FILE"));
    }
    let (place, tree) = open_volume_at(&args.at, args.node.as_deref())?;
    let sides = CopyTrees::new(&place, &tree);
    let (as_file, needs_dir) = (args.no_target_directory, args.target_directory.is_some());
    let targets = Targets::find(&sides, from.len(), to, as_file, needs_dir, true)?;
    catch_interrupts();
    let mut out = TermOutput::new();
    let mut result = Ok(());
    for from in from {
        let to = targets.path_for(from);
        let moved = match (from, &to) {
            (AnyPath::Volume(old), AnyPath::Volume(new)) => {
                let mode =
                    if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
                match tree.rename_as(old, new, mode) {
                    Err(Errno::EEXIST) if args.no_clobber => continue,
                    renamed => renamed.map_err(|e| from.operation_failure("cannot move", e)),
                }
            }
            _ => move_across(args, &sides, from, &to),
        };
        match moved {
            Ok(()) if args.verbose => writeln!(out, "{from} -> {to}")?,
            Ok(()) => {}
            Err(failure) => keep_first(&mut result, failure),
        }
    }
    out.flush()?;
    result
}

/// Copies to the other side, and then removes the original: only if all of it was copied.
fn move_across(
    args: &MvArgs,
    sides: &CopyTrees<'_>,
    from: &AnyPath,
    to: &AnyPath,
) -> CommandResult {
    let there = sides.read_facts(to, false).ok();
    if there.is_some() && args.no_clobber {
        return Ok(());
    }
    if there.is_some_and(|there| there.kind == InodeKind::Dir) {
        let what = format!("cannot move {from} to {to}: there is a directory of that name");
        return Err(
            CommandFailure::new(what).try_this("tatami sync merges both; then remove the original")
        );
    }
    let rules = CopyRules {
        recursive: true,
        preserve: true,
        verbose: false,
        skip_special: false,
        existing: ExistingRule::Replace,
        delete: false,
        dry_run: false,
        resume: false,
    };
    let mut job = CopyJob::new(sides, rules);
    let go_on = "the original is complete; tatami sync copies the rest";
    let copied = match job.copy_source(from, to) {
        Ok(copied) => copied,
        Err(failure) => return Err(job.totals.explain_interrupt(failure, go_on)),
    };
    job.finish()?;
    match copied {
        true => sides.remove_path(from).map_err(|e| from.operation_failure("cannot remove", e)),
        false => Ok(()),
    }
}
