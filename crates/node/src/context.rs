//! The parts of a node that its threads share. Each part keeps its own state and its own rules;
//! code that needs one part takes that part.

use crate::connections::NodeConnections;
use crate::counters::NodeCounters;
use crate::current_map::CurrentMap;
use crate::disk::NodeDisk;
use crate::executor::table::ExecutorTable;
use crate::settings::NodeSettings;
use crate::stop::StopFlag;
use crate::wake_flag::WakeFlag;
use std::time::Instant;
use tatami_wire::Errno;
use tatami_wire::admin::DiskSpace;

/// See the module.
pub(crate) struct NodeContext {
    pub(crate) settings: NodeSettings,
    pub(crate) map: CurrentMap,
    pub(crate) disk: NodeDisk,
    pub(crate) connections: NodeConnections,
    /// The threads that serve shards.
    pub(crate) executors: ExecutorTable,
    pub(crate) counters: NodeCounters,
    pub(crate) started: Instant,
    pub(crate) housekeeping_wake: WakeFlag,
    pub(crate) stop: StopFlag,
}

impl NodeContext {
    /// Returns the space of the node's disk, and the number of inodes of all its executors.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn disk_space(&self) -> Result<DiskSpace, Errno> {
        Ok(DiskSpace { inodes: self.executors.inode_count(), ..self.disk.objects.disk_space()? })
    }
}
