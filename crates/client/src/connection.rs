//! One blocking connection to one daemon.

use crate::awaited_node::AwaitedNode;
use crate::retry::Retry;
use crate::socket::ClientSocket;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tatami_net::handshake::{HandshakeRetry, introduce_client};
use tatami_net::{FrameBuffer, TlsTrust};
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult};
use tatami_wire::frame::{self, FrameClass, FrameError, FrameHeader, HEADER_LEN};
use tatami_wire::handshake::{HandshakeError, Hello, Role, Welcome};
use tatami_wire::object::{OPEN_DESCRIPTORS_MAX, ObjectResult};
use tatami_wire::{ClientId, Errno, VolumeId, VolumeKey};

pub use tatami_net::Endpoint;

/// The identity of the client that connects, and the volume that it expects.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The client's id, the same for all its connections.
    pub client: ClientId,
    /// The expected volume; `None` accepts any.
    pub volume: Option<VolumeId>,
    /// The volume's key; needed for TCP only.
    pub key: Option<VolumeKey>,
    /// The certificates of the volume, if connections between machines are encrypted.
    pub tls: Option<Arc<TlsTrust>>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No daemon answers there.
    #[error("no daemon answers at {endpoint}: {source}")]
    Unreachable {
        /// The address.
        endpoint: Endpoint,
        /// The error of the system.
        source: io::Error,
    },
    /// A daemon answers, but the handshake fails.
    #[error("{endpoint}: {source}")]
    Handshake {
        /// The address.
        endpoint: Endpoint,
        /// The reason.
        source: HandshakeError,
    },
}

impl ConnectError {
    /// Returns whether this process has no descriptor left for a connection.
    pub fn lacks_descriptors(&self) -> bool {
        let ConnectError::Unreachable { source, .. } = self else { return false };
        matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
    }

    /// Returns the error of a request that can never get through because of this.
    pub fn errno(&self) -> Errno {
        match self {
            ConnectError::Handshake { source: HandshakeError::Damaged(_), .. } => Errno::EIO,
            _ => Errno::EPROTO,
        }
    }

    /// Returns whether waiting may help: the daemon may be starting again. A wrong key or version
    /// stays wrong.
    pub fn is_transient(&self) -> bool {
        match self {
            ConnectError::Unreachable { .. } => true,
            ConnectError::Handshake { source, .. } => {
                matches!(source, HandshakeError::Io(_) | HandshakeError::Unavailable(_))
            }
        }
    }
}

impl ConnectError {
    /// Returns whether the daemon stayed silent until the timeout.
    pub fn is_timeout(&self) -> bool {
        let io = match self {
            ConnectError::Unreachable { source, .. } => source,
            ConnectError::Handshake { source: HandshakeError::Io(e), .. } => e,
            ConnectError::Handshake { .. } => return false,
        };
        matches!(io.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    }

    /// Returns whether a daemon was there and closed the connection before the handshake: too many
    /// clients came at once.
    fn was_dropped(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let ConnectError::Handshake { source: HandshakeError::Io(e), .. } = self else {
            return false;
        };
        matches!(e.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
    }
}

/// Most bytes that are read ahead of a reply's end. A payload beyond them goes straight to its
/// destination.
const RECEIVE_BUFFER: usize = 16 << 10;
/// The length of the shortest [`tatami_wire::object::ObjectResult`], in bytes; the result of a read
/// has this length.
const SHORTEST_BODY: usize = 2;

/// Takes bytes out of a connection by itself, so that they need not enter the memory of this
/// process.
pub trait PayloadSink {
    /// Begins a payload of `len` bytes. Bytes that came before are void.
    fn begin_payload(&mut self, len: usize);

    /// Takes up to `len` of the next bytes and waits for the first; returns 0 at the end.
    ///
    /// # Errors
    /// Those of reading from the socket.
    fn take_payload(&mut self, socket: BorrowedFd<'_>, len: usize) -> io::Result<usize>;
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection that has passed its handshake. The daemon answers requests in the order in which
/// they are sent.
pub struct Connection {
    socket: ClientSocket,
    out: Vec<u8>,
    input: FrameBuffer,
    /// The daemon's answer to the handshake.
    pub welcome: Welcome,
}

impl Connection {
    /// Connects and shakes hands; for roles of executors, with the node's first executor. No single
    /// wait for the daemon, now or later, is longer than `timeout`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open(
        endpoint: &Endpoint,
        caller: &Caller,
        role: Role,
        slot: u32,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        Connection::open_to(endpoint, 0, caller, role, slot, timeout)
    }

    /// Opens a connection for administrative requests. If the daemon drops it because too many
    /// clients come at once, the client tries again for `timeout`. No single wait is longer either.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open_admin(
        endpoint: &Endpoint,
        caller: &Caller,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let node = Arc::new(AwaitedNode::new(None, endpoint.to_string(), None));
        Connection::open_admin_watched(endpoint, caller, timeout, &node)
    }

    /// As [`Connection::open_admin`]; `node` reports the waits.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open_admin_watched(
        endpoint: &Endpoint,
        caller: &Caller,
        timeout: Duration,
        node: &Arc<AwaitedNode>,
    ) -> Result<Connection, ConnectError> {
        let mut retry = Retry::new(timeout);
        loop {
            match Connection::open_watched(endpoint, 0, caller, Role::Admin, 0, timeout, node) {
                Err(e) if e.was_dropped() && retry.pause() => {}
                Ok(opened) => return Ok(opened),
                Err(e) => {
                    // The caller may try another node, and must not go on showing this one.
                    node.record_timeout();
                    return Err(e);
                }
            }
        }
    }

    /// As [`Connection::open`], with the executor of that number on the node.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open_to(
        endpoint: &Endpoint,
        executor: u8,
        caller: &Caller,
        role: Role,
        slot: u32,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let node = Arc::new(AwaitedNode::new(None, endpoint.to_string(), None));
        Connection::open_watched(endpoint, executor, caller, role, slot, timeout, &node)
    }

