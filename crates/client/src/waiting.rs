//! How long an operation waits for a silent node, and for which program it waits.
//!
//! One operation of a program may need several requests, to several nodes. They share one deadline:
//! the operation fails when no reply came for the operation timeout. A reply ends the silence;
//! requests after the deadline get [`GRACE`] only.
//!
//! A front end may know the program that asked for the operation ([`OperationScope::begin`]). A
//! thread that waits for a node wakes up each [`TICK`] and checks whether that program is being
//! killed. The client does not wait for FUSE_INTERRUPT instead: the kernel sends none for a process
//! that is already ending (the kernel closes its files then), and no thread may be left to read it.

use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;
use tatami_wire::Errno;

/// How long a thread waits for a node before it checks the program that asked.
pub const TICK: Duration = Duration::from_millis(100);

/// How long an operation whose deadline has passed waits for any further reply. A node that is
/// known to be away gets no more time either.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// Returns whether the program with this number is being ended, and has waited long enough to be
/// released.
pub type IsEnding = fn(asker: u32, waited: Duration) -> bool;

#[derive(Clone, Copy)]
struct OperationState {
    asker: u32,
    is_ending: IsEnding,
    /// No silence of the operation may last longer.
    limit: Duration,
    /// The start of the silence, by [`read_coarse_clock`].
    silent: Option<Duration>,
    over: Option<WaitEnd>,
}

/// Why an operation stops waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Deadline,
    AskerEnds,
}

thread_local! {
    static CURRENT: Cell<Option<OperationState>> = const { Cell::new(None) };
}

/// The work of this thread on behalf of a program, as long as this value lives.
pub struct OperationScope {
    before: Option<OperationState>,
    /// Makes the value stay in its thread.
    thread: PhantomData<*const ()>,
}

impl OperationScope {
    /// Begins an operation that the program `asker` waits for.
    pub fn begin(asker: u32, is_ending: IsEnding) -> OperationScope {
        let state =
            OperationState { asker, is_ending, limit: Duration::MAX, silent: None, over: None };
        OperationScope { before: CURRENT.replace(Some(state)), thread: PhantomData }
    }

    /// Begins a part of this thread's operation. The part is given up when a node stays silent for
    /// `limit`, because the caller can do without its reply.
    pub fn begin_part(limit: Duration) -> OperationScope {
        let (asker, is_ending) = match CURRENT.get() {
            Some(state) => (state.asker, state.is_ending),
            None => (0, (|_, _| false) as IsEnding),
        };
        let state = OperationState { asker, is_ending, limit, silent: None, over: None };
        OperationScope { before: CURRENT.replace(Some(state)), thread: PhantomData }
    }

    /// Returns whether the operation was given up because its program is being ended: it may have
    /// been done in part.
    pub fn has_asker_ended(&self) -> bool {
        CURRENT.get().is_some_and(|state| state.over == Some(WaitEnd::AskerEnds))
    }
}

impl Drop for OperationScope {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Returns the time of a clock that lags by some milliseconds and costs almost nothing. Every
/// request reads it, and hardly any ever needs it.
pub(crate) fn read_coarse_clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// The wait is over.
#[derive(Debug)]
pub(crate) struct WaitOver;

/// A time without any reply from a node.
pub(crate) struct Silence {
    began: Duration,
}

impl Silence {
    /// Returns a silence that has already lasted for `lasted`.
    pub(crate) fn new(lasted: Duration) -> Silence {
        Silence { began: read_coarse_clock().saturating_sub(lasted) }
    }

    /// Returns how long the silence has lasted.
    pub(crate) fn elapsed(&self) -> Duration {
        read_coarse_clock().saturating_sub(self.began)
    }

    /// Returns the rest of `patience`, bounded by the rest of the operation's time, if there is an
    /// operation.
    pub(crate) fn time_left(&self, patience: Duration) -> Duration {
        let now = read_coarse_clock();
        let lasted = now.saturating_sub(self.began);
        let Some(OperationState { silent, over, limit, .. }) = CURRENT.get() else {
            return patience.saturating_sub(lasted);
        };
        let patience = patience.min(limit);
        let own = patience.saturating_sub(lasted);
        if over.is_some() {
            return own.min(GRACE.saturating_sub(lasted));
        }
        // The operation's silence may be older than this one: all its requests share one deadline.
        let began = silent.unwrap_or(self.began);
        own.min(patience.saturating_sub(now.saturating_sub(began)))
    }

    /// Records one more wait in vain. Fails when it is time to give up.
    pub(crate) fn continue_waiting(&self, patience: Duration) -> Result<(), WaitOver> {
        let left = self.time_left(patience);
        let Some(mut state) = CURRENT.get() else {
            return if left.is_zero() { Err(WaitOver) } else { Ok(()) };
        };
        let began = *state.silent.get_or_insert(self.began);
        if state.over.is_none() && left.is_zero() {
            state.over = Some(WaitEnd::Deadline);
        }
        let waited = read_coarse_clock().saturating_sub(began);
        if waited >= TICK && (state.is_ending)(state.asker, waited) {
            // The check reads /proc, so that short waits do without it.
            state.over = Some(WaitEnd::AskerEnds);
        }
        CURRENT.set(Some(state));
        let ends = left.is_zero() || state.over == Some(WaitEnd::AskerEnds);
        if ends { Err(WaitOver) } else { Ok(()) }
    }

