//! Clients that follow the protocol, in scripts and at random, across restarts of the daemon.

use super::*;
use proptest::prelude::*;
use tatami_wire::lock::LockKind::{Exclusive, Shared};

const A: ClientId = ClientId([1; 16]);
const B: ClientId = ClientId([2; 16]);
const C: ClientId = ClientId([3; 16]);
const FILE: Ino = Ino(7);

fn span(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

fn lock(owner: u64, span: ByteRange, kind: LockKind) -> Lock {
    Lock { sort: LockSort::Range, owner, pid: owner as u32, span, kind }
}

fn flock(owner: u64, kind: LockKind) -> Lock {
    Lock { sort: LockSort::Whole, owner, pid: 1, span: ByteRange::ALL, kind }
}

/// A daemon's lock table, with clients that know their sessions.
struct Desk {
    locks: ServerLocks,
    now: Instant,
    sessions: BTreeMap<ClientId, u64>,
    delegates: bool,
}

impl Desk {
    fn new() -> Desk {
        let locks = ServerLocks::new(HashSet::new(), 0);
        Desk { locks, now: Instant::now(), sessions: BTreeMap::new(), delegates: false }
    }

    /// `None` if the request is deferred.
    fn ask(
        &mut self,
        client: ClientId,
        ino: Ino,
        op: LockOp,
    ) -> Option<Result<LockOpReply, Errno>> {
        let session = self.sessions.get(&client).copied().unwrap_or(0);
        let delegates = self.delegates;
        let question = LockRequest { client, session, ino, op, delegates };
        let LockDecision::Reply(result) = self.locks.apply_request(&question, self.now) else {
            return None;
        };
        Some(result.map(|reply| match reply {
            MetaReply::Locks { session, reply } => {
                if session != 0 {
                    self.sessions.insert(client, session);
                }
                reply
            }
            other => panic!("{other:?}"),
        }))
    }

    fn set(
        &mut self,
        client: ClientId,
        lock: Lock,
        wait: Option<u64>,
    ) -> Result<LockOpReply, Errno> {
        let op = LockOp::Set { lock, wait, delegate: true };
        self.ask(client, FILE, op).expect("an answer")
    }

    fn free(&mut self, client: ClientId, owner: u64, span: ByteRange) {
        let op = LockOp::Free { sort: LockSort::Range, owner, span };
        assert_eq!(self.ask(client, FILE, op), Some(Ok(DONE)));
    }

    fn ready(&mut self) -> Vec<u64> {
        self.locks.take_notices().into_values().flat_map(|news| news.ready).collect()
    }
}

const DONE: LockOpReply = LockOpReply::Done { delegated: false };
const DELEGATED: LockOpReply = LockOpReply::Done { delegated: true };

#[test]
fn those_who_wait_get_it_in_order() {
    let mut desk = Desk::new();
    assert_eq!(desk.set(A, lock(1, span(0, 9), Exclusive), None), Ok(DONE));
    assert_eq!(desk.set(B, lock(1, span(5, 5), Shared), None), Err(Errno::EAGAIN));
    for wait in 0..3 {
        let kind = if wait == 1 { Exclusive } else { Shared };
        assert_eq!(desk.set(B, lock(wait, span(5, 5), kind), Some(wait)), Ok(LockOpReply::Waiting));
    }
    // A repeated request keeps its place.
    assert_eq!(desk.set(B, lock(0, span(5, 5), Shared), Some(0)), Ok(LockOpReply::Waiting));
    desk.free(A, 1, span(0, 4));
    assert_eq!(desk.ready(), []);
    desk.free(A, 1, span(5, 5));
    assert_eq!(desk.ready(), [0, 2], "readers share; the writer between them waits");
    assert_eq!(desk.set(B, lock(0, span(5, 5), Shared), Some(0)), Ok(DONE));
    assert_eq!(desk.set(B, lock(2, span(5, 5), Shared), Some(2)), Ok(DONE));
    desk.free(B, 0, ByteRange::ALL);
    desk.free(B, 2, ByteRange::ALL);
    assert_eq!(desk.ready(), [1]);
    // The lock has been granted, so it is too late to cancel the wait.
    let wanted = lock(1, span(5, 5), Exclusive);
    let cancel = LockOp::Cancel { wait: 1, lock: wanted };
    assert_eq!(
        desk.ask(B, FILE, cancel.clone()),
        Some(Ok(LockOpReply::WaitEnded { granted: true }))
    );
    desk.free(B, 1, ByteRange::ALL);
    assert_eq!(desk.ask(B, FILE, cancel), Some(Ok(LockOpReply::WaitEnded { granted: false })));
}

#[test]
fn who_gives_up_waiting_gets_nothing() {
    let mut desk = Desk::new();
    assert_eq!(desk.set(A, lock(1, ByteRange::ALL, Exclusive), None), Ok(DONE));
    let wanted = lock(1, ByteRange::ALL, Exclusive);
    assert_eq!(desk.set(B, wanted, Some(5)), Ok(LockOpReply::Waiting));
    let cancel = LockOp::Cancel { wait: 5, lock: wanted };
    assert_eq!(desk.ask(B, FILE, cancel), Some(Ok(LockOpReply::WaitEnded { granted: false })));
    desk.free(A, 1, ByteRange::ALL);
    assert_eq!(desk.ready(), []);
    assert_eq!(desk.set(C, lock(1, ByteRange::ALL, Exclusive), None), Ok(DONE));
}

#[test]
fn a_test_tells_who_is_in_the_way() {
    let mut desk = Desk::new();
    assert_eq!(desk.set(A, lock(9, span(10, 19), Shared), None), Ok(DONE));
    let test = |owner| LockOp::Test { lock: lock(owner, span(0, 15), Exclusive) };
    let held = |pid| Some(Conflict { span: span(10, 19), kind: Shared, pid });
    assert_eq!(desk.ask(A, FILE, test(8)), Some(Ok(LockOpReply::ConflictsWith(held(9)))));
    assert_eq!(desk.ask(B, FILE, test(8)), Some(Ok(LockOpReply::ConflictsWith(held(0)))));
    assert_eq!(desk.ask(A, FILE, test(9)), Some(Ok(LockOpReply::ConflictsWith(None))));
}

#[test]
fn a_circle_of_waiting_is_refused() {
    let mut desk = Desk::new();
    let parts = [(A, 1, 0), (B, 1, 1), (B, 2, 2)];
    for (client, owner, at) in parts {
        assert_eq!(desk.set(client, lock(owner, span(at, at), Exclusive), None), Ok(DONE));
    }
    assert_eq!(desk.set(A, lock(1, span(1, 1), Shared), Some(1)), Ok(LockOpReply::Waiting));
    assert_eq!(desk.set(B, lock(1, span(2, 2), Shared), Some(2)), Ok(LockOpReply::Waiting));
    // A request that does not wait closes no cycle.
    assert_eq!(desk.set(B, lock(2, span(0, 0), Shared), None), Err(Errno::EAGAIN));
    assert_eq!(desk.set(B, lock(2, span(0, 0), Shared), Some(3)), Err(Errno::EDEADLK));
    desk.free(B, 2, span(2, 2));
    assert_eq!(desk.ready(), [2]);
    // flock(2) waits for ever, so that each may give up its lock first.
    assert_eq!(desk.set(A, flock(1, Shared), None), Ok(DONE));
    assert_eq!(desk.set(B, flock(1, Shared), None), Ok(DONE));
    assert_eq!(desk.set(A, flock(1, Exclusive), Some(4)), Ok(LockOpReply::Waiting));
    assert_eq!(desk.set(B, flock(1, Exclusive), Some(5)), Ok(LockOpReply::Waiting));
    assert_eq!(desk.ready(), [4]);
}

#[test]
fn what_is_delegated_is_asked_back() {
    let mut desk = Desk::new();
    desk.delegates = true;
    assert_eq!(desk.set(A, lock(1, span(0, 9), Exclusive), None), Ok(DELEGATED));
    let wanted = lock(1, span(20, 29), Exclusive);
    let set = LockOp::Set { lock: wanted, wait: None, delegate: true };
    assert_eq!(desk.ask(B, FILE, set.clone()), None, "put off");
    assert_eq!(desk.set(C, lock(1, span(0, 0), Shared), Some(1)), Ok(LockOpReply::Waiting));
    assert_eq!(desk.locks.take_notices()[&A].wanted, [FILE]);
    // A has freed one lock and taken another by itself.
    let held = vec![lock(2, span(40, 49), Shared)];
    assert_eq!(desk.ask(A, FILE, LockOp::ReturnDelegation { locks: held }), Some(Ok(DONE)));
    assert!(desk.locks.take_woken());
    assert_eq!(desk.ready(), [1]);
    assert_eq!(desk.set(C, lock(1, span(0, 0), Shared), Some(1)), Ok(DONE));
    assert_eq!(desk.ask(B, FILE, set), Some(Ok(DONE)));
    assert_eq!(desk.set(B, lock(1, span(45, 45), Exclusive), None), Err(Errno::EAGAIN));
    // Others hold a lock. Later the locks are not delegated for a while, because they were
    // recalled.
    for owner in [(A, 2), (B, 1), (C, 1)] {
        desk.free(owner.0, owner.1, ByteRange::ALL);
    }
    assert_eq!(desk.set(A, lock(1, span(0, 9), Exclusive), None), Ok(DONE));
    desk.now += CONTENDED;
    assert_eq!(desk.set(A, lock(1, span(0, 9), Exclusive), None), Ok(DELEGATED));
    // The client does not know of it any more, because its connection broke.
    let unknown = LockOpReply::UnknownSession { reclaim: true };
    assert_eq!(desk.set(A, lock(1, span(0, 9), Exclusive), None), Ok(unknown));
    let claim = LockOp::Reclaim { locks: Vec::new(), first: true, last: true, shards: 0 };
    assert_eq!(desk.ask(A, FILE, claim), Some(Ok(DONE)));
    assert_eq!(desk.set(B, lock(1, span(0, 9), Exclusive), None), Ok(DELEGATED));
}

#[test]
fn nothing_is_left_of_a_client_that_is_gone() {
    let mut desk = Desk::new();
    desk.delegates = true;
    assert_eq!(desk.set(A, lock(1, ByteRange::ALL, Exclusive), None), Ok(DELEGATED));
    assert_eq!(desk.set(B, lock(1, ByteRange::ALL, Shared), Some(1)), Ok(LockOpReply::Waiting));
    desk.locks.end_session(A);
    assert_eq!(desk.ready(), [1]);
    desk.locks.end_session(B);
    assert!(desk.locks.files.is_empty() && desk.locks.sessions.is_empty());
    assert!(desk.locks.waits_by_owner.is_empty() && desk.locks.clients().is_empty());
    // A client that comes back learns it.
    let lost = LockOpReply::UnknownSession { reclaim: false };
    assert_eq!(desk.set(A, lock(1, ByteRange::ALL, Shared), None), Ok(lost));
    let claim = LockOp::Reclaim { locks: Vec::new(), first: true, last: true, shards: 0 };
    assert_eq!(desk.ask(A, FILE, claim), Some(Ok(lost)));
}

#[test]
fn after_a_start_nothing_is_granted_before_all_have_come() {
    let mut desk = Desk::new();
    assert_eq!(desk.set(A, lock(1, span(0, 9), Exclusive), None), Ok(DONE));
    assert_eq!(desk.set(B, lock(1, span(10, 19), Exclusive), None), Ok(DONE));
    desk.locks = ServerLocks::new(HashSet::from([A, B]), 100);
    let set = LockOp::Set { lock: lock(1, span(5, 5), Shared), wait: None, delegate: true };
    assert_eq!(desk.ask(C, FILE, set.clone()), None);
    assert_eq!(desk.set(C, lock(2, span(15, 15), Shared), Some(1)), Ok(LockOpReply::Waiting));
    assert_eq!(
        desk.set(A, lock(1, ByteRange::ALL, Shared), None),
        Ok(LockOpReply::UnknownSession { reclaim: true })
    );
    let claim =
        |locks: Vec<(Ino, Lock)>, first, last| LockOp::Reclaim { locks, first, last, shards: 0 };
    let held = lock(1, span(0, 9), Exclusive);
    assert_eq!(desk.ask(A, FILE, claim(vec![(FILE, held)], true, false)), Some(Ok(DONE)));
    let more = lock(2, span(30, 39), Exclusive);
    assert_eq!(desk.ask(A, FILE, claim(vec![(FILE, more)], false, true)), Some(Ok(DONE)));
    assert_eq!(desk.ask(C, FILE, set.clone()), None, "B has not come");
    desk.locks.end_session(B);
    assert!(desk.locks.take_woken());
    assert_eq!(desk.ready(), [1]);
    assert_eq!(desk.ask(C, FILE, set), Some(Err(Errno::EAGAIN)));
    assert_eq!(desk.set(C, lock(1, span(35, 35), Shared), None), Err(Errno::EAGAIN));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut desk = Desk::new();
    let backwards = lock(1, span(9, 0), Shared);
    let far = lock(1, span(0, u64::MAX), Shared);
    let part = Lock { span: span(0, 5), ..flock(1, Shared) };
    for lock in [backwards, far, part] {
        assert_eq!(desk.set(A, lock, None), Err(Errno::EINVAL));
        assert_eq!(desk.ask(A, FILE, LockOp::Test { lock }), Some(Err(Errno::EINVAL)));
        let cancel = LockOp::Cancel { wait: 1, lock };
        assert_eq!(desk.ask(A, FILE, cancel), Some(Err(Errno::EINVAL)));
    }
    assert_eq!(desk.set(A, lock(1, ByteRange::ALL, Shared), None), Ok(DONE));
    let claim =
        LockOp::Reclaim { locks: vec![(FILE, backwards)], first: true, last: true, shards: 0 };
    assert_eq!(desk.ask(A, FILE, claim), Some(Ok(LockOpReply::UnknownSession { reclaim: false })));
}

/// One client of the random test, with the locks that it believes to hold.
#[derive(Default)]
struct Believer {
    held: BTreeMap<Ino, LockTable<u64, u32>>,
    delegated: BTreeSet<Ino>,
    waits: BTreeMap<u64, (Ino, Lock)>,
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        client: usize,
        ino: u64,
        lock: Lock,
        wait: bool,
    },
    Free {
        client: usize,
        ino: u64,
        owner: u64,
        span: ByteRange,
    },
    /// The client gets its notifications, and follows them.
    Hear(usize),
    /// The client asks for the lock that it waits for.
    Again(usize),
    Cancel(usize),
    /// The daemon dies, and another one begins.
    Restart,
    /// The client reclaims its locks.
    Claim(usize),
    /// The client dies, and its lease ends.
    Die(usize),
    Later,
}

