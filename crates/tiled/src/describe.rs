//! Describes a container for people: which piece has which bytes, and which processes write.

use crate::claim;
use crate::container::Container;
use crate::container_state::ContainerState;
use crate::error::{ErrorContext, Result};
use crate::file_state::FileState;
use crate::marker::PieceName;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tatami_layout::BASE;

/// A piece, or the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerPieceSummary {
    /// Its piece; `None` for the base.
    pub name: Option<PieceName>,
    /// Bytes in its file.
    pub stored: u64,
    /// Bytes of the file that are read from it.
    pub used: u64,
}

/// A run of bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerStretch {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The piece that has it: the outer `None` is a hole, the inner one the base.
    pub piece: Option<Option<PieceName>>,
    /// Where in the piece.
    pub at: u64,
}

/// An open that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerOpenSummary {
    /// Its number.
    pub open: u64,
    /// Its processes.
    pub ranks: u32,
    /// Whether all of its processes are dead.
    pub dead: bool,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSummary {
    /// Bytes of the file.
    pub size: u64,
    /// Bytes of its index.
    pub index: u64,
    /// By name.
    pub pieces: Vec<ContainerPieceSummary>,
    /// Opens for writing.
    pub opens: Vec<ContainerOpenSummary>,
    /// The first stretches of the file.
    pub stretches: Vec<ContainerStretch>,
    /// Whether there are more stretches; `used` covers the listed part only.
    pub more: bool,
}

/// Bytes that are looked up at a time.
const WINDOW: u64 = 1 << 20;

/// Describes the container at `path`, with `limit` stretches at most.
///
/// # Errors
/// As for opening it.
pub fn describe_container(path: &Path, limit: usize) -> Result<ContainerSummary> {
    let container = Arc::new(Container::open(&claim::resolve_links(path)?)?);
    let mut world = ContainerState::new(container.clone());
    let size = world.current_size(None)?;
    let mut used: BTreeMap<Option<PieceName>, u64> = BTreeMap::new();
    let mut stretches: Vec<ContainerStretch> = Vec::new();
    let mut at = 0;
    while at < size && stretches.len() <= limit {
        let mut offset = at;
        for found in world.index().lookup(at, WINDOW.min(size - at)) {
            let piece = found.piece.map(|piece| world.piece_name(piece).filter(|_| piece != BASE));
            if let Some(name) = piece {
                *used.entry(name).or_default() += found.len;
            }
            match stretches.last_mut() {
                Some(last)
                    if last.piece == piece
                        && (piece.is_none() || last.at + last.len == found.at) =>
                {
                    last.len += found.len;
                }
                _ => {
                    stretches.push(ContainerStretch { offset, len: found.len, piece, at: found.at })
                }
            }
            offset += found.len;
        }
        // Always advance, even if a lookup returns nothing.
        at = offset.max(at + 1);
    }
    let more = at < size || stretches.len() > limit;
    stretches.truncate(limit);
    let mut names: Vec<Option<PieceName>> = world.names().iter().copied().map(Some).collect();
    if container.base_size()? > 0 {
        names.insert(0, None);
    }
    let mut pieces = Vec::new();
    for name in names {
        let stored = match name {
            Some(name) => container.piece_len(name)?,
            None => container.base_size()?,
        };
        pieces.push(ContainerPieceSummary {
            name,
            stored,
            used: used.get(&name).copied().unwrap_or(0),
        });
    }
    let mut opens = Vec::new();
    for roll in world.opens() {
        let dead = roll.is_job_dead().context("lock", path)?;
        opens.push(ContainerOpenSummary { open: roll.header.open, ranks: roll.header.ranks, dead });
    }
    let index = world.published().encode().len() as u64;
    Ok(ContainerSummary { size, index, pieces, opens, stretches, more })
}
