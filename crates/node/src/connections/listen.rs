//! Listening at the addresses of the cluster map.

use crate::options::StartError;
use rustix::fs::Mode;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use tatami_cluster::trusted::TrustedDir;
use tatami_wire::NodeId;

/// Most connections that the kernel queues before they are accepted, if the system allows that
/// number (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Listens on a TCP address, for a non-blocking accept.
pub(crate) fn listen_tcp(address: &str, node: NodeId) -> Result<TcpListener, StartError> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        // All ranks of a job connect at once: more than the queue that the standard library asks
        // for.
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::PortInUse { address: address.to_owned(), node },
        _ => StartError::Listen { address: address.to_owned(), node, source },
    })
}

/// The name of a UNIX socket, and the file that had this name at first: another program may have
/// removed the directory, and another daemon made it again.
pub(crate) struct SocketName {
    path: PathBuf,
    file: Option<(u64, u64)>,
}

impl SocketName {
    fn from_path(path: &Path) -> SocketName {
        SocketName { path: path.to_owned(), file: file_identity(path) }
    }

    /// Removes the socket, if the name still stands for the same file.
    pub fn remove(&self) {
        if self.file.is_none() || self.file != file_identity(&self.path) {
            tracing::debug!(path = %self.path.display(), "the socket is another's, or gone already");
        } else if let Err(e) = std::fs::remove_file(&self.path) {
            tracing::debug!(error = %e, "the socket was gone already");
        }
    }
}

/// Returns device and inode number of a file.
fn file_identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Listens on a UNIX socket, for a non-blocking accept. The caller holds the lock of the data
/// directory, so a socket that does not answer was left by a killed daemon. With `allow_other`
/// every user may connect; otherwise only the daemon's own user and the superuser.
pub(crate) fn listen_unix(
    path: &Path,
    node: NodeId,
    allow_other: bool,
) -> Result<(UnixListener, SocketName), StartError> {
    let failed = |source| StartError::Socket { path: path.to_owned(), source };
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Clients must find this daemon here, and no program of another user.
    TrustedDir::open_or_create(parent, Mode::from_raw_mode(0o755))
        .map_err(|source| StartError::SocketDir { path: path.to_owned(), source })?;
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(StartError::NotASocket { path: path.to_owned(), node });
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => return Err(StartError::SocketInUse { path: path.to_owned() }),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            Err(e) => return Err(failed(e)),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // The kernel reports the user of each connection. The daemon decides on that user's
    // permissions.
    let mode = if allow_other { 0o666 } else { 0o600 };
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(|e| failed(e.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((listener, SocketName::from_path(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_its_own_socket_only() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("volume").join("socket");
        let (_ours, name) = listen_unix(&path, NodeId(0), true)?;
        std::fs::remove_dir_all(dir.path().join("volume"))?;
        let (theirs, other) = listen_unix(&path, NodeId(0), true)?;
        name.remove();
        UnixStream::connect(&path)?;
        drop(theirs);
        other.remove();
        assert!(!path.exists());
        Ok(())
    }
}
