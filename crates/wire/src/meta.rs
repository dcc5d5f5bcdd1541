//! Requests to a shard of the namespace, and their replies.

use crate::batch::{BatchOp, BatchResult, DirTotals, RetainedEntry};
use crate::inline::{FirstBytes, InlineOp, InlineReply};
use crate::job::{JobOp, JobReply};
use crate::lock::{LockOp, LockOpReply};
use crate::moves::{MoveStart, MoveTarget, MovedBytes};
use crate::partition::{HashRange, name_hash};
use crate::repair::{LocatedEntry, PartitionRecord, Repair};
use crate::tiles::{Cut, NewPiece, PieceUpdate, TilePage};
use crate::{
    Access, Attr, Cap, Cred, Errno, ExecutorId, Ino, InodeKind, Layout, NodeId, Piece, SetAttr,
    ShardId, Timestamp,
};
use serde::{Deserialize, Serialize};

pub use crate::attr::{DataState, InodeTemplate};
pub use crate::bytes::Bytes;

/// Most inodes in one [`MetaOp::ReportClosed`], all lists together.
pub const REPORT_CLOSED_MAX: usize = 128;
/// Most inodes in one [`MetaOp::SyncNames`]: more than the number of names in a path.
pub const SYNC_NAMES_MAX: usize = 4096;
/// Most numbers in one [`MetaOp::HoldDirectory`].
pub const HELD_NUMBERS_MAX: u32 = 1024;

/// Most inodes of each list in the reply to one [`MetaOp::ScanBackPointers`].
pub const BACK_POINTERS_MAX: u32 = 8 * 1024;

/// One request to one shard, or to all shards of an executor.
///
/// With several nodes, the entries of a large directory are in several
/// [partitions](crate::partition). In an operation on a name, `parent` is the number of the
/// partition that has the name by the client's partition map; likewise `dir` in a listing. The
/// first partition has the directory's own number. A partition that does not have the name replies
/// [`MetaReply::PartitionRecord`]. All other fields, and replies, have the directory's own number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaCall {
    /// The shard that must reply: the shard of [`MetaOp::target_inode`]. Any shard if the operation
    /// [is for all shards](MetaOp::is_for_all_shards).
    pub shard: ShardId,
    /// The caller. A client that is not trusted may only send its own credentials.
    pub cred: Cred,
    /// The operation.
    pub op: MetaOp,
}

/// How rename(2) treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// How setxattr(2) treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Fail with `EEXIST` (`XATTR_CREATE`).
    Create,
    /// Fail with `ENODATA` if absent (`XATTR_REPLACE`).
    Replace,
}

