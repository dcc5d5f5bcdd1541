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
//! From below: `store`, `keys` and the records; `state`, which caches them; `operation`, one
//! transaction on them. Above lie the rules: `entry`, `rename`, `attr`, `tiled` and others, with
//! `execute` to choose among them. `namespace` has the state of an executor; `transaction`,
//! `migration`, `batch` and `shard` are what it does. No file imports one above it.
//!
//! An answer may leave the daemon only after a [`Meta::commit`] that came after it.
//!
//! A shard has the inodes whose number carries its id. Entries lie with their directory. Records
//! that an operation needs from shards of other nodes are fetched, and changed in a transaction:
//! see `transaction`. Then the answer comes later.

mod acl;
mod attr;
mod batch;
mod bulk_dir;
mod cache;
mod check;
mod context;
mod data_state;
mod entry;
mod error;
mod execute;
mod garbage;
mod held;
mod inline;
mod inode;
mod job;
mod keepers;
mod keys;
mod migration;
mod millis;
mod namespace;
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
mod split_rule;
mod state;
pub mod store;
mod tiled;
mod transaction;
mod whole_file;
mod writer_marks;
mod xattr;

pub use context::{MetaConfig, OperationContext};
pub use error::MetaOpenError;
pub use migration::moves::{MoveEvent, MoveRequest};
pub use namespace::Meta;
pub use split_rule::SplitLimits;
pub use store::{
    BackgroundTask, FaultyStore, FjallStore, MemoryStore, Store, StoreError, StoreOptions, SyncWork,
};
pub use transaction::messages::{
    Applied, ChangedInode, FinishedOperation, OutgoingMessage, Ticket,
};
