//! State that all threads of a node share.

use crate::clients::Clients;
use crate::counters::{Counters, Doorway};
use crate::deaths;
use crate::executors::Executors;
use crate::pages::Pool;
use crate::seats::Seats;
use crate::stop::Stop;
use crate::stream::Stream;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};
use tatami_cluster::LossMark;
use tatami_object::ObjectStore;
use tatami_wire::admin::{ClusterMap, Durability, MountInfo, NodeInfo, NodeStatus, Space};
use tatami_wire::handshake::Identity;
use tatami_wire::{Errno, NodeId, PROTOCOL_VERSION, Timestamp};

/// `status` complains when less than one part in this number of the disk is free.
const NEARLY_FULL: u64 = 20;

/// See the module.
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    /// See [`Shared::map`].
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
    pub(crate) counters: Counters,
    pub(crate) clients: Clients,
    pub(crate) seats: Arc<Seats>,
    pub(crate) doorway: Doorway,
    pub(crate) pages: Pool,
    pub(crate) registry: Registry,
    pub(crate) nudge: Nudge,
    pub(crate) stop: Stop,
    /// Mounts that announced themselves, by connection.
    pub(crate) mounts: Mutex<BTreeMap<u64, MountInfo>>,
    /// Connections over which the end was ordered. They close when all is done.
    pub(crate) farewell: Mutex<Vec<Arc<Stream>>>,
}

impl Shared {
    pub(crate) fn node(&self) -> NodeId {
        self.identity.node
    }

    /// Returns the cluster map as this node knows it.
    pub(crate) fn map(&self) -> Arc<ClusterMap> {
        self.current_map.read().clone()
    }

    /// Number of shards that this node serves.
    pub(crate) fn shards(&self) -> usize {
        let here = self.node();
        self.map().shards.iter().filter(|executor| executor.node == here).count()
    }

    /// The path of the UNIX socket.
    pub(crate) fn socket(&self) -> PathBuf {
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
            trouble: self.trouble(),
            refused: self.executors.all_refused(),
            space: self.space().unwrap_or_default(),
            shards: self.shards() as u32,
            executors: self.executors.count() as u32,
            durability: self.durability,
            inodes: self.executors.inodes(),
            connections: self.seats.count(),
            meta_requests: self.counters.meta_requests.get(),
            peer_messages: self.counters.peer_messages.get(),
            object_requests: self.counters.object_requests.get(),
            bytes_read: self.counters.bytes_read.get(),
            bytes_written: self.counters.bytes_written.get(),
            mounts: self.mounts.lock().values().cloned().collect(),
            clients: self.clients.alive(self.lease),
            turned_away: self.doorway.told(),
            lost_since: self.lost_since(),
        }
    }

    /// Returns the space of the node's disk, and the number of inodes of all its executors.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn space(&self) -> Result<Space, Errno> {
        Ok(Space { inodes: self.executors.inodes(), ..self.objects.space()? })
    }

    /// Returns the time, in seconds since 1970, since which the node runs without its former data.
    fn lost_since(&self) -> Option<u64> {
        let since = self.loss_mark.since()?.duration_since(UNIX_EPOCH);
        Some(since.map_or(0, |since| since.as_secs()))
    }

    fn trouble(&self) -> Vec<String> {
        let mut trouble = self.executors.trouble();
        if self.lost_since().is_some() {
            let names = match self.shards() {
                0 => String::new(),
                shards => format!(", and the names in its {shards} shards"),
            };
            trouble.push(format!(
                "it began empty: its data directory was lost, and with it the bytes of all files that lay \
                 here{names}; tatami fsck --lost tells which files; when that is settled: tatami node forget --lost {}",
                self.info.name
            ));
        }
        trouble.extend(self.objects.trouble());
        trouble.extend(deaths::trouble());
        match self.objects.space() {
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
pub(crate) fn now() -> Timestamp {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { sec: t.tv_sec, nsec: t.tv_nsec as u32 }
}

/// All connections that have a thread, so that the node can end them.
#[derive(Default)]
pub(crate) struct Registry {
    inner: Mutex<RegistryInner>,
    emptied: Condvar,
}

#[derive(Default)]
struct RegistryInner {
    next: u64,
    streams: HashMap<u64, Arc<Stream>>,
    closing: bool,
}

/// An entry in the registry, removed when dropped.
pub(crate) struct Registered<'a> {
    registry: &'a Registry,
    /// The connection's number, never used twice.
    pub(crate) id: u64,
}

impl Registry {
    /// Registers a connection; `None` when the node is ending.
    pub(crate) fn add(&self, stream: &Arc<Stream>) -> Option<Registered<'_>> {
        let mut inner = self.inner.lock();
        if inner.closing {
            return None;
        }
        inner.next += 1;
        let id = inner.next;
        inner.streams.insert(id, stream.clone());
        Some(Registered { registry: self, id })
    }

    /// Lets every connection finish its current request, and waits for that at most `patience`.
    /// Then breaks the rest off and waits as long again. Returns the number of connections that are
    /// left.
    pub(crate) fn close(&self, patience: Duration) -> usize {
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

impl Drop for Registered<'_> {
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
pub(crate) struct Nudge {
    wanted: Mutex<bool>,
    changed: Condvar,
}

impl Nudge {
    pub(crate) fn give(&self) {
        // A flag, not a count: any number of wake-ups before the next pass are one.
        let mut wanted = self.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.changed.notify_one();
        }
    }

    /// Waits for a wake-up, at most `timeout`. Returns whether there was one.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
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
pub(crate) fn enlarge_buffers(stream: &Stream) {
    const BUFFER: usize = 4 << 20;
    if let Stream::Unix(socket) = stream {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, BUFFER);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, BUFFER);
    }
}
