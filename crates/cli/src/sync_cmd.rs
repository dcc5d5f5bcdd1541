//! `tatami sync`: makes a copy equal to its original, and copies only what differs.

use crate::copy_job::{CopyJob, CopyRules, ExistingRule};
use crate::copy_stream::is_standard_stream;
use crate::copy_trees::CopyTrees;
use crate::error::{CommandFailure, CommandResult};
use crate::files::open_volume_at;
use crate::interrupt::catch_interrupts;
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;

/// `tatami sync`
#[derive(Debug, clap::Args)]
pub struct SyncArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Node for new files, by number or name [default: the first that answers]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Compare the bytes of files of equal size, instead of their times
    #[arg(short, long)]
    checksum: bool,
    /// Remove what the destination has and the source has not
    #[arg(long)]
    delete: bool,
    /// Print what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print each copied path, and a summary
    #[arg(short, long)]
    verbose: bool,
    /// Leave out devices, named pipes and sockets without an error
    #[arg(long)]
    skip_special: bool,
    /// A file or directory, in the volume with a colon in front
    source: AnyPath,
    /// Its copy: at least one of both is in the volume
    destination: AnyPath,
}

/// Copies what differs.
///
/// # Errors
/// A file that cannot be copied; the others are copied. Ctrl-C.
pub fn run(args: &SyncArgs) -> CommandResult {
    let (from, to) = (&args.source, &args.destination);
    if [from, to].iter().all(|p| matches!(p, AnyPath::Local(_))) {
        return Err(CommandFailure::usage("none of the paths is in the volume").try_this(
            "put a colon in front: tatami sync DIR :/DIR; within this machine, use rsync",
        ));
    }
    for site in [from, to].into_iter().filter(|path| path.is_site()) {
        site.require_volume()?;
    }
    if [from, to].into_iter().any(is_standard_stream) {
        return Err(CommandFailure::usage("- is a stream of bytes, and has no size or time")
            .try_this("tatami cp - :/FILE"));
    }
    let (place, tree) = open_volume_at(&args.at, args.node.as_deref())?;
    let sides = CopyTrees::new(&place, &tree);
    let rules = CopyRules {
        recursive: true,
        preserve: true,
        verbose: args.verbose,
        skip_special: args.skip_special,
        existing: if args.checksum { ExistingRule::Bytes } else { ExistingRule::SizeOrTime },
        delete: args.delete,
        dry_run: args.dry_run,
        resume: false,
    };
    catch_interrupts();
    let mut job = CopyJob::new(&sides, rules);
    if let Err(failure) = job.copy_source(from, to) {
        return Err(job.totals.explain_interrupt(failure, "the same command copies the rest"));
    }
    let (totals, would) = (job.totals, if args.dry_run { "would be: " } else { "" });
    job.print_step(|| format!("{would}{}", totals.describe()))?;
    job.finish()
}
