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
//!
//! From below: `connections` are sockets, handshakes and slots; `context` has the parts that all
//! threads share; `executor` serves names; `services` do the rest; `accept` hands each connection
//! to one of the two; `node` starts and ends it all. No file uses one above it.

mod accept;
mod clock;
mod connections;
mod context;
mod counters;
mod cpu_follower;
mod current_map;
mod dial;
mod disk;
mod executor;
mod node;
mod options;
mod panics;
mod services;
mod settings;
mod signals;
mod stop;
mod threads;
mod wake_flag;

pub use node::{NodeDaemon, RunError, StopHandle};
pub use options::{NodeOptions, StartError};
pub use panics::record_panics;
pub use tatami_object::backing_path;
