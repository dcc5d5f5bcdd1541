//! Threads that take requests from rings: for each CPU at least one that is idle.
//!
//! The kernel gives a request to an idle entry of the program's CPU, the one that was used last. If
//! there is none, the request waits until a thread of this queue replies. That thread may wait for
//! a node, and the node for this request. So a thread that leaves no idle entry behind starts
//! another thread. A request that came before the new thread was ready still waits; a further one
//! frees it: see [`free_waiting_request`].
//!
//! Entries cannot be withdrawn from the kernel while the file system is mounted. So these threads
//! stay until the end.

use crate::mount_identity::MountIdentity;
use crate::reply::{Reply, RingOutcome, RingReply};
use crate::request::RequestHeader;
use crate::ring::{RequestPlace, RequestRing, possible_cpus};
use crate::session_state::{Handler, RingQueue, SessionShared, dispatch_request};
use crate::splice::ReplyBuffers;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;

const STACK_BYTES: usize = 1 << 20;
/// Room for the reply to a request that itself takes the memory of its entry. These replies have at
/// most 16 bytes.
const SHORT_REPLY: usize = 64;

/// Returns a queue without threads for each CPU.
///
/// # Errors
/// The number of CPUs is unknown.
pub(crate) fn make_queues() -> io::Result<Vec<RingQueue>> {
    Ok((0..possible_cpus()?).map(|_| RingQueue::default()).collect())
}

/// Starts the first threads. The kernel sends no request before each queue has an entry.
///
/// # Errors
/// A thread or a ring cannot be made.
pub(crate) fn start_ring_workers<H: Handler>(shared: &Arc<SessionShared<H>>) -> io::Result<()> {
    // Two, so that a request that comes while the first one is in service does not wait.
    let base = shared.threads.max.min(2);
    let (sender, started) = mpsc::channel();
    let queues = shared.queues.len() as u16;
    for queue in (0..queues).flat_map(|queue| std::iter::repeat_n(queue, base)) {
        let sender = sender.clone();
        spawn_ring_worker(shared, queue, move |result| drop(sender.send(result)))?;
    }
    drop(sender);
    started.into_iter().collect()
}

/// Starts a thread for `queue`. It calls `report` when its entry is registered, or cannot be.
fn spawn_ring_worker<H: Handler>(
    shared: &Arc<SessionShared<H>>,
    queue: u16,
    report: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<()> {
    let of_thread = shared.clone();
    let counts = &shared.queues[usize::from(queue)];
    // Counted before the thread runs, so that no other worker starts one for the same request.
    counts.threads.fetch_add(1, SeqCst);
    counts.idle.fetch_add(1, SeqCst);
    shared.total.fetch_add(1, SeqCst);
    let spawned = std::thread::Builder::new()
        .name(format!("fuse-cpu{queue}"))
        .stack_size(STACK_BYTES)
        .spawn(move || {
            bind_to_cpu(queue);
            match make_registered_ring(&of_thread, queue) {
                Ok(ring) => {
                    report(Ok(()));
                    run_ring_worker(&of_thread, queue, ring);
                }
                Err(error) => {
                    let counts = &of_thread.queues[usize::from(queue)];
                    counts.threads.fetch_sub(1, SeqCst);
                    counts.idle.fetch_sub(1, SeqCst);
                    report(Err(error));
                }
            }
            of_thread.count_ended_worker();
        });
    if spawned.is_err() {
        counts.threads.fetch_sub(1, SeqCst);
        counts.idle.fetch_sub(1, SeqCst);
        shared.total.fetch_sub(1, SeqCst);
    }
    spawned.map(|_| ())
}

/// Binds the thread to the CPU of its queue. A process that may not use this CPU still needs the
/// thread, because other processes do.
fn bind_to_cpu(cpu: u16) {
    let mut only = CpuSet::new();
    if usize::from(cpu) < CpuSet::MAX_CPU {
        only.set(usize::from(cpu));
        if let Err(errno) = sched_setaffinity(None, &only) {
            tracing::debug!(%errno, cpu, "a thread for requests is not bound to its CPU");
        }
    }
}

fn make_registered_ring<H>(shared: &SessionShared<H>, queue: u16) -> io::Result<RequestRing> {
    let mut ring = RequestRing::new(queue, shared.payload_len)?;
    ring.register(&shared.device)?;
    Ok(ring)
}

fn run_ring_worker<H: Handler>(shared: &Arc<SessionShared<H>>, queue: u16, mut ring: RequestRing) {
    let counts = &shared.queues[usize::from(queue)];
    let mut buffer = Vec::new();
    let mut room = ReplyBuffers::default();
    loop {
        let place = match ring.wait_for_request(&mut buffer) {
            Ok(place) => place,
            Err(error) => {
                let unmounted = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV];
                if !error.raw_os_error().is_some_and(|errno| unmounted.contains(&errno)) {
                    tracing::error!(%error, "waiting for requests of the kernel");
                }
                return;
            }
        };
        if counts.idle.fetch_sub(1, SeqCst) == 1 {
            start_another(shared, queue);
        }
        let (unique, outcome) =
            serve_request(shared, counts, place, (&mut ring, &buffer, &mut room));
        let (error, len) = match outcome {
            RingOutcome::Nothing => (0, 0),
            RingOutcome::Answered { error, len } => (error, len),
            RingOutcome::Deferred(result) => {
                // Such waits are of locks, and can be many and long. So they are not counted, and
                // do not delay the end.
                counts.threads.fetch_sub(1, SeqCst);
                if counts.idle.fetch_sub(1, SeqCst) == 1 {
                    start_another(shared, queue);
                }
                shared.count_ended_worker();
                let error = result.wait_for_result();
                shared.total.fetch_add(1, SeqCst);
                counts.threads.fetch_add(1, SeqCst);
                counts.idle.fetch_add(1, SeqCst);
                (error, 0)
            }
        };
        if let Err(error) = ring.queue_reply(unique, error, len) {
            tracing::error!(%error, "a reply could not be sent");
            return;
        }
    }
}

