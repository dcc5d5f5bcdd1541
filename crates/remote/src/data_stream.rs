//! A data connection: its way to the other side, and the bytes over it.

use crate::data_proof::{ProofError, prove_as_caller};
use crate::remote_message::DataOffer;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use tatami_net::{DeadlineStream, NetStream, PinnedTls, wrap_plain_socket};

/// Longest wait until a data connection is made, over all addresses. After it, bytes go through
/// ssh.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for the proof of both sides, with the handshake of TLS.
pub const PROOF_WAIT: Duration = Duration::from_secs(10);
/// Most addresses that are tried.
const ADDRESSES_MAX: usize = 8;

/// A proven data connection.
#[derive(Debug)]
pub struct DataStream(NetStream);

impl DataStream {
    /// Returns the stream over a connection that is proven.
    pub fn new(stream: NetStream) -> DataStream {
        DataStream(stream)
    }

    /// Sends a message and its payload.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send_both(&self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let (mut head, mut payload) = (head, payload);
        while !head.is_empty() || !payload.is_empty() {
            // The head goes with the first bytes of the payload, in one packet.
            let bufs = [IoSlice::new(head), IoSlice::new(payload)];
            match (&mut &self.0).write_vectored(&bufs) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    let of_head = sent.min(head.len());
                    (head, payload) = (&head[of_head..], &payload[sent - of_head..]);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Ends the connection in both directions. Reads and writes of other threads end.
    pub fn end(&self) {
        self.0.shutdown(rustix::net::Shutdown::Both);
    }
}

impl Read for &DataStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&mut &self.0).read(buf)
    }
}

impl Write for &DataStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&mut &self.0).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for DataStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Connects by TCP to the first of these addresses that answers, within two seconds.
///
/// # Errors
/// Those of the system, for the last address.
pub fn connect_to_any(addresses: &[String], port: u16) -> io::Result<OwnedFd> {
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in addresses.iter().take(ADDRESSES_MAX) {
        for place in (address.as_str(), port).to_socket_addrs().into_iter().flatten() {
            if !found.contains(&place) && found.len() < ADDRESSES_MAX {
                found.push(place);
            }
        }
    }
    let (deadline, count) = (Instant::now() + CONNECT_WAIT, found.len());
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (at, place) in found.iter().enumerate() {
        // An address that does not answer leaves the others their part of the time.
        let left = deadline.saturating_duration_since(Instant::now()) / (count - at) as u32;
        match TcpStream::connect_timeout(place, left.max(Duration::from_millis(1))) {
            Ok(socket) => return Ok(socket.into()),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Proves this side to the place of an offer to which `socket` is connected, without TLS.
///
/// # Errors
/// [`ProofError`].
pub(crate) fn prove_to_relay(socket: OwnedFd, offer: &DataOffer) -> Result<OwnedFd, ProofError> {
    let stream = wrap_plain_socket(socket.try_clone()?);
    prove_as_caller(&mut DeadlineStream::new(&stream, PROOF_WAIT), &offer.secret)?;
    stream.set_timeouts(None, None)?;
    Ok(socket)
}

/// Makes a data connection of a socket that is connected to the place of an offer.
///
/// # Errors
/// [`ProofError`].
pub(crate) fn prove_to_site(socket: OwnedFd, offer: &DataOffer) -> Result<DataStream, ProofError> {
    let stream = match offer.certificate.is_empty() {
        true => wrap_plain_socket(socket),
        false => PinnedTls::new_client(&offer.certificate)?.wrap_socket(socket)?,
    };
    stream.prepare_for_daemon()?;
    prove_as_caller(&mut DeadlineStream::new(&stream, PROOF_WAIT), &offer.secret)?;
    stream.set_timeouts(None, None)?;
    Ok(DataStream::new(stream))
}
