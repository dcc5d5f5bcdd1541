//! The session of a client: its identity, the nodes and executors of the volume, and the routing of
//! requests to them.

use crate::cause::note_cause;
use crate::connection::{Caller, ConnectError, Connection, Endpoint};
use crate::delegations::Delegations;
use crate::executor::Executor;
use crate::locks::Locks;
use crate::lost::Losses;
use crate::partitions::Partitions;
use crate::peer::{Peer, Retry};
use crate::remote::Streams;
use crate::room::{Rooms, WhenFull};
use crate::space::ToldSpace;
use crate::tiles::TiledFiles;
use crate::ways::Ways;
use crate::written::Away;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult, ClusterMap};
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{
    Attr, ClientId, Cred, Errno, ExecutorId, Ino, NodeId, ShardId, VolumeId, VolumeKey,
};

/// How long an operation waits for a daemon that does not answer, unless the caller sets another
/// time.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

/// Most nodes of a volume.
const NODES_MAX: usize = 4096;

/// How to reach a volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Any daemon of the volume. Over a UNIX socket its node becomes the home node of the client.
    pub endpoint: Endpoint,
    /// The volume's key. Without the key, the client reaches other nodes through the daemon of this
    /// machine, as the user of this process.
    pub key: Option<VolumeKey>,
    /// The expected volume; `None` accepts the one that the daemon serves.
    pub volume: Option<VolumeId>,
    /// How long an operation waits for a daemon that does not answer, before the operation fails
    /// with `EHOSTDOWN`.
    pub patience: Duration,
    /// Where new files go when the disk of the home node is full.
    pub when_full: WhenFull,
}

impl Options {
    /// Returns the options for an endpoint, with defaults for everything else.
    pub fn new(endpoint: Endpoint) -> Options {
        let when_full = WhenFull::default();
        Options { endpoint, key: None, volume: None, patience: DEFAULT_PATIENCE, when_full }
    }
}

/// Why a volume can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    Random(getrandom::Error),
}

/// A session with a volume. Shared by all threads of a program.
pub struct Client {
    id: ClientId,
    volume: VolumeId,
    map: RwLock<Arc<ClusterMap>>,
    /// Notified when the epoch of the map changes.
    renewed: (Mutex<()>, Condvar),
    patience: Duration,
    home: Option<NodeId>,
    /// The first daemon that the client connected to.
    first: Endpoint,
    caller: Caller,
    /// By node number, filled when a node is first used.
    peers: Box<[OnceLock<Arc<Peer>>]>,
    pub(crate) partitions: Box<Partitions>,
    pub(crate) streams: Streams,
    pub(crate) tiled: TiledFiles,
    pub(crate) locks: Box<Locks>,
    pub(crate) away: Away,
    pub(crate) told_space: ToldSpace,
    pub(crate) rooms: Rooms,
    pub(crate) ways: Ways,
    pub(crate) losses: Box<Losses>,
}

impl Error {
    /// Returns whether a daemon was there and stayed silent until the timeout.
    pub fn is_timeout(&self) -> bool {
        match self {
            Error::Connect(e) => e.is_timeout(),
            Error::Map { source: FrameError::Io(e), .. } => {
                e.kind() == std::io::ErrorKind::TimedOut
            }
            Error::Map { .. } | Error::BadMap { .. } | Error::Random(_) => false,
        }
    }
}

impl Client {
    /// Connects to a daemon and gets the cluster map from it.
    ///
    /// # Errors
    /// [`Error`]. A daemon that is not there is an error at once: the operation timeout is for
    /// volumes that were there before. A daemon that is there and drops the connection because it
    /// is busy is asked again.
    pub fn connect(options: Options) -> Result<Client, Error> {
        let patience = options.patience;
        Client::connect_within(patience, options)
    }

