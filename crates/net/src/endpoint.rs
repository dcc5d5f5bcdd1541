//! The address of a daemon: one form for each transport.

use crate::tcp::{TCP, TLS, resolve_name};
use crate::transport::Transport;
use crate::unix::UNIX;
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use std::fmt;
use std::io;
use std::path::PathBuf;
use tatami_wire::NodeId;

/// The address of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A UNIX socket on this machine. The node behind it is the client's home: its files are read
    /// and written without the daemon.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
    /// Another node, through the daemon that listens on a UNIX socket of this machine.
    Through(PathBuf, NodeId),
}

impl Endpoint {
    /// Returns the endpoint of a node's address in the cluster map. A new form needs a prefix that
    /// no host name has.
    pub fn from_address(address: &str) -> Endpoint {
        Endpoint::Tcp(address.to_owned())
    }

    /// Returns the socket's path, if the daemon that listens there is on this machine.
    pub fn local_socket(&self) -> Option<&PathBuf> {
        match self {
            Endpoint::Unix(path) | Endpoint::Through(path, _) => Some(path),
            Endpoint::Tcp(_) => None,
        }
    }

    /// Returns the node to which the daemon at this address must forward the connection.
    pub fn relay_target(&self) -> Option<NodeId> {
        match self {
            Endpoint::Through(_, node) => Some(*node),
            Endpoint::Unix(_) | Endpoint::Tcp(_) => None,
        }
    }

    /// Returns the transport of this form of address, in a volume that is encrypted or not.
    pub(crate) fn transport(&self, encrypted: bool) -> &'static Transport {
        match self {
            Endpoint::Unix(_) | Endpoint::Through(..) => &UNIX,
            Endpoint::Tcp(_) if encrypted => &TLS,
            Endpoint::Tcp(_) => &TCP,
        }
    }

    /// Returns the socket addresses of the endpoint, at least one.
    pub(crate) fn resolve(&self) -> io::Result<Vec<SocketAddrAny>> {
        match self {
            Endpoint::Unix(path) | Endpoint::Through(path, _) => {
                Ok(vec![SocketAddrUnix::new(path.as_path())?.into()])
            }
            Endpoint::Tcp(address) => resolve_name(address),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Through(path, node) => write!(f, "node {node} through {}", path.display()),
        }
    }
}
