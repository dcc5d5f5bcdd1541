//! The handshake of a connection. Both sides agree on a version of the protocol. They check that
//! they mean the same volume, and that the client is authorized.
//!
//! ```text
//! client → Hello     magic, version, role, client id, slot, volume (or zeros), nonce, the meant
//!                    node and executor, the user that the client binds itself to
//! server → Challenge magic, version, verdict, volume, node, nonce, proof of the server
//! client → Proof     proof of the client (empty on a UNIX socket)
//! server → Verdict   one byte and a text
//! ```
//!
//! Messages have fixed lengths, and all versions from 3 on have the same ones. So each side
//! recognises another version, or another protocol, by the first bytes, and can report it. A hello
//! states the newest version of the client, and a challenge the version for this connection: the
//! lower one of both sides. A server of version 3 refuses other clients, so a client calls it again
//! with that version. The proofs from version 4 on include the version of the challenge.
//!
//! A proof is a MAC over both nonces with the volume's key.
//! Each side thus proves that it has the key, and a replayed handshake is useless. On a UNIX socket
//! the kernel identifies the client, and no proof is needed.
//!
//! A client without the key reaches other nodes through its local daemon. The client names the
//! node. The daemon does the handshake there with the key, states the user, and forwards all bytes
//! that follow. The other node may be older than the daemon: then the verdict states the version on
//! which the daemon and that node have agreed.

use crate::protocol_range::FIRST_AGREEING;
use crate::{
    ClientId, Cred, EXECUTORS_MAX, GROUPS_MAX, NodeId, ProtocolRange, VolumeId, VolumeKey,
};
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"TATAMI\r\n";
/// End of magic and version, which are at the same place in every message.
const VERSION_END: usize = 8 + 4;
/// Length of a hello up to the ids of its user.
const HELLO_LEN: usize = 8 + 4 + 1 + 16 + 4 + 16 + 16 + 1 + 2 + 2 + 1;
/// Encoding of "no node".
const NO_NODE: u16 = u16::MAX;
const CHALLENGE_LEN: usize = 8 + 4 + 1 + 16 + 2 + 16 + 16;
const PROOF_LEN: usize = 16;
/// Longest text of a verdict, in bytes.
const TEXT_MAX: usize = 255;

/// The purpose of a connection. It selects the daemon's thread for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Namespace requests, to an executor.
    Meta = 1,
    /// Bytes of objects.
    Data = 2,
    /// Administrative requests to the node.
    Admin = 3,
    /// Recalls and notifications from an executor to a client with delegations, see
    /// [`crate::delegation`]. A client has one to each executor.
    Recall = 4,
    /// Messages of one executor to another, in one direction; see [`crate::transaction`]. For
    /// trusted peers only.
    Peer = 5,
}

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// From a client, the versions that it offers. A server gets the range up to the version on
    /// which both sides agree.
    pub protocol: ProtocolRange,
    /// Purpose of the connection.
    pub role: Role,
    /// Id of the client.
    pub client: ClientId,
    /// The client's slot for this connection, 0 to [`SLOTS_MAX`] - 1. A slot has at most one
    /// request under way. The daemon keeps the last reply of each slot. (The session slots of
    /// NFSv4.1, RFC 8881 section 2.10.6.) For [`Role::Peer`]: the number of the sending executor
    /// ([`ExecutorId`](crate::ExecutorId)).
    pub slot: u32,
    /// The expected volume; `None` accepts any.
    pub volume: Option<VolumeId>,
    /// The node to which the daemon must forward the connection; `None` for the daemon's own.
    pub node: Option<NodeId>,
    /// Index of the executor, below [`EXECUTORS_MAX`]; 0 if the role needs none.
    pub executor: u8,
    /// Restricts the client to this user on the connection. Only a client that may act for
    /// any user may set this. `None`: the daemon uses the client's known user.
    pub user: Option<Cred>,
}

/// Most metadata connections of one client.
pub const SLOTS_MAX: u32 = 1024;

/// The reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum HandshakeError {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("the other side does not speak Tatami's protocol: is this the right port?")]
    NotTatami,
    #[error(
        "the other side speaks protocol version {theirs}, this one {ours}: upgrade the older side \
         to the same version of tatami, or to the release before it"
    )]
    Version { ours: ProtocolRange, theirs: u32 },
    #[error(
        "the daemon serves volume {theirs}, not {ours}: check the address or the configuration"
    )]
    Volume { ours: VolumeId, theirs: VolumeId },
    #[error("the key does not fit the volume's: copy the volume's key file to this node")]
    Key,
    #[error("the other side begins with TLS, and this volume has volume.encryption = none")]
    Encrypted,
    #[error("{0}")]
    Encryption(String),
    #[error("refused: {0}")]
    Refused(String),
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Damaged(String),
}

