//! TLS below a stream: the handshake, records in both directions, and what is left of them between
//! two calls.
//!
//! The handshake happens within the first reads and writes, under the timeouts that the caller has
//! set for those. No call waits for the other side more than once before it returns, if only with
//! `Interrupted`. So a caller with a deadline can check it, however slowly bytes arrive.
//!
//! One thread may read while another writes. The cipher state is locked only while bytes are
//! encrypted or decrypted, and never while a thread waits for the socket.

use crate::tls_error::TlsError;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first size of the buffer for received records, in bytes: small requests fit.
const RAW_MIN: usize = 4 << 10;
/// Its largest size: a few of the longest records. It grows when a read fills it.
const RAW_MAX: usize = 128 << 10;
/// Longest record on the wire, in bytes, with its header.
const RECORD_MAX: usize = 5 + (16 << 10) + 256;
/// Most bytes that one write takes.
const WRITE_MAX: usize = 64 << 10;
/// Room for a record's header, tag and type, and for messages of TLS itself.
const RECORD_EXTRA: usize = 64;
/// Longest payload of a record.
const RECORD_PAYLOAD: usize = 16 << 10;
/// A buffer for sending that is larger than this is freed after use, unless writes are long.
const OUT_KEEP: usize = 16 << 10;
/// The first byte of the plain handshake, `TATAMI`. No TLS record begins with it.
const PLAIN_BYTE: u8 = b'T';

/// See the module.
pub(crate) struct TlsSession {
    engine: Mutex<TlsEngine>,
    outbox: Mutex<Outbox>,
    /// The handshake is over: the locks need not be taken together any more.
    is_open: AtomicBool,
}

/// The side of a connection.
enum TlsSide {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
    /// The client of a server began without TLS. Its bytes are passed on, to refuse it in words
    /// that it understands.
    Plain,
}

/// The cipher state, and received bytes.
struct TlsEngine {
    side: TlsSide,
    /// Received and not yet decrypted: `raw[start..end]`.
    raw: Vec<u8>,
    start: usize,
    end: usize,
    /// Decrypted and not yet read: `plain[taken..]`.
    plain: Vec<u8>,
    taken: usize,
    /// Messages of TLS itself that go out before the next bytes.
    messages: Vec<u8>,
    /// The last receive filled the buffer, so the socket may have more.
    has_more: bool,
    /// The first byte has come.
    has_begun: bool,
    /// The other side has sent its last byte.
    is_closed: bool,
    failed: Option<TlsError>,
}

/// Encrypted bytes that are not sent yet: `bytes[start..end]`.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the caller that they stand for. A write that cannot send all says `WouldBlock`, and
    /// the caller repeats it with the same bytes.
    accepted: usize,
}

/// The state of the connection after a step.
enum TlsStep {
    /// A message was decrypted or encrypted: there may be more.
    Again,
    /// Nothing happens before more bytes arrive.
    Blocked,
    /// The other side has ended the session.
    Closed,
}

impl TlsSession {
    /// Begins the side that connects.
    pub(crate) fn new_client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<TlsSession> {
        let made = UnbufferedClientConnection::new(config, name);
        let made = made.map_err(|e| TlsError::from(e).into_io())?;
        Ok(TlsSession::new(TlsSide::Client(made)))
    }

    /// Begins the side that accepts.
    pub(crate) fn new_server(config: Arc<ServerConfig>) -> io::Result<TlsSession> {
        let made = UnbufferedServerConnection::new(config);
        let made = made.map_err(|e| TlsError::from(e).into_io())?;
        Ok(TlsSession::new(TlsSide::Server(made)))
    }

    fn new(side: TlsSide) -> TlsSession {
        let engine = TlsEngine {
            side,
            raw: Vec::new(),
            start: 0,
            end: 0,
            plain: Vec::new(),
            taken: 0,
            messages: Vec::new(),
            has_more: true,
            has_begun: false,
            is_closed: false,
            failed: None,
        };
        TlsSession {
            engine: Mutex::new(engine),
            outbox: Mutex::default(),
            is_open: AtomicBool::new(false),
        }
    }

    /// Returns whether the other side began without TLS.
    pub(crate) fn has_plain_peer(&self) -> bool {
        matches!(self.engine.lock().side, TlsSide::Plain)
    }

    /// Returns whether the other side has sent a byte.
    pub(crate) fn has_begun(&self) -> bool {
        self.engine.lock().has_begun
    }

    /// Returns whether bytes wait that need not be received any more.
    pub(crate) fn has_input(&self) -> bool {
        let engine = self.engine.lock();
        engine.taken < engine.plain.len() || engine.has_whole_record()
    }

