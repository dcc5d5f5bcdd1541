//! The state of a file's pieces: the tiles that were published, and the tiles that their journals
//! have beyond these.

use crate::Client;
use std::sync::Arc;
use tatami_layout::journal::{self, BYTES_MAX, Damage, LastWord};
use tatami_layout::{PieceTiles, Tile};
use tatami_wire::frame::PAYLOAD_MAX;
use tatami_wire::tiles::{PieceGrowth, PieceUpdate, TILES_MAX};
use tatami_wire::{Attr, Cap, Cred, Errno, NodeId, Piece};

/// One piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceJournalReport {
    /// Its number.
    pub number: u32,
    /// The node that stores it.
    pub node: NodeId,
    /// Whether a writer still adds to it.
    pub growth: PieceGrowth,
    /// Published bytes.
    pub published: u64,
    /// Bytes in its journal, the published ones included. `None` where there is no journal, its
    /// node is away, or the journal is damaged.
    pub journal: Option<u64>,
    /// The damage of its journal. In a growing piece this may be a record that is half written.
    pub damage: Option<Damage>,
}

/// Reports all pieces of a file that `cap` allows to read.
///
/// # Errors
/// Those of [`Client::fetch_pieces`]; `EIO` for tiles that cannot be decoded.
pub fn report_pieces(
    client: &Arc<Client>,
    attr: &Attr,
    cap: Cap,
) -> Result<Vec<PieceJournalReport>, Errno> {
    let (page, _) = client.fetch_pieces(attr.ino)?;
    let mut reports = Vec::with_capacity(page.pieces.len());
    for piece in page.pieces {
        let published = match piece.tiles.is_empty() {
            true => 0,
            false => sum_bytes(&PieceTiles::decode(&piece.tiles).map_err(|_| Errno::EIO)?),
        };
        let (number, node, growth) = (piece.piece, piece.node, piece.growth);
        let read = match growth {
            PieceGrowth::Closed => None,
            PieceGrowth::Open | PieceGrowth::Abandoned => {
                read_last(client, attr, cap, node, number).ok()
            }
        };
        let (journal, damage) = match read {
            Some(LastWord::Whole(tiles)) => (tiles.map(|tiles| sum_bytes(&tiles)), None),
            Some(LastWord::Torn(recovered)) => {
                (Some(sum_bytes(&recovered.tiles).max(published)), None)
            }
            Some(LastWord::Damaged(damage)) => (None, Some(damage)),
            None => (None, None),
        };
        reports.push(PieceJournalReport { number, node, growth, published, journal, damage });
    }
    Ok(reports)
}

/// Reads the journal of piece `number` with all checksums, and returns its damage, if any. `cap`
/// allows to read the file. A half-written record of a growing journal may look like damage; a
/// second read then finds none.
///
/// # Errors
/// Those of the node that has it.
pub(crate) fn find_journal_damage(
    client: &Arc<Client>,
    attr: &Attr,
    cap: Cap,
    node: NodeId,
    number: u32,
) -> Result<Option<Damage>, Errno> {
    match read_last(client, attr, cap, node, number)? {
        LastWord::Damaged(damage) => Ok(Some(damage)),
        // A journal with holes of a power cut is recovered when the lease of its writer has ended.
        LastWord::Whole(_) | LastWord::Torn(_) => Ok(None),
    }
}

/// Returns the final state of the journal of piece `number`, as if its writer were gone.
fn read_last(
    client: &Arc<Client>,
    attr: &Attr,
    cap: Cap,
    node: NodeId,
    number: u32,
) -> Result<LastWord, Errno> {
    let all = read_journal(client, attr, cap, node, number)?;
    let last = journal::read_last_word(&all, u64::MAX, false);
    if !matches!(last, LastWord::Damaged(_)) {
        return Ok(last);
    }
    // Only a damaged journal needs two more requests, so whole ones stay cheap.
    let state = client.open_object(attr.ino, node, Piece::of_journal(number), cap)?.stat()?;
    let len = client.open_object(attr.ino, node, Piece::of_bytes(number), cap)?.stat()?.size;
    Ok(journal::read_last_word(&all, len, state.is_restarted))
}