fn steps() -> impl Strategy<Value = Step> {
    let spans = (0..8u64, 0..8u64).prop_map(|(a, b)| span(a.min(b), a.max(b)));
    let kinds = prop_oneof![Just(Shared), Just(Exclusive)];
    let locks = (0..2u64, spans.clone(), kinds).prop_map(|(o, s, k)| lock(o, s, k));
    prop_oneof![
        8 => (0..3usize, 0..2u64, locks, any::<bool>())
            .prop_map(|(client, ino, lock, wait)| Step::Set { client, ino, lock, wait }),
        4 => (0..3usize, 0..2u64, 0..2u64, spans)
            .prop_map(|(client, ino, owner, span)| Step::Free { client, ino, owner, span }),
        4 => (0..3usize).prop_map(Step::Hear),
        2 => (0..3usize).prop_map(Step::Again),
        1 => (0..3usize).prop_map(Step::Cancel),
        1 => Just(Step::Restart),
        2 => (0..3usize).prop_map(Step::Claim),
        1 => (0..3usize).prop_map(Step::Die),
        2 => Just(Step::Later),
    ]
}

struct Play {
    desk: Desk,
    believers: [Believer; 3],
    news: BTreeMap<ClientId, ClientLockNotices>,
    last_wait: u64,
    lives: u64,
}

