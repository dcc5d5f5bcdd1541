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

mod awaited_node;
mod away_nodes;
mod batch;
mod cached_inode;
mod cause;
mod changing_handles;
mod client;
pub mod connection;
mod data;
mod delegations;
mod descriptors;
mod executor;
mod file_bytes;
pub mod files_on_node;
pub mod fsck;
mod held_creates;
mod held_locks;
mod held_table;
mod inline_bytes;
mod inline_cache;
mod inode_scan;
mod job;
mod kernel_table;
mod lent_names;
mod local_object;
mod locations;
mod lock_session;
mod locks;
mod loss_tracker;
mod lost;
mod name_revocation;
mod names;
mod node;
mod node_spaces;
mod object_handle;
mod open_data;
mod operation_effects;
mod partition_cache;
mod partitions;
mod pieces;
pub mod policy_move;
mod presence;
mod recalls;
pub mod relayout;
mod remote_object;
mod remove;
mod retry;
mod room;
mod room_cache;
mod route;
mod socket;
mod space;
mod spares;
mod tiled_file;
mod tiled_files;
mod tiles;
pub mod tree;
mod unnamed;
mod unsynced;
mod uptime;
mod usage;
mod version_states;
mod waiting;
mod walk;
mod whole_files;
mod write_stream;
mod written;

pub use awaited_node::{AwaitedNode, NodeWait, REPORTED_WAIT, WaitObserver, WaitReason};
pub use batch::CreateItem;
pub use cause::{clear_cause, record_cause, take_cause};
pub use client::{Client, ClientError, ClientOptions};
pub use connection::{Endpoint, PayloadSink};
pub use data::DataFile;
pub use descriptors::raise_descriptor_limit;
pub use held_locks::LockNotices;
pub use job::JobMember;
pub use kernel_table::{KernelCache, NamesExpired};
pub use lent_names::KernelName;
pub use local_object::stat_file;
pub use locations::{DataPattern, PATTERNS_MAX, find_locations};
pub use locks::{LOCK_RETRY_INTERVAL, LockOutcome, LockedBytes, Unbuffered};
pub use names::{Created, DirListing, Removed};
pub use node_spaces::VolumeSpace;
pub use pieces::{PieceJournalReport, RecoveredPiece, accept_loss, clip_tiles, report_pieces};
pub use presence::Presence;
pub use recalls::OpenFiles;
pub use remove::RemovalEvent;
pub use room_cache::WhenFull;
pub use spares::{BorrowedSpares, SpareFile};
pub use tatami_net::{TlsTrust, TlsTrustError};
pub use tatami_tables::ClaimCount;
pub use tiled_files::{PlacedPiece, Tiles};
pub use unnamed::{NameTarget, UnnamedFile};
pub use usage::{Usage, UsageSum};
pub use waiting::{IsEnding, OperationScope, TICK, is_asker_ending, lock_interruptibly};
pub use whole_files::FilledFile;
pub use written::merge_object_state;
