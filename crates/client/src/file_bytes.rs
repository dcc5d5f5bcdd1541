//! What an open file can do with its bytes, wherever they are.
//!
//! One implementation is one kind of file: an object of this node, an object of another node, a
//! tiled file. [`DataFile`](crate::DataFile) holds one of them, which `open_data` chooses at the
//! open. A method with a body answers for a kind that has nothing of the sort.

use crate::connection::PayloadSink;
use crate::object_handle::ObjectHandle;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_wire::Errno;
use tatami_wire::object::{AllocMode, ObjectState, SeekTarget};

/// The bytes of an open file of one kind. `DataFile` has methods of the same names, which say more:
/// they check the arguments, refuse to change damaged files, and follow a file that was relocated.
#[allow(clippy::missing_errors_doc)] // as for `DataFile`
pub(crate) trait FileBytes: Send + Sync {
    /// Reads up to `buf.len()` bytes from `offset`; fewer only at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// Writes all of `data`, which is not empty, to `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno>;

    /// Writes `data`, at most one payload, to the end, atomically with regard to other appends.
    fn append(&self, data: &[u8]) -> Result<usize, Errno>;

    /// Waits until all accepted writes have reached their nodes, and returns their failures.
    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// As [`FileBytes::flush`], but leaves failures for the writers to learn later.
    fn wait_for_writes(&self) {}

    /// Makes everything written so far survive a power cut.
    fn sync(&self, data_only: bool) -> Result<ObjectState, Errno>;

    /// Cuts or extends the file.
    fn truncate(&self, size: u64) -> Result<ObjectState, Errno>;

    /// Reserves, frees or zeroes a range.
    fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno>;

    /// Returns the next data, or hole, at or after `offset`.
    fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno>;

    /// Returns size and storage, with everything that was written through this client.
    fn stat(&self) -> Result<ObjectState, Errno>;

    /// Returns the one object that has all bytes.
    fn object(&self) -> Option<&ObjectHandle> {
        None
    }

    /// Returns whether bytes are missing that an object must have by the shard's records. Not for a
    /// file of which only the inode tells a size: `DataFile` compares the two.
    fn has_lost_bytes(&self) -> Result<bool, Errno> {
        Ok(false)
    }

    /// Returns whether each write of another client changes the state of these bytes.
    fn shows_all_writes(&self) -> bool {
        true
    }

    /// Returns whether all bytes are in one file of this node's disk.
    fn has_local_file(&self) -> bool {
        false
    }

    /// Returns the file with all bytes on this node's disk; with `create`, made where there is
    /// none.
    fn local_file(&self, _create: bool) -> Result<Option<Arc<OwnedFd>>, Errno> {
        Ok(None)
    }

    /// Uses `file` as the file on this node's disk, or closes that file until it is needed again.
    fn set_local_file(&self, _file: Option<Arc<OwnedFd>>) {}

    /// Returns whether the bytes come from one socket, so that [`FileBytes::read_into`] works.
    fn can_splice(&self) -> bool {
        false
    }

    /// Reads up to `len` bytes, at most one payload, from `offset` into `sink`; fewer only at the
    /// end.
    fn read_into(
        &self,
        _sink: &mut dyn PayloadSink,
        _offset: u64,
        _len: usize,
    ) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }
}
