//! How two sides of a connection learn that they speak the same protocol, about
//! the same volume, and that the other one may.
//!
//! ```text
//! client → Hello     magic, version, role, client id, slot, volume (or zeros), nonce, the node that
//!                    is meant, which of its executors, the user that the client binds itself to
//! server → Challenge magic, version, verdict, volume, node, nonce, proof of the server
//! client → Proof     proof of the client (empty on a UNIX socket)
//! server → Verdict   one byte and a text
//! ```
//!
//! Messages have fixed lengths, so that a side that speaks another version,
//! or is no Tatami at all, is recognised by its first bytes and told so.
//! A proof is a MAC over both nonces with the volume's key; each side proves
//! first-hand knowledge of the key, and a recorded handshake is worthless. On
//! a UNIX socket the kernel tells who the client is, and no proof is needed.
//!
//! A client without the key reaches other nodes through the daemon of its own: it names the
//! node, and the daemon shakes hands there with the key, tells which user is speaking, and
//! passes on all that follows.

use crate::{
    ClientId, Cred, EXECUTORS_MAX, GROUPS_MAX, NodeId, PROTOCOL_VERSION, VolumeId, VolumeKey,
};
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"TATAMI\r\n";
/// Magic and version end here, in every message that has them.
const VERSION_END: usize = 8 + 4;
/// A hello up to the ids of its user.
const HELLO_LEN: usize = 8 + 4 + 1 + 16 + 4 + 16 + 16 + 1 + 2 + 2 + 1;
/// In the place of a node: none.
const NO_NODE: u16 = u16::MAX;
const CHALLENGE_LEN: usize = 8 + 4 + 1 + 16 + 2 + 16 + 16;
const PROOF_LEN: usize = 16;
/// Longest text of a refusal, in bytes.
const TEXT_MAX: usize = 255;

/// What a connection is for. It decides which thread of the daemon serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Namespace requests, to an executor.
    Meta = 1,
    /// Bytes of objects.
    Data = 2,
    /// Questions to the node.
    Admin = 3,
    /// News for a client that names are delegated to, from an
    /// executor; see [`crate::delegation`]. A client has one to each.
    Recall = 4,
    /// What one executor tells another, one way; see [`crate::transaction`]. For
    /// whoever is trusted only.
    Peer = 5,
}

/// What the client tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub role: Role,
    /// Who asks.
    pub client: ClientId,
    /// Which of the client's connections this is, 0 to [`SLOTS_MAX`] - 1. One request is under
    /// way on a slot at a time; the daemon keeps the last answer of each.
    /// (The session slots of NFSv4.1, RFC 8881 section 2.10.6.) Of a node that speaks to
    /// another ([`Role::Peer`]), the number of the executor that does ([`ExecutorId`](crate::ExecutorId)).
    pub slot: u32,
    /// The volume it means; `None` takes any.
    pub volume: Option<VolumeId>,
    /// The node to which everything is to be passed on; `None` for the one that is called.
    pub node: Option<NodeId>,
    /// Which of the node's executors, below [`EXECUTORS_MAX`]; 0 where none is meant.
    pub executor: u8,
    /// The user as whom alone the client may act on this connection. Only who may speak for
    /// anybody may say so. `None` leaves it to what is known of the client.
    pub user: Option<Cred>,
}

/// Most metadata connections of one client.
pub const SLOTS_MAX: u32 = 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum HandshakeError {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("the other side does not speak Tatami's protocol: is this the right port?")]
    NotTatami,
    #[error(
        "the other side speaks protocol version {theirs}, this one {ours}: \
         use the same version of tatami on both"
    )]
    Version { ours: u32, theirs: u32 },
    #[error(
        "the daemon serves volume {theirs}, not {ours}: check the address or the configuration"
    )]
    Volume { ours: VolumeId, theirs: VolumeId },
    #[error("the key does not fit the volume's: copy the volume's key file to this node")]
    Key,
    #[error("refused: {0}")]
    Refused(String),
    #[error("{0}")]
    Away(String),
    #[error("{0}")]
    Damaged(String),
}

