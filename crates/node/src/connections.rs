//! Connections, whatever they are for: listening, handshakes, and the slots that bound them.

pub(crate) mod admission;
pub(crate) mod clients;
pub(crate) mod connection_slots;
pub(crate) mod handshakes;
pub(crate) mod listen;
pub(crate) mod pipes;
pub(crate) mod registry;

use crate::counters::RefusalCounters;
use clients::ClientTable;
use connection_slots::ConnectionSlots;
use parking_lot::Mutex;
use pipes::PipePool;
use registry::ConnectionRegistry;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tatami_net::NetStream;
use tatami_wire::admin::MountInfo;

/// A peer that takes no bytes for this time loses its connection.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The connections of a node, and what it knows of their other sides.
#[derive(Default)]
pub(crate) struct NodeConnections {
    pub(crate) clients: Arc<ClientTable>,
    pub(crate) slots: Arc<ConnectionSlots>,
    /// Connections that were turned away, by reason.
    pub(crate) refusals: RefusalCounters,
    /// Those with a thread of their own.
    pub(crate) registry: ConnectionRegistry,
    /// For bytes that go from a file to a connection.
    pub(crate) pipes: PipePool,
    /// Mounts that announced themselves, by connection.
    pub(crate) mounts: Mutex<BTreeMap<u64, MountInfo>>,
    /// Connections over which the end was ordered. They close when all is done.
    pub(crate) stop_requesters: Mutex<Vec<Arc<NetStream>>>,
}
