//! TCP, plain or with TLS: between machines. Both sides prove that they have the volume's key, with
//! TLS beside their certificates.

use crate::transport::Transport;
use crate::trust::PeerIdentity;
use rustix::net::{SocketAddrAny, getpeername, sockopt};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tatami_wire::handshake::Authentication;

/// Seconds after which a silent peer is probed, seconds between probes, and the number of
/// unanswered probes after which the peer counts as dead.
const KEEPALIVE: (u64, u64, u32) = (15, 5, 3);

/// See the module.
pub(crate) static TCP: Transport = Transport {
    name: "TCP",
    authentication: Authentication::Key,
    passes_descriptors: false,
    splices_pages: true,
    tunes_buffers: true,
    connect_timeout: Some(Duration::from_secs(5)),
    prepare: |socket| Ok(sockopt::set_tcp_nodelay(socket, true)?),
    detect_death,
    identify_peer,
};

/// TLS over TCP. The bytes of files pass through the memory of both sides, which encrypt them.
pub(crate) static TLS: Transport = Transport {
    name: "TLS",
    authentication: Authentication::Key,
    passes_descriptors: false,
    splices_pages: false,
    tunes_buffers: true,
    connect_timeout: TCP.connect_timeout,
    prepare: |socket| Ok(sockopt::set_tcp_nodelay(socket, true)?),
    detect_death,
    identify_peer,
};

/// Returns all addresses of `host:port`.
pub(crate) fn resolve_name(address: &str) -> io::Result<Vec<SocketAddrAny>> {
    let found: Vec<SocketAddrAny> = address.to_socket_addrs()?.map(SocketAddrAny::from).collect();
    match found.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        false => Ok(found),
    }
}

fn detect_death(socket: BorrowedFd<'_>) -> io::Result<()> {
    let (idle, interval, probes) = KEEPALIVE;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(interval))?;
    sockopt::set_tcp_keepcnt(socket, probes)?;
    // The kernel sends no probes while sent bytes wait to be acknowledged, so this timeout covers
    // that case.
    let silence = idle + interval * u64::from(probes);
    sockopt::set_tcp_user_timeout(socket, (silence * 1000) as u32)?;
    Ok(())
}

fn identify_peer(socket: BorrowedFd<'_>) -> io::Result<PeerIdentity> {
    let address = getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(PeerIdentity::of_key_holder(SocketAddr::try_from(address)?.to_string()))
}
