//! The setting of a prediction.

use super::costs::{Machines, NetworkDelay, ScaleCosts};

/// Most servers of a prediction: each of them has four shards.
pub const SERVERS_MAX: u16 = 1024;

/// The setting of a prediction.
#[derive(Clone, Copy, Debug)]
pub struct ScaleSetting {
    /// Number of servers, 1 to [`SERVERS_MAX`].
    pub servers: u16,
    /// Number of client processes, all together.
    pub processes: u32,
    /// Requests that each process has under way at the same time.
    pub depth: u32,
    /// Most processes that make files in a new directory until it has spread, with one request
    /// under way each.
    pub growers: u32,
    /// The delays of messages.
    pub network: NetworkDelay,
    /// The costs of operations.
    pub costs: ScaleCosts,
    /// The CPUs of servers and clients.
    pub machines: Machines,
    /// Partitions with more entries than this split, if the limit differs from a volume's.
    pub split_above: Option<u64>,
    /// Servers take messages of other servers before requests, unlike the executor, to see the
    /// effect of that order.
    pub peers_first: bool,
    /// The seed of all random decisions.
    pub seed: u64,
}
