//! Listening where the map says.

use crate::options::StartError;
use rustix::fs::Mode;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use tatami_wire::NodeId;

/// Listens on a TCP address, for a non-blocking accept.
pub(crate) fn tcp(address: &str, node: NodeId) -> Result<TcpListener, StartError> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::PortInUse { address: address.to_owned(), node },
        _ => StartError::Listen { address: address.to_owned(), node, source },
    })
}

/// Listens on a UNIX socket, for a non-blocking accept. The caller holds the
/// lock of the data directory, so a socket where nobody answers is what a
/// killed daemon left.
pub(crate) fn unix(path: &Path, node: NodeId) -> Result<UnixListener, StartError> {
    let failed = |source| StartError::Socket { path: path.to_owned(), source };
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
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(failed)?;
            }
        }
        Err(e) => return Err(failed(e)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Anybody may connect; who it is tells the kernel, what he may do we decide.
    rustix::fs::chmod(path, Mode::from_raw_mode(0o666)).map_err(|e| failed(e.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
