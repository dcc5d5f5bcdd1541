//! The connection over which an executor recalls delegations.

use crate::Client;
use crate::connection::Connection;
use crate::executor::ExecutorClient;
use crate::kernel_table::KernelCache;
use crate::lent_names::LentName;
use crate::name_revocation::NameRevocation;
use crate::uptime::uptime;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::delegation::{OPEN_FOR_READING_MAX, RecallCall, RecallNotice};
use tatami_wire::frame::{FrameClass, FrameError};
use tatami_wire::{Errno, ExecutorId, Ino};

/// First and longest pause before the client connects again to an executor that does not answer.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(250);
/// Longest pause before the client tries again an executor that accepts the connection and then
/// delegates nothing (its disk may be full).
const EMPTY_LONGEST: Duration = Duration::from_secs(5);
/// Pause before the client tries again an executor that refuses the connection.
const REFUSED: Duration = Duration::from_secs(60);
/// Longest single wait for a message; then the next wait begins.
const WAIT: Duration = Duration::from_secs(60);
/// The client renews its lease this many times in a term.
const SIGNS: u32 = 3;

impl Client {
    /// Returns the executors that serve shards of the namespace.
    pub fn name_executors(&self) -> BTreeSet<ExecutorId> {
        self.map().shards.iter().copied().collect()
    }

    /// Lets `executor` delegate names to this client, until `stop` is readable. This is a thread's
    /// whole work, and the front end must decide on it: the client answers from delegations without
    /// asking whether the user may look them up. So the caller must check permissions itself, as
    /// the kernel does for a mount. Through [`Client::attr_timeout`] and [`Client::name_timeout`],
    /// `kernel` may cache some of it. The client reports `files` to the executor before it serves
    /// other clients, because the executor may be a new incarnation.
    ///
    /// # Errors
    /// `ENXIO` for an executor of a node that does not exist, `EMFILE` or `ENFILE` without a
    /// descriptor for the thread.
    pub fn hold_delegations(
        &self,
        executor: ExecutorId,
        stop: BorrowedFd<'_>,
        kernel: Option<&Arc<dyn KernelCache>>,
        files: Option<&dyn OpenFiles>,
    ) -> Result<(), Errno> {
        let executor = self.executor_client(executor)?;
        self.unsynced_names.start_recording();
        if let Some(kernel) = kernel {
            executor.delegations.set_kernel(kernel);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|e| Errno(e.raw_os_error()))?;
        let wake = Arc::new(wake);
        let mut pause = PAUSE;
        loop {
            let (shortest, longest) = match self.hold_connection(executor, stop, &wake, files) {
                RecallEnd::Stopped => return Ok(()),
                RecallEnd::Lost => {
                    pause = PAUSE;
                    (PAUSE, PAUSE_LONGEST)
                }
                RecallEnd::Away => (PAUSE, PAUSE_LONGEST),
                RecallEnd::Empty => (PAUSE, EMPTY_LONGEST),
                RecallEnd::Refused => (REFUSED, REFUSED),
            };
            pause = pause.clamp(shortest, longest);
            if is_readable(stop, pause) {
                return Ok(());
            }
            pause *= 2;
        }
    }
}

/// Files that a front end has open with [`Client::open_noted`].
pub trait OpenFiles: Send + Sync {
    /// Returns the files that are open for reading only.
    fn list_read_only(&self) -> Vec<Ino>;

    /// Confirms that an executor knows that these files were open. The front end must report again
    /// the close of those that are not open any more: the earlier report may have come before this
    /// one.
    fn confirm_reported(&self, inos: &[Ino]);
}

/// How holding delegations has ended.
enum RecallEnd {
    /// `stop` is readable.
    Stopped,
    /// The connection broke.
    Lost,
    /// There is no connection.
    Away,
    /// The connection broke before anything was delegated.
    Empty,
    /// The executor refuses this client.
    Refused,
}

