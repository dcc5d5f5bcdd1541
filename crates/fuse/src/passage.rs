//! A long answer whose bytes come from a descriptor, usually a socket: from there into a
//! pipe and from the pipe to the kernel, which copies them once, straight to where they
//! are wanted. Through a buffer of ours they would be copied twice.
//!
//! Nothing goes to the kernel before all of it is in the pipe. So whoever
//! fills it may fail half-way, and start anew or answer with an error.

use crate::abi;
use crate::device::Device;
use crate::encode::Fixed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Room that is asked for in a pipe, in bytes; the first that is granted is taken. The kernel
/// counts a page for each piece, however short, and a network delivers pieces
/// of 1.4 KiB upwards: 4 MiB hold an answer of 1 MiB in any case. More than
/// `fs.pipe-max-size`, 1 MiB by default, is granted to the superuser only.
const PIPE_BYTES: [usize; 3] = [4 << 20, 2 << 20, 1 << 20];

/// What a thread keeps for its long answers.
#[derive(Debug, Default)]
pub struct Room {
    pub(crate) scratch: Vec<u8>,
    pipe: Option<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    output: OwnedFd,
    input: OwnedFd,
    /// Bytes in it.
    held: usize,
    /// Answers longer than this have overflowed it.
    most: usize,
}

impl Pipe {
    fn new() -> Result<Pipe, Errno> {
        let [most, less, least] = PIPE_BYTES;
        Pipe::of(most).or_else(|_| Pipe::of(less)).or_else(|_| Pipe::of(least))
    }

    fn of(bytes: usize) -> Result<Pipe, Errno> {
        let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::pipe::fcntl_setpipe_size(&input, bytes)?;
        Ok(Pipe { output, input, held: 0, most: usize::MAX })
    }

    fn is_full(&self) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(0)
    }

    /// Writes the start of an answer into the empty pipe.
    fn begin(&mut self, head: &[u8]) -> Result<(), Errno> {
        // So short a write goes in as a whole.
        self.held = rustix::io::retry_on_intr(|| rustix::io::write(&self.input, head))?;
        Ok(())
    }

    /// Moves what it holds to `to`.
    fn empty_into(&mut self, mut to: &mut [u8]) -> Result<(), Errno> {
        while !to.is_empty() {
            let n = rustix::io::retry_on_intr(|| rustix::io::read(&self.output, &mut *to))?;
            self.held -= n;
            to = &mut to[n..];
        }
        Ok(())
    }
}

/// An answer on its way to the kernel. See the module.
pub struct Passage<'a> {
    room: &'a mut Room,
    unique: u64,
    /// Bytes that were announced, and that are here.
    len: usize,
    got: usize,
    /// They are in the pipe, and not in `Room::scratch`.
    piped: bool,
}

impl<'a> Passage<'a> {
    pub(crate) fn new(room: &'a mut Room, unique: u64) -> Passage<'a> {
        Passage { room, unique, len: 0, got: 0, piped: false }
    }

    /// The answer will be `len` bytes, all of which must now be taken. What was taken
    /// before is void.
    pub fn start(&mut self, len: usize) {
        (self.len, self.got) = (len, 0);
        self.piped = match self.begin() {
            Ok(begun) => begun,
            Err(errno) => {
                tracing::debug!(%errno, "no pipe: bytes are copied");
                self.room.pipe = None;
                false
            }
        };
        if !self.piped {
            self.make_memory();
        }
    }

    fn begin(&mut self) -> Result<bool, Errno> {
        let head = self.head();
        // What an attempt that failed has left behind goes with its pipe.
        let kept = self.room.pipe.take().filter(|pipe| pipe.held == 0);
        let mut pipe = kept.map_or_else(Pipe::new, Ok)?;
        let fits = self.len <= pipe.most;
        if fits {
            pipe.begin(head.bytes())?;
        }
        self.room.pipe = Some(pipe);
        Ok(fits)
    }

    fn head(&self) -> Fixed<16> {
        Fixed::new().u32((abi::OUT_HEADER_LEN + self.len) as u32).u32(0).u64(self.unique)
    }

    /// Takes up to `len` of the next bytes out of `from`, a TCP socket or a file, waiting
    /// for the first. 0 at its end, and when nothing is missing.
    ///
    /// # Errors
    /// Those of splice(2) or read(2) from this descriptor.
    pub fn take(&mut self, from: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
        let len = len.min(self.len - self.got);
        if let Some(pipe) = self.room.pipe.as_mut().filter(|_| self.piped) {
            // This keeps us from waiting for room in the pipe; of bytes, TCP waits for the first.
            let flags = SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(from, None, &pipe.input, None, len, flags) {
                Ok(n) => {
                    pipe.held += n;
                    self.got += n;
                    return Ok(n);
                }
                Err(Errno::AGAIN) if pipe.is_full() => self.spill()?,
                // Not every kind of descriptor can.
                Err(Errno::INVAL) => self.spill()?,
                Err(errno) => return Err(errno),
            }
        }
        let n = rustix::io::read(from, &mut self.room.scratch[self.got..][..len])?;
        self.got += n;
        Ok(n)
    }

    /// Goes on in memory.
    fn spill(&mut self) -> Result<(), Errno> {
        self.make_memory();
        self.piped = false;
        if let Some(pipe) = &mut self.room.pipe {
            pipe.most = self.len.saturating_sub(1);
            pipe.empty_into(&mut [0; abi::OUT_HEADER_LEN])?;
            pipe.empty_into(&mut self.room.scratch[..self.got])?;
        }
        Ok(())
    }

    fn make_memory(&mut self) {
        // Its length only grows, so that it is cleared once.
        if self.room.scratch.len() < self.len {
            self.room.scratch.resize(self.len, 0);
        }
    }

    /// Hands it to the kernel.
    pub(crate) fn send(self, device: &Device) -> Result<(), Errno> {
        if self.got < self.len {
            return Err(Errno::NODATA);
        }
        let Some(pipe) = self.room.pipe.as_mut().filter(|_| self.piped) else {
            let data = &self.room.scratch[..self.len];
            return device.write(&[IoSlice::new(self.head().bytes()), IoSlice::new(data)]);
        };
        match device.splice(&pipe.output, pipe.held) {
            Ok(()) => pipe.held = 0,
            Err(errno) => {
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

    /// Something that takes answers like the device, and what it has taken in the end.
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
            Taker { device: Arc::new(Device::from_bound(ours.into())), reader }
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

    /// A connection on which `bytes` come, each piece of its own, and then the end.
    fn source(bytes: &[u8], piece: usize) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let bytes = bytes.to_vec();
        std::thread::spawn(move || {
            let mut to = TcpStream::connect(address).expect("connected");
            to.set_nodelay(true).expect("set");
            for piece in bytes.chunks(piece) {
                // Whoever has read enough closes.
                if to.write_all(piece).is_err() {
                    break;
                }
            }
        });
        listener.accept().expect("accepted").0
    }

    fn take_all(passage: &mut Passage<'_>, from: &impl AsFd, len: usize) {
        passage.start(len);
        let mut left = len;
        while left > 0 {
            let n = passage.take(from.as_fd(), left).expect("taken");
            assert!(n > 0, "{left} bytes are missing");
            left -= n;
        }
    }

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 3) as u8).collect()
    }

