//! Lets a thread run on the CPU of the program that it serves.
//!
//! A request wakes the thread that serves it, and the reply wakes the program. The scheduler gives
//! each of them an idle CPU, if there is one. To wake a CPU that sleeps takes longer than most
//! requests, above all in a virtual machine. While one program alone asks, and waits for each
//! reply, nothing is gained by a second CPU. So the thread then binds itself to the program's CPU,
//! which the request names. When others ask, too, the thread may run everywhere again.
//!
//! Programs that are bound to a CPU, as MPI does it, gain most. The scheduler moves others to and
//! fro between idle CPUs, at each wake-up; the thread does not follow each of these moves.

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// Consecutive requests of one connection after which the thread is bound, and consecutive requests
/// from another CPU after which it follows. A thread with several clients never gets there.
const STREAK: u32 = 24;
/// Requests in whose time [`MISSES_MAX`] counts.
const WINDOW: u32 = 64;
/// Requests of other connections in a window after which the thread is free again.
const MISSES_MAX: u32 = 6;

/// The CPUs that the daemon may use, as the administrator started it. Set by the first follower,
/// before any thread is bound.
static ALLOWED: Mutex<Option<CpuSet>> = Mutex::new(None);

/// A change of the place of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceChange {
    Bind(u8),
    Free,
}

/// The decision, without its effect.
#[derive(Debug, Default)]
struct FollowRule {
    bound: Option<u8>,
    /// The connection and CPU of the last request.
    last: Option<(usize, u8)>,
    /// Requests of the same connection that followed each other, and of the same CPU, too.
    alone: u32,
    steady: u32,
    /// Requests in the current window, and those of other connections.
    seen: u32,
    misses: u32,
}

impl FollowRule {
    fn note_request(&mut self, connection: usize, cpu: Option<u8>) -> Option<PlaceChange> {
        let Some(cpu) = cpu else {
            (self.last, self.alone, self.steady) = (None, 0, 0);
            return self.count_request(true);
        };
        let is_same = self.last.is_some_and(|(last, _)| last == connection);
        self.alone = if is_same { self.alone + 1 } else { 0 };
        self.steady = if self.last == Some((connection, cpu)) { self.steady + 1 } else { 0 };
        self.last = Some((connection, cpu));
        let streak = if self.bound.is_some() { self.steady } else { self.alone };
        if self.bound != Some(cpu) && streak >= STREAK {
            (self.bound, self.seen, self.misses) = (Some(cpu), 0, 0);
            return Some(PlaceChange::Bind(cpu));
        }
        self.count_request(!is_same)
    }

    /// Counts a request in the window of a bound thread.
    fn count_request(&mut self, is_miss: bool) -> Option<PlaceChange> {
        self.bound?;
        self.seen += 1;
        self.misses += u32::from(is_miss);
        if self.misses >= MISSES_MAX {
            (self.bound, self.alone, self.steady) = (None, 0, 0);
            return Some(PlaceChange::Free);
        }
        if self.seen >= WINDOW {
            (self.seen, self.misses) = (0, 0);
        }
        None
    }
}

/// The place of the calling thread.
#[derive(Debug)]
pub(crate) struct CpuFollower {
    rule: FollowRule,
    /// The system lets the thread be bound.
    works: bool,
}

impl CpuFollower {
    /// Makes the follower of the calling thread, and frees the thread if it was started by one that
    /// was bound.
    pub(crate) fn of_this_thread() -> CpuFollower {
        free_this_thread();
        let several = ALLOWED.lock().as_ref().is_some_and(|allowed| allowed.count() > 1);
        CpuFollower { rule: FollowRule::default(), works: several }
    }

    /// Notes a request, and binds or frees the thread. `cpu` is that of the sender, if it runs on
    /// this machine and waits for the reply.
    pub(crate) fn note_request(&mut self, connection: usize, cpu: Option<u8>) {
        if !self.works {
            return;
        }
        match self.rule.note_request(connection, cpu) {
            None => {}
            Some(PlaceChange::Free) => free_this_thread(),
            Some(PlaceChange::Bind(cpu)) => {
                let cpu = usize::from(cpu);
                let is_allowed = ALLOWED.lock().as_ref().is_some_and(|all| all.is_set(cpu));
                let mut only = CpuSet::new();
                only.set(cpu);
                if is_allowed && let Err(errno) = sched_setaffinity(None, &only) {
                    tracing::debug!(%errno, cpu, "a thread cannot follow its client");
                    self.works = false;
                }
            }
        }
    }
}