/// What the client learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The volume that the daemon serves.
    pub volume: VolumeId,
    /// Which node it is.
    pub node: NodeId,
}

/// What the server knows of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The volume it serves.
    pub volume: VolumeId,
    /// Which node it is.
    pub node: NodeId,
    /// The volume's key.
    pub key: VolumeKey,
}

/// Whether a peer must prove that it has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A UNIX socket: the kernel vouches for the peer.
    Local,
    /// TCP: nobody does.
    Remote,
}

fn transcript(nonces: &[u8; 32], side: u8, hello: &[u8]) -> Vec<u8> {
    [&nonces[..], &[side], hello].concat()
}

/// The client's part. `key` may be `None` on a UNIX socket. `nonce` is 16 fresh random bytes.
///
/// # Errors
/// All of [`HandshakeError`].
pub fn connect(
    stream: &mut (impl Read + Write),
    transport: Transport,
    hello: &Hello,
    key: Option<&VolumeKey>,
    nonce: [u8; 16],
) -> Result<Welcome, HandshakeError> {
    let bytes = encode_hello(hello, nonce, transport).ok_or_else(too_many_groups)?;
    stream.write_all(&bytes)?;
    let mut b = [0; CHALLENGE_LEN];
    read_prefixed(stream, &mut b)?;
    let mut nonces = [0; 32];
    nonces[..16].copy_from_slice(&nonce);
    nonces[16..].copy_from_slice(&b[31..47]);
    let mut volume = [0; 16];
    volume.copy_from_slice(&b[13..29]);
    let volume = VolumeId(volume);
    if let Some(ours) = hello.volume.filter(|v| *v != volume) {
        return Err(HandshakeError::Volume { ours, theirs: volume });
    }
    let mut proof = [0; PROOF_LEN];
    if transport == Transport::Remote {
        let mut theirs = [0; PROOF_LEN];
        theirs.copy_from_slice(&b[47..63]);
        let fits =
            |key: &&VolumeKey| key.verify("server", &transcript(&nonces, 1, &bytes), &theirs);
        let Some(key) = key.filter(fits) else {
            // The server counts and logs clients with another key; it may have gone by now.
            let _ = stream.write_all(&proof);
            return Err(HandshakeError::Key);
        };
        proof = key.mac("client", &transcript(&nonces, 2, &bytes));
    }
    stream.write_all(&proof)?;
    let mut verdict = [0; 2];
    stream.read_exact(&mut verdict)?;
    let mut text = vec![0; usize::from(verdict[1])];
    stream.read_exact(&mut text)?;
    match verdict[0] {
        0 => Ok(Welcome { volume, node: NodeId(u16::from_le_bytes([b[29], b[30]])) }),
        1 => Err(HandshakeError::Key),
        3 => Err(HandshakeError::Away(String::from_utf8_lossy(&text).into_owned())),
        4 => Err(HandshakeError::Damaged(String::from_utf8_lossy(&text).into_owned())),
        _ => Err(HandshakeError::Refused(String::from_utf8_lossy(&text).into_owned())),
    }
}

/// The server's part, up to the point where it knows who asks. It must then
/// [`admit`] or [`refuse`]. `nonce` is 16 fresh random bytes.
///
/// # Errors
/// All of [`HandshakeError`]; the client has been told where it could be.
pub fn accept(
    stream: &mut (impl Read + Write),
    transport: Transport,
    identity: &Identity,
    nonce: [u8; 16],
) -> Result<Hello, HandshakeError> {
    let mut greeting = Greeting::new(transport, nonce);
    loop {
        let mut bytes = vec![0; greeting.wanted()];
        stream.read_exact(&mut bytes)?;
        let mut answer = Vec::new();
        let hello = greeting.take(&bytes, identity, &mut answer);
        let said = stream.write_all(&answer);
        // What is wrong with the client counts, and not that it has left already.
        if let Some(hello) = hello? {
            return Ok(hello);
        }
        said?;
    }
}

