//! The session of a client: its identity, the nodes and executors of the volume, and the routing of
//! requests to them.

use crate::awaited_node::{AwaitedNode, WaitObserver};
use crate::away_nodes::AwayNodes;
use crate::cause::record_cause;
use crate::changing_handles::ChangingHandles;
use crate::connection::{Caller, ConnectError, Connection};
use crate::delegations::DelegationCache;
use crate::executor::ExecutorClient;
use crate::held_locks::ClientLocks;
use crate::held_table::HeldTable;
use crate::inline_cache::InlineCache;
use crate::lent_names::KernelName;
use crate::loss_tracker::LossTracker;
use crate::node::NodeClient;
use crate::node_spaces::NodeSpaces;
use crate::partition_cache::PartitionCache;
use crate::retry::Retry;
use crate::room_cache::{RoomCache, WhenFull};
use crate::tiled_files::TiledFiles;
use crate::unsynced::UnsyncedNames;
use crate::write_stream::WriteStreams;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tatami_net::{Endpoint, TlsTrust, make_random_id};
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult, ClusterMap};
use tatami_wire::frame::FrameError;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{
    Attr, ClientId, Cred, Errno, ExecutorId, Ino, NodeId, ShardId, VolumeId, VolumeKey,
};

/// How long an operation waits for a daemon that does not answer, unless the caller sets another
/// time.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Most nodes of a volume.
const NODES_MAX: usize = 4096;

/// How to reach a volume.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Any daemon of the volume. Over a UNIX socket its node becomes the home node of the client.
    pub endpoint: Endpoint,
    /// The volume's key. Without the key, the client reaches other nodes through the daemon of this
    /// machine, as the user of this process.
    pub key: Option<VolumeKey>,
    /// The certificates of the volume, if connections between machines are encrypted.
    pub tls: Option<Arc<TlsTrust>>,
    /// The expected volume; `None` accepts the one that the daemon serves.
    pub volume: Option<VolumeId>,
    /// How long an operation waits for a daemon that does not answer, before the operation fails
    /// with `EHOSTDOWN`.
    pub patience: Duration,
    /// Where new files go when the disk of the home node is full.
    pub when_full: WhenFull,
    /// Hears of waits for nodes that do not answer.
    pub observer: Option<Arc<dyn WaitObserver>>,
}

impl ClientOptions {
    /// Returns the options for an endpoint, with defaults for everything else.
    pub fn new(endpoint: Endpoint) -> ClientOptions {
        let when_full = WhenFull::default();
        ClientOptions {
            endpoint,
            key: None,
            tls: None,
            volume: None,
            patience: DEFAULT_TIMEOUT,
            when_full,
            observer: None,
        }
    }
}

/// Why a volume can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection to the first daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon did not send the cluster map.
    #[error("{endpoint} did not tell the cluster map: {source}")]
    Map {
        /// The daemon.
        endpoint: Endpoint,
        /// The cause.
        source: FrameError,
    },
    /// The daemon sent a map, but the map is invalid.
    #[error("{endpoint} told a cluster map that makes no sense: {why}")]
    BadMap {
        /// The daemon.
        endpoint: Endpoint,
        /// The reason.
        why: String,
    },
    /// No random numbers for the client's id.
    #[error("the system gives no random numbers: {0}")]
    Random(io::Error),
}

/// A session with a volume. Shared by all threads of a program.
pub struct Client {
    id: ClientId,
    volume: VolumeId,
    map: RwLock<Arc<ClusterMap>>,
    /// Notified when the epoch of the map changes.
    map_changed: (Mutex<()>, Condvar),
    patience: Duration,
    home: Option<NodeId>,
    /// The first daemon that the client connected to.
    first: Endpoint,
    caller: Caller,
    observer: Option<Arc<dyn WaitObserver>>,
    /// By node number, filled when a node is first used.
    peers: Box<[OnceLock<Arc<NodeClient>>]>,
    pub(crate) partitions: Box<PartitionCache>,
    pub(crate) streams: WriteStreams,
    pub(crate) tiled: TiledFiles,
    pub(crate) locks: Box<ClientLocks>,
    pub(crate) away_nodes: AwayNodes,
    pub(crate) node_spaces: NodeSpaces,
    pub(crate) room_cache: RoomCache,
    pub(crate) unsynced_names: UnsyncedNames,
    pub(crate) loss_tracker: Box<LossTracker>,
    pub(crate) inline_cache: InlineCache,
    pub(crate) changing_handles: ChangingHandles,
    pub(crate) held: HeldTable,
}