const CLIENTS: [ClientId; 3] = [A, B, C];

impl Play {
    fn collect(&mut self) {
        for (client, news) in self.desk.locks.take_notices() {
            let all = self.news.entry(client).or_default();
            all.wanted.extend(news.wanted);
            all.ready.extend(news.ready);
        }
    }

    fn claim(&mut self, client: usize) {
        let believer = &mut self.believers[client];
        believer.delegated.clear();
        self.news.remove(&CLIENTS[client]);
        let held = believer.held.iter().flat_map(|(ino, table)| {
            table.iter().map(|h| (*ino, lock(h.owner, h.span, h.kind))).collect::<Vec<_>>()
        });
        let locks: Vec<_> = held.collect();
        if self.desk.sessions.get(&CLIENTS[client]).is_none_or(|id| *id == 0) {
            return;
        }
        let op = LockOp::Reclaim { locks, first: true, last: true, shards: 0 };
        match self.desk.ask(CLIENTS[client], FILE, op) {
            Some(Ok(LockOpReply::Done { .. })) => {}
            Some(Ok(LockOpReply::UnknownSession { reclaim: false })) => {
                self.desk.sessions.remove(&CLIENTS[client]);
                self.believers[client] = Believer::default();
            }
            other => panic!("{other:?}"),
        }
    }

