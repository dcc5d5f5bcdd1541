//! Messages under way, and all other events that happen at a moment of their own.

use fastrand::Rng;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Virtual time since the run began: in microseconds in a [`run`](crate::run), in nanoseconds in a
/// [prediction](crate::scale).
pub(crate) type VirtualTime = u64;

/// The faults of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkFaults {
    /// Longest delay of a message.
    pub delay: VirtualTime,
    /// Lost messages in a hundred.
    pub lost: u32,
    /// Messages in a hundred that arrive twice.
    pub repeated: u32,
}

impl NetworkFaults {
    /// The network during the faults.
    pub const FAULTY: NetworkFaults = NetworkFaults { delay: 5_000, lost: 10, repeated: 15 };
    /// The network afterwards.
    pub const RELIABLE: NetworkFaults = NetworkFaults { delay: 100, lost: 0, repeated: 0 };
}

/// Events in the order of their time; those of one moment in the order in which they were planned.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    now: VirtualTime,
    planned: u64,
    heap: BinaryHeap<PlannedEvent<E>>,
}

/// An event, with its moment and its number in the order of planning.
#[derive(Debug)]
struct PlannedEvent<E> {
    at: (VirtualTime, u64),
    event: E,
}

impl<E> PartialEq for PlannedEvent<E> {
    fn eq(&self, other: &PlannedEvent<E>) -> bool {
        self.at == other.at
    }
}

impl<E> Eq for PlannedEvent<E> {}

impl<E> PartialOrd for PlannedEvent<E> {
    fn partial_cmp(&self, other: &PlannedEvent<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for PlannedEvent<E> {
    /// Reversed: the heap pops its greatest element first, which must be the next event.
    fn cmp(&self, other: &PlannedEvent<E>) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl<E> EventQueue<E> {
    pub fn new() -> EventQueue<E> {
        EventQueue { now: 0, planned: 0, heap: BinaryHeap::new() }
    }

    pub fn now(&self) -> VirtualTime {
        self.now
    }

    /// Plans an event.
    pub fn schedule(&mut self, delay: VirtualTime, event: E) {
        self.planned += 1;
        self.heap.push(PlannedEvent { at: (self.now + delay, self.planned), event });
    }

    /// Returns the next event and advances the time to its moment.
    pub fn next(&mut self) -> Option<E> {
        let PlannedEvent { at: (time, _), event } = self.heap.pop()?;
        self.now = time;
        Some(event)
    }
}

impl<E: Clone> EventQueue<E> {
    /// Sends a message: it arrives once, twice, or never.
    pub fn send_message(&mut self, rng: &mut Rng, manners: NetworkFaults, message: E) {
        if rng.u32(..100) < manners.lost {
            return;
        }
        if rng.u32(..100) < manners.repeated {
            self.schedule(1 + rng.u64(..manners.delay), message.clone());
        }
        self.schedule(1 + rng.u64(..manners.delay), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_time_and_ties_in_that_of_planning() {
        let mut agenda = EventQueue::new();
        for (delay, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            agenda.schedule(delay, event);
        }
        let order: String = std::iter::from_fn(|| agenda.next()).collect();
        assert_eq!((order.as_str(), agenda.now()), ("abcd", 5));
    }

    #[test]
    fn messages_are_lost_and_repeated_as_told() {
        let mut rng = Rng::with_seed(1);
        let mut count = |lost, repeated| {
            let mut agenda = EventQueue::new();
            for i in 0..1000 {
                agenda.send_message(&mut rng, NetworkFaults { delay: 10, lost, repeated }, i);
            }
            std::iter::from_fn(|| agenda.next()).count()
        };
        assert_eq!(count(0, 0), 1000);
        assert_eq!(count(100, 50), 0);
        assert_eq!(count(0, 100), 2000);
    }
}
