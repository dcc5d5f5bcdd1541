//! What every way of keeping a file must be able to do, for one rank.

use crate::error::Result;
use crate::memory::Buffer;
use tatami_layout::View;

/// The bytes of a file as one rank of one open sees them. Positions are bytes
/// of the stream that a view shows. Calls on one engine come one at a time.
pub trait Engine: Send {
    /// Writes all of `data` from stream position `stream` on.
    ///
    /// # Errors
    /// Those of the disk; a part may have been written.
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()>;

    /// Reads as much of `into` as lies before the end of the file; bytes read.
    ///
    /// # Errors
    /// Those of the disk.
    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64>;

    /// The size of the file now, in bytes.
    ///
    /// # Errors
    /// Those of the disk.
    fn size(&mut self) -> Result<u64>;

    /// Cuts the file, or extends it by zeros.
    ///
    /// # Errors
    /// Those of the disk.
    fn set_size(&mut self, size: u64) -> Result<()>;

    /// Makes the file at least `size` bytes long, with room on the disk where that is possible.
    ///
    /// # Errors
    /// `ENOSPC`, and others of the disk.
    fn preallocate(&mut self, size: u64) -> Result<()>;

    /// A stamp for a new view epoch.
    fn stamp(&self) -> u64;

    /// A new view epoch begins.
    ///
    /// # Errors
    /// Those of the disk.
    fn epoch(&mut self, stamp: u64) -> Result<()>;

    /// From now on every access is made under the whole-file lock, or no longer.
    fn set_atomic(&mut self, on: bool);

    /// What rank 0 must know of this rank's piece to publish it, in its own
    /// encoding. Nothing where nothing is new. With `durable` the bytes are on
    /// the disk when this returns.
    ///
    /// # Errors
    /// Those of the disk.
    fn seal(&mut self, durable: bool) -> Result<Vec<u8>>;

    /// Makes what all ranks have sealed a part of the file that needs no
    /// journal. `sealed` is by rank. With `closing` the open is over.
    ///
    /// # Errors
    /// Those of the disk.
    fn publish(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()>;

    /// What this rank sealed was published.
    fn published(&mut self);
}
