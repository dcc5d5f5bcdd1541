//! The protocol between Tatami's programs: ids, attributes, requests, replies, frames, the
//! handshake and error codes. This crate has no logic beyond encoding, decoding and the checks on
//! which both sides of a connection must agree.
//!
//! A connection starts with a [`handshake`]. Then both sides exchange [`frame`]s. A frame is a
//! fixed 24-byte header, a body (a request or reply, encoded by [`postcard`]) and an optional
//! payload of raw file bytes. The payload is never copied through the encoder.

pub mod admin;
pub mod attr;
pub mod batch;
mod bytes;
pub mod cap;
pub mod delegation;
pub mod errno;
pub mod frame;
pub mod handshake;
pub mod hash;
pub mod ids;
pub mod inline;
pub mod job;
pub mod key;
pub mod lock;
pub mod meta;
pub mod moves;
pub mod object;
pub mod operation_table;
pub mod partition;
pub mod partition_map;
pub mod policy;
pub mod protocol_range;
pub mod repair;
pub mod shards;
pub mod tiles;
pub mod transaction;
pub mod version_rule;

pub use attr::{Attr, ByteTimes, Cred, InodeKind, SetAttr, SetTime, Timestamp, XattrClass};
pub use cap::{Access, Cap};
pub use errno::Errno;
pub use ids::{ClientId, EXECUTORS_MAX, ExecutorId, Ino, ShardId, VolumeId};
pub use key::VolumeKey;
pub use protocol_range::{OLDEST_PROTOCOL, ProtocolRange, limit_protocol};
pub use shards::{SHARDS_MAX, ShardMap};
pub use tatami_layout::{Layout, NodeId, Piece};

/// The newest version of everything in this crate. Two sides agree on one in the handshake, or say
/// that they cannot; see [`protocol_range`].
pub const PROTOCOL_VERSION: u32 = 4;

/// Longest name of a directory entry, in bytes: the limit of every Linux file system.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target and longest path, in bytes.
pub const PATH_MAX: usize = 4096;
/// Longest extended attribute name, in bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest extended attribute value, in bytes.
pub const XATTR_VALUE_MAX: usize = 64 * 1024;
/// Most supplementary groups of one request.
pub const GROUPS_MAX: usize = 1024;
/// Most entries in one reply to a directory listing.
pub const READDIR_MAX: u32 = 1024;
/// Longest file, in bytes: the range of a signed 64-bit offset.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
