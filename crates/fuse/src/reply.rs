//! Replies. Each request gets one reply, by one system call.

use crate::abi;
use crate::device::Device;
use crate::encode::{Attr, DirEntries, Fixed, Opened, StatFs, Validity};
use crate::passage::{Passage, Room};
use crate::request::{FileLock, Header};
use crate::trouble::Asked;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The obligation to reply to one request. Dropping it without a reply sends `EIO`, so that no
/// caller waits for ever.
///
/// The methods return whether the kernel accepted the reply. It does not after the caller was
/// killed. Then the handler must undo the effect of the reply, such as an open file.
pub struct Reply<'a> {
    device: &'a Arc<Device>,
    room: &'a mut Room,
    unique: u64,
    wanted: bool,
    asked: Asked,
    idle: Option<&'a AtomicUsize>,
}

impl<'a> Reply<'a> {
    /// Makes the reply to request `unique`. Long replies use `room`. If the reply is not `wanted`,
    /// nothing is sent.
    pub fn new(
        device: &'a Arc<Device>,
        room: &'a mut Room,
        unique: u64,
        wanted: bool,
    ) -> Reply<'a> {
        Reply { device, room, unique, wanted, asked: Asked::default(), idle: None }
    }

    /// Sets the request's header, for the log line of an `EIO`.
    pub(crate) fn to(mut self, header: &Header) -> Reply<'a> {
        self.asked = Asked::from(header);
        self
    }

    /// Increments `idle` with the reply, before the kernel gets the reply.
    pub(crate) fn counted(mut self, idle: &'a AtomicUsize) -> Reply<'a> {
        self.idle = Some(idle);
        self
    }

    fn send(mut self, error: i32, parts: [&[u8]; 2]) -> bool {
        self.count();
        transmit(self.device, &mut self.wanted, self.unique, (self.asked, error), parts)
    }

    fn count(&mut self) {
        if let Some(idle) = self.idle.take() {
            idle.fetch_add(1, SeqCst);
        }
    }

    /// Replies with an error, given as a (positive) error number.
    pub fn error(self, errno: i32) -> bool {
        let errno = if errno > 0 && errno < 512 { errno } else { libc::EIO };
        self.send(-errno, [&[], &[]])
    }

    /// Replies with success.
    pub fn done(self) -> bool {
        self.send(0, [&[], &[]])
    }

    /// GETLK: the conflicting lock, or a lock of kind `F_UNLCK`.
    pub fn lock(self, lock: &FileLock) -> bool {
        let FileLock { start, end, kind, pid, .. } = *lock;
        let body = Fixed::<24>::new().u64(start).u64(end).u32(kind as u32).u32(pid);
        self.send(0, [body.bytes(), &[]])
    }

    /// Moves the obligation to a value that any thread can use.
    pub fn later(mut self) -> Later {
        self.count();
        let wanted = std::mem::take(&mut self.wanted);
        Later { device: self.device.clone(), unique: self.unique, wanted, asked: self.asked }
    }

    /// Sends nothing, for a request without a reply.
    pub fn none(mut self) {
        self.wanted = false;
    }

    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK: the inode.
    pub fn entry(self, attr: &Attr, valid: &Validity) -> bool {
        let body = Fixed::<128>::new().entry(attr, valid);
        self.send(0, [body.bytes(), &[]])
    }

    /// LOOKUP: the name does not exist. The kernel may cache that for `valid`.
    pub fn absent(self, valid: Duration) -> bool {
        self.entry(&Attr::default(), &Validity { entry: valid, attr: Duration::ZERO })
    }

    /// CREATE, TMPFILE: the inode and the open file.
    pub fn created(self, attr: &Attr, valid: &Validity, opened: &Opened) -> bool {
        let body = Fixed::<144>::new().entry(attr, valid).opened(opened);
        self.send(0, [body.bytes(), &[]])
    }

    /// GETATTR, SETATTR.
    pub fn attr(self, attr: &Attr, valid: Duration) -> bool {
        let body =
            Fixed::<104>::new().u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).attr(attr);
        self.send(0, [body.bytes(), &[]])
    }

    /// STATX.
    pub fn statx(self, attr: &Attr, valid: Duration) -> bool {
        let body = Fixed::<288>::new()
            .u64(valid.as_secs())
            .u32(valid.subsec_nanos())
            .zeros(4 + 16)
            .statx(attr);
        self.send(0, [body.bytes(), &[]])
    }

    /// OPEN, OPENDIR.
    pub fn opened(self, opened: &Opened) -> bool {
        let body = Fixed::<16>::new().opened(opened);
        self.send(0, [body.bytes(), &[]])
    }

    /// READ, READLINK, GETXATTR and LISTXATTR with a size: the bytes.
    pub fn data(self, data: &[u8]) -> bool {
        self.send(0, [data, &[]])
    }

    /// Like [`Reply::data`], with bytes from `fill`. It gets a buffer of `size` bytes, which the
    /// thread reuses, and returns the number of bytes or an error number.
    pub fn fill(mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>) -> bool {
        // The buffer never shrinks, so that it is zeroed only once.
        if self.room.scratch.len() < size {
            self.room.scratch.resize(size, 0);
        }
        match fill(&mut self.room.scratch[..size]) {
            Ok(len) => {
                self.count();
                let data = &self.room.scratch[..len.min(size)];
                transmit(self.device, &mut self.wanted, self.unique, (self.asked, 0), [data, &[]])
            }
            Err(errno) => self.error(errno),
        }
    }

    /// Like [`Reply::data`], with bytes that `fill` splices from descriptors: see [`Passage`].
    /// `fill` may return an error number.
    pub fn pass(mut self, fill: impl FnOnce(&mut Passage<'_>) -> Result<(), i32>) -> bool {
        if !self.wanted {
            return false;
        }
        let mut passage = Passage::new(self.room, self.unique);
        if let Err(errno) = fill(&mut passage) {
            return self.error(errno);
        }
        // Count the thread as idle before the reply is sent, as for all replies.
        if let Some(idle) = self.idle.take() {
            idle.fetch_add(1, SeqCst);
        }
        match passage.send(self.device) {
            // The kernel has got nothing, so an error can still be sent.
            Err(Errno::NODATA) => self.error(libc::EIO),
            sent => {
                self.wanted = false;
                taken(sent, self.unique)
            }
        }
    }

    /// READDIR, READDIRPLUS: the entries from `fill`, at most `size` bytes.
    pub fn directory(
        mut self,
        size: usize,
        fill: impl FnOnce(&mut DirEntries<'_>) -> Result<(), i32>,
    ) -> bool {
        match fill(&mut DirEntries::new(&mut self.room.scratch, size)) {
            Ok(()) => {
                self.count();
                let entries = self.room.scratch.as_slice();
                let asked = (self.asked, 0);
                transmit(self.device, &mut self.wanted, self.unique, asked, [entries, &[]])
            }
            Err(errno) => self.error(errno),
        }
    }

    /// WRITE, COPY_FILE_RANGE: the number of bytes.
    pub fn written(self, len: u32) -> bool {
        self.send(0, [Fixed::<8>::new().u32(len).u32(0).bytes(), &[]])
    }

    /// COPY_FILE_RANGE_64: the number of bytes. LSEEK: the offset.
    pub fn number(self, n: u64) -> bool {
        self.send(0, [&n.to_ne_bytes(), &[]])
    }

    /// GETXATTR and LISTXATTR with size 0: the length.
    pub fn xattr_len(self, len: u32) -> bool {
        self.written(len)
    }

    /// STATFS.
    pub fn statfs(self, s: &StatFs) -> bool {
        let body = Fixed::<80>::new()
            .u64(s.blocks)
            .u64(s.free)
            .u64(s.available)
            .u64(s.files)
            .u64(s.files_free)
            .u32(s.block_size)
            .u32(s.name_max)
            .u32(s.block_size)
            .zeros(4 + 24);
        self.send(0, [body.bytes(), &[]])
    }
}

/// The obligation to reply with success or failure, from any thread. Dropping it without a reply
/// sends `EIO`.
#[derive(Debug)]
pub struct Later {
    device: Arc<Device>,
    unique: u64,
    wanted: bool,
    asked: Asked,
}

impl Later {
    /// Sends the reply. Errors are positive error numbers. Returns whether the kernel accepted it.
    pub fn answer(mut self, result: Result<(), i32>) -> bool {
        let error = result.err().map_or(0, |errno| -errno);
        transmit(&self.device, &mut self.wanted, self.unique, (self.asked, error), [&[], &[]])
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let answer = (self.asked, -libc::EIO);
        transmit(&self.device, &mut self.wanted, self.unique, answer, [&[], &[]]);
    }
}

fn transmit(
    device: &Device,
    wanted: &mut bool,
    unique: u64,
    (asked, error): (Asked, i32),
    parts: [&[u8]; 2],
) -> bool {
    if !std::mem::take(wanted) {
        return false;
    }
    if error == -libc::EIO {
        asked.log_eio();
    }
    let len = abi::OUT_HEADER_LEN + parts[0].len() + parts[1].len();
    let head = Fixed::<16>::new().u32(len as u32).u32(error as u32).u64(unique);
    let slices = [IoSlice::new(head.bytes()), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
    let count = 3 - parts.iter().rev().take_while(|p| p.is_empty()).count();
    taken(device.write(&slices[..count]), unique)
}

/// Returns whether the kernel accepted the reply.
fn taken(sent: Result<(), Errno>, unique: u64) -> bool {
    match sent {
        Ok(()) => true,
        // The caller was killed, or the file system unmounted.
        Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => false,
        Err(errno) => {
            tracing::error!(%errno, unique, "the kernel refused a reply");
            false
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.count();
        if self.wanted {
            let answer = (self.asked, -libc::EIO);
            transmit(self.device, &mut self.wanted, self.unique, answer, [&[], &[]]);
        }
    }
}
