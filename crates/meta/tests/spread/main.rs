//! A namespace over several nodes, seen from outside.

mod cluster;
mod same;
#[path = "../common/words.rs"]
mod words;
