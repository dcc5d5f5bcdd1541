//! A connection that is meant for another node: whoever has no key of the volume reaches other
//! nodes through the daemon of its own.
//!
//! The daemon proves there that it has the key and says which user is speaking, as the kernel
//! told it; from then on bytes go both ways as they come. What the user may do, the
//! other node judges as it would of a user of its own machine.

use crate::accept::{WRITE_TIMEOUT, prepare};
use crate::peer::Peer;
use crate::shared::{Shared, enlarge_buffers};
use crate::strangers::HANDSHAKE_TIMEOUT;
use crate::stream::{Deadlined, Stream};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tatami_wire::NodeId;
use tatami_wire::handshake::{self, HandshakeError, Hello};

/// Longest wait for a TCP connection to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes passed on at a time.
const CHUNK: usize = 256 << 10;

/// Why a connection cannot be passed on.
pub(crate) enum NotPassed {
    /// The other node does not answer; it may in a moment.
    Away(String),
    /// It never will be.
    Refused(String),
    /// Not before an operator has decided about a damaged disk.
    Damaged(String),
}

/// Connects to the node that `hello` means, in the name of the user that the peer is bound to.
pub(crate) fn connect(
    shared: &Shared,
    hello: &Hello,
    peer: &Peer,
    node: NodeId,
) -> Result<Stream, NotPassed> {
    let hello = Hello { node: None, user: peer.bound_to.clone(), ..hello.clone() };
    reach_node(shared, &hello, node)
}

/// Connects to a node and shakes hands as `hello` says.
pub(crate) fn reach_node(
    shared: &Shared,
    hello: &Hello,
    node: NodeId,
) -> Result<Stream, NotPassed> {
    let map = shared.map();
    let info = map.nodes.iter().find(|info| info.id == node);
    let info = info.ok_or_else(|| NotPassed::Refused(format!("there is no node {node}")))?;
    let away = |e: io::Error| NotPassed::Away(format!("{} does not answer: {e}", info.name));
    let stream = match node == shared.node() {
        // From one executor to another of the node: half the work of TCP.
        true => UnixStream::connect(shared.socket()).map(Stream::Unix),
        false => reach(&info.address).map(Stream::Tcp),
    };
    let stream = stream.map_err(away)?;
    prepare(&stream).map_err(away)?;
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|e| away(io::Error::other(e)))?;
    let mut timed = Deadlined::new(&stream, HANDSHAKE_TIMEOUT);
    let key = Some(&shared.identity.key);
    handshake::connect(&mut timed, stream.transport(), hello, key, nonce).map_err(|e| match e {
        HandshakeError::Io(e) => away(e),
        HandshakeError::Away(why) => NotPassed::Away(why),
        HandshakeError::Refused(why) => NotPassed::Refused(why),
        HandshakeError::Damaged(why) => NotPassed::Damaged(why),
        other => NotPassed::Refused(format!("{}: {other}", info.name)),
    })?;
    Ok(stream)
}

fn reach(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Passes on what both sides say until one of them has no more to say.
pub(crate) fn serve(near: &Stream, far: &Stream, peer: &Peer) {
    enlarge_buffers(near);
    for stream in [near, far] {
        if stream.set_timeouts(None, Some(WRITE_TIMEOUT)).is_err() {
            return;
        }
    }
    std::thread::scope(|scope| {
        let back = || pass(far, near);
        match std::thread::Builder::new().name("relay".to_owned()).spawn_scoped(scope, back) {
            Ok(_) => pass(near, far),
            Err(e) => tracing::error!(%peer, error = %e, "cannot start a thread for a relay"),
        }
        near.shutdown(Shutdown::Both);
        far.shutdown(Shutdown::Both);
    });
}

fn pass(mut from: &Stream, mut to: &Stream) {
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
    // Requests and answers come in pairs: when one side has ended, nothing is left to be said.
    from.shutdown(Shutdown::Both);
    to.shutdown(Shutdown::Both);
}