/// The result of a handshake for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The volume that the daemon serves.
    pub volume: VolumeId,
    /// The node.
    pub node: NodeId,
    /// The version of the protocol on this connection.
    pub protocol: u32,
}

/// The identity of the server.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// The volume it serves.
    pub volume: VolumeId,
    /// The node.
    pub node: NodeId,
    /// The volume's key.
    pub key: VolumeKey,
}

/// How a server learns the identity of a client. Each transport states its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// The kernel identifies the peer, which is on the same machine.
    Kernel,
    /// The peer must prove that it has the key.
    Key,
}

fn build_transcript(nonces: &[u8; 32], side: u8, hello: &[u8], version: u32) -> Vec<u8> {
    // The hello and the version are included, so that nobody can change them on the way. The side
    // prevents that a proof is reflected.
    let mut transcript = [&nonces[..], &[side], hello].concat();
    if version >= FIRST_AGREEING {
        transcript.extend(version.to_le_bytes());
    }
    transcript
}

/// Runs the client's side. `key` may be `None` on a UNIX socket. `nonce` is 16 fresh random bytes.
///
/// # Errors
/// All of [`HandshakeError`].
pub fn connect_client(
    stream: &mut (impl Read + Write),
    authentication: Authentication,
    hello: &Hello,
    key: Option<&VolumeKey>,
    nonce: [u8; 16],
) -> Result<Welcome, HandshakeError> {
    let bytes = encode_hello(hello, nonce, authentication).ok_or_else(too_many_groups_error)?;
    stream.write_all(&bytes)?;
    let mut b = [0; CHALLENGE_LEN];
    let version = read_challenge(stream, hello.protocol, &mut b)?;
    let mut nonces = [0; 32];
    nonces[..16].copy_from_slice(&nonce);
    nonces[16..].copy_from_slice(&b[31..47]);
    let mut volume = [0; 16];
    volume.copy_from_slice(&b[13..29]);
    let volume = VolumeId(volume);
    if let Some(ours) = hello.volume.filter(|v| *v != volume) {
        return Err(HandshakeError::Volume { ours, theirs: volume });
    }
    // The server proves first, so that a false server never gets a proof by the key.
    let mut proof = [0; PROOF_LEN];
    if authentication == Authentication::Key {
        let mut theirs = [0; PROOF_LEN];
        theirs.copy_from_slice(&b[47..63]);
        let fits = |key: &&VolumeKey| {
            key.verify_mac("server", &build_transcript(&nonces, 1, &bytes, version), &theirs)
        };
        let Some(key) = key.filter(fits) else {
            // Still send a proof, so that the server counts and logs a client with another key. The
            // server may have closed by now.
            let _ = stream.write_all(&proof);
            return Err(HandshakeError::Key);
        };
        proof = key.compute_mac("client", &build_transcript(&nonces, 2, &bytes, version));
    }
    stream.write_all(&proof)?;
    let mut verdict = [0; 2];
    stream.read_exact(&mut verdict)?;
    let mut text = vec![0; usize::from(verdict[1])];
    stream.read_exact(&mut text)?;
    match verdict[0] {
        0 => {
            let node = NodeId(u16::from_le_bytes([b[29], b[30]]));
            // The node behind the daemon may be older than the daemon.
            let lower = text[..].try_into().ok().map(u32::from_le_bytes);
            let protocol = lower.map_or(version, |lower| lower.min(version));
            if !hello.protocol.includes(protocol) {
                let (ours, theirs) = (hello.protocol, protocol);
                return Err(HandshakeError::Version { ours, theirs });
            }
            Ok(Welcome { volume, node, protocol })
        }
        1 => Err(HandshakeError::Key),
        3 => Err(HandshakeError::Unavailable(String::from_utf8_lossy(&text).into_owned())),
        4 => Err(HandshakeError::Damaged(String::from_utf8_lossy(&text).into_owned())),
        _ => Err(HandshakeError::Refused(String::from_utf8_lossy(&text).into_owned())),
    }
}

