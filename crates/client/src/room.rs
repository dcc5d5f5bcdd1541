//! The node for the bytes of a new file: the home node, or the next one with room where the home
//! node's disk is full.

use crate::Client;
use crate::room_cache::WhenFull;
use std::path::Path;
use std::time::{Duration, Instant};
use tatami_wire::admin::{AdminCall, AdminReply, ClusterMap};
use tatami_wire::{Layout, NodeId};

/// A disk with fewer available bytes takes no new files.
const FULL: u64 = 64 << 20;
/// On small disks this share: one part in `SMALL_SHARE`.
const SMALL_SHARE: u64 = 16;
/// How long the reply of another node about its room counts; also a missing reply.
const ASKED: Duration = Duration::from_secs(2);

impl Client {
    /// Returns the layout of a new file: whole, on the home node, or on the first node where there
    /// is no home node; on the next one where that has no room ([`WhenFull`]).
    pub fn new_layout(&self) -> Layout {
        let map = self.map();
        let home = self.home().filter(|home| map.is_serving(*home));
        let node = self.serving_node(self.home().unwrap_or(NodeId(0)));
        if self.room_cache.when_full == WhenFull::Refuse {
            return Layout::whole(node);
        }
        if home.is_none_or(|home| has_local_room(&map, home)) {
            return Layout::whole(node);
        }
        let (before, after): (Vec<NodeId>, Vec<NodeId>) = map
            .members()
            .map(|info| info.id)
            .filter(|id| *id != node && map.is_serving(*id))
            .partition(|id| *id < node);
        let next = after.into_iter().chain(before).find(|id| self.has_room(*id));
        Layout::whole(next.unwrap_or(node))
    }

    /// Returns `node`, or the next node that serves the volume if `node` leaves it.
    pub fn serving_node(&self, node: NodeId) -> NodeId {
        let map = self.map();
        let from = usize::from(node.0).min(map.nodes.len());
        let (before, after) = map.nodes.split_at(from);
        let serving = after.iter().chain(before).find(|info| map.is_serving(info.id));
        serving.map_or(node, |info| info.id)
    }

    /// Returns whether another node has room for new files.
    fn has_room(&self, node: NodeId) -> bool {
        if let Some((at, answer)) = self.room_cache.asked.lock().get(&node)
            && at.elapsed() < ASKED
        {
            return *answer;
        }
        let answer = match self.send_admin(node, AdminCall::Space) {
            Ok(AdminReply::Space(space)) => !is_full(space.available, space.total),
            _ => false,
        };
        self.room_cache.asked.lock().insert(node, (Instant::now(), answer));
        answer
    }
}

/// Returns whether the disk of the home node has room for new files. The client asks the file
/// system itself: that costs no request.
fn has_local_room(map: &ClusterMap, home: NodeId) -> bool {
    let info = map.find_member(home);
    let Some(dir) = info.and_then(|info| Path::new(&info.socket).parent()) else { return true };
    rustix::fs::statvfs(dir).map_or(true, |disk| {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        !is_full(bytes(disk.f_bavail), bytes(disk.f_blocks))
    })
}

fn is_full(available: u64, total: u64) -> bool {
    available < FULL.min(total / SMALL_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_before_its_last_byte() {
        let (mib, tib) = (1 << 20, 1 << 40);
        assert!(is_full(63 * mib, tib) && !is_full(64 * mib, tib));
        assert!(is_full(mib, 32 * mib) && !is_full(2 * mib, 32 * mib));
        assert!(!is_full(0, 0), "one that tells nothing");
    }
}
