//! Locks: what programs ask for by flock(2) and fcntl(2), across mounts.
//!
//! A lock that somebody else holds is waited for without a thread: the request is answered when the
//! executor of its shard says that it may be asked for again. The kernel keeps no list of locks that come to us, so
//! it does not free them either: those of a process go with any of its descriptors of the file (FLUSH tells the
//! owner), those of an open file with that (RELEASE). An open file for reading only of which it was not
//! foreseen that it will be used for locks is *silent*: we hear of its end only, and free all by then.

use crate::errno::to_kernel;
use crate::file::OpenFile;
use crate::filesystem::FileSystem;
use crate::size::Occasion;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tatami_client::{ASK_AGAIN, LockNews, LockedBytes, Taken};
use tatami_fuse::request::FileLock;
use tatami_fuse::{Notifier, Reply, reply::Later};
use tatami_wire::lock::{Lock, LockKind, LockSort, Span};
use tatami_wire::{Errno, Ino, hash};

/// Interruptions remembered of requests that have not come yet.
const EARLY_MAX: usize = 1024;
/// The kernel tells of the end of an open file after close(2) has returned. A lock of one that has been
/// closed by somebody since it was taken is waited for so long before it counts as held.
const CLOSE_WAIT: Duration = Duration::from_millis(500);
/// Files remembered in which locks have been used; beyond, all are forgotten.
const USED_MAX: usize = 64 * 1024;
/// Pause of the thread for news when there is none, or an executor does not answer.
const NEWS_WAIT: Duration = Duration::from_secs(1);

/// What an open file has to do with locks.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    /// Locks were taken through it.
    taken: AtomicBool,
    /// Somebody has closed it since.
    closed: AtomicBool,
    /// They were lost, and others may have had them.
    lost: AtomicBool,
    /// Nobody tells when somebody closes it.
    silent: bool,
}

impl Locked {
    pub(crate) fn new(silent: bool) -> Locked {
        Locked { silent, ..Locked::default() }
    }

    /// Whether it may have ended without our having heard of it.
    fn may_have_ended(&self) -> bool {
        self.silent || self.closed.load(SeqCst)
    }
}

/// A lock that is waited for.
struct Wait {
    ino: Ino,
    lock: Lock,
    handle: u64,
    /// Gone while the lock is being asked for.
    reply: Option<Later>,
    /// It is worth while to ask.
    ready: bool,
    interrupted: bool,
    /// When it is asked for again in any case.
    next: Instant,
}

#[derive(Default)]
struct Waits {
    /// By the number of the request.
    waits: HashMap<u64, Wait, hash::Build>,
    early: VecDeque<u64>,
    ended: bool,
}

/// All locks that are waited for.
#[derive(Default)]
pub(crate) struct Waiting {
    waits: Mutex<Waits>,
    changed: Condvar,
    /// Files in which locks have been used.
    used: Mutex<HashSet<Ino, hash::Build>>,
    any_used: AtomicBool,
    /// Open files that have ended, for those who wait for that.
    ends: Mutex<u64>,
    ended: Condvar,
}

/// The threads that ask for locks again, and give back what was delegated. Dropped, they end.
pub(crate) struct LockThreads {
    fs: Arc<FileSystem>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LockThreads {
    /// Starts them.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(crate) fn start(fs: &Arc<FileSystem>) -> std::io::Result<LockThreads> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut this = LockThreads { fs: fs.clone(), stop, threads: Vec::new() };
        let (fs, stop) = (this.fs.clone(), this.stop.clone());
        let news = std::thread::Builder::new().name("lock-news".into());
        this.threads.push(news.spawn(move || fs.hear_of_locks(&stop))?);
        let fs = this.fs.clone();
        let waits = std::thread::Builder::new().name("lock-waits".into());
        this.threads.push(waits.spawn(move || fs.ask_again())?);
        Ok(this)
    }
}