    #[test]
    fn bytes_of_a_socket_become_an_answer() {
        let (taker, mut room) = (Taker::new(), Room::default());
        let mut expected = Vec::new();
        for (unique, len) in [(5, 1 << 20), (6, 0), (7, 100_001)] {
            let bytes = content(len);
            let from = source(&bytes, 1 << 20);
            let reply = Reply::new(&taker.device, &mut room, unique, true);
            assert!(reply.pass(|passage| {
                take_all(passage, &from, len);
                Ok(())
            }));
            expected.extend(answer(unique, 0, &bytes));
        }
        assert!(taker.end() == expected, "other bytes");
    }

    #[test]
    fn an_answer_that_overflows_its_pipe_goes_through_memory() {
        let (taker, mut room) = (Taker::new(), Room::default());
        room.pipe = Some(Pipe::of(16 << 10).expect("a pipe"));
        let mut expected = Vec::new();
        for (unique, len) in [(1, 300_000), (2, 300_000), (3, 1000)] {
            let bytes = content(len);
            let from = source(&bytes, 1000);
            let reply = Reply::new(&taker.device, &mut room, unique, true);
            assert!(reply.pass(|passage| {
                take_all(passage, &from, len);
                Ok(())
            }));
            expected.extend(answer(unique, 0, &bytes));
        }
        assert_eq!(room.pipe.expect("it is kept").most, 299_999);
        assert!(taker.end() == expected, "other bytes");
    }

    #[test]
    fn what_ended_half_way_is_thrown_away_and_begun_anew() {
        let (taker, mut room) = (Taker::new(), Room::default());
        let bytes = content(300_000);
        let reply = Reply::new(&taker.device, &mut room, 1, true);
        assert!(reply.pass(|passage| {
            let broken = source(&[9; 70_000], 70_000);
            passage.start(bytes.len());
            while passage.take(broken.as_fd(), bytes.len()).expect("taken") > 0 {}
            take_all(passage, &source(&bytes, 4096), bytes.len());
            Ok(())
        }));
        let reply = Reply::new(&taker.device, &mut room, 2, true);
        assert!(reply.pass(|passage| {
            passage.start(10);
            passage.take(source(&[9; 5], 5).as_fd(), 10).expect("taken");
            Err(libc::EHOSTDOWN)
        }));
        // Neither all of it nor an error: nobody must wait for the rest.
        let reply = Reply::new(&taker.device, &mut room, 3, true);
        assert!(reply.pass(|passage| {
            passage.start(10);
            Ok(())
        }));
        let mut expected = answer(1, 0, &bytes);
        expected.extend(answer(2, -libc::EHOSTDOWN, &[]));
        expected.extend(answer(3, -libc::EIO, &[]));
        assert!(taker.end() == expected, "other bytes");
    }
}
