//! The mathematics of a file: which bytes of a file lie in which object.
//!
//! A [`Layout`] names the objects of a file. The crate does no I/O and knows no servers beyond
//! their numbers, so that every rule here can be tested against a byte-by-byte model.
//!
//! A *tiled* file has a piece for each process that wrote it. A [`Shape`] is a datatype without its
//! basic types. A [`ProgramView`] is an MPI file view as a program sets it; a [`View`] is one in
//! file order. A [`Tile`] is a stretch of a view that lies in one run of a piece. [`PieceTiles`]
//! are the tiles that one writer publishes. An [`TileIndex`] combines them all and finds the piece
//! of each byte.

mod code;
mod compact;
mod file_index;
mod hulls;
mod index;
pub mod journal;
mod own_extents;
mod piece;
mod program;
mod runs;
mod scatter;
mod shape;
mod shape_code;
mod shape_node;
mod stripes;
mod sweep;
mod tile;
mod tile_code;
mod tree;
mod tree_builder;
mod view;
mod whole;

pub use code::DecodeError;
pub use index::{BASE, FoundExtent, PieceId, TileCut, TileIndex};
pub use own_extents::OwnExtent;
pub use piece::{Appended, PieceTiles};
pub use program::{InFileOrder, ProgramView};
pub use runs::{ShapeBlocks, StridedRun, StridedRuns};
pub use scatter::FoundRun;
pub use shape::Shape;
pub use shape_node::{MAX_DEPTH, MAX_WEIGHT, ShapeError};
pub use stripes::{Stripes, StripesError};
pub use tile::{MAX_VIEWS, Tile, TileError};
pub use view::{Extents, MAX_OFFSET, View, ViewError};
pub use whole::{Layout, NodeId, Piece};
