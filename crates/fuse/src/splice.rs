//! Splicing of long replies. Bytes go from a descriptor, usually a socket, into a pipe, and from
//! the pipe to the kernel. The kernel copies them once, directly to their destination. A buffer in
//! this process would cost a second copy.
//!
//! The kernel gets nothing before the whole reply is in the pipe. So the source may fail half-way.
//! Then the handler restarts the reply or replies with an error.

use crate::abi;
use crate::device::Device;
use crate::encode::FixedReply;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Pipe sizes to try, in bytes, in this order. The kernel uses a page for each fragment of any
/// length, and a network delivers fragments of 1.4 KiB or more. So 4 MiB hold every reply of 1 MiB.
/// Only the superuser may exceed `fs.pipe-max-size`, 1 MiB by default.
const PIPE_BYTES: [usize; 3] = [4 << 20, 2 << 20, 1 << 20];

/// The buffers of a thread for long replies.
#[derive(Debug, Default)]
pub struct ReplyBuffers {
    pub(crate) scratch: Vec<u8>,
    pipe: Option<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    output: OwnedFd,
    input: OwnedFd,
    /// Number of bytes in the pipe.
    held: usize,
    /// Longer replies than this have overflowed the pipe.
    longest: usize,
}

impl Pipe {
    fn new() -> Result<Pipe, Errno> {
        let [most, less, least] = PIPE_BYTES;
        Pipe::with_size(most).or_else(|_| Pipe::with_size(less)).or_else(|_| Pipe::with_size(least))
    }

    fn with_size(bytes: usize) -> Result<Pipe, Errno> {
        let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::pipe::fcntl_setpipe_size(&input, bytes)?;
        Ok(Pipe { output, input, held: 0, longest: usize::MAX })
    }

    fn is_full(&self) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(0)
    }

    /// Writes the header of a reply into the empty pipe.
    fn write_header(&mut self, head: &[u8]) -> Result<(), Errno> {
        // A write of this length is atomic.
        self.held = rustix::io::retry_on_intr(|| rustix::io::write(&self.input, head))?;
        Ok(())
    }

    /// Moves bytes from the pipe to `to`.
    fn move_bytes_to(&mut self, mut to: &mut [u8]) -> Result<(), Errno> {
        while !to.is_empty() {
            let n = rustix::io::retry_on_intr(|| rustix::io::read(&self.output, &mut *to))?;
            self.held -= n;
            to = &mut to[n..];
        }
        Ok(())
    }
}

/// A long reply in progress. See the module.
pub struct SplicedReply<'a> {
    room: &'a mut ReplyBuffers,
    unique: u64,
    /// The memory of a ring's entry, if the reply goes there.
    entry: Option<&'a mut [u8]>,
    /// The length of the reply, and the number of bytes so far.
    len: usize,
    got: usize,
    /// The bytes are in the pipe, not in `Room::scratch`.
    piped: bool,
}

