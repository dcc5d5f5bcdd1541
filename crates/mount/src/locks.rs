//! Locks of flock(2) and fcntl(2) across mounts.
//!
//! A request for a lock that another owner has waits without a thread. The mount repeats it when
//! the shard's executor reports that the lock is free. The kernel keeps no list of remote locks,
//! and so does not free them. The mount frees the locks of a process when the process closes any
//! descriptor of the file (FLUSH has the owner), and those of an open file at its RELEASE. A
//! *silent* open file is read-only and was not expected to use locks. It gets no FLUSH, so the
//! mount frees its locks at its RELEASE.

use crate::errno::to_kernel_errno;
use crate::filesystem::FileSystem;
use crate::lock_waits::{EARLY_INTERRUPTS_MAX, LockWait};
use crate::open_file::OpenFile;
use crate::size::CommitReason;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tatami_client::{LOCK_RETRY_INTERVAL, LockNotices, LockOutcome, LockedBytes};
use tatami_fuse::request::FileLock;
use tatami_fuse::{Notifier, Reply, reply::DeferredReply};
use tatami_wire::lock::{ByteRange, Lock, LockKind, LockSort};
use tatami_wire::{Errno, Ino};

/// The kernel sends RELEASE after close(2) has returned. A lock of an open file with a close since
/// it was locked may be about to be freed. A request waits for that for this time before it fails.
const CLOSE_WAIT: Duration = Duration::from_millis(500);
/// Longest wait of the notification thread for news or for an executor.
const NOTICE_WAIT: Duration = Duration::from_secs(1);

/// The threads that repeat lock requests and return delegations. Dropping them ends them.
pub(crate) struct LockThreads {
    fs: Arc<FileSystem>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LockThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(crate) fn start(fs: &Arc<FileSystem>) -> std::io::Result<LockThreads> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut this = LockThreads { fs: fs.clone(), stop, threads: Vec::new() };
        let (fs, stop) = (this.fs.clone(), this.stop.clone());
        let news = std::thread::Builder::new().name("lock-news".into());
        this.threads.push(news.spawn(move || fs.watch_lock_notices(&stop))?);
        let fs = this.fs.clone();
        let waits = std::thread::Builder::new().name("lock-waits".into());
        this.threads.push(waits.spawn(move || fs.retry_locks())?);
        Ok(this)
    }
}

impl Drop for LockThreads {
    fn drop(&mut self) {
        // Set before the wake-up, so that the woken thread sees it.
        self.stop.store(true, SeqCst);
        self.fs.client.wake_lock_waiters();
        {
            let mut waits = self.fs.lock_waits.waits.lock();
            waits.ended = true;
            self.fs.lock_waits.changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            // The threads do not panic, and have no result.
            let _ = thread.join();
        }
    }
}