/// Runs the server's side, until the client is identified. The server must then [`admit_client`] or
/// [`refuse_client`] the client. `nonce` is 16 fresh random bytes.
///
/// # Errors
/// All of [`HandshakeError`]; the client has got the reason if possible.
pub fn accept_client(
    stream: &mut (impl Read + Write),
    authentication: Authentication,
    identity: &ServerIdentity,
    nonce: [u8; 16],
) -> Result<Hello, HandshakeError> {
    let mut greeting = ServerHandshake::new(authentication, nonce);
    loop {
        let mut bytes = vec![0; greeting.bytes_needed()];
        stream.read_exact(&mut bytes)?;
        let mut answer = Vec::new();
        let hello = greeting.receive_bytes(&bytes, identity, &mut answer);
        let said = stream.write_all(&answer);
        // An error of the client's hello counts more than a failed write to a client that has left.
        if let Some(hello) = hello? {
            return Ok(hello);
        }
        said?;
    }
}

/// The server's side without a stream, for servers that wait for many clients at once. It takes the
/// received bytes and returns the bytes to send.
#[derive(Debug)]
pub struct ServerHandshake {
    /// The versions of this side; once known, up to the version for the client.
    protocol: ProtocolRange,
    authentication: Authentication,
    nonce: [u8; 16],
    stage: HandshakeStage,
    /// The received bytes of this stage's message.
    received: Vec<u8>,
    /// The length of that message, as far as known.
    needed: usize,
}

/// The message that a [`ServerHandshake`] expects.
#[derive(Debug)]
enum HandshakeStage {
    /// Magic and version, at the same place in every version.
    Version,
    /// The rest of the hello, up to the ids of its user.
    Hello,
    /// The user's ids.
    UserIds,
    /// The client's proof for this transcript.
    Proof { transcript: Vec<u8>, hello: Box<Hello> },
}

impl ServerHandshake {
    /// Starts a handshake for the versions of this process. `nonce` is 16 fresh random bytes.
    pub fn new(authentication: Authentication, nonce: [u8; 16]) -> ServerHandshake {
        ServerHandshake::with_protocol(ProtocolRange::of_process(), authentication, nonce)
    }

    /// As [`ServerHandshake::new`], for other versions.
    pub fn with_protocol(
        protocol: ProtocolRange,
        authentication: Authentication,
        nonce: [u8; 16],
    ) -> ServerHandshake {
        let (stage, received) = (HandshakeStage::Version, Vec::new());
        ServerHandshake { protocol, authentication, nonce, stage, received, needed: VERSION_END }
    }

    /// Returns the number of bytes that the next call of [`ServerHandshake::receive_bytes`]
    /// accepts; at least one.
    pub fn bytes_needed(&self) -> usize {
        self.needed - self.received.len()
    }

    /// Checks whether the client has not sent anything yet.
    pub fn is_silent(&self) -> bool {
        matches!(self.stage, HandshakeStage::Version) && self.received.is_empty()
    }

    /// Takes the next bytes from the client, at most [`ServerHandshake::bytes_needed`]. Appends the
    /// bytes to send to `answer`, even on an error. Returns the hello when the client is
    /// authenticated.
    ///
    /// # Errors
    /// All of [`HandshakeError`] but `Io`. The greeting is unusable afterwards.
    pub fn receive_bytes(
        &mut self,
        bytes: &[u8],
        identity: &ServerIdentity,
        answer: &mut Vec<u8>,
    ) -> Result<Option<Hello>, HandshakeError> {
        assert!(bytes.len() <= self.bytes_needed(), "no more than was wanted");
        self.received.extend_from_slice(bytes);
        while self.received.len() == self.needed {
            if let Some(hello) = self.advance_stage(identity, answer)? {
                return Ok(Some(hello));
            }
        }
        Ok(None)
    }

