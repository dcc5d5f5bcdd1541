//! A connected socket of any transport.

use crate::tls_session::TlsSession;
use crate::transport::Transport;
use crate::trust::PeerIdentity;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Size of enlarged socket buffers, in bytes: enough for a few of the largest frames.
const SOCKET_BUFFER: usize = 4 << 20;

/// A connected socket. Its descriptor is at hand ([`AsFd`]) to wait for events, and where the
/// transport allows it for calls that move bytes between descriptors, such as splice(2).
///
/// A call that returns `WouldBlock` or `Interrupted` from a write must be repeated with the same
/// bytes, if the caller goes on at all: they may be encrypted already.
#[derive(Debug)]
pub struct NetStream {
    socket: OwnedFd,
    transport: &'static Transport,
    /// The session of an encrypted connection. Its handshake happens within the first calls.
    tls: Option<Box<TlsSession>>,
}

impl NetStream {
    pub(crate) fn new(
        socket: OwnedFd,
        transport: &'static Transport,
        tls: Option<TlsSession>,
    ) -> NetStream {
        NetStream { socket, transport, tls: tls.map(Box::new) }
    }

    /// Returns whether the other side connected without encryption, where it is required.
    pub fn lacks_encryption(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_plain_peer())
    }

    /// Returns whether the encryption has received its first byte.
    pub(crate) fn has_begun(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_begun())
    }

    /// Returns whether the bytes of the socket are those of the stream.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Returns whether received bytes wait outside of the socket: no event comes for them.
    pub fn has_input(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_input())
    }

    /// Receives bytes that have arrived, without waiting.
    ///
    /// # Errors
    /// Those of recv(2).
    pub(crate) fn receive_at_once(&self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            Some(tls) => tls.read(self.as_fd(), buf, true),
            None => Ok(rustix::net::recv(self, buf, RecvFlags::DONTWAIT)?.0),
        }
    }

    fn send_bytes(&self, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
        match &self.tls {
            Some(tls) => tls.write(self.as_fd(), &[IoSlice::new(bytes)], flags),
            None => Ok(rustix::net::send(self, bytes, flags)?),
        }
    }

    /// Returns the transport.
    pub fn transport(&self) -> &'static Transport {
        self.transport
    }

    /// Sets the options that a daemon's connection needs: small messages are sent at once, and the
    /// kernel ends a connection whose other side has died.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn prepare_for_daemon(&self) -> io::Result<()> {
        (self.transport.prepare)(self.as_fd())?;
        (self.transport.detect_death)(self.as_fd())
    }

    /// Determines the other side. The identity counts only once the handshake has succeeded.
    ///
    /// # Errors
    /// Those of the system.
    pub fn identify_peer(&self) -> io::Result<PeerIdentity> {
        (self.transport.identify_peer)(self.as_fd())
    }

    /// Limits each later wait; `None` is no limit.
    ///
    /// # Errors
    /// Those of setsockopt(2), and a limit of zero.
    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(self, Timeout::Recv, read)?;
        Ok(sockopt::set_socket_timeout(self, Timeout::Send, write)?)
    }

    /// Makes later reads and writes return `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// Those of ioctl(2).
    pub fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(self, true)?)
    }

    /// Makes the socket's buffers large. The system may grant less, which costs only speed.
    pub fn enlarge_buffers(&self) {
        let _ = sockopt::set_socket_send_buffer_size(self, SOCKET_BUFFER);
        let _ = sockopt::set_socket_recv_buffer_size(self, SOCKET_BUFFER);
    }

    /// As [`NetStream::enlarge_buffers`], where the kernel does not size the buffers itself. It
    /// sizes those of TCP by the path, to more than an untuned machine lets a program ask for, and
    /// stops doing so once a program sets a size.
    pub fn enlarge_untuned_buffers(&self) {
        if !self.transport.tunes_buffers {
            self.enlarge_buffers();
        }
    }

    /// Sends `bytes` and states that more bytes follow at once.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn send_more(&self, mut bytes: &[u8]) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
        while !bytes.is_empty() {
            match self.send_bytes(bytes, flags) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends bytes that must fit the socket's buffer, without waiting.
    ///
    /// # Errors
    /// Those of send(2); `WriteZero` if the bytes do not fit.
    pub fn send_at_once(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match self.send_bytes(bytes, flags) {
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends the stream in one direction or both.
    pub fn shutdown(&self, how: Shutdown) {
        // Fails only on a socket that is no longer connected.
        let _ = rustix::net::shutdown(self, how);
    }
}

impl AsFd for NetStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// Directly to the kernel: in a program with threads, the C library's own calls mark the thread as
// cancellable around each system call.
impl Read for &NetStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            Some(tls) => tls.read(self.as_fd(), buf, false),
            None => Ok(rustix::io::read(self, buf)?),
        }
    }
}

// With `MSG_NOSIGNAL`: the end of the other side must not send SIGPIPE to the program that this
// code lives in.
impl Write for &NetStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send_bytes(buf, SendFlags::NOSIGNAL)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(tls) = &self.tls {
            return tls.write(self.as_fd(), bufs, SendFlags::NOSIGNAL);
        }
        let mut none = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(self, bufs, &mut none, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream on which all reads and writes must end by a point in time, however slowly the other
/// side sends its bytes.
#[derive(Debug)]
pub struct DeadlineStream<'a> {
    stream: &'a NetStream,
    deadline: Instant,
}

impl<'a> DeadlineStream<'a> {
    /// Returns the stream with a deadline `timeout` from now.
    pub fn new(stream: &'a NetStream, timeout: Duration) -> DeadlineStream<'a> {
        DeadlineStream { stream, deadline: Instant::now() + timeout }
    }

    fn arm_timeouts(&self) -> io::Result<()> {
        // Armed before each call with the time that is left: a timeout of the socket alone would
        // start again with each byte.
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_timeouts(Some(left), Some(left))
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.arm_timeouts()?;
        (&mut &*self.stream).read(buf)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.arm_timeouts()?;
        (&mut &*self.stream).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
