//! The space of nodes, as they have reported it.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tatami_wire::NodeId;
use tatami_wire::admin::DiskSpace;
use tatami_wire::object::RegionRoom;

/// Space of a volume: the disks of all nodes that answer, each counted once, and their region
/// devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free for the superuser.
    pub free: u64,
    /// Bytes free for users.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// The reports of nodes, and when they came.
#[derive(Default)]
pub(crate) struct NodeSpaces {
    pub(crate) nodes: Mutex<HashMap<NodeId, (Instant, DiskSpace)>>,
    /// The room of region devices, and when it was reported.
    regions: Mutex<HashMap<NodeId, (Instant, RegionRoom)>>,
    /// Whether reports come with terms, without a request.
    pub(crate) comes_with_terms: AtomicBool,
}

impl NodeSpaces {
    /// Records a report that came with a term.
    pub(crate) fn record_with_term(&self, node: NodeId, space: DiskSpace) {
        self.record_space(node, space);
        self.comes_with_terms.store(true, Relaxed);
    }

    pub(crate) fn record_space(&self, node: NodeId, space: DiskSpace) {
        self.nodes.lock().insert(node, (Instant::now(), space));
    }

    pub(crate) fn forget_node(&self, node: NodeId) {
        self.nodes.lock().remove(&node);
        self.regions.lock().remove(&node);
    }

    /// Records the room of a node's region device.
    pub(crate) fn record_regions(&self, node: NodeId, room: RegionRoom) {
        self.regions.lock().insert(node, (Instant::now(), room));
    }

    /// Returns the age of the last report of a node's region device.
    pub(crate) fn regions_age(&self, node: NodeId) -> Option<Duration> {
        self.regions.lock().get(&node).map(|(since, _)| since.elapsed())
    }

    /// Returns the age of a node's last report. A client that gets no reports with terms uses no
    /// old report.
    pub(crate) fn report_age(&self, node: NodeId) -> Option<Duration> {
        if !self.comes_with_terms.load(Relaxed) {
            return None;
        }
        self.nodes.lock().get(&node).map(|(since, _)| since.elapsed())
    }

    /// Adds up the reports of these nodes.
    pub(crate) fn sum_spaces(&self, nodes: impl Iterator<Item = NodeId>) -> VolumeSpace {
        let (spaces, regions) = (self.nodes.lock(), self.regions.lock());
        let mut sum = VolumeSpace::default();
        let mut seen = HashSet::new();
        for node in nodes {
            let Some((_, space)) = spaces.get(&node) else { continue };
            sum.inodes += space.inodes;
            // Each node has a device of its own.
            let room = regions.get(&node).map(|(_, room)| *room).unwrap_or_default();
            sum.total += room.total;
            sum.free += room.free;
            sum.available += room.free;
            if seen.insert(space.disk) {
                sum.total += space.total;
                sum.free += space.free;
                sum.available += space.available;
            }
        }
        sum
    }
}