/// An operation on one shard. An operation that changes something takes effect once, even if the
/// client sends it several times. A client that does not see the reply repeats the request with the
/// same sequence number, and gets the first reply.
///
/// On partition numbers in `parent` and `dir`, see [`MetaCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation documents its fields
pub enum MetaOp {
    /// Returns the attributes of entry `name` of `parent`. → `Attr`
    Lookup { parent: Ino, name: Bytes },
    /// Like `Lookup`, but without a request to another node. If the inode is on another node,
    /// returns only its number. → `Attr` or `Leads`
    LookupEntry { parent: Ino, name: Bytes },
    /// Returns the attributes of an inode. → `Attr`
    GetAttr { ino: Ino },
    /// Like `GetAttr`, but of a split directory without a request to another node. → `Attr`, or of
    /// a split directory `FirstPartition`
    GetOwnAttr { ino: Ino },
    /// Changes attributes. → `Attr`
    SetAttr { ino: Ino, set: SetAttr },
    /// Creates an entry and its inode. With `exclusive`, an existing entry is `EEXIST`. Without it,
    /// an existing *file* is opened (`created: false`), and any other kind is `EEXIST`. With
    /// `open`, the shard checks permission for that access on an existing file. The reply has a
    /// capability, and the shard registers the open, as by `Open`. → `Created`
    Create {
        parent: Ino,
        name: Bytes,
        node: InodeTemplate,
        /// Permission bits before the umask (or default ACL) is applied.
        mode: u16,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    },
    /// Creates a file without a name (`O_TMPFILE`), opened with the access `open` by this client.
    /// The file is deleted at its `Release`, unless it got a name. → `Created`
    Tmpfile { parent: Ino, layout: Layout, mode: u16, umask: u16, open: Access },
    /// Checks permission and signs a capability. An open for writing is registered, because the
    /// client may change the bytes. With `noted`, an open for reading by a trusted client is
    /// registered, too, until its `Closed`. A file that loses its last name stays while an open is
    /// registered. → `Opened`
    Open { ino: Ino, access: Access, registered: bool },
    /// Reports the current state of the bytes. With `close`, the client has no more handles for
    /// writing. → `Attr`
    Commit { ino: Ino, state: Option<DataState>, close: bool },
    /// Reports a batch of closes: on `inos` (of one node, at most [`REPORT_CLOSED_MAX`]) this
    /// client has no handles for writing any more, and nothing to commit. Inodes in `empty` had no
    /// object at the close. On inodes in `read`, which may also be in the other lists, this client
    /// has no handle that is only for reading. Deleted inodes are skipped. → `Done`
    ReportClosed { inos: Vec<Ino>, empty: Vec<Ino>, read: Vec<Ino> },
    /// Makes all acknowledged changes survive a power cut. → `Synced`
    Sync,
    /// Removes an entry that is not a directory. With `keep`, an inode that loses its last name
    /// stays until this client's `Release`. It also stays until the `Closed` of every other client
    /// with a registered open. → `Removed`
    Unlink { parent: Ino, name: Bytes, keep: bool },
    /// Removes an empty directory. → `Removed`
    Rmdir { parent: Ino, name: Bytes, keep: bool },
    /// Moves an entry. `keep` applies to a replaced inode. → `Renamed` (`ino` = the replaced inode,
    /// if any)
    Rename {
        parent: Ino,
        name: Bytes,
        new_parent: Ino,
        new_name: Bytes,
        mode: RenameMode,
        keep: bool,
    },
    /// Adds a name to an inode. → `Attr`
    Link { ino: Ino, parent: Ino, name: Bytes },
    /// Returns the target of a symbolic link. → `Bytes`
    Readlink { ino: Ino },
    /// Lists the entries of `dir` with a cookie above `after` (0 at the start), in cookie order, at
    /// most `limit` (1 to [`crate::READDIR_MAX`]), with attributes if `plus`. An entry that exists
    /// during the whole listing is listed exactly once, despite concurrent changes. → `Entries`
    ReadDir { dir: Ino, after: u64, limit: u32, plus: bool },
    /// Returns the value of an extended attribute. → `Bytes`
    GetXattr { ino: Ino, name: Bytes },
    /// Sets an extended attribute. → `Done`
    SetXattr { ino: Ino, name: Bytes, value: Bytes, mode: XattrMode },
    /// Returns the names of all extended attributes, each followed by a zero byte. → `Bytes`
    ListXattr { ino: Ino },
    /// Removes an extended attribute. → `Done`
    RemoveXattr { ino: Ino, name: Bytes },
    /// This client has no more handles on an inode that was kept for it. → `Done`
    Release { ino: Ino },
    /// Returns the number of inodes. → `Volume`
    StatVolume,

