//! What things take: CPU time, measured elsewhere and handed in, and the way through a network.

use crate::network::Time;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Make an empty file.
    Create,
    /// Make a directory.
    Mkdir,
    /// The attributes of a file, by its name.
    Stat,
    /// Remove a file.
    Unlink,
}

impl Kind {
    /// All of them, in the order in which they can be done.
    pub const ALL: [Kind; 4] = [Kind::Create, Kind::Mkdir, Kind::Stat, Kind::Unlink];

    pub(crate) fn at(self) -> usize {
        self as usize
    }
}

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// What a server takes for a request of each [`Kind`] in a full round: from the bytes that have arrived to those that
    /// leave, rules, store and log with it.
    pub request: [Time; 4],
    /// As much of it passes after the commit of the round: the answer is sent.
    pub send: Time,
    /// What a server takes for a request that is answered with where else to ask.
    pub correction: Time,
    /// What a server takes to be woken, and for the round as such. Who finds more to do does not sleep.
    pub wake: Time,
    /// What a server takes for a message to another one, or of it, and what it does then.
    pub message: Time,
    /// What a server takes for a record that is to be written, in a message to another one, or of it.
    pub record: Time,
    /// What a client takes from an answer to its next request, of each [`Kind`].
    pub client: [Time; 4],
}

/// How long messages are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// One way between those that are next to each other, in nanoseconds …
    pub near: Time,
    /// … and between those that are farthest. Pairs lie evenly between.
    pub far: Time,
}

impl Network {
    /// No time at all.
    pub const NONE: Network = Network { near: 0, far: 0 };
    /// Machines of one hall with Ethernet and the kernel's TCP, 25 to 50 µs one way: interrupts, both stacks and one to three switches. Data
    /// centres of 2011 had 200 to 500 µs there and back, of which most was software ("It's Time for Low Latency", Rumble et al.,
    /// HotOS 2011); a round trip of 50 to 100 µs is what is usual now within a hall.
    pub const ETHERNET: Network = Network { near: 25_000, far: 50_000 };
    /// A fabric of InfiniBand class, 1.5 to 2.5 µs one way: past the kernel, through two adapters and up to three switches; a
    /// small message of RDMA takes 1 to 2 µs ("Design Guidelines for High Performance RDMA Systems", Kalia et al., USENIX ATC 2016).
    pub const INFINIBAND: Network = Network { near: 1_500, far: 2_500 };
    /// Sites some 1,000 km apart: light takes 5 µs a km in glass, so 5 ms one way, within a tenth.
    pub const WIDE: Network = Network { near: 4_500_000, far: 5_500_000 };

    /// One way between these two; always the same.
    pub(super) fn between(&self, a: u64, b: u64) -> Time {
        let place = (a << 32 | b).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        self.near + place % (self.far - self.near + 1)
    }
}

/// Whose CPUs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machines {
    /// Each server and each client has its own.
    Each,
    /// All share one, as where figures are measured: who can go on waits for his turn, and works until
    /// he has nothing left to do.
    One,
}
