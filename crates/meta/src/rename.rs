//! rename(2): the operation that touches most inodes at once.
//!
//! The order of the checks is that of Linux' `do_renameat2` and `vfs_rename`, so that a call with
//! several mistakes gets the same error number as on a local disk.

use crate::entry::remove_directory;
use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::operation::Txn;
use crate::operation::partitions::PartitionInode;
use crate::permission::{self, EntryName, want};
use crate::record::DamagedRecord;
use crate::store::Store;
use std::sync::Arc;
use tatami_wire::meta::{MetaReply, RenameMode};
use tatami_wire::{Errno, Ino};

/// Deepest directory that can be checked for cycles. A path as long as [`tatami_wire::PATH_MAX`]
/// reaches half as deep as its bytes. Relative renames could build deeper trees, and a broken chain
/// of parents would have no end.
const DEPTH_MAX: usize = 1 << 20;

/// The position of an entry: a directory and a name.
#[derive(Clone, Copy)]
pub(crate) struct EntryPosition<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
}

/// The source or the target of a rename, looked up.
struct ResolvedEntry<'a> {
    dir: Ino,
    /// The partition of it that has the name.
    part: Ino,
    name: &'a [u8],
    /// The partition's record.
    parent: Arc<Inode>,
    /// The inode that the entry leads to, if there is one.
    child: Option<(Ino, Arc<Inode>)>,
}

fn resolve_entry<'a, S: Store>(
    txn: &mut Txn<'_, S>,
    place: EntryPosition<'a>,
    (part, parent): PartitionInode,
) -> MetaOutcome<ResolvedEntry<'a>> {
    let name = permission::parse_name(place.name)?;
    permission::check_dir(&parent)?;
    permission::check_access(&parent, txn.cred, want::EXEC)?;
    let name = match name {
        EntryName::Plain(name) => name,
        EntryName::Dot | EntryName::DotDot => return Err(Errno::EBUSY.into()),
    };
    let child = match txn.load_entry(part, name)? {
        Some(entry) => {
            let inode = txn.find_inode(entry.ino)?.ok_or(DamagedRecord("entry without inode"))?;
            Some((entry.ino, inode))
        }
        None => None,
    };
    Ok(ResolvedEntry { dir: txn.whole_directory(part, &parent), part, name, parent, child })
}

pub(crate) fn rename<S: Store>(
    txn: &mut Txn<'_, S>,
    from: EntryPosition<'_>,
    to: EntryPosition<'_>,
    mode: RenameMode,
    keep: bool,
) -> MetaOutcome<MetaReply> {
    // One round of messages for all records that are surely needed, instead of one round for each.
    txn.prefetch_rename(from.dir, from.name, to.dir, to.name)?;
    permission::parse_name(from.name)?;
    let part = txn.load_inode(from.dir)?;
    txn.check_name_range(from.dir, &part, from.name)?;
    let from = resolve_entry(txn, from, (from.dir, part))?;
    permission::parse_name(to.name)?;
    let part = txn.partition_of_name(to.dir, to.name)?;
    let to = resolve_entry(txn, to, part)?;
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
            txn.detach_entry(from.part, from.name, source)?;
            txn.detach_entry(to.part, to.name, *target)?;
            txn.attach_entry(to.part, to.name, source)?;
            txn.attach_entry(from.part, from.name, *target)?;
            Ok(MetaReply::Renamed { ino: None, last: false, moved: vec![source, *target] })
        }
        (None, _) => {
            txn.detach_entry(from.part, from.name, source)?;
            txn.attach_entry(to.part, to.name, source)?;
            Ok(MetaReply::Renamed { ino: None, last: false, moved: vec![source] })
        }
        (Some((target, replaced)), _) => {
            if replaced.is_dir() && !txn.is_empty_dir(*target, replaced)? {
                return Err(Errno::ENOTEMPTY.into());
            }
            txn.detach_entry(to.part, to.name, *target)?;
            txn.detach_entry(from.part, from.name, source)?;
            txn.attach_entry(to.part, to.name, source)?;
            let last = if replaced.is_dir() {
                remove_directory(txn, *target, keep)?;
                true
            } else {
                txn.release_unnamed(*target, keep)?
            };
            Ok(MetaReply::Renamed { ino: Some(*target), last, moved: vec![source] })
        }
    }
}

/// Checks that no directory becomes its own descendant.
fn check_ancestors<S: Store>(
    txn: &mut Txn<'_, S>,
    from: &ResolvedEntry<'_>,
    to: &ResolvedEntry<'_>,
    source: Ino,
    moved: &Inode,
    mode: RenameMode,
) -> MetaOutcome<()> {
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
fn is_within<S: Store>(txn: &mut Txn<'_, S>, mut dir: Ino, ancestor: Ino) -> MetaOutcome<bool> {
    for _ in 0..DEPTH_MAX {
        if dir == ancestor {
            return Ok(true);
        }
        if dir == Ino::ROOT {
            return Ok(false);
        }
        // A directory that was removed but is kept open still knows its parent, which may be gone;
        // nothing can be made in it, so no cycle can form.
        match txn.parent_of(dir)? {
            Some(parent) => dir = parent,
            None => return Ok(false),
        }
    }
    Err(Errno::ELOOP.into())
}

fn check_permissions<S: Store>(
    txn: &mut Txn<'_, S>,
    from: &ResolvedEntry<'_>,
    to: &ResolvedEntry<'_>,
    moved: &Inode,
    mode: RenameMode,
) -> MetaOutcome<()> {
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
            permission::check_access(moved, cred, want::WRITE)?;
        }
        if let Some((_, replaced)) = &to.child
            && exchange
            && replaced.is_dir()
        {
            permission::check_access(replaced, cred, want::WRITE)?;
        }
    }
    Ok(())
}
