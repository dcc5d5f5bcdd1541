//! The commit protocol of `tatami-meta` as a model; the checker visits every state.
//!
//! A [`Protocol`] has a few records on a few executors, and a few clients with a few operations
//! each. Its actions are all possible events. An operation begins, reads, prepares, commits. Any
//! message that was ever sent arrives, arrives again, or never arrives. An executor crashes and
//! restarts with its committed state. [stateright](https://docs.rs/stateright) visits all orders of
//! them and checks that
//!
//! - all answers are those of one store that applies one operation after the other
//!   (*linearizable*);
//! - in a state without further events, every operation has its answer, no record is locked and no
//!   transaction is left (*finished*). No run is endless, because no state comes twice: so every
//!   operation ends, whichever executor crashed.
//!
//! Operations *lock* the records of other executors when they first need them, and send the changes
//! with the outcome. Splits of directories read first, and have their changes *prepared*; a
//! [`Protocol`] without `locks` does so.
//!
//! The protocol is two-phase commit with presumed abort (Mohan, Lindsay and Obermarck, 1986). A
//! transaction that meets a lock may ask the coordinator of the lock's transaction for its status,
//! and have it aborted: as in Percolator (OSDI 2010), but the coordinator alone decides.
//! `ARCHITECTURE.md` describes how the code does it. A [`ProtocolDefect`] leaves a part of the
//! protocol out, to show its purpose.

mod executor;
mod locking;
mod message;
mod protocol;
mod records;

pub use message::{CommittedPart, Message, MessageBody, Transaction};
pub use protocol::{ModelState, Protocol, ProtocolAction, ProtocolDefect};
pub use records::{ModelKey, ModelOperation, ModelValue, ReadValues, Records};
