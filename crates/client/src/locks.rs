//! File locks: the locks that this client holds, and the requests for them.
//!
//! The executor of the inode's shard grants locks ([`tatami_wire::lock`]). The client remembers its
//! locks, to reclaim them when the node was restarted. While the locks of a file are delegated to
//! this client, the client grants them itself. Only one request about a file is in flight at a
//! time, so that the client's record agrees with the executor's.

use crate::Client;
use crate::executor::ExecutorClient;
use crate::held_locks::{FileLocks, LockNotices};
use crate::retry::Retry;
use crate::uptime::uptime;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tatami_tables::LockTable;
use tatami_wire::admin::ClusterMap;
use tatami_wire::lock::{ByteRange, Conflict, LOCKS_MAX, Lock, LockOp, LockOpReply, LockSort};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, ExecutorId, Ino};

/// Times that a request is repeated because the executor did not know the session.
const ATTEMPTS: usize = 16;
/// Interval after which a waiting request is repeated, even without a notification.
pub const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Refusals by an executor. After any other error the executor may have granted the lock.
const REFUSALS: [Errno; 6] =
    [Errno::EAGAIN, Errno::EDEADLK, Errno::ENOLCK, Errno::EINVAL, Errno::EACCES, Errno::ESTALE];
/// Most locks of a file that the client grants by itself: all of them must fit into the message
/// that gives the delegation back.
const DELEGATED_LOCKS_MAX: usize = LOCKS_MAX - 2;

/// The actions of a front end on the bytes of files when their locks come and go.
pub trait LockedBytes: Sync {
    /// Another client may get a lock that this one had: all written bytes must be where other
    /// clients find them.
    fn publish_writes(&self, ino: Ino);
    /// This client got a lock: bytes that it has read before may be old.
    fn invalidate_cache(&self, ino: Ino);
    /// The locks that were taken through these handles are lost: other clients may have had them.
    fn report_lost(&self, ino: Ino, handles: &BTreeSet<u64>);
}

/// For programs that care for their bytes themselves.
pub struct Unbuffered;

impl LockedBytes for Unbuffered {
    fn publish_writes(&self, _: Ino) {}
    fn invalidate_cache(&self, _: Ino) {}
    fn report_lost(&self, _: Ino, _: &BTreeSet<u64>) {}
}

/// The result of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// This client has the lock.
    Done,
    /// Another lock is in the way: the caller asks again when [`LockNotices`] say so, and every
    /// [`LOCK_RETRY_INTERVAL`].
    Waits,
}

