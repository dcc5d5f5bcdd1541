//! A listening socket of any transport.

use crate::endpoint::Endpoint;
use crate::stream::NetStream;
use crate::tls_session::TlsSession;
use crate::tls_trust::TlsTrust;
use crate::transport::Transport;
use crate::unix::remove_dead_socket;
use rustix::fs::Mode;
use rustix::net::{SocketFlags, SocketType, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most connections that the kernel queues before they are accepted, if the system allows that
/// number (`net.core.somaxconn`). All ranks of a job connect at once.
const BACKLOG: i32 = 4096;

/// A listening socket that accepts without waiting.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    transport: &'static Transport,
    /// The certificates, if connections are encrypted.
    tls: Option<Arc<TlsTrust>>,
}

impl Listener {
    /// Listens at an address. A UNIX socket of a killed process is replaced, and the new one gets
    /// the permissions `mode`; the caller must be sure that no other process is about to listen
    /// there. With `tls`, connections between machines are encrypted.
    ///
    /// # Errors
    /// `AddrInUse` if another process listens there, `AlreadyExists` if the path of the socket is
    /// another file's, and those of the system.
    pub fn listen(
        endpoint: &Endpoint,
        mode: Mode,
        tls: Option<Arc<TlsTrust>>,
    ) -> io::Result<Listener> {
        if let Some(path) = endpoint.local_socket() {
            remove_dead_socket(path)?;
        }
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in endpoint.resolve()? {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let family = address.address_family();
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            // A daemon that is started again must not wait for the connections of its predecessor.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            match rustix::net::bind(&socket, &address) {
                Ok(()) => {
                    if let Some(path) = endpoint.local_socket() {
                        rustix::fs::chmod(path, mode)?;
                    }
                    rustix::net::listen(&socket, BACKLOG)?;
                    let transport = endpoint.transport(tls.is_some());
                    let tls = tls.filter(|_| endpoint.local_socket().is_none());
                    return Ok(Listener { socket, transport, tls });
                }
                Err(e) => last = e.into(),
            }
        }
        Err(last)
    }

    /// Accepts a connection that waits.
    ///
    /// # Errors
    /// `WouldBlock` if none waits, and those of accept(2).
    pub fn accept(&self) -> io::Result<NetStream> {
        let accept = || rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC);
        let socket = rustix::io::retry_on_intr(accept)?;
        let tls = self.tls.as_ref().map(|tls| TlsSession::new_server(tls.configs().server.clone()));
        Ok(NetStream::new(socket, self.transport, tls.transpose()?))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