    fn set(&mut self, client: usize, ino: Ino, wanted: Lock, wait: Option<u64>) {
        let believer = &mut self.believers[client];
        if believer.delegated.contains(&ino) {
            let table = believer.held.entry(ino).or_default();
            if table.first_conflict(wanted.owner, wanted.span, wanted.kind).is_none() {
                table.set_lock(wanted.owner, wanted.span, wanted.kind, 0);
                wait.map(|wait| believer.waits.remove(&wait));
                return;
            }
            if wait.is_none() {
                return;
            }
            self.give_back(client, ino);
        }
        let op = LockOp::Set { lock: wanted, wait, delegate: true };
        let answer = self.desk.ask(CLIENTS[client], ino, op);
        let believer = &mut self.believers[client];
        match answer {
            Some(Ok(LockOpReply::Done { delegated })) => {
                let table = believer.held.entry(ino).or_default();
                table.set_lock(wanted.owner, wanted.span, wanted.kind, 0);
                if delegated {
                    believer.delegated.insert(ino);
                }
                wait.map(|wait| believer.waits.remove(&wait));
            }
            Some(Ok(LockOpReply::Waiting)) => {
                wait.map(|wait| believer.waits.insert(wait, (ino, wanted)));
            }
            Some(Ok(LockOpReply::UnknownSession { .. })) => self.claim(client),
            Some(Err(Errno::EAGAIN | Errno::EDEADLK)) => {
                wait.map(|wait| believer.waits.remove(&wait));
            }
            None => {}
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, client: usize, ino: Ino) {
        if !self.believers[client].delegated.remove(&ino) {
            return;
        }
        let table = self.believers[client].held.entry(ino).or_default();
        let locks = table.iter().map(|h| lock(h.owner, h.span, h.kind)).collect();
        match self.desk.ask(CLIENTS[client], ino, LockOp::ReturnDelegation { locks }) {
            Some(Ok(LockOpReply::Done { .. })) => {}
            Some(Ok(LockOpReply::UnknownSession { .. })) => self.claim(client),
            other => panic!("{other:?}"),
        }
    }

    fn free(&mut self, client: usize, ino: Ino, owner: u64, span: ByteRange) {
        let table = self.believers[client].held.entry(ino).or_default();
        if !self.believers[client].delegated.contains(&ino) && table.holds_any(owner, span) {
            let op = LockOp::Free { sort: LockSort::Range, owner, span };
            match self.desk.ask(CLIENTS[client], ino, op) {
                Some(Ok(LockOpReply::Done { .. })) => {}
                // The request is repeated after the reclaim; in this test the lock has not been
                // freed.
                Some(Ok(LockOpReply::UnknownSession { .. })) => return self.claim(client),
                other => panic!("{other:?}"),
            }
        }
        self.believers[client].held.entry(ino).or_default().free_span(owner, span);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Set { client, ino, lock, wait } => {
                self.last_wait += 1;
                let wait = wait.then_some(self.last_wait);
                self.set(client, Ino(ino), lock, wait);
            }
            Step::Free { client, ino, owner, span } => self.free(client, Ino(ino), owner, span),
            Step::Hear(client) => {
                let ClientLockNotices { wanted, ready } =
                    self.news.remove(&CLIENTS[client]).unwrap_or_default();
                wanted.into_iter().for_each(|ino| self.give_back(client, ino));
                for wait in ready {
                    if let Some((ino, lock)) = self.believers[client].waits.get(&wait).copied() {
                        self.set(client, ino, lock, Some(wait));
                    }
                }
            }
            Step::Again(client) => {
                let first = self.believers[client].waits.iter().next();
                if let Some((wait, (ino, lock))) = first.map(|(w, l)| (*w, *l)) {
                    self.set(client, ino, lock, Some(wait));
                }
            }
            Step::Cancel(client) => {
                let Some((wait, (ino, lock))) = self.believers[client].waits.pop_first() else {
                    return;
                };
                match self.desk.ask(CLIENTS[client], ino, LockOp::Cancel { wait, lock }) {
                    Some(Ok(LockOpReply::WaitEnded { granted: true })) => {
                        let table = self.believers[client].held.entry(ino).or_default();
                        table.set_lock(lock.owner, lock.span, lock.kind, 0);
                    }
                    Some(Ok(LockOpReply::UnknownSession { .. })) => self.claim(client),
                    Some(Ok(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
            Step::Restart => {
                self.lives += 1;
                self.news.clear();
                let before = self.desk.locks.clients().into_iter().collect();
                self.desk.locks = ServerLocks::new(before, self.lives << 32);
            }
            Step::Claim(client) => self.claim(client),
            Step::Die(client) => {
                self.desk.locks.end_session(CLIENTS[client]);
                self.desk.sessions.remove(&CLIENTS[client]);
                self.news.remove(&CLIENTS[client]);
                self.believers[client] = Believer::default();
            }
            Step::Later => self.desk.now += CONTENDED,
        }
        self.collect();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    /// Whatever happens, no two clients believe to hold conflicting locks. When all clients follow
    /// their notifications, every waiter without a conflict gets its lock.
    #[test]
    fn no_two_believe_to_hold_the_same(steps in prop::collection::vec(steps(), 1..60)) {
        let mut desk = Desk::new();
        desk.delegates = true;
        let mut play = Play {
            desk,
            believers: Default::default(),
            news: BTreeMap::new(),
            last_wait: 0,
            lives: 0,
        };
        for step in steps {
            play.step(step.clone());
            let held: usize = play.desk.locks.files.values().map(LockedFile::len).sum();
            let counted: usize = play.desk.locks.sessions.values().map(|s| s.lock_count).sum();
            prop_assert_eq!(held, counted, "after {:?}", step);
            for ino in [Ino(0), Ino(1)] {
                let mut all: LockTable<(usize, u64), ()> = LockTable::default();
                for (client, believer) in play.believers.iter().enumerate() {
                    for held in believer.held.get(&ino).into_iter().flat_map(LockTable::iter) {
                        let owner = (client, held.owner);
                        let other = all.first_conflict(owner, held.span, held.kind);
                        prop_assert!(other.is_none(), "{owner:?} and {other:?} after {step:?}");
                        all.set_lock(owner, held.span, held.kind, ());
                    }
                }
            }
        }
        for (client, id) in CLIENTS.iter().enumerate() {
            play.claim(client);
            // A client without a session has nothing to reclaim, and sends a request or nothing at
            // all.
            if !play.desk.sessions.contains_key(id) {
                play.desk.locks.end_session(*id);
            }
        }
        for _ in 0..20 {
            (0..3).for_each(|client| play.step(Step::Hear(client)));
            let waits: Vec<_> = play.believers.iter().map(|b| b.waits.clone()).collect();
            for (client, waits) in waits.into_iter().enumerate() {
                for (wait, (ino, lock)) in waits {
                    play.set(client, ino, lock, Some(wait));
                    play.collect();
                }
            }
        }
        for (client, believer) in play.believers.iter().enumerate() {
            for (ino, wanted) in believer.waits.values() {
                let others = play.believers.iter().enumerate().any(|(other, b)| {
                    let owner = if other == client { wanted.owner } else { u64::MAX };
                    let table = b.held.get(ino);
                    table.is_some_and(|t| t.first_conflict(owner, wanted.span, wanted.kind).is_some())
                });
                prop_assert!(others, "{wanted:?} is in nobody's way and waits");
            }
        }
    }
}

#[test]
fn a_client_holds_no_more_locks_than_it_may_reclaim() {
    let mut desk = Desk::new();
    let set = |owner, span| LockOp::Set {
        lock: lock(owner, span, Exclusive),
        wait: None,
        delegate: false,
    };
    let free = |span| LockOp::Free { sort: LockSort::Range, owner: 1, span };
    let done = Some(Ok(LockOpReply::Done { delegated: false }));
    // Each release splits one lock into two, until there are as many as one client may hold.
    assert_eq!(desk.ask(A, FILE, set(1, span(0, u64::MAX >> 1))), done);
    for nth in 1..HELD_MAX as u64 {
        assert_eq!(desk.ask(A, FILE, free(span(2 * nth, 2 * nth))), done);
    }
    assert_eq!(desk.ask(A, FILE, free(span(1 << 40, 1 << 40))), Some(Err(Errno::ENOLCK)));
    assert_eq!(desk.ask(A, FILE, set(2, span(2, 2))), Some(Err(Errno::ENOLCK)));
    // A release that splits no lock goes on, and makes room.
    assert_eq!(desk.ask(A, FILE, free(span(0, 9))), done);
    assert_eq!(desk.ask(A, FILE, free(span(1 << 40, 1 << 40))), done);
}
