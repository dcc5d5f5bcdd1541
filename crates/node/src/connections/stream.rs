//! A socket of either family.

use rustix::net::SendFlags;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tatami_wire::handshake::Transport;

/// A peer that takes no bytes for this time loses its connection.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Seconds after which a silent TCP peer is probed, seconds between probes, and the number of
/// unanswered probes after which the peer counts as dead.
const KEEPALIVE: (u64, u64, u32) = (15, 5, 3);

/// A connected socket.
#[derive(Debug)]
pub(crate) enum SocketStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl SocketStream {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            SocketStream::Unix(_) => Transport::Local,
            SocketStream::Tcp(_) => Transport::Remote,
        }
    }

    pub(crate) fn set_timeouts(
        &self,
        read: Option<Duration>,
        write: Option<Duration>,
    ) -> io::Result<()> {
        match self {
            SocketStream::Unix(s) => s.set_read_timeout(read).and(s.set_write_timeout(write)),
            SocketStream::Tcp(s) => s.set_read_timeout(read).and(s.set_write_timeout(write)),
        }
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            SocketStream::Unix(s) => s.set_nonblocking(true),
            SocketStream::Tcp(s) => s.set_nonblocking(true),
        }
    }

    /// Sends `bytes` and states that more bytes follow at once.
    pub(crate) fn send_more(&self, mut bytes: &[u8]) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
        while !bytes.is_empty() {
            match rustix::net::send(self, bytes, flags) {
                Ok(n) => bytes = &bytes[n..],
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        // Fails only on a socket that is no longer connected.
        let _ = match self {
            SocketStream::Unix(s) => s.shutdown(how),
            SocketStream::Tcp(s) => s.shutdown(how),
        };
    }
}

impl AsFd for SocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            SocketStream::Unix(s) => s.as_fd(),
            SocketStream::Tcp(s) => s.as_fd(),
        }
    }
}

// Directly to the kernel: in a program with threads, the C library's own calls mark the thread as
// cancellable around each system call.
impl Read for &SocketStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self, buf)?)
    }
}

impl Write for &SocketStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self, buf, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            SocketStream::Unix(s) => (&mut &*s).write_vectored(bufs),
            SocketStream::Tcp(s) => (&mut &*s).write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream on which all reads and writes must end by a point in time, however slowly the other
/// side sends its bytes.
pub(crate) struct DeadlineStream<'a> {
    stream: &'a SocketStream,
    deadline: Instant,
}

impl<'a> DeadlineStream<'a> {
    pub(crate) fn new(stream: &'a SocketStream, timeout: Duration) -> DeadlineStream<'a> {
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

/// Sets the options of a new connection.
///
/// # Errors
/// Those of setsockopt(2).
pub(crate) fn prepare_stream(stream: &SocketStream) -> io::Result<()> {
    let SocketStream::Tcp(tcp) = stream else { return Ok(()) };
    use rustix::net::sockopt;
    let (idle, interval, probes) = KEEPALIVE;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(tcp, Duration::from_secs(interval))?;
    sockopt::set_tcp_keepcnt(tcp, probes)?;
    // The kernel sends no probes while sent bytes wait to be acknowledged, so this timeout covers
    // that case.
    let silence = idle + interval * u64::from(probes);
    sockopt::set_tcp_user_timeout(tcp, (silence * 1000) as u32)?;
    Ok(())
}

/// Makes the buffers of a UNIX socket large enough for a few of the largest frames. The system may
/// grant less, which costs only speed. TCP sockets stay as they are: the kernel sizes their buffers
/// by the path, to more than an untuned machine lets a program ask for, and stops doing so once a
/// program sets a size.
pub(crate) fn enlarge_buffers(stream: &SocketStream) {
    const BUFFER: usize = 4 << 20;
    if let SocketStream::Unix(socket) = stream {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, BUFFER);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, BUFFER);
    }
}
