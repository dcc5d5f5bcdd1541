//! Requests for bytes of objects on one node, and the replies.

use crate::{Cap, Errno, Piece, Timestamp};
use serde::{Deserialize, Serialize};

/// One request for bytes. The inode is the capability's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectCall {
    /// The permission, and the inode.
    pub cap: Cap,
    /// Which object of the file.
    pub piece: Piece,
    /// What to do.
    pub op: ObjectOp,
}

/// From where lseek(2) looks for data or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeekFor {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

/// What fallocate(2) does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocMode {
    /// Reserve, growing the file if need be.
    Extend,
    /// Reserve, leaving the size (`FALLOC_FL_KEEP_SIZE`).
    Keep,
    /// Free (`FALLOC_FL_PUNCH_HOLE`, with keep-size).
    Punch,
    /// Zero, growing the file if need be (`FALLOC_FL_ZERO_RANGE`).
    Zero,
    /// Zero, leaving the size.
    ZeroKeep,
}

/// An operation on one object. An object that does not exist reads as empty;
/// the first write, cut or reservation makes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation says what its fields mean
pub enum ObjectOp {
    /// Up to `len` bytes from `offset`; fewer only at the end. → `Data`, payload
    Read { offset: u64, len: u32 },
    /// The payload goes to `offset`. → `Written`
    Write { offset: u64 },
    /// The payload goes to the end, atomically. → `Written`
    Append,
    /// Cuts or extends to `size`. → `State`
    Truncate { size: u64 },
    /// fallocate(2). → `State`
    Allocate { mode: AllocMode, offset: u64, len: u64 },
    /// lseek(2). → `Offset`, or `ENXIO`
    Seek { what: SeekFor, offset: u64 },
    /// Everything written so far survives a power cut. → `State`
    Sync { data_only: bool },
    /// Size and storage. → `State`
    Stat,
    /// The open file itself, over a UNIX socket (`SCM_RIGHTS`), open for what
    /// the capability allows. With `create`, the object is made if absent; without,
    /// an absent object is `ENOENT`. → `Opened` with one descriptor
    OpenFd { create: bool },
    /// copy_file_range(2) within this node, from an object of another inode
    /// (or the same). → `Written`
    CopyFrom { source: Cap, source_piece: Piece, source_offset: u64, offset: u64, len: u64 },
    /// The new table `table`, a number of the asker's choice, by which files that are no object yet
    /// are lent to the asker, over a UNIX socket and to the trusted only. It ends with
    /// the connection. → `Opened` with one descriptor
    Borrow { table: u64 },
    /// An empty file for slot `slot` of a table, open for reading and writing. What the slot stood
    /// for is an object when the answer comes. `ENOENT` without such a table, and then
    /// all that it had lent is. → `Opened` with one descriptor
    Spare { table: u64, slot: u16 },
    /// As `OpenFd` with `create`, of the object and of `more` of the same inode, at most [`OPEN_MAX`] in all: a
    /// writer gets all descriptors of its piece with one request. → `Opened` with a descriptor for each, in this order
    OpenSeveral { more: Vec<Piece> },
}

/// Most descriptors that one answer brings along. The kernel passes 253 at a time (`SCM_MAX_FD`).
pub const OPEN_MAX: usize = 128;

impl ObjectOp {
    /// What the capability must allow.
    pub fn wants(&self) -> crate::Access {
        use crate::Access;
        match self {
            ObjectOp::Read { .. } | ObjectOp::Seek { .. } => Access::READ,
            ObjectOp::Write { .. }
            | ObjectOp::Append
            | ObjectOp::Truncate { .. }
            | ObjectOp::Allocate { .. }
            | ObjectOp::CopyFrom { .. }
            | ObjectOp::Borrow { .. }
            | ObjectOp::Spare { .. }
            | ObjectOp::OpenSeveral { .. } => Access::WRITE,
            ObjectOp::OpenFd { create } => Access { read: false, write: *create },
            ObjectOp::Sync { .. } | ObjectOp::Stat => Access { read: false, write: false },
        }
    }
}

/// Size and storage of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectState {
    /// False for an object that has no byte yet.
    pub exists: bool,
    /// Bytes.
    pub size: u64,
    /// Storage in use, in units of 512 bytes.
    pub blocks: u64,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// Last change of any kind, by the disk's clock. Nobody can set it, so it
    /// tells which of two states of one object is the later one.
    pub changed: Timestamp,
}

impl From<ObjectState> for crate::meta::DataState {
    fn from(s: ObjectState) -> Self {
        Self { size: s.size, blocks: s.blocks, mtime: s.mtime, changed: s.changed }
    }
}

/// The answer to an [`ObjectOp`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each reply says what its fields mean
pub enum ObjectReply {
    /// The payload of the frame is the data.
    Data,
    /// Where the bytes went, and how many.
    Written { offset: u64, len: u64 },
    /// A position.
    Offset(u64),
    /// The object after the operation.
    State(ObjectState),
    /// The descriptor that comes along is the object.
    Opened,
}

/// What a node answers: a reply or an error.
pub type ObjectResult = Result<ObjectReply, Errno>;
