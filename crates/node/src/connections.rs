//! Connections, whatever they are for: sockets, handshakes, peers, and the slots that bound them.

pub(crate) mod admission;
pub(crate) mod clients;
pub(crate) mod connection_slots;
pub(crate) mod handshakes;
pub(crate) mod inbox;
pub(crate) mod listen;
pub(crate) mod peer;
pub(crate) mod pipes;
pub(crate) mod registry;
pub(crate) mod stream;
