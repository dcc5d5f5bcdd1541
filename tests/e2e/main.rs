//! All end-to-end tests in one binary: it links once, and tests of different files run side by
//! side. Each module has the tests of one subject, and starts the daemons and mounts that it needs.
//!
//! `cargo test -p tatami-tests --test e2e -- MODULE::` runs those of one module.

mod another_site;
mod another_site_files;
mod away;
mod bulk;
mod clocks;
mod completion;
mod copying;
mod coreutils;
mod crash;
mod delegations;
mod files;
mod format;
mod gfarm;
mod grow;
mod help;
mod host_faults;
mod hosts;
mod hosts_mpi;
mod hosts_network;
mod io_uring;
mod jobs;
mod jobs_slurm;
mod json;
mod lent;
mod locks;
mod lost;
mod mending;
mod model;
mod mpi;
mod mpi_programs;
mod mpi_volume;
mod names;
mod overlay;
mod packages;
mod permissions;
mod posix;
mod preload;
mod relayout;
mod removal;
mod shared;
mod silent;
mod sim;
mod space;
mod spread;
mod stress;
mod syncing;
mod terminal;
mod tiled;
mod tls;
mod unlinked;
mod upgrade;
mod visibility;
mod waits;
