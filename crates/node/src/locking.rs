//! Requests about locks between the executor and [`Locks`]: those that are put off, the list of clients on
//! disk, and what is to be told.

use crate::holders::HoldersFile;
use crate::locks::{Locks, News, Question, Verdict};
use crate::round::Answer;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tatami_wire::lock::{Conflict, LockKind, LockOp, LockTold, Span};
use tatami_wire::meta::{MetaReply, MetaResult};
use tatami_wire::{ClientId, Errno, Timestamp};

/// So long a request waits for others to say what they hold, far less than a client waits for us. Then
/// it is answered as if they held everything: they are slow, and have not given it up.
const PUT_OFF: Duration = Duration::from_secs(10);
/// Most requests that are put off.
const PUT_OFF_MAX: usize = 16 * 1024;

/// A request that is put off.
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
    /// The oldest first.
    waiting: Vec<Waiting>,
}

impl Locking {
    /// At the start of a daemon.
    pub(crate) fn new(file: HoldersFile, now: Timestamp) -> Locking {
        // Later daemons begin with higher numbers: none begins a session a nanosecond.
        let first = now.sec.unsigned_abs() * 1_000_000_000 + u64::from(now.nsec);
        Locking { locks: Locks::new(file.read(), first), file, waiting: Vec::new() }
    }

    /// Answers a request of connection `to`, unless it must wait.
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
        // Before the client knows of its session: the daemon after us must wait for it.
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

    /// See [`Locks::forget`]. Returns answers to requests that were put off.
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

    /// These clients may soon be expected: whichever daemon is here then must know.
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

    /// A connection has ended.
    pub(crate) fn closed(&mut self, at: usize) {
        self.waiting.retain(|waiting| waiting.to != at);
    }

    /// Clients that hold something, or may.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        self.locks.clients()
    }

    /// The client was away for too long.
    pub(crate) fn expire(&mut self, client: ClientId) {
        self.locks.end(client);
        if self.locks.take_changed()
            && let Err(error) = self.file.write(&self.locks.clients())
        {
            // The daemon after us will wait for a client that does not come, no longer than a lease.
            tracing::warn!(path = %self.file.path().display(), %error, "the list of clients is old");
        }
    }

    /// See [`Locks::take_news`].
    pub(crate) fn take_news(&mut self) -> BTreeMap<ClientId, News> {
        self.locks.take_news()
    }

    /// Answers to requests that were put off.
    pub(crate) fn released(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
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

    /// When the oldest of those requests is answered anyhow.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.first().map(|waiting| waiting.since + PUT_OFF)
    }

    /// Answers to requests that were put off for too long.
    pub(crate) fn overdue(&mut self) -> Vec<Answer> {
        let now = Instant::now();
        let late = self.waiting.extract_if(.., |waiting| waiting.since + PUT_OFF <= now);
        late.map(|w| Answer::new(w.to, w.seq, slow(&w.question), None)).collect()
    }
}

/// What is answered while those do not answer who may hold a lock.
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
