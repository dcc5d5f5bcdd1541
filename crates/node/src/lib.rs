//! The daemon of one node: listeners, connections and threads around the namespace (`meta`) and the
//! objects (`object`). It has no rules of a file system. It decides which clients are admitted, how
//! much work one round takes, and in what order replies leave.
//!
//! ```text
//! acceptor ─ handshakes (all on its one thread; slots and times are bounded), then admission
//!    ├─ Meta  → an executor: a thread that owns shards; drain, apply, commit once, answer
//!    ├─ Recall → an executor as well: delegations, and their recalls
//!    ├─ Peer  → an executor, too: messages of other executors, here and on other nodes
//!    ├─ Data  → a thread of its own: blocking, in order
//!    └─ Admin → likewise
//! housekeeping: removes the objects of removed inodes, expires clients, recovers sizes
//! ```

mod accept;
mod admin_connection;
mod clients;
mod clock;
mod connection_slots;
mod counters;
mod data_connection;
mod delegations;
mod executor;
mod executors;
mod handshakes;
mod holders_file;
mod housekeeping;
mod inbox;
mod job_locks;
mod links;
mod listen;
mod lock_service;
mod locks;
mod log_sync;
mod meta_connection;
mod migration;
mod node;
mod options;
mod panics;
mod peer;
mod pipes;
mod recalls;
mod relay;
mod request_check;
mod round;
mod shards;
mod shared;
mod signals;
mod stop;
mod stream;

pub use node::{NodeDaemon, RunError, StopHandle};
pub use options::{NodeOptions, StartError};
pub use panics::record_panics;
pub use tatami_object::backing_path;
