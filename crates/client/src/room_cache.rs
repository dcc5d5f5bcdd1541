//! The known room on the disks of other nodes.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Instant;
use tatami_wire::NodeId;

/// Where new files go when the disk of their home node is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// To the next node that has room, by number; to the home node where none has.
    #[default]
    Next,
    /// To the home node: then writes fail with `ENOSPC`.
    Refuse,
}

/// The known room of other nodes.
#[derive(Default)]
pub(crate) struct RoomCache {
    pub(crate) when_full: WhenFull,
    pub(crate) asked: Mutex<HashMap<NodeId, (Instant, bool)>>,
}

impl RoomCache {
    pub(crate) fn new(when_full: WhenFull) -> RoomCache {
        RoomCache { when_full, ..RoomCache::default() }
    }
}
