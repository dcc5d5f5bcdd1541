//! What the shard keeps of a tiled file: its pieces, their tiles, and where the file was cut.
//!
//! The bytes of piece *n* are object `Piece::bytes_of(n)` on the node of its writer; which of
//! them are which bytes of the file say its *tiles*, in the encoding of
//! `tatami_layout::PieceTiles`. A piece is *open* while its writer may add to it: then the
//! journal beside it may know of more tiles than the shard.

use crate::NodeId;
use crate::meta::Bytes;
use serde::{Deserialize, Serialize};

/// Longest encoding of the tiles of one piece, in bytes. A writer with more takes another piece.
pub const TILES_MAX: usize = 512 * 1024;
/// Most pieces that a file has at a time.
pub const PIECES_MAX: u32 = 256 * 1024;
/// Most pieces that one request makes.
pub const ADD_MAX: u32 = 64 * 1024;
/// Most parts of one [`Publish`](crate::meta::MetaOp::Publish).
pub const PARTS_MAX: usize = 16 * 1024;
/// Most objects that one file is laid out to anew: as many as there are nodes at most.
pub const RESERVE_MAX: usize = 4096;
/// Most cuts that a file has at a time.
pub const CUTS_MAX: usize = 4096;
/// Bytes of tiles after which a page of them ends.
pub const PAGE_BYTES: usize = 384 * 1024;
/// Most pieces of one page.
pub const PAGE_PIECES: u32 = 16 * 1024;

/// The file was cut to `size` bytes at `stamp`: what was written until then has nothing at
/// or beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cut {
    /// When, in microseconds since 1970, by a clock that never shows a time twice.
    pub stamp: u64,
    /// Bytes that were left.
    pub size: u64,
}

/// What a piece has become, told at sync and close.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Number of the piece.
    pub piece: u32,
    /// All its tiles, at most [`TILES_MAX`] bytes.
    pub tiles: Bytes,
    /// Storage of its object, in units of 512 bytes.
    pub blocks: u64,
    /// Nobody adds to it any more: its journal can go.
    pub close: bool,
}

/// A piece of a file that is laid out anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewPiece {
    /// Its number.
    pub piece: u32,
    /// The node that keeps its object.
    pub node: NodeId,
    /// All its tiles, at most [`TILES_MAX`] bytes.
    pub tiles: Bytes,
    /// Storage of its object, in units of 512 bytes.
    pub blocks: u64,
}

/// Who may add to a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// Nobody: its tiles are all there are.
    Closed,
    /// A client that has the file open for writing.
    Open,
    /// A client that has it no more: its journal must be read, for the last time.
    Abandoned,
}

/// One piece of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceInfo {
    /// Its number, from 1.
    pub piece: u32,
    /// The node that keeps its objects.
    pub node: NodeId,
    /// Whether its journal may tell more.
    pub growth: Growth,
    /// Its tiles as published last; empty when they never were.
    pub tiles: Bytes,
}

/// Part of what a file consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// In number order.
    pub pieces: Vec<PieceInfo>,
    /// Nothing follows.
    pub end: bool,
    /// All cuts, in order of stamps and of sizes. With the first page only.
    pub cuts: Vec<Cut>,
    /// Goes up with every change of pieces, tiles and cuts. Pages of different
    /// versions do not belong together.
    pub version: u64,
    /// Storage of all pieces, in units of 512 bytes.
    pub blocks: u64,
    /// Size of the base, in bytes, as the shard was told last.
    pub base_size: u64,
}
