//! The services of a node beside its executors: bytes, administration, the relay to other nodes,
//! and the background work.

pub(crate) mod admin_connection;
pub(crate) mod data_connection;
pub(crate) mod housekeeping;
pub(crate) mod relay;
pub(crate) mod status;
