//! The backing file of an open inode: a local file that the kernel reads and writes directly.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_client::{BorrowedSpares, stat_file};
use tatami_fuse::BackingId;
use tatami_wire::object::ObjectState;
use tatami_wire::{Errno, Piece, Timestamp};

/// A local file that the kernel reads and writes directly.
#[derive(Clone)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    /// Open while a handle of this mount may write. The kernel has its own descriptor for readers.
    pub(crate) file: Option<Arc<OwnedFd>>,
    /// The object of the inode, existing or future.
    pub(crate) base: Piece,
    /// Set while the file is a spare file and not yet an object.
    pub(crate) spare: Option<SpareInUse>,
    pub(crate) unwritten: Option<UnwrittenTimes>,
}

impl Backing {
    /// Returns size, storage and times. `None` if no handle of this mount can have changed the
    /// file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn current_state(&self) -> Result<Option<ObjectState>, Errno> {
        let Some(file) = &self.file else { return Ok(None) };
        Ok(Some(UnwrittenTimes::adjust_time(self.unwritten, stat_file(file)?)))
    }
}

/// A spare file that is in use for an inode. It must be returned, or turned into an object.
#[derive(Clone)]
pub(crate) struct SpareInUse {
    pub(crate) loan: Arc<BorrowedSpares>,
    pub(crate) slot: usize,
}

/// Times of a spare file in use.
///
/// The spare file is older than its inode. Until the first byte it shows the time of the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnwrittenTimes {
    pub(crate) real: Timestamp,
    pub(crate) shown: Timestamp,
}

impl UnwrittenTimes {
    /// Replaces the time in `state` if the file has not been written to.
    pub(crate) fn adjust_time(this: Option<UnwrittenTimes>, mut state: ObjectState) -> ObjectState {
        if let Some(unwritten) = this.filter(|u| state.size == 0 && state.mtime == u.real) {
            state.mtime = unwritten.shown;
        }
        state
    }
}
