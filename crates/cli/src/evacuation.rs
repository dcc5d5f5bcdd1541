//! `tatami relayout --from`: the choice of new nodes for the bytes of files that leave a node.

use crate::error::{CommandFailure, CommandResult};
use tatami_client::Client;
use tatami_client::relayout::RelayoutGoal;
use tatami_cluster::VolumeFile;
use tatami_wire::admin::{AdminCall, AdminReply, DiskSpace};
use tatami_wire::{Attr, Errno, NodeId};

/// The nodes that files leave, and those that get them.
#[derive(Debug)]
pub struct Evacuation {
    /// The nodes that files leave.
    pub from: Vec<NodeId>,
    /// The others, with the space that is left as far as is known.
    targets: Vec<(NodeId, DiskSpace)>,
}

impl Evacuation {
    /// Plans to move files from the nodes `from` to the nodes `on`. Without `on`, to all other
    /// nodes that answer and have a part of the namespace: one without has been drained, too.
    ///
    /// # Errors
    /// A node is in both lists, or no node is left.
    pub fn plan(
        client: &Client,
        volume: &VolumeFile,
        from: Vec<NodeId>,
        on: &[NodeId],
    ) -> CommandResult<Evacuation> {
        let name = |node: &NodeId| volume.node(*node).map_or(String::new(), |n| n.name.clone());
        if let Some(both) = on.iter().find(|node| from.contains(node)) {
            let what = format!("files cannot both leave {0} and move to {0}", name(both));
            return Err(CommandFailure::usage(what));
        }
        let serves = |node: &NodeId| volume.shards.iter().any(|owner| owner.node == *node);
        let serving = || volume.nodes.iter().filter(|entry| !entry.leaving);
        let others = || serving().map(|n| NodeId(n.id)).filter(|n| !from.contains(n));
        let mut wanted: Vec<NodeId> = match on {
            [] => others().filter(serves).collect(),
            on => on.to_vec(),
        };
        if wanted.is_empty() {
            wanted = others().collect();
        }
        let space = |node| match client.send_admin(node, AdminCall::Space) {
            Ok(AdminReply::Space(space)) => Some((node, space)),
            _ => None,
        };
        let targets: Vec<_> = wanted.iter().filter_map(|node| space(*node)).collect();
        if targets.is_empty() {
            let names: Vec<_> = wanted.iter().map(name).collect();
            let cause = match names.is_empty() {
                true => "the volume has no other nodes".to_owned(),
                false => format!("{} do not answer", names.join(", ")),
            };
            return Err(CommandFailure::degraded("there is no node that can take the files")
                .because(cause)
                .try_this("tatami status; to add a node: tatami node add"));
        }
        Ok(Evacuation { from, targets })
    }

    /// Returns the layout of a file on the new nodes: `striped` in stripes of `unit` bytes, or
    /// whole. Counts the bytes as taken.
    pub fn choose_goal(&mut self, striped: bool, unit: u64, attr: &Attr) -> RelayoutGoal {
        let Some(roomiest) = self.find_roomiest() else { return RelayoutGoal::Whole(None) };
        if striped {
            let mut nodes: Vec<_> = self.targets.iter().map(|(node, _)| *node).collect();
            // In the order of the volume, as without `--from`.
            nodes.sort();
            return RelayoutGoal::Striped { nodes, unit, base: Some(roomiest.0) };
        }
        // Nodes on one disk share its space.
        for (_, space) in self.targets.iter_mut().filter(|(_, s)| s.disk == roomiest.1.disk) {
            space.available = space.available.saturating_sub(attr.size);
        }
        // Of nodes on one disk, the next file gets the next node.
        if let Some(at) = self.targets.iter().position(|(node, _)| *node == roomiest.0) {
            let used = self.targets.remove(at);
            self.targets.push(used);
        }
        RelayoutGoal::Whole(Some(roomiest.0))
    }

    /// Returns the node with the most space; of several with the same, the first.
    fn find_roomiest(&self) -> Option<(NodeId, DiskSpace)> {
        let most = self.targets.iter().map(|(_, space)| space.available).max()?;
        self.targets.iter().find(|(_, space)| space.available == most).copied()
    }

    /// Returns whether a file has an object on one of the nodes that files leave.
    ///
    /// # Errors
    /// Those of the shard.
    pub fn concerns_file(&self, client: &Client, attr: &Attr) -> Result<bool, Errno> {
        client.has_object_on(attr, &self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{Ino, InodeKind};

    #[test]
    fn files_go_where_there_is_room() {
        let target = |node, available, disk| {
            let (total, free, inodes) = (100, 100, 0);
            (NodeId(node), DiskSpace { total, free, available, disk, inodes })
        };
        // The nodes 1 and 2 are on one disk.
        let targets = vec![target(1, 50, 7), target(2, 50, 7), target(3, 30, 8)];
        let mut plan = Evacuation { from: vec![NodeId(0)], targets };
        let mut choose = |size| {
            let attr = Attr { size, ..Attr::with_defaults(Ino(9), InodeKind::File) };
            plan.choose_goal(false, 4096, &attr)
        };
        let whole = |node| RelayoutGoal::Whole(Some(NodeId(node)));
        assert_eq!(
            [choose(10), choose(15), choose(25), choose(1), choose(1)],
            [whole(1), whole(2), whole(3), whole(1), whole(2)]
        );
        let striped = plan.choose_goal(true, 4096, &Attr::with_defaults(Ino(9), InodeKind::File));
        let RelayoutGoal::Striped { nodes, base, .. } = striped else { panic!("{striped:?}") };
        assert_eq!((nodes.len(), base.is_some()), (3, true));
    }
}