impl Drop for LockThreads {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        self.fs.client.wake_for_locks();
        {
            let mut waits = self.fs.waiting.waits.lock();
            waits.ended = true;
            self.fs.waiting.changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            // They do not panic, and their result is nothing.
            let _ = thread.join();
        }
    }
}

/// The lock that is meant, if it is one; `None` to free it.
fn wanted(asked: &FileLock) -> Result<(LockSort, u64, Span, Option<LockKind>), Errno> {
    let span = Span { start: asked.start, end: asked.end };
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
        // The kernel's number of an open file may be used again before we hear of its end.
        true => (LockSort::Whole, asked.handle, Span::ALL, kind),
        false => (LockSort::Range, asked.owner, span, kind),
    })
}

impl FileSystem {
    /// GETLK.
    pub(crate) fn get_lock(&self, ino: Ino, asked: &FileLock) -> Result<FileLock, Errno> {
        let (sort, owner, span, kind) = wanted(asked)?;
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
    pub(crate) fn lock(
        &self,
        reply: Reply<'_>,
        unique: u64,
        ino: Ino,
        asked: &FileLock,
        wait: bool,
    ) {
        let answer = |reply: Reply<'_>, result: Result<(), Errno>| match result {
            Ok(()) => reply.done(),
            Err(e) => reply.error(to_kernel(e)),
        };
        let (lock, file) = match self.lock_wanted(ino, asked) {
            Ok(Some(wanted)) => wanted,
            Ok(None) => {
                reply.done();
                return;
            }
            Err(e) => {
                reply.error(to_kernel(e));
                return;
            }
        };
        if !file.locked.taken.swap(true, SeqCst) {
            self.waiting.note_used(ino);
        }
        file.locked.closed.store(false, SeqCst);
        let handle = asked.handle;
        if !wait {
            answer(reply, self.lock_at_once(ino, &lock, handle));
            return;
        }
        if !self.waiting.begin(unique, ino, lock, handle) {
            reply.error(libc::EINTR);
            return;
        }
        let taken = self.client.set_lock(ino, &lock, handle, Some(unique), self);
        if taken == Ok(Taken::Waits) {
            self.wait_on(unique, reply.later());
        } else {
            self.waiting.end(unique);
            answer(reply, taken.map(drop));
        }
    }

    /// The lock to be taken, and through which file; `None` where one was to be freed, and is.
    fn lock_wanted(
        &self,
        ino: Ino,
        asked: &FileLock,
    ) -> Result<Option<(Lock, Arc<OpenFile>)>, Errno> {
        let (sort, owner, span, kind) = wanted(asked)?;
        let file = self.files.get(asked.handle).ok_or(Errno::EBADF)?;
        let Some(kind) = kind else {
            self.client.free_lock(ino, (sort, owner), span, self)?;
            return Ok(None);
        };
        if file.locked.lost.load(SeqCst) {
            return Err(locks_are_lost());
        }
        Ok(Some((Lock { sort, owner, pid: asked.pid, span, kind }, file)))
    }

    /// Takes a lock, or not. One of an open file that is just ending is no obstacle.
    fn lock_at_once(&self, ino: Ino, lock: &Lock, handle: u64) -> Result<(), Errno> {
        let deadline = Instant::now() + CLOSE_WAIT;
        loop {
            let before = *self.waiting.ends.lock();
            let taken = self.client.set_lock(ino, lock, handle, None, self);
            let is_ending = |holder: &u64| {
                self.files.get(*holder).is_none_or(|file| file.locked.may_have_ended())
            };
            let again = taken == Err(Errno::EAGAIN)
                && self.client.own_holders(ino, lock).iter().any(is_ending);
            if !again || !self.waiting.wait_for_end(before, deadline) {
                return taken.map(drop);
            }
        }
    }

