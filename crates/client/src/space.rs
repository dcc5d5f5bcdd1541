//! Space of the volume, from what its nodes have told.
//!
//! An executor tells the space of its node with each term of delegations. So a mount knows it, some seconds old, of
//! each node that has shards. Nodes without shards are asked now and then; a client without delegations asks all.

use crate::Client;
use crate::waiting::GRACE;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult, Space};
use tatami_wire::{Errno, NodeId};

/// What a node has told is used without asking for so long: for several terms.
const FRESH: Duration = Duration::from_secs(10);
/// What is older than this is not used at all. In between, one node a question is asked, the one that told last the
/// longest ago.
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

/// What nodes have told of their space, and when.
#[derive(Default)]
pub(crate) struct ToldSpace {
    nodes: Mutex<HashMap<NodeId, (Instant, Space)>>,
    /// Nodes tell without being asked.
    comes_with_terms: AtomicBool,
}

impl ToldSpace {
    /// A node has told its space with a term.
    pub(crate) fn note_with_term(&self, node: NodeId, space: Space) {
        self.note(node, space);
        self.comes_with_terms.store(true, Relaxed);
    }

    fn note(&self, node: NodeId, space: Space) {
        self.nodes.lock().insert(node, (Instant::now(), space));
    }

    fn forget(&self, node: NodeId) {
        self.nodes.lock().remove(&node);
    }

    /// How old the last word of a node is. A client that hears nothing without asking relies on no old word.
    fn age(&self, node: NodeId) -> Option<Duration> {
        if !self.comes_with_terms.load(Relaxed) {
            return None;
        }
        self.nodes.lock().get(&node).map(|(since, _)| since.elapsed())
    }

    /// Adds up what these nodes have told.
    fn sum(&self, nodes: impl Iterator<Item = NodeId>) -> VolumeSpace {
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
    /// Space of the volume, as its nodes told it some seconds ago. Nodes that are down are left out.
    ///
    /// A client that holds delegations asks no node that has shards. Of the others it asks one at most, if all have
    /// told within half a minute. A node that says nothing is waited for 1 s, and then not again for some seconds.
    pub fn statfs(&self) -> VolumeSpace {
        let map = self.map();
        let nodes = || map.nodes.iter().map(|node| node.id);
        let mut oldest: Option<(Duration, NodeId)> = None;
        for node in nodes() {
            match self.told_space.age(node) {
                Some(age) if age < FRESH => {}
                Some(age) if age < LASTING => oldest = oldest.max(Some((age, node))),
                _ => self.ask_space(node),
            }
        }
        if let Some((_, node)) = oldest {
            self.ask_space(node);
        }
        self.told_space.sum(nodes())
    }

    fn ask_space(&self, node: NodeId) {
        if self.away.is_away(node) {
            return;
        }
        let answer: Result<AdminResult, Errno> =
            self.peer(node).and_then(|peer| peer.admin_within(GRACE, &AdminCall::Space));
        if let Ok(Ok(AdminReply::Space(space))) = answer {
            self.told_space.note(node, space);
        } else {
            self.told_space.forget(node);
            self.away.note(node);
        }
    }
}
