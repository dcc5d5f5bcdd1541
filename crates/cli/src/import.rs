//! `tatami cp -r` into the volume: creates and closes the entries of a directory in batches.

use crate::copy::{Facts, Sides, below, fill};
use crate::error::Outcome;
use crate::volume_path::AnyPath;
use indicatif::ProgressBar;
use std::os::unix::ffi::OsStringExt;
use tatami_client::tree::FileHandle;
use tatami_client::{Created, New};
use tatami_wire::act::Act;
use tatami_wire::meta::NewNode;
use tatami_wire::{Access, Errno, Ino, Kind, SetAttr};

/// Entries created by one request. This is also the number of files open at a time.
const AT_A_TIME: usize = 256;

/// A file or directory to copy.
pub struct Item {
    pub from: AnyPath,
    pub to: AnyPath,
    pub facts: Facts,
    /// The inode number of a directory that this copy has already made.
    pub made: Option<Ino>,
}

/// Copies the entries of a directory of this machine to the directory `dir` of the volume. Returns
/// the items that the caller must handle one by one: directories, which are made unless they
/// existed, and entries that could not be made.
///
/// # Errors
/// The first file that cannot be copied.
pub fn import(
    sides: &Sides<'_>,
    dir: Ino,
    items: Vec<Item>,
    preserve: bool,
    bar: &ProgressBar,
) -> Outcome<Vec<Item>> {
    let mut rest = Vec::new();
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let some: Vec<_> = items.by_ref().take(AT_A_TIME).collect();
        let (files, others): (Vec<_>, Vec<_>) =
            some.into_iter().partition(|item| item.facts.kind == Kind::File);
        rest.extend(make_others(sides, dir, others));
        rest.extend(copy_files(sides, dir, files, preserve, bar)?);
    }
    Ok(rest)
}

/// Makes directories and symbolic links.
fn make_others(sides: &Sides<'_>, dir: Ino, items: Vec<Item>) -> Vec<Item> {
    let (mut new, mut which, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        let node = match (item.facts.kind, &item.from) {
            (Kind::Dir, _) => Some(NewNode::Dir),
            (Kind::Symlink, AnyPath::Local(path)) => std::fs::read_link(path)
                .ok()
                .map(|target| NewNode::Symlink(target.into_os_string().into_vec().into())),
            _ => None,
        };
        match node {
            Some(node) => {
                // The copy must be able to fill a directory, regardless of the mode of the
                // original.
                let mode = match item.facts.kind {
                    Kind::Dir => (item.facts.mode & 0o777) | 0o700,
                    _ => 0o777,
                };
                new.push(New { name: name_of(&item.to), node, mode });
                which.push(item);
            }
            None => rest.push(item),
        }
    }
    for (mut item, made) in which.into_iter().zip(create(sides, dir, new, None)) {
        match (made, item.facts.kind) {
            (Ok(made), Kind::Dir) => {
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

fn create(
    sides: &Sides<'_>,
    dir: Ino,
    new: Vec<New>,
    open: Option<Access>,
) -> Vec<Result<Created, Errno>> {
    let (client, cred) = (sides.tree.client(), sides.tree.cred());
    client.create_many(cred, dir, new, sides.umask, open.is_none(), open)
}

fn name_of(path: &AnyPath) -> Vec<u8> {
    match path {
        AnyPath::Volume(path) => crate::volume_path::last(path).to_vec(),
        AnyPath::Local(_) => Vec::new(),
    }
}

fn copy_files(
    sides: &Sides<'_>,
    dir: Ino,
    items: Vec<Item>,
    preserve: bool,
    bar: &ProgressBar,
) -> Outcome<Vec<Item>> {
    let layout = sides.tree.client().new_layout();
    let (mut rest, mut sources, mut which) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        match sides.read(&item.from) {
            Ok(source) => {
                sources.push(source);
                which.push(item);
            }
            Err(_) => rest.push(item),
        }
    }
    let new = which.iter().map(|item| New {
        name: name_of(&item.to),
        node: NewNode::File(layout),
        mode: item.facts.mode & 0o777,
    });
    let made = create(sides, dir, new.collect(), Some(Access::WRITE));
    let (mut written, mut result) = (Vec::new(), Ok(()));
    for ((item, mut source), made) in which.into_iter().zip(sources).zip(made) {
        // An existing symbolic link leads to the file to write, and an existing directory is an
        // error. The caller handles both one by one.
        let Some(made) = made.ok().filter(|made| made.attr.kind == Kind::File) else {
            rest.push(item);
            continue;
        };
        // After a failed copy, the files that were created still have to be closed.
        match sides.tree.opened(made) {
            Ok(mut file) => {
                if result.is_ok() {
                    let paths = (&item.from, &item.to);
                    result = fill(paths, item.facts.size, &mut *source, &mut file, bar);
                }
                written.push((item, file));
            }
            Err(e) => result = result.and(Err(item.to.failed("cannot write", e))),
        }
    }
    result.and(close(sides, written, preserve)).map(|()| rest)
}

/// Commits the sizes of complete files; with `preserve` also their modes and times.
fn close(sides: &Sides<'_>, written: Vec<(Item, FileHandle)>, preserve: bool) -> Outcome {
    let mut result: Outcome = Ok(());
    let (mut items, mut commits) = (Vec::new(), Vec::new());
    for (item, file) in written {
        let (flushed, commit) = file.close_later();
        result = result.and(flushed.map_err(|e| item.to.failed("cannot write", e)));
        commits.push(commit);
        items.push(item);
    }
    let sets = items
        .iter()
        .zip(&commits)
        .map(|(item, commit)| Act::SetAttr { ino: commit.target(), set: item.facts.to_keep() });
    let sets: Vec<_> = if preserve { sets.collect() } else { Vec::new() };
    let (client, cred) = (sides.tree.client(), sides.tree.cred());
    for (what, acts) in [("cannot write", commits), ("cannot set times of", sets)] {
        for (item, done) in items.iter().zip(client.act(cred, acts)) {
            result = result.and(done.map(drop).map_err(|e| item.to.failed(what, e)));
        }
    }
    result
}

impl Facts {
    /// Returns the attributes that `--preserve` copies.
    pub fn to_keep(self) -> SetAttr {
        SetAttr {
            mode: Some(self.mode),
            mtime: Some(tatami_wire::SetTime::At(self.mtime)),
            ..SetAttr::default()
        }
    }
}

/// Returns the items to copy from a directory of this machine: those of `names` that still exist.
///
/// # Errors
/// The attributes of a name cannot be read.
pub fn items(
    sides: &Sides<'_>,
    from: &AnyPath,
    to: &AnyPath,
    names: &[Vec<u8>],
) -> Outcome<Vec<Item>> {
    let mut items = Vec::with_capacity(names.len());
    for name in names {
        let from = below(from, name);
        match sides.facts(&from, false) {
            Ok(facts) => items.push(Item { from, to: below(to, name), facts, made: None }),
            Err(Errno::ENOENT) => {} // removed meanwhile
            Err(e) => return Err(from.failed("cannot copy", e)),
        }
    }
    Ok(items)
}
