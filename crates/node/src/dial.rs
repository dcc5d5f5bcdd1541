//! Connections that this daemon makes to the daemons of other nodes, and to itself.

use crate::connections::handshakes::HANDSHAKE_TIMEOUT;
use crate::context::NodeContext;
use std::io;
use tatami_net::dial::{self, PlainWait};
use tatami_net::handshake::{HandshakeRetry, introduce_client};
use tatami_net::{DeadlineStream, Endpoint, NetStream};
use tatami_wire::NodeId;
use tatami_wire::handshake::{HandshakeError, Hello};

/// The reasons for which a connection cannot be made.
pub(crate) enum DialError {
    /// The other node does not answer now; it may in a moment.
    Unreachable(String),
    /// The other node refuses the connection for good.
    Refused(String),
    /// The other node refuses it until an operator has decided about a damaged disk.
    Damaged(String),
}

/// Connects to a node and does the handshake with `hello`. Returns the version of the protocol on
/// the connection: at most the newest one of this process and of `hello`.
pub(crate) fn connect_node(
    shared: &NodeContext,
    hello: &Hello,
    node: NodeId,
) -> Result<(NetStream, u32), DialError> {
    let map = shared.map.current();
    let info = map.find_member(node);
    let info = info.ok_or_else(|| DialError::Refused(format!("there is no node {node}")))?;
    let away = |e: io::Error| DialError::Unreachable(format!("{} does not answer: {e}", info.name));
    let endpoint = match node == shared.settings.node() {
        // Executors of the same node use the UNIX socket: half the work of TCP.
        true => Endpoint::Unix(shared.settings.socket_path()),
        false => Endpoint::from_address(&info.address),
    };
    let mut retry = HandshakeRetry::new(shared.settings.tls.as_deref());
    loop {
        let protocol = retry.protocol().up_to(hello.protocol.newest());
        match shake_hands(shared, &Hello { protocol, ..hello.clone() }, &endpoint) {
            Ok(connected) => return Ok(connected),
            Err(e) if retry.may_repeat(&e) => {}
            Err(e) => {
                return Err(match e {
                    HandshakeError::Io(e) => away(e),
                    HandshakeError::Unavailable(why) => DialError::Unreachable(why),
                    HandshakeError::Refused(why) => DialError::Refused(why),
                    HandshakeError::Damaged(why) => DialError::Damaged(why),
                    other => DialError::Refused(format!("{}: {other}", info.name)),
                });
            }
        }
    }
}

fn shake_hands(
    shared: &NodeContext,
    hello: &Hello,
    endpoint: &Endpoint,
) -> Result<(NetStream, u32), HandshakeError> {
    let stream = dial::connect(endpoint, shared.settings.tls.as_deref(), &PlainWait)?;
    stream.prepare_for_daemon()?;
    // One deadline for the whole handshake: a peer that sends a byte at a time gets no more time.
    let mut timed = DeadlineStream::new(&stream, HANDSHAKE_TIMEOUT);
    let key = Some(&shared.settings.identity.key);
    let welcome = introduce_client(&mut timed, stream.transport(), hello, key)?;
    Ok((stream, welcome.protocol))
}
