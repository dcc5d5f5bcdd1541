//! The handshake on a stream, for both sides. Its messages are in [`tatami_wire::handshake`].

use crate::random::make_random_id;
use crate::stream::NetStream;
use crate::transport::Transport;
use crate::trust::PeerIdentity;
use rustix::net::RecvFlags;
use std::io::{self, Read, Write};
use tatami_wire::VolumeKey;
use tatami_wire::handshake::{
    HandshakeError, Hello, ServerHandshake, ServerIdentity, Welcome, connect_client,
};

/// Most bytes that are received at a time.
const CHUNK: usize = 512;

/// Runs the client's side on a new connection of the given transport. The key never leaves this
/// process: the handshake proves it with a code over both nonces.
///
/// # Errors
/// All of [`HandshakeError`].
pub fn introduce_client(
    stream: &mut (impl Read + Write),
    transport: &Transport,
    hello: &Hello,
    key: Option<&VolumeKey>,
) -> Result<Welcome, HandshakeError> {
    connect_client(stream, transport.authentication, hello, key, make_random_id()?)
}

/// One connection of a server in its handshake.
#[derive(Debug)]
pub struct PendingHandshake {
    /// The connection.
    pub stream: NetStream,
    /// Its other side. The identity counts only once the handshake has succeeded.
    pub peer: PeerIdentity,
    greeting: ServerHandshake,
}

/// The state of a handshake after more bytes.
#[derive(Debug)]
pub enum HandshakeProgress {
    /// More bytes must arrive.
    Pending,
    /// The other side has proved its identity.
    Proved(Box<Hello>),
    /// The handshake has failed.
    Failed(HandshakeError),
}

impl PendingHandshake {
    /// Begins the server's side on a new connection.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(stream: NetStream, peer: PeerIdentity) -> io::Result<PendingHandshake> {
        let nonce = make_random_id()?;
        let greeting = ServerHandshake::new(stream.transport().authentication, nonce);
        Ok(PendingHandshake { stream, peer, greeting })
    }

    /// Checks whether the client has not sent anything yet.
    pub fn is_silent(&self) -> bool {
        self.greeting.is_silent()
    }

    /// Receives the bytes that have arrived, and answers, without waiting.
    pub fn receive_bytes(&mut self, identity: &ServerIdentity) -> HandshakeProgress {
        let mut chunk = [0; CHUNK];
        loop {
            // No byte beyond the handshake is taken: the next reader of the socket starts at the
            // first request.
            let room = self.greeting.bytes_needed().min(CHUNK);
            let flags = RecvFlags::DONTWAIT;
            let got = match rustix::net::recv(&self.stream, &mut chunk[..room], flags) {
                Ok((0, _)) => {
                    let end = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return HandshakeProgress::Failed(HandshakeError::Io(end));
                }
                Ok((got, _)) => got,
                Err(rustix::io::Errno::AGAIN) => return HandshakeProgress::Pending,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return HandshakeProgress::Failed(HandshakeError::Io(e.into())),
            };
            let mut answer = Vec::new();
            let hello = self.greeting.receive_bytes(&chunk[..got], identity, &mut answer);
            // A new connection has room for a handshake.
            let said = self.stream.send_at_once(&answer);
            match (hello, said) {
                (Err(e), _) => return HandshakeProgress::Failed(e),
                (_, Err(e)) => return HandshakeProgress::Failed(HandshakeError::Io(e)),
                (Ok(Some(hello)), Ok(())) => return HandshakeProgress::Proved(Box::new(hello)),
                (Ok(None), Ok(())) => {}
            }
        }
    }
}
