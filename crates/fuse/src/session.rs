//! Worker threads that read requests and call the handler, until the file system ends.
//!
//! Their number follows the load. While all threads are busy, one more is started, up to a bound.
//! So requests that wait for a remote node do not block all others.

use crate::abi;
use crate::device::Device;
use crate::eio_log::forget_cause;
use crate::init::NegotiatedFeatures;
use crate::mounting::Channel;
use crate::notify::Notifier;
use crate::reply::Reply;
use crate::request::{FuseOp, Request, RequestHeader};
use crate::splice::ReplyBuffers;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

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
    /// Most threads. It bounds the number of concurrently waiting requests.
    pub max: usize,
}

const STACK_BYTES: usize = 1 << 20;
/// Number of requests after which a thread ends if at least two threads were always idle. The
/// kernel wakes threads in rotation, so each needless thread makes all caches colder. But starting
/// a thread costs as much as a few requests.
const IDLE_WINDOW: usize = 1024;

struct SessionShared<H> {
    handler: Arc<H>,
    device: Arc<Device>,
    threads: ThreadLimits,
    buffer_len: usize,
    /// Threads that wait for a request, or will at once. A thread counts as idle before it sends
    /// its reply: the caller often sends its next request before the thread is back.
    idle: AtomicUsize,
    total: AtomicUsize,
    /// Requests read so far.
    requests: AtomicUsize,
    /// The fewest idle threads in the current window.
    least_idle: AtomicUsize,
    /// Set after an INTERRUPT was refused. After the refusal, a kernel never sends INTERRUPT again.
    refused_interrupt: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

/// A mounted file system in service.
pub struct FuseSession {
    channel: Channel,
    waiting: Arc<dyn SessionEnd>,
}

trait SessionEnd: Send + Sync {
    fn wait_until_end(&self, timeout: Option<Duration>) -> bool;
    fn device(&self) -> &Arc<Device>;
}

impl<H: Handler> SessionEnd for SessionShared<H> {
    fn wait_until_end(&self, timeout: Option<Duration>) -> bool {
        let mut ended = self.ended.lock();
        match timeout {
            None => self.end.wait_while(&mut ended, |ended| !*ended),
            Some(timeout) => {
                self.end.wait_while_for(&mut ended, |ended| !*ended, timeout);
            }
        }
        *ended
    }

    fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl FuseSession {
    /// Starts to serve the file system.
    ///
    /// # Errors
    /// No thread can be started. Then the file system is unmounted.
    pub fn start<H: Handler>(
        channel: Channel,
        agreed: &NegotiatedFeatures,
        handler: Arc<H>,
        threads: ThreadLimits,
    ) -> std::io::Result<FuseSession> {
        let base = threads.base.max(1);
        let shared = Arc::new(SessionShared {
            handler,
            device: channel.device().clone(),
            threads: ThreadLimits { base, max: threads.max.max(base) },
            buffer_len: agreed.max_write as usize + abi::REQUEST_OVERHEAD,
            idle: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            least_idle: AtomicUsize::new(usize::MAX),
            refused_interrupt: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        });
        for _ in 0..base {
            spawn_worker(&shared)?;
        }
        Ok(FuseSession { channel, waiting: shared })
    }

    /// Waits at most `timeout` until the file system is unmounted and all requests are answered.
    /// Returns whether both are so.
    pub fn wait_until_unmounted(&self, timeout: Option<Duration>) -> bool {
        self.waiting.wait_until_end(timeout)
    }

    /// Returns the mount, with the means to unmount it.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns a sender for notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.waiting.device().clone())
    }
}

fn spawn_worker<H: Handler>(shared: &Arc<SessionShared<H>>) -> std::io::Result<()> {
    let device = Arc::new(shared.device.open_clone().map_err(std::io::Error::from)?);
    // Counted before the thread runs, so that no other worker starts one for the same request.
    let number = shared.total.fetch_add(1, SeqCst);
    shared.idle.fetch_add(1, SeqCst);
    let of_thread = shared.clone();
    let spawned = std::thread::Builder::new()
        .name(format!("fuse-{number}"))
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let end = run_worker(&of_thread, &device);
            drop(device);
            if end == WorkerEnd::Unmounted && of_thread.total.fetch_sub(1, SeqCst) == 1 {
                *of_thread.ended.lock() = true;
                of_thread.end.notify_all();
            }
        });
    if spawned.is_err() {
        shared.idle.fetch_sub(1, SeqCst);
        shared.total.fetch_sub(1, SeqCst);
    }
    spawned.map(|_| ())
}

