//! Locks of files: what we hold, and asking for it.
//!
//! The executor of the inode's shard decides who gets a lock ([`tatami_wire::lock`]). We
//! remember what we got, to claim it back when its node was started again. While the locks of a
//! file are delegated to us, we decide. One request about a file is under way at a time, so that what we
//! remember is what the executor knows.

use crate::Client;
use crate::delegations::uptime;
use crate::executor::Executor;
use crate::peer::Retry;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tatami_lock::Table;
use tatami_wire::admin::ClusterMap;
use tatami_wire::lock::{Conflict, LOCKS_MAX, Lock, LockOp, LockSort, LockTold, Span};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, ExecutorId, Ino, hash};

/// Times that a request is put again because the executor did not know our session.
const ATTEMPTS: usize = 16;
/// A wait is asked for again after so long, told or not.
pub const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Of a lease, this part is left unused, for clocks that do not run alike: one in so many.
const MARGIN: u32 = 10;
/// A lease of which we have not been told.
const SHORT_LEASE: Duration = Duration::from_secs(1);

/// What a front end does about the bytes of files whose locks come and go.
pub trait LockedBytes: Sync {
    /// Somebody else may get a lock that we had: what was written must be where others find it.
    fn tell(&self, ino: Ino);
    /// We have got a lock: what was read before may be old.
    fn forget(&self, ino: Ino);
    /// The locks that were taken through these handles are lost: others may have had them.
    fn lost(&self, ino: Ino, handles: &BTreeSet<u64>);
}

/// For programs that look after that themselves.
pub struct Unbuffered;

impl LockedBytes for Unbuffered {
    fn tell(&self, _: Ino) {}
    fn forget(&self, _: Ino) {}
    fn lost(&self, _: Ino, _: &BTreeSet<u64>) {}
}

/// What became of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is ours.
    Done,
    /// Somebody is in the way: ask again when [`LockNews`] tell of it, and every [`ASK_AGAIN`].
    Waits,
}

/// What executors have told of locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LockNews {
    /// Files whose locks are to be given back, by [`Client::return_locks`].
    pub wanted: BTreeSet<Ino>,
    /// Waits that have come to their end.
    pub ready: BTreeSet<u64>,
    /// Executors to which all is to be told, by [`Client::reclaim_locks`].
    pub reclaim: BTreeSet<ExecutorId>,
}

impl LockNews {
    fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.ready.is_empty() && self.reclaim.is_empty()
    }
}

/// What is noted with a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag {
    /// Through which open file it was taken.
    handle: u64,
    pid: u32,
}

/// What we hold of one file.
#[derive(Default)]
struct File {
    whole: Table<u64, Tag>,
    range: Table<u64, Tag>,
    delegated: bool,
    /// So many have just got a lock from the executor, and what was read before is not yet forgotten.
    stale: u32,
    /// It is in no table any more.
    gone: bool,
}

impl File {
    fn table(&mut self, sort: LockSort) -> &mut Table<u64, Tag> {
        match sort {
            LockSort::Whole => &mut self.whole,
            LockSort::Range => &mut self.range,
        }
    }

    fn take(&mut self, lock: &Lock, handle: u64) {
        let tag = Tag { handle, pid: lock.pid };
        self.table(lock.sort).set(lock.owner, lock.span, lock.kind, tag);
    }

    fn locks(&self) -> impl Iterator<Item = (Lock, u64)> + '_ {
        let tables = [(LockSort::Whole, &self.whole), (LockSort::Range, &self.range)];
        tables.into_iter().flat_map(|(sort, table)| {
            table.iter().map(move |held| {
                let (owner, span, kind) = (held.owner, held.span, held.kind);
                (Lock { sort, owner, pid: held.tag.pid, span, kind }, held.tag.handle)
            })
        })
    }

    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.range.is_empty()
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    files: Mutex<HashMap<Ino, Arc<Mutex<File>>, hash::Build>>,
    news: Mutex<LockNews>,
    arrived: Condvar,
}

