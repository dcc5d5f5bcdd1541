//! Operations on all entries of a stretch of a directory.

use crate::entry;
use crate::error::MetaOutcome;
use crate::operation::Txn;
use crate::permission::{self, want};
use crate::store::Store;
use tatami_wire::batch::DirTotals;
use tatami_wire::meta::{DirEntry, MetaReply};
use tatami_wire::{Errno, Ino, InodeKind};

/// [`MetaOp::ClearDir`] of a directory that lies elsewhere or is being changed: succeeds only if it
/// has no entries.
///
/// # Errors
/// `EAGAIN` where there are entries: the client asks again
pub(crate) fn clear_empty_dir<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    after: u64,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    match entry::read_dir(txn, dir, after, limit, false)? {
        MetaReply::Entries { entries, end, upto, .. } if entries.is_empty() => {
            let (names, left) = (Vec::new(), Vec::new());
            Ok(MetaReply::DirCleared { removed: 0, names, retained: left, end, upto })
        }
        _ => Err(Errno::EAGAIN.into()),
    }
}

/// Sums up a directory: see [`MetaOp::DirTotals`].
pub(crate) fn sum_directory<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    after: u64,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    let listing = entry::read_dir(txn, dir, after, limit, false)?;
    let MetaReply::Entries { entries, end, upto, .. } = listing else {
        return Err(Errno::EIO.into());
    };
    if !entries.is_empty() {
        permission::check_access(&*txn.load_inode(dir)?, txn.cred, want::EXEC)?;
    }
    let mut sum = DirTotals::default();
    for DirEntry { name, ino, kind, .. } in entries {
        if kind == InodeKind::Dir {
            let found = txn.find_local_inode(ino)?;
            let is_empty = found.is_some_and(|inode| {
                let may_read = permission::check_access(&inode, txn.cred, want::READ).is_ok();
                inode.size == 0 && !inode.is_partitioned() && may_read
            });
            sum.dirs.push((name, ino, is_empty));
            continue;
        }
        match txn.find_local_inode(ino)? {
            None => sum.remote.push(ino),
            Some(inode) if inode.nlink > 1 => sum.linked.push((ino, inode.size, inode.blocks)),
            Some(inode) => {
                sum.files += 1;
                sum.size = sum.size.saturating_add(inode.size);
                sum.blocks = sum.blocks.saturating_add(inode.blocks);
            }
        }
    }
    Ok(MetaReply::DirTotals { totals: sum, end, upto })
}
