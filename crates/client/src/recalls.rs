//! The connection over which an executor recalls delegations.

use crate::Client;
use crate::connection::Connection;
use crate::executor::ExecutorClient;
use crate::kernel_table::KernelCache;
use crate::uptime::uptime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
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
    /// the kernel does for a mount. Through [`Client::attr_timeout`] and [`Client::entry_timeout`],
    /// `kernel` may cache some of it. The client reports `files` to the executor before it serves
    /// other clients, because the executor may be a new incarnation.
    ///
    /// # Errors
    /// `ENXIO` for an executor of a node that does not exist.
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
        let mut pause = PAUSE;
        loop {
            let (shortest, longest) = match self.hold_connection(executor, stop, files) {
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
            if is_readable(&[stop], pause) {
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
        let mut kept = Vec::new();
        let ended = self.serve_recalls(&mut connection, executor, stop, files, &mut kept);
        let served = executor.delegations.is_enabled();
        // Before the connection is closed: the close states that this client has forgotten
        // everything that was delegated.
        let names = executor.delegations.end_connection();
        let now = uptime();
        let kept = kept.iter().map(|(until, _)| until.saturating_sub(now)).max();
        let names = kept.map_or(names, |kept| kept.max(names));
        // The kernel may still use names: the connection stays open until their time has passed.
        if !names.is_zero() {
            is_readable(&[], names);
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

    /// Serves one connection; returns `Ok` when `stop` is readable. `kept` are recalls that wait
    /// for the kernel, and until when.
    fn serve_recalls(
        &self,
        connection: &mut Connection,
        executor: &ExecutorClient,
        stop: BorrowedFd<'_>,
        files: Option<&dyn OpenFiles>,
        kept: &mut Vec<(Duration, u64)>,
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
            // The kernel's time has passed: only now is the delegation given back.
            for (_, id) in kept.extract_if(.., |(until, _)| *until <= now) {
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
            let end = kept.iter().map(|(until, _)| until.saturating_sub(now)).min();
            let wait = end.map_or(wait, |end| wait.min(end));
            // A message may be in the buffer already: poll would not see it.
            if !connection.has_input() && !is_readable(&[connection.as_fd(), stop], wait) {
                continue;
            }
            if is_readable(&[stop], Duration::ZERO) {
                return Ok(());
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
                // The cache has dropped the facts when this returns. With time left for the
                // kernel's names, the reply waits, and the connection goes on serving.
                RecallNotice::Recall { id, inos } => {
                    match executor.delegations.handle_recall(&inos) {
                        Duration::ZERO => {
                            connection.send(
                                FrameClass::Recall,
                                0,
                                &RecallCall::Returned(id),
                                &[],
                            )?;
                        }
                        names => kept.push((uptime() + names, id)),
                    }
                }
            }
        }
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

/// Waits until one of `fds` is readable or closed, or until the time is over.
fn is_readable(fds: &[BorrowedFd<'_>], wait: Duration) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    // An interrupted wait counts as one without an event.
    poll(&mut fds, Some(&wait)).is_ok_and(|n| n > 0)
}