    /// Advances to the next stage after a complete message.
    fn advance_stage(
        &mut self,
        identity: &ServerIdentity,
        answer: &mut Vec<u8>,
    ) -> Result<Option<Hello>, HandshakeError> {
        match &self.stage {
            HandshakeStage::Version => {
                if let Err(e) = self.agree_on_version() {
                    if matches!(e, HandshakeError::Version { .. } | HandshakeError::Encrypted) {
                        // The other version finds our version in these bytes and reports it to its
                        // user. A client that encrypts recognizes that this side does not.
                        answer.extend(build_challenge_head(self.protocol.newest()));
                    }
                    return Err(e);
                }
                (self.stage, self.needed) = (HandshakeStage::Hello, HELLO_LEN);
            }
            HandshakeStage::Hello => {
                self.needed = HELLO_LEN + 4 * count_user_ids(&self.received);
                self.stage = HandshakeStage::UserIds;
            }
            HandshakeStage::UserIds => {
                let bytes = std::mem::take(&mut self.received);
                let version = self.protocol.newest();
                let (hello, client_nonce) =
                    decode_hello(&bytes, self.protocol).ok_or(HandshakeError::NotTatami)?;
                let mut nonces = [0; 32];
                nonces[..16].copy_from_slice(&client_nonce);
                nonces[16..].copy_from_slice(&self.nonce);
                let mut b = build_challenge_head(version);
                b[13..29].copy_from_slice(&identity.volume.0);
                b[29..31].copy_from_slice(&identity.node.0.to_le_bytes());
                b[31..47].copy_from_slice(&self.nonce);
                if self.authentication == Authentication::Key {
                    let transcript = build_transcript(&nonces, 1, &bytes, version);
                    b[47..63].copy_from_slice(&identity.key.compute_mac("server", &transcript));
                }
                answer.extend(b);
                let transcript = build_transcript(&nonces, 2, &bytes, version);
                self.stage = HandshakeStage::Proof { transcript, hello: Box::new(hello) };
                self.needed = PROOF_LEN;
            }
            HandshakeStage::Proof { transcript, hello } => {
                let mut proof = [0; PROOF_LEN];
                proof.copy_from_slice(&self.received);
                let proven = self.authentication == Authentication::Kernel
                    || identity.key.verify_mac("client", transcript, &proof);
                if !proven {
                    answer.extend([1, 0]);
                    return Err(HandshakeError::Key);
                }
                return Ok(Some((**hello).clone()));
            }
        }
        Ok(None)
    }

    /// Lowers the range to the version for this client.
    fn agree_on_version(&mut self) -> Result<(), HandshakeError> {
        let theirs = read_version(&self.received)?;
        let ours = self.protocol;
        let version = ours.agree_with(theirs).ok_or(HandshakeError::Version { ours, theirs })?;
        self.protocol = ours.up_to(version);
        Ok(())
    }
}

/// Returns a challenge with only the fields that are at the same place in every version.
fn build_challenge_head(version: u32) -> [u8; CHALLENGE_LEN] {
    let mut b = [0; CHALLENGE_LEN];
    b[..8].copy_from_slice(&MAGIC);
    b[8..12].copy_from_slice(&version.to_le_bytes());
    b
}

/// Ends a handshake successfully.
///
/// # Errors
/// Those of the stream.
pub fn admit_client(stream: &mut impl Write) -> io::Result<()> {
    stream.write_all(&[0, 0])
}

/// Ends a handshake successfully, for a client of another node behind this one. `protocol` is the
/// version on which this daemon and the other node have agreed: at most that of the hello.
///
/// # Errors
/// Those of the stream.
pub fn admit_relayed_client(
    stream: &mut impl Write,
    hello: &Hello,
    protocol: u32,
) -> io::Result<()> {
    if protocol == hello.protocol.newest() {
        return admit_client(stream);
    }
    stream.write_all(&[&[0, 4][..], &protocol.to_le_bytes()].concat())
}

/// Ends a handshake with the reason of a refusal.
///
/// # Errors
/// Those of the stream.
pub fn refuse_client(stream: &mut impl Write, why: &str) -> io::Result<()> {
    send_verdict(stream, 2, why)
}

/// Ends a handshake because the addressed node does not answer now.
///
/// # Errors
/// Those of the stream.
pub fn report_unavailable(stream: &mut impl Write, why: &str) -> io::Result<()> {
    send_verdict(stream, 3, why)
}

/// Ends a handshake because the addressed server does not start before an operator has decided
/// about its damaged disk.
///
/// # Errors
/// Those of the stream.
pub fn report_damage(stream: &mut impl Write, why: &str) -> io::Result<()> {
    send_verdict(stream, 4, why)
}

