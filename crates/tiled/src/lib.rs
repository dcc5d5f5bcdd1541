//! Files that many processes write at once, each to a piece of its own.
//!
//! A collective open has one *rank* per process. Each rank appends its bytes to its own *piece*. A
//! *journal* beside the piece records which stretch of which view lies where ([`tatami_layout`] has
//! the mathematics). Writing needs no messages. At sync and close rank 0 puts the tiles of all
//! ranks into the file's *index*. Until then, and when the job dies, readers read the journals,
//! too.
//!
//! A *container* is such a file as a directory on any file system. On a mount of a Tatami *volume*
//! such a file is one of the volume: pieces are objects, and the shard has the index. The engine
//! *plain* offers the same calls over one ordinary file.
//!
//! ```text
//! one rank of one open: view, pointer, lock ─▶ engine ─┬─ plain: an ordinary file
//!                                                      ├─ volume: a volume's file, over tatami-client
//!                                                      └─ container: piece and journal of the rank,
//!                                                         index and journals of the other ranks
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

/// Is there a container at `path`? Follows links; what cannot be looked at is none. One whose marker is damaged is a
/// container: what is done with it fails, and says why.
pub fn is_container(path: &Path) -> bool {
    marker::is_container(path).unwrap_or_else(|error| error.errno == rustix::io::Errno::IO)
}

/// Writes the marker of the container at `path` anew, if it is damaged or missing. Returns false if the marker is whole, or
/// if nothing shows that there is a container.
///
/// # Errors
/// Those of the disk; `EBUSY` while a program has the file open for writing; `EIO` for a damaged marker in a directory with
/// no other sign of a container, and for one of another version.
pub fn restore_marker(path: &Path) -> Result<bool> {
    container::restore_marker(&place::real(path)?)
}

/// Puts the journals of dead opens of the container at `path` into its index.
///
/// # Errors
/// Those of the disk; `EISDIR` and `ENOTDIR` for a path that is no container; `EIO` for refused
/// damage.
pub fn recover(path: &Path, damaged: settle::Damaged) -> Result<Vec<settle::Settled>> {
    settle::settle_dead(&container::Container::open(&place::real(path)?)?, damaged)
}

/// Replaces a damaged index of the container at `path` by the last one that was synced; later
/// publications are lost. `false` where the index is not damaged, or was synced itself.
///
/// # Errors
/// As for [`recover`].
pub fn go_back(path: &Path) -> Result<bool> {
    container::Container::open(&place::real(path)?)?.go_back()
}
