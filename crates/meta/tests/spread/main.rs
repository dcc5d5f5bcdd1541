//! A namespace over several nodes, seen from outside.

mod cluster;
mod same;
