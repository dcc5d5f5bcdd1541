//! The real namespace code in a world of its own: one thread, one seed, no clock.
//!
//! A [`run`] has clients that work at once on the same few names, a network that delays, loses,
//! repeats and reorders what they say, and a daemon around the real [`tatami_meta::Meta`] that
//! dies at any step of its rounds, by a kill or a power cut. Then the faults stop, and it is checked that
//!
//! - every operation comes to its end (*progress*), those of clients that died excepted;
//! - all answers together are those of one namespace that does one operation after the other, each
//!   between its question and its answer ([linearizability](https://doi.org/10.1145/78969.78972)), so
//!   nothing acknowledged is lost and nothing is done twice;
//! - the records agree with each other, as `fsck` understands it.
//!
//! ```text
//! client ─▶ network ─▶ daemon: round ─▶ Meta::apply … ─▶ Meta::commit ─▶ answers ─▶ network ─▶ client
//!    └──────────────────── history ─▶ spec, one operation after the other ◀────────────────────┘
//! ```
//!
//! The same seed gives the same run, event by event ([`Report::trace`]). A [`Defect`] builds a mistake
//! in, to show that it would be found.

mod client;
mod daemon;
mod history;
mod network;
mod spec;
mod world;

pub use daemon::{Defect, Durability};
pub use world::{Options, Report, run};
