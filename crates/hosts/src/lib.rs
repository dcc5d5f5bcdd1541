//! The machines of a volume: lists of hosts, the batch job that has them, what each machine knows
//! of itself and of the others, and the protocol by which `tatami` on one machine starts the volume
//! on all.
//!
//! Nothing here opens a connection or starts a process.

pub mod batch_job;
pub mod host_list;
pub mod host_protocol;
pub mod machine;
pub mod network;