    // Housekeeping, for nodes only (trusted connections).
    /// Returns the deleted inodes that may still have objects on `node`. → `Garbage`
    ListGarbage { node: NodeId, limit: u32 },
    /// Reports that those objects were removed. → `Done`
    ReportGarbageRemoved { node: NodeId, inos: Vec<Ino> },
    /// Ends a client that is gone for good: releases all inodes that were kept for it. Files that
    /// it had open for writing go to the list of `Unsettled`. → `Done`
    ExpireClient { client: crate::ClientId },
    /// Returns the clients with kept or open inodes on this shard. → `Clients`
    ListClients,
    /// Returns the files with a pending size recovery: their writer died before its close, so the
    /// size must be recovered from the objects. → `Unsettled`
    ListPendingRecovery { limit: u32 },
    /// Sets the recovered size. It is at least the size that was committed before. → `Done`
    SetRecoveredSize { ino: Ino, state: Option<DataState> },
    /// Returns the inodes above `after` in number order, for a check. → `Inodes`
    ScanInodes { after: Ino, limit: u32 },
    /// Checks the shard's own records (entries ↔ inodes ↔ link counts) of inodes above `after`.
    /// With `repair`, also repairs them. → `Checked`
    ///
    /// With several nodes, this does not compare names and inodes of different nodes. The caller
    /// compares them with `Ties` and `Parts`, and repairs them with `Mend`.
    Check { after: Ino, limit: u32, repair: bool },
    /// Returns those of the inodes (of one node, at most [`crate::READDIR_MAX`]) that have
    /// in-flight changes. They are open for writing, have a pending size recovery, or are deleted
    /// with objects still to be removed from `node`. A check must not report them as errors. →
    /// `InFlux`
    ListInFlight { node: NodeId, inos: Vec<Ino> },

    // Tiled files, see `tiles`.
    /// Creates pieces with consecutive numbers: the given count on each of the nodes. The file is
    /// tiled from now on. The client must have the file open for writing, or have write permission.
    /// Every stamp of a tile of these pieces must be above the stamp in the reply. → `Pieces`
    AddPieces { ino: Ino, nodes: Vec<(NodeId, u32)> },
    /// Replaces the tiles of some pieces and adds cuts, atomically. `base` is the state of piece 0,
    /// if it was written. Permission as for `AddPieces`. `ESTALE` if a piece is closed or deleted
    /// (because the file was truncated to nothing), `EINVAL` for tiles that do not decode. → `Attr`
    Publish { ino: Ino, updates: Vec<PieceUpdate>, cuts: Vec<Cut>, base: Option<DataState> },
    /// Returns the pieces above `after`, at most `limit`. → `Tiles`
    ListTiles { ino: Ino, after: u32, limit: u32 },
    /// Housekeeping: returns the objects on `node` that are garbage although their inode exists. →
    /// `GarbagePieces`
    ListGarbagePieces { node: NodeId, limit: u32 },
    /// Housekeeping: reports that those objects were removed. → `Done`
    ReportPiecesRemoved { node: NodeId, pieces: Vec<(Ino, Piece)> },

    // Re-layout of a file: a client copies the bytes into new objects that no other client knows.
    // Then the new objects replace the old ones.
    /// Reserves an object of a new piece on each of these nodes, at most
    /// [`RESERVE_MAX`](crate::tiles::RESERVE_PIECES_MAX), with consecutive numbers. This client
    /// must have the file open for writing. The objects become garbage when it closes the file.
    /// `EBUSY` while another client has the file open for writing, or its size recovery is pending.
    /// Stamps as for `AddPieces`. → `Pieces`
    Reserve { ino: Ino, nodes: Vec<NodeId> },
    /// Re-lays the file out. It gets these pieces, and as its base the piece with this number on
    /// this node, in the state `state`. This client must have reserved all of them. The old
    /// objects become garbage, and this client has the file not open for writing any more. `EBUSY`
    /// if any client could have changed the bytes since the reservation, `EINVAL` if the size would
    /// change. → `Attr`
    Relayout { ino: Ino, pieces: Vec<NewPiece>, base: (NodeId, u32), state: DataState },