impl Locks {
    fn find(&self, ino: Ino) -> Option<Arc<Mutex<File>>> {
        self.files.lock().get(&ino).cloned()
    }

    fn enter(&self, ino: Ino) -> Arc<Mutex<File>> {
        self.files.lock().entry(ino).or_default().clone()
    }

    /// Forgets a file of which there is nothing to know.
    fn tidy(&self, ino: Ino, file: &mut File) {
        if file.is_empty() && !file.delegated && !file.gone && file.stale == 0 {
            file.gone = true;
            self.files.lock().remove(&ino);
        }
    }

    /// Something for whoever asks for [`Client::lock_news`].
    pub(crate) fn note(&self, note: impl FnOnce(&mut LockNews)) {
        note(&mut self.news.lock());
        self.arrived.notify_all();
    }
}

/// What one executor knows us by.
pub(crate) struct LockSession {
    /// 0 while we hold nothing there. Held shared by whoever asks about one file, alone by whoever
    /// begins a session, or claims all.
    id: RwLock<u64>,
    /// Goes up when a recall connection begins, and when it ends: odd while there is one.
    connection: AtomicU64,
    /// The connection over which the executor knows what we hold.
    claimed: AtomicU64,
    /// Until when nobody else gets what we hold, by [`uptime`] in microseconds.
    until: AtomicU64,
    /// In microseconds.
    lease: AtomicU64,
    /// Shards have come to the executor, and we have not told what we hold of them.
    to_claim: AtomicBool,
}

impl Default for LockSession {
    fn default() -> LockSession {
        LockSession {
            id: RwLock::new(0),
            connection: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            until: AtomicU64::new(0),
            lease: AtomicU64::new(SHORT_LEASE.as_micros() as u64),
            to_claim: AtomicBool::new(false),
        }
    }
}

impl LockSession {
    /// What we hold must be told to the executor before anything else is asked.
    pub(crate) fn shards_have_come(&self) {
        self.to_claim.store(true, SeqCst);
    }

    /// A recall connection has begun.
    pub(crate) fn begin(&self) {
        let now = self.connection.load(SeqCst);
        self.connection.store(now + 1 + now % 2, SeqCst);
    }

    /// It has ended.
    pub(crate) fn end(&self) {
        let now = self.connection.load(SeqCst);
        self.connection.store(now + now % 2, SeqCst);
    }

    /// The executor heard us after `from`, by [`uptime`], and keeps what we hold for so long without us.
    pub(crate) fn extend(&self, from: Duration, lease: Duration) {
        self.lease.store(lease.as_micros() as u64, SeqCst);
        let until = from + (lease - lease / MARGIN);
        self.until.fetch_max(until.as_micros() as u64, SeqCst);
    }

    fn heard(&self, from: Duration) {
        self.extend(from, Duration::from_micros(self.lease.load(SeqCst)));
    }

    /// Whether something may be delegated to us.
    fn delegates(&self) -> bool {
        let now = self.connection.load(SeqCst);
        now % 2 == 1 && self.claimed.load(SeqCst) == now
    }

    fn is_sure(&self) -> bool {
        uptime().as_micros() < u128::from(self.until.load(SeqCst))
    }
}

