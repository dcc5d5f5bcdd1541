//! Space of the volume, from the reports of its nodes.
//!
//! An executor reports the space of its node with each term of delegations. So a mount knows the
//! space, some seconds old, of each node that has shards. Nodes without shards are asked now and
//! then; a client without delegations asks all.

use crate::Client;
use crate::waiting::GRACE;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult, DiskSpace};
use tatami_wire::{Errno, NodeId};

/// A report is used without a new request for this long: for several terms.
const FRESH: Duration = Duration::from_secs(10);
/// An older report is not used at all. In between, each call asks one node, the one with the oldest
/// report.
const LASTING: Duration = Duration::from_secs(30);

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
    nodes: Mutex<HashMap<NodeId, (Instant, DiskSpace)>>,
    /// Whether reports come with terms, without a request.
    comes_with_terms: AtomicBool,
}

impl NodeSpaces {
    /// Records a report that came with a term.
    pub(crate) fn record_with_term(&self, node: NodeId, space: DiskSpace) {
        self.record_space(node, space);
        self.comes_with_terms.store(true, Relaxed);
    }

    fn record_space(&self, node: NodeId, space: DiskSpace) {
        self.nodes.lock().insert(node, (Instant::now(), space));
    }

    fn forget_node(&self, node: NodeId) {
        self.nodes.lock().remove(&node);
    }

    /// Returns the age of a node's last report. A client that gets no reports with terms uses no
    /// old report.
    fn report_age(&self, node: NodeId) -> Option<Duration> {
        if !self.comes_with_terms.load(Relaxed) {
            return None;
        }
        self.nodes.lock().get(&node).map(|(since, _)| since.elapsed())
    }

    /// Adds up the reports of these nodes.
    fn sum_spaces(&self, nodes: impl Iterator<Item = NodeId>) -> VolumeSpace {
        let told = self.nodes.lock();
        let mut sum = VolumeSpace::default();
        let mut seen = HashSet::new();
        for space in nodes.filter_map(|node| told.get(&node)).map(|(_, space)| space) {
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

impl Client {
    /// Returns the space of the volume, some seconds old. Nodes that are down are left out.
    ///
    /// A client that holds delegations asks no node that has shards. Of the others it asks one at
    /// most, if all have reported within half a minute. A silent node is waited for 1 s, and then
    /// not again for some seconds.
    pub fn statfs(&self) -> VolumeSpace {
        let map = self.map();
        let nodes = || map.nodes.iter().map(|node| node.id);
        let mut oldest: Option<(Duration, NodeId)> = None;
        for node in nodes() {
            match self.node_spaces.report_age(node) {
                Some(age) if age < FRESH => {}
                Some(age) if age < LASTING => oldest = oldest.max(Some((age, node))),
                _ => self.fetch_space(node),
            }
        }
        if let Some((_, node)) = oldest {
            self.fetch_space(node);
        }
        self.node_spaces.sum_spaces(nodes())
    }

    fn fetch_space(&self, node: NodeId) {
        if self.away_nodes.is_away(node) {
            return;
        }
        let answer: Result<AdminResult, Errno> = self
            .node_client(node)
            .and_then(|peer| peer.send_admin_within(GRACE, &AdminCall::Space));
        if let Ok(Ok(AdminReply::Space(space))) = answer {
            self.node_spaces.record_space(node, space);
        } else {
            self.node_spaces.forget_node(node);
            self.away_nodes.record_away(node);
        }
    }
}
