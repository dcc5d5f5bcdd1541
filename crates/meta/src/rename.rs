//! rename(2): the operation that touches most inodes at once.
//!
//! The order of the checks is that of Linux' `do_renameat2` and `vfs_rename`, so that a call with
//! several mistakes gets the same error number as on a local disk.

use crate::entry::bury;
use crate::error::Outcome;
use crate::inode::Inode;
use crate::permission::{self, Name, want};
use crate::record::Damaged;
use crate::store::Store;
use crate::txn::{Part, Txn};
use std::sync::Arc;
use tatami_wire::meta::{MetaReply, RenameMode};
use tatami_wire::{Errno, Ino};

/// Deepest directory that can be checked for cycles. A path as long as [`tatami_wire::PATH_MAX`]
/// reaches half as deep as its bytes. Relative renames could build deeper trees, and a broken chain
/// of parents would have no end.
const DEPTH_MAX: usize = 1 << 20;

/// The position of an entry: a directory and a name.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
}

/// The source or the target of a rename, looked up.
struct Side<'a> {
    dir: Ino,
    /// The partition of it that has the name.
    part: Ino,
    name: &'a [u8],
    /// The partition's record.
    parent: Arc<Inode>,
    /// The inode that the entry leads to, if there is one.
    child: Option<(Ino, Arc<Inode>)>,
}

fn find<'a, S: Store>(
    txn: &mut Txn<'_, S>,
    place: Place<'a>,
    (part, parent): Part,
) -> Outcome<Side<'a>> {
    let name = permission::name(place.name)?;
    permission::check_dir(&parent)?;
    permission::check(&parent, txn.cred, want::EXEC)?;
    let name = match name {
        Name::Plain(name) => name,
        Name::Dot | Name::DotDot => return Err(Errno::EBUSY.into()),
    };
    let child = match txn.entry(part, name)? {
        Some(entry) => {
            let inode = txn.find(entry.ino)?.ok_or(Damaged("entry without inode"))?;
            Some((entry.ino, inode))
        }
        None => None,
    };
    Ok(Side { dir: txn.whole(part, &parent), part, name, parent, child })
}

pub(crate) fn rename<S: Store>(
    txn: &mut Txn<'_, S>,
    from: Place<'_>,
    to: Place<'_>,
    mode: RenameMode,
    keep: bool,
) -> Outcome<MetaReply> {
    // One round of messages for all records that are surely needed, instead of one round for each.
    txn.foresee(from.dir, from.name, to.dir, to.name)?;
    permission::name(from.name)?;
    let part = txn.inode(from.dir)?;
    txn.in_place(from.dir, &part, from.name)?;
    let from = find(txn, from, (from.dir, part))?;
    permission::name(to.name)?;
    let part = txn.part_of(to.dir, to.name)?;
    let to = find(txn, to, part)?;
    let Some((source, moved)) = from.child.clone() else { return Err(Errno::ENOENT.into()) };
    match (mode, &to.child) {
        (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
        (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
        _ => {}
    }
    // Before the test for one inode, as in Linux.
    check_ancestors(txn, &from, &to, source, &moved, mode)?;
    if to.child.as_ref().is_some_and(|(target, _)| *target == source) {
        // Two names of one inode: POSIX requires that nothing happens.
        return Ok(MetaReply::Renamed { ino: None, last: false, moved: Vec::new() });
    }
    check_permissions(txn, &from, &to, &moved, mode)?;
    match (&to.child, mode) {
        (Some((target, _)), RenameMode::Exchange) => {
            // Both are detached before either is attached: the link counts never exceed their
            // bounds in between.
            txn.detach(from.part, from.name, source)?;
            txn.detach(to.part, to.name, *target)?;
            txn.attach(to.part, to.name, source)?;
            txn.attach(from.part, from.name, *target)?;
            Ok(MetaReply::Renamed { ino: None, last: false, moved: vec![source, *target] })
        }
        (None, _) => {
            txn.detach(from.part, from.name, source)?;
            txn.attach(to.part, to.name, source)?;
            Ok(MetaReply::Renamed { ino: None, last: false, moved: vec![source] })
        }
        (Some((target, replaced)), _) => {
            if replaced.is_dir() && !txn.is_empty(*target, replaced)? {
                return Err(Errno::ENOTEMPTY.into());
            }
            txn.detach(to.part, to.name, *target)?;
            txn.detach(from.part, from.name, source)?;
            txn.attach(to.part, to.name, source)?;
            let last = if replaced.is_dir() {
                bury(txn, *target, keep)?;
                true
            } else {
                txn.settle(*target, keep)?
            };
            Ok(MetaReply::Renamed { ino: Some(*target), last, moved: vec![source] })
        }
    }
}

/// Checks that no directory becomes its own descendant.
fn check_ancestors<S: Store>(
    txn: &mut Txn<'_, S>,
    from: &Side<'_>,
    to: &Side<'_>,
    source: Ino,
    moved: &Inode,
    mode: RenameMode,
) -> Outcome<()> {
    // Within one directory no ancestor changes.
    if from.dir == to.dir {
        return Ok(());
    }
    if moved.is_dir() && is_within(txn, to.dir, source)? {
        return Err(Errno::EINVAL.into());
    }
    if let Some((target, replaced)) = &to.child
        && replaced.is_dir()
        && is_within(txn, from.dir, *target)?
    {
        let exchange = mode == RenameMode::Exchange;
        return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
    }
    Ok(())
}

/// Returns whether `dir` is `ancestor` or lies below it.
fn is_within<S: Store>(txn: &mut Txn<'_, S>, mut dir: Ino, ancestor: Ino) -> Outcome<bool> {
    for _ in 0..DEPTH_MAX {
        if dir == ancestor {
            return Ok(true);
        }
        if dir == Ino::ROOT {
            return Ok(false);
        }
        // A directory that was removed but is kept open still knows its parent, which may be gone;
        // nothing can be made in it, so no cycle can form.
        match txn.above(dir)? {
            Some(parent) => dir = parent,
            None => return Ok(false),
        }
    }
    Err(Errno::ELOOP.into())
}

fn check_permissions<S: Store>(
    txn: &mut Txn<'_, S>,
    from: &Side<'_>,
    to: &Side<'_>,
    moved: &Inode,
    mode: RenameMode,
) -> Outcome<()> {
    let cred = txn.cred;
    let exchange = mode == RenameMode::Exchange;
    permission::check_remove(&from.parent, moved, cred)?;
    match &to.child {
        None => permission::check_insert(&to.parent, cred)?,
        Some((_, replaced)) => {
            permission::check_remove(&to.parent, replaced, cred)?;
            match (moved.is_dir(), replaced.is_dir()) {
                (true, false) if !exchange => return Err(Errno::ENOTDIR.into()),
                (false, true) if !exchange => return Err(Errno::EISDIR.into()),
                _ => {}
            }
        }
    }
    if from.dir != to.dir {
        // A directory that changes its parent has its `..` rewritten.
        if moved.is_dir() {
            permission::check(moved, cred, want::WRITE)?;
        }
        if let Some((_, replaced)) = &to.child
            && exchange
            && replaced.is_dir()
        {
            permission::check(replaced, cred, want::WRITE)?;
        }
    }
    Ok(())
}
