//! One connection for names, as the executor uses it: never blocking, with bounded input and
//! output.

use crate::connections::admission::ConnectionAdmission;
use crate::executor::handle::ConnectionKind;
use mio::{Interest, Registry, Token, event::Source, unix::SourceFd};
use serde::de::DeserializeOwned;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use tatami_net::{FrameBuffer, NetStream, PeerIdentity};
use tatami_wire::ClientId;
use tatami_wire::delegation::{DelegationGrant, RecallCall, RecallNotice};
use tatami_wire::frame::{self, BODY_MAX, FrameClass, FrameError, HEADER_LEN};
use tatami_wire::meta::{MetaCall, MetaResult};
use tatami_wire::transaction::PeerMessage;

/// Size of the input buffer that every connection keeps, in bytes.
const INPUT_KEEP: usize = 4 * 1024;
/// Longest request with its header.
const INPUT_MAX: usize = HEADER_LEN + BODY_MAX;
/// No request is taken from a connection with more unsent bytes of answers than this.
const OUTPUT_PAUSE: usize = 256 * 1024;
/// A connection with more unsent bytes of answers than this is dropped.
const OUTPUT_MAX: usize = 8 << 20;
/// With more unsent bytes for another node than this, messages to it are dropped: their senders
/// repeat them.
const LINK_MAX: usize = 4 << 20;
/// Size of the output buffer that every connection keeps, in bytes.
const OUTPUT_KEEP: usize = 16 * 1024;

/// See the module.
pub(crate) struct MetaConnection {
    stream: Arc<NetStream>,
    pub(crate) peer: PeerIdentity,
    pub(crate) kind: ConnectionKind,
    /// `None` for a connection that this node has made.
    admission: Option<ConnectionAdmission>,
    input: FrameBuffer,
    output: Vec<u8>,
    sent: usize,
    waits_to_write: bool,
    /// The socket may have more to read.
    readable: bool,
    /// The other side has sent its last byte, and no event will come any more.
    ended: bool,
    /// The connection is in the executor's list of those to look at.
    pub(crate) listed: bool,
    /// The CPU on which the sender of the last request runs, if it is one of this machine.
    pub(crate) sender_cpu: Option<u8>,
}

/// The reason for which there is no request.
pub(crate) enum NoFrame {
    /// No request has arrived in whole.
    None,
    /// The client must take its answers first.
    Paused,
    /// The connection cannot go on.
    Broken(FrameError),
}

impl MetaConnection {
    pub(crate) fn new(
        stream: Arc<NetStream>,
        peer: PeerIdentity,
        kind: ConnectionKind,
        admission: Option<ConnectionAdmission>,
    ) -> Self {
        MetaConnection {
            stream,
            peer,
            kind,
            admission,
            input: FrameBuffer::new(INPUT_KEEP, INPUT_KEEP),
            output: Vec::new(),
            sent: 0,
            waits_to_write: false,
            // Bytes that arrived before the socket was watched cause no event.
            readable: true,
            ended: false,
            listed: false,
            sender_cpu: None,
        }
    }

