//! What the store needs of a device and of the file of its journal. Tests put a simulated machine
//! behind both ([`crate::power_cut`]).

use crate::aligned::AlignedBuffer;
use std::io;

/// A part of the writer's memory, and where it goes or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePart {
    /// First byte in the memory.
    pub from: usize,
    /// Number of bytes: whole blocks.
    pub len: usize,
    /// Offset on the device: a block boundary.
    pub to: u64,
}

/// A device with blocks of [`crate::class::BLOCK`] bytes. Any thread may read. One thread writes,
/// through its [`DeviceWriter`].
pub trait BlockDevice: Send + Sync {
    /// Returns its length, in bytes.
    fn len(&self) -> u64;

    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads `len` bytes, whole blocks, from `offset` to the start of `buffer`.
    ///
    /// # Errors
    /// Those of pread(2); `UnexpectedEof` behind the end.
    fn read_at(&self, buffer: &mut AlignedBuffer, len: usize, offset: u64) -> io::Result<()>;

    /// Makes all writes that have returned survive a power cut.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    fn flush(&self) -> io::Result<()>;

    /// Says that nothing of a range is needed any more. It may read as anything afterwards.
    fn discard_range(&self, offset: u64, len: u64);

    /// Makes the writer, with memory for `len` bytes.
    ///
    /// # Errors
    /// Those of the system.
    fn make_writer(&self, len: usize) -> io::Result<Box<dyn DeviceWriter>>;
}

/// Writes and reads many parts of its memory at once.
pub trait DeviceWriter: Send {
    /// Returns the memory.
    fn memory_mut(&mut self) -> &mut [u8];

    /// Writes the parts in any order, and returns when all have ended: for each, whether it is
    /// written. A part that failed may be written in part.
    fn write_parts(&mut self, parts: &[WritePart]) -> Vec<io::Result<()>>;

    /// Reads the parts to its memory in any order, and returns when all have ended: for each,
    /// whether it is read. A part that failed may have any bytes.
    fn read_parts(&mut self, parts: &[WritePart]) -> Vec<io::Result<()>>;
}

/// The file of the journal.
pub trait LogFile: Send + Sync {
    /// Reads as much as there is.
    ///
    /// # Errors
    /// Those of pread(2).
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all parts, one behind the other. What was written survives the death of the process.
    ///
    /// # Errors
    /// Those of pwritev(2).
    fn write_at(&self, parts: [&[u8]; 2], offset: u64) -> io::Result<()>;

    /// Makes all that was written survive a power cut.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    fn sync(&self) -> io::Result<()>;
}
