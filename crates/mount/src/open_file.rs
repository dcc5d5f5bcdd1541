//! An open file of the mount.

use crate::open::OpenInode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tatami_client::DataFile;
use tatami_wire::Access;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<OpenInode>,
    pub(crate) data: Arc<DataFile>,
    pub(crate) access: Access,
    /// Size at the open, in bytes.
    pub(crate) opened_size: u64,
    pub(crate) lock_state: FileLockState,
}

impl OpenFile {
    /// Counts a change of the bytes for the next commit. What the shard has recorded itself needs
    /// no commit. Returns whether this mount now knows newer attributes than the shard.
    pub(crate) fn count_write(&self) -> bool {
        let is_ahead = !self.data.records_changes();
        if is_ahead {
            self.inode.count_write();
        }
        is_ahead
    }
}

/// The locks of an open file.
#[derive(Debug, Default)]
pub(crate) struct FileLockState {
    /// A lock was acquired through the file.
    pub(crate) taken: AtomicBool,
    /// A descriptor was closed since.
    pub(crate) closed: AtomicBool,
    /// The locks were lost, and other owners may have had them.
    pub(crate) lost: AtomicBool,
    /// The kernel sends no FLUSH for the file.
    pub(crate) silent: bool,
}

impl FileLockState {
    pub(crate) fn new(silent: bool) -> FileLockState {
        FileLockState { silent, ..FileLockState::default() }
    }

    /// Checks whether the file may have been closed without a FLUSH.
    pub(crate) fn may_be_closed(&self) -> bool {
        self.silent || self.closed.load(SeqCst)
    }
}