    /// Reads as read(2) does; without waiting if `at_once`. A read that does not fill `buf` has
    /// emptied the socket, as far as it holds whole records.
    ///
    /// # Errors
    /// Those of the socket; `Interrupted` after a wait that brought no whole record; errors of TLS.
    pub(crate) fn read(
        &self,
        socket: BorrowedFd<'_>,
        buf: &mut [u8],
        at_once: bool,
    ) -> io::Result<usize> {
        self.complete_handshake(socket, at_once)?;
        let mut got = 0;
        let mut waited = false;
        loop {
            let mut engine = self.engine.lock();
            if let Err(e) = engine.open_records(buf, &mut got) {
                // The other side learns the reason if its socket takes it now.
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let _ = rustix::net::send(socket, &engine.messages, flags);
                return Err(e.into_io());
            }
            if got == buf.len() || engine.is_closed || (got > 0 && !engine.has_more) {
                return Ok(got);
            }
            match engine.receive(socket) {
                Ok(true) => continue,
                Ok(false) => return Ok(got),
                Err(Errno::AGAIN) if got > 0 => return Ok(got),
                Err(Errno::AGAIN) if waited => return Err(io::ErrorKind::Interrupted.into()),
                Err(Errno::AGAIN) if !at_once => drop(engine),
                Err(e) => return Err(e.into()),
            }
            wait_for_input(socket)?;
            waited = true;
        }
    }

    /// Writes as sendmsg(2) does; without waiting if `at_once`. Takes a limited number of bytes.
    ///
    /// # Errors
    /// Those of the socket; errors of TLS. After `WouldBlock` and `Interrupted` the caller must
    /// repeat the call with the same bytes, if it goes on at all.
    pub(crate) fn write(
        &self,
        socket: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        self.complete_handshake(socket, flags.contains(SendFlags::DONTWAIT))?;
        let mut outbox = self.outbox.lock();
        if outbox.start == outbox.end {
            outbox.accepted = self.engine.lock().seal(bufs, &mut outbox)?;
        }
        outbox.send(socket, flags)?;
        let accepted = std::mem::take(&mut outbox.accepted);
        if accepted <= OUT_KEEP && outbox.bytes.len() > 2 * OUT_KEEP {
            outbox.bytes = Vec::new();
        }
        Ok(accepted)
    }

    /// Exchanges the messages of the handshake, if it is not over.
    fn complete_handshake(&self, socket: BorrowedFd<'_>, at_once: bool) -> io::Result<()> {
        if self.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        // One thread has the connection until the handshake is over, so both locks are free.
        let mut outbox = self.outbox.lock();
        let mut engine = self.engine.lock();
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::DONTWAIT, at_once);
        let mut waited = false;
        loop {
            let result = engine.advance_handshake();
            outbox.append(&std::mem::take(&mut engine.messages));
            let sent = outbox.send(socket, flags);
            if result.map_err(TlsError::into_io)? {
                sent?;
                self.is_open.store(true, Ordering::Release);
                return Ok(());
            }
            sent?;
            match engine.receive(socket) {
                Ok(true) => continue,
                Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(Errno::AGAIN) if waited => return Err(io::ErrorKind::Interrupted.into()),
                Err(Errno::AGAIN) if !at_once => {}
                Err(e) => return Err(e.into()),
            }
            wait_for_input(socket)?;
            waited = true;
        }
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsSession")
    }
}

/// Waits until bytes arrive or the stream ends, as long as the socket's timeout allows.
fn wait_for_input(socket: BorrowedFd<'_>) -> io::Result<()> {
    rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK)?;
    Ok(())
}

impl TlsEngine {
    /// Returns whether the received bytes begin with a whole record.
    fn has_whole_record(&self) -> bool {
        match self.raw[self.start..self.end] {
            [_, _, _, high, low, ref rest @ ..] => {
                rest.len() >= usize::from(u16::from_be_bytes([high, low]))
            }
            _ => false,
        }
    }

    /// Runs the handshake as far as the received bytes allow. The bytes to send are in `messages`
    /// then, also on an error. Returns whether it is over.
    fn advance_handshake(&mut self) -> Result<bool, TlsError> {
        if self.start < self.end && !self.has_begun {
            self.has_begun = true;
            if self.raw[self.start] == PLAIN_BYTE {
                match self.side {
                    TlsSide::Client(_) => return Err(self.fail(TlsError::PlainPeer)),
                    TlsSide::Server(_) | TlsSide::Plain => self.side = TlsSide::Plain,
                }
            }
        }
        loop {
            if matches!(self.side, TlsSide::Plain) {
                return Ok(true);
            }
            match self.step(&mut [], &mut 0)? {
                TlsStep::Again => {}
                _ if !self.is_handshaking() => return Ok(true),
                TlsStep::Blocked => return Ok(false),
                TlsStep::Closed => {
                    self.is_closed = true;
                    return Ok(true);
                }
            }
        }
    }