    // For volumes of several nodes.
    /// Housekeeping: returns the back-pointers and entries on the node of `shard` for a comparison.
    /// These are the inodes above `after`, up to `last`, on that node, and the entries on that node
    /// that lead to inodes of that range on any node. At most `limit` inodes of each (8 to
    /// [`BACK_POINTERS_MAX`]). → `Ties`
    ScanBackPointers { shard: ShardId, after: Ino, last: Ino, limit: u32 },
    /// Returns the partitions of a directory. → `Partitions`
    ListPartitions { dir: Ino },
    /// Housekeeping: splits a partition with more than `above` entries, if the split spreads it
    /// over more nodes. → `Done`
    SplitPartition { partition: Ino, above: u64 },
    /// An operation on locks, see [`crate::lock`]. The node keeps locks outside of the namespace.
    /// `session` is the number of the client's session at the node, or 0 if it has no locks there.
    /// → `Locks`
    Locks { ino: Ino, session: u64, op: LockOp },

    // Batches, see [`crate::batch`].
    /// Executes operations of one node, each independently, at most
    /// [`BATCH_OPS_MAX`](crate::batch::BATCH_OPS_MAX). → `BatchResults`, in the same order
    Batch { operations: Vec<BatchOp> },
    /// Removes the entries of `dir` that `ReadDir` would list and that are not directories, each
    /// like `Unlink`. With `tell`, the reply has their names. Requires permission to read the
    /// directory. → `Cleared`
    ClearDir { dir: Ino, after: u64, limit: u32, with_names: bool },
    /// Sums up the inodes of the entries of `dir` that `ReadDir` would list. Requires permission to
    /// see their attributes: to read and to search the directory. → `Summed`
    SumDir { dir: Ino, after: u64, limit: u32 },

    // Consistency checks of several nodes, see `mend`.
    /// Housekeeping: returns the entries on the node of `shard` that lead to these inodes, at most
    /// [`NAMED_MAX`](crate::mend::LOCATED_ENTRIES_MAX) of both. → `Named`
    ListEntriesOf { shard: ShardId, inos: Vec<Ino> },
    /// Housekeeping: repairs the connection of a name and this inode, if both still are as the
    /// caller saw them. → `Mended`
    Repair { ino: Ino, repair: Repair },
    /// Housekeeping: returns the directories and partitions on the node of `shard`, above `after`
    /// in number order, that have split. → `Parts`
    ScanPartitions { shard: ShardId, after: Ino },
    /// Like `Sync`, for these inodes, at most [`SYNC_NAMES_MAX`]. The reply names the other
    /// executors that took part in changes of their names. → `NamesSynced`
    SyncNames { inos: Vec<Ino> },

    /// An operation on the shared state of a collective open, see [`crate::job`]. `open` is the
    /// number of the open. `joined`: this rank of this client has taken part before; `ESTALE` if
    /// the shard does not know the rank any more. Requires permission to read or write the file. →
    /// `Job`
    Job { ino: Ino, open: u64, rank: u32, joined: bool, op: JobOp },

    /// An operation on bytes that lie beside the inode, see [`crate::inline`]. The capability
    /// decides about permission, as at objects. → `Inline`
    Inline { ino: Ino, cap: Cap, op: InlineOp },
    /// Creates a file with all its bytes, beside its inode, and then changes its attributes. An
    /// existing entry is `EEXIST`. `EXDEV` where files of the directory do not have so many bytes
    /// beside their inodes. Nobody ever sees the file without its bytes. → `Created`
    CreateFilled {
        parent: Ino,
        name: Bytes,
        layout: Layout,
        /// As for `Create`.
        mode: u16,
        umask: u16,
        bytes: Bytes,
        set: Option<SetAttr>,
    },
    /// Returns all bytes of a file that lie beside its inode. Requires permission to read them. →
    /// `Inline`
    ReadInline { ino: Ino },

