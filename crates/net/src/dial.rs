//! Connecting to a daemon.

use crate::endpoint::Endpoint;
use crate::stream::NetStream;
use crate::tls_session::TlsSession;
use crate::tls_trust::TlsTrust;
use crate::transport::Transport;
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

static PLACEMENT: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Makes all later connections of this process use the descriptors that `place` returns for their
/// new sockets. A library that lives inside another program leaves the low numbers to the program.
/// Only the first call has an effect.
pub fn place_sockets(place: fn(OwnedFd) -> OwnedFd) {
    _ = PLACEMENT.set(place);
}

/// How a thread waits for a daemon. Clients check in between whether their program is being ended;
/// daemons simply wait.
pub trait WaitPolicy {
    /// Returns the longest time that one system call may wait; `None` is no limit.
    fn call_timeout(&self) -> Option<Duration>;

    /// Runs a system call, and repeats it after a signal. `WouldBlock` reports that the call has
    /// waited for the time of [`WaitPolicy::call_timeout`]. The policy chooses whether to repeat
    /// the call then. All repetitions together wait no longer than `limit`.
    ///
    /// # Errors
    /// Those of the system call; `TimedOut`.
    fn run_call<R>(
        &self,
        limit: Option<Duration>,
        attempt: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R>;
}

/// The wait of a thread that nothing interrupts.
#[derive(Clone, Copy, Debug)]
pub struct PlainWait;

impl WaitPolicy for PlainWait {
    fn call_timeout(&self) -> Option<Duration> {
        None
    }

    fn run_call<R>(
        &self,
        _: Option<Duration>,
        mut attempt: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match attempt() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                done => return done,
            }
        }
    }
}

/// Connects. A name may have several addresses; each is tried once. No single wait, now or later,
/// is longer than the policy's [`WaitPolicy::call_timeout`]. With `tls`, a connection between
/// machines is encrypted: the first read or write does the handshake of TLS.
///
/// # Errors
/// Those of the system, for the last address; `TimedOut`.
pub fn connect(
    endpoint: &Endpoint,
    tls: Option<&TlsTrust>,
    wait: &impl WaitPolicy,
) -> io::Result<NetStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in endpoint.resolve()? {
        let tls = tls.filter(|_| endpoint.local_socket().is_none());
        match connect_to(&address, endpoint.transport(tls.is_some()), tls, wait) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn connect_to(
    address: &SocketAddrAny,
    transport: &'static Transport,
    tls: Option<&TlsTrust>,
    wait: &impl WaitPolicy,
) -> io::Result<NetStream> {
    let (family, flags) = (address.address_family(), SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let socket = match PLACEMENT.get() {
        Some(place) => place(socket),
        None => socket,
    };
    let session = |tls: &TlsTrust| {
        let configs = tls.configs();
        TlsSession::new_client(configs.client.clone(), configs.name.clone())
    };
    let tls = tls.map(session).transpose()?;
    let stream = NetStream::new(socket, transport, tls);
    let limit = transport.connect_timeout;
    if let Some(most) = wait.call_timeout().into_iter().chain(limit).min() {
        stream.set_timeouts(Some(most), Some(most))?;
    }
    // A UNIX listener with a full backlog makes the caller wait as well.
    wait.run_call(limit, || match rustix::net::connect(&stream, address) {
        Ok(()) | Err(Errno::ISCONN) => Ok(()),
        // TCP: the connection is not yet made. The kernel goes on waiting when the call is
        // repeated.
        Err(Errno::INPROGRESS | Errno::ALREADY | Errno::AGAIN) => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(e) => Err(e.into()),
    })?;
    if wait.call_timeout().is_none() && limit.is_some() {
        // The limit was for connecting only.
        stream.set_timeouts(None, None)?;
    }
    (transport.prepare)(stream.as_fd())?;
    Ok(stream)
}
