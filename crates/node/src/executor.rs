//! An executor: a thread that owns shards of this node and the connections for their names.
//!
//! From below: `handle` is how other threads reach it, `table` lists those that run. `shards`
//! wraps the namespace. `recalls`, `lock_service` and `job_locks` hold answers back, `links`
//! are the connections to other executors. `state` joins them; `run`, `serve` and
//! `migration` are its work; `start` starts it.

pub(crate) mod answer;
mod delegations;
pub(crate) mod handle;
mod holders_file;
mod job_locks;
mod links;
mod lock_service;
mod locks;
mod log_sync;
mod meta_connection;
mod migration;
mod migration_state;
mod recalls;
mod request_check;
mod round;
mod run;
mod serve;
mod shards;
pub(crate) mod start;
mod state;
pub(crate) mod table;
mod touched;
