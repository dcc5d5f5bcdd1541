//! Starts the threads of one daemon, waits for its end, and ends it in order.

use crate::accept::Listeners;
use crate::connections::{NodeConnections, listen};
use crate::context::NodeContext;
use crate::counters::NodeCounters;
use crate::current_map::CurrentMap;
use crate::disk::NodeDisk;
use crate::executor::start::start_all;
use crate::executor::table::ExecutorTable;
use crate::options::{NodeOptions, StartError};
use crate::services::housekeeping;
use crate::settings::NodeSettings;
use crate::stop::StopFlag;
use crate::threads::{StopOnDeath, spawn_thread};
use crate::wake_flag::WakeFlag;
use crate::{accept, signals};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tatami_cluster::DataDir;
use tatami_net::SocketName;
use tatami_object::{NodeObjects, NodeRegions, recorded_device};
use tatami_wire::NodeId;
use tatami_wire::handshake::ServerIdentity;

/// How long connections may take to finish their requests when the node ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A daemon that has started: it listens and answers. Dropping it ends it.
pub struct NodeDaemon {
    shared: Arc<NodeContext>,
    acceptor: Option<JoinHandle<()>>,
    housekeeper: Option<JoinHandle<()>>,
    ended: bool,
    socket: SocketName,
    /// The lock of the data directory, held until the node has ended. Threads that outlive the node
    /// do not have it.
    _dir: DataDir,
}

/// Ends a node from another thread.
#[derive(Clone)]
pub struct StopHandle(Arc<NodeContext>);

impl StopHandle {
    /// Makes [`NodeDaemon::run`] end the node and return.
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

impl NodeDaemon {
    /// Starts a node. When this returns, it answers on its socket and its port.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub fn start(options: NodeOptions) -> Result<NodeDaemon, StartError> {
        let NodeOptions {
            dir,
            map,
            node,
            key,
            tls,
            lease,
            reserve,
            durability,
            allow_other,
            version,
            had_directory,
            region_device,
        } = options;
        let info = map.find_member(node).cloned();
        let info = info.ok_or(StartError::UnknownNode(node))?;
        tatami_client::raise_descriptor_limit();
        // Takes the lock of the data directory first: two daemons must never open the same stores.
        let dir = DataDir::open_or_replace(&dir, map.volume, node, had_directory)?;
        let loss_mark = dir.loss_mark();
        if loss_mark.lost_since().is_some() {
            tracing::error!(%node, "this node began empty: the data directory that it had before is lost");
        }
        let for_nodes = listen::listen_for_nodes(&info.address, node, tls.clone())?;
        let (for_clients, socket) =
            listen::listen_for_clients(Path::new(&info.socket), node, allow_other)?;
        let identity = ServerIdentity { volume: map.volume, node, key };
        map.shard_map().ok_or(StartError::ShardMap(map.shards.len()))?;
        let device = region_device.or_else(|| recorded_device(dir.path()));
        let regions = device.map(|device| {
            let (volume, accept_loss) = (u128::from_be_bytes(map.volume.0), false);
            NodeRegions { device, volume, node: node.0, accept_loss }
        });
        let objects = NodeObjects::open(dir.path(), regions)?;
        let system = |what| move |source| StartError::System { what, source };
        let shared = Arc::new(NodeContext {
            settings: NodeSettings {
                identity,
                tls,
                info,
                version,
                lease,
                reserve,
                durability,
                allow_other,
            },
            executors: ExecutorTable::new(dir.meta_dir()),
            map: CurrentMap::new(map),
            disk: NodeDisk { objects, loss_mark },
            connections: NodeConnections::default(),
            counters: NodeCounters::default(),
            started: Instant::now(),
            housekeeping_wake: WakeFlag::default(),
            stop: StopFlag::new().map_err(system("make an event"))?,
        });
        let mut node = NodeDaemon {
            shared: shared.clone(),
            acceptor: None,
            housekeeper: None,
            ended: false,
            socket,
            _dir: dir,
        };
        // The executors open their stores before the first connection is accepted.
        start_all(&shared)?;
        let shared = node.shared.clone();
        let door = Listeners::new(vec![for_nodes, for_clients], &shared.stop)
            .map_err(system("watch the listeners"))?;
        let alarm = StopOnDeath(shared.clone());
        node.acceptor = Some(spawn_thread("acceptor", move || {
            let _alarm = alarm;
            accept::run_acceptor(&shared, door);
        })?);
        let shared = node.shared.clone();
        node.housekeeper =
            Some(spawn_thread("housekeeping", move || housekeeping::run_housekeeping(&shared))?);
        let NodeContext { settings, map, executors, .. } = &*node.shared;
        tracing::info!(
            node = %settings.node(), name = settings.info.name, address = settings.info.address,
            socket = settings.info.socket, shards = map.shard_count(settings.node()),
            executors = executors.running_count(), "ready"
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
        let signalled = signals::catch_signals().map_err(RunError::Signals)?;
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
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), RunError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let shared = &self.shared;
        let node = shared.settings.node();
        let mut result = Ok(());
        // The flag goes first: each thread that is woken below must see it.
        shared.stop.set();
        shared.housekeeping_wake.wake_up();
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
        let left = shared.connections.registry.close_all(CLOSE_TIMEOUT);
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
        if let Err(errno) = shared.disk.objects.sync_all() {
            result = Err(RunError::Sync { node, what: "objects", errno });
        }
        shared.disk.objects.close();
        tracing::info!(%node, "ended");
        // The clients that ordered the end wait for these connections to close: all is on disk now.
        shared.connections.stop_requesters.lock().clear();
        result
    }
}

impl Drop for NodeDaemon {
    fn drop(&mut self) {
        if let Err(e) = self.shut_down() {
            tracing::error!("{e}");
        }
    }
}
