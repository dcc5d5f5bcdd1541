//! The options with which a node starts, and the reasons for which it does not.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tatami_cluster::DataDirError;
use tatami_cluster::trusted::TrustError;
use tatami_net::TlsTrust;
use tatami_object::NodeObjectsError;
use tatami_wire::admin::{ClusterMap, Durability};
use tatami_wire::{NodeId, VolumeKey};

/// The options with which a node starts.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The data directory; made if it is not there.
    pub dir: PathBuf,
    /// All nodes of the volume.
    pub map: ClusterMap,
    /// The number of this node among them.
    pub node: NodeId,
    /// The volume's key.
    pub key: VolumeKey,
    /// The certificates of the volume, if connections between machines are encrypted.
    pub tls: Option<Arc<TlsTrust>>,
    /// How long a client may be without a connection before its locks and open files are released.
    pub lease: Duration,
    /// Bytes of the disk that are reserved for names and that the bytes of files cannot take: a
    /// sixteenth of the disk at most.
    pub reserve: u64,
    /// The failures that an acknowledged change of names survives.
    pub durability: Durability,
    /// Whether users of this machine other than the daemon's own and the superuser may use the
    /// volume, as themselves.
    pub allow_other: bool,
    /// Version of the program, as `status` shows it.
    pub version: String,
    /// The node has had a data directory before. If the directory must be made now, the old one was
    /// lost.
    pub had_directory: bool,
    /// The device for small objects: a partition, a loop device or a file. `None`: the one that the
    /// node has had, if it has.
    pub region_device: Option<PathBuf>,
}

impl NodeOptions {
    /// Default of [`NodeOptions::lease`].
    pub const LEASE: Duration = Duration::from_secs(60);
    /// Default of [`NodeOptions::reserve`].
    pub const RESERVE: u64 = 256 << 20;

    /// Returns the options of a node with default lease, default reserve and this crate's version.
    /// The node is open to other users if the superuser starts it.
    pub fn new(dir: PathBuf, map: ClusterMap, node: NodeId, key: VolumeKey) -> NodeOptions {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        NodeOptions {
            dir,
            map,
            node,
            key,
            tls: None,
            lease: Self::LEASE,
            reserve: Self::RESERVE,
            durability: Durability::default(),
            allow_other: rustix::process::geteuid().is_root(),
            version,
            had_directory: false,
            region_device: None,
        }
    }
}

/// Why a node does not start. Each message says how to correct it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum StartError {
    #[error("node {0} is not in the volume's map: check volume.toml and the node's number")]
    UnknownNode(NodeId),
    #[error("the volume's map has {0} shards, not a power of two up to 4096: check volume.toml")]
    ShardMap(usize),
    #[error("{0}")]
    DataDir(#[from] DataDirError),
    #[error("{0}")]
    Objects(#[from] NodeObjectsError),
    #[error("namespace in {}: {source}", path.display())]
    Meta { path: PathBuf, source: tatami_meta::MetaOpenError },
    #[error(
        "address {address}: another program uses this port: stop it, or give node {node} \
         another port in volume.toml on all nodes"
    )]
    PortInUse { address: String, node: NodeId },
    #[error(
        "address {address}: cannot listen there: {source}; node {node} must have an address of \
         this machine in volume.toml"
    )]
    Listen { address: String, node: NodeId, source: io::Error },
    #[error("socket {}: another daemon answers there: stop it first", path.display())]
    SocketInUse { path: PathBuf },
    #[error(
        "socket {}: something that is not a socket is there: remove it, or give node {node} \
         another socket in volume.toml", path.display()
    )]
    NotASocket { path: PathBuf, node: NodeId },
    #[error("socket {}: {source}", path.display())]
    SocketDir { path: PathBuf, source: TrustError },
    #[error("socket {}: cannot listen there: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl StartError {
    /// Whether a store is damaged. The node can serve everything outside that store all the same.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, StartError::Meta { source, .. } if source.is_damage())
    }
}
