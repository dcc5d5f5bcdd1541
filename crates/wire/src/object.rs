//! Requests for bytes of objects on one node, and the replies.

use crate::{Cap, Errno, Piece, Timestamp};
use serde::{Deserialize, Serialize};

/// A request for bytes. Its inode is the one of the capability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectCall {
    /// The permission, with the inode.
    pub cap: Cap,
    /// The object of the file.
    pub piece: Piece,
    /// The operation.
    pub op: ObjectOp,
}

/// The target of an lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeekTarget {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

/// The effect of fallocate(2) on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocMode {
    /// Reserve. Extend the file if necessary.
    Extend,
    /// Reserve. Keep the size (`FALLOC_FL_KEEP_SIZE`).
    Keep,
    /// Free (`FALLOC_FL_PUNCH_HOLE`, with keep-size).
    Punch,
    /// Zero. Extend the file if necessary (`FALLOC_FL_ZERO_RANGE`).
    Zero,
    /// Zero. Keep the size.
    ZeroKeep,
}

/// An operation on one object. An object that does not exist reads as empty. The first write,
/// truncation or reservation creates it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation documents its fields
pub enum ObjectOp {
    /// Reads up to `len` bytes from `offset`; fewer only at the end. → `Data`, payload
    Read { offset: u64, len: u32 },
    /// Writes the payload at `offset`. → `Written`
    Write { offset: u64 },
    /// Appends the payload, atomically. → `Written`
    Append,
    /// Truncates or extends to `size`. → `State`
    Truncate { size: u64 },
    /// fallocate(2). → `State`
    Allocate { mode: AllocMode, offset: u64, len: u64 },
    /// lseek(2). → `Offset`, or `ENXIO`
    Seek { what: SeekTarget, offset: u64 },
    /// Makes all earlier writes survive a power cut. → `State`
    Sync { data_only: bool },
    /// Returns size and storage. → `State`
    Stat,
    /// Returns the open file itself, over a UNIX socket (`SCM_RIGHTS`), opened with the access of
    /// the capability. An absent object is created if `create`, and `ENOENT` otherwise. → `Opened`
    /// with one descriptor
    OpenFd { create: bool },
    /// copy_file_range(2) within this node, from an object of the same or another inode. →
    /// `Written`
    CopyFrom { source: Cap, source_piece: Piece, source_offset: u64, offset: u64, len: u64 },
    /// Creates a table of spare files with a number that the client chooses. The daemon lends the
    /// client empty files through this table. Only over a UNIX socket, and for trusted clients. The
    /// table ends with the connection. → `Opened` with one descriptor
    CreateSpareTable { table: u64 },
    /// Returns an empty file for each of these slots of the connection's table, open for reading
    /// and writing. The slot's previous file has become an object before the reply. If that fails
    /// for a slot, the files of the slots before it are returned; for the first one, the error.
    /// `ENOENT` if the table has ended; then all files that it had lent are objects. The capability
    /// may have expired. → `Opened` with at most [`OPEN_DESCRIPTORS_MAX`] descriptors, in the order
    /// of the slots
    GetSpares { slots: Vec<u16> },
    /// Like `OpenFd` with `create`, for the object and for `more` of the same inode, at most
    /// [`OPEN_DESCRIPTORS_MAX`] together. A writer gets all descriptors of its piece with one
    /// request. → `Opened` with one descriptor for each, in this order
    OpenSeveral { more: Vec<Piece> },
    /// Returns what keeps the object, and the room of the node's region device. → `Engine`
    FindEngine,
    /// Ends the changes of this client to a file that keeps earlier states: the next change keeps
    /// the present state, if no other client is in the middle of its changes. With `all`, also if
    /// one is. → `State`
    Seal { all: bool },
    /// Returns the earlier states that are kept, in the order of their numbers. → `Versions`
    ListVersions,
    /// Reads up to `len` bytes of an earlier state from `offset`; fewer only at the end. `ENOENT`
    /// if it is not there. → `Data`, payload
    ReadVersion { number: u32, offset: u64, len: u32 },
    /// Makes an earlier state the present one, at once. The present one is kept. `ENOENT` if it is
    /// not there, `EFBIG` for an object that has left its region. → `State`
    RestoreVersion { number: u32 },
    /// Keeps the present state as this version, for a copy of an object with its versions. The size
    /// is that of the object. `EEXIST` unless the number is above those of all versions that the
    /// object ever had. → `State`
    CarryVersion { version: ObjectVersion },
}

