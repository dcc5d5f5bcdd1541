//! The lock table: which clients hold which locks of the files of this node's shards, which wait,
//! and which files' locks are delegated.
//!
//! Pure bookkeeping, as `delegations`: the executor supplies the time and sends the messages. Locks
//! belong to the session of a client. Only the client knows the locks that its session held when
//! the daemon before this one ended. So no lock is granted before all these clients have reclaimed
//! their locks, or their lease is over.

mod deadlock;
mod lock_session;
mod session;
#[cfg(test)]
mod tests;

use lock_session::ServerLockSession;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use tatami_tables::LockTable;
use tatami_wire::lock::{
    ByteRange, Conflict, LOCKS_MAX, Lock, LockKind, LockOp, LockOpReply, LockSort,
};
use tatami_wire::meta::{MetaReply, MetaResult};
use tatami_wire::{ClientId, Errno, Ino, hash};

/// Most locks that one client holds.
const HELD_MAX: usize = 1 << 16;
/// Most requests of one client that wait.
const WAITS_MAX: usize = 4096;
/// Most clients with a session.
const SESSIONS_MAX: usize = 1 << 16;
/// Most files whose locks are delegated to one client. Beyond that, each further request recalls
/// one.
const DELEGATED_MAX: usize = 1 << 15;
/// Recalled locks are not delegated again for this time: several clients work with them.
const CONTENDED: Duration = Duration::from_secs(1);
/// Most files that are remembered for that; at this number, the expired ones are removed.
const CONTENDED_SWEEP: usize = 4096;

/// The owner of a lock, unique among all clients.
type LockOwner = (ClientId, u64);

/// The locks of one file.
#[derive(Debug, Default)]
struct LockedFile {
    whole: LockTable<LockOwner, u32>,
    range: LockTable<LockOwner, u32>,
    /// Oldest first.
    waiters: VecDeque<LockWaiter>,
    /// Waits that have been granted, until their clients know.
    granted_waits: BTreeSet<(ClientId, u64)>,
    /// The client that grants and frees the locks of this file by itself. The tables' entries for
    /// it are old.
    delegated: Option<ClientId>,
}

#[derive(Clone, Copy, Debug)]
struct LockWaiter {
    client: ClientId,
    wait: u64,
    lock: Lock,
}

impl LockedFile {
    fn table(&self, sort: LockSort) -> &LockTable<LockOwner, u32> {
        match sort {
            LockSort::Whole => &self.whole,
            LockSort::Range => &self.range,
        }
    }

    fn table_mut(&mut self, sort: LockSort) -> &mut LockTable<LockOwner, u32> {
        match sort {
            LockSort::Whole => &mut self.whole,
            LockSort::Range => &mut self.range,
        }
    }

    fn len(&self) -> usize {
        self.whole.len() + self.range.len()
    }

    fn is_unused(&self) -> bool {
        self.len() == 0
            && self.waiters.is_empty()
            && self.granted_waits.is_empty()
            && self.delegated.is_none()
    }

    /// Whether the client holds a lock, waits for one, or has the locks delegated.
    fn concerns_client(&self, client: ClientId) -> bool {
        let own = (client, 0)..=(client, u64::MAX);
        self.whole.holds_any_of(own.clone())
            || self.range.holds_any_of(own)
            || self.delegated == Some(client)
            || self.waiters.iter().any(|waiter| waiter.client == client)
            || self.granted_waits.range((client, 0)..=(client, u64::MAX)).next().is_some()
    }

    /// Whether another client holds a lock.
    fn is_held_by_others(&self, client: ClientId) -> bool {
        let (before, after) = (..(client, 0), (client, u64::MAX));
        [&self.whole, &self.range].into_iter().any(|table| {
            let after = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
            table.holds_any_of(before) || table.holds_any_of(after)
        })
    }

    fn drop_client(&mut self, client: ClientId) {
        self.whole.retain(|held| held.owner.0 != client);
        self.range.retain(|held| held.owner.0 != client);
        self.waiters.retain(|waiter| waiter.client != client);
        self.granted_waits.retain(|(of, _)| *of != client);
        if self.delegated == Some(client) {
            self.delegated = None;
        }
    }
}

