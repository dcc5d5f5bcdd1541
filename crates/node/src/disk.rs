//! The node's disk: the objects, and the mark that the node lost its former ones.

use std::time::UNIX_EPOCH;
use tatami_cluster::LossMark;
use tatami_object::NodeObjects;

/// `status` complains when less than one part in this number of the disk is free.
const NEARLY_FULL: u64 = 20;

/// See the module.
pub(crate) struct NodeDisk {
    pub(crate) objects: NodeObjects,
    pub(crate) loss_mark: LossMark,
}

impl NodeDisk {
    /// Returns the time, in seconds since 1970, since which the node runs without its former data.
    pub(crate) fn lost_since(&self) -> Option<u64> {
        let since = self.loss_mark.lost_since()?.duration_since(UNIX_EPOCH);
        Some(since.map_or(0, |since| since.as_secs()))
    }

    /// Describes what is wrong with the disk, one sentence each.
    pub(crate) fn describe_trouble(&self) -> Vec<String> {
        let mut trouble: Vec<String> = self.objects.describe_trouble().into_iter().collect();
        match self.objects.disk_space() {
            Err(e) => trouble.push(format!("the disk does not answer: {e}; check it")),
            Ok(space) if space.available < space.total / NEARLY_FULL => trouble.push(format!(
                "the disk is nearly full: {} MiB of {} MiB are left; remove files or add space",
                space.available >> 20,
                space.total >> 20
            )),
            Ok(_) => {}
        }
        trouble
    }
}