/// An earlier state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectVersion {
    /// Its number, from 1. No other state of the object gets the same one.
    pub number: u32,
    /// Bytes.
    pub size: u64,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// When the object got another state.
    pub replaced: Timestamp,
}

/// Most descriptors in one reply. The kernel passes at most 253 at a time (`SCM_MAX_FD`).
pub const OPEN_DESCRIPTORS_MAX: usize = 128;

/// The largest object that a region of a device holds, in bytes. A larger one is a file of a disk.
pub const REGION_MAX: u64 = 4 << 20;

impl ObjectOp {
    /// Returns the access that the capability must allow.
    pub fn required_access(&self) -> crate::Access {
        use crate::Access;
        match self {
            ObjectOp::Read { .. }
            | ObjectOp::Seek { .. }
            | ObjectOp::ListVersions
            | ObjectOp::ReadVersion { .. } => Access::READ,
            ObjectOp::Write { .. }
            | ObjectOp::Append
            | ObjectOp::Truncate { .. }
            | ObjectOp::Allocate { .. }
            | ObjectOp::CopyFrom { .. }
            | ObjectOp::CreateSpareTable { .. }
            | ObjectOp::GetSpares { .. }
            | ObjectOp::OpenSeveral { .. }
            | ObjectOp::Seal { .. }
            | ObjectOp::RestoreVersion { .. }
            | ObjectOp::CarryVersion { .. } => Access::WRITE,
            ObjectOp::OpenFd { create } => Access { read: false, write: *create },
            ObjectOp::Sync { .. } | ObjectOp::Stat | ObjectOp::FindEngine => {
                Access { read: false, write: false }
            }
        }
    }
}

/// Size and storage of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectState {
    /// False for an object without any byte.
    pub exists: bool,
    /// Bytes.
    pub size: u64,
    /// Allocated storage, in units of 512 bytes.
    pub blocks: u64,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// Last change of any kind, by the disk's clock. No call can set it, so it orders two states of
    /// one object.
    pub changed: Timestamp,
    /// The machine that has it was started anew since the last change of the bytes: a power cut may
    /// have taken a part of them that was not synced.
    pub is_restarted: bool,
}

impl From<ObjectState> for crate::meta::DataState {
    fn from(s: ObjectState) -> Self {
        Self { size: s.size, blocks: s.blocks, mtime: s.mtime, changed: s.changed }
    }
}

/// The answer to an [`ObjectOp`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each reply documents its fields
pub enum ObjectReply {
    /// The payload of the frame is the data.
    Data,
    /// Offset and number of the written bytes.
    Written { offset: u64, len: u64 },
    /// A position.
    Offset(u64),
    /// The object after the operation.
    State(ObjectState),
    /// The descriptor with this reply is the object.
    Opened,
    /// What keeps the object.
    Engine(ObjectEngine),
    /// Earlier states, at most [`VERSIONS_MAX`](crate::version_rule::VERSIONS_MAX).
    Versions(Vec<ObjectVersion>),
}

/// What keeps an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectEngine {
    /// It lies in a region of the node's device. If not, it is a file of the disk, or does not
    /// exist.
    pub in_region: bool,
    /// The device.
    pub device: RegionRoom,
}

/// The room of the region device of a node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRoom {
    /// Of all regions; 0 for a node without a device, or with one that cannot be used.
    pub total: u64,
    /// Of regions that are free.
    pub free: u64,
}

/// A reply, or an error.
pub type ObjectResult = Result<ObjectReply, Errno>;
