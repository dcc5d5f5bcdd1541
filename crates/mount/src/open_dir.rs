//! An open directory of the mount, with the entries that its reader has not taken yet.

use crate::open::OpenInode;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tatami_wire::meta::DirEntry;
use tatami_wire::{Cred, Ino};

/// An open directory.
pub(crate) struct OpenDir {
    pub(crate) inode: Arc<OpenInode>,
    /// The thread that opened the directory. Its groups are read from `/proc`.
    pub(crate) pid: u32,
    pub(crate) state: Mutex<ListingState>,
}

/// The listing as far as it was read.
pub(crate) struct ListingState {
    pub(crate) cred: Cred,
    pub(crate) parent: Option<Ino>,
    /// Entries after offset `at`, in order.
    pub(crate) buffered: VecDeque<DirEntry>,
    pub(crate) position: u64,
    /// `ahead` is the end of the listing.
    pub(crate) end: bool,
    /// `ahead` was requested with attributes.
    pub(crate) plus: bool,
}
