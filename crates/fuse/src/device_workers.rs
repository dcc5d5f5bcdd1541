//! Threads that read requests from the device. Their number follows the load. While all threads are
//! busy, one more is started, up to a bound. So requests that wait for a remote node do not block
//! all others.

use crate::device::Device;
use crate::reply::Reply;
use crate::request::RequestHeader;
use crate::session_state::{Handler, SessionShared, dispatch_request};
use crate::splice::ReplyBuffers;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const STACK_BYTES: usize = 1 << 20;
/// Number of requests after which a thread ends if at least two threads were always idle. The
/// kernel wakes threads in rotation, so each needless thread makes all caches colder. But starting
/// a thread costs as much as a few requests.
const IDLE_WINDOW: usize = 1024;

/// Starts one thread.
///
/// # Errors
/// No descriptor or no thread can be had.
pub(crate) fn spawn_device_worker<H: Handler>(
    shared: &Arc<SessionShared<H>>,
) -> std::io::Result<()> {
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
            if end == WorkerEnd::Unmounted {
                of_thread.count_ended_worker();
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
            && shared.queues.is_empty()
            && shared.total.load(SeqCst) < shared.threads.max
            && let Err(error) = spawn_device_worker(shared)
        {
            tracing::warn!(%error, "no further thread for requests");
        }
        dispatch_request(shared, &shared.idle, &buffer[..len], |unique, wanted| {
            Reply::new(device, &mut room, unique, wanted)
        });
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