/// The notifications for one client.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientLockNotices {
    /// Files whose locks the client must give back.
    pub(crate) wanted: Vec<Ino>,
    /// Waits that have ended.
    pub(crate) ready: Vec<u64>,
}

/// The outcome of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum LockDecision {
    /// The answer.
    Reply(MetaResult),
    /// The request must be put again when [`ServerLocks::take_woken`] returns true.
    Deferred,
}

/// A request about locks, with its client.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) client: ClientId,
    pub(crate) session: u64,
    pub(crate) ino: Ino,
    pub(crate) op: LockOp,
    /// Locks may be delegated to the client.
    pub(crate) delegates: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ServerLocks {
    files: HashMap<Ino, LockedFile, hash::HashBuilder>,
    sessions: BTreeMap<ClientId, ServerLockSession>,
    last_session: u64,
    /// Clients that held locks before our start and have not come back.
    former_clients: HashSet<ClientId>,
    /// The waits of each owner, in [`LockSort::Range`].
    waits_by_owner: BTreeMap<LockOwner, BTreeSet<(Ino, u64)>>,
    /// When the locks of a file were recalled last.
    contended: HashMap<Ino, Instant, hash::HashBuilder>,
    notices: BTreeMap<ClientId, ClientLockNotices>,
    /// Deferred requests may be answered now.
    woken: bool,
    /// A session has begun or ended.
    clients_changed: bool,
}

fn done_reply(session: u64, delegated: bool) -> LockDecision {
    lock_reply(session, LockOpReply::Done { delegated })
}

fn lock_reply(session: u64, reply: LockOpReply) -> LockDecision {
    LockDecision::Reply(Ok(MetaReply::Locks { session, reply }))
}

fn refuse_request(errno: Errno) -> LockDecision {
    LockDecision::Reply(Err(errno))
}

fn is_in_block((first, count): (u16, u16), ino: Ino) -> bool {
    ino.owner_shard().0 >= first && ino.owner_shard().0 - first < count
}

fn is_valid(lock: &Lock) -> bool {
    lock.span.is_valid() && (lock.sort == LockSort::Range || lock.span == ByteRange::ALL)
}

impl ServerLocks {
    /// Makes an empty table. The clients `before` may hold locks. Session numbers are above
    /// `first`, which must be above all numbers of the daemons before.
    pub(crate) fn new(before: HashSet<ClientId>, first: u64) -> ServerLocks {
        ServerLocks {
            files: HashMap::default(),
            sessions: BTreeMap::new(),
            last_session: first,
            former_clients: before,
            waits_by_owner: BTreeMap::new(),
            contended: HashMap::default(),
            notices: BTreeMap::new(),
            woken: false,
            clients_changed: false,
        }
    }

