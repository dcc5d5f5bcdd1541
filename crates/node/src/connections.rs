//! Connections, whatever they are for: listening, handshakes, and the slots that bound them.

pub(crate) mod admission;
pub(crate) mod clients;
pub(crate) mod connection_slots;
pub(crate) mod handshakes;
pub(crate) mod listen;
pub(crate) mod pipes;
pub(crate) mod registry;

use std::time::Duration;

/// A peer that takes no bytes for this time loses its connection.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
