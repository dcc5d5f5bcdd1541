//! The problems that a check finds, with their repairs; records as a check reads them.

use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys::{self, RecordKey};
use crate::operation::Txn;
use crate::store::{Change, Store};
use std::sync::Arc;
use tatami_wire::{Errno, Ino};

/// A problem, and its repair.
pub(crate) struct CheckProblem {
    pub(crate) ino: Ino,
    pub(crate) what: String,
    pub(crate) mend: LocalRepair,
}

/// A kind of repair.
pub(crate) enum LocalRepair {
    /// Write these records.
    Write(Vec<Change>),
    /// Set the inode's counts and links to those that the survey found.
    Correct(Box<dyn FnOnce(&mut Inode)>),
    /// Remove the entry that is one name too many for a directory.
    RemoveName { dir: Ino, key: RecordKey },
    /// Remove the inode: nothing refers to it.
    RemoveInode,
    /// Give the inode, which cannot be reached, a name in `lost+found`; a directory loses the entry
    /// under this key first.
    Rescue { entry: Option<(Ino, RecordKey)> },
    /// Correct the number of inodes.
    Count(i64),
}

/// Corrects the counts of `dir` after the removal of an entry, maybe that of a directory.
pub(crate) fn uncount_entry<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    was_dir: bool,
) -> MetaOutcome<()> {
    if peek_inode(txn, dir)?.is_some() {
        let dir = txn.edit_inode(dir)?;
        dir.size = dir.size.saturating_sub(1);
        dir.nlink = dir.nlink.saturating_sub(u32::from(was_dir));
    }
    Ok(())
}

/// Returns whether the inode lies on this node if it exists anywhere.
pub(crate) fn is_local_if_any<S: Store>(txn: &Txn<'_, S>, ino: Ino) -> bool {
    txn.state.owns_shard(ino.owner_shard()) && txn.state.owns_shard(ino.allocating_shard())
}

/// Returns the inode, or `None` where there is none that can be decoded. Where several nodes have
/// shards: the current record on this node, without the pending changes of transactions.
pub(crate) fn peek_inode<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
) -> MetaOutcome<Option<Arc<Inode>>> {
    if txn.state.is_spread() {
        return peek_local_inode(txn, ino);
    }
    match txn.find_inode(ino) {
        Err(OperationFailure::Damaged(_)) | Err(OperationFailure::Errno(Errno::ESTALE)) => Ok(None),
        found => found,
    }
}

pub(crate) fn peek_local_inode<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
) -> MetaOutcome<Option<Arc<Inode>>> {
    let found = match txn.state.owns_shard(ino.owner_shard()) {
        true => txn.state.load_inode(ino),
        false => Ok(None),
    };
    match found {
        Ok(None) if txn.state.owns_shard(ino.allocating_shard()) => {
            let young = txn.state.get(&keys::embedded_dir(ino))?;
            Ok(young.and_then(|young| Inode::decode(&young).ok()).map(Arc::new))
        }
        Err(OperationFailure::Damaged(_)) => Ok(None),
        found => found,
    }
}

/// Returns a name as a finding shows it.
pub(crate) fn format_name(name: &[u8]) -> String {
    let shown = &name[..name.len().min(SHOWN)];
    let dots = if shown.len() < name.len() { "…" } else { "" };
    format!("\"{}{dots}\"", shown.escape_ascii())
}

/// Returns the number of the inode record under `key`.
pub(crate) fn parse_inode_key(key: &[u8]) -> Option<Ino> {
    match keys::parse(key) {
        Some(keys::ParsedKey::Inode(ino)) => Some(ino),
        _ => None,
    }
}

/// Bytes of a name that a finding shows.
pub(crate) const SHOWN: usize = 64;
