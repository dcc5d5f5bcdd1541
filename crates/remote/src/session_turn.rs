//! Whose turn it is on a session: one thread at a time, and for several calls if they belong
//! together.

use parking_lot::{Condvar, Mutex};
use std::thread::{self, ThreadId};

/// The thread that has the session to itself, and how often it has entered.
#[derive(Debug, Default)]
pub(crate) struct SessionTurn {
    owner: Mutex<Option<(ThreadId, usize)>>,
    freed: Condvar,
}

impl SessionTurn {
    /// Waits for the turn. A thread that has it may enter again.
    pub(crate) fn enter(&self) {
        let own = thread::current().id();
        let mut owner = self.owner.lock();
        loop {
            match &mut *owner {
                None => break *owner = Some((own, 1)),
                Some((of, times)) if *of == own => break *times += 1,
                Some(_) => self.freed.wait(&mut owner),
            }
        }
    }

    /// Gives up the turn, once for each [`SessionTurn::enter`]. Without effect for a thread that
    /// does not have it.
    pub(crate) fn leave(&self) {
        let own = thread::current().id();
        let mut owner = self.owner.lock();
        match &mut *owner {
            Some((of, times)) if *of == own && *times > 1 => *times -= 1,
            Some((of, _)) if *of == own => {
                *owner = None;
                self.freed.notify_one();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_thread_at_a_time_has_the_turn_however_often_it_enters() {
        let (turn, inside) = (Arc::new(SessionTurn::default()), Arc::new(AtomicU32::new(0)));
        let work = || {
            let (turn, inside) = (turn.clone(), inside.clone());
            thread::spawn(move || {
                for _ in 0..500 {
                    turn.enter();
                    turn.enter();
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                    turn.leave();
                    thread::yield_now();
                    assert_eq!(inside.fetch_sub(1, Ordering::Relaxed), 1);
                    turn.leave();
                }
            })
        };
        let all: Vec<_> = (0..4).map(|_| work()).collect();
        all.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        turn.leave();
        turn.enter();
    }
}