/// The right to send a request about one file.
enum SessionGuard<'a> {
    Known(RwLockReadGuard<'a, u64>),
    /// The caller that has it makes the first request of the session.
    New(RwLockWriteGuard<'a, u64>),
}

impl<'a> SessionGuard<'a> {
    fn acquire_session(executor: &'a ExecutorClient) -> SessionGuard<'a> {
        let known = executor.locks.id.read();
        if *known != 0 {
            return SessionGuard::Known(known);
        }
        // Between the two locks another thread may begin the session. Then this one holds it alone
        // for one request, which is slower but correct.
        drop(known);
        SessionGuard::New(executor.locks.id.write())
    }

    fn id(&self) -> u64 {
        match self {
            SessionGuard::Known(id) => **id,
            SessionGuard::New(id) => **id,
        }
    }

    fn record_id(&mut self, id: u64) {
        if let SessionGuard::New(known) = self
            && id != 0
        {
            **known = id;
        }
    }
}

/// How a request has ended.
enum LockAttempt<T> {
    Reply(T),
    /// The executor does not know this session. The client must reclaim all locks and repeat the
    /// request.
    UnknownSession,
    /// Another executor has the file now.
    WrongExecutor,
}

/// The reply of an executor.
enum RoutedLockReply {
    Reply(LockOpReply),
    WrongExecutor,
}

impl Client {
    fn lock_executor(&self, ino: Ino) -> Result<&ExecutorClient, Errno> {
        self.executor_client(self.map().owner(ino.owner_shard()).ok_or(Errno::ESTALE)?)
    }

    /// Sends one request, to that executor only: another one knows this client by another session.
    fn send_lock_request(
        &self,
        executor: &ExecutorClient,
        ino: Ino,
        session: &mut SessionGuard<'_>,
        op: LockOp,
    ) -> Result<RoutedLockReply, Errno> {
        let op = MetaOp::Locks { ino, session: session.id(), op };
        let call = MetaCall { shard: ino.owner_shard(), cred: Cred::ROOT, op };
        match self.send_to_executor(executor.id, &call)? {
            MetaReply::Locks { session: id, reply } => {
                session.record_id(id);
                Ok(RoutedLockReply::Reply(reply))
            }
            MetaReply::WrongShard { .. } => Ok(RoutedLockReply::WrongExecutor),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Runs `ask` until the executor knows this session and is the one that owns the file.
    fn with_file_locks<T>(
        &self,
        ino: Ino,
        bytes: &dyn LockedBytes,
        mut ask: impl FnMut(
            &ExecutorClient,
            &mut SessionGuard<'_>,
            &mut FileLocks,
        ) -> Result<LockAttempt<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut retry = None;
        let mut left = ATTEMPTS;
        while left > 0 {
            let executor = self.lock_executor(ino)?;
            // Before the session is locked: the reclaim locks it alone.
            if executor.locks.to_claim.load(SeqCst) {
                self.reclaim_locks(executor.id, bytes)?;
            }
            let elsewhere = {
                let mut session = SessionGuard::acquire_session(executor);
                let file = self.locks.enter_file(ino);
                let mut file = file.lock();
                // After a change of the map, the client reclaims the locks of a file from the
                // executor in the new map. `gone`: another thread has removed this record, and a
                // lock stored in it would be forgotten.
                if file.gone || self.map().owner(ino.owner_shard()) != Some(executor.id) {
                    continue;
                }
                let answer = ask(executor, &mut session, &mut file);
                self.locks.remove_idle(ino, &mut file);
                match answer? {
                    LockAttempt::Reply(answer) => return Ok(answer),
                    LockAttempt::UnknownSession => false,
                    LockAttempt::WrongExecutor => true,
                }
            };
            // Another executor is no failure of the session, so it does not count as an attempt.
            if elsewhere {
                let retry = retry.get_or_insert_with(|| Retry::new(self.operation_timeout()));
                if !self.refresh_shard_owner(ino.owner_shard(), executor.id) && !retry.pause() {
                    return Err(Errno::EHOSTDOWN);
                }
            } else {
                left -= 1;
                self.reclaim_locks(executor.id, bytes)?;
            }
        }
        Err(Errno::ENOLCK)
    }

    /// Takes a lock of `ino` through an open file, `handle`. If another lock is in the way, the
    /// call fails. With `wait`, a number that is not used again, the request waits instead: the
    /// caller must repeat it later.
    ///
    /// # Errors
    /// `EAGAIN`, `EDEADLK`; `ENOLCK` for too many locks; `EHOSTDOWN`.
    pub fn set_lock(
        &self,
        ino: Ino,
        lock: &Lock,
        handle: u64,
        wait: Option<u64>,
        bytes: &dyn LockedBytes,
    ) -> Result<LockOutcome, Errno> {
        let (taken, fresh) = self.request_lock(ino, lock, handle, wait, bytes)?;
        if fresh {
            self.invalidate_after_lock(ino, bytes);
        }
        Ok(taken)
    }

    /// Drops cached bytes that other clients may have changed while they had the lock. Callers that
    /// got their lock from the delegation since then do the same. No lock of this module is held
    /// meanwhile: the kernel may have to write first.
    fn invalidate_after_lock(&self, ino: Ino, bytes: &dyn LockedBytes) {
        bytes.invalidate_cache(ino);
        if let Some(file) = self.locks.find_file(ino) {
            let mut file = file.lock();
            file.stale = file.stale.saturating_sub(1);
            self.locks.remove_idle(ino, &mut file);
        }
    }

    /// Takes a lock. Returns also whether the caller must call [`Client::invalidate_after_lock`].
    fn request_lock(
        &self,
        ino: Ino,
        lock: &Lock,
        handle: u64,
        wait: Option<u64>,
        bytes: &dyn LockedBytes,
    ) -> Result<(LockOutcome, bool), Errno> {
        let Lock { sort, owner, span, kind, .. } = *lock;
        self.with_file_locks(ino, bytes, |executor, session, file| {
            if file.delegated && executor.locks.may_delegate() {
                let in_the_way = file.table(sort).first_conflict(owner, span, kind).is_some();
                let is_full = file.len() >= DELEGATED_LOCKS_MAX;
                if !in_the_way && !is_full {
                    file.record_lock(lock, handle);
                    // The thread that got the delegation has not dropped the old bytes yet: this
                    // caller must not read them either.
                    let fresh = file.stale > 0;
                    file.stale += u32::from(fresh);
                    return Ok(LockAttempt::Reply((LockOutcome::Done, fresh)));
                }
                // flock(2) converts a lock by first releasing the old one, so that stays released
                // although the new one is refused.
                if in_the_way && sort == LockSort::Whole {
                    file.whole.free_span(owner, span);
                }
                if in_the_way && wait.is_none() {
                    return Err(Errno::EAGAIN);
                }
                // Only the executor knows all waits, and can find a deadlock. And it alone counts
                // the locks of a client. So the delegation goes back, and the executor queues this
                // wait, or grants this lock.
                match self.return_delegated(executor, ino, session, file, bytes)? {
                    LockAttempt::Reply(()) => {}
                    LockAttempt::UnknownSession => return Ok(LockAttempt::UnknownSession),
                    LockAttempt::WrongExecutor => return Ok(LockAttempt::WrongExecutor),
                }
            }
            // The new lock replaces one that this owner holds (a write lock may become a read
            // lock). Other clients may then get the bytes, so they must be written out first.
            if file.table(sort).holds_any(owner, span) {
                bytes.publish_writes(ino);
            }
            let delegate = executor.locks.may_delegate() && file.len() < DELEGATED_LOCKS_MAX / 2;
            let reply = self.send_lock_request(
                executor,
                ino,
                session,
                LockOp::Set { lock: *lock, wait, delegate },
            );
            let gone = matches!(
                reply,
                Ok(RoutedLockReply::Reply(LockOpReply::Waiting)) | Err(Errno::EAGAIN)
            );
            // As above: flock(2) has released the old lock before it waits or fails.
            if sort == LockSort::Whole && gone {
                file.whole.free_span(owner, span);
            }
            // Without a reply the executor may have granted the lock, and the caller does not have
            // it. The reclaim makes the executor agree.
            if matches!(reply, Err(errno) if !REFUSALS.contains(&errno)) {
                self.locks.notify_waiters(|news| _ = news.reclaim.insert(executor.id));
            }
            let reply = match reply? {
                RoutedLockReply::Reply(reply) => reply,
                RoutedLockReply::WrongExecutor => return Ok(LockAttempt::WrongExecutor),
            };
            match reply {
                LockOpReply::Done { delegated } => {
                    // Only after the reply: until then the executor may refuse.
                    file.record_lock(lock, handle);
                    file.delegated = delegated;
                    file.stale += 1;
                    Ok(LockAttempt::Reply((LockOutcome::Done, true)))
                }
                LockOpReply::Waiting => Ok(LockAttempt::Reply((LockOutcome::Waits, false))),
                LockOpReply::UnknownSession { .. } => Ok(LockAttempt::UnknownSession),
                _ => Err(Errno::EPROTO),
            }
        })
    }

    /// As [`Client::set_lock`], and waits until the lock is granted or `patience` is over: then the
    /// error is `EAGAIN`. `wait` is a number that is not used again.
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
            if self.set_lock(ino, lock, 0, Some(wait), bytes)? == LockOutcome::Done {
                return Ok(());
            }
            let left = end.saturating_sub(uptime());
            if left.is_zero() {
                // The grant may have crossed the end of the wait. The executor decides: after a
                // grant, the lock is held.
                return match self.cancel_lock(ino, lock, 0, wait, bytes)? {
                    true => Ok(()),
                    false => Err(Errno::EAGAIN),
                };
            }
            let mut news = self.locks.notices.lock();
            // The wait is short although notifications come: they may get lost, since executors
            // send each once.
            if !news.ready.remove(&wait) {
                self.locks.notified.wait_for(&mut news, pause.min(left));
            }
            pause = (pause * 2).min(LOCK_RETRY_INTERVAL / 4);
        }
    }

    /// Releases the owner's locks of these bytes.
    ///
    /// # Errors
    /// `EHOSTDOWN`: the executor learns of it when it is back. `ENOLCK`: the lock stays, since its
    /// two parts would be too many locks.
    pub fn free_lock(
        &self,
        ino: Ino,
        (sort, owner): (LockSort, u64),
        span: ByteRange,
        bytes: &dyn LockedBytes,
    ) -> Result<(), Errno> {
        if self.locks.find_file(ino).is_none() {
            return Ok(());
        }
        self.with_file_locks(ino, bytes, |executor, session, file| {
            if !file.table(sort).holds_any(owner, span) {
                return Ok(LockAttempt::Reply(()));
            }
            if file.delegated && executor.locks.may_delegate() {
                let is_full = file.len() >= DELEGATED_LOCKS_MAX;
                if !is_full || !file.table(sort).would_split(owner, span) {
                    file.table(sort).free_span(owner, span);
                    return Ok(LockAttempt::Reply(()));
                }
                // The two parts would be too many, so the executor decides.
                match self.return_delegated(executor, ino, session, file, bytes)? {
                    LockAttempt::Reply(()) => {}
                    other => return Ok(other),
                }
            }
            // Before the release: from then on other clients may read the bytes.
            bytes.publish_writes(ino);
            let reply =
                self.send_lock_request(executor, ino, session, LockOp::Free { sort, owner, span });
            let put_again = [
                LockOpReply::UnknownSession { reclaim: true },
                LockOpReply::UnknownSession { reclaim: false },
            ];
            // The record goes, even after an error, unless the request is repeated: the caller has
            // released the lock in any case. The reclaim below makes the executor agree.
            match reply {
                Ok(RoutedLockReply::WrongExecutor) | Err(Errno::ENOLCK) => {}
                Ok(RoutedLockReply::Reply(reply)) if put_again.contains(&reply) => {}
                _ => file.table(sort).free_span(owner, span),
            }
            match reply {
                Ok(RoutedLockReply::WrongExecutor) => Ok(LockAttempt::WrongExecutor),
                Ok(RoutedLockReply::Reply(LockOpReply::Done { .. })) => Ok(LockAttempt::Reply(())),
                Ok(RoutedLockReply::Reply(LockOpReply::UnknownSession { .. })) => {
                    Ok(LockAttempt::UnknownSession)
                }
                Err(Errno::ENOLCK) => Err(Errno::ENOLCK),
                other => {
                    self.locks.notify_waiters(|news| _ = news.reclaim.insert(executor.id));
                    other.map(drop).and(Err(Errno::EPROTO))
                }
            }
        })
    }

    /// Releases all locks that were taken through an open file.
    ///
    /// # Errors
    /// Those of [`Client::free_lock`].
    pub fn free_locks_of(
        &self,
        ino: Ino,
        handle: u64,
        bytes: &dyn LockedBytes,
    ) -> Result<(), Errno> {
        let Some(file) = self.locks.find_file(ino) else { return Ok(()) };
        let locks: Vec<_> = file.lock().list_locks().filter(|(_, by)| *by == handle).collect();
        let free = |(lock, _): &(Lock, u64)| {
            self.free_lock(ino, (lock.sort, lock.owner), lock.span, bytes)
        };
        locks.iter().map(free).fold(Ok(()), Result::and)
    }

    /// Returns a lock that is in the way.
    ///
    /// # Errors
    /// `EHOSTDOWN`.
    pub fn test_lock(
        &self,
        ino: Ino,
        lock: &Lock,
        bytes: &dyn LockedBytes,
    ) -> Result<Option<Conflict>, Errno> {
        self.with_file_locks(ino, bytes, |executor, session, file| {
            if file.delegated && executor.locks.may_delegate() {
                let held = file.table(lock.sort).first_conflict(lock.owner, lock.span, lock.kind);
                return Ok(LockAttempt::Reply(held.map(|held| Conflict {
                    span: held.span,
                    kind: held.kind,
                    pid: held.tag.pid,
                })));
            }
            match self.send_lock_request(executor, ino, session, LockOp::Test { lock: *lock })? {
                RoutedLockReply::WrongExecutor => Ok(LockAttempt::WrongExecutor),
                RoutedLockReply::Reply(LockOpReply::ConflictsWith(conflict)) => {
                    Ok(LockAttempt::Reply(conflict))
                }
                RoutedLockReply::Reply(LockOpReply::UnknownSession { .. }) => {
                    Ok(LockAttempt::UnknownSession)
                }
                _ => Err(Errno::EPROTO),
            }
        })
    }

    /// Cancels a wait. Returns whether it was too late: then this client has the lock.
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
        let late = self.with_file_locks(ino, bytes, |executor, session, file| {
            match self.send_lock_request(
                executor,
                ino,
                session,
                LockOp::Cancel { wait, lock: *lock },
            ) {
                Ok(RoutedLockReply::WrongExecutor) => Ok(LockAttempt::WrongExecutor),
                Ok(RoutedLockReply::Reply(LockOpReply::WaitEnded { granted })) => {
                    if granted {
                        file.record_lock(lock, handle);
                        file.stale += 1;
                    }
                    Ok(LockAttempt::Reply(granted))
                }
                Ok(RoutedLockReply::Reply(LockOpReply::UnknownSession { .. })) => {
                    Ok(LockAttempt::UnknownSession)
                }
                other => {
                    // The executor may still grant the lock, and this client would not know. A
                    // reclaim without it makes the executor release it.
                    self.locks.notify_waiters(|news| _ = news.reclaim.insert(executor.id));
                    other.map(drop).and(Err(Errno::EPROTO))
                }
            }
        })?;
        if late {
            self.invalidate_after_lock(ino, bytes);
        }
        Ok(late)
    }

    /// Returns the open files of this client whose locks are in the way of this one.
    pub fn conflicting_handles(&self, ino: Ino, lock: &Lock) -> Vec<u64> {
        let Some(file) = self.locks.find_file(ino) else { return Vec::new() };
        let mut file = file.lock();
        let held = file.table(lock.sort).find_conflicts(lock.owner, lock.span, lock.kind);
        held.map(|held| held.tag.handle).collect()
    }

    /// Gives back the locks of `ino`, if they are delegated to this client.
    ///
    /// # Errors
    /// `EHOSTDOWN`.
    pub fn return_locks(&self, ino: Ino, bytes: &dyn LockedBytes) -> Result<(), Errno> {
        if self.locks.find_file(ino).is_none() {
            return Ok(());
        }
        self.with_file_locks(ino, bytes, |executor, session, file| match file.delegated {
            true => self.return_delegated(executor, ino, session, file, bytes),
            false => Ok(LockAttempt::Reply(())),
        })
    }

    fn return_delegated(
        &self,
        executor: &ExecutorClient,
        ino: Ino,
        session: &mut SessionGuard<'_>,
        file: &mut FileLocks,
        bytes: &dyn LockedBytes,
    ) -> Result<LockAttempt<()>, Errno> {
        // Before the executor can grant any of them to others.
        bytes.publish_writes(ino);
        let locks: Vec<_> = file.list_locks().map(|(lock, _)| lock).collect();
        // Too many for one message: a reclaim sends them in several, and ends all delegations.
        if locks.len() > LOCKS_MAX {
            return Ok(LockAttempt::UnknownSession);
        }
        match self.send_lock_request(executor, ino, session, LockOp::ReturnDelegation { locks })? {
            RoutedLockReply::WrongExecutor => Ok(LockAttempt::WrongExecutor),
            RoutedLockReply::Reply(LockOpReply::Done { .. }) => {
                file.delegated = false;
                Ok(LockAttempt::Reply(()))
            }
            RoutedLockReply::Reply(LockOpReply::UnknownSession { .. }) => {
                Ok(LockAttempt::UnknownSession)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Sends all locks of this client to an executor, which delegates nothing from then on. Locks
    /// that the executor does not accept are lost.
    ///
    /// # Errors
    /// `EHOSTDOWN`: then nothing is known.
    pub fn reclaim_locks(&self, id: ExecutorId, bytes: &dyn LockedBytes) -> Result<(), Errno> {
        let executor = self.executor_client(id)?;
        // Before the claim. If the connection breaks meanwhile, `claimed` gets an old number, and
        // the client reclaims once more.
        let connection = executor.locks.connection.load(SeqCst);
        // Alone: no request may add or remove a lock between the list of locks and the reply.
        let mut session = executor.locks.id.write();
        let mut retry = Retry::new(self.operation_timeout());
        let files = loop {
            let map = self.map();
            // Cleared before the list is made: shards that arrive later set it again, and cause
            // another reclaim.
            executor.locks.to_claim.store(false, SeqCst);
            let files: Vec<_> = {
                let files = self.locks.files.lock();
                let here = files.iter().filter(|(ino, _)| map.owner(ino.owner_shard()) == Some(id));
                here.map(|(ino, file)| (*ino, file.clone())).collect()
            };
            let mut locks = Vec::new();
            for (ino, file) in &files {
                let file = file.lock();
                // The delegation ends, so other clients may get locks that this one has granted to
                // itself.
                if file.delegated {
                    bytes.publish_writes(*ino);
                }
                locks.extend(file.list_locks().map(|(lock, _)| (*ino, lock)));
            }
            // The lease counts from before the claim was sent: the executor counts it from the
            // receipt.
            let began = uptime();
            match self.send_reclaim(&map, id, *session, &locks)? {
                ReclaimOutcome::Session(new) => {
                    *session = new;
                    executor.locks.renew_lease(began);
                }
                ReclaimOutcome::Lost => {
                    if *session != 0 || !locks.is_empty() {
                        tracing::error!(executor = %id, locks = locks.len(),
                            "we were away for too long: the locks of files are lost");
                    }
                    *session = 0;
                    files
                        .iter()
                        .for_each(|(ino, file)| drop_lost_locks(*ino, &mut file.lock(), bytes));
                }
                ReclaimOutcome::ShardsDiffer => {
                    executor.locks.require_reclaim();
                    // The executor's shards differ from those in the client's map; a newer map will
                    // make them agree.
                    if !retry.pause() {
                        return Err(Errno::EHOSTDOWN);
                    }
                    self.fetch_map_from(id.node);
                    continue;
                }
                ReclaimOutcome::NoShards => *session = 0,
            }
            break files;
        };
        // The executor delegates nothing to a client that reclaims.
        for (ino, file) in &files {
            let mut file = file.lock();
            file.delegated = false;
            self.locks.remove_idle(*ino, &mut file);
        }
        executor.locks.claimed.store(connection, SeqCst);
        Ok(())
    }

    /// Sends all of `locks` to the executor.
    fn send_reclaim(
        &self,
        map: &ClusterMap,
        executor: ExecutorId,
        mut session: u64,
        locks: &[(Ino, Lock)],
    ) -> Result<ReclaimOutcome, Errno> {
        let Some((shard, _)) =
            map.first_shards().into_iter().find(|(_, leader)| *leader == executor)
        else {
            // The executor has no shards any more.
            return Ok(ReclaimOutcome::NoShards);
        };
        // The digest lets the executor check that both mean the same shards: otherwise locks in a
        // shard that has just moved would be missed.
        let shards = map.shard_map().ok_or(Errno::EPROTO)?.digest_shards(executor);
        let target = Ino::first_in_shard(shard);
        let parts = locks.len().div_ceil(LOCKS_MAX).max(1);
        for part in 0..parts {
            let end = locks.len().min((part + 1) * LOCKS_MAX);
            let some = locks[part * LOCKS_MAX..end].to_vec();
            // `first` and `last` frame the claim: the executor replaces all locks of the session at
            // the end only.
            let (first, last) = (part == 0, part + 1 == parts);
            let op = LockOp::Reclaim { locks: some, first, last, shards };
            let op = MetaOp::Locks { ino: target, session, op };
            match self.send_to_executor(executor, &MetaCall { shard, cred: Cred::ROOT, op })? {
                MetaReply::Locks { session: id, reply: LockOpReply::Done { .. } } => session = id,
                MetaReply::WrongShard { .. }
                | MetaReply::Locks {
                    reply: LockOpReply::UnknownSession { reclaim: true }, ..
                } => {
                    return Ok(ReclaimOutcome::ShardsDiffer);
                }
                MetaReply::Locks {
                    reply: LockOpReply::UnknownSession { reclaim: false }, ..
                } => {
                    return Ok(ReclaimOutcome::Lost);
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(ReclaimOutcome::Session(session))
    }

    /// Makes sure that this client still has the locks of `ino` that it has recorded.
    ///
    /// # Errors
    /// `EHOSTDOWN` where this cannot be known.
    pub fn check_locks(&self, ino: Ino, bytes: &dyn LockedBytes) -> Result<(), Errno> {
        let executor = self.lock_executor(ino)?;
        if executor.locks.is_lease_valid() || self.locks.find_file(ino).is_none() {
            return Ok(());
        }
        self.reclaim_locks(executor.id, bytes)
    }

    /// Takes the notifications since the last call. Waits for one, no longer than `wait`.
    pub fn take_lock_notices(&self, wait: Duration) -> LockNotices {
        let mut news = self.locks.notices.lock();
        if news.is_empty() {
            self.locks.notified.wait_for(&mut news, wait);
        }
        std::mem::take(&mut news)
    }

    /// Wakes the callers of [`Client::take_lock_notices`].
    pub fn wake_lock_waiters(&self) {
        self.locks.notified.notify_all();
    }

    /// Ends all lock sessions: this client holds nothing any more. No thread may use locks
    /// meanwhile.
    pub fn end_lock_sessions(&self) {
        for (shard, id) in self.map().first_shards() {
            let Ok(executor) = self.executor_client(id) else { continue };
            let mut session = executor.locks.id.write();
            if *session == 0 {
                continue;
            }
            let op = MetaOp::Locks {
                ino: Ino::first_in_shard(shard),
                session: *session,
                op: LockOp::EndSession,
            };
            let call = MetaCall { shard, cred: Cred::ROOT, op };
            if let Err(error) = self.send_to_executor(id, &call) {
                tracing::debug!(executor = %id, %error, "it believes that we may hold locks");
            }
            *session = 0;
        }
    }
}

/// The result of a claim.
enum ReclaimOutcome {
    /// This session has the locks.
    Session(u64),
    /// Other clients may have had the locks.
    Lost,
    /// The executor has other shards than in this client's map.
    ShardsDiffer,
    /// The executor has no shards.
    NoShards,
}

/// Removes all locks of a file, which are lost.
fn drop_lost_locks(ino: Ino, file: &mut FileLocks, bytes: &dyn LockedBytes) {
    let handles: BTreeSet<u64> = file.list_locks().map(|(_, handle)| handle).collect();
    (file.whole, file.range) = (LockTable::default(), LockTable::default());
    if !handles.is_empty() {
        bytes.report_lost(ino, &handles);
    }
}
