//! Tiled files: pieces, their tiles, and the cuts of the file.
//!
//! Beside the inode of such a file lies a `T` record with the sums over all pieces, and a `P`
//! record for each piece with its tiles. The size of the file is the largest of three: the base,
//! the end of the tiles as far as no cut removed them, and the size of the last cut. All of it is
//! computed here, from tiles that are decoded when they are published, so that no client's claim of
//! a size is trusted.
//!
//! A piece is open while the client that made it has the file open for writing. When that has ended
//! without a last publication, the file needs a size recovery: then the journals of such pieces are
//! read for the last time.

pub(crate) mod file_move;
pub(crate) mod pieces;
pub(crate) mod record;
pub(crate) mod relayout;

use crate::data_state::{self, check_state, is_later};
use crate::error::MetaOutcome;
use crate::inline;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::permission::{self, want};
use crate::record::DamagedRecord;
use crate::store::Store;
use crate::tiled::pieces::{
    STAMP_END, drop_object, encoded_tiles_end, load_tiled, next_stamp, put_tiled, tiles_end,
    writable_inode,
};
use crate::tiled::record::{PieceRecord, TiledRecord};
use crate::tiled::relayout::invalidate_relayout;
use crate::writer_marks::record_piece_maker;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tatami_layout::PieceTiles;
use tatami_wire::meta::{DataState, MetaReply};
use tatami_wire::tiles::{
    ADD_PIECES_MAX, CUTS_MAX, Cut, PIECE_UPDATES_MAX, PIECES_MAX, PieceGrowth, PieceInfo,
    PieceUpdate, TILE_PAGE_BYTES, TILE_PAGE_PIECES, TILES_MAX, TilePage,
};
use tatami_wire::{ClientId, Errno, FILE_SIZE_MAX, Ino, NodeId, Piece, SetAttr};

/// Makes pieces; the file is tiled from now on.
pub(crate) fn add_pieces<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    nodes: &[(NodeId, u32)],
) -> MetaOutcome<MetaReply> {
    let mut old = writable_inode(txn, ino)?;
    if old.layout.is_inline() {
        // A shared file never lies in a region.
        inline::leave_inode(txn, ino, Piece::BASE)?;
        old = txn.load_inode(ino)?;
    }
    let wanted = nodes.iter().fold(0u32, |sum, (_, count)| sum.saturating_add(*count));
    if wanted == 0 || wanted > ADD_PIECES_MAX || nodes.len() > ADD_PIECES_MAX as usize {
        return Err(Errno::EINVAL.into());
    }
    txn.require_room()?;
    let mut tiled = match load_tiled(txn, ino, &old)? {
        Some(tiled) if old.layout.is_tiled() => tiled,
        known => known.unwrap_or_default().with_base(old.size, old.blocks),
    };
    let left = Piece::TILED_MAX.saturating_sub(tiled.next);
    if tiled.pieces.saturating_add(wanted) > PIECES_MAX || wanted > left {
        return Err(Errno::EFBIG.into());
    }
    let first = tiled.next;
    let writer = Some(txn.ctx.client);
    for (node, count) in nodes {
        for _ in 0..*count {
            let record = PieceRecord { node: *node, writer, blocks: 0, tiles: Vec::new() };
            txn.put_record(keys::piece(ino, tiled.next), record.encode());
            tiled.next += 1;
        }
    }
    tiled.pieces += wanted;
    tiled.open += wanted;
    tiled.version += 1;
    let stamp = next_stamp(txn, &mut tiled);
    put_tiled(txn, ino, &tiled);
    // New pieces can change bytes: a re-layout must start over.
    invalidate_relayout(txn, ino)?;
    let layout = old.layout.with_tiles(true);
    if old.layout != layout {
        txn.edit_inode(ino)?.layout = layout;
    }
    let inode = txn.edit_hidden(ino)?;
    inode.pieces = true;
    inode.touched = true;
    record_piece_maker(txn, ino)?;
    Ok(MetaReply::Pieces { first, stamp })
}

