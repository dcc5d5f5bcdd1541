//! The real namespace code in a world of its own: one thread, one seed, no clock.
//!
//! A [`run`] has clients that work at the same time on the same few names. A network delays, loses,
//! repeats and reorders their messages. One or several daemons around the real
//! [`tatami_meta::Meta`] die at any step of their rounds, by a kill or a power cut. Several daemons
//! share the namespace. The network treats the messages between them the same way, and delays some
//! for so long that they reach a later incarnation. Pairs of daemons are cut off from each other,
//! in one direction or both. Their clocks differ, and are set. Then the faults stop, and the run
//! checks three properties:
//!
//! - *Progress*: every operation ends, except those of clients that died, and no transaction is
//!   left. While one daemon stays dead for long, all operations that do not concern it end.
//! - *[Linearizability](https://doi.org/10.1145/78969.78972)*: all replies together are those of
//!   one namespace that does one operation after the other, each between its request and its reply.
//!   So no acknowledged operation is lost, and none is done twice. The walk through the whole tree
//!   at the end is part of the history.
//!   Files may be [small ones](SimOptions::with_small_files), with their bytes beside the inode.
//! - *Consistent records*: the records agree with each other. For one daemon, the check is that of
//!   `fsck`. For several, all daemons restart first; then each directory has one name, all inodes
//!   are reached from the root, link counts are right, each inode has one record, no removed
//!   directory has entries, and no locks are left.

mod client;
mod cluster;
mod daemon;
mod entry_names;
mod fault_world;
mod file_client;
mod file_spec;
mod history;
mod inspect;
mod network;
pub mod scale;
mod spec;

pub use daemon::{SimDefect, SimDurability};
pub use fault_world::{SimOptions, SimReport, run};
