//! The shard's records of a tiled file: its pieces, their tiles, and the truncations of the file.
//!
//! The bytes of piece *n* are object `Piece::of_bytes(n)` on the node of its writer. The piece's
//! *tiles* map them to bytes of the file, in the encoding of `tatami_layout::PieceTiles`. A piece
//! is *open* while its writer may append to it. Then the journal beside the object may have more
//! tiles than the shard.

use crate::NodeId;
use crate::bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Longest encoding of the tiles of one piece, in bytes. A writer with more tiles starts another
/// piece.
pub const TILES_MAX: usize = 512 * 1024;
/// Most pieces of a file at a time.
pub const PIECES_MAX: u32 = 256 * 1024;
/// Most pieces that one request creates.
pub const ADD_PIECES_MAX: u32 = 64 * 1024;
/// Most parts of one [`Publish`](crate::meta::MetaOp::Publish).
pub const PIECE_UPDATES_MAX: usize = 16 * 1024;
/// Most objects of a re-laid-out file: one for each node of the largest volume.
pub const RESERVE_PIECES_MAX: usize = 4096;
/// Most cuts of a file at a time.
pub const CUTS_MAX: usize = 4096;
/// Bytes of tiles at which a page ends.
pub const TILE_PAGE_BYTES: usize = 384 * 1024;
/// Most pieces in one page.
pub const TILE_PAGE_PIECES: u32 = 16 * 1024;

/// A truncation of the file to `size` bytes at `stamp`. It removes all bytes at or beyond `size`
/// that were written before `stamp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cut {
    /// Time in microseconds since 1970, by a clock that never returns one time twice.
    pub stamp: u64,
    /// Size after the truncation, in bytes.
    pub size: u64,
}

/// The state of a piece, sent at sync and close.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceUpdate {
    /// Number of the piece.
    pub piece: u32,
    /// All its tiles, at most [`TILES_MAX`] bytes.
    pub tiles: Bytes,
    /// Storage of its object, in units of 512 bytes.
    pub blocks: u64,
    /// No process appends to the piece any more, so the journal can be deleted.
    pub close: bool,
}

/// A piece of a re-laid-out file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewPiece {
    /// Its number.
    pub piece: u32,
    /// The node of its object.
    pub node: NodeId,
    /// All its tiles, at most [`TILES_MAX`] bytes.
    pub tiles: Bytes,
    /// Storage of its object, in units of 512 bytes.
    pub blocks: u64,
}

/// Which clients may append to a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PieceGrowth {
    /// None: the published tiles are complete.
    Closed,
    /// A client that has the file open for writing.
    Open,
    /// None any more: the client is gone. The journal must be read a last time.
    Abandoned,
}

/// One piece of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceInfo {
    /// Its number, from 1.
    pub piece: u32,
    /// The node of its objects.
    pub node: NodeId,
    /// Whether the journal may have more tiles.
    pub growth: PieceGrowth,
    /// The tiles that were published last. Empty if there were none.
    pub tiles: Bytes,
}

/// A part of a tiled file's records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TilePage {
    /// The pieces in number order.
    pub pieces: Vec<PieceInfo>,
    /// This page is the last.
    pub end: bool,
    /// All cuts, ordered by stamp and by size. Only in the first page.
    pub cuts: Vec<Cut>,
    /// Increases with every change of pieces, tiles and cuts. Pages of different versions do not
    /// belong together.
    pub version: u64,
    /// Storage of all pieces, in units of 512 bytes.
    pub blocks: u64,
    /// Size of the base in bytes, as last reported to the shard.
    pub base_size: u64,
}
