//! `tatami cp`: copies between the volume and this machine, or within the volume.

use crate::copy_trees::{
    CopySink, CopyTrees, FileFacts, append_name, copy_bytes, is_standard_stream, last_name,
    volume_identity, write_failure,
};
use crate::error::{CommandFailure, CommandResult, keep_first};
use crate::files::open_volume;
use crate::import::{self, ImportItem};
use crate::mounts;
use crate::term;
use crate::volume_dir::VolumeArgs;
use crate::volume_path::{AnyPath, read_umask};
use indicatif::ProgressBar;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use tatami_wire::{Errno, Ino, InodeKind};

/// `tatami cp`
#[derive(Debug, clap::Args)]
pub struct CpArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Copy directories with all their entries
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Keep permission bits and times
    #[arg(short, long)]
    preserve: bool,
    /// Print each copied path
    #[arg(short, long)]
    verbose: bool,
    /// With -r, leave out devices, named pipes and sockets without an error
    #[arg(long)]
    skip_special: bool,
    /// The sources, and last the destination. At least one is in the volume, with a colon in front;
    /// - is standard input or output
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<AnyPath>,
}

/// Copies files.
///
/// # Errors
/// A source that cannot be copied; the others are copied.
pub fn cp(args: &CpArgs) -> CommandResult {
    let (to, from) = args.paths.split_last().expect("clap asks for two");
    if args.paths.iter().all(|p| matches!(p, AnyPath::Local(_))) {
        return Err(CommandFailure::usage("none of the paths is in the volume")
            .try_this("put a colon in front: tatami cp FILE :/DIR/; within this machine, use cp"));
    }
    if args.recursive && args.paths.iter().any(is_standard_stream) {
        return Err(CommandFailure::usage("- is a stream of bytes, no directory")
            .try_this("leave -r out, or write ./- for a file of that name"));
    }
    let (place, tree) = open_volume(&args.at)?;
    let volume_dir = place.dir.metadata().ok().map(|m| (m.dev(), m.ino()));
    let mounts = mounts::list_devices(&place.dir);
    let sides = CopyTrees { tree: &tree, umask: read_umask(), mounts, volume_dir };
    let into = match sides.read_facts(to, true) {
        Ok(facts) => facts.kind == InodeKind::Dir,
        Err(Errno::ENOENT) => false,
        Err(e) => return Err(to.operation_failure("cannot copy to", e)),
    };
    let wants_dir = match to {
        AnyPath::Volume(path) => path.ends_with(b"/"),
        AnyPath::Local(path) => path.as_os_str().as_bytes().ends_with(b"/"),
    };
    if !into && (from.len() > 1 || (wants_dir && !args.recursive)) {
        let failure = CommandFailure::new(format!("{to} is not a directory"));
        let remedy = match to {
            AnyPath::Volume(_) => format!("tatami mkdir -p {to}"),
            AnyPath::Local(_) => format!("mkdir -p {to}"),
        };
        return Err(failure.try_this(remedy));
    }
    let mut result = Ok(());
    for from in from {
        let name = last_name(from);
        // As in cp(1): of `data/.` the entries are copied, not the directory.
        let to = match name.as_slice() {
            b"" | b"." | b".." => to.clone(),
            name if into => append_name(to, name),
            _ => to.clone(),
        };
        if let Err(failure) = copy_path(args, &sides, from, to) {
            keep_first(&mut result, failure);
        }
    }
    result
}