    pub(crate) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        SourceFd(&self.stream.as_fd().as_raw_fd()).register(registry, token, Interest::READABLE)
    }

    pub(crate) fn deregister(&self, registry: &Registry) {
        // Closing the descriptor has the same effect.
        let _ = SourceFd(&self.stream.as_fd().as_raw_fd()).deregister(registry);
    }

    /// Returns the client of the connection; the id of no client for a connection that this node
    /// has made.
    pub(crate) fn client(&self) -> ClientId {
        self.admission.as_ref().map_or(ClientId([0; 16]), |admission| admission.client)
    }

    /// Records an event of the socket.
    pub(crate) fn record_event(&mut self, readable: bool, ended: bool) {
        self.ended |= ended;
        self.readable |= readable | ended;
    }

    /// Returns the next request, receiving it if necessary.
    pub(crate) fn next_request(&mut self) -> Result<(u64, MetaCall), NoFrame> {
        self.next_unless_paused(FrameClass::Meta)
    }

    /// Returns the client's next message on its recall connection.
    pub(crate) fn next_recall_call(&mut self) -> Result<RecallCall, NoFrame> {
        Ok(self.next_unless_paused(FrameClass::Recall)?.1)
    }

    /// Returns the next message of another executor. It is taken even if our own messages are not
    /// sent yet: otherwise both sides could wait for each other.
    pub(crate) fn next_message(&mut self) -> Result<PeerMessage, NoFrame> {
        Ok(self.next_frame(FrameClass::Peer)?.1)
    }

    fn next_unless_paused<T: DeserializeOwned>(
        &mut self,
        class: FrameClass,
    ) -> Result<(u64, T), NoFrame> {
        match self.output.len() - self.sent > OUTPUT_PAUSE {
            true => Err(NoFrame::Paused),
            false => self.next_frame(class),
        }
    }

    fn next_frame<T: DeserializeOwned>(&mut self, class: FrameClass) -> Result<(u64, T), NoFrame> {
        loop {
            if let Some((header, body)) = self.input.next_frame().map_err(NoFrame::Broken)? {
                if header.class != class || header.payload_len != 0 {
                    return Err(NoFrame::Broken(FrameError::Unexpected));
                }
                let call = frame::decode_body(body).map_err(NoFrame::Broken)?;
                self.sender_cpu = header.cpu.filter(|_| self.stream.transport().passes_descriptors);
                self.input.take_bytes(HEADER_LEN + header.body_len as usize);
                return Ok((header.seq, call));
            }
            if !self.readable {
                return Err(NoFrame::None);
            }
            self.receive_bytes().map_err(NoFrame::Broken)?;
        }
    }

    /// Whether there may be a further request.
    pub(crate) fn may_have_request(&self) -> bool {
        self.readable || !self.input.is_empty()
    }

    fn receive_bytes(&mut self) -> Result<(), FrameError> {
        // A frame that has begun states its length, so the buffer grows to that and no further.
        let needed = match self.input.next_frame_len()? {
            // The header is not there yet: a frame without a body would be complete.
            HEADER_LEN => INPUT_KEEP,
            len => len,
        };
        assert!(needed <= INPUT_MAX, "a header that decodes keeps the bound");
        self.input.make_room(needed);
        match self.input.receive_bytes(&*self.stream, INPUT_MAX) {
            Ok(0) if self.input.is_empty() => Err(FrameError::Closed),
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => {
                // A read that did not fill the buffer has emptied the socket. The next byte causes
                // an event (epoll(7), on edge triggering).
                self.readable = self.ended || self.input.is_full();
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Appends an answer to the unsent bytes.
    pub(crate) fn queue_answer(
        &mut self,
        seq: u64,
        result: &MetaResult,
        granted: Option<&DelegationGrant>,
    ) {
        let granted = granted.map(DelegationGrant::encode).unwrap_or_default();
        frame::encode_frame(&mut self.output, FrameClass::Meta, seq, result, granted.len());
        self.output.extend(granted);
    }

    /// Appends a notification to the unsent bytes.
    pub(crate) fn queue_notification(&mut self, note: &RecallNotice) {
        frame::encode_frame(&mut self.output, FrameClass::Recall, 0, note, 0);
    }

    /// Appends a message to another executor to the unsent bytes, if there are not too many.
    pub(crate) fn queue_message(&mut self, message: &PeerMessage) {
        if self.output.len() - self.sent > LINK_MAX {
            return;
        }
        if !frame::encode_frame_if_fits(&mut self.output, FrameClass::Peer, 0, message, 0) {
            tracing::error!(peer = %self.peer, "a message is too long for a frame; it was dropped");
        }
    }

    /// Sends as many bytes as the socket takes. An error ends the connection.
    pub(crate) fn send_output(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let mut stream = &*self.stream;
        while self.sent < self.output.len() {
            match stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if self.sent == self.output.len() {
            self.sent = 0;
            self.output.clear();
            self.output.shrink_to(OUTPUT_KEEP);
        } else if self.output.len() - self.sent > OUTPUT_MAX {
            return Err(io::Error::other("the client does not take its answers"));
        }
        self.update_interest(registry, token)
    }

    /// Asks for an event when the socket takes bytes again, while some are unsent.
    fn update_interest(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let wanted = !self.output.is_empty();
        if wanted == self.waits_to_write {
            return Ok(());
        }
        self.waits_to_write = wanted;
        let interest = match wanted {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        SourceFd(&self.stream.as_fd().as_raw_fd()).reregister(registry, token, interest)
    }
}