impl Client {
    fn hold_connection(
        &self,
        executor: &ExecutorClient,
        stop: BorrowedFd<'_>,
        wake: &Arc<OwnedFd>,
        files: Option<&dyn OpenFiles>,
    ) -> RecallEnd {
        let id = executor.id;
        let mut connection = match executor.connect_recalls() {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(executor = %id, %error, "nothing is delegated to us");
                return if error.is_transient() { RecallEnd::Away } else { RecallEnd::Refused };
            }
        };
        // Both begin before the first message is sent: the executor may delegate as soon as it has
        // read it.
        executor.delegations.begin_connection();
        executor.locks.begin_connection();
        // The daemon may be a new incarnation that waits for the client to reclaim its locks.
        self.locks.notify_waiters(|news| _ = news.reclaim.insert(id));
        let mut held = HeldReturns { waiting: Vec::new(), wake: wake.clone() };
        let ended = self.serve_recalls(&mut connection, executor, stop, files, &mut held);
        let served = executor.delegations.is_enabled();
        // No create is held back from here on; those that are wait for the next connection.
        self.held.end_executor(id);
        // Before the connection is closed: the close states that this client has forgotten
        // everything that was delegated.
        held.add(0, executor.delegations.end_connection(), executor.delegations.kernel());
        // The kernel may still use names: the connection stays open until it has dropped them.
        while let Some(left) = held.time_left() {
            held.wait_for_input([], left);
            held.take_ended();
        }
        executor.locks.end_connection();
        match ended {
            Ok(()) => RecallEnd::Stopped,
            Err(error) => {
                tracing::debug!(executor = %id, %error, "recall connection ended");
                if served { RecallEnd::Lost } else { RecallEnd::Empty }
            }
        }
    }

    /// Serves one connection; returns `Ok` when `stop` is readable. `held` are recalls that wait
    /// for the kernel.
    fn serve_recalls(
        &self,
        connection: &mut Connection,
        executor: &ExecutorClient,
        stop: BorrowedFd<'_>,
        files: Option<&dyn OpenFiles>,
        held: &mut HeldReturns,
    ) -> Result<(), FrameError> {
        // Open files come before the first `Alive`: a new incarnation of the daemon must know them
        // before it lets other clients remove them.
        let mut report = self.report_open_files(connection, executor.id, files)?;
        // Taken before the message is sent. The client counts its term from here and the daemon
        // from the receipt, so the client's term ends first.
        let mut asked = Some(uptime());
        connection.send(FrameClass::Recall, 0, &RecallCall::KeepAlive, &[])?;
        // Until the first reply sets it.
        let mut next = uptime() + WAIT;
        loop {
            let now = uptime();
            // The kernel has dropped the names: only now is the delegation given back.
            for id in held.take_ended() {
                connection.send(FrameClass::Recall, 0, &RecallCall::Returned(id), &[])?;
            }
            // Shards may have moved to this executor, and with them open files that it does not
            // know of.
            let moved = files.is_some() && report.epoch != self.map().epoch;
            if moved && asked.is_none() {
                report = self.report_open_files(connection, executor.id, files)?;
                next = now;
            }
            if now >= next && asked.is_none() {
                asked = Some(now);
                connection.send(FrameClass::Recall, 0, &RecallCall::KeepAlive, &[])?;
            }
            let wait = match asked {
                Some(_) => WAIT,
                None => next.saturating_sub(now),
            };
            let wait = held.time_left().map_or(wait, |left| wait.min(left));
            // A message may be in the buffer already: poll would not see it.
            let buffered = connection.has_input();
            let wait = if buffered { Duration::ZERO } else { wait };
            let [input, stopped] = held.wait_for_input([connection.as_fd(), stop], wait);
            if stopped {
                return Ok(());
            }
            if !input && !buffered {
                continue;
            }
            match connection.receive(FrameClass::Recall, 0, &mut [])?.0 {
                RecallNotice::Term {
                    term_millis: millis,
                    lease_millis: lease,
                    epoch,
                    durable_millis: lasting,
                    space,
                } => {
                    self.receive_map_epoch(executor.id.node, epoch);
                    if let Some(space) = space {
                        self.node_spaces.record_with_term(executor.id.node, space);
                    }
                    let term = Duration::from_millis(millis.into());
                    // The reply to `Alive` proves that the executor has read the `Holds` before it:
                    // messages of a connection are handled in order.
                    if let Some(files) = files {
                        files.confirm_reported(&std::mem::take(&mut report.inos));
                    }
                    if let Some(from) = asked.take() {
                        let lasting = Duration::from_millis(lasting.into());
                        // The executor computed `lasting` after it had read the message, so changes
                        // before `from - lasting` are durable.
                        self.unsynced_names.record_durable(
                            executor.id,
                            from.saturating_sub(lasting),
                            uptime(),
                        );
                        executor.delegations.extend_term(from, term);
                        // The executor may be a new incarnation, which knows of no directory that
                        // this client had.
                        self.make_all_held(self.held.list_stranded());
                        executor.locks.extend_lease(from, Duration::from_millis(lease.into()));
                        next = from + term / SIGNS;
                    }
                }
                RecallNotice::LockNotices { recalled: wanted, ready } => {
                    self.locks.notify_waiters(|news| {
                        news.wanted.extend(wanted);
                        news.ready.extend(ready);
                    })
                }
                RecallNotice::Map { epoch } => self.receive_map_epoch(executor.id.node, epoch),
                // The cache has dropped the facts when this returns. Only with names in the kernel
                // the reply waits, and the connection goes on serving.
                RecallNotice::Recall { id, inos, entries } => {
                    // Others see these directories next, so nothing in them is held back any more.
                    self.make_all_held(self.held.end_directories(inos.iter().chain(&entries)));
                    let names = executor.delegations.handle_recall(&inos, &entries);
                    if names.is_empty() {
                        connection.send(FrameClass::Recall, 0, &RecallCall::Returned(id), &[])?;
                    } else {
                        held.add(id, names, executor.delegations.kernel());
                    }
                }
            }
        }
    }
}

