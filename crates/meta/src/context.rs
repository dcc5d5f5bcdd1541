//! The configuration of a namespace, and the circumstances of an operation.

use tatami_wire::{ClientId, ExecutorId, ShardMap, Timestamp, VolumeId, VolumeKey};

/// The configuration of an executor's namespace.
#[derive(Clone, Debug)]
pub struct MetaConfig {
    /// The executor that serves it.
    pub executor: ExecutorId,
    /// The assignment of all shards to executors.
    pub map: ShardMap,
    /// The volume it belongs to. The hash that orders names is seeded with it.
    pub volume: VolumeId,
    /// Signs capabilities.
    pub key: VolumeKey,
}

/// The circumstances of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationContext {
    /// The time, by the daemon's clock.
    pub now: Timestamp,
    /// The requesting client.
    pub client: ClientId,
    /// The client's connection.
    pub slot: u32,
    /// Rises with every request on the slot.
    pub seq: u64,
    /// Whether the requesting process knows the volume's key or is the superuser on the daemon's
    /// machine. Only those may do housekeeping.
    pub trusted: bool,
}
