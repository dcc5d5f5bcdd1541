//! The handshake on a stream, for both sides. Its messages are in [`tatami_wire::handshake`].

use crate::random::make_random_id;
use crate::stream::NetStream;
use crate::tls_error::{TlsError, lift_tls_error};
use crate::tls_trust::TlsTrust;
use crate::transport::Transport;
use crate::trust::PeerIdentity;
use std::io::{self, Read, Write};
use tatami_wire::handshake::{
    HandshakeError, Hello, ServerHandshake, ServerIdentity, Welcome, connect_client, refuse_client,
};
use tatami_wire::{ProtocolRange, VolumeKey};

/// The answer to a client that has the key and does not encrypt.
const PLAIN_REFUSAL: &str = "the daemon has volume.encryption = tls, and this side has none: both need the \
     volume.toml and the certificates of the volume";
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
    let nonce = make_random_id()?;
    let done = connect_client(&mut *stream, transport.authentication, hello, key, nonce);
    done.map_err(|error| match &error {
        // The other side has refused our certificate, and closed before we sent all. The reason
        // still waits to be received.
        HandshakeError::Io(e) if is_broken(e) => match stream.read(&mut [0]) {
            Err(e) if TlsError::find_in(&e).is_some() => lift_tls_error(HandshakeError::Io(e)),
            _ => error,
        },
        _ => lift_tls_error(error),
    })
}

fn is_broken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Decides whether a failed handshake of a client is repeated on a new connection.
#[derive(Debug)]
pub struct HandshakeRetry<'a> {
    tls: Option<&'a TlsTrust>,
    /// The generation of the certificates of the last attempt.
    generation: Option<u64>,
    protocol: ProtocolRange,
}

impl<'a> HandshakeRetry<'a> {
    /// Begins with the current certificates, and with all versions of this process.
    pub fn new(tls: Option<&'a TlsTrust>) -> HandshakeRetry<'a> {
        let generation = tls.map(TlsTrust::generation);
        HandshakeRetry { tls, generation, protocol: ProtocolRange::of_process() }
    }

    /// Returns the versions to offer in the next attempt.
    pub fn protocol(&self) -> ProtocolRange {
        self.protocol
    }

    /// Checks whether another attempt may succeed after this error. Each cause counts once.
    pub fn may_repeat(&mut self, error: &HandshakeError) -> bool {
        match *error {
            // New certificates have come meanwhile, and the other side may have them already.
            HandshakeError::Encryption(_) => {
                let current = self.tls.map(TlsTrust::generation);
                std::mem::replace(&mut self.generation, current) != current
            }
            // An older daemon refuses the offer of a newer version.
            HandshakeError::Version { theirs, .. } => {
                let older = theirs < self.protocol.newest() && self.protocol.includes(theirs);
                self.protocol = self.protocol.up_to(theirs);
                older
            }
            _ => false,
        }
    }
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
        self.greeting.is_silent() && !self.stream.has_begun()
    }

    /// Receives the bytes that have arrived, and answers, without waiting.
    pub fn receive_bytes(&mut self, identity: &ServerIdentity) -> HandshakeProgress {
        let mut chunk = [0; CHUNK];
        loop {
            // No byte beyond the handshake is taken: the next reader of the socket starts at the
            // first request.
            let room = self.greeting.bytes_needed().min(CHUNK);
            let got = match self.stream.receive_at_once(&mut chunk[..room]) {
                Ok(0) => {
                    let end = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return HandshakeProgress::Failed(HandshakeError::Io(end));
                }
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return HandshakeProgress::Pending;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    return HandshakeProgress::Failed(lift_tls_error(HandshakeError::Io(e)));
                }
            };
            let mut answer = Vec::new();
            let hello = self.greeting.receive_bytes(&chunk[..got], identity, &mut answer);
            // A new connection has room for a handshake.
            let said = self.stream.send_at_once(&answer);
            match (hello, said) {
                (Err(e), _) => {
                    // A close with unread bytes could destroy the answer.
                    let _ = self.stream.receive_at_once(&mut [0; 4096]);
                    return HandshakeProgress::Failed(e);
                }
                (_, Err(e)) => return HandshakeProgress::Failed(HandshakeError::Io(e)),
                (Ok(Some(_)), Ok(())) if self.stream.lacks_encryption() => {
                    let mut answer = Vec::new();
                    let _ = refuse_client(&mut answer, PLAIN_REFUSAL);
                    let _ = self.stream.send_at_once(&answer);
                    let why = "this volume has volume.encryption = tls, and the other side none";
                    return HandshakeProgress::Failed(HandshakeError::Encryption(why.to_owned()));
                }
                (Ok(Some(hello)), Ok(())) => return HandshakeProgress::Proved(Box::new(hello)),
                (Ok(None), Ok(())) => {}
            }
        }
    }
}
