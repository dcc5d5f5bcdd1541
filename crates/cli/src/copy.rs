//! `tatami cp`: copies between the volume, this machine and other sites, or within one of them.

use crate::copy_job::{CopyJob, CopyRules, ExistingRule};
use crate::copy_stream::{is_standard_stream, last_name};
use crate::copy_trees::{CopyTrees, append_name};
use crate::error::{CommandFailure, CommandResult};
use crate::files::open_volume_at;
use crate::interrupt::catch_interrupts;
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use std::os::unix::ffi::OsStrExt;
use tatami_wire::{Errno, InodeKind};

/// `tatami cp`
#[derive(Debug, clap::Args)]
pub struct CpArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Node for new files, by number or name [default: the first that answers]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Copy directories with all their entries
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// As -r -p
    #[arg(short, long)]
    archive: bool,
    /// Keep permission bits and times
    #[arg(short, long)]
    preserve: bool,
    /// Leave a file out if its copy is not older and has the same size. After an interrupted copy,
    /// this copies the rest
    #[arg(short, long)]
    update: bool,
    /// As -u. Also, a file of 64 MiB or more from or to another site is continued where an earlier
    /// copy with this option ended: until it is complete, .NAME.tatami-part is kept beside it
    #[arg(long, conflicts_with = "no_clobber")]
    resume: bool,
    /// Leave a file out if it exists
    #[arg(short, long, conflicts_with = "update")]
    no_clobber: bool,
    /// The directory to put all PATHs into
    #[arg(short, long, value_name = "DIR", conflicts_with = "no_target_directory")]
    target_directory: Option<AnyPath>,
    /// The destination is no directory to copy into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Print each copied path
    #[arg(short, long)]
    verbose: bool,
    /// With -r, leave out devices, named pipes and sockets without an error
    #[arg(long)]
    skip_special: bool,
    /// The sources, and last the destination. At least one is in the volume, with a colon in front,
    /// or on another site, host:/path; - is standard input or output
    #[arg(required = true, num_args = 1.., value_name = "PATH")]
    paths: Vec<AnyPath>,
}

/// Copies files.
///
/// # Errors
/// A source that cannot be copied; the others are copied. Ctrl-C.
pub fn cp(args: &CpArgs) -> CommandResult {
    let (to, from) = split_paths(args.target_directory.as_ref(), &args.paths)?;
    let recursive = args.recursive || args.archive;
    if is_local(to) && from.iter().all(is_local) {
        let what = "none of the paths is in the volume or on another site";
        return Err(CommandFailure::usage(what)
            .try_this("put a colon in front: tatami cp FILE :/DIR/; within this machine, use cp"));
    }
    if recursive && (is_standard_stream(to) || from.iter().any(is_standard_stream)) {
        return Err(CommandFailure::usage("- is a stream of bytes, no directory")
            .try_this("leave -r out, or write ./- for a file of that name"));
    }
    let all = || std::iter::once(to).chain(from);
    let volume = match all().any(|path| matches!(path, AnyPath::Volume(_))) {
        true => Some(open_volume_at(&args.at, args.node.as_deref())?),
        false => None,
    };
    let sides = match &volume {
        Some((place, tree)) => CopyTrees::new(place, tree),
        None => CopyTrees::without_volume(),
    };
    let (as_file, needs_dir) = (args.no_target_directory, args.target_directory.is_some());
    let targets = Targets::find(&sides, from.len(), to, as_file, needs_dir, recursive)?;
    let rules = CopyRules {
        recursive,
        preserve: args.preserve || args.archive,
        verbose: args.verbose,
        skip_special: args.skip_special,
        existing: match (args.update || args.resume, args.no_clobber) {
            (true, _) => ExistingRule::Newer,
            (_, true) => ExistingRule::Keep,
            _ => ExistingRule::Replace,
        },
        delete: false,
        dry_run: false,
        resume: args.resume,
    };
    catch_interrupts();
    let mut job = CopyJob::new(&sides, rules);
    let mut copied = Ok(true);
    for from in from {
        copied = job.copy_source(from, &targets.path_for(from));
        if copied.is_err() {
            break;
        }
    }
    if let Err(failure) = copied.and_then(|_| job.complete_copies()) {
        let go_on = match args.resume {
            true => "the same command copies the rest",
            false => "the same command with --update copies the rest",
        };
        return Err(job.totals.explain_interrupt(failure, go_on));
    }
    job.finish()
}

/// Returns the destination and the sources: `-t` names the destination first, else it comes last.
///
/// # Errors
/// One path alone.
pub fn split_paths<'a>(
    target: Option<&'a AnyPath>,
    paths: &'a [AnyPath],
) -> CommandResult<(&'a AnyPath, &'a [AnyPath])> {
    match (target, paths) {
        (Some(to), from) => Ok((to, from)),
        (None, [from @ .., to]) if !from.is_empty() => Ok((to, from)),
        _ => Err(CommandFailure::usage("a source and a destination are needed")
            .try_this("put the destination last, or use -t DIR")),
    }
}

/// Whether a path is on this machine.
pub fn is_local(path: &AnyPath) -> bool {
    matches!(path, AnyPath::Local(_))
}

/// Where the sources of `cp` and `mv` go.
pub struct Targets<'a> {
    to: &'a AnyPath,
    /// The destination is a directory: each source gets its own name in it.
    into: bool,
}

impl<'a> Targets<'a> {
    /// Looks at the destination of `sources` paths. `as_file`: it is never copied into.
    /// `needs_dir`: it must be a directory that exists.
    ///
    /// # Errors
    /// The destination must be a directory and is none.
    pub fn find(
        sides: &CopyTrees<'_>,
        sources: usize,
        to: &'a AnyPath,
        as_file: bool,
        needs_dir: bool,
        may_be_new: bool,
    ) -> CommandResult<Targets<'a>> {
        let into = match sides.read_facts(to, true) {
            Ok(facts) => facts.kind == InodeKind::Dir && !as_file,
            Err(Errno::ENOENT) => false,
            Err(e) => return Err(to.operation_failure("cannot copy to", e)),
        };
        let wants_dir = match to {
            AnyPath::Volume(path) => path.ends_with(b"/"),
            AnyPath::Local(path) => path.as_os_str().as_bytes().ends_with(b"/"),
            AnyPath::Site(file) => file.path.as_os_str().as_bytes().ends_with(b"/"),
        };
        if as_file && sources > 1 {
            return Err(CommandFailure::usage(format!(
                "{sources} sources need a directory, and -T makes {to} a file"
            )));
        }
        if !into && (needs_dir || sources > 1 || (wants_dir && !may_be_new)) {
            let failure = CommandFailure::new(format!("{to} is not a directory"));
            let remedy = match to {
                AnyPath::Volume(_) | AnyPath::Site(_) => format!("tatami mkdir -p {to}"),
                AnyPath::Local(_) => format!("mkdir -p {to}"),
            };
            return Err(failure.try_this(remedy));
        }
        Ok(Targets { to, into })
    }

    /// Returns the destination of one source.
    pub fn path_for(&self, from: &AnyPath) -> AnyPath {
        // As in cp(1): of `data/.` the entries are copied, not the directory.
        match last_name(from).as_slice() {
            b"" | b"." | b".." => self.to.clone(),
            name if self.into => append_name(self.to, name),
            _ => self.to.clone(),
        }
    }
}