/// Recalls whose answers wait until the kernel has dropped names, by their numbers.
struct HeldReturns {
    waiting: Vec<(u64, Arc<NameRevocation>)>,
    /// An eventfd, readable when the kernel has dropped some.
    wake: Arc<OwnedFd>,
}

impl HeldReturns {
    fn add(&mut self, id: u64, names: Vec<LentName>, kernel: Option<&dyn KernelCache>) {
        self.waiting.push((id, NameRevocation::start_revocation(names, kernel, &self.wake)));
    }

    /// Removes the recalls that can be answered now, and returns their numbers.
    fn take_ended(&mut self) -> Vec<u64> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let now = uptime();
        self.waiting
            .extract_if(.., |(_, names)| names.end_time() <= now)
            .map(|(id, _)| id)
            .collect()
    }

    /// Returns how long the first of them waits at most. `None` when none waits.
    fn time_left(&self) -> Option<Duration> {
        let end = self.waiting.iter().map(|(_, names)| names.end_time()).min()?;
        Some(end.saturating_sub(uptime()))
    }

    /// Waits until one of `fds` is readable, the kernel has dropped names, or the time is over.
    /// Returns which of `fds` are readable.
    fn wait_for_input<const N: usize>(
        &self,
        fds: [BorrowedFd<'_>; N],
        wait: Duration,
    ) -> [bool; N] {
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        polled.push(wake);
        let events = poll_until(&mut polled, wait);
        if polled.last().is_some_and(|wake| events && !wake.revents().is_empty()) {
            // The count means nothing.
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
        std::array::from_fn(|n| events && !polled[n].revents().is_empty())
    }
}

/// The open files that an executor knows, and the epoch of the map that selected them.
struct ReportedFiles {
    epoch: u64,
    inos: Vec<Ino>,
}

impl Client {
    /// Reports to `executor` the open files whose shards it serves.
    fn report_open_files(
        &self,
        connection: &mut Connection,
        executor: ExecutorId,
        files: Option<&dyn OpenFiles>,
    ) -> Result<ReportedFiles, FrameError> {
        let map = self.map();
        let mut inos = files.map(OpenFiles::list_read_only).unwrap_or_default();
        inos.retain(|ino| map.owner(ino.owner_shard()) == Some(executor));
        for some in inos.chunks(OPEN_FOR_READING_MAX) {
            connection.send(
                FrameClass::Recall,
                0,
                &RecallCall::OpenForReading(some.to_vec()),
                &[],
            )?;
        }
        Ok(ReportedFiles { epoch: map.epoch, inos })
    }
}

/// Waits until `fd` is readable or closed, or until the time is over.
fn is_readable(fd: BorrowedFd<'_>, wait: Duration) -> bool {
    poll_until(&mut [PollFd::new(&fd, PollFlags::IN)], wait)
}

/// Waits for an event of `fds`, or until the time is over. Returns whether there was one.
fn poll_until(fds: &mut [PollFd<'_>], wait: Duration) -> bool {
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    // An interrupted wait counts as one without an event.
    poll(fds, Some(&wait)).is_ok_and(|n| n > 0)
}
