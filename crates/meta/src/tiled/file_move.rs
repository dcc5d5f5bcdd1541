//! The move of a file to where a policy wants its bytes.
//!
//! It is a re-layout (`relayout.rs`) with two differences. The copy may be the bytes beside the
//! inode, which the last message carries. And a file with an object stays where it is while any
//! other client has it open, also only for reading: such a client may have a descriptor of the old
//! object, or a mapping, which would not show later writes. Bytes beside an inode move at any time,
//! because each access to them asks the shard.

use crate::error::MetaOutcome;
use crate::inline::encode_bytes;
use crate::inode::Inode;
use crate::keys;
use crate::operation::Txn;
use crate::store::Store;
use crate::tiled::pieces::{put_tiled, writable_inode};
use crate::tiled::record::TiledRecord;
use crate::tiled::relayout::{
    apply_relayout, drop_file_objects, exclusive_inode, release_reserved, set_objects_aside,
};
use tatami_wire::meta::{Bytes, MetaReply};
use tatami_wire::moves::{InlineTerms, MoveStart, MoveTarget, MovedBytes};
use tatami_wire::policy::INLINE_MAX;
use tatami_wire::{Errno, Ino, Layout, Timestamp};

/// Begins a move: sets the object aside, and marks the inode.
pub(crate) fn begin_move<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    to: MoveTarget,
) -> MetaOutcome<MetaReply> {
    if let MoveTarget::Inode(terms) = to {
        let inode = writable_inode(txn, ino)?;
        check_terms(terms, inode.size)?;
        if inode.layout.is_inline() {
            return change_terms(txn, ino, &inode, terms);
        }
    }
    let (inode, tiled) = exclusive_inode(txn, ino)?;
    check_movable(txn, ino, &inode)?;
    let number = match to {
        MoveTarget::Inode(_) => {
            txn.edit_hidden(ino)?.relayout_mark = true;
            0
        }
        MoveTarget::Object { node, region_rule } => {
            set_objects_aside(txn, ino, (&inode, tiled), &[node], region_rule)?.0
        }
    };
    Ok(MetaReply::MoveBegun(MoveStart::Copies { number }))
}

/// Makes the copy the file.
pub(crate) fn finish_move<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    moved: &MovedBytes,
) -> MetaOutcome<MetaReply> {
    let (inode, tiled) = exclusive_inode(txn, ino)?;
    check_movable(txn, ino, &inode)?;
    match moved {
        MovedBytes::Object { node, number, state } => {
            apply_relayout(txn, ino, &[], (*node, *number), state)
        }
        MovedBytes::Inode { terms, bytes } => {
            put_in_inode(txn, ino, (&inode, tiled), *terms, bytes)
        }
    }
}

/// Checks that no other client would notice the move, and that one object has all bytes.
fn check_movable<S: Store>(txn: &Txn<'_, S>, ino: Ino, inode: &Inode) -> MetaOutcome<()> {
    if inode.layout.is_tiled() {
        return Err(Errno::EINVAL.into());
    }
    let mut others = txn.state.opens.clients_of(ino).filter(|client| *client != txn.ctx.client);
    if !inode.layout.is_inline() && others.next().is_some() {
        return Err(Errno::EBUSY.into());
    }
    Ok(())
}

fn check_terms(terms: InlineTerms, size: u64) -> Result<(), Errno> {
    match terms.limit {
        0 => Err(Errno::EINVAL),
        limit if limit as usize > INLINE_MAX => Err(Errno::EINVAL),
        limit if size > u64::from(limit) => Err(Errno::EFBIG),
        _ => Ok(()),
    }
}

/// Changes what holds for bytes that stay beside the inode.
fn change_terms<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    inode: &Inode,
    terms: InlineTerms,
) -> MetaOutcome<MetaReply> {
    let old = (inode.inline_limit, inode.leaves_to_region);
    let changed = old != (terms.limit, terms.leaves_to_region);
    if changed {
        let inode = txn.edit_hidden(ino)?;
        (inode.inline_limit, inode.leaves_to_region) = (terms.limit, terms.leaves_to_region);
    }
    Ok(MetaReply::MoveBegun(MoveStart::Stays { changed }))
}

/// Keeps the bytes beside the inode from now on.
fn put_in_inode<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    (old, tiled): (&Inode, Option<TiledRecord>),
    terms: InlineTerms,
    bytes: &Bytes,
) -> MetaOutcome<MetaReply> {
    // As in a re-layout: if any other client could have changed bytes since, the mark is gone.
    if !old.relayout_mark || old.layout.is_inline() {
        return Err(Errno::EBUSY.into());
    }
    check_terms(terms, old.size)?;
    // A copy of another size cannot have the same bytes.
    if bytes.len() as u64 != old.size {
        return Err(Errno::EINVAL.into());
    }
    txn.require_room()?;
    drop_file_objects(txn, ino, old)?;
    release_reserved(txn, ino, None)?;
    let blocks = old.size.div_ceil(512);
    // The numbers of objects go on, also for a file that had only the first: late garbage has old
    // ones.
    let known = tiled.unwrap_or_default();
    let new = TiledRecord {
        next: known.next,
        stamp: known.stamp,
        version: known.version + 1,
        ..TiledRecord::default().with_base(old.size, blocks)
    };
    put_tiled(txn, ino, &new);
    if !bytes.is_empty() {
        txn.put_record(keys::inline_bytes(ino), encode_bytes(bytes));
    }
    txn.delete_record(keys::writer(ino, txn.ctx.client));
    let inode = txn.edit_inode(ino)?;
    inode.layout = Layout::inline(old.layout.node());
    (inode.inline_limit, inode.leaves_to_region) = (terms.limit, terms.leaves_to_region);
    inode.blocks = blocks;
    inode.pieces = true;
    // The times of objects order nothing any more: see `inline::state_of`.
    inode.changed = Timestamp::default();
    inode.relayout_mark = false;
    inode.writers -= 1;
    Ok(MetaReply::Attr(inode.to_attr(ino)))
}
