//! The relay of a connection that is meant for another node. A client without the volume's key
//! reaches other nodes through the daemon of its own node.
//!
//! The daemon proves to the other node that it has the key, and states the user of the client,
//! which the kernel has reported. From then on it copies bytes in both directions. The other node
//! checks the user's permissions as it does for a user of its own machine.

use crate::accept::{WRITE_TIMEOUT, prepare_stream};
use crate::handshakes::HANDSHAKE_TIMEOUT;
use crate::peer::PeerIdentity;
use crate::shared::{NodeShared, enlarge_buffers};
use crate::stream::{DeadlineStream, SocketStream};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tatami_wire::NodeId;
use tatami_wire::handshake::{self, HandshakeError, Hello};

/// Longest wait for a TCP connection to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that are copied at a time.
const CHUNK: usize = 256 << 10;

/// The reasons for which a connection cannot be relayed.
pub(crate) enum RelayError {
    /// The other node does not answer now; it may in a moment.
    Unreachable(String),
    /// The other node refuses the connection for good.
    Refused(String),
    /// The other node refuses it until an operator has decided about a damaged disk.
    Damaged(String),
}

/// Connects to the given node, on behalf of the user that the peer is bound to.
pub(crate) fn connect_for_user(
    shared: &NodeShared,
    hello: &Hello,
    peer: &PeerIdentity,
    node: NodeId,
) -> Result<SocketStream, RelayError> {
    // `node` is cleared: the other node is the end of the way, and never relays again. The user is
    // the one that the kernel reported, not one that the client names.
    let hello = Hello { node: None, user: peer.bound_to.clone(), ..hello.clone() };
    connect_node(shared, &hello, node)
}

/// Connects to a node and does the handshake with `hello`.
pub(crate) fn connect_node(
    shared: &NodeShared,
    hello: &Hello,
    node: NodeId,
) -> Result<SocketStream, RelayError> {
    let map = shared.map();
    let info = map.nodes.iter().find(|info| info.id == node);
    let info = info.ok_or_else(|| RelayError::Refused(format!("there is no node {node}")))?;
    let away =
        |e: io::Error| RelayError::Unreachable(format!("{} does not answer: {e}", info.name));
    let stream = match node == shared.node() {
        // Executors of the same node use the UNIX socket: half the work of TCP.
        true => UnixStream::connect(shared.socket_path()).map(SocketStream::Unix),
        false => connect_tcp(&info.address).map(SocketStream::Tcp),
    };
    let stream = stream.map_err(away)?;
    prepare_stream(&stream).map_err(away)?;
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|e| away(io::Error::other(e)))?;
    // One deadline for the whole handshake: a peer that sends a byte at a time gets no more time.
    let mut timed = DeadlineStream::new(&stream, HANDSHAKE_TIMEOUT);
    let key = Some(&shared.identity.key);
    // The key never leaves this node: the handshake proves it with a code over both nonces.
    handshake::connect_client(&mut timed, stream.transport(), hello, key, nonce).map_err(|e| {
        match e {
            HandshakeError::Io(e) => away(e),
            HandshakeError::Unavailable(why) => RelayError::Unreachable(why),
            HandshakeError::Refused(why) => RelayError::Refused(why),
            HandshakeError::Damaged(why) => RelayError::Damaged(why),
            other => RelayError::Refused(format!("{}: {other}", info.name)),
        }
    })?;
    Ok(stream)
}

fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    // A name may have several addresses; each is tried once.
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Copies the bytes of both sides until one of them ends.
pub(crate) fn relay_connection(near: &SocketStream, far: &SocketStream, peer: &PeerIdentity) {
    enlarge_buffers(near);
    for stream in [near, far] {
        // No timeout for reading: a client may be silent for as long as it likes. A side that takes
        // no bytes is dropped.
        if stream.set_timeouts(None, Some(WRITE_TIMEOUT)).is_err() {
            return;
        }
    }
    std::thread::scope(|scope| {
        let back = || copy_bytes(far, near);
        match std::thread::Builder::new().name("relay".to_owned()).spawn_scoped(scope, back) {
            Ok(_) => copy_bytes(near, far),
            Err(e) => tracing::error!(%peer, error = %e, "cannot start a thread for a relay"),
        }
        // Both sides are closed, so that the other thread's read returns and the scope can end.
        near.shutdown(Shutdown::Both);
        far.shutdown(Shutdown::Both);
    });
}

fn copy_bytes(mut from: &SocketStream, mut to: &SocketStream) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    // Requests and answers come in pairs: when one side has ended, nothing more can follow.
    from.shutdown(Shutdown::Both);
    to.shutdown(Shutdown::Both);
}
