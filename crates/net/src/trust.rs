//! Trust: the identity of the other side of a connection, and its rights.

use std::fmt;
use std::io;
use tatami_wire::Cred;

/// Whether the user is the superuser or the daemon's own user.
pub fn is_own_user(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// The other side of a connection.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    /// The user that it must be; `None` for a trusted peer, which may act for any user.
    bound_to: Option<Cred>,
    /// Its address or process, for logs.
    origin: String,
}

impl PeerIdentity {
    /// Returns the identity of a peer that passes the handshake only with the volume's key, and is
    /// trusted for that.
    pub(crate) fn of_key_holder(origin: String) -> PeerIdentity {
        PeerIdentity { bound_to: None, origin }
    }

    /// Returns the identity of a process of user `uid`, as the kernel reports. The superuser and
    /// the daemon's own user are trusted. For any other user, `read_cred` returns all its ids.
    pub(crate) fn of_process(
        uid: u32,
        origin: String,
        read_cred: impl FnOnce() -> io::Result<Cred>,
    ) -> io::Result<PeerIdentity> {
        let bound_to = if is_own_user(uid) { None } else { Some(read_cred()?) };
        Ok(PeerIdentity { bound_to, origin })
    }

    /// Binds the peer to a user. A peer that may act for any user can ask for that.
    ///
    /// # Errors
    /// The reason for which the peer may not.
    pub fn bind_user(&mut self, user: &Cred) -> Result<(), &'static str> {
        if !self.is_trusted() {
            return Err("only who is trusted says for which user it speaks");
        }
        self.origin = format!("user {} by way of {}", user.uid, self.origin);
        self.bound_to = Some(user.clone());
        Ok(())
    }

    /// Whether the peer may act for any user and give orders.
    pub fn is_trusted(&self) -> bool {
        self.bound_to.is_none()
    }

    /// Returns the user that the peer is bound to; `None` for a trusted peer.
    pub fn bound_user(&self) -> Option<&Cred> {
        self.bound_to.as_ref()
    }

    /// Returns the number of the user that the peer is bound to.
    pub fn uid(&self) -> Option<u32> {
        self.bound_to.as_ref().map(|cred| cred.uid)
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}