    /// Records a reply. If another silence of the operation began earlier, the operation is still
    /// waiting for that one.
    pub(crate) fn record_answer(&self) {
        if let Some(state) = CURRENT.get()
            && state.over.is_none()
            && state.silent.is_some_and(|began| began >= self.began)
        {
            CURRENT.set(Some(OperationState { silent: None, ..state }));
        }
    }
}

/// Returns whether the program that asked for this thread's operation is being ended.
pub fn is_asker_ending() -> bool {
    CURRENT.get().is_some_and(|state| state.over == Some(WaitEnd::AskerEnds))
}

/// Locks a mutex whose holder may be waiting for a node.
///
/// # Errors
/// `EHOSTDOWN` when the program that asked for this operation is being ended.
pub fn lock_interruptibly<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Errno> {
    if let Some(guard) = mutex.try_lock() {
        return Ok(guard);
    }
    let silence = Silence::new(Duration::ZERO);
    loop {
        if let Some(guard) = mutex.try_lock_for(TICK) {
            silence.record_answer();
            return Ok(guard);
        }
        // The holder has a deadline of its own, so this thread needs none. It only checks its
        // program.
        _ = silence.continue_waiting(Duration::MAX);
        if is_asker_ending() {
            return Err(Errno::EHOSTDOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: IsEnding = |_, _| false;
    /// The clock begins with the machine.
    const LONG: Duration = Duration::from_secs(10);

    fn ago(lasted: Duration) -> Silence {
        Silence::new(lasted)
    }

    #[test]
    fn all_requests_of_an_operation_have_one_deadline() {
        let operation = OperationScope::begin(7, NEVER);
        assert!(ago(LONG / 2).continue_waiting(LONG).is_ok());
        let next = ago(Duration::ZERO);
        assert!(next.time_left(LONG) <= LONG / 2, "the first silence was not ended by an answer");
        next.record_answer();
        assert!(
            next.time_left(LONG) <= LONG / 2,
            "an answer to a request that began later says nothing of the first"
        );
        assert!(ago(2 * LONG).continue_waiting(LONG).is_err());
        assert!(next.time_left(LONG) <= GRACE, "the deadline is over for all that follows");
        assert!(!operation.has_asker_ended());
        drop(operation);
        assert!(next.time_left(LONG) > LONG / 2, "another operation has a deadline of its own");
    }

    #[test]
    fn a_part_of_an_operation_may_have_less_time() {
        let operation = OperationScope::begin(7, NEVER);
        {
            let _part = OperationScope::begin_part(LONG / 4);
            assert!(ago(LONG / 8).continue_waiting(LONG).is_ok());
            assert!(ago(LONG / 2).continue_waiting(LONG).is_err());
        }
        assert!(ago(LONG / 2).continue_waiting(LONG).is_ok(), "the operation itself goes on");
        drop(operation);
        let _part = OperationScope::begin_part(LONG / 4);
        assert!(ago(LONG / 2).time_left(LONG).is_zero());
    }

    #[test]
    fn an_answer_ends_the_silence() {
        let _operation = OperationScope::begin(7, NEVER);
        let slow = ago(LONG / 2);
        assert!(slow.continue_waiting(LONG).is_ok());
        slow.record_answer();
        assert!(ago(Duration::ZERO).time_left(LONG) > LONG / 2, "a node that is slow is not away");
    }

    #[test]
    fn who_is_being_killed_waits_for_nothing() {
        let operation = OperationScope::begin(7, |asker, waited| asker == 7 && waited > LONG);
        assert!(ago(LONG / 2).continue_waiting(3 * LONG).is_ok());
        {
            let _inner = OperationScope::begin(8, NEVER);
            assert!(ago(2 * LONG).continue_waiting(3 * LONG).is_ok());
        }
        ago(LONG / 2).record_answer();
        assert!(ago(2 * LONG).continue_waiting(3 * LONG).is_err());
        assert!(operation.has_asker_ended() && is_asker_ending());
        let mutex = Mutex::new(());
        let held = mutex.lock();
        std::thread::scope(|threads| {
            let waiter = threads.spawn(|| {
                let _operation = OperationScope::begin(9, |_, _| true);
                lock_interruptibly(&mutex).is_err()
            });
            assert!(waiter.join().expect("no panic"));
        });
        drop(held);
        assert!(lock_interruptibly(&mutex).is_ok());
    }

    #[test]
    fn without_an_operation_each_wait_has_its_own_deadline() {
        assert!(ago(LONG / 2).continue_waiting(LONG).is_ok());
        assert!(ago(Duration::ZERO).time_left(LONG) > LONG / 2);
        assert!(ago(LONG).continue_waiting(LONG).is_err());
        assert!(!is_asker_ending());
    }
}
