//! Bytes that lie beside their inode: a small file in a directory with the policy *inline* has no
//! object. The shard itself reads and writes the bytes, so their size and times need no report.
//!
//! A file that outgrows its limit moves to an object, by the operations of a re-layout: a client
//! reserves an object, copies the bytes, and makes that object the file's. Any change of the bytes
//! in between ends the reservation, so the copy is the file or nothing is. A file without a byte
//! needs no copy: the shard gives it an object with the first write above the limit.

use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys;
use crate::operation::Txn;
use crate::record::DamagedRecord;
use crate::state::MetaState;
use crate::store::Store;
use crate::tiled::pieces::{load_tiled, put_tiled};
use std::sync::Arc;
use tatami_wire::inline::{InlineOp, InlineReply};
use tatami_wire::meta::{Bytes, MetaReply};
use tatami_wire::object::ObjectState;
use tatami_wire::policy::INLINE_MAX;
use tatami_wire::{Cap, Errno, Ino, Layout, Piece, Timestamp, VolumeKey};

const VERSION: u8 = 1;

/// Returns the bytes of a record, which may be fewer than the file has: zeros follow.
pub(crate) fn decode_bytes(record: &[u8]) -> Result<&[u8], DamagedRecord> {
    match record.split_first() {
        Some((&VERSION, bytes)) if bytes.len() <= INLINE_MAX => Ok(bytes),
        _ => Err(DamagedRecord("bytes of a file")),
    }
}

pub(crate) fn encode_bytes(bytes: &[u8]) -> Vec<u8> {
    [&[VERSION], bytes].concat()
}

fn load_bytes<S: Store>(txn: &Txn<'_, S>, ino: Ino) -> MetaOutcome<Vec<u8>> {
    match txn.get(&keys::inline_bytes(ino))? {
        Some(record) => Ok(decode_bytes(&record)?.to_vec()),
        None => Ok(Vec::new()),
    }
}

/// Carries out an operation on the bytes.
pub(crate) fn run_inline_op<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    ino: Ino,
    cap: &Cap,
    op: &InlineOp,
) -> MetaOutcome<MetaReply> {
    cap.check_access(key, ino, op.needed_access(), txn.now())?;
    let inode = txn.load_inode(ino)?;
    if !inode.layout.is_inline() {
        return Ok(moved_reply(&inode));
    }
    let done = |inode: &Inode, bytes: Vec<u8>| {
        let (state, bytes) = (state_of(inode), Bytes::from(bytes));
        Ok(MetaReply::Inline(InlineReply::Done { state, bytes }))
    };
    let (offset, bytes) = match op {
        InlineOp::Stat => return done(&inode, Vec::new()),
        InlineOp::Read { offset, len } => {
            return done(&inode, read_range(txn, ino, &inode, *offset, *len)?);
        }
        InlineOp::SetSize { size } => return set_size(txn, ino, &inode, *size),
        InlineOp::Leave => return answer_too_large(txn, ino, &inode),
        InlineOp::Write { offset, bytes } => (*offset, bytes),
        InlineOp::Append { bytes } => (inode.size, bytes),
    };
    if offset.saturating_add(bytes.len() as u64) > u64::from(inode.inline_limit) {
        return answer_too_large(txn, ino, &inode);
    }
    let mut all = load_bytes(txn, ino)?;
    let (from, end) = (offset as usize, offset as usize + bytes.len());
    if all.len() < end {
        all.resize(end, 0);
    }
    all[from..end].copy_from_slice(bytes);
    let size = inode.size.max(end as u64);
    put_bytes(txn, ino, &all, size)
}

/// Gives a file that has just been made all its bytes.
///
/// # Errors
/// `EXDEV` if they may not lie beside its inode.
pub(crate) fn fill_new_file<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    bytes: &[u8],
) -> MetaOutcome<()> {
    let limit = txn.inspect_inode(ino, |inode| match inode.layout.is_inline() {
        true => inode.inline_limit as usize,
        false => 0,
    })?;
    if limit < bytes.len().max(1) {
        return Err(Errno::EXDEV.into());
    }
    put_bytes(txn, ino, bytes, bytes.len() as u64).map(drop)
}

/// Returns all bytes of a file, or that they are elsewhere.
pub(crate) fn read_whole<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<MetaReply> {
    let inode = txn.load_inode(ino)?;
    if !inode.layout.is_inline() {
        return Ok(moved_reply(&inode));
    }
    let bytes = read_range(txn, ino, &inode, 0, INLINE_MAX as u32)?;
    let (state, bytes) = (state_of(&inode), Bytes::from(bytes));
    Ok(MetaReply::Inline(InlineReply::Done { state, bytes }))
}

/// Returns all bytes of a file beside its inode; `None` for any other inode, and where the store
/// fails.
pub(crate) fn load_all_bytes<S: Store>(state: &mut MetaState<S>, ino: Ino) -> Option<Vec<u8>> {
    let inode = state.load_inode(ino).ok().flatten().filter(|inode| inode.layout.is_inline())?;
    let record = state.get(&keys::inline_bytes(ino)).ok()?;
    let mut all = match &record {
        Some(record) => decode_bytes(record).ok()?.to_vec(),
        None => Vec::new(),
    };
    // Its size is at most the limit, which fits.
    all.resize(usize::try_from(inode.size).ok().filter(|size| *size <= INLINE_MAX)?, 0);
    Some(all)
}