/// Replaces the tiles of some pieces, adds cuts, and records the current base.
pub(crate) fn publish_tiles<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    parts: &[PieceUpdate],
    cuts: &[Cut],
    base: Option<&DataState>,
) -> MetaOutcome<MetaReply> {
    let old = writable_inode(txn, ino)?;
    check_pieces(parts, cuts)?;
    base.map_or(Ok(()), check_state)?;
    if !old.layout.is_tiled() {
        return Err(Errno::ESTALE.into());
    }
    txn.require_room()?;
    let mut tiled = load_tiled(txn, ino, &old)?.ok_or(DamagedRecord("tiled file"))?;
    for cut in cuts {
        tiled.stamp = tiled.stamp.max(cut.stamp);
        tiled.add_cut(*cut)?;
        // A client that cuts the tiles has cut the base before.
        tiled.base_size = tiled.base_size.min(cut.size);
    }
    let (mut ends, mut shorter) = (BTreeMap::new(), false);
    for part in parts {
        let (before, end) = publish_piece(txn, ino, &mut tiled, part)?;
        shorter |= end < before;
        ends.insert(part.piece, end);
    }
    // No piece has become shorter, so the end can only grow, and the other pieces need not be
    // read.
    if cuts.is_empty() && !shorter {
        tiled.end = ends.into_values().fold(tiled.end, u64::max);
    } else {
        tiled.end = all_tiles_end(txn, ino, &tiled.cuts, ends)?;
    }
    tiled.version += 1;
    invalidate_relayout(txn, ino)?;
    let now = txn.now();
    // An older report of the base must not undo a later one.
    let base = base.filter(|base| is_later(base, old.changed, tiled.base_size));
    if let Some(base) = base {
        (tiled.base_size, tiled.base_blocks) = (base.size, base.blocks);
    }
    // Without pieces it consists of its base, unless it was made longer than that.
    let whole = tiled.pieces == 0 && tiled.file_size() == tiled.base_size;
    if whole {
        tiled.cuts.clear();
        tiled.end = 0;
    }
    put_tiled(txn, ino, &tiled);
    let inode = txn.edit_inode(ino)?;
    if whole {
        inode.layout = old.layout.with_tiles(false);
    }
    (inode.size, inode.blocks) = (tiled.file_size(), tiled.storage_blocks());
    match base {
        Some(base) => {
            data_state::record_data_times(inode, base);
            inode.ctime = inode.ctime.max(now);
        }
        None => {
            inode.ctime = inode.ctime.advanced_to(now);
            inode.mtime = inode.ctime;
        }
    }
    Ok(MetaReply::Attr(inode.to_attr(ino)))
}

fn check_pieces(parts: &[PieceUpdate], cuts: &[Cut]) -> Result<(), Errno> {
    if parts.len() > PIECE_UPDATES_MAX || cuts.len() > CUTS_MAX {
        return Err(Errno::E2BIG);
    }
    // Each piece once: then its record is the one in the store.
    if !parts.is_sorted_by(|a, b| a.piece < b.piece) {
        return Err(Errno::EINVAL);
    }
    if cuts.iter().any(|cut| cut.stamp >= STAMP_END || cut.size > FILE_SIZE_MAX) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Replaces the tiles of one piece. Returns the old and the new end of its tiles in the file.
fn publish_piece<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    tiled: &mut TiledRecord,
    part: &PieceUpdate,
) -> MetaOutcome<(u64, u64)> {
    if part.tiles.len() > TILES_MAX {
        return Err(Errno::E2BIG.into());
    }
    let key = keys::piece(ino, part.piece);
    let old = txn.state.get(&key)?.ok_or(Errno::ESTALE)?;
    let old = PieceRecord::decode(&old)?;
    if old.writer.is_none() {
        return Err(Errno::ESTALE.into());
    }
    let tiles = PieceTiles::decode(&part.tiles).map_err(|_| Errno::EINVAL)?;
    let latest = tiles.tiles().iter().map(|tile| tile.stamp).max().unwrap_or(0);
    if latest >= STAMP_END {
        return Err(Errno::EINVAL.into());
    }
    tiled.stamp = tiled.stamp.max(latest);
    tiled.blocks = tiled.blocks.saturating_sub(old.blocks);
    let before = encoded_tiles_end(&old.tiles, &tiled.cuts)?;
    let writer = old.writer.filter(|_| !part.close);
    if writer.is_none() {
        tiled.open = tiled.open.saturating_sub(1);
        // All tiles are in the record now, so the journal is not needed any more.
        drop_object(txn, old.node, ino, Piece::of_journal(part.piece));
        // No client wrote to it.
        if tiles.tiles().is_empty() {
            drop_object(txn, old.node, ino, Piece::of_bytes(part.piece));
            txn.delete_record(key);
            tiled.pieces = tiled.pieces.saturating_sub(1);
            return Ok((before, 0));
        }
    }
    tiled.blocks = tiled.blocks.saturating_add(part.blocks);
    let record =
        PieceRecord { node: old.node, writer, blocks: part.blocks, tiles: part.tiles.to_vec() };
    txn.put_record(key, record.encode());
    let end = tiles_end(tiles, &tiled.cuts).map_err(|_| Errno::EFBIG)?;
    Ok((before, end))
}

