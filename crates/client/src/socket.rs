//! The socket of a connection. Each wait on it has an end, and checks whether the waiting program
//! is being ended (see `waiting`).

use crate::awaited_node::{AwaitedNode, WaitReason};
use crate::waiting::{Silence, TICK};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use tatami_net::dial::{self, WaitPolicy};
use tatami_net::{Endpoint, NetStream, TlsTrust};

/// The waits of a client for a node.
#[derive(Clone, Copy)]
struct ClientWait<'a> {
    /// No single one is longer than this time.
    patience: Duration,
    node: &'a AwaitedNode,
}

/// A connected socket.
pub(crate) struct ClientSocket {
    pub(crate) stream: NetStream,
    /// Longest single wait.
    pub(crate) patience: Duration,
    node: Arc<AwaitedNode>,
}

impl ClientSocket {
    /// Connects; no single wait, now or later, is longer than `patience`.
    ///
    /// # Errors
    /// Those of the system; `TimedOut`.
    pub(crate) fn connect(
        endpoint: &Endpoint,
        tls: Option<&TlsTrust>,
        patience: Duration,
        node: &Arc<AwaitedNode>,
    ) -> io::Result<ClientSocket> {
        let stream = dial::connect(endpoint, tls, &ClientWait { patience, node })?;
        Ok(ClientSocket { stream, patience, node: node.clone() })
    }

    /// Runs a system call on the socket again, as long as it only reports that a tick has passed
    /// without data.
    ///
    /// # Errors
    /// Those of the system; `TimedOut`.
    pub(crate) fn run_with_timeout<R>(
        &self,
        mut attempt: impl FnMut(&NetStream) -> io::Result<R>,
    ) -> io::Result<R> {
        let wait = ClientWait { patience: self.patience, node: &self.node };
        wait.run_call(None, || attempt(&self.stream))
    }
}

impl WaitPolicy for ClientWait<'_> {
    fn call_timeout(&self) -> Option<Duration> {
        // The kernel takes zero as no timeout.
        Some(self.patience.clamp(Duration::from_millis(1), TICK))
    }

    fn run_call<R>(
        &self,
        limit: Option<Duration>,
        mut attempt: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let patience = limit.map_or(self.patience, |limit| limit.min(self.patience));
        // Only connecting has a limit.
        let reason = if limit.is_some() { WaitReason::Down } else { WaitReason::Silent };
        let mut silence: Option<Silence> = None;
        loop {
            match attempt() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let silence = silence.get_or_insert_with(|| Silence::new(TICK.min(patience)));
                    silence
                        .continue_waiting(patience)
                        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
                    self.node.record_wait(reason, silence, self.patience);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => {
                    if let (Ok(_), Some(silence)) = (&done, silence) {
                        silence.record_answer();
                        // A connection that is accepted is no answer yet.
                        if reason == WaitReason::Silent {
                            self.node.record_answer();
                        }
                    }
                    return done;
                }
            }
        }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for ClientSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.run_with_timeout(|mut stream| stream.read(buf))
    }
}

impl Write for ClientSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.run_with_timeout(|mut stream| stream.write(buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.run_with_timeout(|mut stream| stream.write_vectored(bufs))
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

    fn node() -> Arc<AwaitedNode> {
        Arc::new(AwaitedNode::new(None, "node".into(), None))
    }

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
            let mut socket =
                ClientSocket::connect(&endpoint, None, SHORT, &node()).expect("connect");
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
        let connect = || ClientSocket::connect(&endpoint, None, SHORT, &node());
        let refused = (0..10_000).find_map(|_| match connect() {
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
        let long = Duration::from_secs(3600);
        let error = ClientSocket::connect(&endpoint, None, long, &node()).err().expect("nobody");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("address");
        let error = ClientSocket::connect(&Endpoint::Tcp(port.to_string()), None, long, &node());
        assert_eq!(error.err().expect("nobody").kind(), io::ErrorKind::ConnectionRefused);
    }
}