/// Decodes the requested lock; the kind is `None` for an unlock.
fn parse_lock(asked: &FileLock) -> Result<(LockSort, u64, ByteRange, Option<LockKind>), Errno> {
    let span = ByteRange { start: asked.start, end: asked.end };
    let kind = match asked.kind {
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    if !span.is_valid() {
        return Err(Errno::EINVAL);
    }
    Ok(match asked.whole {
        // The kernel may reuse its own id of an open file before this mount gets the RELEASE. So
        // the handle is the owner.
        true => (LockSort::Whole, asked.handle, ByteRange::ALL, kind),
        false => (LockSort::Range, asked.owner, span, kind),
    })
}

impl FileSystem {
    /// GETLK.
    pub(crate) fn get_lock(&self, ino: Ino, asked: &FileLock) -> Result<FileLock, Errno> {
        let (sort, owner, span, kind) = parse_lock(asked)?;
        let kind = kind.ok_or(Errno::EINVAL)?;
        let lock = Lock { sort, owner, pid: asked.pid, span, kind };
        let free = FileLock { kind: libc::F_UNLCK, ..*asked };
        Ok(self.client.test_lock(ino, &lock, self)?.map_or(free, |held| FileLock {
            start: held.span.start,
            end: held.span.end,
            kind: match held.kind {
                LockKind::Shared => libc::F_RDLCK,
                LockKind::Exclusive => libc::F_WRLCK,
            },
            pid: held.pid,
            ..*asked
        }))
    }

    /// SETLK and SETLKW.
    pub(crate) fn set_lock(
        &self,
        reply: Reply<'_>,
        unique: u64,
        ino: Ino,
        asked: &FileLock,
        wait: bool,
    ) {
        let answer = |reply: Reply<'_>, result: Result<(), Errno>| match result {
            Ok(()) => reply.send_success(),
            Err(e) => reply.send_error(to_kernel_errno(e)),
        };
        let (lock, file) = match self.resolve_lock(ino, asked) {
            Ok(Some(wanted)) => wanted,
            Ok(None) => {
                reply.send_success();
                return;
            }
            Err(e) => {
                reply.send_error(to_kernel_errno(e));
                return;
            }
        };
        if !file.lock_state.taken.swap(true, SeqCst) {
            self.lock_waits.record_used(ino);
        }
        // Earlier closes did not concern the lock that is now requested.
        file.lock_state.closed.store(false, SeqCst);
        let handle = asked.handle;
        if !wait {
            answer(reply, self.try_lock(ino, &lock, handle));
            return;
        }
        // Registered before the request to the node: an interrupt or a notification may come before
        // its reply.
        if !self.lock_waits.begin_wait(unique, ino, lock, handle) {
            reply.send_error(libc::EINTR);
            return;
        }
        let taken = self.client.set_lock(ino, &lock, handle, Some(unique), self);
        if taken == Ok(LockOutcome::Waits) {
            self.park_wait(unique, reply.into_deferred());
        } else {
            self.lock_waits.end_wait(unique);
            answer(reply, taken.map(drop));
        }
    }

    /// Returns the requested lock and its open file. For an unlock: frees the lock and returns
    /// `None`.
    fn resolve_lock(
        &self,
        ino: Ino,
        asked: &FileLock,
    ) -> Result<Option<(Lock, Arc<OpenFile>)>, Errno> {
        let (sort, owner, span, kind) = parse_lock(asked)?;
        let file = self.files.get(asked.handle).ok_or(Errno::EBADF)?;
        let Some(kind) = kind else {
            self.client.free_lock(ino, (sort, owner), span, self)?;
            return Ok(None);
        };
        if file.lock_state.lost.load(SeqCst) {
            return Err(lost_locks_error());
        }
        Ok(Some((Lock { sort, owner, pid: asked.pid, span, kind }, file)))
    }

    /// Tries to acquire a lock without waiting. A lock of an open file that is being closed does
    /// not count as a conflict.
    fn try_lock(&self, ino: Ino, lock: &Lock, handle: u64) -> Result<(), Errno> {
        let deadline = Instant::now() + CLOSE_WAIT;
        loop {
            // Read before the attempt, so that no release during the attempt is missed.
            let before = *self.lock_waits.releases.lock();
            let taken = self.client.set_lock(ino, lock, handle, None, self);
            let is_ending = |holder: &u64| {
                self.files.get(*holder).is_none_or(|file| file.lock_state.may_be_closed())
            };
            let again = taken == Err(Errno::EAGAIN)
                && self.client.conflicting_handles(ino, lock).iter().any(is_ending);
            if !again || !self.lock_waits.wait_for_release(before, deadline) {
                return taken.map(drop);
            }
        }
    }

    /// Stores the reply of a waiting request, unless the request was interrupted before.
    fn park_wait(&self, unique: u64, reply: DeferredReply) {
        let mut waits = self.lock_waits.waits.lock();
        let Some(wait) = waits.waits.get_mut(&unique) else { return };
        if !wait.interrupted {
            wait.reply = Some(reply);
            wait.retry_at = Instant::now() + LOCK_RETRY_INTERVAL;
            self.lock_waits.changed.notify_all();
            return;
        }
        // Interrupted while the request was under way, when the interrupt found no reply to end.
        let wait = waits.waits.remove(&unique);
        drop(waits);
        if let Some(wait) = wait {
            self.cancel_wait(unique, &wait, reply);
        }
    }

    /// Ends an interrupted request.
    fn cancel_wait(&self, unique: u64, wait: &LockWait, reply: DeferredReply) {
        let LockWait { ino, lock, handle, .. } = wait;
        let late = self.client.cancel_lock(*ino, lock, *handle, unique, self);
        reply.send_result(if late == Ok(true) { Ok(()) } else { Err(libc::EINTR) });
    }

    /// INTERRUPT.
    pub(crate) fn interrupt_lock(&self, unique: u64) {
        let mut waits = self.lock_waits.waits.lock();
        let Some(wait) = waits.waits.get_mut(&unique) else {
            // The kernel may send the interrupt before this process has read the request.
            if waits.early_interrupts.len() >= EARLY_INTERRUPTS_MAX {
                waits.early_interrupts.pop_front();
            }
            waits.early_interrupts.push_back(unique);
            return;
        };
        wait.interrupted = true;
        // Without a reply, a thread is just repeating the request. It will see the mark in
        // `wait_on`.
        let Some(reply) = wait.reply.take() else { return };
        let wait = waits.waits.remove(&unique);
        drop(waits);
        if let Some(wait) = wait {
            self.cancel_wait(unique, &wait, reply);
        }
    }

    /// Frees the locks of a process that closes a descriptor.
    pub(crate) fn free_locks_of_process(&self, file: &OpenFile, owner: u64) -> Result<(), Errno> {
        if file.lock_state.taken.load(SeqCst) {
            file.lock_state.closed.store(true, SeqCst);
        }
        self.client.free_lock(file.inode.ino, (LockSort::Range, owner), ByteRange::ALL, self)
    }

    /// Frees the locks of a released open file.
    pub(crate) fn free_locks_of_file(&self, file: &OpenFile, handle: u64) {
        if !file.lock_state.taken.load(SeqCst) {
            return;
        }
        let ino = file.inode.ino;
        if let Err(error) = self.client.free_locks_of(ino, handle, self) {
            tracing::warn!(%ino, %error, "the locks of a file that was closed are freed later");
        }
        *self.lock_waits.releases.lock() += 1;
        self.lock_waits.released.notify_all();
    }

    /// Checks that no other owner had the locks of `file` meanwhile.
    ///
    /// # Errors
    /// `EIO` if another owner may have had them; `EHOSTDOWN` if the node cannot be asked.
    pub(crate) fn check_locks(&self, file: &OpenFile) -> Result<(), Errno> {
        if !file.lock_state.taken.load(SeqCst) {
            return Ok(());
        }
        if !file.lock_state.lost.load(SeqCst) {
            self.client.check_locks(file.inode.ino, self)?;
        }
        match file.lock_state.lost.load(SeqCst) {
            true => Err(lost_locks_error()),
            false => Ok(()),
        }
    }

    fn retry_locks(&self) {
        while let Some((unique, ino, lock, handle, reply)) = self.lock_waits.next_retry() {
            let taken = self.client.set_lock(ino, &lock, handle, Some(unique), self);
            if taken == Ok(LockOutcome::Waits) {
                self.park_wait(unique, reply);
                continue;
            }
            self.lock_waits.end_wait(unique);
            let answered = reply.send_result(taken.map(drop).map_err(to_kernel_errno));
            if taken.is_ok() && !answered {
                // The requesting process is gone.
                let freed = self.client.free_lock(ino, (lock.sort, lock.owner), lock.span, self);
                if let Err(error) = freed {
                    tracing::warn!(%ino, %error, "a lock that nobody wants is freed later");
                }
            }
        }
    }

    fn watch_lock_notices(&self, stop: &AtomicBool) {
        while !stop.load(SeqCst) {
            let LockNotices { wanted, ready, reclaim } = self.client.take_lock_notices(NOTICE_WAIT);
            self.lock_waits.mark_ready(&ready);
            for executor in reclaim {
                if let Err(error) = self.client.reclaim_locks(executor, self) {
                    // A new connection to the executor triggers the next attempt.
                    tracing::warn!(%executor, %error, "it does not know which locks we hold");
                }
            }
            for ino in wanted {
                if let Err(error) = self.client.return_locks(ino, self) {
                    tracing::warn!(%ino, %error, "locks that others want are not given back yet");
                }
            }
        }
    }
}

