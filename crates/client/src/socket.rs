//! The socket of a connection. Each wait on it has an end, and checks whether the waiting program
//! is being ended (see `waiting`).

use crate::endpoint::Endpoint;
use crate::waiting::{Silence, TICK};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, ipproto,
};
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use tatami_wire::handshake::Transport;

/// Longest wait until a TCP connection is established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connected socket.
pub(crate) struct ClientSocket {
    fd: OwnedFd,
    pub(crate) transport: Transport,
    /// Longest single wait.
    pub(crate) patience: Duration,
}

impl ClientSocket {
    /// Connects; no single wait, now or later, is longer than `patience`.
    ///
    /// # Errors
    /// Those of the system; `TimedOut`.
    pub(crate) fn connect(endpoint: &Endpoint, patience: Duration) -> io::Result<ClientSocket> {
        match endpoint {
            Endpoint::Unix(path) | Endpoint::Through(path, _) => {
                let socket = ClientSocket::new(AddressFamily::UNIX, Transport::Local, patience)?;
                socket.connect_to(&SocketAddrUnix::new(path.as_path())?.into(), patience)?;
                Ok(socket)
            }
            Endpoint::Tcp(address) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in address.to_socket_addrs()? {
                    match ClientSocket::connect_tcp(address, patience) {
                        Ok(socket) => return Ok(socket),
                        Err(e) => last = e,
                    }
                }
                Err(last)
            }
        }
    }

    fn connect_tcp(address: SocketAddr, patience: Duration) -> io::Result<ClientSocket> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = ClientSocket::new(family, Transport::Remote, patience)?;
        socket.connect_to(&address.into(), patience.min(CONNECT_TIMEOUT))?;
        rustix::net::sockopt::set_tcp_nodelay(&socket.fd, true)?;
        Ok(socket)
    }

    fn new(
        family: AddressFamily,
        transport: Transport,
        patience: Duration,
    ) -> io::Result<ClientSocket> {
        let protocol = (transport == Transport::Remote).then_some(ipproto::TCP);
        let fd =
            rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, protocol)?;
        // The kernel takes zero as no timeout.
        let tick = patience.clamp(Duration::from_millis(1), TICK);
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&fd, which, Some(tick))?;
        }
        Ok(ClientSocket { fd, transport, patience })
    }

    /// Connects. A UNIX listener with a full backlog makes the caller wait as well.
    fn connect_to(&self, address: &SocketAddrAny, patience: Duration) -> io::Result<()> {
        retry_until_timeout(patience, || match rustix::net::connect(&self.fd, address) {
            Ok(()) | Err(Errno::ISCONN) => Ok(()),
            // TCP: the connection is not yet made. The kernel goes on waiting when the call is
            // repeated.
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::AGAIN) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(e) => Err(e.into()),
        })
    }

    /// Runs a system call on the socket again, as long as it only reports that a tick has passed
    /// without data.
    ///
    /// # Errors
    /// Those of the system; `TimedOut`.
    pub(crate) fn run_with_timeout<R>(
        &self,
        mut attempt: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        retry_until_timeout(self.patience, || attempt(self.fd.as_fd()))
    }
}

fn retry_until_timeout<R>(
    patience: Duration,
    mut attempt: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    let mut silence: Option<Silence> = None;
    loop {
        match attempt() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let silence = silence.get_or_insert_with(|| Silence::new(TICK.min(patience)));
                silence
                    .continue_waiting(patience)
                    .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => {
                if let (Ok(_), Some(silence)) = (&done, silence) {
                    silence.record_answer();
                }
                return done;
            }
        }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Read for ClientSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.run_with_timeout(|fd| Ok(rustix::io::read(fd, &mut *buf)?))
    }
}

impl Write for ClientSocket {
    /// With `MSG_NOSIGNAL`: a daemon's death must not send SIGPIPE to the host program.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.run_with_timeout(|fd| Ok(rustix::net::send(fd, buf, SendFlags::NOSIGNAL)?))
    }

    /// With `MSG_NOSIGNAL`, too.
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.run_with_timeout(|fd| {
            let mut none = SendAncillaryBuffer::default();
            Ok(rustix::net::sendmsg(fd, bufs, &mut none, SendFlags::NOSIGNAL)?)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    const SHORT: Duration = Duration::from_millis(250);

    fn is_over<R>(result: io::Result<R>) -> bool {
        result.is_err_and(|e| e.kind() == io::ErrorKind::TimedOut)
    }

    #[test]
    fn a_peer_that_says_nothing_is_waited_for_so_long() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("s");
        let unix = UnixListener::bind(&path).expect("bind");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = tcp.local_addr().expect("address").to_string();
        for endpoint in [Endpoint::Unix(path), Endpoint::Tcp(address)] {
            let mut socket = ClientSocket::connect(&endpoint, SHORT).expect("connect");
            assert!(is_over(socket.read(&mut [0; 8])), "{endpoint}");
            assert!(is_over(socket.write_all(&vec![0; 64 << 20])), "{endpoint}");
        }
        drop((unix, tcp));
    }

    #[test]
    fn a_listener_that_takes_nobody_is_waited_for_so_long() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).expect("bind");
        let endpoint = Endpoint::Unix(path);
        // As many as fit into the listener's backlog; the standard library asks for 4096 at most.
        let mut kept = Vec::new();
        let refused = (0..10_000).find_map(|_| match ClientSocket::connect(&endpoint, SHORT) {
            Ok(socket) => {
                kept.push(socket);
                None
            }
            Err(e) => Some(e),
        });
        assert!(is_over(refused.map_or(Ok(()), Err)));
    }

    #[test]
    fn nobody_there_is_told_at_once() {
        let dir = tempfile::tempdir().expect("tempdir");
        let endpoint = Endpoint::Unix(dir.path().join("none"));
        let error =
            ClientSocket::connect(&endpoint, Duration::from_secs(3600)).err().expect("nobody");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("address");
        let error =
            ClientSocket::connect(&Endpoint::Tcp(port.to_string()), Duration::from_secs(3600));
        assert_eq!(error.err().expect("nobody").kind(), io::ErrorKind::ConnectionRefused);
    }
}
