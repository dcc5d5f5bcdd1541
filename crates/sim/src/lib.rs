//! The real namespace code in a world of its own: one thread, one seed, no clock.
//!
//! A [`run`] has clients that work at once on the same few names, a network that delays, loses,
//! repeats and reorders what they say, and one or several daemons around the real [`tatami_meta::Meta`]
//! that die at any step of their rounds, by a kill or a power cut. Several daemons share the namespace: what
//! they tell each other is delayed, lost, repeated and reordered, too, some of it by so much that it
//! arrives in another life; pairs of them are cut off from each other, in one direction or both; their clocks
//! differ, and are set. Then the faults stop, and it is checked that
//!
//! - every operation comes to its end (*progress*), those of clients that died excepted, and no transaction
//!   is left; while one daemon stays dead for long, all operations that do not concern it come to
//!   their end;
//! - all answers together are those of one namespace that does one operation after the other, each
//!   between its question and its answer ([linearizability](https://doi.org/10.1145/78969.78972)), so
//!   nothing acknowledged is lost and nothing is done twice; at the end the whole tree is
//!   walked through, which is part of it;
//! - the records agree with each other: those of one daemon as `fsck` understands it; those of several
//!   after all of them have been started anew: one name a directory, all inodes reached from the root,
//!   link counts, one record an inode, no entries of directories that are gone, no locks.
//!
//! ```text
//! client ─▶ network ─▶ daemon: round ─▶ Meta::apply … ─▶ Meta::commit ─▶ answers ─▶ network ─▶ client
//!    │                    ▲ other daemons' messages ◀─ network ◀─ messages ┘                      │
//!    └──────────────────── history ─▶ spec, one operation after the other ◀──────────────────────┘
//! ```
//!
//! The same seed gives the same run, event by event ([`Report::trace`]). A [`Defect`] builds a mistake
//! in, to show that it would be found.
//!
//! [`scale`] has another question: how fast a thousand servers would be, without faults.

mod client;
mod cluster;
mod daemon;
mod history;
mod inspect;
mod network;
pub mod scale;
mod spec;
mod world;

pub use daemon::{Defect, Durability};
pub use world::{Options, Report, run};