    /// As [`Connection::open_to`]; `node` reports the waits of this connection, now and later.
    pub(crate) fn open_watched(
        endpoint: &Endpoint,
        executor: u8,
        caller: &Caller,
        role: Role,
        slot: u32,
        timeout: Duration,
        node: &Arc<AwaitedNode>,
    ) -> Result<Connection, ConnectError> {
        let mut retry = HandshakeRetry::new(caller.tls.as_deref());
        let Caller { client, volume, .. } = *caller;
        let target = endpoint.relay_target();
        loop {
            let protocol = retry.protocol();
            let hello =
                Hello { protocol, role, client, slot, volume, node: target, executor, user: None };
            match Connection::try_open(endpoint, caller, &hello, timeout, node) {
                Err(ConnectError::Handshake { source, .. }) if retry.may_repeat(&source) => {}
                tried => return tried,
            }
        }
    }

    fn try_open(
        endpoint: &Endpoint,
        caller: &Caller,
        hello: &Hello,
        timeout: Duration,
        node: &Arc<AwaitedNode>,
    ) -> Result<Connection, ConnectError> {
        let unreachable = |source| ConnectError::Unreachable { endpoint: endpoint.clone(), source };
        let mut socket = ClientSocket::connect(endpoint, caller.tls.as_deref(), timeout, node)
            .map_err(unreachable)?;
        if hello.role == Role::Data {
            socket.stream.enlarge_buffers();
        }
        let transport = socket.stream.transport();
        let welcome = introduce_client(&mut socket, transport, hello, caller.key.as_ref())
            .map_err(|source| ConnectError::Handshake { endpoint: endpoint.clone(), source })?;
        Ok(Connection {
            socket,
            out: Vec::with_capacity(512),
            input: FrameBuffer::new(RECEIVE_BUFFER, RECEIVE_BUFFER),
            welcome,
        })
    }

