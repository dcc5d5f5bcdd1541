//! Lock requests between the executor and [`Locks`]: the deferred requests, the list of clients on
//! disk, and the notifications.

use crate::holders::HoldersFile;
use crate::locks::{Locks, News, Question, Verdict};
use crate::round::Answer;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tatami_wire::lock::{Conflict, LockKind, LockOp, LockTold, Span};
use tatami_wire::meta::{MetaReply, MetaResult};
use tatami_wire::{ClientId, Errno, Timestamp};

/// How long a request waits for other clients to report their locks: far less than a client waits
/// for this daemon. Afterwards the answer assumes that they hold everything: they are slow, but
/// have not given their locks up.
const PUT_OFF: Duration = Duration::from_secs(10);
/// Most requests that are deferred.
const PUT_OFF_MAX: usize = 16 * 1024;

/// A deferred request.
struct Waiting {
    to: usize,
    seq: u64,
    question: Question,
    since: Instant,
}

/// See the module.
pub(crate) struct Locking {
    locks: Locks,
    file: HoldersFile,
    /// Oldest first.
    waiting: Vec<Waiting>,
}

impl Locking {
    /// Makes the table at the start of a daemon.
    pub(crate) fn new(file: HoldersFile, now: Timestamp) -> Locking {
        // Later daemons begin with higher numbers: no daemon begins a session a nanosecond.
        let first = now.sec.unsigned_abs() * 1_000_000_000 + u64::from(now.nsec);
        Locking { locks: Locks::new(file.read(), first), file, waiting: Vec::new() }
    }

    /// Answers a request of connection `to`; `None` if it must wait.
    pub(crate) fn ask(&mut self, to: usize, seq: u64, question: Question) -> Option<Answer> {
        let now = Instant::now();
        match self.put(&question, now) {
            Verdict::Now(result) => Some(Answer::new(to, seq, result, None)),
            Verdict::Later if self.waiting.len() >= PUT_OFF_MAX => {
                Some(Answer::new(to, seq, slow(&question), None))
            }
            Verdict::Later => {
                self.waiting.push(Waiting { to, seq, question, since: now });
                None
            }
        }
    }

    fn put(&mut self, question: &Question, now: Instant) -> Verdict {
        let verdict = self.locks.apply(question, now);
        if !self.locks.take_changed() {
            return verdict;
        }
        // On disk before the client knows of its session: the next daemon must wait for this
        // client.
        match self.file.write(&self.locks.clients()) {
            Ok(()) => verdict,
            Err(error) => {
                tracing::error!(path = %self.file.path().display(), %error, "no locks: check the disk");
                if matches!(question.op, LockOp::Set { .. }) {
                    self.locks.end(question.client);
                    return Verdict::Now(Err(Errno::ENOLCK));
                }
                verdict
            }
        }
    }

    /// See [`Locks::lockers`].
    pub(crate) fn lockers(&self, block: (u16, u16)) -> Vec<ClientId> {
        self.locks.lockers(block)
    }

    /// See [`Locks::forget`]. Returns answers to the requests that were deferred.
    pub(crate) fn forget(&mut self, (first, count): (u16, u16), epoch: u64) -> Vec<Answer> {
        self.locks.forget((first, count));
        let gone = |waiting: &mut Waiting| {
            let shard = waiting.question.ino.shard().0;
            shard >= first && shard - first < count
        };
        let elsewhere = || Ok(MetaReply::Elsewhere { epoch });
        let gone = self.waiting.extract_if(.., gone);
        gone.map(|waiting| Answer::new(waiting.to, waiting.seq, elsewhere(), None)).collect()
    }

    /// Records on disk that these clients may be expected soon: the daemon that is here then must
    /// know, even after a crash.
    pub(crate) fn foresee(&mut self, clients: &[ClientId]) {
        let mut all = self.locks.clients();
        all.extend(clients);
        all.sort_unstable();
        all.dedup();
        self.write(&all);
    }

    /// See [`Locks::expect`].
    pub(crate) fn expect(&mut self, clients: Vec<ClientId>) {
        self.locks.expect(clients);
        if self.locks.take_changed() {
            self.write(&self.locks.clients());
        }
    }

    fn write(&self, clients: &[ClientId]) {
        if let Err(error) = self.file.write(clients) {
            tracing::error!(path = %self.file.path().display(), %error,
                "if this daemon dies, locks of files that have moved here may be granted twice: check the disk");
        }
    }

    /// Forgets the requests of a connection that has ended.
    pub(crate) fn closed(&mut self, at: usize) {
        self.waiting.retain(|waiting| waiting.to != at);
    }

    /// Returns the clients that hold locks, or may hold them.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        self.locks.clients()
    }

    /// Ends the session of a client that was away for too long.
    pub(crate) fn expire(&mut self, client: ClientId) {
        self.locks.end(client);
        if self.locks.take_changed()
            && let Err(error) = self.file.write(&self.locks.clients())
        {
            // The next daemon will wait in vain for this client, but no longer than a lease.
            tracing::warn!(path = %self.file.path().display(), %error, "the list of clients is old");
        }
    }

    /// See [`Locks::take_news`].
    pub(crate) fn take_news(&mut self) -> BTreeMap<ClientId, News> {
        self.locks.take_news()
    }

    /// Returns answers to deferred requests that need not wait any more.
    pub(crate) fn released(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        // A loop, because one request that succeeds may free another.
        while self.locks.take_stirred() && !self.waiting.is_empty() {
            let now = Instant::now();
            for waiting in std::mem::take(&mut self.waiting) {
                match self.put(&waiting.question, now) {
                    Verdict::Now(result) => {
                        answers.push(Answer::new(waiting.to, waiting.seq, result, None));
                    }
                    Verdict::Later => self.waiting.push(waiting),
                }
            }
        }
        answers
    }

    /// Returns when the oldest deferred request must be answered anyhow.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.first().map(|waiting| waiting.since + PUT_OFF)
    }

    /// Returns answers to the requests that were deferred for too long.
    pub(crate) fn overdue(&mut self) -> Vec<Answer> {
        let now = Instant::now();
        let late = self.waiting.extract_if(.., |waiting| waiting.since + PUT_OFF <= now);
        late.map(|w| Answer::new(w.to, w.seq, slow(&w.question), None)).collect()
    }
}

/// Returns the answer for a request while clients that may hold the lock are silent.
fn slow(question: &Question) -> MetaResult {
    match question.op {
        LockOp::Test { .. } => {
            let all = Conflict { span: Span::ALL, kind: LockKind::Exclusive, pid: 0 };
            let told = LockTold::Held(Some(all));
            Ok(MetaReply::Locks { session: question.session, told })
        }
        _ => Err(Errno::EAGAIN),
    }
}
