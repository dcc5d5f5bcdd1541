//! The connection over which an executor takes back what it has delegated to us.

use crate::Client;
use crate::connection::Connection;
use crate::delegations::uptime;
use crate::executor::Executor;
use crate::lent::KernelCache;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::delegation::{HELD_MAX, RecallCall, RecallNote};
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::{Errno, ExecutorId, Ino};

/// First and longest pause before an executor that does not answer is tried again.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(250);
/// Longest pause before an executor that lets us in and then delegates nothing (its
/// disk may be full) is tried again.
const EMPTY_LONGEST: Duration = Duration::from_secs(5);
/// Pause before an executor is tried again that does not let us in.
const REFUSED: Duration = Duration::from_secs(60);
/// How long one wait for news is at most; after it, the next begins.
const WAIT: Duration = Duration::from_secs(60);
/// We tell that we are alive so many times in a term.
const SIGNS: u32 = 3;

impl Client {
    /// The executors that serve shards of the namespace.
    pub fn name_executors(&self) -> BTreeSet<ExecutorId> {
        self.map().shards.iter().copied().collect()
    }

    /// Lets `executor` delegate names to us, until `stop` is readable. It is a thread's
    /// whole work, and a front end's decision: what is delegated to us is answered
    /// without asking whether the user may look it up. Whoever calls this checks
    /// that himself, as the kernel does for a mount. Through [`Client::attr_time`] and [`Client::name_time`], `kernel`
    /// may keep some of it. Of `files` the executor is told before it serves anybody, should it be another one.
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
        let executor = self.executor(executor)?;
        self.ways.keep();
        if let Some(kernel) = kernel {
            executor.delegations.lend_to(kernel);
        }
        let mut pause = PAUSE;
        loop {
            let (shortest, longest) = match self.hold_once(executor, stop, files) {
                Ended::Stopped => return Ok(()),
                Ended::Lost => {
                    pause = PAUSE;
                    (PAUSE, PAUSE_LONGEST)
                }
                Ended::Away => (PAUSE, PAUSE_LONGEST),
                Ended::Empty => (PAUSE, EMPTY_LONGEST),
                Ended::Refused => (REFUSED, REFUSED),
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
    /// Those that are open for reading only.
    fn open(&self) -> Vec<Ino>;

    /// An executor knows that these were open. Of those that are not any more, it must hear again: what it heard may
    /// have come before.
    fn told(&self, inos: &[Ino]);
}

/// How holding delegations has ended.
enum Ended {
    /// It is time to stop.
    Stopped,
    /// The connection broke.
    Lost,
    /// There is no connection.
    Away,
    /// The connection broke before anything was delegated.
    Empty,
    /// The executor lets nobody like us in.
    Refused,
}

impl Client {
    fn hold_once(
        &self,
        executor: &Executor,
        stop: BorrowedFd<'_>,
        files: Option<&dyn OpenFiles>,
    ) -> Ended {
        let id = executor.id;
        let mut connection = match executor.connect_recalls() {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(executor = %id, %error, "nothing is delegated to us");
                return if error.may_pass() { Ended::Away } else { Ended::Refused };
            }
        };
        executor.delegations.begin();
        executor.locks.begin();
        // The daemon may be another one, and wait for us.
        self.locks.note(|news| _ = news.reclaim.insert(id));
        let mut kept = Vec::new();
        let ended = self.serve(&mut connection, executor, stop, files, &mut kept);
        let served = executor.delegations.are_on();
        // Before the connection is closed: that says that we have forgotten all.
        let names = executor.delegations.end();
        let now = uptime();
        let kept = kept.iter().map(|(until, _)| until.saturating_sub(now)).max();
        let names = kept.map_or(names, |kept| kept.max(names));
        if !names.is_zero() {
            is_readable(&[], names);
        }
        executor.locks.end();
        match ended {
            Ok(()) => Ended::Stopped,
            Err(error) => {
                tracing::debug!(executor = %id, %error, "recall connection ended");
                if served { Ended::Lost } else { Ended::Empty }
            }
        }
    }

    /// Serves one connection; `Ok` when it is time to stop. `kept` are recalls that wait for the kernel, and until
    /// when.
    fn serve(
        &self,
        connection: &mut Connection,
        executor: &Executor,
        stop: BorrowedFd<'_>,
        files: Option<&dyn OpenFiles>,
        kept: &mut Vec<(Duration, u64)>,
    ) -> Result<(), FrameError> {
        let mut told = self.tell_open(connection, executor.id, files)?;
        let mut asked = Some(uptime());
        connection.send(Class::Recall, 0, &RecallCall::Alive, &[])?;
        // Until the first answer tells it.
        let mut next = uptime() + WAIT;
        loop {
            let now = uptime();
            for (_, id) in kept.extract_if(.., |(until, _)| *until <= now) {
                connection.send(Class::Recall, 0, &RecallCall::Returned(id), &[])?;
            }
            let moved = files.is_some() && told.epoch != self.map().epoch;
            if moved && asked.is_none() {
                told = self.tell_open(connection, executor.id, files)?;
                next = now;
            }
            if now >= next && asked.is_none() {
                asked = Some(now);
                connection.send(Class::Recall, 0, &RecallCall::Alive, &[])?;
            }
            let wait = match asked {
                Some(_) => WAIT,
                None => next.saturating_sub(now),
            };
            let end = kept.iter().map(|(until, _)| until.saturating_sub(now)).min();
            let wait = end.map_or(wait, |end| wait.min(end));
            if !connection.has_input() && !is_readable(&[connection.as_fd(), stop], wait) {
                continue;
            }
            if is_readable(&[stop], Duration::ZERO) {
                return Ok(());
            }
            match connection.receive(Class::Recall, 0, &mut [])?.0 {
                RecallNote::Term { millis, lease, epoch, lasting, space } => {
                    self.hear_of_map(executor.id.node, epoch);
                    if let Some(space) = space {
                        self.told_space.note_with_term(executor.id.node, space);
                    }
                    let term = Duration::from_millis(millis.into());
                    if let Some(files) = files {
                        files.told(&std::mem::take(&mut told.inos));
                    }
                    if let Some(from) = asked.take() {
                        let lasting = Duration::from_millis(lasting.into());
                        self.ways.lasts(executor.id, from.saturating_sub(lasting), uptime());
                        executor.delegations.extend(from, term);
                        executor.locks.extend(from, Duration::from_millis(lease.into()));
                        next = from + term / SIGNS;
                    }
                }
                RecallNote::Locks { wanted, ready } => self.locks.note(|news| {
                    news.wanted.extend(wanted);
                    news.ready.extend(ready);
                }),
                RecallNote::Map { epoch } => self.hear_of_map(executor.id.node, epoch),
                RecallNote::Recall { id, inos } => match executor.delegations.recall(&inos) {
                    Duration::ZERO => {
                        connection.send(Class::Recall, 0, &RecallCall::Returned(id), &[])?;
                    }
                    names => kept.push((uptime() + names, id)),
                },
            }
        }
    }
}

/// What an executor was told of open files, by the map of an epoch.
struct Told {
    epoch: u64,
    inos: Vec<Ino>,
}

impl Client {
    /// Tells `executor` which of the open files are its concern.
    fn tell_open(
        &self,
        connection: &mut Connection,
        executor: ExecutorId,
        files: Option<&dyn OpenFiles>,
    ) -> Result<Told, FrameError> {
        let map = self.map();
        let mut inos = files.map(OpenFiles::open).unwrap_or_default();
        inos.retain(|ino| map.owner(ino.shard()) == Some(executor));
        for some in inos.chunks(HELD_MAX) {
            connection.send(Class::Recall, 0, &RecallCall::Holds(some.to_vec()), &[])?;
        }
        Ok(Told { epoch: map.epoch, inos })
    }
}

/// Waits until one of `fds` is readable, or has ended, or the time is over.
fn is_readable(fds: &[BorrowedFd<'_>], wait: Duration) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    // An interrupted wait is one that found nothing.
    poll(&mut fds, Some(&wait)).is_ok_and(|n| n > 0)
}
