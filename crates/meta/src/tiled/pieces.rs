//! The records of a tiled file: reading and writing them, and the objects that they name.

use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys;
use crate::operation::Txn;
use crate::permission::{self, want};
use crate::record::DamagedRecord;
use crate::store::Store;
use crate::tiled::record::TiledRecord;
use std::sync::Arc;
use tatami_layout::{PieceTiles, TileIndex};
use tatami_wire::tiles::Cut;
use tatami_wire::{Errno, FILE_SIZE_MAX, Ino, NodeId, Piece};

/// Stamps lie below this, so that there is always a later one.
pub(crate) const STAMP_END: u64 = 1 << 63;

pub(crate) fn load_tiled<S: Store>(
    txn: &Txn<'_, S>,
    ino: Ino,
    inode: &Inode,
) -> MetaOutcome<Option<TiledRecord>> {
    if !inode.pieces {
        return Ok(None);
    }
    let record = txn.get(&keys::tiled(ino))?.ok_or(DamagedRecord("tiled file"))?;
    Ok(Some(TiledRecord::decode(&record)?))
}

pub(crate) fn put_tiled<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, tiled: &TiledRecord) {
    txn.put_record(keys::tiled(ino), tiled.encode());
}

/// Returns a stamp later than all that the file has.
pub(crate) fn next_stamp<S: Store>(txn: &Txn<'_, S>, tiled: &mut TiledRecord) -> u64 {
    let now = txn.now();
    let micros = now.sec.saturating_mul(1_000_000).saturating_add(i64::from(now.nsec) / 1000);
    // As a Lamport clock: later than all known stamps, and not before the wall clock.
    tiled.stamp = (tiled.stamp + 1).max(u64::try_from(micros).unwrap_or(0));
    tiled.stamp
}

/// Returns the end of tiles in a file with these cuts.
pub(crate) fn tiles_end(tiles: PieceTiles, cuts: &[Cut]) -> Result<u64, DamagedRecord> {
    let cuts = cuts.iter().map(|cut| tatami_layout::TileCut { stamp: cut.stamp, size: cut.size });
    // No base: it is counted elsewhere.
    let index =
        TileIndex::with_base(vec![(Piece::of_bytes(1), tiles)], cuts.collect(), 0, u64::MAX);
    if index.size() > FILE_SIZE_MAX { Err(DamagedRecord("tiles")) } else { Ok(index.size()) }
}

/// Returns the end of an encoded piece's tiles in a file.
pub(crate) fn encoded_tiles_end(tiles: &[u8], cuts: &[Cut]) -> Result<u64, DamagedRecord> {
    if tiles.is_empty() {
        return Ok(0);
    }
    tiles_end(PieceTiles::decode(tiles).map_err(|_| DamagedRecord("tiles"))?, cuts)
}

pub(crate) fn drop_object<S: Store>(txn: &mut Txn<'_, S>, node: NodeId, ino: Ino, object: Piece) {
    txn.add_garbage(node, keys::dropped_object(node, ino, object));
}

/// Returns the inode, if the client may write its bytes: because it has it open for writing, or
/// could.
pub(crate) fn writable_inode<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<Arc<Inode>> {
    let inode = txn.load_inode(ino)?;
    if !inode.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let mark = keys::writer(ino, txn.ctx.client);
    if inode.writers == 0 || txn.get(&mark)?.is_none() {
        permission::check_access(&inode, txn.cred, want::WRITE)?;
    }
    Ok(inode)
}
