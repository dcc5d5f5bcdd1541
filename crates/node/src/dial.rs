//! Connections that this daemon makes to the daemons of other nodes, and to itself.

use crate::connections::handshakes::HANDSHAKE_TIMEOUT;
use crate::connections::stream::{DeadlineStream, SocketStream, prepare_stream};
use crate::shared::NodeShared;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tatami_wire::NodeId;
use tatami_wire::handshake::{self, HandshakeError, Hello};

/// Longest wait for a TCP connection to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The reasons for which a connection cannot be made.
pub(crate) enum DialError {
    /// The other node does not answer now; it may in a moment.
    Unreachable(String),
    /// The other node refuses the connection for good.
    Refused(String),
    /// The other node refuses it until an operator has decided about a damaged disk.
    Damaged(String),
}

/// Connects to a node and does the handshake with `hello`.
pub(crate) fn connect_node(
    shared: &NodeShared,
    hello: &Hello,
    node: NodeId,
) -> Result<SocketStream, DialError> {
    let map = shared.map();
    let info = map.nodes.iter().find(|info| info.id == node);
    let info = info.ok_or_else(|| DialError::Refused(format!("there is no node {node}")))?;
    let away = |e: io::Error| DialError::Unreachable(format!("{} does not answer: {e}", info.name));
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
            HandshakeError::Unavailable(why) => DialError::Unreachable(why),
            HandshakeError::Refused(why) => DialError::Refused(why),
            HandshakeError::Damaged(why) => DialError::Damaged(why),
            other => DialError::Refused(format!("{}: {other}", info.name)),
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
