//! Lets a thread run on the CPU of the program that it serves.
//!
//! A request wakes the thread that serves it, and the reply wakes the program. The scheduler gives
//! each of them an idle CPU, if there is one. To wake a CPU that sleeps takes longer than most
//! requests, above all in a virtual machine. While one program alone asks, and waits for each
//! reply, nothing is gained by a second CPU. So the thread then binds itself to the program's CPU,
//! which the request names. When requests come from elsewhere, the thread may run everywhere again.
//!
//! Programs that are bound to a CPU gain, as MPI binds them. The scheduler moves others to and fro
//! between idle CPUs, at each wake-up; the thread does not follow these moves.

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use tatami_wire::ClientId;

/// Consecutive requests of one client from one CPU after which the thread is bound.
const STREAK: u32 = 24;
/// Requests in whose time [`MISSES_MAX`] counts.
const WINDOW: u32 = 64;
/// Requests from elsewhere in a window after which the thread is free again.
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

/// Who asks, and on which CPU.
type RequestOrigin = (ClientId, u8);

/// The decision, without its effect.
#[derive(Debug, Default)]
struct FollowRule {
    /// The origin for which the thread is bound.
    bound: Option<RequestOrigin>,
    last: Option<RequestOrigin>,
    /// Requests of the same origin that followed each other.
    streak: u32,
    /// Requests in the current window, and those from elsewhere.
    seen: u32,
    misses: u32,
}

impl FollowRule {
    fn note_request(&mut self, origin: Option<RequestOrigin>) -> Option<PlaceChange> {
        self.streak = if origin.is_some() && origin == self.last { self.streak + 1 } else { 0 };
        self.last = origin;
        if let Some((_, cpu)) = origin
            && self.bound != origin
            && self.streak >= STREAK
        {
            (self.bound, self.seen, self.misses) = (origin, 0, 0);
            return Some(PlaceChange::Bind(cpu));
        }
        self.bound?;
        self.seen += 1;
        self.misses += u32::from(origin != self.bound);
        if self.misses >= MISSES_MAX {
            (self.bound, self.streak) = (None, 0);
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

    /// Notes a request of `client`, and binds or frees the thread. `cpu` is that of the sender, if
    /// it runs on this machine and waits for the reply.
    pub(crate) fn note_request(&mut self, client: ClientId, cpu: Option<u8>) {
        if !self.works {
            return;
        }
        match self.rule.note_request(cpu.map(|cpu| (client, cpu))) {
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

    const FIRST: ClientId = ClientId([1; 16]);
    const SECOND: ClientId = ClientId([2; 16]);

    fn feed(
        rule: &mut FollowRule,
        origins: impl IntoIterator<Item = (ClientId, Option<u8>)>,
    ) -> Vec<PlaceChange> {
        let note =
            |(client, cpu): (ClientId, Option<u8>)| rule.note_request(cpu.map(|cpu| (client, cpu)));
        origins.into_iter().filter_map(note).collect()
    }

    #[test]
    fn a_thread_follows_its_only_client_from_cpu_to_cpu() {
        let mut rule = FollowRule::default();
        let on = |cpu| [(FIRST, Some(cpu)); 100];
        assert_eq!(feed(&mut rule, on(3)), [PlaceChange::Bind(3)]);
        assert_eq!(feed(&mut rule, on(1)), [PlaceChange::Free, PlaceChange::Bind(1)]);
        assert_eq!(feed(&mut rule, on(1)), []);
    }

    #[test]
    fn a_client_that_moves_to_and_fro_is_not_followed() {
        let mut rule = FollowRule::default();
        assert_eq!(feed(&mut rule, (0..200).map(|i| (FIRST, Some(i % 2)))), []);
    }

    #[test]
    fn a_thread_with_several_clients_is_free() {
        let mut rule = FollowRule::default();
        let turns = || (0..200).map(|i| (if i % 2 == 0 { FIRST } else { SECOND }, Some(3)));
        assert_eq!(feed(&mut rule, turns()), []);
        assert_eq!(feed(&mut rule, [(FIRST, Some(3)); 30]), [PlaceChange::Bind(3)]);
        assert_eq!(feed(&mut rule, turns()), [PlaceChange::Free]);
    }

    #[test]
    fn clients_without_a_cpu_bind_nothing_and_free_a_thread() {
        let mut rule = FollowRule::default();
        assert_eq!(feed(&mut rule, [(FIRST, None); 100]), []);
        assert_eq!(feed(&mut rule, [(FIRST, Some(0)); 30]), [PlaceChange::Bind(0)]);
        assert_eq!(feed(&mut rule, [(FIRST, None); 30]), [PlaceChange::Free]);
    }

    #[test]
    fn a_few_requests_of_others_do_not_free_a_thread() {
        let mut rule = FollowRule::default();
        assert_eq!(feed(&mut rule, [(FIRST, Some(2)); 30]), [PlaceChange::Bind(2)]);
        let mostly = (0..2000).map(|i| (if i % 60 == 0 { SECOND } else { FIRST }, Some(2)));
        assert_eq!(feed(&mut rule, mostly), []);
    }

    #[test]
    fn a_thread_of_a_bound_one_is_free() {
        let mut follower = CpuFollower::of_this_thread();
        let before = sched_getaffinity(None).expect("affinity");
        if before.count() < 2 {
            return tatami_skip::skip_unavailable("one CPU");
        }
        let cpu = (0..255).find(|cpu| before.is_set(usize::from(*cpu))).expect("a CPU");
        (0..100).for_each(|_| follower.note_request(FIRST, Some(cpu)));
        assert_eq!(sched_getaffinity(None).expect("affinity").count(), 1);
        let (sender, receiver) = std::sync::mpsc::channel();
        spawn_unbound("test", move || {
            sender.send(sched_getaffinity(None).expect("affinity").count()).expect("sent");
        })
        .expect("started");
        assert_eq!(receiver.recv().expect("received"), before.count());
        (0..100).for_each(|_| follower.note_request(SECOND, None));
        assert_eq!(sched_getaffinity(None).expect("affinity").count(), before.count());
    }
}
