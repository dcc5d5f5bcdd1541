//! Worker threads that read requests and call the handler, until the file system ends.
//!
//! Their number follows the load. While all threads are busy, one more is started, up to a bound.
//! So requests that wait for a remote node do not block all others.

use crate::abi;
use crate::device::Device;
use crate::init::Negotiated;
use crate::mounting::Channel;
use crate::notify::Notifier;
use crate::passage::Room;
use crate::reply::Reply;
use crate::request::{Header, Op, Request};
use crate::trouble::forget_cause;
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
    fn handle(self: &Arc<Self>, request: Request<'_>, reply: Reply<'_>);

    /// Handles a signal to the caller of request `unique`. The request may be answered already, or
    /// may not have arrived yet. Returns false if the handler never interrupts requests.
    fn interrupt(&self, unique: u64) -> bool {
        let _ = unique;
        false
    }
}

/// The number of worker threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Number of threads that stay alive when idle.
    pub base: usize,
    /// Most threads. It bounds the number of concurrently waiting requests.
    pub max: usize,
}

const STACK_BYTES: usize = 1 << 20;
/// Number of requests after which a thread ends if at least two threads were always idle. The
/// kernel wakes threads in rotation, so each needless thread makes all caches colder. But starting
/// a thread costs as much as a few requests.
const WINDOW: usize = 1024;

