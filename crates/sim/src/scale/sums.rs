//! The counts of a phase.

use super::clients::{ReceivedAnswer, ScaleSlot};
use super::costs::{OperationKind, ScaleCosts};
use crate::network::VirtualTime;

/// Sums over all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScaleSums {
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
    pub busy: VirtualTime,
    /// … and the part of wake-ups, …
    pub wake: VirtualTime,
    /// … of requests that do the operation, …
    pub own: VirtualTime,
    /// … of replies that redirect clients to another partition, …
    pub corrected: VirtualTime,
    /// … of inodes that lie elsewhere than their names, …
    pub second: VirtualTime,
    /// … and of messages between servers.
    pub told: VirtualTime,
    /// CPU time of the clients, in ns.
    pub client: VirtualTime,
}

impl ScaleSums {
    /// Counts a request. Returns its cost until the commit.
    pub(super) fn count_request(
        &mut self,
        costs: &ScaleCosts,
        slot: &ScaleSlot,
        heard: Option<&ReceivedAnswer>,
    ) -> VirtualTime {
        let (takes, of) = match heard {
            Some(ReceivedAnswer::WrongPartition(..)) => (costs.correction, &mut self.corrected),
            _ if slot.second => (costs.request[OperationKind::Stat.index()], &mut self.second),
            _ => (costs.request[slot.kind.index()], &mut self.own),
        };
        *of += takes;
        self.waits += u64::from(heard.is_none());
        takes.saturating_sub(costs.send)
    }

    pub(super) fn count_message(&mut self, takes: VirtualTime) {
        self.messages += 1;
        self.told += takes;
    }

    /// Returns the difference to an earlier reading.
    pub(super) fn since(&self, before: &ScaleSums) -> ScaleSums {
        ScaleSums {
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
