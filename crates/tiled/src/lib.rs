//! Files that many processes write at once, each to a piece of its own.
//!
//! A collective open has one *rank* per process. Each rank appends what it
//! writes to its own *piece* and keeps in a *journal* beside it which stretch
//! of which view lies where ([`tatami_layout`] has the mathematics). Nothing
//! is sent to anybody. At sync and close rank 0 puts what all ranks know into
//! the file's *index*; until then, and when the job dies, readers look into
//! the journals too.
//!
//! A *container* is such a file as a directory on any file system. On a mount of a Tatami *volume*
//! it is a file of that volume: pieces are objects, the index is the shard's. The engine
//! *plain* offers the same calls over one ordinary file.
//!
//! ```text
//! File (one rank, one open): view, pointer, lock ─▶ Engine ─┬─ Plain: an ordinary file
//!                                                          ├─ Native: a volume's file, over tatami-client
//!                                                          └─ container: Writer (piece, journal), World (index, others' journals)
//! ```

pub mod container;
pub mod describe;
pub mod disorder;
pub mod engine;
pub mod error;
pub mod file;
pub mod flags;
pub mod heart;
pub mod hints;
pub mod journal;
pub mod machine;
pub mod marker;
pub mod memory;
pub mod piece;
pub mod place;
pub mod plain;
pub mod plan;
pub mod pointer;
pub mod published;
pub mod ranges;
pub mod reach;
pub mod reader;
pub mod relayout;
pub mod roll;
pub mod settle;
pub mod shared;
pub mod stat;
pub mod tiled;
pub mod token;
pub mod turn;
pub mod volume;
pub mod wholelock;
pub mod world;

mod mapping;

pub use error::{Error, Result};
pub use file::{Begin, File, begin};
pub use flags::Flags;
pub use hints::{Environment, Hints};
pub use memory::Buffer;
pub use token::Token;

use std::path::Path;

/// Is there a container at `path`? Follows links; what cannot be looked at is none.
pub fn is_container(path: &Path) -> bool {
    marker::is_container(path).unwrap_or(false)
}

/// Puts what dead opens of the container at `path` left into its index.
///
/// # Errors
/// Those of the disk; `EISDIR` and `ENOTDIR` for what is no container; `EIO` for damage that is to be refused.
pub fn recover(path: &Path, damaged: settle::Damaged) -> Result<Vec<settle::Settled>> {
    settle::settle_dead(&container::Container::open(&place::real(path)?)?, damaged)
}

/// Lets go what a damaged index of the container at `path` told beyond the last one that was synced. False where
/// the index is not damaged, or was synced itself.
///
/// # Errors
/// As for [`recover`].
pub fn go_back(path: &Path) -> Result<bool> {
    container::Container::open(&place::real(path)?)?.go_back()
}
