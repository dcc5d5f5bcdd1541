//! State that all threads of a node share.

use crate::clients::ClientTable;
use crate::connection_slots::ConnectionSlots;
use crate::counters::{NodeCounters, RefusalCounters};
use crate::executors::Executors;
use crate::panics;
use crate::pipes::PipePool;
use crate::stop::StopFlag;
use crate::stream::SocketStream;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};
use tatami_cluster::LossMark;
use tatami_object::ObjectStore;
use tatami_wire::admin::{ClusterMap, DiskSpace, Durability, MountInfo, NodeInfo, NodeStatus};
use tatami_wire::handshake::ServerIdentity;
use tatami_wire::{Errno, NodeId, PROTOCOL_VERSION, Timestamp};

/// `status` complains when less than one part in this number of the disk is free.
const NEARLY_FULL: u64 = 20;

/// See the module.
pub(crate) struct NodeShared {
    pub(crate) identity: ServerIdentity,
    /// See [`NodeShared::map`].
    pub(crate) current_map: RwLock<Arc<ClusterMap>>,
    /// The threads that serve shards.
    pub(crate) executors: Executors,
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
    pub(crate) clients: ClientTable,
    pub(crate) connection_slots: Arc<ConnectionSlots>,
    pub(crate) refusal_counters: RefusalCounters,
    pub(crate) pipes: PipePool,
    pub(crate) registry: ConnectionRegistry,
    pub(crate) housekeeping_wake: WakeFlag,
    pub(crate) stop: StopFlag,
    /// Mounts that announced themselves, by connection.
    pub(crate) mounts: Mutex<BTreeMap<u64, MountInfo>>,
    /// Connections over which the end was ordered. They close when all is done.
    pub(crate) stop_requesters: Mutex<Vec<Arc<SocketStream>>>,
}

impl NodeShared {
    pub(crate) fn node(&self) -> NodeId {
        self.identity.node
    }

    /// Returns the cluster map as this node knows it.
    pub(crate) fn map(&self) -> Arc<ClusterMap> {
        self.current_map.read().clone()
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

/// Returns the time for names and capabilities. The kernel stamps backing files from the same
/// clock, so times of names and of bytes compare.
pub(crate) fn current_time() -> Timestamp {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { sec: t.tv_sec, nsec: t.tv_nsec as u32 }
}

/// All connections that have a thread, so that the node can end them.
#[derive(Default)]
pub(crate) struct ConnectionRegistry {
    inner: Mutex<ConnectionRegistryState>,
    emptied: Condvar,
}

#[derive(Default)]
struct ConnectionRegistryState {
    next: u64,
    streams: HashMap<u64, Arc<SocketStream>>,
    closing: bool,
}

/// An entry in the registry, removed when dropped.
pub(crate) struct RegisteredConnection<'a> {
    registry: &'a ConnectionRegistry,
    /// The connection's number, never used twice.
    pub(crate) id: u64,
}

impl ConnectionRegistry {
    /// Registers a connection; `None` when the node is ending.
    pub(crate) fn register_connection(
        &self,
        stream: &Arc<SocketStream>,
    ) -> Option<RegisteredConnection<'_>> {
        let mut inner = self.inner.lock();
        if inner.closing {
            return None;
        }
        inner.next += 1;
        let id = inner.next;
        inner.streams.insert(id, stream.clone());
        Some(RegisteredConnection { registry: self, id })
    }

    /// Lets every connection finish its current request, and waits for that at most `patience`.
    /// Then breaks the rest off and waits as long again. Returns the number of connections that are
    /// left.
    pub(crate) fn close_all(&self, patience: Duration) -> usize {
        let mut inner = self.inner.lock();
        // Set under the lock: no connection can register after this loop has seen them all.
        inner.closing = true;
        // Closing the reading side first: a connection still sends its answer, and then finds no
        // next request.
        for how in [Shutdown::Read, Shutdown::Both] {
            inner.streams.values().for_each(|stream| stream.shutdown(how));
            let deadline = Instant::now() + patience;
            while !inner.streams.is_empty() {
                if self.emptied.wait_until(&mut inner, deadline).timed_out() {
                    break;
                }
            }
        }
        inner.streams.len()
    }
}

impl Drop for RegisteredConnection<'_> {
    fn drop(&mut self) {
        let mut inner = self.registry.inner.lock();
        inner.streams.remove(&self.id);
        if inner.streams.is_empty() {
            self.registry.emptied.notify_all();
        }
    }
}

/// Wakes housekeeping when there may be work for it.
#[derive(Default)]
pub(crate) struct WakeFlag {
    wanted: Mutex<bool>,
    changed: Condvar,
}

impl WakeFlag {
    pub(crate) fn wake_up(&self) {
        // A flag, not a count: any number of wake-ups before the next pass are one.
        let mut wanted = self.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.changed.notify_one();
        }
    }

    /// Waits for a wake-up, at most `timeout`. Returns whether there was one.
    pub(crate) fn wait_for_wake(&self, timeout: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        // The flag may have been set while housekeeping was busy; then it does not sleep.
        if !*wanted {
            self.changed.wait_for(&mut wanted, timeout);
        }
        std::mem::take(&mut *wanted)
    }
}

/// Makes the buffers of a UNIX socket large enough for a few of the largest frames. The system may
/// grant less, which costs only speed. TCP sockets stay as they are: the kernel sizes their buffers
/// by the path, to more than an untuned machine lets a program ask for, and stops doing so once a
/// program sets a size.
pub(crate) fn enlarge_buffers(stream: &SocketStream) {
    const BUFFER: usize = 4 << 20;
    if let SocketStream::Unix(socket) = stream {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, BUFFER);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, BUFFER);
    }
}