impl ClientError {
    /// Returns whether a daemon was there and stayed silent until the timeout.
    pub fn is_timeout(&self) -> bool {
        match self {
            ClientError::Connect(e) => e.is_timeout(),
            ClientError::Map { source: FrameError::Io(e), .. } => {
                e.kind() == std::io::ErrorKind::TimedOut
            }
            ClientError::Map { .. } | ClientError::BadMap { .. } | ClientError::Random(_) => false,
        }
    }
}

impl Client {
    /// Connects to a daemon and gets the cluster map from it.
    ///
    /// # Errors
    /// [`ClientError`]. A daemon that is not there is an error at once: the operation timeout is
    /// for volumes that were there before. A daemon that is there and drops the connection because
    /// it is busy is asked again.
    pub fn connect(options: ClientOptions) -> Result<Client, ClientError> {
        let patience = options.patience;
        Client::connect_within(patience, options)
    }

    /// As [`Client::connect`]; no single wait for the first daemon is longer than `timeout`.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_within(
        timeout: Duration,
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        let id = make_random_id().map_err(ClientError::Random)?;
        let ClientOptions { volume, key, tls, .. } = options;
        let mut caller = Caller { client: ClientId(id), volume, key, tls };
        let endpoint = options.endpoint;
        let observer = options.observer;
        let awaited = Arc::new(AwaitedNode::new(None, endpoint.to_string(), observer.clone()));
        let mut first = Connection::open_admin_watched(&endpoint, &caller, timeout, &awaited)?;
        caller.volume = Some(first.welcome.volume);
        let map: AdminResult = first
            .call_admin(&AdminCall::Map)
            .inspect_err(|_| awaited.record_timeout())
            .map_err(|source| ClientError::Map { endpoint: endpoint.clone(), source })?;
        let bad = |why: String| ClientError::BadMap { endpoint: endpoint.clone(), why };
        let map = match map {
            Ok(AdminReply::Map(map)) => map,
            Ok(_) => return Err(bad("it answered something else".into())),
            Err(e) => return Err(bad(e.to_string())),
        };
        // The map comes from the network: routing indexes arrays by its node numbers.
        check_map(&map).map_err(&bad)?;
        let ring = map.shard_map().ok_or_else(|| bad("so many shards there cannot be".into()))?;
        let partitions = Box::new(PartitionCache::new(map.volume, ring));
        // Only a UNIX socket proves that the daemon runs on this machine, so that its files can be
        // opened here.
        let home = matches!(endpoint, Endpoint::Unix(_)).then_some(first.welcome.node);
        let peers = (0..NODES_MAX).map(|_| OnceLock::new()).collect();
        Ok(Client {
            id: caller.client,
            volume: map.volume,
            map: RwLock::new(Arc::new(map)),
            map_changed: Default::default(),
            patience: options.patience,
            home,
            first: endpoint,
            caller,
            observer,
            peers,
            partitions,
            streams: WriteStreams::default(),
            tiled: TiledFiles::default(),
            locks: Box::default(),
            away_nodes: AwayNodes::default(),
            node_spaces: NodeSpaces::default(),
            room_cache: RoomCache::new(options.when_full),
            unsynced_names: UnsyncedNames::default(),
            loss_tracker: Box::default(),
            inline_cache: InlineCache::default(),
            changing_handles: ChangingHandles::default(),
            held: HeldTable::default(),
        })
    }

    /// Returns the id of this client. It stays the same across broken connections, because daemons
    /// use it to recognize repeated requests.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Returns the volume's id.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Returns all nodes, and which executor serves which shard, as far as this client knows.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.map.read().clone()
    }

    /// Returns how long an operation waits for a daemon that does not answer.
    pub(crate) fn operation_timeout(&self) -> Duration {
        self.patience
    }

    pub(crate) fn owner(&self, shard: ShardId) -> Option<ExecutorId> {
        self.map.read().owner(shard)
    }

    /// Returns the node on this machine; its files need no network.
    pub fn home(&self) -> Option<NodeId> {
        self.home
    }

    /// Sends one request to the executor that serves its shard, and follows the shard when it has
    /// moved.
    pub(crate) fn send_to_owner(&self, call: &MetaCall) -> MetaResult {
        let shard = call.shard;
        let mut retry = None;
        loop {
            // Read again in each round: the reply of the last round may have renewed the map.
            let executor = self.owner(shard).ok_or(Errno::ESTALE)?;
            match self.send_to_executor(executor, call) {
                Ok(MetaReply::WrongShard { .. }) => {
                    // The source of a shard migration commits before the destination hears of it.
                    // So for a moment an executor may know less than this client: it is asked again
                    // after a pause.
                    if !self.refresh_shard_owner(shard, executor)
                        && !retry.get_or_insert_with(|| Retry::new(self.patience)).pause()
                    {
                        return Err(Errno::EHOSTDOWN);
                    }
                }
                result => return result,
            }
        }
    }

    /// Sends one request to an executor, about all shards that it serves.
    ///
    /// # Errors
    /// As [`Client::send_meta`]; `ENXIO` for an executor that serves none.
    pub fn request_executor(
        &self,
        executor: ExecutorId,
        cred: &Cred,
        op: MetaOp,
    ) -> Result<MetaReply, Errno> {
        self.send_to_executor(executor, &self.build_executor_call(executor, cred, op))
    }

    /// Sends one request to each of these executors, all at the same time, in the order of the
    /// executors.
    ///
    /// # Errors
    /// As [`Client::send_meta`], from any of them.
    pub(crate) fn request_executors(
        &self,
        executors: BTreeSet<ExecutorId>,
        op: &MetaOp,
    ) -> Result<Vec<(ExecutorId, MetaReply)>, Errno> {
        debug_assert!(!op.is_mutation(), "what was learnt of it would be lost");
        self.settle_before(op);
        let mut begun = Vec::new();
        for id in executors {
            let call = self.build_executor_call(id, &Cred::ROOT, op.clone());
            let executor = self.executor_client(id)?;
            begun.push((executor, executor.begin_call(&call), call));
        }
        // All calls must be finished, even after one has failed: each holds a slot of its executor.
        let end = |(executor, begun, call): (&ExecutorClient, _, _)| {
            (executor.id, executor.finish_call(begun, &call))
        };
        let ended: Vec<_> = begun.into_iter().map(end).collect();
        ended.into_iter().map(|(id, answer)| Ok((id, answer?.0?))).collect()
    }

    fn build_executor_call(&self, executor: ExecutorId, cred: &Cred, op: MetaOp) -> MetaCall {
        let leads = self.map().first_shards();
        let lead = leads.iter().find(|(_, lead)| *lead == executor);
        // An executor that has given away all its shards meanwhile answers for those that it still
        // has.
        let shard = lead.map_or(ShardId(0), |(shard, _)| *shard);
        MetaCall { shard, cred: cred.clone(), op }
    }

    pub(crate) fn send_to_executor(&self, executor: ExecutorId, call: &MetaCall) -> MetaResult {
        self.settle_before(&call.op);
        let executor = self.executor_client(executor)?;
        // The ticket is taken before the request is sent: a recall that arrives in between makes
        // the reply outdated.
        let asked = executor.delegations.begin_request(&call.op);
        let (result, granted) = match executor.send_meta(call) {
            Ok((result, granted)) => (result, granted),
            Err(e) => (Err(e), None),
        };
        let outcome = result.as_ref().map_err(|e| *e);
        // Also after an error: a change without a reply may have taken effect, so the cache must
        // learn of it.
        executor.delegations.finish_request(&call.op, asked, outcome, granted.as_ref());
        result
    }

    /// Sends requests to executors, all at the same time, in the order of the executors. Returns
    /// the replies in the same order.
    pub(crate) fn send_to_executors(&self, calls: &[(ExecutorId, MetaCall)]) -> Vec<MetaResult> {
        calls.iter().for_each(|(_, call)| self.settle_before(&call.op));
        let begin = |(executor, call): &(ExecutorId, MetaCall)| {
            let executor = self.executor_client(*executor)?;
            let asked = executor.delegations.begin_request(&call.op);
            Ok((executor, asked, executor.begin_call(call)))
        };
        // All calls must be finished, even after one has failed: each holds a slot of its executor.
        let begun: Vec<Result<_, Errno>> = calls.iter().map(begin).collect();
        let (mut away, mut results) = (Vec::new(), Vec::with_capacity(calls.len()));
        for (begun, (id, call)) in begun.into_iter().zip(calls) {
            let (executor, asked, begun) = match begun {
                Ok(begun) => begun,
                Err(e) => {
                    results.push(Err(e));
                    continue;
                }
            };
            // If one executor of a node has used up the timeout, the others of that node are not
            // waited for again.
            let patience = if away.contains(&id.node) { Duration::ZERO } else { self.patience };
            let (result, granted) = match executor.finish_call_within(patience, begun, call) {
                Ok((result, granted)) => (result, granted),
                Err(e) => (Err(e), None),
            };
            if result == Err(Errno::EHOSTDOWN) {
                away.push(id.node);
            }
            if let Err(errno) = &result {
                record_cause(*errno, || format!("executor {id}: {errno}"));
            }
            let outcome = result.as_ref().map_err(|e| *e);
            executor.delegations.finish_request(&call.op, asked, outcome, granted.as_ref());
            results.push(result);
        }
        results
    }

    /// Returns whether any executor can delegate something to this client.
    pub(crate) fn has_delegations(&self) -> bool {
        self.known_executors().any(|executor| executor.delegations.is_enabled())
    }

    /// Returns the delegation caches of the executors that can have an inode: that of its owner
    /// shard, and that of its allocating shard where these differ.
    pub(crate) fn delegation_caches(&self, ino: Ino) -> [Option<&DelegationCache>; 2] {
        let (home, birth) = {
            let map = self.map.read();
            let birth = (ino.allocating_shard() != ino.owner_shard())
                .then(|| map.owner(ino.allocating_shard()))
                .flatten();
            (map.owner(ino.owner_shard()), birth)
        };
        let of =
            |id: ExecutorId| self.executor_client(id).ok().map(|executor| &executor.delegations);
        [home.and_then(of), birth.filter(|id| Some(*id) != home).and_then(of)]
    }

    /// Returns the attributes of an inode from the cache, if they are delegated to this client.
    pub fn cached_attr(&self, ino: Ino) -> Option<Attr> {
        let known = self
            .delegation_caches(ino)
            .into_iter()
            .flatten()
            .find_map(|known| known.cached_attr(ino));
        known.or_else(|| self.sum_partition_attrs(ino))
    }

    /// See [`DelegationCache::cached_busy_path`].
    pub(crate) fn cached_busy_path(&self, dir: Ino) -> Option<Attr> {
        let known = self.delegation_caches(dir);
        known.into_iter().flatten().find_map(|known| known.cached_busy_path(dir))
    }

    /// Returns for how long the kernel may cache these attributes. The time is zero unless they are
    /// delegated to this client. The client makes the kernel drop them before they change: see
    /// [`Client::hold_delegations`].
    pub fn attr_timeout(&self, attr: &Attr) -> Duration {
        let is_held = self.held.find_file(attr.ino).is_some();
        let times = self.delegation_caches(attr.ino).into_iter().flatten();
        let grant = |known: &DelegationCache| match is_held {
            true => known.grant_held_timeout(attr.ino),
            false => known.grant_attr_timeout(attr),
        };
        let time = times.filter_map(grant).next();
        time.or_else(|| self.grant_split_timeout(attr))
            .or_else(|| self.grant_busy_timeout(attr))
            .unwrap_or_default()
    }

    /// Returns for how long the kernel may cache that `name` leads to directory `to`. The time is
    /// zero unless both directories are delegated to this client, and the kernel has often asked.
    /// The client makes the kernel drop the name before it changes: see
    /// [`Client::hold_delegations`].
    pub fn name_timeout(&self, dir: Ino, name: &[u8], to: Ino) -> Duration {
        let part = self.partitions.partition_of_name(dir, name);
        let leads_there = || {
            let mut known = self.delegation_caches(part).into_iter().flatten();
            known.any(|known| known.leads_to(part, name, to))
        };
        if !leads_there() {
            return Duration::ZERO;
        }
        let as_known = KernelName { dir, name: name.into() };
        let lend = |known: &DelegationCache| known.grant_name_timeout(to, as_known.clone());
        let Some(time) = self.delegation_caches(to).into_iter().flatten().find_map(lend) else {
            return Duration::ZERO;
        };
        // Once more after the record: a rename by this client that begins later finds the record.
        if leads_there() {
            return time;
        }
        self.mark_moved(&as_known);
        Duration::ZERO
    }

    /// Runs `change`, which moves or removes the entries with these names, if they lead to
    /// directories. The kernel cannot drop the names of these directories meanwhile.
    pub(crate) fn run_change<R>(&self, names: &[KernelName], change: impl FnOnce() -> R) -> R {
        let parents: Vec<Ino> = names.iter().map(|name| name.dir).collect();
        let begin =
            |executor: &ExecutorClient| executor.delegations.begin_name_change(&parents, names);
        let begun: Vec<_> = self.known_executors().map(|known| (known, begin(known))).collect();
        let result = change();
        for (executor, busy) in begun.iter().filter(|(_, busy)| !busy.is_empty()) {
            executor.delegations.end_name_change(busy, names);
        }
        result
    }

    /// Records that a rename by this client may move the entry with that name.
    pub(crate) fn mark_moved(&self, name: &KernelName) {
        self.known_executors().for_each(|executor| executor.delegations.mark_moved(name));
    }

    /// Returns the executors to which this client has had a connection.
    fn known_executors(&self) -> impl Iterator<Item = &ExecutorClient> {
        self.peers.iter().filter_map(OnceLock::get).flat_map(|peer| peer.known_executors())
    }

    /// Makes the kernel drop the attributes of `ino`, because the executors do not know all of
    /// them.
    pub fn revoke_attr_timeout(&self, ino: Ino) {
        self.delegation_caches(ino)
            .into_iter()
            .flatten()
            .for_each(|known| known.revoke_attr_timeout(ino));
    }

    /// Asks the node of `executor`, which does not serve `shard`, for a newer map. Returns whether
    /// another executor serves the shard now.
    pub(crate) fn refresh_shard_owner(&self, shard: ShardId, executor: ExecutorId) -> bool {
        // Only if no other thread has renewed the map meanwhile.
        if self.owner(shard) == Some(executor) {
            self.fetch_map_from(executor.node);
        }
        self.owner(shard) != Some(executor)
    }

    /// Asks all nodes that answer for the map. Returns its epoch.
    pub fn refresh_map(&self) -> u64 {
        self.map().members().for_each(|node| self.fetch_map_from(node.id));
        self.map().epoch
    }

    /// Fetches the map of a node and merges the newer parts of it.
    pub(crate) fn fetch_map_from(&self, node: NodeId) {
        let Ok(AdminReply::Map(map)) = self.send_admin(node, AdminCall::Map) else { return };
        if let Err(why) = check_map(&map) {
            tracing::error!(%node, %why, "it told a map that makes no sense");
            return;
        }
        // The write lock is held from the copy to the store, so that two threads cannot overwrite
        // each other's merge.
        let mut held = self.map.write();
        let mut ours = ClusterMap::clone(&held);
        if !ours.merge_newer(&map) {
            return;
        }
        tracing::info!(epoch = ours.epoch, "the map has changed");
        for (before, now) in held.shards.iter().zip(&ours.shards).filter(|(a, b)| a != b) {
            tracing::trace!(%before, %now, "a shard has moved");
            // Locks of this client may have moved with the shard. The new executor must hear of
            // them before it grants them to others.
            if let Ok(executor) = self.executor_in_map(&ours, *now) {
                executor.locks.require_reclaim();
                self.locks.notify_waiters(|news| _ = news.reclaim.insert(*now));
            }
        }
        for (_, now) in held.nodes.iter().zip(&ours.nodes).filter(|(a, b)| a.moved != b.moved) {
            tracing::info!(node = now.name, address = now.address, "a node has a new address");
            if let Some(peer) = self.peers.get(usize::from(now.id.0)).and_then(OnceLock::get) {
                peer.change_address(&now.address);
            }
        }
        *held = Arc::new(ours);
        // Waiters take the lock of the map while they hold the mutex for the wake-up: so it must be
        // free here.
        drop(held);
        self.wake_map_waiters();
    }

    /// Fetches the map of `node`, if its epoch is higher than that of this client's map.
    pub(crate) fn receive_map_epoch(&self, node: NodeId, epoch: u64) {
        if epoch > self.map.read().epoch {
            self.fetch_map_from(node);
        }
    }

    /// Waits until the map has another epoch than `epoch`, or until `stop` is set and
    /// [`Client::wake_map_waiters`] called.
    pub fn wait_for_map(&self, epoch: u64, stop: &AtomicBool) {
        let mut guard = self.map_changed.0.lock();
        while self.map.read().epoch == epoch && !stop.load(SeqCst) {
            self.map_changed.1.wait(&mut guard);
        }
    }

    /// Wakes all threads that wait for another map.
    pub fn wake_map_waiters(&self) {
        // With the lock held, no waiter is between its check of the epoch and its wait: it would
        // miss the wake-up.
        let _guard = self.map_changed.0.lock();
        self.map_changed.1.notify_all();
    }

    /// Sends one administrative request to one node.
    ///
    /// # Errors
    /// The node's, or `EHOSTDOWN` at once when the node is down.
    pub fn send_admin(&self, node: NodeId, call: AdminCall) -> Result<AdminReply, Errno> {
        let result: AdminResult = self.node_client(node)?.send_admin(&call)?;
        result
    }

    pub(crate) fn node_client(&self, node: NodeId) -> Result<&Arc<NodeClient>, Errno> {
        if let Some(peer) = self.peers.get(usize::from(node.0)).and_then(OnceLock::get) {
            return Ok(peer);
        }
        if self.map().find_member(node).is_none() {
            // The node may have joined since the map was fetched.
            self.refresh_map();
        }
        self.node_in_map(&self.map(), node)
    }

    pub(crate) fn executor_client(&self, id: ExecutorId) -> Result<&ExecutorClient, Errno> {
        self.node_client(id.node)?.executor(id.index).ok_or(Errno::ENXIO)
    }

    fn executor_in_map(&self, map: &ClusterMap, id: ExecutorId) -> Result<&ExecutorClient, Errno> {
        self.node_in_map(map, id.node)?.executor(id.index).ok_or(Errno::ENXIO)
    }

    fn node_in_map(&self, map: &ClusterMap, node: NodeId) -> Result<&Arc<NodeClient>, Errno> {
        let place = self.peers.get(usize::from(node.0)).ok_or(Errno::ENXIO)?;
        let info = map.find_member(node).ok_or(Errno::ENXIO)?;
        Ok(place.get_or_init(|| {
            let there = match &self.first {
                Endpoint::Unix(_) if self.home == Some(node) => self.first.clone(),
                Endpoint::Unix(path) if self.caller.key.is_none() => {
                    Endpoint::Through(path.clone(), node)
                }
                _ => Endpoint::from_address(&info.address),
            };
            let awaited = AwaitedNode::new(Some(node), info.name.clone(), self.observer.clone());
            Arc::new(NodeClient::new(node, there, self.caller.clone(), self.patience, awaited))
        }))
    }
}

