//! Files that many processes write at once, each to a piece of its own.
//!
//! A collective open has one *rank* per process. Each rank appends its bytes to its own *piece*. A
//! *journal* beside the piece records which stretch of which view lies where ([`tatami_layout`] has
//! the mathematics). Writing needs no messages. At sync and close rank 0 puts the tiles of all
//! ranks into the file's *index*. Until then, and when the job dies, readers read the journals,
//! too.
//!
//! A *container* is such a file as a directory on any file system. On a mount of a Tatami *volume*
//! such a file is one of the volume: pieces are objects, and the shard has the index. One engine
//! serves both, over a *backing* of each. The engine *plain* offers the same calls over one
//! ordinary file.
//!
//! ```text
//! one rank of one open: view, pointer, lock ─▶ engine ─┬─ plain: an ordinary file
//!                                                      ├─ remote: a file of another site
//!                                                      └─ tiled: the rank's piece, stamps, reads
//!                                                          ├─ container: a directory
//!                                                          └─ volume: over tatami-client
//! ```

pub mod claim;
pub mod describe;
pub mod file;
pub mod file_lists;
pub mod journal;
pub mod machine;
pub mod marker;
pub mod piece;
pub mod piece_file;
pub mod published;
pub mod recovery;
pub mod relayout;
pub mod shared;
pub mod stat;
pub mod token;
pub mod volume;

mod begun;
mod block_cache;
mod collective_open;
mod container;
mod container_backing;
mod container_state;
mod engine;
mod error;
mod file_mutex;
mod file_state;
mod flags;
mod heartbeat;
mod hints;
mod mapping;
mod memory;
mod plain;
mod plan;
mod pointer;
mod ranges;
mod rank_table;
mod reader;
mod remote_engine;
mod sharing;
mod small_pieces;
mod store_guard;
mod tiled_engine;
mod unordered;
mod wholelock;

pub use collective_open::CollectiveOpen;
pub use engine::Engine;
pub use error::{Result, TiledError};
pub use file::{RankFile, begin_open};
pub use flags::Flags;
pub use hints::{Environment, Hints};
pub use memory::Buffer;
pub use store_guard::guard_stores;
pub use token::OpenToken;

use std::path::Path;

/// Is there a container at `path`? Follows links; what cannot be looked at is none. One whose
/// marker is damaged is a container: what is done with it fails, and says why.
pub fn is_container(path: &Path) -> bool {
    marker::is_container(path).unwrap_or_else(|error| error.errno == rustix::io::Errno::IO)
}

/// Writes the marker of the container at `path` anew, if it is damaged or missing. Returns false if
/// the marker is whole, or if nothing shows that there is a container.
///
/// # Errors
/// Those of the disk; `EBUSY` while a program has the file open for writing; `EIO` for a damaged
/// marker in a directory with no other sign of a container, and for one of another version.
pub fn restore_marker(path: &Path) -> Result<bool> {
    container::restore_marker(&claim::resolve_links(path)?)
}

/// Puts the journals of dead opens of the container at `path` into its index.
///
/// # Errors
/// Those of the disk; `EISDIR` and `ENOTDIR` for a path that is no container; `EIO` for refused
/// damage.
pub fn recover_container(
    path: &Path,
    damaged: recovery::DamagePolicy,
) -> Result<Vec<recovery::RecoveredOpen>> {
    recovery::recover_dead_opens(
        &container::Container::open(&claim::resolve_links(path)?)?,
        damaged,
    )
}

/// Replaces a damaged index of the container at `path` by the last one that was synced; later
/// publications are lost. `false` where the index is not damaged, or was synced itself.
///
/// # Errors
/// As for [`recover_container`].
pub fn restore_synced_index(path: &Path) -> Result<bool> {
    container::Container::open(&claim::resolve_links(path)?)?.restore_synced_index()
}
