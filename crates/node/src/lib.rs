//! The daemon of one node: listeners, connections and threads around the
//! namespace (`meta`) and the objects (`object`). It holds no rules of a file
//! system, only of who may ask, how much at a time, and in what order answers go out.
//!
//! ```text
//! acceptor ─ handshakes (all on its one thread; places and times are bounded), then admission
//!    ├─ Meta  → an executor: a thread that owns shards; drain, apply, commit once, answer
//!    ├─ Recall → an executor as well: who may answer questions about names by itself
//!    ├─ Peer  → an executor, too: what others say, here and on other nodes
//!    ├─ Data  → a thread of its own: blocking, in order
//!    └─ Admin → likewise
//! housekeeping: removes objects of gone inodes, expires clients, settles sizes
//! ```

mod accept;
mod admin;
mod clients;
mod clock;
mod counters;
mod data;
mod deaths;
mod delegations;
mod executor;
mod executors;
mod holders;
mod housekeeping;
mod inbox;
mod job_locks;
mod links;
mod listen;
mod locking;
mod locks;
mod log_sync;
mod meta_conn;
mod moving;
mod node;
mod options;
mod pages;
mod peer;
mod recalls;
mod relay;
mod round;
mod seats;
mod shards;
mod shared;
mod signals;
mod stop;
mod strangers;
mod stream;

pub use deaths::note_deaths;
pub use node::{Node, RunError, StopHandle};
pub use options::{NodeOptions, StartError};
pub use tatami_object::backing_path;
