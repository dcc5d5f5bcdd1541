//! The counts of a phase.

use super::clients::{Heard, Slot};
use super::costs::{Costs, Kind};
use crate::network::Time;

/// Sums over all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests that were sent, and that were answered.
    pub requests: u64,
    /// See `requests`.
    pub answers: u64,
    /// Finished operations.
    pub done: u64,
    /// Requests to a partition that did not have the name.
    pub corrections: u64,
    /// Requests for an inode that is elsewhere than its name.
    pub seconds: u64,
    /// Requests that were answered later, because other servers had to be asked or a record was
    /// locked.
    pub waits: u64,
    /// Messages between servers that were sent or received.
    pub messages: u64,
    /// Rounds of the servers, and how many of them began with a wake-up.
    pub rounds: u64,
    /// See `rounds`.
    pub wakes: u64,
    /// CPU time of the servers in ns, all of it …
    pub busy: Time,
    /// … and the part of wake-ups, …
    pub wake: Time,
    /// … of requests that do the operation, …
    pub own: Time,
    /// … of replies that redirect clients to another partition, …
    pub corrected: Time,
    /// … of inodes that lie elsewhere than their names, …
    pub second: Time,
    /// … and of messages between servers.
    pub told: Time,
    /// CPU time of the clients, in ns.
    pub client: Time,
}

impl Sums {
    /// Counts a request. Returns its cost until the commit.
    pub(super) fn request(&mut self, costs: &Costs, slot: &Slot, heard: Option<&Heard>) -> Time {
        let (takes, of) = match heard {
            Some(Heard::Parted(..)) => (costs.correction, &mut self.corrected),
            _ if slot.second => (costs.request[Kind::Stat.at()], &mut self.second),
            _ => (costs.request[slot.kind.at()], &mut self.own),
        };
        *of += takes;
        self.waits += u64::from(heard.is_none());
        takes.saturating_sub(costs.send)
    }

    pub(super) fn message(&mut self, takes: Time) {
        self.messages += 1;
        self.told += takes;
    }

    /// Returns the difference to an earlier reading.
    pub(super) fn since(&self, before: &Sums) -> Sums {
        Sums {
            requests: self.requests - before.requests,
            answers: self.answers - before.answers,
            done: self.done - before.done,
            corrections: self.corrections - before.corrections,
            seconds: self.seconds - before.seconds,
            waits: self.waits - before.waits,
            messages: self.messages - before.messages,
            rounds: self.rounds - before.rounds,
            wakes: self.wakes - before.wakes,
            busy: self.busy - before.busy,
            wake: self.wake - before.wake,
            own: self.own - before.own,
            corrected: self.corrected - before.corrected,
            second: self.second - before.second,
            told: self.told - before.told,
            client: self.client - before.client,
        }
    }
}