    // The move of a file to where a policy wants it, see [`crate::moves`].
    /// Begins a move. This client must have the file open for writing; for bytes that stay beside
    /// the inode, permission to write is enough. `EBUSY` while another client has the file open, as
    /// far as it would notice: bytes beside an inode leave it at any time. `EINVAL` for a file over
    /// several objects, `EFBIG` for one that is too large for the inode. → `MoveBegun`
    BeginMove { ino: Ino, to: MoveTarget },
    /// Makes the copy the file. The old objects become garbage, and this client has the file not
    /// open for writing any more, unless its bytes were beside the inode. `EBUSY` if any client
    /// could have changed the bytes since the begin, or has opened the file; `EINVAL` if the size
    /// would change. → `Attr`
    FinishMove { ino: Ino, moved: MovedBytes },

    // Creates that a client holds back until the first byte.
    /// Delegates directory `dir` exclusively to this client: operations of other clients that read
    /// or change the directory wait until this client has returned the delegation. Also allocates
    /// `count` numbers for new files (1 to [`HELD_NUMBERS_MAX`]). `EBUSY` while another client uses
    /// the directory, `EOPNOTSUPP` where creates must not be held back. Requires permission to make
    /// entries. → `DirectoryHeld`
    HoldDirectory { dir: Ino, count: u32 },
    /// Creates a file by one of these numbers with its first bytes, and opens it with the access
    /// `open`. An existing entry is `EEXIST`. `EXDEV` where files of the directory do not have so
    /// many bytes beside their inodes; `EINVAL` for a time that is none. → `Created`
    CreateNumbered {
        parent: Ino,
        name: Bytes,
        /// The number of the file, on the shard of `parent`.
        ino: Ino,
        layout: Layout,
        /// As for `Create`.
        mode: u16,
        umask: u16,
        first: FirstBytes,
        open: Access,
        /// When the client has shown the file for the first time: the time of its birth. Never
        /// before the last change of the directory, or later than now.
        time: Timestamp,
    },
}

impl MetaOp {
    /// Calls `place` with each directory of the operation and the hash of its name, so that the
    /// caller can replace the directory by a partition. For a listing, the hash is the first one
    /// that may be listed.
    pub fn for_each_directory(&mut self, seed: u64, mut place: impl FnMut(&mut Ino, u64)) {
        use MetaOp::*;
        let mut named = |dir: &mut Ino, name: &Bytes| {
            if !matches!(name.as_slice(), b"." | b"..") {
                place(dir, name_hash(seed, name));
            }
        };
        match self {
            Lookup { parent, name }
            | LookupEntry { parent, name }
            | Create { parent, name, .. }
            | CreateFilled { parent, name, .. }
            | CreateNumbered { parent, name, .. }
            | Unlink { parent, name, .. }
            | Rmdir { parent, name, .. }
            | Link { parent, name, .. } => named(parent, name),
            Rename { parent, name, new_parent, new_name, .. } => {
                named(parent, name);
                named(new_parent, new_name);
            }
            ReadDir { dir, after, .. }
            | ClearDir { dir, after, .. }
            | SumDir { dir, after, .. } => {
                place(dir, after.saturating_add(1));
            }
            Batch { operations } => operations
                .iter_mut()
                .for_each(|operation| operation.for_each_directory(seed, &mut place)),
            // An operation on an entry that is missing above would go to the wrong partition.
            _ => debug_assert!(self.named_entry().is_none(), "its directory is not replaced"),
        }
    }
}

