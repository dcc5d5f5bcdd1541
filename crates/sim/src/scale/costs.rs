//! Costs: CPU time, measured elsewhere and handed in, and the delays of a network.

use crate::network::VirtualTime;

/// The operations of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    /// Make an empty file.
    Create,
    /// Make a directory.
    Mkdir,
    /// Read the attributes of a file, by its name.
    Stat,
    /// Remove a file.
    Unlink,
}

impl OperationKind {
    /// All of them, in the order in which they can be done.
    pub const ALL: [OperationKind; 4] =
        [OperationKind::Create, OperationKind::Mkdir, OperationKind::Stat, OperationKind::Unlink];

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleCosts {
    /// Cost of a server for a request of each [`OperationKind`] in a full round: from the arrived
    /// bytes to the sent ones, with the rules, the store and the log.
    pub request: [VirtualTime; 4],
    /// The part of it that passes after the commit of the round, to send the reply.
    pub send: VirtualTime,
    /// Cost of a server for a request that it redirects to another partition.
    pub correction: VirtualTime,
    /// Cost of a server for a wake-up and the round as such. A server that finds more work does not
    /// sleep.
    pub wake: VirtualTime,
    /// Cost of a server for a message to another one, or from it, with the work that it causes.
    pub message: VirtualTime,
    /// Cost of a server for a record to be written, in a message to another one, or from it.
    pub record: VirtualTime,
    /// Cost of a client from a reply to its next request, of each [`OperationKind`].
    pub client: [VirtualTime; 4],
}

/// The delays of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkDelay {
    /// Delay one way between the nearest machines, in nanoseconds …
    pub near: VirtualTime,
    /// … and between the farthest. Pairs lie evenly between.
    pub far: VirtualTime,
}

impl NetworkDelay {
    /// No time at all.
    pub const NONE: NetworkDelay = NetworkDelay { near: 0, far: 0 };
    /// Machines of one hall with Ethernet and the kernel's TCP, 25 to 50 µs one way: interrupts,
    /// both stacks and one to three switches. Data centres of 2011 had round trips of 200 to 500
    /// µs, most of it in software ("It's Time for Low Latency", Rumble et al., HotOS 2011). A round
    /// trip of 50 to 100 µs is usual now within a hall.
    pub const ETHERNET: NetworkDelay = NetworkDelay { near: 25_000, far: 50_000 };
    /// A fabric of InfiniBand class, 1.5 to 2.5 µs one way: past the kernel, through two adapters
    /// and up to three switches. A small message of RDMA takes 1 to 2 µs ("Design Guidelines for
    /// High Performance RDMA Systems", Kalia et al., USENIX ATC 2016).
    pub const INFINIBAND: NetworkDelay = NetworkDelay { near: 1_500, far: 2_500 };
    /// Sites some 1,000 km apart: light takes 5 µs a km in glass, so 5 ms one way, within a tenth.
    pub const WIDE: NetworkDelay = NetworkDelay { near: 4_500_000, far: 5_500_000 };

    /// Returns the delay one way between these two; always the same.
    pub(super) fn delay_between(&self, a: u64, b: u64) -> VirtualTime {
        let place = (a << 32 | b).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        self.near + place % (self.far - self.near + 1)
    }
}

/// The CPUs of servers and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machines {
    /// Each server and each client has its own.
    Each,
    /// All share one, as in the measurements. A server or client waits for its turn, and works
    /// until it has nothing left to do.
    One,
}
