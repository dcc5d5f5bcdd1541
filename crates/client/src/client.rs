//! Who we are, which nodes there are, and which of them answers what.

use crate::connection::{Caller, ConnectError, Connection, Endpoint};
use crate::locks::Locks;
use crate::peer::Peer;
use crate::remote::Streams;
use crate::tiles::TiledFiles;
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult, ClusterMap};
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::handshake::Role;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{ClientId, Cred, Errno, NodeId, VolumeId, VolumeKey};

/// How long an operation waits for a daemon that is away, unless told otherwise.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

/// How to reach a volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Any daemon of the volume. Over a UNIX socket it becomes our home.
    pub endpoint: Endpoint,
    /// The volume's key. Without it other nodes are reached through the daemon of this
    /// machine, as the user that we are.
    pub key: Option<VolumeKey>,
    /// The volume meant; `None` takes the one the daemon serves.
    pub volume: Option<VolumeId>,
    /// How long an operation waits for a daemon that is away before it fails
    /// with `EHOSTDOWN`.
    pub patience: Duration,
}

impl Options {
    /// Only where; everything else by default.
    pub fn new(endpoint: Endpoint) -> Options {
        Options { endpoint, key: None, volume: None, patience: DEFAULT_PATIENCE }
    }
}

/// Why a volume can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection to the first daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon would not tell who else there is.
    #[error("{endpoint} did not tell the cluster map: {source}")]
    Map {
        /// The daemon.
        endpoint: Endpoint,
        /// What went wrong.
        source: FrameError,
    },
    /// It did, but the map is of no use.
    #[error("{endpoint} told a cluster map that makes no sense: {why}")]
    BadMap {
        /// The daemon.
        endpoint: Endpoint,
        /// What is wrong with it.
        why: String,
    },
    /// No random numbers for the client's id.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

/// A session with a volume. Shared by all threads of a program.
pub struct Client {
    id: ClientId,
    map: Arc<ClusterMap>,
    home: Option<NodeId>,
    /// By node number.
    peers: Vec<Arc<Peer>>,
    pub(crate) streams: Streams,
    pub(crate) tiled: TiledFiles,
    pub(crate) locks: Box<Locks>,
}

impl Client {
    /// Connects to a daemon and learns from it who else there is.
    ///
    /// # Errors
    /// [`Error`]. A daemon that is not there is an error at once: patience is
    /// for volumes that were there before.
    pub fn connect(options: Options) -> Result<Client, Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(Error::Random)?;
        let mut caller = Caller { client: ClientId(id), volume: options.volume, key: options.key };
        let endpoint = options.endpoint;
        let mut first = Connection::open(&endpoint, &caller, Role::Admin, 0, options.patience)?;
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
        check_map(&map).map_err(&bad)?;
        let home = matches!(endpoint, Endpoint::Unix(_)).then_some(first.welcome.node);
        let peers = map
            .nodes
            .iter()
            .map(|node| {
                let there = match &endpoint {
                    Endpoint::Unix(_) if home == Some(node.id) => endpoint.clone(),
                    Endpoint::Unix(path) if caller.key.is_none() => {
                        Endpoint::Through(path.clone(), node.id)
                    }
                    _ => Endpoint::Tcp(node.address.clone()),
                };
                Arc::new(Peer::new(node.id, there, caller.clone(), options.patience))
            })
            .collect();
        Ok(Client {
            id: caller.client,
            map: Arc::new(map),
            home,
            peers,
            streams: Streams::default(),
            tiled: TiledFiles::default(),
            locks: Box::default(),
        })
    }

    /// Our id: the same for as long as we live, whatever connections break.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.map.volume
    }

    /// All nodes, and which serves which shard.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.map.clone()
    }

    /// The node on this machine, whose files need no network.
    pub fn home(&self) -> Option<NodeId> {
        self.home
    }

    /// One request to the shard that it concerns. It takes effect once, even
    /// if the daemon dies before it answers and is started again. No request is
    /// needed for what the shard has delegated to us: see [`Client::hold_delegations`].
    ///
    /// # Errors
    /// The shard's, or `EHOSTDOWN` when its daemon stays away for longer than
    /// [`Options::patience`], or `EPROTO` when it refuses us.
    pub fn meta(&self, cred: &Cred, op: MetaOp) -> Result<MetaReply, Errno> {
        let shard = op.target().shard();
        let node = self.map.owner(shard).ok_or(Errno::ESTALE)?;
        let peer = self.peer(node)?;
        if let Some(result) = peer.delegations.answer(&op) {
            return result;
        }
        let asked = peer.delegations.ask(&op);
        let call = MetaCall { shard, cred: cred.clone(), op };
        let answer = peer.meta(&call);
        let (result, granted): (MetaResult, _) = match answer {
            Ok((result, granted)) => (result, granted),
            Err(e) => (Err(e), None),
        };
        let told = result.as_ref().map_err(|e| *e);
        peer.delegations.learn(&call.op, asked, told, granted.as_ref());
        result
    }

    /// One question or order to one node.
    ///
    /// # Errors
    /// The node's, or `EHOSTDOWN` at once when it is down.
    pub fn admin(&self, node: NodeId, call: AdminCall) -> Result<AdminReply, Errno> {
        let result: AdminResult = self.peer(node)?.admin(&call)?;
        result
    }

    pub(crate) fn peer(&self, node: NodeId) -> Result<&Arc<Peer>, Errno> {
        self.peers.get(usize::from(node.0)).ok_or(Errno::ENXIO)
    }
}

fn check_map(map: &ClusterMap) -> Result<(), String> {
    if map.nodes.is_empty() || map.shards.is_empty() {
        return Err("it has no nodes or no shards".into());
    }
    for (i, node) in map.nodes.iter().enumerate() {
        if usize::from(node.id.0) != i {
            return Err(format!("node {} stands at place {i}", node.id));
        }
    }
    match map.shards.iter().find(|n| usize::from(n.0) >= map.nodes.len()) {
        Some(n) => Err(format!("a shard is on node {n}, which does not exist")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::admin::NodeInfo;

    fn map(nodes: &[u16], shards: &[u16]) -> ClusterMap {
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
            shards: shards.iter().map(|n| NodeId(*n)).collect(),
        }
    }

    #[test]
    fn a_map_must_make_sense() {
        assert_eq!(check_map(&map(&[0, 1], &[0, 1, 0])), Ok(()));
        assert!(check_map(&map(&[], &[0])).is_err());
        assert!(check_map(&map(&[0], &[])).is_err());
        assert!(check_map(&map(&[1, 0], &[0])).is_err());
        assert!(check_map(&map(&[0], &[1])).is_err());
    }
}