    /// Returns all clients that hold locks, or may hold them.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        self.sessions.keys().chain(&self.former_clients).copied().collect()
    }

    /// Returns all clients that hold, await, or may hold locks of files of these shards (the first,
    /// and their number).
    pub(crate) fn clients_with_locks(&self, block: (u16, u16)) -> Vec<ClientId> {
        let here = |client: &ClientId, session: &ServerLockSession| {
            let mut files = session.files.iter().chain(&session.delegated);
            files.any(|ino| is_in_block(block, *ino)).then_some(*client)
        };
        let here = self.sessions.iter().filter_map(|(client, session)| here(client, session));
        let mut all: Vec<_> = here.chain(self.former_clients.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Drops the locks of these shards: another node serves them now.
    pub(crate) fn forget_shards(&mut self, block: (u16, u16)) {
        self.woken = true;
        let gone: Vec<_> = self.files.extract_if(|ino, _| is_in_block(block, *ino)).collect();
        for (ino, file) in gone {
            for waiter in &file.waiters {
                self.forget_wait(ino, waiter);
            }
            for held in file.whole.iter().chain(file.range.iter()) {
                if let Some(session) = self.sessions.get_mut(&held.owner.0) {
                    session.lock_count = session.lock_count.saturating_sub(1);
                }
            }
        }
        for session in self.sessions.values_mut() {
            session.files.retain(|ino| !is_in_block(block, *ino));
            session.delegated.retain(|ino| !is_in_block(block, *ino));
        }
    }

    /// Records that shards have arrived, and that these clients may hold locks of their files. No
    /// lock is granted before these clients have reclaimed theirs, or have expired.
    pub(crate) fn expect_clients(&mut self, clients: Vec<ClientId>) {
        self.clients_changed |= !clients.is_empty();
        self.former_clients.extend(clients);
    }

    /// Whether [`ServerLocks::clients`] has changed since the last call.
    pub(crate) fn take_clients_changed(&mut self) -> bool {
        std::mem::take(&mut self.clients_changed)
    }

    /// Returns the notifications, by client.
    pub(crate) fn take_notices(&mut self) -> BTreeMap<ClientId, ClientLockNotices> {
        std::mem::take(&mut self.notices)
    }

    /// Returns whether deferred requests may have an answer now.
    pub(crate) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Answers a request, or defers it.
    pub(crate) fn apply_request(&mut self, question: &LockRequest, now: Instant) -> LockDecision {
        let LockRequest { client, session, ino, .. } = *question;
        match &question.op {
            LockOp::Reclaim { locks, first, last, .. } => {
                return self.reclaim_locks(client, session, locks, (*first, *last));
            }
            LockOp::EndSession => {
                self.end_session(client);
                return done_reply(0, false);
            }
            _ => {}
        }
        // The client may hold locks of shards that have arrived, even if it has no session here.
        if self.former_clients.contains(&client) {
            return lock_reply(0, LockOpReply::UnknownSession { reclaim: true });
        }
        let known = self.sessions.get(&client).is_some_and(|s| s.id == session);
        // The session has expired, or a daemon before has forgotten it: its locks are lost, and the
        // client must learn that.
        if !known && session != 0 {
            return lock_reply(0, LockOpReply::UnknownSession { reclaim: false });
        }
        match &question.op {
            LockOp::Set { lock, wait, delegate } => {
                let delegates = *delegate && question.delegates;
                self.set_lock(client, session, ino, lock, *wait, delegates, now)
            }
            LockOp::Free { sort, owner, span } => {
                self.free_lock(client, session, ino, *sort, *owner, *span)
            }
            LockOp::Test { lock } => self.test_lock(client, session, ino, lock, now),
            LockOp::Cancel { wait, lock } => self.cancel_wait(client, session, ino, *wait, lock),
            LockOp::ReturnDelegation { locks } => self.return_locks(client, session, ino, locks),
            LockOp::Reclaim { .. } | LockOp::EndSession => refuse_request(Errno::EINVAL),
        }
    }

    #[allow(clippy::too_many_arguments)] // the parts of one message
    fn set_lock(
        &mut self,
        client: ClientId,
        session: u64,
        ino: Ino,
        lock: &Lock,
        wait: Option<u64>,
        delegates: bool,
        now: Instant,
    ) -> LockDecision {
        if !is_valid(lock) {
            return refuse_request(Errno::EINVAL);
        }
        let session = match session {
            0 => match self.begin_session(client) {
                Some(session) => session,
                None => return refuse_request(Errno::ENOLCK),
            },
            known => known,
        };
        let owner = (client, lock.owner);
        // The holder's own table is the truth. Its locks come back first, then this request is
        // tried again.
        if let Some(holder) = self.files.get(&ino).and_then(|file| file.delegated) {
            if holder == client {
                return lock_reply(session, LockOpReply::UnknownSession { reclaim: true });
            }
            self.recall_locks(ino, holder, now);
            return self.queue_wait(client, session, ino, lock, wait, LockDecision::Deferred);
        }
        // A lock that an absent client still holds would be granted twice.
        if !self.former_clients.is_empty() {
            return self.queue_wait(client, session, ino, lock, wait, LockDecision::Deferred);
        }
        // A lock within a longer one of another kind leaves three locks of one.
        if self.sessions.get(&client).is_none_or(|s| s.lock_count + 2 > HELD_MAX) {
            return refuse_request(Errno::ENOLCK);
        }
        // flock(2) frees the old lock before it sets a converted one: another waiter may get it in
        // between.
        let file = self.files.entry(ino).or_default();
        if lock.sort == LockSort::Whole
            && file.whole.holds_any(owner, ByteRange::ALL)
            && !file.whole.holds_all(owner, ByteRange::ALL, lock.kind)
        {
            self.change_locks(client, ino, |file| file.whole.free_span(owner, ByteRange::ALL));
            self.grant_waiting(ino);
        }
        let file = self.files.entry(ino).or_default();
        // The check precedes the wait: a wait that closes a cycle must never be recorded.
        if file.table(lock.sort).first_conflict(owner, lock.span, lock.kind).is_some() {
            if lock.sort == LockSort::Range
                && wait.is_some()
                && self.would_deadlock(owner, ino, lock)
            {
                self.stop_waiting(client, ino, wait);
                self.remove_if_unused(client, ino);
                return refuse_request(Errno::EDEADLK);
            }
            let verdict =
                self.queue_wait(client, session, ino, lock, wait, refuse_request(Errno::EAGAIN));
            self.remove_if_unused(client, ino);
            return verdict;
        }
        self.stop_waiting(client, ino, wait);
        self.grant_lock(client, ino, lock);
        if lock.kind == LockKind::Shared {
            // The lock may have been exclusive before, so waiters for a shared one may get theirs.
            self.grant_waiting(ino);
        }
        let delegated = delegates && self.delegate_file(client, ino, now);
        done_reply(session, delegated)
    }

    /// Records a wait for the lock, if the request has one. Answers `otherwise` if not.
    fn queue_wait(
        &mut self,
        client: ClientId,
        session: u64,
        ino: Ino,
        lock: &Lock,
        wait: Option<u64>,
        otherwise: LockDecision,
    ) -> LockDecision {
        let Some(wait) = wait else { return otherwise };
        let Some(of) = self.sessions.get_mut(&client) else { return otherwise };
        let file = self.files.entry(ino).or_default();
        // The client asks again under a granted wait, so it does not rely on that grant any more.
        file.granted_waits.remove(&(client, wait));
        if !file.waiters.iter().any(|w| w.client == client && w.wait == wait) {
            if of.wait_count >= WAITS_MAX {
                return refuse_request(Errno::ENOLCK);
            }
            of.wait_count += 1;
            of.files.insert(ino);
            // At the end: waiters are served in the order of their requests.
            file.waiters.push_back(LockWaiter { client, wait, lock: *lock });
            if lock.sort == LockSort::Range {
                self.waits_by_owner.entry((client, lock.owner)).or_default().insert((ino, wait));
            }
        }
        lock_reply(session, LockOpReply::Waiting)
    }

    /// Forgets a wait. Returns whether there was one that had not been granted.
    fn stop_waiting(&mut self, client: ClientId, ino: Ino, wait: Option<u64>) -> bool {
        let (Some(wait), Some(file)) = (wait, self.files.get_mut(&ino)) else { return false };
        file.granted_waits.remove(&(client, wait));
        let found = file.waiters.iter().position(|w| w.client == client && w.wait == wait);
        let Some(waiter) = found.and_then(|at| file.waiters.remove(at)) else { return false };
        self.forget_wait(ino, &waiter);
        true
    }

    fn forget_wait(&mut self, ino: Ino, waiter: &LockWaiter) {
        if let Some(session) = self.sessions.get_mut(&waiter.client) {
            session.wait_count = session.wait_count.saturating_sub(1);
        }
        let owner = (waiter.client, waiter.lock.owner);
        if let Some(waits) = self.waits_by_owner.get_mut(&owner) {
            waits.remove(&(ino, waiter.wait));
            if waits.is_empty() {
                self.waits_by_owner.remove(&owner);
            }
        }
    }

    /// Changes the client's locks of a file, and its count of locks.
    fn change_locks(&mut self, client: ClientId, ino: Ino, change: impl FnOnce(&mut LockedFile)) {
        let file = self.files.entry(ino).or_default();
        let before = file.len();
        change(file);
        let after = file.len();
        if let Some(session) = self.sessions.get_mut(&client) {
            session.lock_count = (session.lock_count + after).saturating_sub(before);
        }
    }

    fn grant_lock(&mut self, client: ClientId, ino: Ino, lock: &Lock) {
        self.change_locks(client, ino, |file| {
            let owner = (client, lock.owner);
            file.table_mut(lock.sort).set_lock(owner, lock.span, lock.kind, lock.pid);
        });
        if let Some(session) = self.sessions.get_mut(&client) {
            session.files.insert(ino);
        }
    }

    /// Grants waiting locks that have become free, the oldest first, and wakes deferred requests.
    fn grant_waiting(&mut self, ino: Ino) {
        self.woken = true;
        let Some(file) = self.files.get(&ino) else { return };
        // The recall of a delegated file has been sent already; its waiters are served when the
        // locks are back.
        if file.waiters.is_empty() || file.delegated.is_some() {
            return;
        }
        if !self.former_clients.is_empty() {
            return;
        }
        let mut at = 0;
        while let Some(waiter) = self.files.get(&ino).and_then(|file| file.waiters.get(at)).copied()
        {
            let LockWaiter { client, wait, lock } = waiter;
            let owner = (client, lock.owner);
            let free = self.files.get(&ino).is_some_and(|file| {
                file.table(lock.sort).first_conflict(owner, lock.span, lock.kind).is_none()
            });
            // A later waiter may still be free to go: waits for other ranges are not held up.
            if !free {
                at += 1;
                continue;
            }
            self.stop_waiting(client, ino, Some(wait));
            // `add` keeps the stronger of the two locks: until the client knows of the grant, it
            // must not hold less than it believes.
            self.change_locks(client, ino, |file| {
                file.table_mut(lock.sort).add_lock(owner, lock.span, lock.kind, lock.pid);
            });
            if let Some(file) = self.files.get_mut(&ino) {
                file.granted_waits.insert((client, wait));
            }
            self.notices.entry(client).or_default().ready.push(wait);
        }
    }

    fn free_lock(
        &mut self,
        client: ClientId,
        session: u64,
        ino: Ino,
        sort: LockSort,
        owner: u64,
        span: ByteRange,
    ) -> LockDecision {
        if !span.is_valid() {
            return refuse_request(Errno::EINVAL);
        }
        // Freeing nothing succeeds: the client repeats a request whose answer was lost.
        let Some(file) = self.files.get(&ino) else { return done_reply(session, false) };
        if file.delegated == Some(client) {
            return lock_reply(session, LockOpReply::UnknownSession { reclaim: true });
        }
        // A reclaim of more locks than a client may hold would be refused, and all would be lost.
        let is_full = self.sessions.get(&client).is_none_or(|s| s.lock_count >= HELD_MAX);
        if is_full && file.table(sort).would_split((client, owner), span) {
            return refuse_request(Errno::ENOLCK);
        }
        if file.table(sort).holds_any((client, owner), span) {
            // Free first, then serve the waiters, then drop the file if it is empty.
            self.change_locks(client, ino, |file| {
                file.table_mut(sort).free_span((client, owner), span)
            });
            self.grant_waiting(ino);
            self.remove_if_unused(client, ino);
        }
        done_reply(session, false)
    }

    fn test_lock(
        &mut self,
        client: ClientId,
        session: u64,
        ino: Ino,
        lock: &Lock,
        now: Instant,
    ) -> LockDecision {
        if !is_valid(lock) {
            return refuse_request(Errno::EINVAL);
        }
        match self.files.get(&ino).and_then(|file| file.delegated) {
            Some(holder) if holder == client => {
                return lock_reply(session, LockOpReply::UnknownSession { reclaim: true });
            }
            Some(holder) => {
                self.recall_locks(ino, holder, now);
                return LockDecision::Deferred;
            }
            None if !self.former_clients.is_empty() => return LockDecision::Deferred,
            None => {}
        }
        let owner = (client, lock.owner);
        let held = self
            .files
            .get(&ino)
            .and_then(|file| file.table(lock.sort).first_conflict(owner, lock.span, lock.kind));
        let conflict = held.map(|held| Conflict {
            span: held.span,
            kind: held.kind,
            // A process id has a meaning only on the client's own machine.
            pid: if held.owner.0 == client { held.tag } else { 0 },
        });
        lock_reply(session, LockOpReply::ConflictsWith(conflict))
    }

    fn cancel_wait(
        &mut self,
        client: ClientId,
        session: u64,
        ino: Ino,
        wait: u64,
        lock: &Lock,
    ) -> LockDecision {
        if !is_valid(lock) {
            return refuse_request(Errno::EINVAL);
        }
        let owner = (client, lock.owner);
        // The grant and the cancellation may have crossed. The answer states which of the two won.
        let granted = self.files.get(&ino).is_some_and(|file| {
            file.granted_waits.contains(&(client, wait))
                && file.table(lock.sort).holds_all(owner, lock.span, lock.kind)
        });
        self.stop_waiting(client, ino, Some(wait));
        if granted {
            self.grant_lock(client, ino, lock);
            self.grant_waiting(ino);
        }
        self.remove_if_unused(client, ino);
        lock_reply(session, LockOpReply::WaitEnded { granted })
    }

    /// Delegates the locks of `ino` to the client, if that is allowed now. Returns whether it did.
    fn delegate_file(&mut self, client: ClientId, ino: Ino, now: Instant) -> bool {
        let (Some(file), Some(session)) =
            (self.files.get_mut(&ino), self.sessions.get_mut(&client))
        else {
            return false;
        };
        let contended = self.contended.get(&ino).is_some_and(|at| now < *at + CONTENDED);
        // The client does not yet know of a promised lock, so its own table would lack it.
        let settled = file.waiters.is_empty() && file.granted_waits.is_empty();
        if contended || !settled || file.is_held_by_others(client) {
            return false;
        }
        if session.delegated.len() >= DELEGATED_MAX {
            // The file that is given back makes room.
            if let Some(old) = session.delegated.first() {
                self.notices.entry(client).or_default().wanted.push(*old);
            }
            return false;
        }
        file.delegated = Some(client);
        session.delegated.insert(ino);
        true
    }

    fn recall_locks(&mut self, ino: Ino, holder: ClientId, now: Instant) {
        if self.contended.len() >= CONTENDED_SWEEP {
            self.contended.retain(|_, at| now < *at + CONTENDED);
        }
        self.contended.insert(ino, now);
        let wanted = &mut self.notices.entry(holder).or_default().wanted;
        if !wanted.contains(&ino) {
            wanted.push(ino);
        }
    }

    fn return_locks(
        &mut self,
        client: ClientId,
        session: u64,
        ino: Ino,
        locks: &[Lock],
    ) -> LockDecision {
        let delegated = self.files.get(&ino).is_some_and(|file| file.delegated == Some(client));
        if !delegated || session == 0 {
            return done_reply(session, false);
        }
        if locks.len() > LOCKS_MAX || !locks.iter().all(is_valid) {
            return refuse_request(Errno::EINVAL);
        }
        self.change_locks(client, ino, |file| {
            // No other client holds a lock while the locks are delegated, so the tables hold
            // nothing else.
            (file.whole, file.range, file.delegated) =
                (LockTable::default(), LockTable::default(), None);
            for lock in locks {
                let owner = (client, lock.owner);
                file.table_mut(lock.sort).set_lock(owner, lock.span, lock.kind, lock.pid);
            }
        });
        if let Some(session) = self.sessions.get_mut(&client) {
            session.delegated.remove(&ino);
        }
        // The waiters that caused the recall get their turn now.
        self.grant_waiting(ino);
        self.remove_if_unused(client, ino);
        done_reply(session, false)
    }

    /// Drops the record of a file without locks, waits or delegation.
    fn remove_if_unused(&mut self, client: ClientId, ino: Ino) {
        let Some(file) = self.files.get(&ino) else { return };
        if !file.concerns_client(client)
            && let Some(session) = self.sessions.get_mut(&client)
        {
            session.files.remove(&ino);
        }
        if file.is_unused() {
            self.files.remove(&ino);
        }
    }
}
