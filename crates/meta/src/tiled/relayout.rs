//! Re-layout of a file: the same bytes, in other objects.
//!
//! The client that does it has the file open for writing. It asks for objects to be set aside,
//! copies the bytes there, and then replaces the file's objects by them in one operation. No other
//! client knows the new objects before that, so a failure on the way has no visible effect. The new
//! objects count as garbage from the first moment; their removal only waits until that client has
//! closed the file.
//!
//! The bytes must not change meanwhile. When objects are set aside, no other client has the file
//! open for writing, and the inode is marked (`moving`). Every operation that could change bytes
//! removes the mark: a new writer, a cut, pieces, a publication, a report of the bytes. Without the
//! mark, the new objects are refused. Bytes beside an inode may have several writers: when one of
//! them begins anew after a change, the objects of all others become garbage.

use crate::data_state::check_state;
use crate::error::MetaOutcome;
use crate::garbage;
use crate::inline;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, tag};
use crate::operation::Txn;
use crate::record::DamagedRecord;
use crate::store::Store;
use crate::tiled::pieces::{STAMP_END, load_tiled, next_stamp, put_tiled, tiles_end};
use crate::tiled::record::{PieceRecord, TiledRecord};
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_layout::PieceTiles;
use tatami_wire::meta::{DataState, MetaReply};
use tatami_wire::tiles::{NewPiece, RESERVE_PIECES_MAX, TILES_MAX};
use tatami_wire::{ClientId, Errno, Ino, Layout, NodeId, Piece};

/// The first byte of a `D` record of an object that is set aside; the client follows.
const RESERVED: u8 = 2;

fn reservation_value(client: ClientId) -> Vec<u8> {
    [&[RESERVED], &client.0[..]].concat()
}

/// Returns whether a `D` record with this value belongs to an object that is set aside, and not
/// garbage yet.
pub(crate) fn is_reserved<S: Store>(txn: &Txn<'_, S>, ino: Ino, value: &[u8]) -> MetaOutcome<bool> {
    let Some((&RESERVED, client)) = value.split_first() else { return Ok(false) };
    let Some(client) = client.first_chunk() else { return Ok(false) };
    Ok(txn.get(&keys::writer(ino, ClientId(*client)))?.is_some())
}