    /// Returns whether a message of TLS itself waits to be encoded.
    fn has_message(&self) -> bool {
        match &self.side {
            TlsSide::Client(client) => client.wants_write(),
            TlsSide::Server(server) => server.wants_write(),
            TlsSide::Plain => false,
        }
    }

    fn is_handshaking(&self) -> bool {
        match &self.side {
            TlsSide::Client(client) => client.is_handshaking(),
            TlsSide::Server(server) => server.is_handshaking(),
            TlsSide::Plain => false,
        }
    }

    /// Moves decrypted bytes to `buf[*got..]`, and decrypts more as far as they have arrived. On an
    /// error, `messages` has the bytes that report it to the other side.
    fn open_records(&mut self, buf: &mut [u8], got: &mut usize) -> Result<(), TlsError> {
        if matches!(self.side, TlsSide::Plain) {
            let n = (self.end - self.start).min(buf.len() - *got);
            buf[*got..*got + n].copy_from_slice(&self.raw[self.start..self.start + n]);
            self.start += n;
            *got += n;
            return Ok(());
        }
        let n = (self.plain.len() - self.taken).min(buf.len() - *got);
        buf[*got..*got + n].copy_from_slice(&self.plain[self.taken..self.taken + n]);
        self.taken += n;
        *got += n;
        if self.taken == self.plain.len() {
            self.plain.clear();
            self.taken = 0;
        }
        while *got < buf.len() && self.start < self.end && !self.is_closed {
            match self.step(buf, got)? {
                TlsStep::Again => {}
                TlsStep::Blocked => break,
                TlsStep::Closed => self.is_closed = true,
            }
        }
        Ok(())
    }

    /// Encrypts bytes of `bufs` into the outbox, which is empty. Returns how many.
    fn seal(&mut self, bufs: &[IoSlice<'_>], outbox: &mut Outbox) -> io::Result<usize> {
        (outbox.start, outbox.end) = (0, 0);
        let mut left = WRITE_MAX;
        for buf in bufs {
            let part = &buf[..buf.len().min(left)];
            if matches!(self.side, TlsSide::Plain) {
                outbox.append(part);
            } else if !part.is_empty() {
                self.seal_part(part, outbox).map_err(TlsError::into_io)?;
            }
            left -= part.len();
            if left == 0 {
                break;
            }
        }
        Ok(WRITE_MAX - left)
    }

    fn seal_part(&mut self, part: &[u8], outbox: &mut Outbox) -> Result<(), TlsError> {
        loop {
            if let Some(e) = &self.failed {
                return Err(e.clone());
            }
            let mut sealing = Sealing { part, outbox: &mut *outbox, sealed: false };
            // A step may first decrypt what has arrived meanwhile. Those bytes wait in `plain`.
            let step = self.process_records(&mut [], &mut 0, Some(&mut sealing));
            let sealed = sealing.sealed;
            if !sealed {
                outbox.append(&std::mem::take(&mut self.messages));
            }
            match step.map_err(|e| self.fail(e.into()))? {
                _ if sealed => return Ok(()),
                TlsStep::Again => {}
                TlsStep::Blocked | TlsStep::Closed => {
                    let ended = "the session has ended".to_owned();
                    return Err(self.fail(TlsError::Protocol(rustls::Error::General(ended))));
                }
            }
        }
    }

    /// Handles one message. Decrypted bytes go to `buf[*got..]`, and the rest to `plain`.
    fn step(&mut self, buf: &mut [u8], got: &mut usize) -> Result<TlsStep, TlsError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        self.process_records(buf, got, None).map_err(|e| {
            // The alert that reports the error to the other side goes to `messages`. After it, no
            // byte may be processed any more.
            while self.has_message() && self.process_records(&mut [], &mut 0, None).is_ok() {}
            self.fail(e.into())
        })
    }

    fn process_records(
        &mut self,
        buf: &mut [u8],
        got: &mut usize,
        sealing: Option<&mut Sealing<'_>>,
    ) -> Result<TlsStep, rustls::Error> {
        let raw = &mut self.raw[self.start..self.end];
        let out = &mut self.messages;
        let target = (buf, got, &mut self.plain);
        let (discard, step) = match &mut self.side {
            TlsSide::Client(client) => {
                take_step(client.process_tls_records(raw), out, target, sealing)
            }
            TlsSide::Server(server) => {
                take_step(server.process_tls_records(raw), out, target, sealing)
            }
            TlsSide::Plain => (0, Ok(TlsStep::Blocked)),
        };
        self.start += discard;
        step
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        self.failed = Some(error.clone());
        error
    }