impl<'a> SplicedReply<'a> {
    /// With `entry`, the bytes are read into this memory.
    pub(crate) fn new(
        room: &'a mut ReplyBuffers,
        unique: u64,
        entry: Option<&'a mut [u8]>,
    ) -> SplicedReply<'a> {
        SplicedReply { room, unique, entry, len: 0, got: 0, piped: false }
    }

    /// Starts a reply of `len` bytes. The caller must then take all of them. Bytes of an earlier
    /// start are discarded.
    pub fn start_reply(&mut self, len: usize) {
        (self.len, self.got) = (len, 0);
        if self.entry.is_some() {
            return;
        }
        self.piped = match self.begin_pipe() {
            Ok(begun) => begun,
            Err(errno) => {
                tracing::debug!(%errno, "no pipe: bytes are copied");
                self.room.pipe = None;
                false
            }
        };
        if !self.piped {
            self.reserve_memory();
        }
    }

    fn begin_pipe(&mut self) -> Result<bool, Errno> {
        let head = self.encode_header();
        // A pipe with bytes of a failed attempt is dropped with them.
        let kept = self.room.pipe.take().filter(|pipe| pipe.held == 0);
        let mut pipe = kept.map_or_else(Pipe::new, Ok)?;
        let fits = self.len <= pipe.longest;
        if fits {
            pipe.write_header(head.as_bytes())?;
        }
        self.room.pipe = Some(pipe);
        Ok(fits)
    }

    fn encode_header(&self) -> FixedReply<16> {
        FixedReply::new()
            .put_u32((abi::OUT_HEADER_LEN + self.len) as u32)
            .put_u32(0)
            .put_u64(self.unique)
    }

    /// Takes at most `len` of the next bytes from `from`, a TCP socket or a file. Waits for the
    /// first one. Returns 0 at the end of `from`, and when the reply is complete.
    ///
    /// # Errors
    /// Those of splice(2) or read(2) on this descriptor.
    pub fn take_bytes(&mut self, from: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
        let len = len.min(self.len - self.got);
        if let Some(entry) = &mut self.entry {
            let free = entry.get_mut(self.got..self.got + len).ok_or(Errno::NOBUFS)?;
            let n = rustix::io::read(from, free)?;
            self.got += n;
            return Ok(n);
        }
        if let Some(pipe) = self.room.pipe.as_mut().filter(|_| self.piped) {
            // The flag prevents waiting for space in the pipe. The TCP socket still waits for its
            // first byte.
            let flags = SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(from, None, &pipe.input, None, len, flags) {
                Ok(n) => {
                    pipe.held += n;
                    self.got += n;
                    return Ok(n);
                }
                Err(Errno::AGAIN) if pipe.is_full() => self.move_to_memory()?,
                // Some kinds of descriptors do not support splice(2).
                Err(Errno::INVAL) => self.move_to_memory()?,
                Err(errno) => return Err(errno),
            }
        }
        let n = rustix::io::read(from, &mut self.room.scratch[self.got..][..len])?;
        self.got += n;
        Ok(n)
    }

    /// Continues in memory.
    fn move_to_memory(&mut self) -> Result<(), Errno> {
        self.reserve_memory();
        self.piped = false;
        if let Some(pipe) = &mut self.room.pipe {
            pipe.longest = self.len.saturating_sub(1);
            // The header is made again by `send`; only the data is kept.
            pipe.move_bytes_to(&mut [0; abi::OUT_HEADER_LEN])?;
            pipe.move_bytes_to(&mut self.room.scratch[..self.got])?;
        }
        Ok(())
    }

    fn reserve_memory(&mut self) {
        // The buffer never shrinks, so that it is zeroed only once.
        if self.room.scratch.len() < self.len {
            self.room.scratch.resize(self.len, 0);
        }
    }

    /// Returns the length of a complete reply in the memory of an entry.
    pub(crate) fn taken_in_memory(self) -> Option<usize> {
        (self.entry.is_some() && self.got == self.len).then_some(self.len)
    }

    /// Sends the reply to the kernel.
    pub(crate) fn send_to(self, device: &Device) -> Result<(), Errno> {
        if self.got < self.len {
            return Err(Errno::NODATA);
        }
        let Some(pipe) = self.room.pipe.as_mut().filter(|_| self.piped) else {
            let data = &self.room.scratch[..self.len];
            return device
                .write(&[IoSlice::new(self.encode_header().as_bytes()), IoSlice::new(data)]);
        };
        match device.splice_from(&pipe.output, pipe.held) {
            Ok(()) => pipe.held = 0,
            Err(errno) => {
                // The pipe may still have bytes of this reply, which must not precede the next one.
                self.room.pipe = None;
                return Err(errno);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Reply;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// A fake device that collects the replies.
    struct Taker {
        device: Arc<Device>,
        reader: std::thread::JoinHandle<Vec<u8>>,
    }

    impl Taker {
        fn new() -> Taker {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair");
            let reader = std::thread::spawn(move || {
                let mut got = Vec::new();
                theirs.read_to_end(&mut got).expect("read");
                got
            });
            Taker { device: Arc::new(Device::from_descriptor(ours.into())), reader }
        }

        fn end(self) -> Vec<u8> {
            drop(self.device);
            self.reader.join().expect("the reader")
        }
    }

    fn answer(unique: u64, error: i32, bytes: &[u8]) -> Vec<u8> {
        let mut all = (16 + bytes.len() as u32).to_ne_bytes().to_vec();
        all.extend(error.to_ne_bytes());
        all.extend(unique.to_ne_bytes());
        all.extend(bytes);
        all
    }

    /// Returns a connection that delivers `bytes` in pieces of this length, and then ends.
    fn source(bytes: &[u8], piece: usize) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let bytes = bytes.to_vec();
        std::thread::spawn(move || {
            let mut to = TcpStream::connect(address).expect("connected");
            to.set_nodelay(true).expect("set");
            for piece in bytes.chunks(piece) {
                // The reader closes when it has read enough.
                if to.write_all(piece).is_err() {
                    break;
                }
            }
        });
        listener.accept().expect("accepted").0
    }

    fn take_all(passage: &mut SplicedReply<'_>, from: &impl AsFd, len: usize) {
        passage.start_reply(len);
        let mut left = len;
        while left > 0 {
            let n = passage.take_bytes(from.as_fd(), left).expect("taken");
            assert!(n > 0, "{left} bytes are missing");
            left -= n;
        }
    }

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 3) as u8).collect()
    }

    #[test]
    fn bytes_of_a_socket_become_an_answer() {
        let (taker, mut room) = (Taker::new(), ReplyBuffers::default());
        let mut expected = Vec::new();
        for (unique, len) in [(5, 1 << 20), (6, 0), (7, 100_001)] {
            let bytes = content(len);
            let from = source(&bytes, 1 << 20);
            let reply = Reply::new(&taker.device, &mut room, unique, true);
            assert!(reply.send_spliced(|passage| {
                take_all(passage, &from, len);
                Ok(())
            }));
            expected.extend(answer(unique, 0, &bytes));
        }
        assert!(taker.end() == expected, "other bytes");
    }

    #[test]
    fn an_answer_that_overflows_its_pipe_goes_through_memory() {
        let (taker, mut room) = (Taker::new(), ReplyBuffers::default());
        room.pipe = Some(Pipe::with_size(16 << 10).expect("a pipe"));
        let mut expected = Vec::new();
        for (unique, len) in [(1, 300_000), (2, 300_000), (3, 1000)] {
            let bytes = content(len);
            let from = source(&bytes, 1000);
            let reply = Reply::new(&taker.device, &mut room, unique, true);
            assert!(reply.send_spliced(|passage| {
                take_all(passage, &from, len);
                Ok(())
            }));
            expected.extend(answer(unique, 0, &bytes));
        }
        assert_eq!(room.pipe.expect("it is kept").longest, 299_999);
        assert!(taker.end() == expected, "other bytes");
    }

    #[test]
    fn what_ended_half_way_is_thrown_away_and_begun_anew() {
        let (taker, mut room) = (Taker::new(), ReplyBuffers::default());
        let bytes = content(300_000);
        let reply = Reply::new(&taker.device, &mut room, 1, true);
        assert!(reply.send_spliced(|passage| {
            let broken = source(&[9; 70_000], 70_000);
            passage.start_reply(bytes.len());
            while passage.take_bytes(broken.as_fd(), bytes.len()).expect("taken") > 0 {}
            take_all(passage, &source(&bytes, 4096), bytes.len());
            Ok(())
        }));
        let reply = Reply::new(&taker.device, &mut room, 2, true);
        assert!(reply.send_spliced(|passage| {
            passage.start_reply(10);
            passage.take_bytes(source(&[9; 5], 5).as_fd(), 10).expect("taken");
            Err(libc::EHOSTDOWN)
        }));
        // An incomplete reply without an error: EIO must be sent, so that no caller waits for the
        // rest.
        let reply = Reply::new(&taker.device, &mut room, 3, true);
        assert!(reply.send_spliced(|passage| {
            passage.start_reply(10);
            Ok(())
        }));
        let mut expected = answer(1, 0, &bytes);
        expected.extend(answer(2, -libc::EHOSTDOWN, &[]));
        expected.extend(answer(3, -libc::EIO, &[]));
        assert!(taker.end() == expected, "other bytes");
    }
}
