//! `tatami cp -r` into the volume: creates and closes the entries of a directory in batches.

use crate::copy_trees::{CopyTrees, FileFacts, append_name, copy_bytes};
use crate::error::CommandResult;
use crate::volume_path::AnyPath;
use indicatif::ProgressBar;
use std::os::unix::ffi::OsStringExt;
use tatami_client::tree::FileHandle;
use tatami_client::{CreateItem, Created};
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::InodeTemplate;
use tatami_wire::{Access, Errno, Ino, InodeKind};

/// Entries created by one request. This is also the number of files open at a time.
const ENTRIES_PER_REQUEST: usize = 256;

/// A file or directory to copy.
pub struct ImportItem {
    pub from: AnyPath,
    pub to: AnyPath,
    pub facts: FileFacts,
    /// The inode number of a directory that this copy has already made.
    pub made: Option<Ino>,
}

/// Copies the entries of a directory of this machine to the directory `dir` of the volume. Returns
/// the items that the caller must handle one by one: directories, which are made unless they
/// existed, and entries that could not be made.
///
/// # Errors
/// The first file that cannot be copied.
pub fn import_items(
    sides: &CopyTrees<'_>,
    dir: Ino,
    items: Vec<ImportItem>,
    preserve: bool,
    bar: &ProgressBar,
) -> CommandResult<Vec<ImportItem>> {
    let mut rest = Vec::new();
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let some: Vec<_> = items.by_ref().take(ENTRIES_PER_REQUEST).collect();
        let (files, others): (Vec<_>, Vec<_>) =
            some.into_iter().partition(|item| item.facts.kind == InodeKind::File);
        rest.extend(make_dirs_and_links(sides, dir, others));
        rest.extend(copy_files(sides, dir, files, preserve, bar)?);
    }
    Ok(rest)
}

/// Makes directories and symbolic links.
fn make_dirs_and_links(sides: &CopyTrees<'_>, dir: Ino, items: Vec<ImportItem>) -> Vec<ImportItem> {
    let (mut new, mut which, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        let node = match (item.facts.kind, &item.from) {
            (InodeKind::Dir, _) => Some(InodeTemplate::Dir),
            (InodeKind::Symlink, AnyPath::Local(path)) => std::fs::read_link(path)
                .ok()
                .map(|target| InodeTemplate::Symlink(target.into_os_string().into_vec().into())),
            _ => None,
        };
        match node {
            Some(node) => {
                // The copy must be able to fill a directory, regardless of the mode of the
                // original.
                let mode = match item.facts.kind {
                    InodeKind::Dir => (item.facts.mode & 0o777) | 0o700,
                    _ => 0o777,
                };
                new.push(CreateItem { name: entry_name(&item.to), node, mode });
                which.push(item);
            }
            None => rest.push(item),
        }
    }
    for (mut item, made) in which.into_iter().zip(create_entries(sides, dir, new, None)) {
        match (made, item.facts.kind) {
            (Ok(made), InodeKind::Dir) => {
                item.made = Some(made.attr.ino);
                rest.push(item);
            }
            (Ok(_), _) => {}
            // The caller retries the item alone, which gives the right error.
            (Err(_), _) => rest.push(item),
        }
    }
    rest
}

fn create_entries(
    sides: &CopyTrees<'_>,
    dir: Ino,
    new: Vec<CreateItem>,
    open: Option<Access>,
) -> Vec<Result<Created, Errno>> {
    let (client, cred) = (sides.tree.client(), sides.tree.cred());
    client.create_many(cred, dir, new, sides.umask, open.is_none(), open)
}

fn entry_name(path: &AnyPath) -> Vec<u8> {
    match path {
        AnyPath::Volume(path) => crate::volume_path::last_component(path).to_vec(),
        AnyPath::Local(_) => Vec::new(),
    }
}

fn copy_files(
    sides: &CopyTrees<'_>,
    dir: Ino,
    items: Vec<ImportItem>,
    preserve: bool,
    bar: &ProgressBar,
) -> CommandResult<Vec<ImportItem>> {
    let layout = sides.tree.client().new_layout();
    let (mut rest, mut sources, mut which) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        match sides.open_source(&item.from) {
            Ok(source) => {
                sources.push(source);
                which.push(item);
            }
            Err(_) => rest.push(item),
        }
    }
    let new = which.iter().map(|item| CreateItem {
        name: entry_name(&item.to),
        node: InodeTemplate::File(layout),
        mode: item.facts.mode & 0o777,
    });
    let made = create_entries(sides, dir, new.collect(), Some(Access::WRITE));
    let (mut written, mut result) = (Vec::new(), Ok(()));
    for ((item, mut source), made) in which.into_iter().zip(sources).zip(made) {
        // An existing symbolic link leads to the file to write, and an existing directory is an
        // error. The caller handles both one by one.
        let Some(made) = made.ok().filter(|made| made.attr.kind == InodeKind::File) else {
            rest.push(item);
            continue;
        };
        // After a failed copy, the files that were created still have to be closed.
        match sides.tree.open_created(made) {
            Ok(mut file) => {
                if result.is_ok() {
                    let paths = (&item.from, &item.to);
                    result = copy_bytes(paths, item.facts.size, &mut *source, &mut file, bar);
                }
                written.push((item, file));
            }
            Err(e) => result = result.and(Err(item.to.operation_failure("cannot write", e))),
        }
    }
    result.and(close_files(sides, written, preserve)).map(|()| rest)
}

/// Commits the sizes of complete files; with `preserve` also their modes and times.
fn close_files(
    sides: &CopyTrees<'_>,
    written: Vec<(ImportItem, FileHandle)>,
    preserve: bool,
) -> CommandResult {
    let mut result: CommandResult = Ok(());
    let (mut items, mut commits) = (Vec::new(), Vec::new());
    for (item, file) in written {
        let (flushed, commit) = file.close_deferred();
        result = result.and(flushed.map_err(|e| item.to.operation_failure("cannot write", e)));
        commits.push(commit);
        items.push(item);
    }
    let sets = items.iter().zip(&commits).map(|(item, commit)| BatchOp::SetAttr {
        ino: commit.target_inode(),
        set: item.facts.preserved_attrs(),
    });
    let sets: Vec<_> = if preserve { sets.collect() } else { Vec::new() };
    let (client, cred) = (sides.tree.client(), sides.tree.cred());
    for (what, operations) in [("cannot write", commits), ("cannot set times of", sets)] {
        for (item, done) in items.iter().zip(client.run_batch(cred, operations)) {
            result = result.and(done.map(drop).map_err(|e| item.to.operation_failure(what, e)));
        }
    }
    result
}

/// Returns the items to copy from a directory of this machine: those of `names` that still exist.
///
/// # Errors
/// The attributes of a name cannot be read.
pub fn list_items(
    sides: &CopyTrees<'_>,
    from: &AnyPath,
    to: &AnyPath,
    names: &[Vec<u8>],
) -> CommandResult<Vec<ImportItem>> {
    let mut items = Vec::with_capacity(names.len());
    for name in names {
        let from = append_name(from, name);
        match sides.read_facts(&from, false) {
            Ok(facts) => {
                items.push(ImportItem { from, to: append_name(to, name), facts, made: None })
            }
            Err(Errno::ENOENT) => {} // removed meanwhile
            Err(e) => return Err(from.operation_failure("cannot copy", e)),
        }
    }
    Ok(items)
}
