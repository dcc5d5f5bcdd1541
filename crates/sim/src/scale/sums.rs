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
    pub peer: VirtualTime,
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
        self.peer += takes;
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
            peer: self.peer - before.peer,
            client: self.client - before.client,
        }
    }
}

/// The figures of operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalePhase {
    /// The kind of the operations …
    pub kind: OperationKind,
    /// … and whether the files were made before the directory had spread: many of those inodes are
    /// elsewhere than their names.
    pub old: bool,
    /// Number of servers.
    pub servers: u16,
    /// Virtual time in seconds.
    pub seconds: f64,
    /// Busy share of the busiest server: 0 to 1 and a little more, since a round counts when it
    /// begins.
    pub busiest: f64,
    /// Most requests and messages that waited at one server at the same time.
    pub longest: u64,
    /// The counts.
    pub sums: ScaleSums,
}

impl ScalePhase {
    /// Returns operations per second.
    pub fn ops_per_sec(&self) -> f64 {
        self.sums.done as f64 / self.seconds
    }

    /// Returns CPU time in ns divided by that of all servers, 0 to 1.
    pub fn cpu_share(&self, cpu: u64) -> f64 {
        cpu as f64 / 1e9 / self.seconds / f64::from(self.servers)
    }
}