#[derive(PartialEq)]
enum WorkerEnd {
    Unmounted,
    NotNeeded,
}

fn run_worker<H: Handler>(shared: &Arc<SessionShared<H>>, device: &Arc<Device>) -> WorkerEnd {
    let mut buffer = vec![0; shared.buffer_len];
    let mut room = ReplyBuffers::default();
    loop {
        let len = match device.read(&mut buffer) {
            Ok(len) => len,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::CONNABORTED) => return WorkerEnd::Unmounted,
            Err(errno) => {
                tracing::error!(%errno, "reading requests of the kernel");
                return WorkerEnd::Unmounted;
            }
        };
        let forgets = RequestHeader::parse(&buffer[..len]).is_ok_and(|header| header.is_forget());
        // No caller waits for a FORGET, and its handling never blocks. The thread is back before a
        // new one could start, so it still counts as idle.
        let idle =
            if forgets { shared.idle.load(SeqCst) } else { shared.idle.fetch_sub(1, SeqCst) };
        let others = idle.saturating_sub(1);
        if others == 0
            && !forgets
            && shared.total.load(SeqCst) < shared.threads.max
            && let Err(error) = spawn_worker(shared)
        {
            tracing::warn!(%error, "no further thread for requests");
        }
        dispatch_request(shared, device, &buffer[..len], &mut room);
        if shared.is_one_too_many(others) {
            // `is_one_too_many` has already removed the thread from `total`.
            shared.idle.fetch_sub(1, SeqCst);
            return WorkerEnd::NotNeeded;
        }
    }
}

impl<H> SessionShared<H> {
    /// Decides whether a thread ends, after a request that left `others` threads idle. If so,
    /// removes it from `total`.
    fn is_one_too_many(&self, others: usize) -> bool {
        if others < self.least_idle.load(SeqCst) {
            self.least_idle.fetch_min(others, SeqCst);
        }
        if !(self.requests.fetch_add(1, SeqCst) + 1).is_multiple_of(IDLE_WINDOW) {
            return false;
        }
        // Keep one idle thread for the moment at which all others are busy.
        let fewer = |total: usize| (total > self.threads.base).then(|| total - 1);
        self.least_idle.swap(usize::MAX, SeqCst) > 1
            && self.total.fetch_update(SeqCst, SeqCst, fewer).is_ok()
    }
}

fn dispatch_request<H: Handler>(
    shared: &SessionShared<H>,
    device: &Arc<Device>,
    bytes: &[u8],
    room: &mut ReplyBuffers,
) {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(error) => {
            tracing::error!(%error, "a request of the kernel cannot be read");
            match RequestHeader::parse(bytes) {
                Ok(header) if header.is_forget() => {}
                Ok(header) => {
                    let reply = Reply::new(device, room, header.unique, true).with_header(&header);
                    reply.count_idle_in(&shared.idle).send_error(libc::EIO);
                }
                Err(_) => drop(shared.idle.fetch_add(1, SeqCst)),
            }
            return;
        }
    };
    let wanted =
        !matches!(request.op, FuseOp::Forget { .. } | FuseOp::BatchForget | FuseOp::Destroy);
    let reply =
        Reply::new(device, room, request.header.unique, wanted).with_header(&request.header);
    forget_cause();
    let reply = if request.header.is_forget() { reply } else { reply.count_idle_in(&shared.idle) };
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