/// The answer to a [`MetaOp`]. Answers are stored with the number of the variant, so new variants
/// come last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MetaReply {
    /// The attributes after the operation.
    Attr(Attr),
    /// A new or existing inode.
    Created {
        /// Its attributes.
        attr: Attr,
        /// Capability for the bytes, if the file was opened. An existing file with its inode on
        /// another node than its entry is not opened for writing: the client must open it at that
        /// node.
        cap: Option<Cap>,
        /// False if the entry existed.
        created: bool,
    },
    /// An open file.
    Opened {
        /// Its attributes.
        attr: Attr,
        /// Capability for the bytes.
        cap: Cap,
    },
    /// The effect of a removal on the inode.
    Removed {
        /// The inode that lost a name, if any.
        ino: Option<Ino>,
        /// The name was the last one.
        last: bool,
    },
    /// Part of a directory.
    Entries {
        /// The entries, in cookie order.
        entries: Vec<DirEntry>,
        /// The listing is complete.
        end: bool,
        /// The parent of the directory for `..` (the root is its own parent). For a partition other
        /// than the first: the directory.
        parent: Ino,
        /// The listing has all entries up to this cookie. It continues from here, perhaps in
        /// another partition.
        upto: u64,
    },
    /// Raw bytes.
    Bytes(Bytes),
    /// Done, without a result.
    Done,
    /// Counts.
    Volume {
        /// Inodes on this shard.
        inodes: u64,
    },
    /// Deleted inodes; the caller can delete their objects on the node.
    Garbage(Vec<Ino>),
    /// Clients with kept or open inodes.
    Clients(Vec<crate::ClientId>),
    /// Files with a pending size recovery.
    PendingRecovery(Vec<Attr>),
    /// Inodes for a check.
    Inodes {
        /// The inodes in number order.
        attrs: Vec<Attr>,
        /// The scan is complete.
        end: bool,
    },
    /// Findings of a check.
    Checked {
        /// One finding for each fault, repaired or not.
        findings: Vec<Finding>,
        /// Number of inodes checked.
        examined: u64,
        /// The last inode checked; `None` at the end.
        next: Option<Ino>,
    },
    /// The inodes with in-flight changes.
    InFlight(Vec<Ino>),
    /// New pieces.
    Pieces {
        /// Number of the first piece.
        first: u32,
        /// No stamp in the file is later.
        stamp: u64,
    },
    /// A page of the tiled file's records.
    Tiles(TilePage),
    /// Objects on a node that can be deleted.
    GarbagePieces(Vec<(Ino, Piece)>),
    /// The reply to an operation on locks.
    Locks {
        /// The client's session at the node from now on.
        session: u64,
        /// The reply.
        reply: LockOpReply,
    },
    /// The executor does not serve this shard, because the client's shard map is stale. Nothing was
    /// done.
    WrongShard {
        /// Epoch of the server's shard map.
        epoch: u64,
    },
    /// A referral: the inode of an entry is on another node than the entry, and the client must ask
    /// that node.
    Referral(Ino),
    /// Other nodes did not reply in time. Nothing was done. The client may repeat the request.
    TryLater,
    /// Names and inodes, for a comparison with those of other nodes.
    BackPointers {
        /// The inodes in number order.
        inodes: Vec<BackPointer>,
        /// The entries, ordered by their inodes.
        names: Vec<InodeEntries>,
        /// The reply is complete up to this inode. `None`: it is complete.
        upto: Option<Ino>,
    },
    /// The addressed partition does not have the name: it has only names with these hashes. Nothing
    /// was done. The client corrects its partition map and [locates the name
    /// again](crate::partition::Partitions).
    WrongPartition {
        /// The partition.
        part: Ino,
        /// Its names.
        range: HashRange,
    },
    /// The partitions of a directory, ordered by range.
    Partitions(Vec<PartitionInfo>),
    /// The result of each operation of a batch.
    BatchResults(Vec<BatchResult>),
    /// The result of clearing a stretch of a directory.
    DirCleared {
        /// Number of removed entries.
        removed: u32,
        /// Their names, if requested.
        names: Vec<Bytes>,
        /// The entries that were not removed.
        retained: Vec<RetainedEntry>,
        /// See [`MetaReply::Entries`].
        end: bool,
        /// See [`MetaReply::Entries`].
        upto: u64,
    },
    /// The sums over a stretch of a directory.
    DirTotals {
        /// The sums.
        totals: DirTotals,
        /// See [`MetaReply::Entries`].
        end: bool,
        /// See [`MetaReply::Entries`].
        upto: u64,
    },
    /// The namespace changes of the node survive a power cut.
    Synced {
        /// Epoch of the server's cluster map. A client with a lower one may not have asked all
        /// nodes.
        epoch: u64,
    },
    /// Entries that lead to the requested inodes, in no order.
    LocatedEntries {
        /// The entries.
        names: Vec<LocatedEntry>,
        /// The reply is incomplete.
        more: bool,
    },
    /// True: repaired. False: nothing was done, because the records have changed since the caller
    /// saw them.
    Repaired(bool),
    /// Directories and partitions that have split.
    PartitionRecords {
        /// The directories and partitions in number order.
        parts: Vec<PartitionRecord>,
        /// The last inode checked; `None` at the end.
        next: Option<Ino>,
    },
    /// The reply to [`MetaOp::SyncNames`].
    NamesSynced {
        /// See [`MetaReply::Synced`].
        epoch: u64,
        /// Participants of decided transactions that may still lose their parts in a power cut.
        unsynced: Vec<ExecutorId>,
    },
    /// An entry was moved.
    Renamed {
        /// The replaced inode, as in [`MetaReply::Removed`].
        ino: Option<Ino>,
        /// See [`MetaReply::Removed`].
        last: bool,
        /// The inode that has the new name. In an exchange, also the inode that has the old one.
        /// Empty if both names lead to one inode.
        moved: Vec<Ino>,
    },
    /// The reply to an operation on the shared state of an open.
    Job {
        /// The open had no shared state before.
        first: bool,
        /// The reply.
        reply: JobReply,
    },
    /// Attributes of a split directory. Size, link count and times are those of its first
    /// partition.
    FirstPartition(Attr),
    /// The reply to an operation on bytes beside an inode.
    Inline(InlineReply),
    /// Like `Opened`, for a file of which the client may read the bytes and cache the attributes,
    /// and whose bytes lie beside the inode.
    OpenedInline {
        /// Its attributes.
        attr: Box<Attr>,
        /// Capability for the bytes.
        cap: Cap,
        /// All bytes, in the state that the attributes show.
        bytes: Bytes,
    },
    /// The reply to the begin of a move.
    MoveBegun(MoveStart),
    /// A directory is delegated exclusively to the client.
    DirectoryHeld {
        /// [`Ino::counter`] of the first number, on the directory's shard.
        first: u64,
        /// How many numbers follow each other.
        count: u32,
        /// Most bytes, in bytes, that a new file has beside its inode.
        inline_limit: u32,
        /// Permission bits of the directory, which has no ACL.
        mode: u16,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

/// A partition of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionInfo {
    /// The hashes of its names.
    pub range: HashRange,
    /// The shard that has it.
    pub shard: ShardId,
    /// Number of entries.
    pub entries: u64,
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Its name.
    pub name: Bytes,
    /// Its inode.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: InodeKind,
    /// The position in the listing. It stays the same while the entry exists. Above 0, below 2^63.
    pub cookie: u64,
    /// Attributes of the inode, if requested, and if the inode is on the node of the entry.
    pub attr: Option<Attr>,
}

