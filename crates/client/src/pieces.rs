//! What became of the pieces of a file: what was published of them, and what their journals
//! tell beyond that.

use crate::Client;
use std::sync::Arc;
use tatami_layout::{PieceTiles, journal};
use tatami_wire::frame::PAYLOAD_MAX;
use tatami_wire::tiles::Growth;
use tatami_wire::{Attr, Cap, Errno, NodeId, Piece};

/// Longest journal that is read, in bytes.
const JOURNAL_MAX: usize = 64 << 20;

/// One piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceTold {
    /// Its number.
    pub number: u32,
    /// The node that keeps it.
    pub node: NodeId,
    /// Whether somebody adds to it.
    pub growth: Growth,
    /// Bytes that were published.
    pub published: u64,
    /// Bytes that its journal tells of, these included; `None` where there is none, or its node
    /// is away.
    pub journal: Option<u64>,
}

/// Tells of all pieces of a file that `cap` allows to read.
///
/// # Errors
/// Those of [`Client::pieces`]; `EIO` for tiles that do not read.
pub fn pieces_told(client: &Arc<Client>, attr: &Attr, cap: Cap) -> Result<Vec<PieceTold>, Errno> {
    let (page, _) = client.pieces(attr.ino)?;
    let mut told = Vec::with_capacity(page.pieces.len());
    for piece in page.pieces {
        let published = match piece.tiles.is_empty() {
            true => 0,
            false => bytes(&PieceTiles::decode(&piece.tiles).map_err(|_| Errno::EIO)?),
        };
        let (number, node, growth) = (piece.piece, piece.node, piece.growth);
        let journal = match growth {
            Growth::Closed => None,
            Growth::Open | Growth::Abandoned => read_journal(client, attr, cap, node, number),
        };
        told.push(PieceTold { number, node, growth, published, journal });
    }
    Ok(told)
}

fn read_journal(
    client: &Arc<Client>,
    attr: &Attr,
    cap: Cap,
    node: NodeId,
    number: u32,
) -> Option<u64> {
    let object = client.object(attr.ino, node, Piece::journal_of(number), cap).ok()?;
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.resize(before + PAYLOAD_MAX, 0);
        let got = object.read_at(&mut all[before..], before as u64).ok()?;
        all.truncate(before + got);
        if got == 0 || all.len() >= JOURNAL_MAX {
            return journal::decode(&all).map(|tiles| bytes(&tiles));
        }
    }
}

fn bytes(tiles: &PieceTiles) -> u64 {
    tiles.tiles().iter().map(|tile| tile.len).sum()
}