    /// As [`Client::connect`]; no single wait for the first daemon is longer than `timeout`.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_within(timeout: Duration, options: Options) -> Result<Client, Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(Error::Random)?;
        let mut caller = Caller { client: ClientId(id), volume: options.volume, key: options.key };
        let endpoint = options.endpoint;
        let mut first = Connection::open_admin(&endpoint, &caller, timeout)?;
        caller.volume = Some(first.welcome.volume);
        let map: AdminResult = first
            .call(Class::Admin, 0, &AdminCall::Map)
            .map_err(|source| Error::Map { endpoint: endpoint.clone(), source })?;
        let bad = |why: String| Error::BadMap { endpoint: endpoint.clone(), why };
        let map = match map {
            Ok(AdminReply::Map(map)) => map,
            Ok(_) => return Err(bad("it answered something else".into())),
            Err(e) => return Err(bad(e.to_string())),
        };
        // The map comes from the network: routing indexes arrays by its node numbers.
        check_map(&map).map_err(&bad)?;
        let ring = map.shard_map().ok_or_else(|| bad("so many shards there cannot be".into()))?;
        let partitions = Box::new(Partitions::new(map.volume, ring));
        // Only a UNIX socket proves that the daemon runs on this machine, so that its files can be
        // opened here.
        let home = matches!(endpoint, Endpoint::Unix(_)).then_some(first.welcome.node);
        let peers = (0..NODES_MAX).map(|_| OnceLock::new()).collect();
        Ok(Client {
            id: caller.client,
            volume: map.volume,
            map: RwLock::new(Arc::new(map)),
            renewed: Default::default(),
            patience: options.patience,
            home,
            first: endpoint,
            caller,
            peers,
            partitions,
            streams: Streams::default(),
            tiled: TiledFiles::default(),
            locks: Box::default(),
            away: Away::default(),
            told_space: ToldSpace::default(),
            rooms: Rooms::new(options.when_full),
            ways: Ways::default(),
            losses: Box::default(),
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
    pub(crate) fn patience(&self) -> Duration {
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
    pub(crate) fn ask_owner(&self, call: &MetaCall) -> MetaResult {
        let shard = call.shard;
        let mut retry = None;
        loop {
            // Read again in each round: the reply of the last round may have renewed the map.
            let executor = self.owner(shard).ok_or(Errno::ESTALE)?;
            match self.ask(executor, call) {
                Ok(MetaReply::Elsewhere { .. }) => {
                    // The source of a shard migration commits before the destination hears of it.
                    // So for a moment an executor may know less than this client: it is asked again
                    // after a pause.
                    if !self.renew_map(shard, executor)
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
    /// As [`Client::meta`]; `ENXIO` for an executor that serves none.
    pub fn meta_at(
        &self,
        executor: ExecutorId,
        cred: &Cred,
        op: MetaOp,
    ) -> Result<MetaReply, Errno> {
        self.ask(executor, &self.call_of_all(executor, cred, op))
    }

    /// Sends one request to each of these executors, all at the same time, in the order of the
    /// executors.
    ///
    /// # Errors
    /// As [`Client::meta`], from any of them.
    pub(crate) fn meta_of(
        &self,
        executors: BTreeSet<ExecutorId>,
        op: &MetaOp,
    ) -> Result<Vec<(ExecutorId, MetaReply)>, Errno> {
        debug_assert!(!op.is_mutation(), "what was learnt of it would be lost");
        let mut begun = Vec::new();
        for id in executors {
            let call = self.call_of_all(id, &Cred::ROOT, op.clone());
            let executor = self.executor(id)?;
            begun.push((executor, executor.begin(&call), call));
        }
        // All calls must be finished, even after one has failed: each holds a slot of its executor.
        let end =
            |(executor, begun, call): (&Executor, _, _)| (executor.id, executor.end(begun, &call));
        let ended: Vec<_> = begun.into_iter().map(end).collect();
        ended.into_iter().map(|(id, answer)| Ok((id, answer?.0?))).collect()
    }

    fn call_of_all(&self, executor: ExecutorId, cred: &Cred, op: MetaOp) -> MetaCall {
        let leads = self.map().leads();
        let lead = leads.iter().find(|(_, lead)| *lead == executor);
        // An executor that has given away all its shards meanwhile answers for those that it still
        // has.
        let shard = lead.map_or(ShardId(0), |(shard, _)| *shard);
        MetaCall { shard, cred: cred.clone(), op }
    }

    pub(crate) fn ask(&self, executor: ExecutorId, call: &MetaCall) -> MetaResult {
        let executor = self.executor(executor)?;
        // The ticket is taken before the request is sent: a recall that arrives in between makes
        // the reply outdated.
        let asked = executor.delegations.ask(&call.op);
        let (result, granted) = match executor.meta(call) {
            Ok((result, granted)) => (result, granted),
            Err(e) => (Err(e), None),
        };
        let told = result.as_ref().map_err(|e| *e);
        // Also after an error: a change without a reply may have taken effect, so the cache must
        // learn of it.
        executor.delegations.learn(&call.op, asked, told, granted.as_ref());
        result
    }

    /// Sends requests to executors, all at the same time, in the order of the executors. Returns
    /// the replies in the same order.
    pub(crate) fn ask_several(&self, calls: &[(ExecutorId, MetaCall)]) -> Vec<MetaResult> {
        let begin = |(executor, call): &(ExecutorId, MetaCall)| {
            let executor = self.executor(*executor)?;
            let asked = executor.delegations.ask(&call.op);
            Ok((executor, asked, executor.begin(call)))
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
            let (result, granted) = match executor.end_within(patience, begun, call) {
                Ok((result, granted)) => (result, granted),
                Err(e) => (Err(e), None),
            };
            if result == Err(Errno::EHOSTDOWN) {
                away.push(id.node);
            }
            if let Err(errno) = &result {
                note_cause(*errno, || format!("executor {id}: {errno}"));
            }
            let told = result.as_ref().map_err(|e| *e);
            executor.delegations.learn(&call.op, asked, told, granted.as_ref());
            results.push(result);
        }
        results
    }

    /// Returns whether any executor can delegate something to this client.
    pub(crate) fn is_delegated_anything(&self) -> bool {
        let mut met = self.peers.iter().filter_map(OnceLock::get).flat_map(|peer| peer.executors());
        met.any(|executor| executor.delegations.are_on())
    }

    /// Returns the delegation caches of the executors that can have an inode: that of its owner
    /// shard, and that of its allocating shard where these differ.
    pub(crate) fn delegations(&self, ino: Ino) -> [Option<&Delegations>; 2] {
        let (home, birth) = {
            let map = self.map.read();
            let birth = (ino.birth() != ino.shard()).then(|| map.owner(ino.birth())).flatten();
            (map.owner(ino.shard()), birth)
        };
        let of = |id: ExecutorId| self.executor(id).ok().map(|executor| &executor.delegations);
        [home.and_then(of), birth.filter(|id| Some(*id) != home).and_then(of)]
    }

    /// Returns the attributes of an inode from the cache, if they are delegated to this client.
    pub fn known_attr(&self, ino: Ino) -> Option<Attr> {
        let known = self.delegations(ino).into_iter().flatten().find_map(|known| known.attr(ino));
        known.or_else(|| self.split_attr(ino))
    }

    /// Returns for how long the kernel may cache these attributes. The time is zero unless they are
    /// delegated to this client. The client makes the kernel drop them before they change: see
    /// [`Client::hold_delegations`].
    pub fn attr_time(&self, attr: &Attr) -> Duration {
        let times = self.delegations(attr.ino).into_iter().flatten();
        let time = times.filter_map(|known| known.lend_attr(attr)).next();
        time.or_else(|| self.lend_split(attr)).unwrap_or_default()
    }

    /// Returns for how long the kernel may cache that `name` leads to that inode, or to none. The
    /// time is zero unless the directory is delegated to this client and no other client has
    /// changed it for some time.
    pub fn name_time(&self, dir: Ino, name: &[u8], to: Option<Ino>) -> Duration {
        let dir = self.partitions.of_name(dir, name);
        let times = self.delegations(dir).into_iter().flatten();
        times.filter_map(|known| known.lend_name(dir, name, to)).next().unwrap_or_default()
    }

    /// Makes the kernel drop the attributes of `ino`, because the executors do not know all of
    /// them.
    pub fn end_attr_time(&self, ino: Ino) {
        self.delegations(ino).into_iter().flatten().for_each(|known| known.end_loan(ino));
    }

    /// Asks the node of `executor`, which does not serve `shard`, for a newer map. Returns whether
    /// another executor serves the shard now.
    pub(crate) fn renew_map(&self, shard: ShardId, executor: ExecutorId) -> bool {
        // Only if no other thread has renewed the map meanwhile.
        if self.owner(shard) == Some(executor) {
            self.learn_map_of(executor.node);
        }
        self.owner(shard) != Some(executor)
    }

    /// Asks all nodes that answer for the map. Returns its epoch.
    pub fn refresh_map(&self) -> u64 {
        self.map().nodes.iter().for_each(|node| self.learn_map_of(node.id));
        self.map().epoch
    }

    /// Fetches the map of a node and merges the newer parts of it.
    pub(crate) fn learn_map_of(&self, node: NodeId) {
        let Ok(AdminReply::Map(map)) = self.admin(node, AdminCall::Map) else { return };
        if let Err(why) = check_map(&map) {
            tracing::error!(%node, %why, "it told a map that makes no sense");
            return;
        }
        // The write lock is held from the copy to the store, so that two threads cannot overwrite
        // each other's merge.
        let mut held = self.map.write();
        let mut ours = ClusterMap::clone(&held);
        if !ours.merge(&map) {
            return;
        }
        tracing::info!(epoch = ours.epoch, "the map has changed");
        for (before, now) in held.shards.iter().zip(&ours.shards).filter(|(a, b)| a != b) {
            tracing::trace!(%before, %now, "a shard has moved");
            // Locks of this client may have moved with the shard. The new executor must hear of
            // them before it grants them to others.
            if let Ok(executor) = self.executor_of(&ours, *now) {
                executor.locks.shards_have_come();
                self.locks.note(|news| _ = news.reclaim.insert(*now));
            }
        }
        *held = Arc::new(ours);
        // Waiters take the lock of the map while they hold the mutex for the wake-up: so it must be
        // free here.
        drop(held);
        self.wake_for_map();
    }

    /// Fetches the map of `node`, if its epoch is higher than that of this client's map.
    pub(crate) fn hear_of_map(&self, node: NodeId, epoch: u64) {
        if epoch > self.map.read().epoch {
            self.learn_map_of(node);
        }
    }

    /// Waits until the map has another epoch than `epoch`, or until `stop` is set and
    /// [`Client::wake_for_map`] called.
    pub fn wait_for_map(&self, epoch: u64, stop: &AtomicBool) {
        let mut guard = self.renewed.0.lock();
        while self.map.read().epoch == epoch && !stop.load(SeqCst) {
            self.renewed.1.wait(&mut guard);
        }
    }

    /// Wakes all threads that wait for another map.
    pub fn wake_for_map(&self) {
        // With the lock held, no waiter is between its check of the epoch and its wait: it would
        // miss the wake-up.
        let _guard = self.renewed.0.lock();
        self.renewed.1.notify_all();
    }

    /// Sends one administrative request to one node.
    ///
    /// # Errors
    /// The node's, or `EHOSTDOWN` at once when the node is down.
    pub fn admin(&self, node: NodeId, call: AdminCall) -> Result<AdminReply, Errno> {
        let result: AdminResult = self.peer(node)?.admin(&call)?;
        result
    }

    pub(crate) fn peer(&self, node: NodeId) -> Result<&Arc<Peer>, Errno> {
        if let Some(peer) = self.peers.get(usize::from(node.0)).and_then(OnceLock::get) {
            return Ok(peer);
        }
        if !self.map().nodes.iter().any(|info| info.id == node) {
            // The node may have joined since the map was fetched.
            self.refresh_map();
        }
        self.peer_of(&self.map(), node)
    }

    pub(crate) fn executor(&self, id: ExecutorId) -> Result<&Executor, Errno> {
        self.peer(id.node)?.executor(id.index).ok_or(Errno::ENXIO)
    }

    fn executor_of(&self, map: &ClusterMap, id: ExecutorId) -> Result<&Executor, Errno> {
        self.peer_of(map, id.node)?.executor(id.index).ok_or(Errno::ENXIO)
    }

    fn peer_of(&self, map: &ClusterMap, node: NodeId) -> Result<&Arc<Peer>, Errno> {
        let place = self.peers.get(usize::from(node.0)).ok_or(Errno::ENXIO)?;
        let info = map.nodes.iter().find(|info| info.id == node).ok_or(Errno::ENXIO)?;
        Ok(place.get_or_init(|| {
            let there = match &self.first {
                Endpoint::Unix(_) if self.home == Some(node) => self.first.clone(),
                Endpoint::Unix(path) if self.caller.key.is_none() => {
                    Endpoint::Through(path.clone(), node)
                }
                _ => Endpoint::Tcp(info.address.clone()),
            };
            Arc::new(Peer::new(node, there, self.caller.clone(), self.patience))
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
    use tatami_wire::admin::NodeInfo;

    fn map(nodes: &[u16], shards: &[ExecutorId]) -> ClusterMap {
        ClusterMap {
            volume: VolumeId([1; 16]),
            name: "v".into(),
            epoch: 1,
            nodes: nodes
                .iter()
                .map(|n| NodeInfo {
                    id: NodeId(*n),
                    name: format!("node{n}"),
                    address: "127.0.0.1:1".into(),
                    socket: "/nowhere".into(),
                })
                .collect(),
            shards: shards.to_vec(),
            moves: vec![0; shards.len()],
        }
    }

    #[test]
    fn a_map_must_make_sense() {
        let [zero, one] = [0, 1].map(|node| ExecutorId::first(NodeId(node)));
        let last = ExecutorId { index: EXECUTORS_MAX - 1, ..one };
        assert_eq!(check_map(&map(&[0, 1], &[zero, one, last, zero])), Ok(()));
        assert!(check_map(&map(&[], &[zero])).is_err());
        assert!(check_map(&map(&[0], &[])).is_err());
        assert!(check_map(&map(&[1, 0], &[zero])).is_err());
        assert!(check_map(&map(&[0], &[one])).is_err());
        assert!(check_map(&map(&[0], &[zero, last])).is_err());
    }
}
