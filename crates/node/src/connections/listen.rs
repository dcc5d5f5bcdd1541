//! Listening at the addresses of the cluster map.

use crate::options::StartError;
use rustix::fs::Mode;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tatami_cluster::trusted::TrustedDir;
use tatami_net::{Endpoint, Listener, SocketName, TlsTrust};
use tatami_wire::NodeId;

/// Permissions of a socket and of its directory.
const OWN_ONLY: Mode = Mode::from_raw_mode(0o600);
const EVERY_USER: Mode = Mode::from_raw_mode(0o666);
const DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// Listens at the address at which other nodes reach this one.
pub(crate) fn listen_for_nodes(
    address: &str,
    node: NodeId,
    tls: Option<Arc<TlsTrust>>,
) -> Result<Listener, StartError> {
    Listener::listen(&Endpoint::from_address(address), OWN_ONLY, tls).map_err(|source| match source
        .kind()
    {
        io::ErrorKind::AddrInUse => StartError::PortInUse { address: address.to_owned(), node },
        _ => StartError::Listen { address: address.to_owned(), node, source },
    })
}

/// Listens on the socket for clients of this machine. The caller holds the lock of the data
/// directory, so a socket that does not answer was left by a killed daemon. With `allow_other`
/// every user may connect; otherwise only the daemon's own user and the superuser.
pub(crate) fn listen_for_clients(
    path: &Path,
    node: NodeId,
    allow_other: bool,
) -> Result<(Listener, SocketName), StartError> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Clients must find this daemon here, and no program of another user.
    TrustedDir::open_or_create(parent, DIRECTORY)
        .map_err(|source| StartError::SocketDir { path: path.to_owned(), source })?;
    // The kernel reports the user of each connection. The daemon decides on that user's
    // permissions.
    let mode = if allow_other { EVERY_USER } else { OWN_ONLY };
    let path = path.to_owned();
    match Listener::listen(&Endpoint::Unix(path.clone()), mode, None) {
        Ok(listener) => Ok((listener, SocketName::from_path(&path))),
        Err(e) => Err(match e.kind() {
            io::ErrorKind::AddrInUse => StartError::SocketInUse { path },
            io::ErrorKind::AlreadyExists => StartError::NotASocket { path, node },
            _ => StartError::Socket { path, source: e },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn removes_its_own_socket_only() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("volume").join("socket");
        let (_ours, name) = listen_for_clients(&path, NodeId(0), true)?;
        std::fs::remove_dir_all(dir.path().join("volume"))?;
        let (theirs, other) = listen_for_clients(&path, NodeId(0), true)?;
        name.remove();
        UnixStream::connect(&path)?;
        drop(theirs);
        other.remove();
        assert!(!path.exists());
        Ok(())
    }
}