    /// A request waits from now on, unless there is a reason why not.
    fn wait_on(&self, unique: u64, reply: Later) {
        let mut waits = self.waiting.waits.lock();
        let Some(wait) = waits.waits.get_mut(&unique) else { return };
        if !wait.interrupted {
            wait.reply = Some(reply);
            wait.next = Instant::now() + ASK_AGAIN;
            self.waiting.changed.notify_all();
            return;
        }
        let wait = waits.waits.remove(&unique);
        drop(waits);
        if let Some(wait) = wait {
            self.give_up(unique, &wait, reply);
        }
    }

    /// Whoever waits was interrupted.
    fn give_up(&self, unique: u64, wait: &Wait, reply: Later) {
        let Wait { ino, lock, handle, .. } = wait;
        let late = self.client.cancel_lock(*ino, lock, *handle, unique, self);
        reply.answer(if late == Ok(true) { Ok(()) } else { Err(libc::EINTR) });
    }

    /// INTERRUPT.
    pub(crate) fn interrupt_lock(&self, unique: u64) {
        let mut waits = self.waiting.waits.lock();
        let Some(wait) = waits.waits.get_mut(&unique) else {
            if waits.early.len() >= EARLY_MAX {
                waits.early.pop_front();
            }
            waits.early.push_back(unique);
            return;
        };
        wait.interrupted = true;
        let Some(reply) = wait.reply.take() else { return };
        let wait = waits.waits.remove(&unique);
        drop(waits);
        if let Some(wait) = wait {
            self.give_up(unique, &wait, reply);
        }
    }

    /// Frees what a process holds that closes a descriptor.
    pub(crate) fn free_locks_of_process(&self, file: &OpenFile, owner: u64) -> Result<(), Errno> {
        if file.locked.taken.load(SeqCst) {
            file.locked.closed.store(true, SeqCst);
        }
        self.client.free_lock(file.inode.ino, (LockSort::Range, owner), Span::ALL, self)
    }

    /// Frees what an open file holds that has ended.
    pub(crate) fn free_locks_of_file(&self, file: &OpenFile, handle: u64) {
        if !file.locked.taken.load(SeqCst) {
            return;
        }
        let ino = file.inode.ino;
        if let Err(error) = self.client.free_locks_of(ino, handle, self) {
            tracing::warn!(%ino, %error, "the locks of a file that was closed are freed later");
        }
        *self.waiting.ends.lock() += 1;
        self.waiting.ended.notify_all();
    }

    /// Makes sure that nobody else had the locks that were taken through `file`.
    ///
    /// # Errors
    /// `EIO` where somebody may have had them; `EHOSTDOWN` where nobody knows.
    pub(crate) fn check_locks(&self, file: &OpenFile) -> Result<(), Errno> {
        if !file.locked.taken.load(SeqCst) {
            return Ok(());
        }
        if !file.locked.lost.load(SeqCst) {
            self.client.check_locks(file.inode.ino, self)?;
        }
        match file.locked.lost.load(SeqCst) {
            true => Err(locks_are_lost()),
            false => Ok(()),
        }
    }

    fn ask_again(&self) {
        while let Some((unique, ino, lock, handle, reply)) = self.waiting.next() {
            let taken = self.client.set_lock(ino, &lock, handle, Some(unique), self);
            if taken == Ok(Taken::Waits) {
                self.wait_on(unique, reply);
                continue;
            }
            self.waiting.end(unique);
            let answered = reply.answer(taken.map(drop).map_err(to_kernel));
            if taken.is_ok() && !answered {
                // Whoever wanted it is gone.
                let freed = self.client.free_lock(ino, (lock.sort, lock.owner), lock.span, self);
                if let Err(error) = freed {
                    tracing::warn!(%ino, %error, "a lock that nobody wants is freed later");
                }
            }
        }
    }