fn read_range<S: Store>(
    txn: &Txn<'_, S>,
    ino: Ino,
    inode: &Arc<Inode>,
    offset: u64,
    len: u32,
) -> MetaOutcome<Vec<u8>> {
    let end = offset.saturating_add(u64::from(len)).min(inode.size);
    if offset >= end {
        return Ok(Vec::new());
    }
    let mut all = load_bytes(txn, ino)?;
    // Its size is at most the limit, which fits.
    all.resize(inode.size as usize, 0);
    Ok(all[offset as usize..end as usize].to_vec())
}

fn moved_reply(inode: &Inode) -> MetaReply {
    MetaReply::Inline(InlineReply::Moved { layout: inode.layout, size: inode.size })
}

/// Answers an operation that would make the file larger than its limit.
fn answer_too_large<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    inode: &Inode,
) -> MetaOutcome<MetaReply> {
    if inode.size > 0 {
        return Ok(MetaReply::Inline(InlineReply::TooLarge));
    }
    leave_for_policy(txn, ino)?;
    txn.inspect_inode(ino, moved_reply)
}

fn set_size<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    inode: &Inode,
    size: u64,
) -> MetaOutcome<MetaReply> {
    if size > u64::from(inode.inline_limit) {
        return answer_too_large(txn, ino, inode);
    }
    let mut all = load_bytes(txn, ino)?;
    all.truncate(size as usize);
    put_bytes(txn, ino, &all, size)
}

/// Replaces the bytes of a file of `size` bytes.
fn put_bytes<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    bytes: &[u8],
    size: u64,
) -> MetaOutcome<MetaReply> {
    let key = keys::inline_bytes(ino);
    if bytes.is_empty() {
        txn.delete_record(key);
    } else {
        txn.require_room()?;
        txn.put_record(key, encode_bytes(bytes));
    }
    let now = txn.now();
    let inode = txn.edit_inode(ino)?;
    (inode.size, inode.blocks) = (size, (bytes.len() as u64).div_ceil(512));
    // One time for both: clients take the time in the reply as both.
    inode.ctime = inode.ctime.advanced_to(now);
    inode.mtime = inode.ctime;
    // A copy that is under way to an object is not current any more.
    inode.relayout_mark = false;
    let (state, bytes) = (state_of(inode), Bytes::new());
    Ok(MetaReply::Inline(InlineReply::Done { state, bytes }))
}

fn state_of(inode: &Inode) -> ObjectState {
    let (size, blocks, mtime) = (inode.size, inode.blocks, inode.mtime);
    // A report of this state must not win over one of an object: `changed` is before all of them.
    let changed = Timestamp::default();
    ObjectState { exists: true, size, blocks, mtime, changed, is_restarted: false }
}

/// Makes an empty file beside its inode one with an object on the same node, which is made with its
/// first byte: in a region where its directory says so.
///
/// # Errors
/// As [`leave_inode`].
pub(crate) fn leave_for_policy<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<()> {
    let in_region = txn.inspect_inode(ino, |inode| inode.leaves_to_region)?;
    leave_inode(txn, ino, if in_region { Piece::FIRST_REGION } else { Piece::BASE })
}

/// Makes an empty file beside its inode one with an object, which is made with its first byte. The
/// object is `first` if the file has never had another.
///
/// # Errors
/// `EXDEV` if it has bytes: a client must copy them first. `EFBIG` if it has had too many objects.
pub(crate) fn leave_inode<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    first: Piece,
) -> MetaOutcome<()> {
    let (node, is_empty) =
        txn.inspect_inode(ino, |inode| (inode.layout.node(), inode.size == 0))?;
    if !is_empty {
        return Err(Errno::EXDEV.into());
    }
    let old = txn.load_inode(ino)?;
    // A file that once had an object gets one with a new number: the old one may still be garbage.
    let base = match load_tiled(txn, ino, &old)? {
        Some(mut tiled) => {
            let number = tiled.next;
            if number >= Piece::TILED_MAX {
                return Err(Errno::EFBIG.into());
            }
            tiled.next += 1;
            put_tiled(txn, ino, &tiled);
            Piece::of_bytes(match first.is_in_region() {
                true => Piece::region_number(number),
                false => number,
            })
        }
        None => first,
    };
    end_inline(txn, ino)?;
    let inode = txn.edit_inode(ino)?;
    inode.layout = Layout::with_base(node, base, false);
    // The object has bytes soon that no copy of the empty file has.
    inode.relayout_mark = false;
    Ok(())
}

/// Removes the bytes beside the inode, which has another layout from now on.
pub(crate) fn end_inline<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<()> {
    txn.delete_record(keys::inline_bytes(ino));
    let inode = txn.edit_inode(ino)?;
    (inode.inline_limit, inode.leaves_to_region) = (0, false);
    Ok(())
}