impl LockedBytes for FileSystem {
    fn publish_writes(&self, ino: Ino) {
        let Some(inode) = self.open_inodes.get(ino) else { return };
        let Some(writer) = inode.state.lock().writer.clone() else { return };
        writer.wait_for_writes();
        if let Err(error) = self.commit_state(&inode, &writer, CommitReason::HandleStays) {
            tracing::warn!(%ino, %error, "others who lock the file may not see what was written");
        }
    }

    fn invalidate_cache(&self, ino: Ino) {
        // A program with a new lock must see the writes of the previous holder. So neither
        // attributes nor pages may be older than the lock.
        self.attr_cache.count_change();
        let cached = self.open_inodes.get(ino).is_some_and(|inode| inode.state.lock().no_backing);
        if cached && let Err(errno) = Notifier::new(self.device.clone()).inval_inode(ino.0, 0, 0) {
            tracing::debug!(%ino, %errno, "the kernel has nothing of a file that was locked");
        }
    }

    fn report_lost(&self, ino: Ino, handles: &BTreeSet<u64>) {
        tracing::error!(%ino, "locks of a file are lost; programs that had them get EIO");
        for handle in handles {
            if let Some(file) = self.files.get(*handle) {
                file.lock_state.lost.store(true, SeqCst);
            }
        }
    }
}

/// Returns the error for open files with lost locks.
fn lost_locks_error() -> Errno {
    tatami_client::record_cause(Errno::EIO, || {
        "the mount was away for longer than its lease, and has lost the locks of this open file"
            .into()
    });
    Errno::EIO
}
