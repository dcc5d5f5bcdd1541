//! The near end of the stream to an I/O process. A side that sends much must not wait for one that
//! sends much, too: replies that arrive while calls are sent are kept, to be read later.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes that are kept at a time.
const STEP: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct LinkStream {
    socket: UnixStream,
    /// Bytes that have arrived while others were sent.
    early: VecDeque<u8>,
}

impl LinkStream {
    /// Returns the stream over a socket.
    pub(crate) fn new(socket: UnixStream) -> LinkStream {
        LinkStream { socket, early: VecDeque::new() }
    }

    /// Sends all bytes, and keeps what arrives meanwhile.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn send_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.keep_arrived()?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Waits until bytes can be sent, or keeps those that have arrived.
    fn keep_arrived(&mut self) -> io::Result<()> {
        let mut events = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT)];
        match poll(&mut events, None) {
            Err(Errno::INTR) => return Ok(()),
            other => other?,
        };
        if !events[0].revents().contains(PollFlags::IN) {
            return Ok(());
        }
        let mut some = [0; STEP];
        match recv(&self.socket, &mut some[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((len, _)) => {
                self.early.extend(&some[..len]);
                Ok(())
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a few bytes if there is room for them, and does not wait.
    pub(crate) fn send_if_room(&self, bytes: &[u8]) {
        let _ = send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Returns another descriptor of the socket. It sends as this one, but keeps nothing.
    ///
    /// # Errors
    /// Those of dup(2).
    pub(crate) fn clone_socket(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// Sets the longest wait of a read.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub(crate) fn limit_reads(&self, wait: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(wait)
    }

    /// Ends the stream in both directions.
    pub(crate) fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Read for LinkStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.early.is_empty() {
            true => self.socket.read(buf),
            false => self.early.read(buf),
        }
    }
}

/// Sends as [`LinkStream::send_bytes`].
impl Write for LinkStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send_bytes(buf).map(|()| buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides send more than a socket holds before they read.
    #[test]
    fn a_side_that_sends_takes_what_arrives() {
        const SIZE: usize = 8 << 20;
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let other = std::thread::spawn(move || {
            far.write_all(&vec![7; SIZE]).expect("it is read");
            let mut got = vec![0; SIZE];
            far.read_exact(&mut got).expect("it is sent");
            assert!(got.iter().all(|byte| *byte == 9));
        });
        let mut stream = LinkStream::new(near);
        stream.send_bytes(&vec![9; SIZE]).expect("it is read");
        let mut got = vec![0; SIZE];
        stream.read_exact(&mut got).expect("it is sent");
        assert!(got.iter().all(|byte| *byte == 7));
        other.join().expect("no panic");
    }
}