/// An inode's record of its names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackPointer {
    /// Number of the inode.
    pub ino: Ino,
    /// Type of the inode; `None` if its record does not decode.
    pub kind: Option<InodeKind>,
    /// Link count of the inode.
    pub nlink: u32,
    /// The inode is kept after its last name.
    pub kept: bool,
    /// For a directory: its parent.
    pub parent: Ino,
    /// Increases with every change.
    pub version: u64,
    /// A transaction is about to write the inode.
    pub changing: bool,
}

/// Entries that lead to one inode and record the same kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeEntries {
    /// The inode.
    pub ino: Ino,
    /// The kind of the inode by these entries.
    pub kind: InodeKind,
    /// The directory of one of them.
    pub dir: Ino,
    /// Number of entries.
    pub count: u32,
    /// A transaction is about to write one of them, or to add one.
    pub changing: bool,
}

/// An inconsistency that no crash should leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The inode concerned.
    pub ino: Ino,
    /// Description of the fault, in a sentence.
    pub what: String,
    /// The fault was repaired.
    pub repaired: bool,
}

/// A reply, or an error.
pub type MetaResult = Result<MetaReply, Errno>;

/// The operation of a batch, as a separate request.
impl From<BatchOp> for MetaOp {
    fn from(operation: BatchOp) -> MetaOp {
        match operation {
            BatchOp::LookupEntry { parent, name } => MetaOp::LookupEntry { parent, name },
            BatchOp::GetAttr { ino } => MetaOp::GetAttr { ino },
            BatchOp::SetAttr { ino, set } => MetaOp::SetAttr { ino, set },
            BatchOp::Create { parent, name, node, mode, umask, exclusive, open } => {
                MetaOp::Create { parent, name, node, mode, umask, exclusive, open }
            }
            BatchOp::Commit { ino, state, close } => MetaOp::Commit { ino, state, close },
            BatchOp::Unlink { parent, name, keep } => MetaOp::Unlink { parent, name, keep },
            BatchOp::Rmdir { parent, name, keep } => MetaOp::Rmdir { parent, name, keep },
            BatchOp::Tmpfile { parent, name: _, layout, mode, umask, open } => {
                MetaOp::Tmpfile { parent, layout, mode, umask, open }
            }
            BatchOp::Link { ino, parent, name } => MetaOp::Link { ino, parent, name },
            BatchOp::CreateFilled { parent, name, layout, mode, umask, bytes, set } => {
                MetaOp::CreateFilled { parent, name, layout, mode, umask, bytes, set }
            }
            BatchOp::ReadInline { ino } => MetaOp::ReadInline { ino },
        }
    }
}

