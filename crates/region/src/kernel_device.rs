//! A device of the kernel: a partition, a loop device or a file, past the page cache (`O_DIRECT`).
//! The writer's requests go through io_uring, with registered memory, where the kernel has it.

use crate::aligned::AlignedBuffer;
use crate::block_device::{BlockDevice, DeviceWriter, LogFile, WritePart};
use io_uring::{IoUring, opcode, types};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Most writes under way at a time.
const DEPTH: u32 = 64;
/// Longest single write, in bytes. Longer parts are written in pieces, side by side.
const WRITE_MAX: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct KernelDevice {
    file: Arc<File>,
    len: u64,
}

impl KernelDevice {
    /// Opens the device at `path` for this process alone.
    ///
    /// # Errors
    /// Those of open(2) and flock(2): `EWOULDBLOCK` or `EBUSY` if it is in use; `EINVAL` for what
    /// is neither a file nor a block device.
    pub fn open(path: &Path) -> io::Result<KernelDevice> {
        let open = |flags| {
            let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            rustix::fs::open(path, flags, Mode::empty())
        };
        let stat = rustix::fs::stat(path)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        // `O_EXCL` on a block device: nothing that is mounted is opened.
        let exclusive = match kind {
            FileType::BlockDevice => OFlags::EXCL,
            FileType::RegularFile => OFlags::empty(),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let fd = match open(exclusive | OFlags::DIRECT) {
            // A file system without it. `flush` makes writes durable either way.
            Err(rustix::io::Errno::INVAL) => open(exclusive)?,
            other => other?,
        };
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        // The bytes of all users' files are in it. Access to a device is the administrator's.
        if kind == FileType::RegularFile {
            rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        }
        KernelDevice::new(fd)
    }

    fn new(fd: OwnedFd) -> io::Result<KernelDevice> {
        let mut file = File::from(fd);
        // Works for block devices as well, which have no size of their own in stat(2).
        let len = file.seek(io::SeekFrom::End(0))?;
        file.rewind()?;
        Ok(KernelDevice { file: Arc::new(file), len })
    }
}

impl BlockDevice for KernelDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buffer: &mut AlignedBuffer, len: usize, offset: u64) -> io::Result<()> {
        self.file.read_exact_at(&mut buffer.bytes_mut()[..len], offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn discard_range(&self, offset: u64, len: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(errno) = rustix::fs::fallocate(&self.file, flags, offset, len) {
            tracing::debug!(%errno, offset, len, "a range was not discarded");
        }
    }

    fn make_writer(&self, len: usize) -> io::Result<Box<dyn DeviceWriter>> {
        let mut memory = AlignedBuffer::new(len);
        let ring = match make_ring(&mut memory) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::info!(%error, "no io_uring for regions: blocks are written one by one");
                None
            }
        };
        Ok(Box::new(KernelWriter { ring, memory, file: self.file.clone() }))
    }
}

/// Makes a ring that knows the memory as its buffer 0.
fn make_ring(memory: &mut AlignedBuffer) -> io::Result<IoUring> {
    let ring = IoUring::new(DEPTH)?;
    let bytes = memory.bytes_mut();
    let area = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `KernelWriter` keeps the memory, which does not move, until the ring has ended.
    unsafe { ring.submitter().register_buffers(&[area])? };
    Ok(ring)
}

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    Write,
    Read,
}

struct KernelWriter {
    /// Dropped first, so that the kernel does not read `memory` any more.
    ring: Option<IoUring>,
    memory: AlignedBuffer,
    file: Arc<File>,
}

impl KernelWriter {
    fn move_one_by_one(&mut self, way: Transfer, parts: &[WritePart]) -> Vec<io::Result<()>> {
        let bytes = self.memory.bytes_mut();
        let one = |part: &WritePart| move_part(&self.file, way, bytes, part);
        parts.iter().map(one).collect()
    }