/// Turns the objects that were set aside for a client (or with `None`, for any) into garbage,
/// because it does not have the file open for writing any more.
pub(crate) fn release_reserved<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    client: Option<ClientId>,
) -> MetaOutcome<()> {
    if !txn.inspect_inode(ino, |inode| inode.set_aside)? {
        return Ok(());
    }
    let mut found = Vec::new();
    for node in garbage::garbage_nodes_of(txn.state, tag::DROPPED)? {
        let prefix = keys::dropped_prefix(node, ino);
        txn.scan_records(&prefix, &prefix, &mut |key, value| {
            let ours = match client {
                Some(client) => value == reservation_value(client),
                None => value.first() == Some(&RESERVED),
            };
            // This operation may have used it.
            if ours && txn.get(key)?.as_deref() == Some(value) {
                found.push((node, key.to_vec()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    // Nothing was set aside for this client, so another client's objects may be.
    let another = client.is_some() && found.is_empty();
    found.into_iter().for_each(|(node, key)| txn.add_garbage(node, key));
    if !another {
        txn.edit_hidden(ino)?.set_aside = false;
    }
    Ok(())
}

/// Removes the mark `moving`: a client may have changed bytes of the file.
pub(crate) fn invalidate_relayout<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<()> {
    if txn.inspect_inode(ino, |inode| inode.relayout_mark)? {
        txn.edit_hidden(ino)?.relayout_mark = false;
    }
    Ok(())
}

/// Returns the inode, if only this client can change its bytes.
pub(crate) fn exclusive_inode<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
) -> MetaOutcome<(Arc<Inode>, Option<TiledRecord>)> {
    let inode = txn.load_inode(ino)?;
    if !inode.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let mark = keys::writer(ino, txn.ctx.client);
    if inode.writers == 0 || txn.get(&mark)?.is_none() {
        return Err(Errno::EBADF.into());
    }
    let tiled = load_tiled(txn, ino, &inode)?;
    let open = tiled.as_ref().is_some_and(|tiled| tiled.open > 0);
    // Each of these could change bytes during the copy.
    // The shard sees each change of bytes beside the inode, by any client.
    let others = inode.writers > 1 && !inode.layout.is_inline();
    if others || inode.pending_recovery || open {
        return Err(Errno::EBUSY.into());
    }
    Ok((inode, tiled))
}

/// Sets objects aside.
pub(crate) fn reserve_objects<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    nodes: &[NodeId],
) -> MetaOutcome<MetaReply> {
    if nodes.is_empty() || nodes.len() > RESERVE_PIECES_MAX {
        return Err(Errno::EINVAL.into());
    }
    let (inode, tiled) = exclusive_inode(txn, ino)?;
    // A file of one object stays in a region, with its rule for earlier states. One that leaves its
    // inode goes where its directory says.
    let base = inode.layout.base();
    let in_region = inode.leaves_to_region || base.is_in_region();
    let region_rule = (in_region && nodes.len() == 1).then(|| base.version_rule());
    let (first, stamp) = set_objects_aside(txn, ino, (&inode, tiled), nodes, region_rule)?;
    Ok(MetaReply::Pieces { first, stamp })
}

/// Sets an object on each of these nodes aside: in a region with this rule for earlier states, or
/// not in one. Returns the number of the first, and the latest stamp of the file.
pub(crate) fn set_objects_aside<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    (inode, tiled): (&Inode, Option<TiledRecord>),
    nodes: &[NodeId],
    region_rule: Option<u32>,
) -> MetaOutcome<(u32, u64)> {
    txn.require_room()?;
    if inode.set_aside && !inode.relayout_mark {
        // Bytes have changed since other objects were set aside, so their copies are old. The mark
        // comes back below, and would count for them, too.
        release_reserved(txn, ino, None)?;
    }
    let mut tiled =
        tiled.unwrap_or_else(|| TiledRecord::default().with_base(inode.size, inode.blocks));
    if nodes.len() as u32 > Piece::TILED_MAX.saturating_sub(tiled.next) {
        return Err(Errno::EFBIG.into());
    }
    let first = match region_rule {
        Some(rule) => {
            Piece::first_versioned(rule).next_in_region(tiled.next).ok_or(Errno::EFBIG)?
        }
        None => tiled.next,
    };
    let value = reservation_value(txn.ctx.client);
    for (number, node) in (first..).zip(nodes) {
        txn.put_record(keys::dropped_object(*node, ino, Piece::of_bytes(number)), value.clone());
    }
    tiled.next += nodes.len() as u32;
    let stamp = next_stamp(txn, &mut tiled);
    put_tiled(txn, ino, &tiled);
    let inode = txn.edit_hidden(ino)?;
    inode.pieces = true;
    inode.relayout_mark = true;
    inode.set_aside = true;
    Ok((first, stamp))
}

/// Replaces the file's objects by those that were set aside.
pub(crate) fn apply_relayout<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    pieces: &[NewPiece],
    base: (NodeId, u32),
    state: &DataState,
) -> MetaOutcome<MetaReply> {
    check_state(state)?;
    if pieces.len() > RESERVE_PIECES_MAX || !pieces.is_sorted_by(|a, b| a.piece < b.piece) {
        return Err(Errno::EINVAL.into());
    }
    // The lock-free protocol's check: if any other client could have changed bytes since, the mark
    // is gone.
    let (old, tiled) = exclusive_inode(txn, ino)?;
    let Some(known) = tiled.filter(|_| old.relayout_mark) else { return Err(Errno::EBUSY.into()) };
    txn.require_room()?;
    let mut new = TiledRecord {
        next: known.next,
        stamp: known.stamp,
        version: known.version + 1,
        ..TiledRecord::default().with_base(state.size, state.blocks)
    };
    drop_file_objects(txn, ino, &old)?;
    for piece in pieces {
        place_piece(txn, ino, piece, &mut new)?;
    }
    let (node, number) = base;
    if pieces.iter().any(|piece| piece.piece == number || piece.piece > Piece::TILED_MAX) {
        return Err(Errno::EINVAL.into());
    }
    let object = Piece::of_bytes(number);
    claim_object(txn, ino, node, object)?;
    // A copy of another size cannot have the same bytes.
    if new.file_size() != old.size {
        return Err(Errno::EINVAL.into());
    }
    put_tiled(txn, ino, &new);
    // Objects that were set aside and not used become garbage.
    release_reserved(txn, ino, None)?;
    let leaves_inode = old.layout.is_inline();
    if leaves_inode {
        inline::end_inline(txn, ino)?;
    } else {
        txn.delete_record(keys::writer(ino, txn.ctx.client));
    }
    let inode = txn.edit_inode(ino)?;
    inode.layout = Layout::with_base(node, object, !pieces.is_empty());
    inode.blocks = new.storage_blocks();
    inode.changed = state.changed;
    inode.relayout_mark = false;
    // A file that leaves its inode does so while programs write it.
    inode.writers -= u32::from(!leaves_inode);
    Ok(MetaReply::Attr(inode.to_attr(ino)))
}

/// Marks all present objects of the file as garbage.
pub(crate) fn drop_file_objects<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    old: &Inode,
) -> MetaOutcome<()> {
    let mut pieces: Vec<(u32, NodeId)> = Vec::new();
    let prefix = keys::inode_prefix(tag::PIECE, ino);
    txn.scan_records(&prefix, &prefix, &mut |key, value| {
        let record = PieceRecord::decode(value)?;
        if let Some(ParsedKey::Piece { number, .. }) = keys::parse(key) {
            pieces.push((number, record.node));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (number, node) in pieces {
        txn.delete_record(keys::piece(ino, number));
        crate::tiled::drop_object(txn, node, ino, Piece::of_bytes(number));
    }
    for (node, base) in old.layout.all_objects() {
        crate::tiled::drop_object(txn, node, ino, base);
    }
    Ok(())
}

/// Takes an object that this client has set aside.
fn claim_object<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    node: NodeId,
    object: Piece,
) -> MetaOutcome<()> {
    let key = keys::dropped_object(node, ino, object);
    let value = txn.get(&key)?;
    match value.as_deref() {
        Some(value) if value == reservation_value(txn.ctx.client) => txn.delete_record(key),
        // It has become garbage, because the bytes have changed since it was set aside.
        Some(value) if value.first() != Some(&RESERVED) => return Err(Errno::EBUSY.into()),
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(())
}

/// Makes a piece of an object that was set aside.
fn place_piece<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    piece: &NewPiece,
    new: &mut TiledRecord,
) -> MetaOutcome<()> {
    if piece.tiles.len() > TILES_MAX {
        return Err(Errno::E2BIG.into());
    }
    claim_object(txn, ino, piece.node, Piece::of_bytes(piece.piece))?;
    let tiles = PieceTiles::decode(&piece.tiles).map_err(|_| Errno::EINVAL)?;
    let latest = tiles.tiles().iter().map(|tile| tile.stamp).max().unwrap_or(0);
    if latest >= STAMP_END {
        return Err(Errno::EINVAL.into());
    }
    let record = PieceRecord {
        node: piece.node,
        writer: None,
        blocks: piece.blocks,
        tiles: piece.tiles.to_vec(),
    };
    txn.put_record(keys::piece(ino, piece.piece), record.encode());
    new.pieces += 1;
    new.stamp = new.stamp.max(latest);
    new.blocks = new.blocks.saturating_add(piece.blocks);
    new.end = new.end.max(tiles_end(tiles, &[]).map_err(|DamagedRecord(_)| Errno::EFBIG)?);
    Ok(())
}
