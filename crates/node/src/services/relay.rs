//! The relay of a connection that is meant for another node. A client without the volume's key
//! reaches other nodes through the daemon of its own node.
//!
//! The daemon proves to the other node that it has the key, and states the user of the client,
//! which the kernel has reported. From then on it copies bytes in both directions. The other node
//! checks the user's permissions as it does for a user of its own machine.

use crate::connections::WRITE_TIMEOUT;
use crate::context::NodeContext;
use crate::dial::{self, DialError};
use rustix::net::Shutdown;
use std::io::{self, Read, Write};
use tatami_net::{NetStream, PeerIdentity};
use tatami_wire::NodeId;
use tatami_wire::handshake::Hello;

/// Most bytes that are copied at a time.
const CHUNK: usize = 256 << 10;

/// Connects to the given node, on behalf of the user that the peer is bound to. Returns the version
/// of the protocol on the connection, too.
pub(crate) fn connect_for_user(
    shared: &NodeContext,
    hello: &Hello,
    peer: &PeerIdentity,
    node: NodeId,
) -> Result<(NetStream, u32), DialError> {
    // `node` is cleared: the other node is the end of the way, and never relays again. The user is
    // the one that the kernel reported, not one that the client names.
    let hello = Hello { node: None, user: peer.bound_user().cloned(), ..hello.clone() };
    dial::connect_node(shared, &hello, node)
}

/// Copies the bytes of both sides until one of them ends.
pub(crate) fn relay_connection(near: &NetStream, far: &NetStream, peer: &PeerIdentity) {
    near.enlarge_untuned_buffers();
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

fn copy_bytes(mut from: &NetStream, mut to: &NetStream) {
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
