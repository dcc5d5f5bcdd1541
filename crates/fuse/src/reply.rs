//! Replies. Each request gets one reply, by one system call, or by memory that the kernel shares.

use crate::abi;
use crate::device::Device;
use crate::eio_log::RequestSummary;
use crate::encode::{CacheTimeouts, DirEntries, FixedReply, FuseAttr, OpenReply, StatFs};
use crate::request::{FileLock, RequestHeader};
use crate::splice::{ReplyBuffers, SplicedReply};
use parking_lot::{Condvar, Mutex};
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
    target: ReplyTarget<'a>,
    buffers: &'a mut ReplyBuffers,
    unique: u64,
    wanted: bool,
    request: RequestSummary,
    idle: Option<&'a AtomicUsize>,
}

/// The way of a reply to the kernel.
enum ReplyTarget<'a> {
    /// A write to the device.
    Device(&'a Arc<Device>),
    /// The memory of a ring's entry.
    Ring(RingReply<'a>),
}

/// The place of a reply in a ring's entry.
pub(crate) struct RingReply<'a> {
    /// Memory for the body.
    pub(crate) body: &'a mut [u8],
    /// The result of the handler.
    pub(crate) outcome: &'a mut RingOutcome,
}

/// The result of a handler for a request from a ring.
#[derive(Debug, Default)]
pub(crate) enum RingOutcome {
    /// No reply, which counts as success.
    #[default]
    Nothing,
    /// The error (negative, or 0), and the length of the body.
    Answered { error: i32, len: usize },
    /// Another thread will reply.
    Deferred(Arc<DeferredResult>),
}

impl RingReply<'_> {
    fn put_parts(&mut self, error: i32, parts: [&[u8]; 2]) {
        let len = parts[0].len() + parts[1].len();
        *self.outcome = match self.body.get_mut(..len) {
            Some(body) => {
                let (first, second) = body.split_at_mut(parts[0].len());
                first.copy_from_slice(parts[0]);
                second.copy_from_slice(parts[1]);
                RingOutcome::Answered { error, len }
            }
            None => {
                tracing::error!(len, "a reply is longer than its memory");
                RingOutcome::Answered { error: -libc::EIO, len: 0 }
            }
        };
    }
}