/// Returns the end of all pieces; `known` are ends of pieces that are not in the store yet.
fn all_tiles_end<S: Store>(
    txn: &Txn<'_, S>,
    ino: Ino,
    cuts: &[Cut],
    known: BTreeMap<u32, u64>,
) -> MetaOutcome<u64> {
    let mut end = known.values().copied().max().unwrap_or(0);
    let prefix = keys::inode_prefix(tag::PIECE, ino);
    txn.scan_records(&prefix, &prefix, &mut |key, value| {
        if let Some(ParsedKey::Piece { number, .. }) = keys::parse(key)
            && !known.contains_key(&number)
        {
            end = end.max(encoded_tiles_end(&PieceRecord::decode(value)?.tiles, cuts)?);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(end)
}

/// Returns a page of pieces.
pub(crate) fn list_tiles<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    after: u32,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    let inode = txn.load_inode(ino)?;
    if !inode.is_file() {
        return Err(Errno::EINVAL.into());
    }
    // Knowing which bytes are written equals reading a part of the file.
    if !txn.ctx.trusted && txn.get(&keys::writer(ino, txn.ctx.client))?.is_none() {
        permission::check_access(&inode, txn.cred, want::READ)?;
    }
    let Some(tiled) = load_tiled(txn, ino, &inode)?.filter(|_| inode.layout.is_tiled()) else {
        let version = load_tiled(txn, ino, &inode)?.map_or(0, |tiled| tiled.version);
        let page = TilePage { end: true, version, base_size: inode.size, ..TilePage::default() };
        return Ok(MetaReply::Tiles(page));
    };
    let (mut found, mut bytes, mut end) = (Vec::new(), 0, true);
    let limit = limit.clamp(1, TILE_PAGE_PIECES) as usize;
    if let Some(from) = after.checked_add(1) {
        let prefix = keys::inode_prefix(tag::PIECE, ino);
        txn.scan_records(&keys::piece(ino, from), &prefix, &mut |key, value| {
            let Some(ParsedKey::Piece { number, .. }) = keys::parse(key) else {
                return Ok(ControlFlow::Continue(()));
            };
            if found.len() == limit || bytes >= TILE_PAGE_BYTES {
                end = false;
                return Ok(ControlFlow::Break(()));
            }
            bytes += value.len();
            found.push((number, PieceRecord::decode(value)?));
            Ok(ControlFlow::Continue(()))
        })?;
    }
    let mut writes: BTreeMap<ClientId, bool> = BTreeMap::new();
    let mut pieces = Vec::with_capacity(found.len());
    for (piece, record) in found {
        let growth = match record.writer {
            None => PieceGrowth::Closed,
            Some(client) => {
                let open = match writes.get(&client) {
                    Some(open) => *open,
                    None => txn.get(&keys::writer(ino, client))?.is_some(),
                };
                writes.insert(client, open);
                if open { PieceGrowth::Open } else { PieceGrowth::Abandoned }
            }
        };
        pieces.push(PieceInfo { piece, node: record.node, growth, tiles: record.tiles.into() });
    }
    let cuts = if after == 0 { tiled.cuts } else { Vec::new() };
    let TiledRecord { version, blocks, base_size, .. } = tiled;
    Ok(MetaReply::Tiles(TilePage { pieces, end, cuts, version, blocks, base_size }))
}

/// Cuts a tiled file, whose base has `size` bytes already. Returns the file's size and storage. A
/// file that is cut to nothing loses all closed pieces, and with the last one is whole again.
pub(crate) fn cut_file<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    size: u64,
    set: &SetAttr,
) -> MetaOutcome<(u64, u64)> {
    let old = txn.load_inode(ino)?;
    let mut tiled = load_tiled(txn, ino, &old)?.ok_or(DamagedRecord("tiled file"))?;
    // The writer of a later base has reported its size.
    if set.changed.is_none_or(|changed| changed >= old.changed) {
        tiled.base_size = size;
        let others = tiled.blocks;
        let base = set.blocks.map(|blocks| blocks.saturating_sub(others));
        tiled.base_blocks = base.unwrap_or(tiled.base_blocks);
    }
    let stamp = next_stamp(txn, &mut tiled);
    if size == 0 {
        drop_closed(txn, ino, &mut tiled)?;
    }
    if tiled.pieces == 0 {
        tiled.cuts.clear();
        txn.edit_inode(ino)?.layout = old.layout.with_tiles(false);
    } else if tiled.file_size() > size || tiled.open > 0 {
        // Open pieces may publish older tiles beyond the cut later, so the cut is recorded.
        tiled.add_cut(Cut { stamp, size })?;
    }
    tiled.end = tiled.end.min(size);
    tiled.version += 1;
    put_tiled(txn, ino, &tiled);
    Ok((tiled.file_size(), tiled.storage_blocks()))
}

fn drop_closed<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    tiled: &mut TiledRecord,
) -> MetaOutcome<()> {
    let mut closed: Vec<(u32, NodeId, u64)> = Vec::new();
    let prefix = keys::inode_prefix(tag::PIECE, ino);
    txn.scan_records(&prefix, &prefix, &mut |key, value| {
        let record = PieceRecord::decode(value)?;
        if let Some(ParsedKey::Piece { number, .. }) = keys::parse(key)
            && record.writer.is_none()
        {
            closed.push((number, record.node, record.blocks));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (number, node, blocks) in closed {
        txn.delete_record(keys::piece(ino, number));
        drop_object(txn, node, ino, Piece::of_bytes(number));
        tiled.pieces = tiled.pieces.saturating_sub(1);
        tiled.blocks = tiled.blocks.saturating_sub(blocks);
    }
    Ok(())
}

/// Applies a writer's report of a tiled file at close or fsync. Returns it with the size that
/// results from all tiles; `None` for a report older than the known state.
///
/// A writer reports the file, or, if it opened it before there were tiles, the base. Either size
/// counts as that of the base: the file is not shorter, and not longer than both.
pub(crate) fn apply_base_report<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    old: &Inode,
    state: &DataState,
) -> MetaOutcome<Option<DataState>> {
    let mut tiled = load_tiled(txn, ino, old)?.ok_or(DamagedRecord("tiled file"))?;
    if !is_later(state, old.changed, 0) {
        return Ok(None);
    }
    let known = (tiled.base_size, tiled.base_blocks);
    let same = state.changed == old.changed;
    tiled.base_size = if same { state.size.max(known.0) } else { state.size };
    tiled.base_blocks = state.blocks.saturating_sub(tiled.blocks);
    if (tiled.base_size, tiled.base_blocks) != known {
        put_tiled(txn, ino, &tiled);
    }
    Ok(Some(DataState { size: tiled.file_size(), blocks: tiled.storage_blocks(), ..*state }))
}

/// As [`apply_base_report`], for a recovery after a writer's death: the size does not shrink.
pub(crate) fn recover_base<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    state: &DataState,
) -> MetaOutcome<DataState> {
    let old = txn.load_inode(ino)?;
    let mut tiled = load_tiled(txn, ino, &old)?.ok_or(DamagedRecord("tiled file"))?;
    tiled.base_size = tiled.base_size.max(state.size);
    tiled.base_blocks = state.blocks;
    put_tiled(txn, ino, &tiled);
    Ok(DataState { size: tiled.file_size(), blocks: tiled.storage_blocks(), ..*state })
}

/// Handles the last close for writing by a client that has made pieces: if it leaves open ones
/// behind, their journals must be read.
pub(crate) fn mark_abandoned<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    client: ClientId,
) -> MetaOutcome<()> {
    if !txn.inspect_inode(ino, |inode| inode.layout.is_tiled() && !inode.pending_recovery)? {
        return Ok(());
    }
    let inode = txn.load_inode(ino)?;
    if load_tiled(txn, ino, &inode)?.is_some_and(|tiled| tiled.open > 0)
        && has_open_pieces(txn, ino, client)?
    {
        txn.edit_hidden(ino)?.pending_recovery = true;
        txn.put_record(keys::pending_recovery(ino), vec![1]);
    }
    Ok(())
}