/// The server's part without a stream: it takes what the client says as it comes, and says what to
/// answer. So a server can wait for many clients at once.
#[derive(Debug)]
pub struct Greeting {
    transport: Transport,
    nonce: [u8; 16],
    stage: Stage,
    /// What has come of the message of this stage.
    received: Vec<u8>,
    /// How long that message is, as far as is known.
    needed: usize,
}

/// What a [`Greeting`] waits for.
#[derive(Debug)]
enum Stage {
    /// Magic and version, which every version has at the same place.
    Version,
    /// The rest of the hello, up to the ids of its user.
    Hello,
    /// These ids.
    Ids,
    /// The client's proof for this transcript.
    Proof { transcript: Vec<u8>, hello: Box<Hello> },
}

impl Greeting {
    /// A handshake in which nothing was said yet. `nonce` is 16 fresh random bytes.
    pub fn new(transport: Transport, nonce: [u8; 16]) -> Greeting {
        let (stage, received) = (Stage::Version, Vec::new());
        Greeting { transport, nonce, stage, received, needed: VERSION_END }
    }

    /// How many bytes can be taken next; at least one.
    pub fn wanted(&self) -> usize {
        self.needed - self.received.len()
    }

    /// Whether the client has not said anything yet.
    pub fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Version) && self.received.is_empty()
    }

    /// Takes what the client said next, at most [`Greeting::wanted`] bytes, and puts what is to be sent behind
    /// `answer`, after an error, too. Tells who asks once that is proved.
    ///
    /// # Errors
    /// All of [`HandshakeError`] but `Io`. The greeting is of no further use then.
    pub fn take(
        &mut self,
        bytes: &[u8],
        identity: &Identity,
        answer: &mut Vec<u8>,
    ) -> Result<Option<Hello>, HandshakeError> {
        assert!(bytes.len() <= self.wanted(), "no more than was wanted");
        self.received.extend_from_slice(bytes);
        while self.received.len() == self.needed {
            if let Some(hello) = self.step(identity, answer)? {
                return Ok(Some(hello));
            }
        }
        Ok(None)
    }

    /// Goes on to the next stage, with all that this one waited for.
    fn step(
        &mut self,
        identity: &Identity,
        answer: &mut Vec<u8>,
    ) -> Result<Option<Hello>, HandshakeError> {
        match &self.stage {
            Stage::Version => {
                if let Err(e) = check_version(&self.received) {
                    if matches!(e, HandshakeError::Version { .. }) {
                        // The other version reads ours from these bytes and tells its user.
                        answer.extend(challenge_head());
                    }
                    return Err(e);
                }
                (self.stage, self.needed) = (Stage::Hello, HELLO_LEN);
            }
            Stage::Hello => {
                self.needed = HELLO_LEN + 4 * ids_of(&self.received);
                self.stage = Stage::Ids;
            }
            Stage::Ids => {
                let bytes = std::mem::take(&mut self.received);
                let (hello, client_nonce) =
                    decode_hello(&bytes).ok_or(HandshakeError::NotTatami)?;
                let mut nonces = [0; 32];
                nonces[..16].copy_from_slice(&client_nonce);
                nonces[16..].copy_from_slice(&self.nonce);
                let mut b = challenge_head();
                b[13..29].copy_from_slice(&identity.volume.0);
                b[29..31].copy_from_slice(&identity.node.0.to_le_bytes());
                b[31..47].copy_from_slice(&self.nonce);
                if self.transport == Transport::Remote {
                    let ours = identity.key.mac("server", &transcript(&nonces, 1, &bytes));
                    b[47..63].copy_from_slice(&ours);
                }
                answer.extend(b);
                let transcript = transcript(&nonces, 2, &bytes);
                self.stage = Stage::Proof { transcript, hello: Box::new(hello) };
                self.needed = PROOF_LEN;
            }
            Stage::Proof { transcript, hello } => {
                let mut proof = [0; PROOF_LEN];
                proof.copy_from_slice(&self.received);
                let proven = self.transport == Transport::Local
                    || identity.key.verify("client", transcript, &proof);
                if !proven {
                    answer.extend([1, 0]);
                    return Err(HandshakeError::Key);
                }
                return Ok(Some((**hello).clone()));
            }
        }
        Ok(None)
    }
}

