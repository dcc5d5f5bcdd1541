//! Files that many processes write at once, each to a piece of its own.
//!
//! A collective open has one *rank* per process. Each rank appends what it
//! writes to its own *piece* and keeps in a *journal* beside it which stretch
//! of which view lies where ([`tatami_layout`] has the mathematics). Nothing
//! is sent to anybody. At sync and close rank 0 puts what all ranks know into
//! the file's *index*; until then, and when the job dies, readers look into
//! the journals too.
//!
//! A *container* is such a file as a directory on any file system. The engine
//! *plain* offers the same calls over one ordinary file.
//!
//! ```text
//! File (one rank, one open): view, pointer, lock ─▶ Engine ─┬─ Plain: an ordinary file
//!                                                          └─ container: Writer (piece, journal), World (index, others' journals)
//! ```

pub mod container;
pub mod engine;
pub mod error;
pub mod file;
pub mod flags;
pub mod hints;
pub mod journal;
pub mod machine;
pub mod marker;
pub mod memory;
pub mod piece;
pub mod place;
pub mod plain;
pub mod pointer;
pub mod published;
pub mod ranges;
pub mod reader;
pub mod roll;
pub mod settle;
pub mod shared;
pub mod stat;
pub mod tiled;
pub mod token;
pub mod wholelock;
pub mod world;

mod mapping;

pub use error::{Error, Result};
pub use file::{Begin, File, begin};
pub use flags::Flags;
pub use hints::{Environment, Hints};
pub use memory::Buffer;
pub use token::Token;