impl<'a> Reply<'a> {
    /// Makes the reply to request `unique`. Long replies use `room`. If the reply is not `wanted`,
    /// nothing is sent.
    pub fn new(
        device: &'a Arc<Device>,
        room: &'a mut ReplyBuffers,
        unique: u64,
        wanted: bool,
    ) -> Reply<'a> {
        Reply {
            target: ReplyTarget::Device(device),
            buffers: room,
            unique,
            wanted,
            request: RequestSummary::default(),
            idle: None,
        }
    }

    /// Makes the reply to request `unique` from a ring.
    pub(crate) fn new_in_ring(
        place: RingReply<'a>,
        buffers: &'a mut ReplyBuffers,
        unique: u64,
    ) -> Reply<'a> {
        Reply {
            target: ReplyTarget::Ring(place),
            buffers,
            unique,
            wanted: true,
            request: RequestSummary::default(),
            idle: None,
        }
    }

    /// Sets the request's header, for the log line of an `EIO`.
    pub(crate) fn with_header(mut self, header: &RequestHeader) -> Reply<'a> {
        self.request = RequestSummary::from(header);
        self
    }

    /// Increments `idle` with the reply, before the kernel gets the reply.
    pub(crate) fn count_idle_in(mut self, idle: &'a AtomicUsize) -> Reply<'a> {
        self.idle = Some(idle);
        self
    }

    fn send_parts(mut self, error: i32, parts: [&[u8]; 2]) -> bool {
        self.count_idle();
        self.target.send_answer(&mut self.wanted, self.unique, (self.request, error), parts)
    }

    fn count_idle(&mut self) {
        if let Some(idle) = self.idle.take() {
            idle.fetch_add(1, SeqCst);
        }
    }

    /// Replies with an error, given as a (positive) error number.
    pub fn send_error(self, errno: i32) -> bool {
        let errno = if errno > 0 && errno < 512 { errno } else { libc::EIO };
        self.send_parts(-errno, [&[], &[]])
    }

    /// Replies with success.
    pub fn send_success(self) -> bool {
        self.send_parts(0, [&[], &[]])
    }

    /// GETLK: the conflicting lock, or a lock of kind `F_UNLCK`.
    pub fn send_lock(self, lock: &FileLock) -> bool {
        let FileLock { start, end, kind, pid, .. } = *lock;
        let body =
            FixedReply::<24>::new().put_u64(start).put_u64(end).put_u32(kind as u32).put_u32(pid);
        self.send_parts(0, [body.as_bytes(), &[]])
    }

    /// Moves the obligation to a value that any thread can use.
    pub fn into_deferred(mut self) -> DeferredReply {
        self.count_idle();
        let wanted = std::mem::take(&mut self.wanted);
        let target = match &mut self.target {
            ReplyTarget::Device(device) => DeferredTarget::Device(device.clone()),
            ReplyTarget::Ring(place) => {
                let result = Arc::new(DeferredResult::default());
                *place.outcome = RingOutcome::Deferred(result.clone());
                DeferredTarget::Ring(result)
            }
        };
        DeferredReply { target, unique: self.unique, wanted, request: self.request }
    }

    /// Sends nothing, for a request without a reply.
    pub fn send_nothing(mut self) {
        self.wanted = false;
    }

    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK: the inode.
    pub fn send_entry(self, attr: &FuseAttr, valid: &CacheTimeouts) -> bool {
        let body = FixedReply::<128>::new().put_entry(attr, valid);
        self.send_parts(0, [body.as_bytes(), &[]])
    }

    /// LOOKUP: the name does not exist. The kernel may cache that for `valid`.
    pub fn send_absent(self, valid: Duration) -> bool {
        self.send_entry(&FuseAttr::default(), &CacheTimeouts { entry: valid, attr: Duration::ZERO })
    }

    /// CREATE, TMPFILE: the inode and the open file.
    pub fn send_created(self, attr: &FuseAttr, valid: &CacheTimeouts, opened: &OpenReply) -> bool {
        let body = FixedReply::<144>::new().put_entry(attr, valid).put_open(opened);
        self.send_parts(0, [body.as_bytes(), &[]])
    }

    /// GETATTR, SETATTR.
    pub fn send_attr(self, attr: &FuseAttr, valid: Duration) -> bool {
        let body = FixedReply::<104>::new()
            .put_u64(valid.as_secs())
            .put_u32(valid.subsec_nanos())
            .put_u32(0)
            .put_attr(attr);
        self.send_parts(0, [body.as_bytes(), &[]])
    }

    /// STATX.
    pub fn send_statx(self, attr: &FuseAttr, valid: Duration) -> bool {
        let body = FixedReply::<288>::new()
            .put_u64(valid.as_secs())
            .put_u32(valid.subsec_nanos())
            .put_zeros(4 + 16)
            .put_statx(attr);
        self.send_parts(0, [body.as_bytes(), &[]])
    }

    /// OPEN, OPENDIR.
    pub fn send_open(self, opened: &OpenReply) -> bool {
        let body = FixedReply::<16>::new().put_open(opened);
        self.send_parts(0, [body.as_bytes(), &[]])
    }

    /// READ, READLINK, GETXATTR and LISTXATTR with a size: the bytes.
    pub fn send_data(self, data: &[u8]) -> bool {
        self.send_parts(0, [data, &[]])
    }

    /// Like [`Reply::send_data`], with bytes from `fill`. It gets a buffer of `size` bytes, which
    /// the thread reuses, and returns the number of bytes or an error number.
    pub fn send_filled(
        mut self,
        size: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>,
    ) -> bool {
        if let ReplyTarget::Ring(place) = &mut self.target
            && let Some(body) = place.body.get_mut(..size)
        {
            return match fill(body) {
                Ok(len) => {
                    *place.outcome = RingOutcome::Answered { error: 0, len: len.min(size) };
                    self.count_idle();
                    std::mem::take(&mut self.wanted)
                }
                Err(errno) => self.send_error(errno),
            };
        }
        // The buffer never shrinks, so that it is zeroed only once.
        if self.buffers.scratch.len() < size {
            self.buffers.scratch.resize(size, 0);
        }
        match fill(&mut self.buffers.scratch[..size]) {
            Ok(len) => {
                self.count_idle();
                let data = &self.buffers.scratch[..len.min(size)];
                let asked = (self.request, 0);
                self.target.send_answer(&mut self.wanted, self.unique, asked, [data, &[]])
            }
            Err(errno) => self.send_error(errno),
        }
    }

    /// Like [`Reply::send_data`], with bytes that `fill` splices from descriptors: see
    /// [`SplicedReply`]. `fill` may return an error number.
    pub fn send_spliced(
        mut self,
        fill: impl FnOnce(&mut SplicedReply<'_>) -> Result<(), i32>,
    ) -> bool {
        if !self.wanted {
            return false;
        }
        let (body, device) = match &mut self.target {
            ReplyTarget::Device(device) => (None, Some(*device)),
            ReplyTarget::Ring(place) => (Some(&mut *place.body), None),
        };
        let mut passage = SplicedReply::new(self.buffers, self.unique, body);
        if let Err(errno) = fill(&mut passage) {
            return self.send_error(errno);
        }
        // Count the thread as idle before the reply is sent, as for all replies.
        if let Some(idle) = self.idle.take() {
            idle.fetch_add(1, SeqCst);
        }
        let Some(device) = device else {
            let taken = passage.taken_in_memory();
            return match (taken, &mut self.target) {
                (Some(len), ReplyTarget::Ring(place)) => {
                    *place.outcome = RingOutcome::Answered { error: 0, len };
                    std::mem::take(&mut self.wanted)
                }
                _ => self.send_error(libc::EIO),
            };
        };
        match passage.send_to(device) {
            // The kernel has got nothing, so an error can still be sent.
            Err(Errno::NODATA) => self.send_error(libc::EIO),
            sent => {
                self.wanted = false;
                is_accepted(sent, self.unique)
            }
        }
    }

    /// READDIR, READDIRPLUS: the entries from `fill`, at most `size` bytes.
    pub fn send_directory(
        mut self,
        size: usize,
        fill: impl FnOnce(&mut DirEntries<'_>) -> Result<(), i32>,
    ) -> bool {
        match fill(&mut DirEntries::new(&mut self.buffers.scratch, size)) {
            Ok(()) => {
                self.count_idle();
                let entries = self.buffers.scratch.as_slice();
                let asked = (self.request, 0);
                self.target.send_answer(&mut self.wanted, self.unique, asked, [entries, &[]])
            }
            Err(errno) => self.send_error(errno),
        }
    }

    /// WRITE, COPY_FILE_RANGE: the number of bytes.
    pub fn send_written(self, len: u32) -> bool {
        self.send_parts(0, [FixedReply::<8>::new().put_u32(len).put_u32(0).as_bytes(), &[]])
    }

    /// COPY_FILE_RANGE_64: the number of bytes. LSEEK: the offset.
    pub fn send_number(self, n: u64) -> bool {
        self.send_parts(0, [&n.to_ne_bytes(), &[]])
    }

    /// GETXATTR and LISTXATTR with size 0: the length.
    pub fn send_xattr_len(self, len: u32) -> bool {
        self.send_written(len)
    }

    /// STATFS.
    pub fn send_statfs(self, s: &StatFs) -> bool {
        let body = FixedReply::<80>::new()
            .put_u64(s.blocks)
            .put_u64(s.free)
            .put_u64(s.available)
            .put_u64(s.files)
            .put_u64(s.files_free)
            .put_u32(s.block_size)
            .put_u32(s.name_max)
            .put_u32(s.block_size)
            .put_zeros(4 + 24);
        self.send_parts(0, [body.as_bytes(), &[]])
    }
}

/// The obligation to reply with success or failure, from any thread. Dropping it without a reply
/// sends `EIO`.
#[derive(Debug)]
pub struct DeferredReply {
    target: DeferredTarget,
    unique: u64,
    wanted: bool,
    request: RequestSummary,
}

#[derive(Debug)]
enum DeferredTarget {
    Device(Arc<Device>),
    Ring(Arc<DeferredResult>),
}

/// The result of a deferred reply, for the thread that has the ring's entry.
#[derive(Debug, Default)]
pub(crate) struct DeferredResult {
    error: Mutex<Option<i32>>,
    known: Condvar,
}

impl DeferredResult {
    fn set(&self, error: i32) {
        *self.error.lock() = Some(error);
        self.known.notify_one();
    }

    /// Waits for the result: an error (negative), or 0.
    pub(crate) fn wait_for_result(&self) -> i32 {
        let mut error = self.error.lock();
        loop {
            match *error {
                Some(error) => return error,
                None => self.known.wait(&mut error),
            }
        }
    }
}

impl DeferredTarget {
    fn send_answer(&self, wanted: &mut bool, unique: u64, asked: (RequestSummary, i32)) -> bool {
        match self {
            DeferredTarget::Device(device) => {
                transmit_reply(device, wanted, unique, asked, [&[], &[]])
            }
            DeferredTarget::Ring(result) => {
                if !std::mem::take(wanted) {
                    return false;
                }
                if asked.1 == -libc::EIO {
                    asked.0.log_eio();
                }
                result.set(asked.1);
                true
            }
        }
    }
}

impl DeferredReply {
    /// Sends the reply. Errors are positive error numbers. Returns whether the kernel accepted it.
    pub fn send_result(mut self, result: Result<(), i32>) -> bool {
        let error = result.err().map_or(0, |errno| -errno);
        self.target.send_answer(&mut self.wanted, self.unique, (self.request, error))
    }
}

impl Drop for DeferredReply {
    fn drop(&mut self) {
        self.target.send_answer(&mut self.wanted, self.unique, (self.request, -libc::EIO));
    }
}

impl ReplyTarget<'_> {
    fn send_answer(
        &mut self,
        wanted: &mut bool,
        unique: u64,
        asked: (RequestSummary, i32),
        parts: [&[u8]; 2],
    ) -> bool {
        match self {
            ReplyTarget::Device(device) => transmit_reply(device, wanted, unique, asked, parts),
            ReplyTarget::Ring(place) => {
                if !std::mem::take(wanted) {
                    return false;
                }
                if asked.1 == -libc::EIO {
                    asked.0.log_eio();
                }
                place.put_parts(asked.1, parts);
                true
            }
        }
    }
}

fn transmit_reply(
    device: &Device,
    wanted: &mut bool,
    unique: u64,
    (asked, error): (RequestSummary, i32),
    parts: [&[u8]; 2],
) -> bool {
    if !std::mem::take(wanted) {
        return false;
    }
    if error == -libc::EIO {
        asked.log_eio();
    }
    let len = abi::OUT_HEADER_LEN + parts[0].len() + parts[1].len();
    let head = FixedReply::<16>::new().put_u32(len as u32).put_u32(error as u32).put_u64(unique);
    let slices = [IoSlice::new(head.as_bytes()), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
    let count = 3 - parts.iter().rev().take_while(|p| p.is_empty()).count();
    is_accepted(device.write(&slices[..count]), unique)
}

/// Returns whether the kernel accepted the reply.
fn is_accepted(sent: Result<(), Errno>, unique: u64) -> bool {
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
        self.count_idle();
        if self.wanted {
            let answer = (self.request, -libc::EIO);
            self.target.send_answer(&mut self.wanted, self.unique, answer, [&[], &[]]);
        }
    }
}
