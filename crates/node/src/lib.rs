//! The daemon of one node: listeners, connections and threads around the
//! namespace (`meta`) and the objects (`object`). It holds no rules of a file
//! system, only of who may ask, how much at a time, and in what order answers go out.
//!
//! ```text
//! acceptor ─ handshake (a thread each, bounded, 10 s)
//!    ├─ Meta  → an executor: a thread that owns shards; drain, apply, commit once, answer
//!    ├─ Recall → an executor as well: who may answer questions about names by itself
//!    ├─ Peer  → an executor, too: what others say, here and on other nodes
//!    ├─ Data  → the handshake's thread goes on: blocking, in order
//!    └─ Admin → likewise
//! housekeeping: removes objects of gone inodes, expires clients, settles sizes
//! ```

mod accept;
mod admin;
mod clients;
mod clock;
mod counters;
mod data;
mod delegations;
mod executor;
mod executors;
mod holders;
mod housekeeping;
mod inbox;
mod links;
mod listen;
mod locking;
mod locks;
mod meta_conn;
mod moving;
mod node;
mod options;
mod pages;
mod peer;
mod recalls;
mod relay;
mod round;
mod shards;
mod shared;
mod signals;
mod stop;
mod stream;

pub use node::{Node, RunError, StopHandle};
pub use options::{NodeOptions, StartError};
pub use tatami_object::backing_path;
