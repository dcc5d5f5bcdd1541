//! Starts the threads of one daemon, waits for its end, and ends it in order.

use crate::accept::Door;
use crate::clients::Clients;
use crate::counters::{Counters, Doorway};
use crate::executors::Executors;
use crate::options::{NodeOptions, StartError};
use crate::pages::Pool;
use crate::seats::Seats;
use crate::shared::{Nudge, Registry, Shared};
use crate::stop::Stop;
use crate::{accept, housekeeping, listen, signals};
use parking_lot::RwLock;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tatami_cluster::DataDir;
use tatami_object::ObjectStore;
use tatami_wire::NodeId;
use tatami_wire::handshake::Identity;

/// How long connections may take to finish their requests when the node ends.
const LEAVE: Duration = Duration::from_secs(10);

/// A daemon that has started: it listens and answers. Dropping it ends it.
pub struct Node {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    housekeeper: Option<JoinHandle<()>>,
    ended: bool,
    socket: listen::SocketName,
    /// The lock of the data directory, held until the node has ended. Threads that outlive the node
    /// do not have it.
    _dir: DataDir,
}

/// Ends a node from another thread.
#[derive(Clone)]
pub struct StopHandle(Arc<Shared>);

impl StopHandle {
    /// Makes [`Node::run`] end the node and return.
    pub fn stop(&self) {
        self.0.stop.set();
    }
}

/// Why a node did not end well.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum RunError {
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    #[error(
        "node {node}: the last sync of {what} failed ({errno}): what was acknowledged just before may not survive \
         a power cut; check the disk"
    )]
    Sync { node: NodeId, what: &'static str, errno: tatami_wire::Errno },
    #[error("node {node}: the thread of the {what} died; see the log")]
    Died { node: NodeId, what: &'static str },
}

impl Node {
    /// Starts a node. When this returns, it answers on its socket and its port.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub fn start(options: NodeOptions) -> Result<Node, StartError> {
        let NodeOptions {
            dir,
            map,
            node,
            key,
            lease,
            reserve,
            durability,
            allow_other,
            version,
            had_directory,
        } = options;
        let info = map.nodes.iter().find(|n| n.id == node).cloned();
        let info = info.ok_or(StartError::UnknownNode(node))?;
        tatami_client::raise_descriptor_limit();
        // Takes the lock of the data directory first: two daemons must never open the same stores.
        let dir = DataDir::open_or_replace(&dir, map.volume, node, had_directory)?;
        let loss_mark = dir.loss_mark();
        if loss_mark.since().is_some() {
            tracing::error!(%node, "this node began empty: the data directory that it had before is lost");
        }
        let tcp = listen::tcp(&info.address, node)?;
        let (unix, socket) = listen::unix(Path::new(&info.socket), node, allow_other)?;
        let identity = Identity { volume: map.volume, node, key };
        map.shard_map().ok_or(StartError::ShardMap(map.shards.len()))?;
        let objects = ObjectStore::open(dir.path())?;
        let system = |what| move |source| StartError::System { what, source };
        let shared = Arc::new(Shared {
            identity,
            current_map: RwLock::new(Arc::new(map)),
            executors: Executors::new(dir.meta_dir()),
            info,
            version,
            lease,
            reserve,
            durability,
            allow_other,
            started: Instant::now(),
            objects,
            loss_mark,
            counters: Counters::default(),
            clients: Clients::new(),
            seats: Arc::new(Seats::default()),
            doorway: Doorway::default(),
            pages: Pool::default(),
            registry: Registry::default(),
            nudge: Nudge::default(),
            stop: Stop::new().map_err(system("make an event"))?,
            mounts: parking_lot::Mutex::default(),
            farewell: parking_lot::Mutex::default(),
        });
        let mut node = Node {
            shared: shared.clone(),
            acceptor: None,
            housekeeper: None,
            ended: false,
            socket,
            _dir: dir,
        };
        // The executors open their stores before the first connection is accepted.
        shared.executors.start(&shared)?;
        let shared = node.shared.clone();
        let door = Door::new(tcp, unix, &shared.stop).map_err(system("watch the listeners"))?;
        let alarm = Alarm(shared.clone());
        node.acceptor = Some(spawn("acceptor", move || {
            let _alarm = alarm;
            accept::run(&shared, door);
        })?);
        let shared = node.shared.clone();
        node.housekeeper = Some(spawn("housekeeping", move || housekeeping::run(&shared))?);
        tracing::info!(
            node = %node.shared.node(), name = node.shared.info.name,
            address = node.shared.info.address, socket = node.shared.info.socket,
            shards = node.shared.shards(), executors = node.shared.executors.count(), "ready"
        );
        Ok(node)
    }

    /// Returns a handle that ends the node from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.shared.clone())
    }

    /// Serves until a caller orders the end, or SIGTERM or SIGINT arrives. Then finishes the
    /// requests that are under way, syncs, and returns.
    ///
    /// # Errors
    /// [`RunError`]. The node has ended in any case.
    pub fn run(mut self) -> Result<(), RunError> {
        let signalled = signals::catch().map_err(RunError::Signals)?;
        while !self.shared.stop.is_set() {
            let mut fds = [
                PollFd::new(&self.shared.stop, PollFlags::IN),
                PollFd::new(signalled, PollFlags::IN),
            ];
            // An interrupted poll is no error: most likely the signal that the flag reports
            // interrupted it.
            let _ = poll(&mut fds, None);
            if signalled.is_set() {
                tracing::info!("signal to end");
                break;
            }
        }
        self.end()
    }

    fn end(&mut self) -> Result<(), RunError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let shared = &self.shared;
        let node = shared.node();
        let mut result = Ok(());
        // The flag goes first: each thread that is woken below must see it.
        shared.stop.set();
        shared.nudge.give();
        if let Some(thread) = self.acceptor.take()
            && thread.join().is_err()
        {
            result = Err(RunError::Died { node, what: "acceptor" });
        }
        // From here on a new daemon may take the socket's name.
        self.socket.remove();
        // Executors end before the data connections: their last round is committed and synced here.
        for thread in shared.executors.close() {
            match thread.join() {
                Ok(mut shards) => {
                    if let Err(errno) = shards.close() {
                        result = Err(RunError::Sync { node, what: "the namespace", errno });
                    }
                }
                Err(_) => result = Err(RunError::Died { node, what: "executor" }),
            }
        }
        // Only now are connections with threads of their own ended; each finishes its request
        // first.
        let left = shared.registry.close(LEAVE);
        if left > 0 {
            tracing::warn!(left, "connections did not end; they are broken off");
        }
        if let Some(thread) = self.housekeeper.take()
            && thread.join().is_err()
        {
            result = Err(RunError::Died { node, what: "housekeeping" });
        }
        // After all writers have ended, so that this sync covers the last byte that was
        // acknowledged.
        if let Err(errno) = shared.objects.sync_all() {
            result = Err(RunError::Sync { node, what: "objects", errno });
        }
        tracing::info!(%node, "ended");
        // The clients that ordered the end wait for these connections to close: all is on disk now.
        shared.farewell.lock().clear();
        result
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::error!("{e}");
        }
    }
}

/// Ends the node when a thread dies that the node cannot do without.
pub(crate) struct Alarm(pub(crate) Arc<Shared>);

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.stop.set();
    }
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|source| StartError::System { what: "start a thread", source })
}