fn copy_path(args: &CpArgs, sides: &CopyTrees, from: &AnyPath, to: AnyPath) -> CommandResult {
    // A symbolic link on the command line is followed. Links found below a directory are copied as
    // links.
    let facts = sides
        .read_facts(from, !args.recursive)
        .map_err(|e| from.operation_failure("cannot copy", e))?;
    if facts.kind == InodeKind::Dir && !args.recursive {
        let failure = from.operation_failure("cannot copy", Errno::EISDIR);
        return Err(failure.try_this(format!("tatami cp -r {from} {to}")));
    }
    if facts.kind == InodeKind::Dir && sides.lies_within(&to, facts.identity) {
        let what = format!("cannot copy {from} into itself: {to} lies in it");
        return Err(CommandFailure::new(what).try_this("name a destination outside of it"));
    }
    if Some(facts.identity) == sides.volume_dir {
        let what =
            format!("cannot copy {from} into the volume: it is the directory of this volume");
        return Err(CommandFailure::new(what).try_this("tatami cp -r : DIR copies the files out"));
    }
    let mut result = Ok(());
    let bar = term::byte_bar(facts.size);
    let mut todo = vec![ImportItem { from: from.clone(), to, facts, made: None }];
    let mut dirs: Vec<(AnyPath, FileFacts)> = Vec::new();
    // The copy skips the directory that it makes itself: a copy into its own source would never
    // end.
    let mut made = None;
    while let Some(ImportItem { from, to, facts, made: known }) = todo.pop() {
        let tell = |from: &AnyPath, to: &AnyPath| {
            if args.verbose {
                bar.suspend(|| term::print_note(&format!("{from} -> {to}")));
            }
        };
        tell(&from, &to);
        let failed = |e| from.operation_failure("cannot copy", e);
        match facts.kind {
            InodeKind::Dir => {
                let names = sides.list_names(&from).map_err(failed)?;
                let own = match known {
                    Some(ino) => volume_identity(ino),
                    None => {
                        sides
                            .mkdir(&to, facts.mode)
                            .map_err(|e| to.operation_failure("cannot make", e))?;
                        sides.read_facts(&to, true).map_err(failed)?.identity
                    }
                };
                let top = *made.get_or_insert(own);
                let mut items = import::list_items(sides, &from, &to, &names)?;
                items.retain(|item| item.facts.identity != top);
                items.retain(|item| match sides.why_left_out(&facts, &item.facts) {
                    Some(why) => {
                        let note = format!("{}: left out, because {why}", item.from);
                        bar.suspend(|| term::print_note(&note));
                        false
                    }
                    None => true,
                });
                let files = items.iter().filter(|item| item.facts.kind == InodeKind::File);
                bar.inc_length(files.map(|item| item.facts.size).sum());
                if let (AnyPath::Local(_), AnyPath::Volume(_)) = (&from, &to) {
                    let files = items.iter().filter(|item| item.facts.kind != InodeKind::Dir);
                    files.for_each(|item| tell(&item.from, &item.to));
                    items = import::import_items(sides, Ino(own.1), items, args.preserve, &bar)?;
                }
                todo.extend(items.into_iter().rev());
                dirs.push((to, facts));
            }
            InodeKind::Symlink => {
                sides.copy_link(&from, &to).map_err(|e| to.operation_failure("cannot make", e))?
            }
            // A special file that the user names is read, as cp(1) does.
            kind if kind == InodeKind::File || !args.recursive => {
                if sides.read_facts(&to, true).is_ok_and(|t| t.identity == facts.identity) {
                    return Err(CommandFailure::new(format!("{from} and {to} are the same file")));
                }
                copy_file(sides, &from, &to, &facts, &bar)?;
                if args.preserve && kind == InodeKind::File && !is_standard_stream(&to) {
                    sides
                        .preserve_attrs(&to, &facts)
                        .map_err(|e| to.operation_failure("cannot set times of", e))?;
                }
            }
            _ if args.skip_special => {}
            _ => {
                let what = format!("{from} was not copied: it is a special file");
                let failure = CommandFailure::new(what);
                bar.suspend(|| {
                    keep_first(
                        &mut result,
                        failure.try_this("leave such files out: --skip-special"),
                    )
                });
            }
        }
    }
    // The innermost first: each copy inside a directory changes the times of that directory.
    for (to, facts) in dirs.iter().rev().filter(|_| args.preserve) {
        sides
            .preserve_attrs(to, facts)
            .map_err(|e| to.operation_failure("cannot set times of", e))?;
    }
    bar.finish_and_clear();
    result
}

fn copy_file(
    sides: &CopyTrees,
    from: &AnyPath,
    to: &AnyPath,
    facts: &FileFacts,
    bar: &ProgressBar,
) -> CommandResult {
    let mut source =
        sides.open_source(from).map_err(|e| from.operation_failure("cannot read", e))?;
    let mut sink =
        sides.create_sink(to, facts.mode).map_err(|e| to.operation_failure("cannot write", e))?;
    let paths = (from, to);
    match &mut sink {
        CopySink::Local(file) => {
            copy_bytes(paths, facts.size, &mut *source, &mut **file, bar)?;
            file.flush().map_err(|e| write_failure(to, e))?;
        }
        CopySink::Volume(file) => copy_bytes(paths, facts.size, &mut *source, file.as_mut(), bar)?,
    }
    if let CopySink::Volume(file) = sink {
        file.close().map_err(|e| to.operation_failure("cannot write", e))?;
    }
    Ok(())
}
