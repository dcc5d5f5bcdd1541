//! What a node is and how it was started. None of it changes while the node runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tatami_net::TlsTrust;
use tatami_wire::NodeId;
use tatami_wire::admin::{Durability, NodeInfo};
use tatami_wire::handshake::ServerIdentity;

/// See the module, and [`NodeOptions`](crate::NodeOptions) for the options.
pub(crate) struct NodeSettings {
    pub(crate) identity: ServerIdentity,
    /// The certificates, if connections between machines are encrypted.
    pub(crate) tls: Option<Arc<TlsTrust>>,
    /// Name and addresses.
    pub(crate) info: NodeInfo,
    pub(crate) version: String,
    pub(crate) lease: Duration,
    /// In bytes.
    pub(crate) reserve: u64,
    pub(crate) durability: Durability,
    /// Whether users other than the daemon's own and the superuser are admitted.
    pub(crate) allow_other: bool,
}

impl NodeSettings {
    pub(crate) fn node(&self) -> NodeId {
        self.identity.node
    }

    /// The path of the UNIX socket.
    pub(crate) fn socket_path(&self) -> PathBuf {
        PathBuf::from(&self.info.socket)
    }
}