/// Returns whether pieces that this client has made are open.
fn has_open_pieces<S: Store>(txn: &Txn<'_, S>, ino: Ino, client: ClientId) -> MetaOutcome<bool> {
    let (prefix, mut found) = (keys::inode_prefix(tag::PIECE, ino), false);
    txn.scan_records(&prefix, &prefix, &mut |_, value| {
        found = PieceRecord::decode(value)?.writer == Some(client);
        Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

/// Removes all records of pieces; their objects become garbage. Returns the nodes with such
/// objects.
pub(crate) fn remove_pieces<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
) -> MetaOutcome<BTreeSet<NodeId>> {
    let mut objects: Vec<(NodeId, Piece)> = Vec::new();
    let mut keys: Vec<RecordKey> = vec![keys::tiled(ino)];
    let prefix = keys::inode_prefix(tag::PIECE, ino);
    txn.scan_records(&prefix, &prefix, &mut |key, value| {
        keys.push(key.to_vec());
        // The next check finds the objects of a piece that cannot be decoded.
        if let (Some(ParsedKey::Piece { number, .. }), Ok(record)) =
            (keys::parse(key), PieceRecord::decode(value))
        {
            objects.push((record.node, Piece::of_bytes(number)));
            let open = record.writer.is_some();
            objects.extend(open.then_some((record.node, Piece::of_journal(number))));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    keys.into_iter().for_each(|key| txn.delete_record(key));
    let nodes = objects.iter().map(|(node, _)| *node).collect();
    for (node, object) in objects {
        drop_object(txn, node, ino, object);
    }
    Ok(nodes)
}
