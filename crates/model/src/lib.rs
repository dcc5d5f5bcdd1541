//! The commit protocol of `tatami-meta` as a model of which every state is looked at.
//!
//! A [`Protocol`] has a few records on a few executors and a few clients with a few operations each.
//! Its actions are all that can happen: an operation begins, reads, prepares, commits; any message that
//! was ever sent arrives, once more or never; an executor dies and comes back with what it had
//! committed. [stateright](https://docs.rs/stateright) goes through all orders of them and checks that
//!
//! - all answers are those of one store that does one operation after the other (*linearizable*);
//! - where nothing more can happen, every operation has its answer, no record is locked and no
//!   transaction is left (*finished*). No run is endless, as no state comes twice: so everybody gets
//!   through, whoever died.
//!
//! Operations *lock* what they need of other executors as they come to it, and tell what is to be changed with the outcome. Splits
//! of directories look first, and have what they change *prepared*, which a [`Protocol`] does that does not lock.
//!
//! The protocol is two-phase commit with presumed abort (Mohan, Lindsay and Obermarck, 1986),
//! in which whoever meets a lock may ask its transaction's home how it stands, and have it aborted: as in
//! Percolator (OSDI 2010), but decided by the home alone. `ARCHITECTURE.md` says how the code does it; a
//! [`Defect`] leaves a part of it out, to show what that part is for.

mod executor;
mod locking;
mod message;
mod protocol;
mod records;

pub use message::{Message, Part, Transaction, Word};
pub use protocol::{Action, Defect, Protocol, State};
pub use records::{Answer, Key, Operation, Records, Value};
