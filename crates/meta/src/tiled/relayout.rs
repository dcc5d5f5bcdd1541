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
//! mark, the new objects are refused.

use super::{STAMP_END, Tiled, end_of, load, put, tick};
use crate::attr::check_state;
use crate::error::Outcome;
use crate::inode::Inode;
use crate::keys::{self, Parsed, tag};
use crate::orphan;
use crate::record::Damaged;
use crate::store::Store;
use crate::tiled::PieceRecord;
use crate::txn::Txn;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_layout::PieceTiles;
use tatami_wire::meta::{DataState, MetaReply};
use tatami_wire::tiles::{NewPiece, RESERVE_MAX, TILES_MAX};
use tatami_wire::{ClientId, Errno, Ino, Layout, NodeId, Piece};

/// The first byte of a `D` record of an object that is set aside; the client follows.
const RESERVED: u8 = 2;

fn reserved_for(client: ClientId) -> Vec<u8> {
    [&[RESERVED], &client.0[..]].concat()
}

/// Returns whether a `D` record with this value belongs to an object that is set aside, and not
/// garbage yet.
pub(crate) fn is_reserved<S: Store>(txn: &Txn<'_, S>, ino: Ino, value: &[u8]) -> Outcome<bool> {
    let Some((&RESERVED, client)) = value.split_first() else { return Ok(false) };
    let Some(client) = client.first_chunk() else { return Ok(false) };
    Ok(txn.get(&keys::writer(ino, ClientId(*client)))?.is_some())
}

