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
//!                                                      ├─ volume: over tatami-client
//!                                                      └─ container: the rank's piece, journal,
//!                                                         index, journals of other ranks
//! ```

pub mod claim;
pub mod collective_open;
pub mod container;
pub mod container_backing;
pub mod container_state;
pub mod describe;
pub mod engine;
pub mod error;
pub mod file;
pub mod file_mutex;
pub mod file_state;
pub mod flags;
pub mod heartbeat;
pub mod hints;
pub mod journal;
pub mod machine;
pub mod marker;
pub mod memory;
pub mod piece;
pub mod plain;
pub mod plan;
pub mod pointer;
pub mod published;
pub mod ranges;
pub mod rank_table;
pub mod reader;
pub mod recovery;
pub mod relayout;
pub mod shared;
pub mod sharing;
pub mod stat;
pub mod tiled_engine;
pub mod token;
pub mod unordered;
pub mod volume;
pub mod wholelock;

mod begun;
mod mapping;

pub use collective_open::CollectiveOpen;
pub use error::{Result, TiledError};
pub use file::{RankFile, begin_open};
pub use flags::Flags;
pub use hints::{Environment, Hints};
pub use memory::Buffer;
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