    /// Limits each later wait for the daemon to `patience`.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.socket.patience = patience;
    }

    /// Sends a request, with one system call where the socket accepts all of it at once.
    ///
    /// # Errors
    /// Those of the socket. The connection is then of no further use.
    pub fn send<Q: Serialize>(
        &mut self,
        class: FrameClass,
        seq: u64,
        request: &Q,
        payload: &[u8],
    ) -> Result<(), FrameError> {
        self.out.clear();
        // Only a daemon of this machine can run on the same CPU.
        let here = self.socket.stream.transport().passes_descriptors;
        let cpu = here.then(rustix::thread::sched_getcpu);
        frame::encode_request(&mut self.out, class, seq, request, payload.len(), cpu);
        if payload.is_empty() {
            self.socket.write_all(&self.out)?;
        } else {
            frame::write_frame(&mut self.socket, &self.out, payload)?;
        }
        Ok(())
    }

    /// Receives the reply to request `seq`. Copies its payload to the start of `payload`; the
    /// second value is the payload's length.
    ///
    /// # Errors
    /// Any of [`FrameError`], also when the payload does not fit. The connection is then of no
    /// further use.
    pub fn receive<R: DeserializeOwned>(
        &mut self,
        class: FrameClass,
        seq: u64,
        payload: &mut [u8],
    ) -> Result<(R, usize), FrameError> {
        let header = self.receive_header()?;
        let reply = self.receive_body(&header, class, seq)?;
        let len = header.payload_len as usize;
        let payload = payload.get_mut(..len).ok_or(FrameError::Unexpected)?;
        self.read_exact(payload)?;
        Ok((reply, len))
    }

    /// As [`Connection::receive`], with a payload of at most `most` bytes that is borrowed from the
    /// input buffer, so that `most` must not exceed a few KiB.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub(crate) fn receive_borrowed<R: DeserializeOwned>(
        &mut self,
        class: FrameClass,
        seq: u64,
        most: usize,
    ) -> Result<(R, &[u8]), FrameError> {
        let header = self.receive_header()?;
        let reply = self.receive_body(&header, class, seq)?;
        let len = header.payload_len as usize;
        if len > most {
            return Err(FrameError::Unexpected);
        }
        self.fill_input(len)?;
        Ok((reply, self.input.take_bytes(len)))
    }

    /// As [`Connection::receive`] for replies of class `Object`, with a payload of at most `most`
    /// bytes that goes to `sink`. Requests whose replies are received in this way must be sent one
    /// by one. Not on an encrypted
    /// connection.
    ///
    /// # Errors
    /// As [`Connection::receive`]; the sink has then got only a part.
    pub fn receive_into(
        &mut self,
        seq: u64,
        most: usize,
        sink: &mut dyn PayloadSink,
    ) -> Result<(ObjectResult, usize), FrameError> {
        if !self.socket.stream.is_plain() {
            return Err(FrameError::Unexpected);
        }
        // No byte of the payload may be read into the buffer, because the sink reads from the
        // socket itself. So the reads end exactly where the header and the body end.
        self.fill_input_to(HEADER_LEN, HEADER_LEN + SHORTEST_BODY)?;
        let header = self.receive_header()?;
        let body_len = (header.body_len as usize).min(RECEIVE_BUFFER);
        self.fill_input_to(body_len, body_len)?;
        let reply = self.receive_body(&header, FrameClass::Object, seq)?;
        let len = header.payload_len as usize;
        if len > most || !self.input.is_empty() {
            return Err(FrameError::Unexpected);
        }
        sink.begin_payload(len);
        let mut left = len;
        while left > 0 {
            match self.socket.run_with_timeout(|stream| sink.take_payload(stream.as_fd(), left))? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                n => left -= n,
            }
        }
        Ok((reply, len))
    }

    /// Sends one request and receives its reply, without payloads.
    ///
    /// # Errors
    /// Any of [`FrameError`]; the connection is then of no further use.
    pub fn call<Q: Serialize, R: DeserializeOwned>(
        &mut self,
        class: FrameClass,
        seq: u64,
        request: &Q,
    ) -> Result<R, FrameError> {
        self.send(class, seq, request, &[])?;
        Ok(self.receive(class, seq, &mut [])?.0)
    }

    /// Sends an administrative request and receives its reply. `EOPNOTSUPP`: the daemon is of a
    /// release that does not have it.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn call_admin(&mut self, call: &AdminCall) -> Result<AdminResult, FrameError> {
        let protocol = self.welcome.protocol;
        if call.first_protocol() > protocol {
            return Ok(Err(tatami_wire::Errno::EOPNOTSUPP));
        }
        let reply: AdminResult = self.call(FrameClass::Admin, 0, &call.for_protocol(protocol))?;
        Ok(reply.map(AdminReply::simplify))
    }

    /// Returns whether received bytes wait in the buffer: waiting for the socket would be in vain.
    pub fn has_input(&self) -> bool {
        !self.input.is_empty() || self.socket.stream.has_input()
    }

    /// Receives a reply that may carry an open file.
    ///
    /// # Errors
    /// Any of [`FrameError`]; the connection is then of no further use.
    pub fn receive_with_fd<R: DeserializeOwned>(
        &mut self,
        class: FrameClass,
        seq: u64,
    ) -> Result<(R, Option<OwnedFd>), FrameError> {
        let (reply, fds) = self.receive_with_fds(class, seq)?;
        Ok((reply, fds.into_iter().next()))
    }

    /// Receives a reply that may carry open files, at most [`OPEN_MAX`].
    ///
    /// # Errors
    /// Any of [`FrameError`]; the connection is then of no further use.
    pub fn receive_with_fds<R: DeserializeOwned>(
        &mut self,
        class: FrameClass,
        seq: u64,
    ) -> Result<(R, Vec<OwnedFd>), FrameError> {
        let mut found = Vec::new();
        // The kernel attaches the descriptors to the first byte of the reply, so only the reads of
        // the header ask for them.
        // Other transports carry no descriptors, and their bytes may be encrypted.
        let here = self.socket.stream.transport().passes_descriptors;
        while here && self.input.len() < HEADER_LEN {
            self.input.make_room(RECEIVE_BUFFER);
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OPEN_DESCRIPTORS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut bufs = [IoSliceMut::new(self.input.free_space(RECEIVE_BUFFER))];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = self.socket.run_with_timeout(|stream| {
                Ok(rustix::net::recvmsg(stream, &mut bufs, &mut ancillary, flags)?.bytes)
            })?;
            if got == 0 {
                return Err(FrameError::Closed);
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    found.extend(fds);
                }
            }
            self.input.record_received(got);
        }
        let header = self.receive_header()?;
        Ok((self.receive_body(&header, class, seq)?, found))
    }

    /// Returns whether the daemon has closed an idle connection.
    pub fn is_stale(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        if self.has_input() {
            return true;
        }
        // Bytes that answer no request are as bad as an end.
        rustix::net::recv(&self.socket, &mut byte, flags) != Err(rustix::io::Errno::AGAIN)
    }

    fn receive_header(&mut self) -> Result<FrameHeader, FrameError> {
        self.fill_input(HEADER_LEN)?;
        let mut head = [0; HEADER_LEN];
        head.copy_from_slice(self.input.take_bytes(HEADER_LEN));
        FrameHeader::decode(&head)
    }

    fn receive_body<R: DeserializeOwned>(
        &mut self,
        header: &FrameHeader,
        class: FrameClass,
        seq: u64,
    ) -> Result<R, FrameError> {
        let len = header.body_len as usize;
        let reply = if len <= RECEIVE_BUFFER {
            self.fill_input(len)?;
            let body = self.input.take_bytes(len);
            header.verify_checksum(body)?;
            frame::decode_body(body)?
        } else {
            let mut body = vec![0; len];
            self.read_exact(&mut body)?;
            header.verify_checksum(&body)?;
            frame::decode_body(&body)?
        };
        // The stream is out of step with the requests: no later reply could be trusted either.
        if header.class != class || header.seq != seq {
            return Err(FrameError::Unexpected);
        }
        Ok(reply)
    }

    /// Reads until `want` bytes, at most [`RECEIVE_BUFFER`], are in the buffer.
    fn fill_input(&mut self, want: usize) -> Result<(), FrameError> {
        self.fill_input_to(want, RECEIVE_BUFFER)
    }

    /// As [`Connection::fill_input`], and reads no more than `most` bytes.
    fn fill_input_to(&mut self, want: usize, most: usize) -> Result<(), FrameError> {
        while self.input.len() < want {
            self.input.make_room(RECEIVE_BUFFER);
            if self.input.receive_bytes(&mut self.socket, most)? == 0 {
                return Err(FrameError::Closed);
            }
        }
        Ok(())
    }

    /// Fills `bytes` from the buffer, and then straight from the socket.
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let (head, rest) = bytes.split_at_mut(bytes.len().min(self.input.len()));
        head.copy_from_slice(self.input.take_bytes(head.len()));
        self.socket.read_exact(rest)
    }
}
