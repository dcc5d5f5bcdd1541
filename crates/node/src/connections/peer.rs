//! The identity of the other side of a connection, and its rights.

use crate::connections::stream::SocketStream;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use tatami_wire::{Cred, GROUPS_MAX};

/// Whether the user is the superuser or the daemon's own user.
pub(crate) fn is_own_user(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// The other side of a connection.
#[derive(Clone, Debug)]
pub(crate) struct PeerIdentity {
    /// The user that it must be; `None` for a trusted peer, which may act for any user.
    pub(crate) bound_to: Option<Cred>,
    /// Its address or process, for logs.
    origin: String,
}

impl PeerIdentity {
    /// Determines the other side of a connection. A TCP peer passes the handshake only with the
    /// volume's key, so it is trusted. On a UNIX socket the kernel reports the user: the superuser
    /// and the daemon's own user are trusted.
    ///
    /// # Errors
    /// Those of getsockopt(2); a peer in more than [`GROUPS_MAX`] groups.
    pub(crate) fn from_stream(stream: &SocketStream) -> io::Result<PeerIdentity> {
        let socket = match stream {
            SocketStream::Tcp(tcp) => {
                let origin = tcp.peer_addr()?.to_string();
                return Ok(PeerIdentity { bound_to: None, origin });
            }
            SocketStream::Unix(socket) => socket,
        };
        let ucred = rustix::net::sockopt::socket_peercred(socket)?;
        let (uid, gid) = (ucred.uid.as_raw(), ucred.gid.as_raw());
        let origin = format!("process {} of user {uid}", ucred.pid.as_raw_nonzero());
        if is_own_user(uid) {
            return Ok(PeerIdentity { bound_to: None, origin });
        }
        let groups = peer_groups(socket)?;
        Ok(PeerIdentity { bound_to: Some(Cred { uid, gid, groups }), origin })
    }

    /// Binds the peer to a user. A peer that may act for any user can ask for that.
    ///
    /// # Errors
    /// The reason for which the peer may not.
    pub(crate) fn bind_user(&mut self, user: &Cred) -> Result<(), &'static str> {
        if !self.is_trusted() {
            return Err("only who is trusted says for which user it speaks");
        }
        self.origin = format!("user {} by way of {}", user.uid, self.origin);
        self.bound_to = Some(user.clone());
        Ok(())
    }

    /// Whether the peer may act for any user and give orders.
    pub(crate) fn is_trusted(&self) -> bool {
        self.bound_to.is_none()
    }

    /// Returns the user that the peer is bound to.
    pub(crate) fn uid(&self) -> Option<u32> {
        self.bound_to.as_ref().map(|cred| cred.uid)
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}

/// Returns the supplementary groups of the process at the other end (`SO_PEERGROUPS`, for which
/// rustix has no call).
fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: `groups` has room for `len` bytes, and any bytes are valid u32s.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
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