/// The recovered rest of a piece with a damaged journal, after the user has accepted the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredPiece {
    /// Its number.
    pub number: u32,
    /// Bytes of the file that the piece has.
    pub bytes: u64,
    /// Where records of its journal are lost.
    pub lost: Vec<Damage>,
}

/// Recovers the pieces of a file whose writers are gone and whose journals are damaged: publishes
/// the whole records, and closes the pieces. `cap` allows to read the file, `cred` may write it.
///
/// # Errors
/// Those of the shard, and of the nodes that have the journals; then the piece stays as it was.
pub fn accept_loss(
    client: &Arc<Client>,
    cred: &Cred,
    attr: &Attr,
    cap: Cap,
) -> Result<Vec<RecoveredPiece>, Errno> {
    let (page, _) = client.fetch_pieces(attr.ino)?;
    let mut saved = Vec::new();
    for piece in page.pieces.into_iter().filter(|piece| piece.growth == PieceGrowth::Abandoned) {
        let all = read_journal(client, attr, cap, piece.node, piece.piece)?;
        if journal::decode(&all).is_ok() {
            continue;
        }
        let object = client.open_object(attr.ino, piece.node, Piece::of_bytes(piece.piece), cap)?;
        let state = object.stat()?;
        let recovered = journal::recover_records(&all, None, state.size);
        let lost = recovered.lost.clone();
        let tiles = match piece.tiles.is_empty() {
            true => recovered.tiles,
            false => {
                recovered.join_published(&PieceTiles::decode(&piece.tiles).map_err(|_| Errno::EIO)?)
            }
        };
        // A record may be on disk while its bytes are not. Such tiles are dropped.
        let tiles = clip_tiles(&tiles, state.size);
        let encoded = tiles.encode();
        if encoded.len() > TILES_MAX {
            return Err(Errno::E2BIG);
        }
        let number = piece.piece;
        let (blocks, close) = (state.blocks, true);
        let part = PieceUpdate { piece: number, tiles: encoded.into(), blocks, close };
        client.publish_tiles(cred, attr.ino, vec![part], Vec::new(), None)?;
        saved.push(RecoveredPiece { number, bytes: sum_bytes(&tiles), lost });
    }
    Ok(saved)
}

/// Returns the tiles whose bytes exist in an object of `size` bytes. After a power cut the journal
/// may refer to bytes beyond that size.
pub fn clip_tiles(tiles: &PieceTiles, size: u64) -> PieceTiles {
    let mut left = PieceTiles::new(tiles.rank());
    let views: Vec<_> = tiles.views().iter().map(|view| left.add_view(view)).collect();
    for tile in tiles.tiles() {
        let len = tile.len.min(size.saturating_sub(tile.at));
        if let (Some(Ok(view)), true) = (views.get(tile.view as usize), len > 0) {
            // A part of a valid tile is a valid tile.
            let _ = left.push(Tile { view: *view, len, ..*tile });
        }
    }
    left
}

fn read_journal(
    client: &Arc<Client>,
    attr: &Attr,
    cap: Cap,
    node: NodeId,
    number: u32,
) -> Result<Vec<u8>, Errno> {
    let object = client.open_object(attr.ino, node, Piece::of_journal(number), cap)?;
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.resize(before + PAYLOAD_MAX, 0);
        let got = object.read_at(&mut all[before..], before as u64)?;
        all.truncate(before + got);
        // Readers refuse longer journals, so no more bytes are needed.
        if got == 0 || all.len() > BYTES_MAX {
            return Ok(all);
        }
    }
}

fn sum_bytes(tiles: &PieceTiles) -> u64 {
    tiles.tiles().iter().map(|tile| tile.len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_layout::View;

    #[test]
    fn tiles_whose_bytes_are_lost_are_left_out() {
        let mut tiles = PieceTiles::new(1);
        let view = tiles.add_view(&View::all_bytes()).expect("added");
        tiles.append(1, view, 0, 10, 0).expect("appended");
        tiles.append(2, view, 50, 10, 10).expect("appended");
        tiles.append(3, view, 90, 10, 20).expect("appended");
        let left = clip_tiles(&tiles, 15);
        let runs: Vec<_> = left.tiles().iter().map(|t| (t.start, t.len)).collect();
        assert_eq!(runs, [(0, 10), (50, 5)]);
        assert_eq!(clip_tiles(&tiles, 99), tiles);
    }
}