/// Lets the calling thread run on all CPUs of the daemon.
fn free_this_thread() {
    let mut allowed = ALLOWED.lock();
    let freed = match &*allowed {
        Some(allowed) => sched_setaffinity(None, allowed),
        None => sched_getaffinity(None).map(|now| *allowed = Some(now)),
    };
    if let Err(errno) = freed {
        tracing::debug!(%errno, "a thread stays on its CPU");
    }
}

/// Starts a thread that may run on all CPUs of the daemon, though its parent may be bound.
///
/// # Errors
/// No thread can be started.
pub(crate) fn spawn_unbound(
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let unbound = move || {
        free_this_thread();
        run();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(unbound).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(rule: &mut FollowRule, origins: &[(usize, Option<u8>)]) -> Vec<PlaceChange> {
        origins.iter().filter_map(|(at, cpu)| rule.note_request(*at, *cpu)).collect()
    }

    #[test]
    fn a_thread_follows_its_only_client_from_cpu_to_cpu() {
        let mut rule = FollowRule::default();
        let on = |cpu| vec![(7, Some(cpu)); 100];
        assert_eq!(feed(&mut rule, &on(3)), [PlaceChange::Bind(3)]);
        assert_eq!(feed(&mut rule, &on(1)), [PlaceChange::Bind(1)]);
        assert_eq!(feed(&mut rule, &on(1)), []);
    }

    #[test]
    fn a_client_that_moves_to_and_fro_is_not_followed_each_time() {
        let mut rule = FollowRule::default();
        let moves: Vec<_> = (0..200).map(|i| (7, Some((i % 2) as u8))).collect();
        assert_eq!(feed(&mut rule, &moves).len(), 1);
    }

    #[test]
    fn a_thread_with_several_clients_is_free() {
        let mut rule = FollowRule::default();
        let turns: Vec<_> = (0..200).map(|i| (i % 2, Some(3))).collect();
        assert_eq!(feed(&mut rule, &turns), []);
        assert_eq!(feed(&mut rule, &[(0, Some(3)); 30]), [PlaceChange::Bind(3)]);
        assert_eq!(feed(&mut rule, &turns), [PlaceChange::Free]);
    }

    #[test]
    fn clients_without_a_cpu_bind_nothing_and_free_a_thread() {
        let mut rule = FollowRule::default();
        assert_eq!(feed(&mut rule, &[(0, None); 100]), []);
        assert_eq!(feed(&mut rule, &[(0, Some(0)); 30]), [PlaceChange::Bind(0)]);
        assert_eq!(feed(&mut rule, &[(0, None); 30]), [PlaceChange::Free]);
    }

    #[test]
    fn a_few_requests_of_others_do_not_free_a_thread() {
        let mut rule = FollowRule::default();
        assert_eq!(feed(&mut rule, &[(0, Some(2)); 30]), [PlaceChange::Bind(2)]);
        let mostly: Vec<_> = (0..2000).map(|i| (usize::from(i % 60 == 0), Some(2))).collect();
        assert_eq!(feed(&mut rule, &mostly), []);
    }

    #[test]
    fn a_thread_of_a_bound_one_is_free() {
        let mut follower = CpuFollower::of_this_thread();
        let before = sched_getaffinity(None).expect("affinity");
        if before.count() < 2 {
            return tatami_skip::skip_unavailable("one CPU");
        }
        let cpu = (0..255).find(|cpu| before.is_set(usize::from(*cpu))).expect("a CPU");
        (0..100).for_each(|_| follower.note_request(0, Some(cpu)));
        assert_eq!(sched_getaffinity(None).expect("affinity").count(), 1);
        let (sender, receiver) = std::sync::mpsc::channel();
        spawn_unbound("test", move || {
            sender.send(sched_getaffinity(None).expect("affinity").count()).expect("sent");
        })
        .expect("started");
        assert_eq!(receiver.recv().expect("received"), before.count());
        (0..100).for_each(|i| follower.note_request(i, Some(cpu)));
        assert_eq!(sched_getaffinity(None).expect("affinity").count(), before.count());
    }
}