/// The right to ask about one file.
enum Session<'a> {
    Known(RwLockReadGuard<'a, u64>),
    /// Whoever has it makes the first request.
    New(RwLockWriteGuard<'a, u64>),
}

impl<'a> Session<'a> {
    fn of(executor: &'a Executor) -> Session<'a> {
        let known = executor.locks.id.read();
        if *known != 0 {
            return Session::Known(known);
        }
        drop(known);
        Session::New(executor.locks.id.write())
    }

    fn id(&self) -> u64 {
        match self {
            Session::Known(id) => **id,
            Session::New(id) => **id,
        }
    }

    fn note(&mut self, id: u64) {
        if let Session::New(known) = self
            && id != 0
        {
            **known = id;
        }
    }
}

/// How a request has ended.
enum Asked<T> {
    Answer(T),
    /// The executor does not know us. All is to be claimed, and the request to be put again.
    Unknown,
    /// The file is another executor's by now.
    Elsewhere,
}

/// What an executor has said.
enum Said {
    Told(LockTold),
    Elsewhere,
}

impl Client {
    fn locker(&self, ino: Ino) -> Result<&Executor, Errno> {
        self.executor(self.map().owner(ino.shard()).ok_or(Errno::ESTALE)?)
    }

    /// One request, to that executor only: another knows us by another session.
    fn ask_about(
        &self,
        executor: &Executor,
        ino: Ino,
        session: &mut Session<'_>,
        op: LockOp,
    ) -> Result<Said, Errno> {
        let op = MetaOp::Locks { ino, session: session.id(), op };
        let call = MetaCall { shard: ino.shard(), cred: Cred::ROOT, op };
        match self.ask(executor.id, &call)? {
            MetaReply::Locks { session: id, told } => {
                session.note(id);
                Ok(Said::Told(told))
            }
            MetaReply::Elsewhere { .. } => Ok(Said::Elsewhere),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Runs `ask` until the executor knows us, and the file is that of the table.
    fn with_file<T>(
        &self,
        ino: Ino,
        bytes: &dyn LockedBytes,
        mut ask: impl FnMut(&Executor, &mut Session<'_>, &mut File) -> Result<Asked<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut retry = None;
        let mut left = ATTEMPTS;
        while left > 0 {
            let executor = self.locker(ino)?;
            if executor.locks.to_claim.load(SeqCst) {
                self.reclaim_locks(executor.id, bytes)?;
            }
            let elsewhere = {
                let mut session = Session::of(executor);
                let file = self.locks.enter(ino);
                let mut file = file.lock();
                // What we hold of a file is claimed of the executor that the map names, after that was changed.
                if file.gone || self.map().owner(ino.shard()) != Some(executor.id) {
                    continue;
                }
                let answer = ask(executor, &mut session, &mut file);
                self.locks.tidy(ino, &mut file);
                match answer? {
                    Asked::Answer(answer) => return Ok(answer),
                    Asked::Unknown => false,
                    Asked::Elsewhere => true,
                }
            };
            if elsewhere {
                let retry = retry.get_or_insert_with(|| Retry::new(self.patience()));
                if !self.renew_map(ino.shard(), executor.id) && !retry.pause() {
                    return Err(Errno::EHOSTDOWN);
                }
            } else {
                left -= 1;
                self.reclaim_locks(executor.id, bytes)?;
            }
        }
        Err(Errno::ENOLCK)
    }

    /// Takes a lock of `ino` through an open file, `handle`. Where somebody is in the way, it fails, or with
    /// `wait`, a number that is not used again, it waits: then the same is to be asked again later.
    ///
    /// # Errors
    /// `EAGAIN`, `EDEADLK`; `ENOLCK` where there are too many; `EHOSTDOWN`.
    pub fn set_lock(
        &self,
        ino: Ino,
        lock: &Lock,
        handle: u64,
        wait: Option<u64>,
        bytes: &dyn LockedBytes,
    ) -> Result<Taken, Errno> {
        let (taken, fresh) = self.set_lock_now(ino, lock, handle, wait, bytes)?;
        if fresh {
            self.forget(ino, bytes);
        }
        Ok(taken)
    }

    /// What others have changed while they had the lock must be read anew. Whoever gets a lock by way of what is
    /// delegated since then waits for that, too. Nothing is held meanwhile: the kernel may have to write first.
    fn forget(&self, ino: Ino, bytes: &dyn LockedBytes) {
        bytes.forget(ino);
        if let Some(file) = self.locks.find(ino) {
            let mut file = file.lock();
            file.stale = file.stale.saturating_sub(1);
            self.locks.tidy(ino, &mut file);
        }
    }

    /// Takes a lock, and says whether [`Client::forget`] is to be called.
    fn set_lock_now(
        &self,
        ino: Ino,
        lock: &Lock,
        handle: u64,
        wait: Option<u64>,
        bytes: &dyn LockedBytes,
    ) -> Result<(Taken, bool), Errno> {
        let Lock { sort, owner, span, kind, .. } = *lock;
        self.with_file(ino, bytes, |executor, session, file| {
            if file.delegated && executor.locks.delegates() {
                let in_the_way = file.table(sort).conflict(owner, span, kind).is_some();
                if !in_the_way {
                    file.take(lock, handle);
                    let fresh = file.stale > 0;
                    file.stale += u32::from(fresh);
                    return Ok(Asked::Answer((Taken::Done, fresh)));
                }
                if sort == LockSort::Whole {
                    file.whole.free(owner, span);
                }
                if wait.is_none() {
                    return Err(Errno::EAGAIN);
                }
                // Who waits for whom only the executor knows.
                match self.give_back(executor, ino, session, file, bytes)? {
                    Asked::Answer(()) => {}
                    Asked::Unknown => return Ok(Asked::Unknown),
                    Asked::Elsewhere => return Ok(Asked::Elsewhere),
                }
            }
            if file.table(sort).holds(owner, span) {
                bytes.tell(ino);
            }
            let delegate = executor.locks.delegates();
            let told =
                self.ask_about(executor, ino, session, LockOp::Set { lock: *lock, wait, delegate });
            let gone = matches!(told, Ok(Said::Told(LockTold::Waits)) | Err(Errno::EAGAIN));
            if sort == LockSort::Whole && gone {
                file.whole.free(owner, span);
            }
            let told = match told? {
                Said::Told(told) => told,
                Said::Elsewhere => return Ok(Asked::Elsewhere),
            };
            match told {
                LockTold::Done { delegated } => {
                    file.take(lock, handle);
                    file.delegated = delegated;
                    file.stale += 1;
                    Ok(Asked::Answer((Taken::Done, true)))
                }
                LockTold::Waits => Ok(Asked::Answer((Taken::Waits, false))),
                LockTold::Unknown { .. } => Ok(Asked::Unknown),
                _ => Err(Errno::EPROTO),
            }
        })
    }

    /// As [`Client::set_lock`], and waits until it is ours, or `patience` is over: then the error
    /// is `EAGAIN`. `wait` is a number that is not used again.
    ///
    /// # Errors
    /// Those of [`Client::set_lock`].
    pub fn wait_for_lock(
        &self,
        ino: Ino,
        lock: &Lock,
        wait: u64,
        patience: Duration,
        bytes: &dyn LockedBytes,
    ) -> Result<(), Errno> {
        let end = uptime() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            if self.set_lock(ino, lock, 0, Some(wait), bytes)? == Taken::Done {
                return Ok(());
            }
            let left = end.saturating_sub(uptime());
            if left.is_zero() {
                return match self.cancel_lock(ino, lock, 0, wait, bytes)? {
                    true => Ok(()),
                    false => Err(Errno::EAGAIN),
                };
            }
            let mut news = self.locks.news.lock();
            if !news.ready.remove(&wait) {
                self.locks.arrived.wait_for(&mut news, pause.min(left));
            }
            pause = (pause * 2).min(ASK_AGAIN / 4);
        }
    }

    /// Frees what the owner holds of these bytes.
    ///
    /// # Errors
    /// `EHOSTDOWN`: the executor learns of it when it is back.
    pub fn free_lock(
        &self,
        ino: Ino,
        (sort, owner): (LockSort, u64),
        span: Span,
        bytes: &dyn LockedBytes,
    ) -> Result<(), Errno> {
        if self.locks.find(ino).is_none() {
            return Ok(());
        }
        self.with_file(ino, bytes, |executor, session, file| {
            if !file.table(sort).holds(owner, span) {
                return Ok(Asked::Answer(()));
            }
            if file.delegated && executor.locks.delegates() {
                file.table(sort).free(owner, span);
                return Ok(Asked::Answer(()));
            }
            bytes.tell(ino);
            let told = self.ask_about(executor, ino, session, LockOp::Free { sort, owner, span });
            let put_again =
                [LockTold::Unknown { reclaim: true }, LockTold::Unknown { reclaim: false }];
            match told {
                Ok(Said::Elsewhere) => {}
                Ok(Said::Told(told)) if put_again.contains(&told) => {}
                _ => file.table(sort).free(owner, span),
            }
            match told {
                Ok(Said::Elsewhere) => Ok(Asked::Elsewhere),
                Ok(Said::Told(LockTold::Done { .. })) => Ok(Asked::Answer(())),
                Ok(Said::Told(LockTold::Unknown { .. })) => Ok(Asked::Unknown),
                other => {
                    self.locks.note(|news| _ = news.reclaim.insert(executor.id));
                    other.map(drop).and(Err(Errno::EPROTO))
                }
            }
        })
    }

    /// Frees all that was taken through an open file and is still held.
    ///
    /// # Errors
    /// Those of [`Client::free_lock`].
    pub fn free_locks_of(
        &self,
        ino: Ino,
        handle: u64,
        bytes: &dyn LockedBytes,
    ) -> Result<(), Errno> {
        let Some(file) = self.locks.find(ino) else { return Ok(()) };
        let locks: Vec<_> = file.lock().locks().filter(|(_, by)| *by == handle).collect();
        let free = |(lock, _): &(Lock, u64)| {
            self.free_lock(ino, (lock.sort, lock.owner), lock.span, bytes)
        };
        locks.iter().map(free).fold(Ok(()), Result::and)
    }

    /// What is in the way of a lock.
    ///
    /// # Errors
    /// `EHOSTDOWN`.
    pub fn test_lock(
        &self,
        ino: Ino,
        lock: &Lock,
        bytes: &dyn LockedBytes,
    ) -> Result<Option<Conflict>, Errno> {
        self.with_file(ino, bytes, |executor, session, file| {
            if file.delegated && executor.locks.delegates() {
                let held = file.table(lock.sort).conflict(lock.owner, lock.span, lock.kind);
                return Ok(Asked::Answer(held.map(|held| Conflict {
                    span: held.span,
                    kind: held.kind,
                    pid: held.tag.pid,
                })));
            }
            match self.ask_about(executor, ino, session, LockOp::Test { lock: *lock })? {
                Said::Elsewhere => Ok(Asked::Elsewhere),
                Said::Told(LockTold::Held(conflict)) => Ok(Asked::Answer(conflict)),
                Said::Told(LockTold::Unknown { .. }) => Ok(Asked::Unknown),
                _ => Err(Errno::EPROTO),
            }
        })
    }

    /// Gives a wait up. Whether it was too late: then the lock is ours.
    ///
    /// # Errors
    /// `EHOSTDOWN`.
    pub fn cancel_lock(
        &self,
        ino: Ino,
        lock: &Lock,
        handle: u64,
        wait: u64,
        bytes: &dyn LockedBytes,
    ) -> Result<bool, Errno> {
        let late = self.with_file(ino, bytes, |executor, session, file| {
            match self.ask_about(executor, ino, session, LockOp::Cancel { wait, lock: *lock }) {
                Ok(Said::Elsewhere) => Ok(Asked::Elsewhere),
                Ok(Said::Told(LockTold::Ended { granted })) => {
                    if granted {
                        file.take(lock, handle);
                        file.stale += 1;
                    }
                    Ok(Asked::Answer(granted))
                }
                Ok(Said::Told(LockTold::Unknown { .. })) => Ok(Asked::Unknown),
                other => {
                    // It may be granted to us yet, and we would not know.
                    self.locks.note(|news| _ = news.reclaim.insert(executor.id));
                    other.map(drop).and(Err(Errno::EPROTO))
                }
            }
        })?;
        if late {
            self.forget(ino, bytes);
        }
        Ok(late)
    }

    /// The open files of ours through which locks are held that are in the way of this one.
    pub fn own_holders(&self, ino: Ino, lock: &Lock) -> Vec<u64> {
        let Some(file) = self.locks.find(ino) else { return Vec::new() };
        let mut file = file.lock();
        let held = file.table(lock.sort).conflicts(lock.owner, lock.span, lock.kind);
        held.map(|held| held.tag.handle).collect()
    }

    /// Gives back the locks of `ino`, if they are delegated to us.
    ///
    /// # Errors
    /// `EHOSTDOWN`.
    pub fn return_locks(&self, ino: Ino, bytes: &dyn LockedBytes) -> Result<(), Errno> {
        if self.locks.find(ino).is_none() {
            return Ok(());
        }
        self.with_file(ino, bytes, |executor, session, file| match file.delegated {
            true => self.give_back(executor, ino, session, file, bytes),
            false => Ok(Asked::Answer(())),
        })
    }

    fn give_back(
        &self,
        executor: &Executor,
        ino: Ino,
        session: &mut Session<'_>,
        file: &mut File,
        bytes: &dyn LockedBytes,
    ) -> Result<Asked<()>, Errno> {
        bytes.tell(ino);
        let locks: Vec<_> = file.locks().map(|(lock, _)| lock).collect();
        if locks.len() > LOCKS_MAX {
            return Ok(Asked::Unknown);
        }
        match self.ask_about(executor, ino, session, LockOp::Return { locks })? {
            Said::Elsewhere => Ok(Asked::Elsewhere),
            Said::Told(LockTold::Done { .. }) => {
                file.delegated = false;
                Ok(Asked::Answer(()))
            }
            Said::Told(LockTold::Unknown { .. }) => Ok(Asked::Unknown),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Tells an executor all that we hold there, which delegates nothing to us from then on. What it
    /// does not accept is lost.
    ///
    /// # Errors
    /// `EHOSTDOWN`: nothing is known then.
    pub fn reclaim_locks(&self, id: ExecutorId, bytes: &dyn LockedBytes) -> Result<(), Errno> {
        let executor = self.executor(id)?;
        let connection = executor.locks.connection.load(SeqCst);
        let mut session = executor.locks.id.write();
        let mut retry = Retry::new(self.patience());
        let files = loop {
            let map = self.map();
            // What comes after that map is claimed once more.
            executor.locks.to_claim.store(false, SeqCst);
            let files: Vec<_> = {
                let files = self.locks.files.lock();
                let here = files.iter().filter(|(ino, _)| map.owner(ino.shard()) == Some(id));
                here.map(|(ino, file)| (*ino, file.clone())).collect()
            };
            let mut locks = Vec::new();
            for (ino, file) in &files {
                let file = file.lock();
                if file.delegated {
                    bytes.tell(*ino);
                }
                locks.extend(file.locks().map(|(lock, _)| (*ino, lock)));
            }
            let began = uptime();
            match self.claim(&map, id, *session, &locks)? {
                Claimed::Session(new) => {
                    *session = new;
                    executor.locks.heard(began);
                }
                Claimed::Lost => {
                    if *session != 0 || !locks.is_empty() {
                        tracing::error!(executor = %id, locks = locks.len(),
                            "we were away for too long: the locks of files are lost");
                    }
                    *session = 0;
                    files.iter().for_each(|(ino, file)| lose(*ino, &mut file.lock(), bytes));
                }
                Claimed::Again => {
                    executor.locks.shards_have_come();
                    // What it has and what we believe that it has will soon be the same.
                    if !retry.pause() {
                        return Err(Errno::EHOSTDOWN);
                    }
                    self.learn_map_of(id.node);
                    continue;
                }
                Claimed::Nothing => *session = 0,
            }
            break files;
        };
        for (ino, file) in &files {
            let mut file = file.lock();
            file.delegated = false;
            self.locks.tidy(*ino, &mut file);
        }
        executor.locks.claimed.store(connection, SeqCst);
        Ok(())
    }

    /// Claims all of `locks`.
    fn claim(
        &self,
        map: &ClusterMap,
        executor: ExecutorId,
        mut session: u64,
        locks: &[(Ino, Lock)],
    ) -> Result<Claimed, Errno> {
        let Some((shard, _)) = map.leads().into_iter().find(|(_, leader)| *leader == executor)
        else {
            // By now it has no shards.
            return Ok(Claimed::Nothing);
        };
        let shards = map.shard_map().ok_or(Errno::EPROTO)?.digest(executor);
        let target = Ino::first_of(shard);
        let parts = locks.len().div_ceil(LOCKS_MAX).max(1);
        for part in 0..parts {
            let end = locks.len().min((part + 1) * LOCKS_MAX);
            let some = locks[part * LOCKS_MAX..end].to_vec();
            let (first, last) = (part == 0, part + 1 == parts);
            let op = LockOp::Reclaim { locks: some, first, last, shards };
            let op = MetaOp::Locks { ino: target, session, op };
            match self.ask(executor, &MetaCall { shard, cred: Cred::ROOT, op })? {
                MetaReply::Locks { session: id, told: LockTold::Done { .. } } => session = id,
                MetaReply::Elsewhere { .. }
                | MetaReply::Locks { told: LockTold::Unknown { reclaim: true }, .. } => {
                    return Ok(Claimed::Again);
                }
                MetaReply::Locks { told: LockTold::Unknown { reclaim: false }, .. } => {
                    return Ok(Claimed::Lost);
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(Claimed::Session(session))
    }

    /// Makes sure that the locks of `ino` that we believe to hold are ours still.
    ///
    /// # Errors
    /// `EHOSTDOWN` where nobody can know.
    pub fn check_locks(&self, ino: Ino, bytes: &dyn LockedBytes) -> Result<(), Errno> {
        let executor = self.locker(ino)?;
        if executor.locks.is_sure() || self.locks.find(ino).is_none() {
            return Ok(());
        }
        self.reclaim_locks(executor.id, bytes)
    }

    /// What executors have told since this was asked last. Waits for it, no longer than `wait`.
    pub fn lock_news(&self, wait: Duration) -> LockNews {
        let mut news = self.locks.news.lock();
        if news.is_empty() {
            self.locks.arrived.wait_for(&mut news, wait);
        }
        std::mem::take(&mut news)
    }

    /// Wakes whoever waits for [`Client::lock_news`].
    pub fn wake_for_locks(&self) {
        self.locks.arrived.notify_all();
    }

    /// Says that we hold nothing any more. Nobody may use locks meanwhile.
    pub fn end_locks(&self) {
        for (shard, id) in self.map().leads() {
            let Ok(executor) = self.executor(id) else { continue };
            let mut session = executor.locks.id.write();
            if *session == 0 {
                continue;
            }
            let op =
                MetaOp::Locks { ino: Ino::first_of(shard), session: *session, op: LockOp::End };
            let call = MetaCall { shard, cred: Cred::ROOT, op };
            if let Err(error) = self.ask(id, &call) {
                tracing::debug!(executor = %id, %error, "it believes that we may hold locks");
            }
            *session = 0;
        }
    }
}

/// What became of a claim.
enum Claimed {
    /// This session holds it.
    Session(u64),
    /// Others may have had it.
    Lost,
    /// The executor has other shards than we believe.
    Again,
    /// The executor has none.
    Nothing,
}

/// All locks of a file are lost.
fn lose(ino: Ino, file: &mut File, bytes: &dyn LockedBytes) {
    let handles: BTreeSet<u64> = file.locks().map(|(_, handle)| handle).collect();
    (file.whole, file.range) = (Table::default(), Table::default());
    if !handles.is_empty() {
        bytes.lost(ino, &handles);
    }
}