    /// Moves all parts, at most [`DEPTH`] at a time, or one by one without a ring.
    fn move_parts(&mut self, way: Transfer, parts: &[WritePart]) -> Vec<io::Result<()>> {
        let Some(ring) = &mut self.ring else { return self.move_one_by_one(way, parts) };
        let pieces = split_parts(parts);
        let mut results: Vec<io::Result<()>> = parts.iter().map(|_| Ok(())).collect();
        match move_pieces(ring, &self.file, way, self.memory.bytes_mut(), &pieces) {
            Ok(done) => {
                for ((part, piece), moved) in pieces.iter().zip(done) {
                    if moved != piece.len {
                        // Short or failed: once more by itself, for the whole result or the error.
                        let again = move_part(&self.file, way, self.memory.bytes_mut(), piece);
                        if again.is_err() {
                            results[*part] = again;
                        }
                    }
                }
                results
            }
            Err(error) => {
                tracing::warn!(%error, "io_uring for regions failed: blocks are moved one by one");
                // The kernel may still use the memory of requests under way: ring and memory stay
                // for good, and a copy is used from now on.
                let mut copy = AlignedBuffer::new(self.memory.len());
                copy.bytes_mut().copy_from_slice(self.memory.bytes());
                std::mem::forget((self.ring.take(), std::mem::replace(&mut self.memory, copy)));
                self.move_one_by_one(way, parts)
            }
        }
    }
}

/// Writes or reads one part.
fn move_part(file: &File, way: Transfer, memory: &mut [u8], part: &WritePart) -> io::Result<()> {
    let bytes = &mut memory[part.from..][..part.len];
    match way {
        Transfer::Write => file.write_all_at(bytes, part.to),
        Transfer::Read => file.read_exact_at(bytes, part.to),
    }
}

impl DeviceWriter for KernelWriter {
    fn memory_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    fn write_parts(&mut self, parts: &[WritePart]) -> Vec<io::Result<()>> {
        self.move_parts(Transfer::Write, parts)
    }

    fn read_parts(&mut self, parts: &[WritePart]) -> Vec<io::Result<()>> {
        self.move_parts(Transfer::Read, parts)
    }
}

/// Returns pieces of at most [`WRITE_MAX`] bytes, each with the number of its part.
fn split_parts(parts: &[WritePart]) -> Vec<(usize, WritePart)> {
    let mut pieces = Vec::with_capacity(parts.len());
    for (number, part) in parts.iter().enumerate() {
        for at in (0..part.len).step_by(WRITE_MAX) {
            let len = WRITE_MAX.min(part.len - at);
            pieces.push((number, WritePart { from: part.from + at, len, to: part.to + at as u64 }));
        }
    }
    pieces
}

/// Moves all pieces, at most [`DEPTH`] at a time, and returns the moved bytes of each; 0 for one
/// that failed.
fn move_pieces(
    ring: &mut IoUring,
    file: &File,
    way: Transfer,
    memory: &mut [u8],
    pieces: &[(usize, WritePart)],
) -> io::Result<Vec<usize>> {
    let mut moved = vec![0; pieces.len()];
    let (mut begun, mut ended) = (0, 0);
    while ended < pieces.len() {
        while begun < pieces.len() && begun - ended < DEPTH as usize {
            let (_, piece) = pieces[begun];
            let bytes = memory[piece.from..piece.from + piece.len].as_mut_ptr();
            let (fd, len) = (types::Fd(file.as_raw_fd()), piece.len as u32);
            let entry = match way {
                Transfer::Write => {
                    opcode::WriteFixed::new(fd, bytes, len, 0).offset(piece.to).build()
                }
                Transfer::Read => {
                    opcode::ReadFixed::new(fd, bytes, len, 0).offset(piece.to).build()
                }
            };
            let entry = entry.user_data(begun as u64);
            // SAFETY: the bytes are in the registered memory, which outlives the ring, and nobody
            // else uses them before the completion: `memory` is borrowed until all have ended.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                break;
            }
            begun += 1;
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        for completion in ring.completion() {
            let at = completion.user_data() as usize;
            moved[at] = usize::try_from(completion.result()).unwrap_or(0);
            ended += 1;
        }
    }
    Ok(moved)
}

impl LogFile for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match FileExt::read_at(self, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, parts: [&[u8]; 2], offset: u64) -> io::Result<()> {
        let slices = parts.map(io::IoSlice::new);
        let done = rustix::io::retry_on_intr(|| rustix::io::pwritev(self, &slices, offset))?;
        let rest_of = |part: usize, done: usize| parts[part].get(done..).unwrap_or_default();
        let first = rest_of(0, done);
        self.write_all_at(first, offset + done as u64)?;
        let second = rest_of(1, done.saturating_sub(parts[0].len()));
        let end = offset + (parts[0].len() + parts[1].len()) as u64;
        self.write_all_at(second, end - second.len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
