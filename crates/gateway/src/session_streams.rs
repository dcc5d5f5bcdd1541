//! Input and output of a session, as one ssh carries them. A read or write that waits ends when a
//! later ssh replaces this one: a link that is half open says nothing any more.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// See the module.
#[derive(Debug)]
pub(crate) struct SessionStreams {
    input: OwnedFd,
    output: OwnedFd,
    /// Readable when these streams have been replaced, or the session has ended.
    stopped: OwnedFd,
    /// Keeps the process alive that ssh has started for these streams.
    _carrier: Option<OwnedFd>,
}

impl SessionStreams {
    /// Returns the streams of an ssh. `carrier` is closed with them.
    ///
    /// # Errors
    /// Those of fcntl(2) and eventfd(2).
    pub(crate) fn new(
        input: OwnedFd,
        output: OwnedFd,
        carrier: Option<OwnedFd>,
    ) -> io::Result<SessionStreams> {
        for stream in [&input, &output] {
            fcntl_setfl(stream, fcntl_getfl(stream)? | OFlags::NONBLOCK)?;
        }
        let stopped = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(SessionStreams { input, output, stopped, _carrier: carrier })
    }

    /// Ends all reads and writes that wait, and later ones that would.
    pub(crate) fn stop(&self) {
        // It fails only if it has been stopped very often.
        let _ = rustix::io::write(&self.stopped, &1_u64.to_ne_bytes());
    }

    /// Sends all bytes of these parts, in order.
    ///
    /// # Errors
    /// Those of writev(2); `ECONNABORTED`: the streams have been replaced.
    pub(crate) fn send_all(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut left: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut left[..];
        while left.iter().any(|part| !part.is_empty()) {
            match rustix::io::writev(&self.output, left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => IoSlice::advance_slices(&mut left, sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.await_event(&self.output, PollFlags::OUT)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Waits until the stream has an event, or the streams have been replaced.
    fn await_event(&self, stream: &OwnedFd, event: PollFlags) -> io::Result<()> {
        let mut events = [PollFd::new(stream, event), PollFd::new(&self.stopped, PollFlags::IN)];
        loop {
            match poll(&mut events, None) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(_) if !events[1].revents().is_empty() => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Ok(_) => return Ok(()),
            }
        }
    }

    /// The input, to be watched for its end.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    /// The output, to be watched for its end.
    pub(crate) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// Returns input and output, to be passed to another process.
    pub(crate) fn as_pair(&self) -> [BorrowedFd<'_>; 2] {
        [self.input(), self.output()]
    }
}

impl Read for &SessionStreams {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.input, &mut *buf) {
                Ok(len) => return Ok(len),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.await_event(&self.input, PollFlags::IN)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn a_wait_ends_when_the_streams_are_replaced() {
        let (near, far) = UnixStream::pair().expect("a pair");
        let output = near.try_clone().expect("a descriptor").into();
        let streams = SessionStreams::new(near.into(), output, None).expect("streams");
        let streams = Arc::new(streams);
        let reader = streams.clone();
        let reader = std::thread::spawn(move || (&*reader).read(&mut [0; 8]));
        let writer = streams.clone();
        let writer = std::thread::spawn(move || {
            let block = vec![0; 1 << 20];
            loop {
                if let Err(e) = writer.send_all(&[&block, b"x"]) {
                    return e;
                }
            }
        });
        streams.stop();
        let read = reader.join().expect("no panic");
        assert_eq!(read.expect_err("stopped").kind(), io::ErrorKind::ConnectionAborted);
        let written = writer.join().expect("no panic");
        assert_eq!(written.kind(), io::ErrorKind::ConnectionAborted);
        drop(far);
    }
}
