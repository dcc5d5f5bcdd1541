//! The common parts of the end-to-end tests: daemons and mounts that clean up after themselves,
//! programs to run, evidence of failures, random choices that can be replayed, and a model of a
//! file system's behaviour.

pub mod absent;
pub mod cluster;
pub mod cluster_hosts;
pub mod command;
pub mod evidence;
pub mod files;
pub mod gfarm;
pub mod job;
pub mod map;
pub mod model;
pub mod mpi;
pub mod policies;
pub mod process;
pub mod request_count;
pub mod schema;
pub mod seed;
pub mod slurm;
mod starter;
pub mod subject;
pub mod testbed;
pub mod worker;

pub use cluster::{Cluster, Setup};
