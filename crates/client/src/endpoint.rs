//! The address of a daemon.

use std::fmt;
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

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Through(path, node) => write!(f, "node {node} through {}", path.display()),
        }
    }
}
