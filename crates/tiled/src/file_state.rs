//! The state of a tiled file at one handle: one index of the published tiles, of the journals of
//! other ranks and of the own piece. This is the part that containers and volumes share: when a
//! handle refreshes its state, and when it builds the index again.

use crate::error::{Result, TiledError};
use crate::marker::PieceName;
use crate::piece::OwnPieceState;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::IoSliceMut;
use std::path::Path;
use tatami_layout::{Piece, TileIndex};

/// Attempts to read a consistent state while other processes change the file.
const TRIES: usize = 100;
/// Pieces kept open for reading.
const FILES_MAX: usize = 256;

/// The index as it was built last.
#[derive(Debug)]
pub struct BuiltIndex {
    index: TileIndex,
    /// How often it was built.
    count: u64,
    /// The own piece in it, and the changes of that piece.
    own: Option<(PieceName, u64)>,
}

impl Default for BuiltIndex {
    /// The index of an empty file.
    fn default() -> BuiltIndex {
        let index = TileIndex::new(Vec::new(), Vec::new(), 0);
        BuiltIndex { index, count: 0, own: None }
    }
}

impl BuiltIndex {
    /// Replaces the index by one that contains this state of the own piece.
    pub fn replace_index(&mut self, index: TileIndex, own: Option<OwnPieceState<'_>>) {
        let own = own.map(|own| (own.name, own.changes));
        *self = BuiltIndex { index, count: self.count + 1, own };
    }
}

/// Returns the file of a piece among those that are open for reading; `open` opens another one.
pub fn open_cached<F>(
    files: &mut BTreeMap<Piece, F>,
    piece: Piece,
    open: impl FnOnce() -> Result<F>,
) -> Result<&mut F> {
    if files.len() >= FILES_MAX && !files.contains_key(&piece) {
        files.pop_first();
    }
    match files.entry(piece) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(new) => Ok(new.insert(open()?)),
    }
}

/// The cached state of a file. The methods without a body are what a container and a volume do
/// each in its own way. Errors are those of the disk, the mount, the nodes and the shard, and `EIO`
/// for damage.
pub trait FileState {
    /// The path of the file, for errors.
    fn path(&self) -> &Path;

    /// The index as it was built last.
    fn built(&self) -> &BuiltIndex;

    /// Reports whether `piece` of the index is the piece of this rank, with the name `own`.
    fn is_own_piece(&self, piece: Piece, own: PieceName) -> bool;

    /// Fills `bytes` from a piece, from `at` on.
    fn read_piece(&mut self, piece: Piece, bytes: &mut [u8], at: u64) -> Result<()>;

    /// Makes the next refresh look at the published tiles again.
    fn invalidate_cache(&mut self);

    /// Reads the published tiles where they may have changed. Returns whether they have; `None`
    /// where they changed again meanwhile.
    fn refresh_published(&mut self) -> Result<Option<bool>>;

    /// Reads the journals where they have more than was published; not that of the own piece.
    /// Returns whether there was anything; `None` where tiles were published meanwhile, so that
    /// the published ones must be read again.
    fn poll_journals(&mut self, own: Option<PieceName>) -> Result<Option<bool>>;

    /// Builds the index from what was read, and from the own piece.
    fn build_index(&mut self, own: Option<OwnPieceState<'_>>);

    /// Finds bytes that the base has gained without a publication, where the index ends before
    /// byte `to`. Returns whether there are any. The base of a container gains none.
    fn refresh_base(&mut self, _to: u64) -> Result<bool> {
        Ok(false)
    }

    /// The piece of each byte, as of the last refresh.
    fn index(&self) -> &TileIndex {
        &self.built().index
    }

    /// A number that grows with every change of the index.
    fn build_count(&self) -> u64 {
        self.built().count
    }

    /// Fills `parts`, one after the other, from a piece, from `at` on.
    fn read_parts(
        &mut self,
        piece: Piece,
        parts: &mut [IoSliceMut<'_>],
        mut at: u64,
    ) -> Result<()> {
        for part in parts {
            self.read_piece(piece, part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Refreshes the state for a read of bytes before `to`. `own` is this rank's piece.
    fn refresh_state(&mut self, own: Option<OwnPieceState<'_>>, to: u64) -> Result<()> {
        let (mut changed, own_version) = (false, own.map(|own| (own.name, own.changes)));
        for _ in 0..TRIES {
            let Some(published) = self.refresh_published()? else { continue };
            changed |= published;
            let Some(recorded) = self.poll_journals(own.map(|own| own.name))? else {
                // Build the index only when the published tiles were read again, or bytes of a
                // journal that is gone would be missing.
                self.invalidate_cache();
                changed = true;
                continue;
            };
            if changed || recorded || self.built().own != own_version {
                self.build_index(own);
            }
            if self.refresh_base(to)? {
                self.build_index(own);
            }
            return Ok(());
        }
        let why = "its rank table names a journal that is not there, or it changes all the time";
        Err(TiledError::with_detail("read", self.path(), Errno::AGAIN, why))
    }

    /// Returns the size of the file now, in bytes.
    fn current_size(&mut self, own: Option<OwnPieceState<'_>>) -> Result<u64> {
        self.refresh_state(own, u64::MAX)?;
        Ok(self.index().size())
    }
}
