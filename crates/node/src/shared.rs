//! State that all threads of a node share.

use crate::connections::clients::ClientTable;
use crate::connections::connection_slots::ConnectionSlots;
use crate::connections::pipes::PipePool;
use crate::connections::registry::ConnectionRegistry;
use crate::counters::{NodeCounters, RefusalCounters};
use crate::executor::table::ExecutorTable;
use crate::panics;
use crate::stop::StopFlag;
use crate::wake_flag::WakeFlag;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};
use tatami_cluster::LossMark;
use tatami_net::NetStream;
use tatami_object::ObjectStore;
use tatami_wire::admin::{ClusterMap, DiskSpace, Durability, MountInfo, NodeInfo, NodeStatus};
use tatami_wire::handshake::ServerIdentity;
use tatami_wire::{Errno, NodeId, PROTOCOL_VERSION};

/// `status` complains when less than one part in this number of the disk is free.
const NEARLY_FULL: u64 = 20;

/// See the module.
pub(crate) struct NodeShared {
    pub(crate) identity: ServerIdentity,
    /// See [`NodeShared::map`].
    pub(crate) current_map: RwLock<Arc<ClusterMap>>,
    /// The threads that serve shards.
    pub(crate) executors: ExecutorTable,
    pub(crate) info: NodeInfo,
    pub(crate) version: String,
    pub(crate) lease: Duration,
    /// See [`NodeOptions::reserve`](crate::NodeOptions::reserve).
    pub(crate) reserve: u64,
    pub(crate) durability: Durability,
    /// Whether users other than the daemon's own and the superuser are admitted.
    pub(crate) allow_other: bool,
    pub(crate) started: Instant,
    pub(crate) objects: ObjectStore,
    pub(crate) loss_mark: LossMark,
    pub(crate) counters: NodeCounters,
    pub(crate) clients: Arc<ClientTable>,
    pub(crate) connection_slots: Arc<ConnectionSlots>,
    pub(crate) refusal_counters: RefusalCounters,
    pub(crate) pipes: PipePool,
    pub(crate) registry: ConnectionRegistry,
    pub(crate) housekeeping_wake: WakeFlag,
    pub(crate) stop: StopFlag,
    /// Mounts that announced themselves, by connection.
    pub(crate) mounts: Mutex<BTreeMap<u64, MountInfo>>,
    /// Connections over which the end was ordered. They close when all is done.
    pub(crate) stop_requesters: Mutex<Vec<Arc<NetStream>>>,
}

impl NodeShared {
    pub(crate) fn node(&self) -> NodeId {
        self.identity.node
    }

    /// Returns the cluster map as this node knows it.
    pub(crate) fn map(&self) -> Arc<ClusterMap> {
        self.current_map.read().clone()
    }

    /// Merges the newer entries of a map into the one that all threads share.
    pub(crate) fn merge_map(&self, map: &ClusterMap) {
        let mut current = self.current_map.write();
        let mut merged = ClusterMap::clone(&current);
        if merged.merge_newer(map) {
            *current = Arc::new(merged);
        }
    }

    /// Number of shards that this node serves.
    pub(crate) fn shard_count(&self) -> usize {
        let here = self.node();
        self.map().shards.iter().filter(|executor| executor.node == here).count()
    }

    /// The path of the UNIX socket.
    pub(crate) fn socket_path(&self) -> PathBuf {
        PathBuf::from(&self.info.socket)
    }

    /// Returns the condition of this node. Any client may see it.
    pub(crate) fn status(&self) -> NodeStatus {
        NodeStatus {
            id: self.node(),
            name: self.info.name.clone(),
            version: self.version.clone(),
            protocol: PROTOCOL_VERSION,
            pid: std::process::id(),
            uptime_sec: self.started.elapsed().as_secs(),
            trouble: self.node_troubles(),
            refused: self.executors.refusal_reasons(),
            space: self.disk_space().unwrap_or_default(),
            shards: self.shard_count() as u32,
            executors: self.executors.running_count() as u32,
            durability: self.durability,
            inodes: self.executors.inode_count(),
            connections: self.connection_slots.used_count(),
            meta_requests: self.counters.meta_requests.get(),
            peer_messages: self.counters.peer_messages.get(),
            object_requests: self.counters.object_requests.get(),
            bytes_read: self.counters.bytes_read.get(),
            bytes_written: self.counters.bytes_written.get(),
            mounts: self.mounts.lock().values().cloned().collect(),
            clients: self.clients.alive_clients(self.lease),
            turned_away: self.refusal_counters.report(),
            lost_since: self.lost_since(),
        }
    }

    /// Returns the space of the node's disk, and the number of inodes of all its executors.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn disk_space(&self) -> Result<DiskSpace, Errno> {
        Ok(DiskSpace { inodes: self.executors.inode_count(), ..self.objects.disk_space()? })
    }

    /// Returns the time, in seconds since 1970, since which the node runs without its former data.
    fn lost_since(&self) -> Option<u64> {
        let since = self.loss_mark.lost_since()?.duration_since(UNIX_EPOCH);
        Some(since.map_or(0, |since| since.as_secs()))
    }

    fn node_troubles(&self) -> Vec<String> {
        let mut trouble = self.executors.shard_troubles();
        if self.lost_since().is_some() {
            let names = match self.shard_count() {
                0 => String::new(),
                shards => format!(", and the names in its {shards} shards"),
            };
            trouble.push(format!(
                "it began empty: its data directory was lost, and with it the bytes of all files that lay \
                 here{names}; tatami fsck --lost tells which files; when that is settled: tatami node forget --lost {}",
                self.info.name
            ));
        }
        trouble.extend(self.objects.describe_trouble());
        trouble.extend(panics::death_report());
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
