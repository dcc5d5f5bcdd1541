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
pub(crate) trait FileBytes: Send + Sync {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno>;
    /// `data` is not empty.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno>;
    /// `data` is at most one payload.
    fn append(&self, data: &[u8]) -> Result<usize, Errno>;
    fn sync(&self, data_only: bool) -> Result<ObjectState, Errno>;
    fn truncate(&self, size: u64) -> Result<ObjectState, Errno>;
    fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno>;
    fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno>;
    fn stat(&self) -> Result<ObjectState, Errno>;

    /// Waits until no accepted write is under way.
    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn wait_for_writes(&self) {}

    /// Returns the one object that has all bytes.
    fn object(&self) -> Option<&ObjectHandle> {
        None
    }

    /// Returns whether an object lacks bytes that it has by the shard's records. A file of one
    /// object has no such records: there `DataFile` compares the sizes of inode and object.
    fn has_lost_bytes(&self) -> Result<bool, Errno> {
        Ok(false)
    }

    fn shows_all_writes(&self) -> bool {
        true
    }

    /// Returns whether the shard stores the bytes, and records size and times with each change.
    fn records_changes(&self) -> bool {
        false
    }

    fn has_local_file(&self) -> bool {
        false
    }

    fn local_file(&self, _create: bool) -> Result<Option<Arc<OwnedFd>>, Errno> {
        Ok(None)
    }

    fn set_local_file(&self, _file: Option<Arc<OwnedFd>>) {}

    fn can_splice(&self) -> bool {
        false
    }

    fn read_into(
        &self,
        _sink: &mut dyn PayloadSink,
        _offset: u64,
        _len: usize,
    ) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }
}
