//! Messages under way, and all other events that happen at a moment of their own.

use fastrand::Rng;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Virtual time since the run began: in microseconds in a [`run`](crate::run), in nanoseconds in a
/// [prediction](crate::scale).
pub(crate) type Time = u64;

/// The faults of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Longest delay of a message.
    pub delay: Time,
    /// Lost messages in a hundred.
    pub lost: u32,
    /// Messages in a hundred that arrive twice.
    pub repeated: u32,
}

impl Manners {
    /// The network during the faults.
    pub const BAD: Manners = Manners { delay: 5_000, lost: 10, repeated: 15 };
    /// The network afterwards.
    pub const GOOD: Manners = Manners { delay: 100, lost: 0, repeated: 0 };
}

/// Events in the order of their time; those of one moment in the order in which they were planned.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    now: Time,
    planned: u64,
    heap: BinaryHeap<Planned<E>>,
}

/// An event, with its moment and its number in the order of planning.
#[derive(Debug)]
struct Planned<E> {
    at: (Time, u64),
    event: E,
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Planned<E>) -> bool {
        self.at == other.at
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Planned<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    /// Reversed: the heap pops its greatest element first, which must be the next event.
    fn cmp(&self, other: &Planned<E>) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl<E> Agenda<E> {
    pub fn new() -> Agenda<E> {
        Agenda { now: 0, planned: 0, heap: BinaryHeap::new() }
    }

    pub fn now(&self) -> Time {
        self.now
    }

    /// Plans an event.
    pub fn after(&mut self, delay: Time, event: E) {
        self.planned += 1;
        self.heap.push(Planned { at: (self.now + delay, self.planned), event });
    }

    /// Returns the next event and advances the time to its moment.
    pub fn next(&mut self) -> Option<E> {
        let Planned { at: (time, _), event } = self.heap.pop()?;
        self.now = time;
        Some(event)
    }
}

impl<E: Clone> Agenda<E> {
    /// Sends a message: it arrives once, twice, or never.
    pub fn send(&mut self, rng: &mut Rng, manners: Manners, message: E) {
        if rng.u32(..100) < manners.lost {
            return;
        }
        if rng.u32(..100) < manners.repeated {
            self.after(1 + rng.u64(..manners.delay), message.clone());
        }
        self.after(1 + rng.u64(..manners.delay), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_time_and_ties_in_that_of_planning() {
        let mut agenda = Agenda::new();
        for (delay, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            agenda.after(delay, event);
        }
        let order: String = std::iter::from_fn(|| agenda.next()).collect();
        assert_eq!((order.as_str(), agenda.now()), ("abcd", 5));
    }

    #[test]
    fn messages_are_lost_and_repeated_as_told() {
        let mut rng = Rng::with_seed(1);
        let mut count = |lost, repeated| {
            let mut agenda = Agenda::new();
            for i in 0..1000 {
                agenda.send(&mut rng, Manners { delay: 10, lost, repeated }, i);
            }
            std::iter::from_fn(|| agenda.next()).count()
        };
        assert_eq!(count(0, 0), 1000);
        assert_eq!(count(100, 50), 0);
        assert_eq!(count(0, 100), 2000);
    }
}
