//! Pages of a file that go to a socket uncopied: from the page cache into a pipe, and from the pipe
//! to the socket (splice(2)).
//!
//! sendfile(2) does not fit. The header of an answer states its length before its bytes go out. If
//! the file is truncated meanwhile, only invented zeros could keep that length. The bytes in a pipe
//! do not depend on the file any more, so they are counted first.

use crate::counters::{BoundedSlot, BoundedSlots};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Size of a pipe in bytes: the largest that every user may have.
const PIPE_BYTES: usize = 1 << 20;
/// Most pipes: half of the pages that the kernel grants all processes of an ordinary user. Further
/// answers at the same time are copied.
const PIPES_MAX: u32 = 32;

/// All pipes of a node.
#[derive(Debug)]
pub(crate) struct PipePool {
    idle: Mutex<Vec<PipedPages>>,
    places: Arc<BoundedSlots>,
}

impl Default for PipePool {
    fn default() -> PipePool {
        PipePool { idle: Mutex::default(), places: BoundedSlots::new(PIPES_MAX) }
    }
}

impl PipePool {
    /// Returns an empty pipe, if one is available.
    pub(crate) fn take_pipe(&self) -> Option<PipedPages> {
        if let Some(pages) = self.idle.lock().pop() {
            return Some(pages);
        }
        let place = self.places.try_acquire()?;
        PipedPages::new(place)
            .inspect_err(|error| tracing::debug!(%error, "no pipe: bytes are copied"))
            .ok()
    }

    /// Takes a pipe back. A pipe that is not empty is closed.
    pub(crate) fn put_back(&self, pages: PipedPages) {
        if pages.held == 0 {
            self.idle.lock().push(pages);
        }
    }
}

/// Pages in a pipe. See the module.
#[derive(Debug)]
pub(crate) struct PipedPages {
    output: OwnedFd,
    input: OwnedFd,
    /// Bytes in the pipe.
    held: usize,
    _place: BoundedSlot,
}

impl PipedPages {
    /// # Errors
    /// Those of pipe(2), and `EPERM` where the user's pipes hold too much already.
    fn new(place: BoundedSlot) -> io::Result<PipedPages> {
        let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::pipe::fcntl_setpipe_size(&input, PIPE_BYTES)?;
        Ok(PipedPages { output, input, held: 0, _place: place })
    }

    /// Returns the number of bytes in the pipe.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held
    }

    /// Takes up to `len` bytes of `file` from `offset`: fewer at its end, and when the pipe is
    /// full.
    ///
    /// # Errors
    /// Those of reading the file. The bytes taken before stay in the pipe.
    pub(crate) fn fill_from(&mut self, file: impl AsFd, offset: u64, len: usize) -> io::Result<()> {
        let mut at = offset;
        let end = offset.saturating_add(len as u64);
        while at < end {
            let left = (end - at) as usize;
            // A blocking splice would wait until another thread empties the pipe.
            let flags = SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(&file, Some(&mut at), &self.input, None, left, flags) {
                Ok(0) => break,
                Ok(n) => self.held += n,
                Err(Errno::INTR) => {}
                // `EAGAIN` has two causes: a full pipe, and a file that cannot be read now. Only
                // the first ends the loop well.
                Err(Errno::AGAIN) if self.is_full() => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(0)
    }

    /// Sends all bytes of the pipe.
    ///
    /// # Errors
    /// Those of the socket. Part of the bytes may have been sent then.
    pub(crate) fn send_all(&mut self, socket: impl AsFd, more: bool) -> io::Result<()> {
        let flags = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        while self.held > 0 {
            match rustix::pipe::splice(&self.output, None, &socket, None, self.held, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.held -= n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, bytes).expect("written");
        (dir, File::options().read(true).write(true).open(path).expect("opened"))
    }

    fn sent(pages: &mut PipedPages) -> Vec<u8> {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).expect("read");
            got
        });
        pages.send_all(&ours, false).expect("sent");
        drop(ours);
        reader.join().expect("the reader")
    }

    #[test]
    fn what_was_counted_is_sent_even_if_the_file_is_cut_meanwhile() {
        let (_dir, file) = file(&vec![7; 500_000]);
        let mut pages = PipePool::default().take_pipe().expect("a pipe");
        pages.fill_from(&file, 100_000, 300_000).expect("taken");
        assert_eq!(pages.held_bytes(), 300_000);
        file.set_len(0).expect("cut");
        assert_eq!(sent(&mut pages), vec![7; 300_000]);
        assert_eq!(pages.held_bytes(), 0);
    }

    #[test]
    fn it_takes_no_more_than_there_is_and_than_fits() {
        let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 7) as u8).collect();
        let (_dir, file) = file(&bytes);
        let mut pages = PipePool::default().take_pipe().expect("a pipe");
        let start = bytes.len() - 1000;
        pages.fill_from(&file, start as u64, 5000).expect("taken");
        assert_eq!(sent(&mut pages), bytes[start..]);
        pages.fill_from(&file, 1 << 40, 5000).expect("taken");
        assert_eq!(pages.held_bytes(), 0);
        pages.fill_from(&file, 123, bytes.len()).expect("taken");
        let held = pages.held_bytes();
        assert!((PIPE_BYTES - 8192..=PIPE_BYTES).contains(&held), "{held}");
        assert_eq!(sent(&mut pages), bytes[123..123 + held]);
    }

    #[test]
    fn a_pipe_with_bytes_in_it_is_not_used_again() {
        let (_dir, file) = file(&[7; 5000]);
        let pool = PipePool::default();
        let mut all: Vec<_> = std::iter::from_fn(|| pool.take_pipe()).collect();
        assert_eq!(all.len(), PIPES_MAX as usize);
        all[0].fill_from(&file, 0, 5000).expect("taken");
        all.into_iter().for_each(|pages| pool.put_back(pages));
        assert_eq!(pool.idle.lock().len(), PIPES_MAX as usize - 1);
        let again: Vec<_> = std::iter::from_fn(|| pool.take_pipe()).collect();
        assert_eq!(again.len(), PIPES_MAX as usize, "its place is free again");
        assert!(again.iter().all(|pages| pages.held_bytes() == 0));
    }
}
