//! The space of nodes, as they have reported it.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tatami_wire::NodeId;
use tatami_wire::admin::DiskSpace;

/// Space of a volume: the disks of all nodes that answer, each counted once.
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
        let spaces = self.nodes.lock();
        let mut sum = VolumeSpace::default();
        let mut seen = HashSet::new();
        for space in nodes.filter_map(|node| spaces.get(&node)).map(|(_, space)| space) {
            sum.inodes += space.inodes;
            if seen.insert(space.disk) {
                sum.total += space.total;
                sum.free += space.free;
                sum.available += space.available;
            }
        }
        sum
    }
}
