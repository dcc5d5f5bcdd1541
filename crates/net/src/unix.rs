//! UNIX sockets: between processes of one machine. The kernel names the peer's user.

use crate::transport::Transport;
use crate::trust::PeerIdentity;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tatami_wire::handshake::Authentication;
use tatami_wire::{Cred, GROUPS_MAX};

/// See the module.
pub(crate) static UNIX: Transport = Transport {
    name: "UNIX socket",
    authentication: Authentication::Kernel,
    passes_descriptors: true,
    splices_pages: false,
    tunes_buffers: false,
    connect_timeout: None,
    prepare: |_| Ok(()),
    // The kernel reports the end of a process of this machine.
    detect_death: |_| Ok(()),
    identify_peer,
};

fn identify_peer(socket: BorrowedFd<'_>) -> io::Result<PeerIdentity> {
    let libc::ucred { pid, uid, gid } = read_peer_process(socket)?;
    let origin = match pid {
        // The process is in a container: there is no number for it in this PID namespace.
        0 => format!("a process of user {uid} in another PID namespace"),
        _ => format!("process {pid} of user {uid}"),
    };
    PeerIdentity::of_process(uid, origin, || {
        Ok(Cred { uid, gid, groups: read_peer_groups(socket)? })
    })
}

/// Returns process, user and group of the other end (`SO_PEERCRED`). The call of rustix has no
/// value for process 0, which stands for a process outside of the caller's PID namespace.
///
/// # Errors
/// Those of getsockopt(2).
fn read_peer_process(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` has room for `len` bytes, and any bytes are valid numbers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut len,
        )
    };
    match result {
        0 => Ok(peer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the supplementary groups of the process at the other end (`SO_PEERGROUPS`, for which
/// rustix has no call).
///
/// # Errors
/// Those of getsockopt(2), also for a process in more than [`GROUPS_MAX`] groups.
fn read_peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: `groups` has room for `len` bytes, and any bytes are valid u32s.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(len as usize / size_of::<u32>());
    Ok(groups)
}

/// The name of a UNIX socket, and the file that had this name at first: another program may have
/// removed the directory, and another daemon made it again.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    file: Option<(u64, u64)>,
}

impl SocketName {
    /// Returns the name of the socket that is at `path` now.
    pub fn from_path(path: &Path) -> SocketName {
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

/// Frees the name of a socket that a killed process left there. The caller must be sure that no
/// other process is about to listen there.
///
/// # Errors
/// `AddrInUse` if a process answers there, `AlreadyExists` for a file that is no socket, and those
/// of the system.
pub(crate) fn remove_dead_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::ErrorKind::AlreadyExists.into())
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            Err(e) => Err(e),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}
