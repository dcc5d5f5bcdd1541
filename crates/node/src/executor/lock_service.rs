//! Lock requests between the executor and [`ServerLocks`]: the deferred requests, the list of
//! clients on disk, and the notifications.

use crate::executor::answer::RoundAnswer;
use crate::executor::holders_file::HoldersFile;
use crate::executor::locks::{ClientLockNotices, LockDecision, LockRequest, ServerLocks};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tatami_wire::lock::{ByteRange, Conflict, LockKind, LockOp, LockOpReply};
use tatami_wire::meta::{MetaReply, MetaResult};
use tatami_wire::{ClientId, Errno, Timestamp};

/// How long a request waits for other clients to report their locks: far less than a client waits
/// for this daemon. Afterwards the answer assumes that they hold everything: they are slow, but
/// have not given their locks up.
const DEFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Most requests that are deferred.
const DEFERRED_MAX: usize = 16 * 1024;

/// A deferred request.
struct DeferredLockRequest {
    to: usize,
    seq: u64,
    request: LockRequest,
    since: Instant,
}

/// See the module.
pub(crate) struct LockService {
    locks: ServerLocks,
    file: HoldersFile,
    /// Oldest first.
    deferred: Vec<DeferredLockRequest>,
}

impl LockService {
    /// Makes the table at the start of a daemon.
    pub(crate) fn new(file: HoldersFile, now: Timestamp) -> LockService {
        // Later daemons begin with higher numbers: no daemon begins a session a nanosecond.
        let first = now.sec.unsigned_abs() * 1_000_000_000 + u64::from(now.nsec);
        LockService { locks: ServerLocks::new(file.read(), first), file, deferred: Vec::new() }
    }

    /// Answers a request of connection `to`; `None` if it must wait.
    pub(crate) fn handle_request(
        &mut self,
        to: usize,
        seq: u64,
        request: LockRequest,
    ) -> Option<RoundAnswer> {
        let now = Instant::now();
        match self.apply_request(&request, now) {
            LockDecision::Reply(result) => Some(RoundAnswer::new(to, seq, result, None)),
            LockDecision::Deferred if self.deferred.len() >= DEFERRED_MAX => {
                Some(RoundAnswer::new(to, seq, slow_reply(&request), None))
            }
            LockDecision::Deferred => {
                self.deferred.push(DeferredLockRequest { to, seq, request, since: now });
                None
            }
        }
    }

    fn apply_request(&mut self, request: &LockRequest, now: Instant) -> LockDecision {
        let verdict = self.locks.apply_request(request, now);
        if !self.locks.take_clients_changed() {
            return verdict;
        }
        // On disk before the client knows of its session: the next daemon must wait for this
        // client.
        match self.file.write(&self.locks.clients()) {
            Ok(()) => verdict,
            Err(error) => {
                tracing::error!(path = %self.file.path().display(), %error, "no locks: check the disk");
                if matches!(request.op, LockOp::Set { .. }) {
                    self.locks.end_session(request.client);
                    return LockDecision::Reply(Err(Errno::ENOLCK));
                }
                verdict
            }
        }
    }

    /// See [`ServerLocks::clients_with_locks`].
    pub(crate) fn clients_with_locks(&self, block: (u16, u16)) -> Vec<ClientId> {
        self.locks.clients_with_locks(block)
    }

    /// See [`ServerLocks::forget_shards`]. Returns answers to the requests that were deferred.
    pub(crate) fn forget_shards(
        &mut self,
        (first, count): (u16, u16),
        epoch: u64,
    ) -> Vec<RoundAnswer> {
        self.locks.forget_shards((first, count));
        let gone = |waiting: &mut DeferredLockRequest| {
            let shard = waiting.request.ino.owner_shard().0;
            shard >= first && shard - first < count
        };
        let elsewhere = || Ok(MetaReply::WrongShard { epoch });
        let gone = self.deferred.extract_if(.., gone);
        gone.map(|waiting| RoundAnswer::new(waiting.to, waiting.seq, elsewhere(), None)).collect()
    }

    /// Records on disk that these clients may be expected soon: the daemon that is here then must
    /// know, even after a crash.
    pub(crate) fn announce_clients(&mut self, clients: &[ClientId]) {
        let mut all = self.locks.clients();
        all.extend(clients);
        all.sort_unstable();
        all.dedup();
        self.write_clients(&all);
    }

    /// See [`ServerLocks::expect_clients`].
    pub(crate) fn expect_clients(&mut self, clients: Vec<ClientId>) {
        self.locks.expect_clients(clients);
        if self.locks.take_clients_changed() {
            self.write_clients(&self.locks.clients());
        }
    }

    fn write_clients(&self, clients: &[ClientId]) {
        if let Err(error) = self.file.write(clients) {
            tracing::error!(path = %self.file.path().display(), %error,
                "if this daemon dies, locks of files that have moved here may be granted twice: check the disk");
        }
    }

    /// Forgets the requests of a connection that has ended.
    pub(crate) fn drop_connection(&mut self, at: usize) {
        self.deferred.retain(|waiting| waiting.to != at);
    }

    /// Returns the clients that hold locks, or may hold them.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        self.locks.clients()
    }

    /// Ends the session of a client that was away for too long.
    pub(crate) fn expire_client(&mut self, client: ClientId) {
        self.locks.end_session(client);
        if self.locks.take_clients_changed()
            && let Err(error) = self.file.write(&self.locks.clients())
        {
            // The next daemon will wait in vain for this client, but no longer than a lease.
            tracing::warn!(path = %self.file.path().display(), %error, "the list of clients is old");
        }
    }

    /// See [`ServerLocks::take_notices`].
    pub(crate) fn take_notices(&mut self) -> BTreeMap<ClientId, ClientLockNotices> {
        self.locks.take_notices()
    }

    /// Returns answers to deferred requests that need not wait any more.
    pub(crate) fn retry_deferred(&mut self) -> Vec<RoundAnswer> {
        let mut answers = Vec::new();
        // A loop, because one request that succeeds may free another.
        while self.locks.take_woken() && !self.deferred.is_empty() {
            let now = Instant::now();
            for waiting in std::mem::take(&mut self.deferred) {
                match self.apply_request(&waiting.request, now) {
                    LockDecision::Reply(result) => {
                        answers.push(RoundAnswer::new(waiting.to, waiting.seq, result, None));
                    }
                    LockDecision::Deferred => self.deferred.push(waiting),
                }
            }
        }
        answers
    }

    /// Returns when the oldest deferred request must be answered anyhow.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deferred.first().map(|waiting| waiting.since + DEFER_TIMEOUT)
    }

    /// Returns answers to the requests that were deferred for too long.
    pub(crate) fn take_overdue(&mut self) -> Vec<RoundAnswer> {
        let now = Instant::now();
        let late = self.deferred.extract_if(.., |waiting| waiting.since + DEFER_TIMEOUT <= now);
        late.map(|w| RoundAnswer::new(w.to, w.seq, slow_reply(&w.request), None)).collect()
    }
}

/// Returns the answer for a request while clients that may hold the lock are silent.
fn slow_reply(request: &LockRequest) -> MetaResult {
    match request.op {
        LockOp::Test { .. } => {
            let all = Conflict { span: ByteRange::ALL, kind: LockKind::Exclusive, pid: 0 };
            let reply = LockOpReply::ConflictsWith(Some(all));
            Ok(MetaReply::Locks { session: request.session, reply })
        }
        _ => Err(Errno::EAGAIN),
    }
}
