//! A namespace over several nodes, seen from outside.

mod checking;
mod cluster;
mod moving;
mod same;
mod splitting;
#[path = "../common/words.rs"]
mod words;