    /// Receives bytes that have arrived. Returns whether there were any; `false` at the end.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.raw.is_empty() {
            self.raw.resize(RAW_MIN, 0);
        } else if self.start == 0 && self.end == self.raw.len() && self.end < RAW_MAX {
            // A record that is longer than the buffer.
            self.raw.resize((2 * self.end).clamp(RECORD_MAX, RAW_MAX), 0);
        } else if self.raw.len() - self.end < RAW_MIN.min(self.raw.len() / 2) {
            self.raw.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.raw[self.end..];
        if room.is_empty() {
            // No record is that long: the cipher state would have refused it.
            return Err(Errno::MSGSIZE);
        }
        let most = room.len();
        let flags = RecvFlags::DONTWAIT;
        let got = match rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *room, flags)) {
            Ok((got, _)) => got,
            Err(e) => {
                self.has_more = false;
                return Err(e);
            }
        };
        self.end += got;
        self.has_more = got == most;
        if self.has_more && self.start == 0 && self.raw.len() < RAW_MAX {
            // Much arrives at once: fewer and longer reads are cheaper.
            self.raw.resize((4 * self.raw.len()).min(RAW_MAX), 0);
        }
        Ok(got > 0)
    }
}

impl Outbox {
    fn append(&mut self, bytes: &[u8]) {
        let end = self.end + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.end..end].copy_from_slice(bytes);
        self.end = end;
    }

    /// Sends all bytes.
    fn send(&mut self, socket: BorrowedFd<'_>, flags: SendFlags) -> io::Result<()> {
        while self.start < self.end {
            self.start += rustix::net::send(socket, &self.bytes[self.start..self.end], flags)?;
        }
        (self.start, self.end) = (0, 0);
        Ok(())
    }
}

/// Bytes to encrypt in a step that allows it.
struct Sealing<'a> {
    part: &'a [u8],
    outbox: &'a mut Outbox,
    sealed: bool,
}

/// Where decrypted bytes go: the reader's buffer, how full it is, and the rest.
type StepTarget<'a> = (&'a mut [u8], &'a mut usize, &'a mut Vec<u8>);

/// Acts on the state of the connection. Messages of TLS itself are appended to `out`. Returns how
/// many received bytes are done with.
fn take_step<D>(
    status: UnbufferedStatus<'_, '_, D>,
    out: &mut Vec<u8>,
    (buf, got, rest): StepTarget<'_>,
    sealing: Option<&mut Sealing<'_>>,
) -> (usize, Result<TlsStep, rustls::Error>) {
    let mut discard = status.discard;
    let step = status.state.and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                let n = record.payload.len().min(buf.len() - *got);
                buf[*got..*got + n].copy_from_slice(&record.payload[..n]);
                *got += n;
                rest.extend_from_slice(&record.payload[n..]);
            }
            Ok(TlsStep::Again)
        }
        ConnectionState::EncodeTlsData(mut message) => {
            let needed = match message.encode(&mut []) {
                Err(EncodeError::InsufficientSize(e)) => e.required_size,
                Ok(_) | Err(EncodeError::AlreadyEncoded) => 0,
            };
            let start = out.len();
            out.resize(start + needed, 0);
            match message.encode(&mut out[start..]) {
                Ok(n) => out.truncate(start + n),
                Err(e) => return Err(rustls::Error::General(e.to_string())),
            }
            Ok(TlsStep::Again)
        }
        ConnectionState::TransmitTlsData(sent) => {
            // The bytes are in the outbox, before all later ones.
            sent.done();
            Ok(TlsStep::Again)
        }
        ConnectionState::WriteTraffic(mut traffic) => {
            let Some(sealing) = sealing else { return Ok(TlsStep::Blocked) };
            let records = sealing.part.len().div_ceil(RECORD_PAYLOAD);
            let mut needed = sealing.part.len() + RECORD_EXTRA * (records + 1);
            let Outbox { bytes, end, .. } = &mut *sealing.outbox;
            loop {
                if bytes.len() < *end + needed {
                    bytes.resize(*end + needed, 0);
                }
                match traffic.encrypt(sealing.part, &mut bytes[*end..]) {
                    Ok(n) => {
                        *end += n;
                        sealing.sealed = true;
                        return Ok(TlsStep::Again);
                    }
                    // Messages of TLS itself wait as well.
                    Err(EncryptError::InsufficientSize(e)) if e.required_size > needed => {
                        needed = e.required_size;
                    }
                    Err(e) => return Err(rustls::Error::General(e.to_string())),
                }
            }
        }
        ConnectionState::BlockedHandshake => Ok(TlsStep::Blocked),
        ConnectionState::PeerClosed | ConnectionState::Closed => Ok(TlsStep::Closed),
        other => Err(rustls::Error::General(format!("unexpected: {other:?}"))),
    });
    (discard, step)
}