fn check_map(map: &ClusterMap) -> Result<(), String> {
    if map.nodes.is_empty() || map.shards.is_empty() {
        return Err("it has no nodes or no shards".into());
    }
    if map.moves.len() != map.shards.len() {
        return Err("it does not tell of all shards how often they have moved".into());
    }
    for (i, node) in map.nodes.iter().enumerate() {
        if usize::from(node.id.0) != i {
            return Err(format!("node {} stands at place {i}", node.id));
        }
    }
    match map.shards.iter().find(|id| usize::from(id.node.0) >= map.nodes.len()) {
        Some(id) => Err(format!("executor {id} serves a shard, and its node does not exist")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::EXECUTORS_MAX;
    use tatami_wire::admin::{NodeInfo, NodeState};

    fn map(nodes: &[u16], shards: &[ExecutorId]) -> ClusterMap {
        ClusterMap {
            volume: VolumeId([1; 16]),
            name: "v".into(),
            epoch: 1,
            nodes: nodes
                .iter()
                .map(|n| NodeInfo {
                    id: NodeId(*n),
                    state: NodeState::Serving,
                    name: format!("node{n}"),
                    address: "127.0.0.1:1".into(),
                    moved: 0,
                    socket: "/nowhere".into(),
                })
                .collect(),
            shards: shards.to_vec(),
            moves: vec![0; shards.len()],
        }
    }

    #[test]
    fn a_map_must_make_sense() {
        let [zero, one] = [0, 1].map(|node| ExecutorId::first_of_node(NodeId(node)));
        let last = ExecutorId { index: EXECUTORS_MAX - 1, ..one };
        assert_eq!(check_map(&map(&[0, 1], &[zero, one, last, zero])), Ok(()));
        assert!(check_map(&map(&[], &[zero])).is_err());
        assert!(check_map(&map(&[0], &[])).is_err());
        assert!(check_map(&map(&[1, 0], &[zero])).is_err());
        assert!(check_map(&map(&[0], &[one])).is_err());
        assert!(check_map(&map(&[0], &[zero, last])).is_err());
    }
}