fn send_verdict(stream: &mut impl Write, verdict: u8, why: &str) -> io::Result<()> {
    let mut end = why.len().min(TEXT_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    stream.write_all(&[&[verdict, end as u8], &why.as_bytes()[..end]].concat())
}

fn too_many_groups_error() -> HandshakeError {
    io::Error::new(io::ErrorKind::InvalidInput, "the user has too many groups").into()
}

/// Encodes a hello. `None` for a user with too many groups.
fn encode_hello(hello: &Hello, nonce: [u8; 16], authentication: Authentication) -> Option<Vec<u8>> {
    let ids = hello.user.as_ref().map_or(0, |user| 2 + user.groups.len());
    let mut b = vec![0; HELLO_LEN];
    b[..8].copy_from_slice(&MAGIC);
    b[8..12].copy_from_slice(&hello.protocol.newest().to_le_bytes());
    b[12] = hello.role as u8;
    b[13..29].copy_from_slice(&hello.client.0);
    b[29..33].copy_from_slice(&hello.slot.to_le_bytes());
    b[33..49].copy_from_slice(&hello.volume.map_or([0; 16], |v| v.0));
    b[49..65].copy_from_slice(&nonce);
    b[65] = u8::from(authentication == Authentication::Key);
    b[66..68].copy_from_slice(&hello.node.map_or(NO_NODE, |node| node.0).to_le_bytes());
    b[68..70].copy_from_slice(&u16::try_from(ids).ok()?.to_le_bytes());
    b[70] = hello.executor;
    if let Some(user) = hello.user.as_ref() {
        let all = [user.uid, user.gid].into_iter().chain(user.groups.iter().copied());
        b.extend(all.flat_map(u32::to_le_bytes));
        return user.is_valid().then_some(b);
    }
    Some(b)
}

/// Returns the number of user and group ids that follow a hello; 0 if there are too many.
fn count_user_ids(b: &[u8]) -> usize {
    let ids = usize::from(u16::from_le_bytes([b[68], b[69]]));
    if ids > 2 + GROUPS_MAX { 0 } else { ids }
}

fn decode_hello(b: &[u8], protocol: ProtocolRange) -> Option<(Hello, [u8; 16])> {
    let id = |at: usize| {
        let mut id = [0; 16];
        id.copy_from_slice(&b[at..at + 16]);
        id
    };
    let role = match b[12] {
        1 => Role::Meta,
        2 => Role::Data,
        3 => Role::Admin,
        4 => Role::Recall,
        5 => Role::Peer,
        _ => return None,
    };
    let slot = u32::from_le_bytes([b[29], b[30], b[31], b[32]]);
    let volume = Some(VolumeId(id(33))).filter(|v| v.0 != [0; 16]);
    let node = u16::from_le_bytes([b[66], b[67]]);
    let node = (node != NO_NODE).then_some(NodeId(node));
    let (ids, rest) = b[HELLO_LEN..].as_chunks::<4>();
    let ids: Vec<u32> = ids.iter().map(|id| u32::from_le_bytes(*id)).collect();
    let user = match ids[..] {
        [] => None,
        [uid, gid, ref groups @ ..] => Some(Cred { uid, gid, groups: groups.to_vec() }),
        [_] => return None,
    };
    let told = usize::from(u16::from_le_bytes([b[68], b[69]]));
    let whole = rest.is_empty() && told == ids.len();
    let executor = b[70];
    let client = ClientId(id(13));
    let hello = Hello { protocol, role, client, slot, volume, node, executor, user };
    let known = executor < EXECUTORS_MAX && (role == Role::Peer || slot < SLOTS_MAX);
    (whole && known).then_some((hello, id(49)))
}

/// Reads a challenge: first magic and version, which are at the same place in every version, then
/// the rest. Returns the version.
fn read_challenge(
    stream: &mut impl Read,
    ours: ProtocolRange,
    b: &mut [u8; CHALLENGE_LEN],
) -> Result<u32, HandshakeError> {
    let (head, rest) = b.split_at_mut(VERSION_END);
    stream.read_exact(head)?;
    let theirs = read_version(head)?;
    // An older server has refused the offer of a newer version, and closes.
    let is_refused = theirs < FIRST_AGREEING && theirs != ours.newest();
    if is_refused || !ours.includes(theirs) {
        return Err(HandshakeError::Version { ours, theirs });
    }
    stream.read_exact(rest)?;
    Ok(theirs)
}

/// Reads the version in the first [`VERSION_END`] bytes of a message.
fn read_version(head: &[u8]) -> Result<u32, HandshakeError> {
    // The header of TLS: a message of the handshake, in any version.
    if head[..2] == [0x16, 3] {
        return Err(HandshakeError::Encrypted);
    }
    if head[..8] != MAGIC {
        return Err(HandshakeError::NotTatami);
    }
    Ok(u32::from_le_bytes([head[8], head[9], head[10], head[11]]))
}
