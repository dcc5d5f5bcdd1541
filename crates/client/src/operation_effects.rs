//! What an operation does to names and attributes, as far as its request and its reply show it.

use tatami_wire::batch::BatchOp;
use tatami_wire::inline::InlineReply;
use tatami_wire::meta::{Bytes, MetaOp, MetaReply};
use tatami_wire::object::ObjectState;
use tatami_wire::{Errno, Ino};

/// The inode that a name leads to, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedEntry {
    Is(Ino),
    Absent,
    /// This client is changing the entry. All other entries of the directory are cached.
    Unknown,
}

/// Returns the entries that an operation concerns.
pub(crate) fn operation_entries(op: &MetaOp) -> impl Iterator<Item = (Ino, &Bytes)> {
    let few = match op {
        MetaOp::Rename { parent, name, new_parent, new_name, .. } => {
            [Some((*parent, name)), Some((*new_parent, new_name))]
        }
        other => [other.named_entry(), None],
    };
    few.into_iter().flatten().chain(batch_operations(op).iter().filter_map(BatchOp::named_entry))
}

/// Returns the operations of a batch.
pub(crate) fn batch_operations(op: &MetaOp) -> &[BatchOp] {
    match op {
        MetaOp::Batch { operations } => operations,
        _ => &[],
    }
}

/// Returns the inodes whose attributes a change surely concerns.
pub(crate) fn affected_inodes(op: &MetaOp) -> impl Iterator<Item = Ino> {
    let inos = match op {
        // Nothing that attributes show.
        MetaOp::ReportClosed { .. } => [None, None],
        MetaOp::Rename { new_parent, .. } => [Some(op.target_inode()), Some(*new_parent)],
        MetaOp::Link { ino, .. } => [Some(op.target_inode()), Some(*ino)],
        _ => [Some(op.target_inode()), None],
    };
    let batch = batch_operations(op).iter();
    let linked = batch.clone().filter_map(|operation| match operation {
        BatchOp::Link { ino, .. } => Some(*ino),
        _ => None,
    });
    inos.into_iter().flatten().chain(batch.skip(1).map(BatchOp::target_inode)).chain(linked)
}

/// Returns whether the change `op` by this client leaves the path through directory `ino` as it
/// is, because it changes only entries of the directory.
pub(crate) fn keeps_path(op: &MetaOp, ino: Ino) -> bool {
    let sets = |some: &BatchOp| matches!(some, BatchOp::SetAttr { ino: set, .. } if *set == ino);
    operation_entries(op).any(|(dir, _)| dir == ino) && !batch_operations(op).iter().any(sets)
}

/// Returns the entry after the operation, as the reply shows it.
pub(crate) fn entry_after(op: &MetaOp, result: Result<&MetaReply, Errno>) -> Option<CachedEntry> {
    match (op, result) {
        (
            MetaOp::Lookup { .. } | MetaOp::LookupEntry { .. } | MetaOp::Link { .. },
            Ok(MetaReply::Attr(attr)),
        )
        | (
            MetaOp::Create { .. } | MetaOp::CreateFilled { .. } | MetaOp::CreateNumbered { .. },
            Ok(MetaReply::Created { attr, .. }),
        ) => Some(CachedEntry::Is(attr.ino)),
        (MetaOp::LookupEntry { .. }, Ok(MetaReply::Referral(ino))) => Some(CachedEntry::Is(*ino)),
        (MetaOp::Unlink { .. } | MetaOp::Rmdir { .. }, Ok(_)) => Some(CachedEntry::Absent),
        (
            MetaOp::Lookup { .. }
            | MetaOp::LookupEntry { .. }
            | MetaOp::Unlink { .. }
            | MetaOp::Rmdir { .. },
            Err(Errno::ENOENT),
        ) => Some(CachedEntry::Absent),
        _ => None,
    }
}

/// Returns whether the operation changes bytes beside an inode.
pub(crate) fn is_inline_write(op: &MetaOp) -> bool {
    matches!(op, MetaOp::Inline { op, .. } if op.is_change())
}

/// Returns the inode, and the state that the shard has recorded for it, after a write of bytes
/// beside it.
pub(crate) fn recorded_write<'a>(
    op: &MetaOp,
    result: Result<&'a MetaReply, Errno>,
) -> Option<(Ino, &'a ObjectState)> {
    match (op, result) {
        (
            MetaOp::Inline { ino, op, .. },
            Ok(MetaReply::Inline(InlineReply::Done { state, .. })),
        ) if op.is_change() => Some((*ino, state)),
        _ => None,
    }
}

/// Returns whether a directory stores a name as an entry.
pub(crate) fn is_entry_name(name: &[u8]) -> bool {
    name != b"." && name != b".." && name.len() <= tatami_wire::NAME_MAX
}
