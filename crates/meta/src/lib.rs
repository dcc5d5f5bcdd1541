//! The namespace as a deterministic state machine over an ordered key-value store.
//!
//! A [`Meta`] is all shards that one node serves. It takes operations
//! ([`tatami_wire::meta::MetaOp`]) one after the other and answers them. The caller hands in the
//! time, the store, the volume's key and the identity of the client, so that the same operations in
//! the same order always give the same state. Nothing here reads a clock, draws a random number,
//! starts a thread or opens a socket.
//!
//! ```text
//! request ─▶ Meta::apply ─▶ session: has it been run?  ─▶ the operation, in a Txn
//!                             entry, rename, attr, xattr, orphan, check
//!                             │ permission, acl: may it?
//!                             ▼
//!            overlay of records not committed ─▶ Meta::commit ─▶ Store: one batch
//!
//! other nodes ─▶ Meta::receive_message, Meta::tick ─▶ transaction ─▶ Meta::commit
//!                                                        ─▶ Meta::take_outbox, take_finished
//! ```
//!
//! An answer may leave the daemon only after a [`Meta::commit`] that came after it.
//!
//! A shard has the inodes whose number carries its id. Entries lie with their directory. Records
//! that an operation needs from shards of other nodes are fetched, and changed in a transaction:
//! see `transaction`. Then the answer comes later.

mod acl;
mod attr;
mod batch;
mod cache;
mod check;
mod entry;
mod error;
mod inode;
mod job;
mod keys;
mod migration;
mod opens;
mod operation;
mod orphan;
mod overlay;
mod permission;
mod record;
mod rename;
mod session;
mod shard;
mod split;
mod state;
pub mod store;
mod tiled;
mod transaction;
mod xattr;

pub use error::MetaOpenError;
pub use migration::{MoveEvent, MoveRequest};
pub use shard::{Meta, MetaConfig, OperationContext};
pub use store::{
    BackgroundTask, FaultyStore, FjallStore, MemoryStore, Store, StoreError, StoreOptions, SyncWork,
};
pub use transaction::{Applied, FinishedOperation, OutgoingMessage, Ticket};