/// Serves one request. Returns its number and the result.
fn serve_request<H: Handler>(
    shared: &SessionShared<H>,
    counts: &RingQueue,
    place: RequestPlace,
    (ring, buffer, room): (&mut RequestRing, &[u8], &mut ReplyBuffers),
) -> (u64, RingOutcome) {
    let mut outcome = RingOutcome::default();
    let unique = |bytes| RequestHeader::parse(bytes).map_or(0, |header| header.unique);
    let number;
    match place {
        RequestPlace::Copied(len) => {
            let bytes = &buffer[..len];
            number = unique(bytes);
            let target = RingReply { body: ring.payload_mut(), outcome: &mut outcome };
            dispatch_request(shared, &counts.idle, bytes, |unique, _| {
                Reply::new_in_ring(target, room, unique)
            });
        }
        RequestPlace::InEntry { from, to } => {
            let mut short = [0; SHORT_REPLY];
            let bytes = ring.entry_bytes(from, to);
            number = unique(bytes);
            let target = RingReply { body: &mut short, outcome: &mut outcome };
            dispatch_request(shared, &counts.idle, bytes, |unique, _| {
                Reply::new_in_ring(target, room, unique)
            });
            ring.payload_mut()[..SHORT_REPLY].copy_from_slice(&short);
        }
    }
    (number, outcome)
}

/// Starts a thread, because the last idle one has got a request.
fn start_another<H: Handler>(shared: &Arc<SessionShared<H>>, queue: u16) {
    let counts = &shared.queues[usize::from(queue)];
    if counts.threads.load(SeqCst) >= shared.threads.max {
        return;
    }
    let mount = shared.mount.clone();
    let report = move |result: io::Result<()>| match result {
        Ok(()) => free_waiting_request(mount, queue),
        Err(error) => tracing::warn!(%error, "no further thread for requests"),
    };
    if let Err(error) = spawn_ring_worker(shared, queue, report) {
        tracing::warn!(%error, "no further thread for requests");
    }
}

/// Frees a request that came while no entry was idle. The kernel gives a new entry only to later
/// requests. So a short one is made on the same CPU: with its reply, the entry gets the first
/// request that waits.
fn free_waiting_request(mount: MountIdentity, queue: u16) {
    let ask = move || {
        bind_to_cpu(queue);
        if let Err(error) = mount.request_statistics() {
            tracing::debug!(%error, "a request to free others");
        }
    };
    // A thread of its own, because this one must take the request.
    if let Err(error) = std::thread::Builder::new().name("free-request".into()).spawn(ask) {
        tracing::warn!(%error, "requests may wait for others");
    }
}
