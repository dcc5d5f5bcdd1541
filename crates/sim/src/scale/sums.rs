//! What is counted while clients work.

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
    /// Operations that have come to their end.
    pub done: u64,
    /// Requests that were put to a partition that had not got the name.
    pub corrections: u64,
    /// Requests for an inode that is elsewhere than its name.
    pub seconds: u64,
    /// Requests that were answered later, since other servers had to be asked or something was locked.
    pub waits: u64,
    /// Messages between servers that were sent or received.
    pub messages: u64,
    /// Rounds of the servers, and how many of them began with being woken.
    pub rounds: u64,
    /// See `rounds`.
    pub wakes: u64,
    /// CPU time of the servers in ns, all of it …
    pub busy: Time,
    /// … and what of it went into being woken, …
    pub wake: Time,
    /// … into requests that do what was asked for, …
    pub own: Time,
    /// … into telling clients where else to ask, …
    pub corrected: Time,
    /// … into inodes that lie elsewhere than their names, …
    pub second: Time,
    /// … and into messages between servers.
    pub told: Time,
    /// CPU time of the clients, in ns.
    pub client: Time,
}

impl Sums {
    /// A request was taken; how long it takes until the commit.
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

    /// What has come since `before`.
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
