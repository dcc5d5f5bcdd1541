//! Access to a volume for programs: blocking calls that find the responsible daemon, survive its
//! restart, and read and write bytes where they are stored.
//!
//! The crate starts no thread, installs no signal handler and needs no runtime, so that it can live
//! inside another program. One [`Client`] serves all threads of a process.
//!
//! - [`Client`] routes requests to nodes and their executors. It repeats those whose reply was
//!   lost, so that each takes effect once.
//! - [`DataFile`] is the bytes of one open file: on this node straight from the disk, on other
//!   nodes over TCP with write-behind.
//! - [`tree`] offers paths and file handles to tools that work without a mount.

mod act;
mod cause;
mod client;
pub mod connection;
mod data;
mod delegations;
mod descriptors;
mod executor;
pub mod fsck;
mod job;
mod lent;
mod loan;
mod locks;
mod lost;
mod names;
mod partitions;
mod peer;
mod pieces;
mod presence;
mod recalls;
pub mod relayout;
mod remote;
mod remove;
mod room;
mod socket;
mod space;
mod tiled;
mod tiles;
pub mod tree;
mod usage;
mod waiting;
mod walk;
mod ways;
mod whereabouts;
mod written;

pub use act::New;
pub use cause::{forget_cause, note_cause, take_cause};
pub use client::{Client, Error, Options};
pub use connection::{Endpoint, Sink};
pub use data::{DataFile, stat_file};
pub use descriptors::raise_descriptor_limit;
pub use job::JobMember;
pub use lent::KernelCache;
pub use loan::{Loan, Spare};
pub use locks::{ASK_AGAIN, LockNews, LockedBytes, Taken, Unbuffered};
pub use names::{Created, Listing, Removed};
pub use pieces::{PieceSaved, PieceTold, accept_loss, pieces_told, within};
pub use presence::Presence;
pub use recalls::OpenFiles;
pub use remove::Removing;
pub use room::WhenFull;
pub use space::VolumeSpace;
pub use tatami_lend::Moment;
pub use tiles::{PlacedPiece, Tiles};
pub use usage::{Usage, Used};
pub use waiting::{IsEnding, Operation, TICK, lock_patiently};
pub use whereabouts::{PATTERNS_MAX, Whereabouts, whereabouts};
pub use written::as_written;
