//! Space of the volume, from the reports of its nodes: disks and region devices.
//!
//! An executor reports the space of its node with each term of delegations. So a mount knows the
//! space, some seconds old, of each node that has shards. Nodes without shards are asked now and
//! then; a client without delegations asks all.

use crate::Client;
use crate::node_spaces::VolumeSpace;
use crate::waiting::GRACE;
use std::time::Duration;
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult};
use tatami_wire::object::RegionRoom;
use tatami_wire::{Errno, NodeId};

/// A report is used without a new request for this long: for several terms.
const FRESH: Duration = Duration::from_secs(10);
/// An older report is not used at all. In between, each call asks one node, the one with the oldest
/// report.
const LASTING: Duration = Duration::from_secs(30);

impl Client {
    /// Returns the space of the volume, some seconds old. Nodes that are down are left out.
    ///
    /// A client that holds delegations asks no node that has shards. Of the others it asks one at
    /// most, if all have reported within half a minute. A silent node is waited for 1 s, and then
    /// not again for some seconds.
    pub fn statfs(&self) -> VolumeSpace {
        let map = self.map();
        let nodes = || map.members().map(|node| node.id);
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
        for node in nodes() {
            if self.node_spaces.regions_age(node).is_none_or(|age| age >= FRESH) {
                self.fetch_regions(node);
            }
        }
        self.node_spaces.sum_spaces(nodes())
    }

    /// Asks a node for the room of its region device. The regular reports of a node have only that
    /// of its disk.
    fn fetch_regions(&self, node: NodeId) {
        if self.away_nodes.is_away(node) {
            return;
        }
        let answer: Result<AdminResult, Errno> = self
            .node_client(node)
            .and_then(|peer| peer.send_admin_within(GRACE, &AdminCall::RegionRoom));
        match answer {
            Ok(Ok(AdminReply::RegionRoom(room))) => self.node_spaces.record_regions(node, room),
            // An older release has no devices.
            Ok(_) => self.node_spaces.record_regions(node, RegionRoom::default()),
            Err(_) => self.away_nodes.record_away(node),
        }
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
