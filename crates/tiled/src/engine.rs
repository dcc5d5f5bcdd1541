//! The operations that each kind of file must offer to one rank.

use crate::error::Result;
use crate::memory::Buffer;
use tatami_layout::View;

/// The bytes of a file as one rank of one open sees them. Positions are bytes
/// of the stream that a view shows. Calls on one engine come one at a time. Errors are those of the
/// disk, the mount, the nodes and the shard.
pub trait Engine: Send {
    /// Writes all of `data` from stream position `stream` on. After an error a part may be written.
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()>;

    /// Reads as much of `into` as lies before the end of the file; bytes read.
    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64>;

    /// The size of the file now, in bytes.
    fn file_size(&mut self) -> Result<u64>;

    /// Truncates the file, or extends it by zeros.
    fn set_size(&mut self, size: u64) -> Result<()>;

    /// Makes the file at least `size` bytes long, with room on the disk where that is possible.
    fn preallocate(&mut self, size: u64) -> Result<()>;

    /// Returns a stamp for a new view epoch.
    fn next_stamp(&self) -> u64;

    /// Begins a new view epoch.
    fn begin_epoch(&mut self, stamp: u64) -> Result<()>;

    /// Switches atomic mode: with `on` every access is made under the whole-file lock.
    fn set_atomic(&mut self, on: bool);

    /// Returns the news of this rank's piece that rank 0 must publish, in the engine's own
    /// encoding; empty where there are none. With `durable` the bytes are on the disk when this
    /// returns.
    fn seal_piece(&mut self, durable: bool) -> Result<Vec<u8>>;

    /// Publishes the sealed pieces of all ranks, so that they need no journal any more. `sealed` is
    /// by rank. With `closing` the open ends.
    fn publish_pieces(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()>;

    /// Records that the bytes that this rank sealed last were published.
    fn mark_published(&mut self);
}
