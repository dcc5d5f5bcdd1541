//! A namespace over several nodes, seen from outside.

mod batches;
mod checking;
mod cluster;
mod held;
mod locking;
mod mending;
mod moving;
mod same;
mod splitting;
mod syncing;
#[path = "../common/words.rs"]
mod words;