impl BatchResult {
    /// Converts the reply to a single operation. `None` for replies that a batch cannot contain.
    pub fn from_reply(reply: MetaReply) -> Option<BatchResult> {
        Some(match reply {
            MetaReply::Attr(attr) => BatchResult::Attr(attr),
            MetaReply::Referral(ino) => BatchResult::Referral(ino),
            MetaReply::Created { attr, cap, created } => {
                BatchResult::Created { attr, cap, created }
            }
            MetaReply::Removed { ino, last } => BatchResult::Removed { ino, last },
            MetaReply::WrongPartition { part, range } => {
                BatchResult::WrongPartition { part, range }
            }
            MetaReply::WrongShard { .. } => BatchResult::WrongShard,
            MetaReply::Inline(reply) => BatchResult::Inline(reply),
            _ => return None,
        })
    }

    /// Converts to the result of a single operation. `None` if the operation was not done.
    pub fn into_result(self) -> Option<Result<MetaReply, Errno>> {
        Some(Ok(match self {
            BatchResult::Attr(attr) => MetaReply::Attr(attr),
            BatchResult::Referral(ino) => MetaReply::Referral(ino),
            BatchResult::Created { attr, cap, created } => {
                MetaReply::Created { attr, cap, created }
            }
            BatchResult::Removed { ino, last } => MetaReply::Removed { ino, last },
            BatchResult::Inline(reply) => MetaReply::Inline(reply),
            BatchResult::Failed(errno) => return Some(Err(errno)),
            BatchResult::NeedsOtherNodes
            | BatchResult::Busy
            | BatchResult::WrongShard
            | BatchResult::WrongPartition { .. } => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_is_answered_as_the_operation_is() {
        let reply = MetaReply::Removed { ino: Some(Ino(5)), last: true };
        assert_eq!(
            BatchResult::from_reply(reply.clone()).and_then(BatchResult::into_result),
            Some(Ok(reply))
        );
        assert_eq!(BatchResult::Failed(Errno::ENOENT).into_result(), Some(Err(Errno::ENOENT)));
        for not_done in [BatchResult::NeedsOtherNodes, BatchResult::Busy, BatchResult::WrongShard] {
            assert_eq!(not_done.into_result(), None);
        }
        assert_eq!(BatchResult::from_reply(MetaReply::Done), None);
    }
}