struct Shared<H> {
    handler: Arc<H>,
    device: Arc<Device>,
    threads: Threads,
    buffer_len: usize,
    /// Threads that wait for a request, or will at once. A thread counts as idle before it sends
    /// its reply: the caller often sends its next request before the thread is back.
    idle: AtomicUsize,
    total: AtomicUsize,
    /// Requests read so far.
    taken: AtomicUsize,
    /// The fewest idle threads in the current window.
    spare: AtomicUsize,
    /// Set after an INTERRUPT was refused. After the refusal, a kernel never sends INTERRUPT again.
    refused_interrupt: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

/// A mounted file system in service.
pub struct Session {
    channel: Channel,
    waiting: Arc<dyn Waiting>,
}

trait Waiting: Send + Sync {
    fn wait(&self, timeout: Option<Duration>) -> bool;
    fn device(&self) -> &Arc<Device>;
}

impl<H: Handler> Waiting for Shared<H> {
    fn wait(&self, timeout: Option<Duration>) -> bool {
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

impl Session {
    /// Starts to serve the file system.
    ///
    /// # Errors
    /// No thread can be started. Then the file system is unmounted.
    pub fn start<H: Handler>(
        channel: Channel,
        agreed: &Negotiated,
        handler: Arc<H>,
        threads: Threads,
    ) -> std::io::Result<Session> {
        let base = threads.base.max(1);
        let shared = Arc::new(Shared {
            handler,
            device: channel.device().clone(),
            threads: Threads { base, max: threads.max.max(base) },
            buffer_len: agreed.max_write as usize + abi::REQUEST_OVERHEAD,
            idle: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            spare: AtomicUsize::new(usize::MAX),
            refused_interrupt: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        });
        for _ in 0..base {
            spawn(&shared)?;
        }
        Ok(Session { channel, waiting: shared })
    }

    /// Waits at most `timeout` until the file system is unmounted and all requests are answered.
    /// Returns whether both are so.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.waiting.wait(timeout)
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

fn spawn<H: Handler>(shared: &Arc<Shared<H>>) -> std::io::Result<()> {
    let device = Arc::new(shared.device.another().map_err(std::io::Error::from)?);
    // Counted before the thread runs, so that no other worker starts one for the same request.
    let number = shared.total.fetch_add(1, SeqCst);
    shared.idle.fetch_add(1, SeqCst);
    let of_thread = shared.clone();
    let spawned = std::thread::Builder::new()
        .name(format!("fuse-{number}"))
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let end = work(&of_thread, &device);
            drop(device);
            if end == End::Unmounted && of_thread.total.fetch_sub(1, SeqCst) == 1 {
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
enum End {
    Unmounted,
    NotNeeded,
}

fn work<H: Handler>(shared: &Arc<Shared<H>>, device: &Arc<Device>) -> End {
    let mut buffer = vec![0; shared.buffer_len];
    let mut room = Room::default();
    loop {
        let len = match device.read(&mut buffer) {
            Ok(len) => len,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::CONNABORTED) => return End::Unmounted,
            Err(errno) => {
                tracing::error!(%errno, "reading requests of the kernel");
                return End::Unmounted;
            }
        };
        let forgets = Header::parse(&buffer[..len]).is_ok_and(|header| header.forgets());
        // No caller waits for a FORGET, and its handling never blocks. The thread is back before a
        // new one could start, so it still counts as idle.
        let idle =
            if forgets { shared.idle.load(SeqCst) } else { shared.idle.fetch_sub(1, SeqCst) };
        let others = idle.saturating_sub(1);
        if others == 0
            && !forgets
            && shared.total.load(SeqCst) < shared.threads.max
            && let Err(error) = spawn(shared)
        {
            tracing::warn!(%error, "no further thread for requests");
        }
        dispatch(shared, device, &buffer[..len], &mut room);
        if shared.is_one_too_many(others) {
            // `is_one_too_many` has already removed the thread from `total`.
            shared.idle.fetch_sub(1, SeqCst);
            return End::NotNeeded;
        }
    }
}

impl<H> Shared<H> {
    /// Decides whether a thread ends, after a request that left `others` threads idle. If so,
    /// removes it from `total`.
    fn is_one_too_many(&self, others: usize) -> bool {
        if others < self.spare.load(SeqCst) {
            self.spare.fetch_min(others, SeqCst);
        }
        if !(self.taken.fetch_add(1, SeqCst) + 1).is_multiple_of(WINDOW) {
            return false;
        }
        // Keep one idle thread for the moment at which all others are busy.
        let fewer = |total: usize| (total > self.threads.base).then(|| total - 1);
        self.spare.swap(usize::MAX, SeqCst) > 1
            && self.total.fetch_update(SeqCst, SeqCst, fewer).is_ok()
    }
}

fn dispatch<H: Handler>(shared: &Shared<H>, device: &Arc<Device>, bytes: &[u8], room: &mut Room) {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(error) => {
            tracing::error!(%error, "a request of the kernel cannot be read");
            match Header::parse(bytes) {
                Ok(header) if header.forgets() => {}
                Ok(header) => {
                    let reply = Reply::new(device, room, header.unique, true).to(&header);
                    reply.counted(&shared.idle).error(libc::EIO);
                }
                Err(_) => drop(shared.idle.fetch_add(1, SeqCst)),
            }
            return;
        }
    };
    let wanted = !matches!(request.op, Op::Forget { .. } | Op::BatchForget | Op::Destroy);
    let reply = Reply::new(device, room, request.header.unique, wanted).to(&request.header);
    forget_cause();
    let reply = if request.header.forgets() { reply } else { reply.counted(&shared.idle) };
    match request.op {
        Op::Unknown => {
            reply.error(libc::ENOSYS);
        }
        Op::Interrupt { unique } if shared.handler.interrupt(unique) => reply.none(),
        // Requests cannot be aborted, so an interrupted caller gets the normal reply. The refusal
        // prevents further INTERRUPTs.
        Op::Interrupt { .. } if shared.refused_interrupt.swap(true, SeqCst) => reply.none(),
        Op::Interrupt { .. } => {
            reply.error(libc::ENOSYS);
        }
        _ => {
            // After a panic, dropping the reply sends EIO, and the thread continues.
            let handled = catch_unwind(AssertUnwindSafe(|| shared.handler.handle(request, reply)));
            if handled.is_err() {
                tracing::error!(op = request.header.opcode, "a request made its handler panic");
            }
        }
    }
}