/// A challenge with nothing but what every version has at the same place.
fn challenge_head() -> [u8; CHALLENGE_LEN] {
    let mut b = [0; CHALLENGE_LEN];
    b[..8].copy_from_slice(&MAGIC);
    b[8..12].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    b
}

/// Ends a handshake well.
///
/// # Errors
/// Those of the stream.
pub fn admit(stream: &mut impl Write) -> io::Result<()> {
    stream.write_all(&[0, 0])
}

/// Ends a handshake with the reason why not.
///
/// # Errors
/// Those of the stream.
pub fn refuse(stream: &mut impl Write, why: &str) -> io::Result<()> {
    end(stream, 2, why)
}

/// Ends a handshake because the node that is meant does not answer now.
///
/// # Errors
/// Those of the stream.
pub fn put_off(stream: &mut impl Write, why: &str) -> io::Result<()> {
    end(stream, 3, why)
}

/// Ends a handshake because what is meant does not run before an operator has decided about its damaged disk.
///
/// # Errors
/// Those of the stream.
pub fn tell_damage(stream: &mut impl Write, why: &str) -> io::Result<()> {
    end(stream, 4, why)
}

fn end(stream: &mut impl Write, verdict: u8, why: &str) -> io::Result<()> {
    let mut end = why.len().min(TEXT_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    stream.write_all(&[&[verdict, end as u8], &why.as_bytes()[..end]].concat())
}

fn too_many_groups() -> HandshakeError {
    io::Error::new(io::ErrorKind::InvalidInput, "the user has too many groups").into()
}

/// Nothing for a user with more groups than there may be.
fn encode_hello(hello: &Hello, nonce: [u8; 16], transport: Transport) -> Option<Vec<u8>> {
    let ids = hello.user.as_ref().map_or(0, |user| 2 + user.groups.len());
    let mut b = vec![0; HELLO_LEN];
    b[..8].copy_from_slice(&MAGIC);
    b[8..12].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    b[12] = hello.role as u8;
    b[13..29].copy_from_slice(&hello.client.0);
    b[29..33].copy_from_slice(&hello.slot.to_le_bytes());
    b[33..49].copy_from_slice(&hello.volume.map_or([0; 16], |v| v.0));
    b[49..65].copy_from_slice(&nonce);
    b[65] = u8::from(transport == Transport::Remote);
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

/// How many ids of a user and its groups follow a hello; what is too many is none.
fn ids_of(b: &[u8]) -> usize {
    let ids = usize::from(u16::from_le_bytes([b[68], b[69]]));
    if ids > 2 + GROUPS_MAX { 0 } else { ids }
}

fn decode_hello(b: &[u8]) -> Option<(Hello, [u8; 16])> {
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
    let hello = Hello { role, client: ClientId(id(13)), slot, volume, node, executor, user };
    let known = executor < EXECUTORS_MAX && (role == Role::Peer || slot < SLOTS_MAX);
    (whole && known).then_some((hello, id(49)))
}

/// Reads a handshake message: first magic and version, which every version has
/// at the same place, then the rest.
fn read_prefixed(stream: &mut impl Read, b: &mut [u8]) -> Result<(), HandshakeError> {
    let (head, rest) = b.split_at_mut(VERSION_END);
    stream.read_exact(head)?;
    check_version(head)?;
    stream.read_exact(rest)?;
    Ok(())
}

/// Checks the first [`VERSION_END`] bytes of a message.
fn check_version(head: &[u8]) -> Result<(), HandshakeError> {
    if head[..8] != MAGIC {
        return Err(HandshakeError::NotTatami);
    }
    match u32::from_le_bytes([head[8], head[9], head[10], head[11]]) {
        PROTOCOL_VERSION => Ok(()),
        theirs => Err(HandshakeError::Version { ours: PROTOCOL_VERSION, theirs }),
    }
}