    fn hear_of_locks(&self, stop: &AtomicBool) {
        while !stop.load(SeqCst) {
            let LockNews { wanted, ready, reclaim } = self.client.lock_news(NEWS_WAIT);
            self.waiting.note_ready(&ready);
            for executor in reclaim {
                if let Err(error) = self.client.reclaim_locks(executor, self) {
                    // When it is back, there is a new connection, and it is tried again.
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
    fn tell(&self, ino: Ino) {
        let Some(inode) = self.open.find(ino) else { return };
        let Some(writer) = inode.state.lock().writer.clone() else { return };
        writer.settle();
        if let Err(error) = self.commit(&inode, &writer, Occasion::Open) {
            tracing::warn!(%ino, %error, "others who lock the file may not see what was written");
        }
    }

    fn forget(&self, ino: Ino) {
        self.known.changed();
        let cached = self.open.find(ino).is_some_and(|inode| inode.state.lock().through_us);
        if cached && let Err(errno) = Notifier::new(self.device.clone()).inval_inode(ino.0, 0, 0) {
            tracing::debug!(%ino, %errno, "the kernel has nothing of a file that was locked");
        }
    }

    fn lost(&self, ino: Ino, handles: &BTreeSet<u64>) {
        tracing::error!(%ino, "locks of a file are lost; programs that had them get EIO");
        for handle in handles {
            if let Some(file) = self.files.get(*handle) {
                file.locked.lost.store(true, SeqCst);
            }
        }
    }
}

impl Waiting {
    fn note_used(&self, ino: Ino) {
        let mut used = self.used.lock();
        if used.len() >= USED_MAX {
            used.clear();
        }
        used.insert(ino);
        self.any_used.store(true, SeqCst);
    }

    /// Whether locks of the file have been used through this mount.
    pub(crate) fn are_used(&self, ino: Ino) -> bool {
        self.any_used.load(SeqCst) && self.used.lock().contains(&ino)
    }

    /// A request begins to wait, perhaps. False if it was interrupted before.
    fn begin(&self, unique: u64, ino: Ino, lock: Lock, handle: u64) -> bool {
        let mut waits = self.waits.lock();
        if let Some(at) = waits.early.iter().position(|early| *early == unique) {
            waits.early.remove(at);
            return false;
        }
        let (reply, ready, interrupted, next) = (None, false, false, Instant::now());
        let wait = Wait { ino, lock, handle, reply, ready, interrupted, next };
        waits.waits.insert(unique, wait);
        true
    }

    fn end(&self, unique: u64) {
        self.waits.lock().waits.remove(&unique);
    }

    fn note_ready(&self, ready: &BTreeSet<u64>) {
        let mut waits = self.waits.lock();
        for unique in ready {
            if let Some(wait) = waits.waits.get_mut(unique) {
                wait.ready = true;
            }
        }
        self.changed.notify_all();
    }

    /// The next lock to be asked for again; `None` at the end.
    fn next(&self) -> Option<(u64, Ino, Lock, u64, Later)> {
        let mut waits = self.waits.lock();
        loop {
            if waits.ended {
                return None;
            }
            let now = Instant::now();
            let idle = waits.waits.iter_mut().filter(|(_, wait)| wait.reply.is_some());
            let first =
                idle.min_by_key(|(_, wait)| if wait.ready { now } else { wait.next.max(now) });
            let Some((unique, wait)) = first else {
                self.changed.wait(&mut waits);
                continue;
            };
            if !wait.ready && wait.next > now {
                let next = wait.next;
                self.changed.wait_until(&mut waits, next);
                continue;
            }
            wait.ready = false;
            if let Some(reply) = wait.reply.take() {
                return Some((*unique, wait.ino, wait.lock, wait.handle, reply));
            }
        }
    }

    /// Waits for the end of an open file since `before`; false when the time is over.
    fn wait_for_end(&self, before: u64, deadline: Instant) -> bool {
        let mut ends = self.ends.lock();
        while *ends == before {
            if self.ended.wait_until(&mut ends, deadline).timed_out() {
                return *ends != before;
            }
        }
        true
    }
}
/// What is answered to those who had locks that may have been others' since.
fn locks_are_lost() -> Errno {
    tatami_client::note_cause(Errno::EIO, || {
        "the mount was away for longer than its lease, and has lost the locks of this open file"
            .into()
    });
    Errno::EIO
}
