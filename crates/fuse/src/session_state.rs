//! What the threads of a mounted file system share, and the handling of one request.

use crate::device::Device;
use crate::eio_log::forget_cause;
use crate::mount_identity::MountIdentity;
use crate::reply::Reply;
use crate::request::{FuseOp, Request, RequestHeader};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A file system. It replies to requests from many threads at once.
pub trait Handler: Send + Sync + 'static {
    /// Handles one request. FORGET, BATCH_FORGET and DESTROY have no reply. INTERRUPT and unknown
    /// operations are handled elsewhere.
    fn handle_request(self: &Arc<Self>, request: Request<'_>, reply: Reply<'_>);

    /// Handles a signal to the caller of request `unique`. The request may be answered already, or
    /// may not have arrived yet. Returns false if the handler never interrupts requests.
    fn interrupt_request(&self, unique: u64) -> bool {
        let _ = unique;
        false
    }
}

/// The number of worker threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimits {
    /// Number of threads that stay alive when idle.
    pub base: usize,
    /// Most threads, or most threads of each CPU. It bounds the number of concurrently waiting
    /// requests.
    pub max: usize,
}

/// The threads that take requests of one CPU from rings.
#[derive(Debug, Default)]
pub(crate) struct RingQueue {
    /// Threads that wait for a request.
    pub(crate) idle: AtomicUsize,
    /// All threads but those that wait for a deferred result.
    pub(crate) threads: AtomicUsize,
}

pub(crate) struct SessionShared<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) device: Arc<Device>,
    pub(crate) threads: ThreadLimits,
    pub(crate) buffer_len: usize,
    /// The queue of each CPU, if requests come over io_uring.
    pub(crate) queues: Vec<RingQueue>,
    /// Longest data of a request or reply, in bytes.
    pub(crate) payload_len: usize,
    pub(crate) mount: MountIdentity,
    /// Threads that wait for a request, or will at once. A thread counts as idle before it sends
    /// its reply: the caller often sends its next request before the thread is back.
    pub(crate) idle: AtomicUsize,
    pub(crate) total: AtomicUsize,
    /// Requests read so far.
    pub(crate) requests: AtomicUsize,
    /// The fewest idle threads in the current window.
    pub(crate) least_idle: AtomicUsize,
    /// Set after an INTERRUPT was refused. After the refusal, a kernel never sends INTERRUPT again.
    pub(crate) refused_interrupt: AtomicBool,
    pub(crate) ended: Mutex<bool>,
    pub(crate) end: Condvar,
}

impl<H> SessionShared<H> {
    /// Counts a thread that has ended because the file system is unmounted.
    pub(crate) fn count_ended_worker(&self) {
        if self.total.fetch_sub(1, SeqCst) == 1 {
            *self.ended.lock() = true;
            self.end.notify_all();
        }
    }
}

/// Handles the request in `bytes`. `make_reply` gets the request's number, and whether the kernel
/// waits for the reply. The thread counts as idle in `idle` from the reply on.
pub(crate) fn dispatch_request<'a, H: Handler>(
    shared: &SessionShared<H>,
    idle: &'a AtomicUsize,
    bytes: &[u8],
    make_reply: impl FnOnce(u64, bool) -> Reply<'a>,
) {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(error) => {
            tracing::error!(%error, "a request of the kernel cannot be read");
            match RequestHeader::parse(bytes) {
                Ok(header) if header.is_forget() => {}
                Ok(header) => {
                    let reply = make_reply(header.unique, true).with_header(&header);
                    reply.count_idle_in(idle).send_error(libc::EIO);
                }
                Err(_) => drop(idle.fetch_add(1, SeqCst)),
            }
            return;
        }
    };
    let wanted =
        !matches!(request.op, FuseOp::Forget { .. } | FuseOp::BatchForget(_) | FuseOp::Destroy);
    let reply = make_reply(request.header.unique, wanted).with_header(&request.header);
    forget_cause();
    let reply = if request.header.is_forget() { reply } else { reply.count_idle_in(idle) };
    match request.op {
        FuseOp::Unknown => {
            reply.send_error(libc::ENOSYS);
        }
        FuseOp::Interrupt { unique } if shared.handler.interrupt_request(unique) => {
            reply.send_nothing()
        }
        // Requests cannot be aborted, so an interrupted caller gets the normal reply. The refusal
        // prevents further INTERRUPTs.
        FuseOp::Interrupt { .. } if shared.refused_interrupt.swap(true, SeqCst) => {
            reply.send_nothing()
        }
        FuseOp::Interrupt { .. } => {
            reply.send_error(libc::ENOSYS);
        }
        _ => {
            // After a panic, dropping the reply sends EIO, and the thread continues.
            let handled =
                catch_unwind(AssertUnwindSafe(|| shared.handler.handle_request(request, reply)));
            if handled.is_err() {
                tracing::error!(op = request.header.opcode, "a request made its handler panic");
            }
        }
    }
}