/// Turns the objects that were set aside for a client (or with `None`, for any) into garbage,
/// because it does not have the file open for writing any more.
pub(crate) fn release<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    client: Option<ClientId>,
) -> Outcome<()> {
    if !txn.peek(ino, |inode| inode.aside)? {
        return Ok(());
    }
    let mut found = Vec::new();
    for node in orphan::nodes_of(txn.state, tag::DROPPED)? {
        let prefix = keys::dropped_of(node, ino);
        txn.scan(&prefix, &prefix, &mut |key, value| {
            let ours = match client {
                Some(client) => value == reserved_for(client),
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
        txn.edit_hidden(ino)?.aside = false;
    }
    Ok(())
}

/// Removes the mark `moving`: a client may have changed bytes of the file.
pub(crate) fn disturb<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<()> {
    if txn.peek(ino, |inode| inode.moving)? {
        txn.edit_hidden(ino)?.moving = false;
    }
    Ok(())
}

/// Returns the inode, if only this client can change its bytes.
fn alone<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<(Arc<Inode>, Option<Tiled>)> {
    let inode = txn.inode(ino)?;
    if !inode.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let mark = keys::writer(ino, txn.ctx.client);
    if inode.writers == 0 || txn.get(&mark)?.is_none() {
        return Err(Errno::EBADF.into());
    }
    let tiled = load(txn, ino, &inode)?;
    let open = tiled.as_ref().is_some_and(|tiled| tiled.open > 0);
    // Each of these could change bytes during the copy.
    if inode.writers > 1 || inode.unsettled || open {
        return Err(Errno::EBUSY.into());
    }
    Ok((inode, tiled))
}

/// Sets objects aside.
pub(crate) fn reserve<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    nodes: &[NodeId],
) -> Outcome<MetaReply> {
    if nodes.is_empty() || nodes.len() > RESERVE_MAX {
        return Err(Errno::EINVAL.into());
    }
    let (inode, tiled) = alone(txn, ino)?;
    txn.need_room()?;
    let mut tiled = tiled.unwrap_or_else(|| Tiled::default().over(inode.size, inode.blocks));
    let first = tiled.next;
    if nodes.len() as u32 > Piece::TILED_MAX.saturating_sub(first) {
        return Err(Errno::EFBIG.into());
    }
    let value = reserved_for(txn.ctx.client);
    for node in nodes {
        txn.put(keys::dropped(*node, ino, Piece::bytes_of(tiled.next)), value.clone());
        tiled.next += 1;
    }
    let stamp = tick(txn, &mut tiled);
    put(txn, ino, &tiled);
    let inode = txn.edit_hidden(ino)?;
    inode.pieces = true;
    inode.moving = true;
    inode.aside = true;
    Ok(MetaReply::Pieces { first, stamp })
}

/// Replaces the file's objects by those that were set aside.
pub(crate) fn relayout<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    pieces: &[NewPiece],
    base: (NodeId, u32),
    state: &DataState,
) -> Outcome<MetaReply> {
    check_state(state)?;
    if pieces.len() > RESERVE_MAX || !pieces.is_sorted_by(|a, b| a.piece < b.piece) {
        return Err(Errno::EINVAL.into());
    }
    // The lock-free protocol's check: if any other client could have changed bytes since, the mark
    // is gone.
    let (old, tiled) = alone(txn, ino)?;
    let Some(known) = tiled.filter(|_| old.moving) else { return Err(Errno::EBUSY.into()) };
    txn.need_room()?;
    let mut new = Tiled {
        next: known.next,
        stamp: known.stamp,
        version: known.version + 1,
        ..Tiled::default().over(state.size, state.blocks)
    };
    drop_all(txn, ino, &old)?;
    for piece in pieces {
        place(txn, ino, piece, &mut new)?;
    }
    let (node, number) = base;
    if pieces.iter().any(|piece| piece.piece == number) {
        return Err(Errno::EINVAL.into());
    }
    let object = Piece::bytes_of(number);
    claim(txn, ino, node, object)?;
    // A copy of another size cannot have the same bytes.
    if new.size() != old.size {
        return Err(Errno::EINVAL.into());
    }
    put(txn, ino, &new);
    // Objects that were set aside and not used become garbage.
    release(txn, ino, None)?;
    txn.delete(keys::writer(ino, txn.ctx.client));
    let inode = txn.edit(ino)?;
    inode.layout = Layout::over(node, object, !pieces.is_empty());
    inode.blocks = new.storage();
    inode.changed = state.changed;
    inode.moving = false;
    inode.writers -= 1;
    Ok(MetaReply::Attr(inode.attr(ino)))
}

/// Marks all present objects of the file as garbage.
fn drop_all<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, old: &Inode) -> Outcome<()> {
    let mut pieces: Vec<(u32, NodeId)> = Vec::new();
    let prefix = keys::of_ino(tag::PIECE, ino);
    txn.scan(&prefix, &prefix, &mut |key, value| {
        let record = PieceRecord::decode(value)?;
        if let Some(Parsed::Piece { number, .. }) = keys::parse(key) {
            pieces.push((number, record.node));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (number, node) in pieces {
        txn.delete(keys::piece(ino, number));
        super::drop_object(txn, node, ino, Piece::bytes_of(number));
    }
    super::drop_object(txn, old.layout.node(), ino, old.layout.base());
    Ok(())
}

/// Takes an object that this client has set aside.
fn claim<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, node: NodeId, object: Piece) -> Outcome<()> {
    let key = keys::dropped(node, ino, object);
    if txn.get(&key)?.as_deref() != Some(&reserved_for(txn.ctx.client)) {
        return Err(Errno::EINVAL.into());
    }
    txn.delete(key);
    Ok(())
}

/// Makes a piece of an object that was set aside.
fn place<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    piece: &NewPiece,
    new: &mut Tiled,
) -> Outcome<()> {
    if piece.tiles.len() > TILES_MAX {
        return Err(Errno::E2BIG.into());
    }
    claim(txn, ino, piece.node, Piece::bytes_of(piece.piece))?;
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
    txn.put(keys::piece(ino, piece.piece), record.encode());
    new.pieces += 1;
    new.stamp = new.stamp.max(latest);
    new.blocks = new.blocks.saturating_add(piece.blocks);
    new.end = new.end.max(end_of(tiles, &[]).map_err(|Damaged(_)| Errno::EFBIG)?);
    Ok(())
}
