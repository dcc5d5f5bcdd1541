//! Requests to a shard of the namespace, and its replies.

use crate::act::{Act, Acted, Left, Sum};
use crate::job::{JobOp, JobTold};
use crate::lock::{LockOp, LockTold};
use crate::mend::{Mend, Named, Parted};
use crate::partition::{Range, name_hash};
use crate::tiles::{Cut, NewPiece, Page, Part};
use crate::{
    Access, Attr, Cap, Cred, Errno, ExecutorId, Ino, Kind, Layout, NodeId, Piece, SetAttr, ShardId,
    Timestamp,
};
use serde::{Deserialize, Serialize};

/// A directory entry name, an attribute name or value, a link target: bytes,
/// as in POSIX, not text.
pub type Bytes = serde_bytes::ByteBuf;

/// Most inodes that one [`MetaOp::Closed`] names, all kinds together.
pub const CLOSED_MAX: usize = 128;
/// Most inodes that one [`MetaOp::SyncNames`] names: more than a path has names.
pub const SYNCED_MAX: usize = 4096;

/// Most inodes of each sort in the answer to one [`MetaOp::Ties`].
pub const TIES_MAX: u32 = 8 * 1024;

/// One request to one shard, or to all that a node serves.
///
/// Where several nodes have shards, the entries of a large directory are in several
/// [partitions](crate::partition). `parent` of an operation that concerns a name, and `dir` of a listing, is the
/// number of the partition that has the name, as far as the client knows; the directory's own is that of the first one. Who
/// has not got it answers [`MetaReply::Parted`]. In all other places, and in answers, directories have
/// their own number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaCall {
    /// The shard that must answer, that of [`MetaOp::target`]; any for what
    /// [is for all shards](MetaOp::is_for_all_shards).
    pub shard: ShardId,
    /// On whose behalf. A connection that is not trusted may name itself only.
    pub cred: Cred,
    /// What to do.
    pub op: MetaOp,
}

/// What a new inode is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewNode {
    /// A regular file, empty, whose bytes will lie where the layout says. No
    /// object is made for it.
    File(Layout),
    /// An empty directory.
    Dir,
    /// A symbolic link to this target, 1 to [`crate::PATH_MAX`] bytes.
    Symlink(Bytes),
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device with this number.
    CharDev(u64),
    /// A block device with this number.
    BlockDev(u64),
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

/// What a writer learnt of a file's bytes, told at close and fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataState {
    /// Size in bytes, exactly (a writer may have cut the file).
    pub size: u64,
    /// Storage in use, in units of 512 bytes.
    pub blocks: u64,
    /// When the bytes last changed.
    pub mtime: Timestamp,
    /// The object's [`ObjectState::changed`](crate::object::ObjectState::changed).
    /// A state older than the one the shard knows is not news: two writers on
    /// two nodes may tell theirs in any order. Of two of the same time, the
    /// longer is the later: a disk notes the time of a write first.
    pub changed: Timestamp,
}

/// An operation on one shard. Those that change something are executed once,
/// however often they are sent: a client repeats a request whose answer it did
/// not see, with the same sequence number, and gets the first answer.
///
/// Where several nodes have shards, the entries of a large directory are in several
/// [partitions](crate::partition). `parent` of an operation that concerns a name, and `dir` of a
/// listing, is the number of the partition that has the name, as far as the client knows; the directory's own is
/// that of the first one. Who has not got it answers [`MetaReply::Parted`]. In all other places, and in
/// answers, directories have their own number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each operation says what its fields mean
pub enum MetaOp {
    /// The attributes of entry `name` of `parent`. → `Attr`
    Lookup { parent: Ino, name: Bytes },
    /// The same without a question to another node: where the inode is on one, only its number.
    /// → `Attr` or `Leads`
    Find { parent: Ino, name: Bytes },
    /// The attributes of an inode. → `Attr`
    GetAttr { ino: Ino },
    /// Changes attributes. → `Attr`
    SetAttr { ino: Ino, set: SetAttr },
    /// Makes an entry and its inode. With `exclusive`, an existing entry is
    /// `EEXIST`; without it an existing *file* is opened instead
    /// (`created: false`) and anything else is `EEXIST`. With `open`, permission for that access is
    /// checked on an existing file, and the answer carries a capability; it is noted that the client
    /// has it open, as by `Open`. → `Created`
    Create {
        parent: Ino,
        name: Bytes,
        node: NewNode,
        /// Permission bits before the umask (or default ACL) is applied.
        mode: u16,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    },
    /// Makes a file without a name (`O_TMPFILE`), open for `open` by this
    /// client, gone with its `Release` unless linked. → `Created`
    Tmpfile { parent: Ino, layout: Layout, mode: u16, umask: u16, open: Access },
    /// Checks permission, signs a capability; for writing also notes that this
    /// client may change the bytes. With `noted`, one that only reads is noted, too, if it is trusted, until its
    /// `Closed`: as long as either is noted, a file that loses its last name stays. → `Opened`
    Open { ino: Ino, access: Access, noted: bool },
    /// Tells the shard what the bytes are now. With `close` the client has no
    /// handle for writing any more. → `Attr`
    Commit { ino: Ino, state: Option<DataState>, close: bool },
    /// This client has no handle for writing on these inodes (of one node, at
    /// most [`CLOSED_MAX`]) any more, and nothing to tell of their bytes. It knows of those in
    /// `empty` that they had no object when it closed them. On those in `read`, which may be among the others, it has
    /// no handle that only reads any more. Those that are gone are passed over. → `Done`
    Closed { inos: Vec<Ino>, empty: Vec<Ino>, read: Vec<Ino> },
    /// Makes everything acknowledged so far survive a power cut. → `Synced`
    Sync,
    /// Removes an entry that is not a directory. With `keep`, an inode that
    /// loses its last name stays until this client's `Release`. It stays in any case until the `Closed` of
    /// others that are noted to have it open. → `Removed`
    Unlink { parent: Ino, name: Bytes, keep: bool },
    /// Removes an empty directory. → `Removed`
    Rmdir { parent: Ino, name: Bytes, keep: bool },
    /// Moves an entry. `keep` is for an inode that is replaced. → `Renamed`
    /// (`ino` = the replaced inode, if any)
    Rename {
        parent: Ino,
        name: Bytes,
        new_parent: Ino,
        new_name: Bytes,
        mode: RenameMode,
        keep: bool,
    },
    /// Gives an inode one more name. → `Attr`
    Link { ino: Ino, parent: Ino, name: Bytes },
    /// The target of a symbolic link. → `Bytes`
    Readlink { ino: Ino },
    /// Entries of `dir` in cookie order, those with a cookie above `after`
    /// (0 at the start), at most `limit` (1 to [`crate::READDIR_MAX`]), with
    /// attributes if `plus`. An entry that is there throughout is listed exactly once, whatever
    /// else changes. → `Entries`
    ReadDir { dir: Ino, after: u64, limit: u32, plus: bool },
    /// The value of an extended attribute. → `Bytes`
    GetXattr { ino: Ino, name: Bytes },
    /// Sets an extended attribute. → `Done`
    SetXattr { ino: Ino, name: Bytes, value: Bytes, mode: XattrMode },
    /// Names of all extended attributes, each followed by a zero byte. → `Bytes`
    ListXattr { ino: Ino },
    /// Removes an extended attribute. → `Done`
    RemoveXattr { ino: Ino, name: Bytes },
    /// This client has no handle left on an inode it had kept. → `Done`
    Release { ino: Ino },
    /// Number of inodes. → `Volume`
    StatVolume,

    // Housekeeping, for nodes only (trusted connections).
    /// Objects on `node` whose inode is gone. → `Garbage`
    Garbage { node: NodeId, limit: u32 },
    /// Those objects have been removed. → `Done`
    GarbageDone { node: NodeId, inos: Vec<Ino> },
    /// A client is gone for good: release all that it kept; files that it had
    /// open for writing go to the list of `Unsettled`. → `Done`
    ExpireClient { client: crate::ClientId },
    /// Clients that keep something on this shard. → `Clients`
    Clients,
    /// Files whose writer died before its close: their size must be learnt
    /// from the objects. → `Unsettled`
    Unsettled { limit: u32 },
    /// The size learnt, no smaller than what was committed before. → `Done`
    Settle { ino: Ino, state: Option<DataState> },
    /// Inodes above `after` in number order, for checking. → `Inodes`
    ScanInodes { after: Ino, limit: u32 },
    /// Verifies the shard's own records (entries ↔ inodes ↔ link counts) and,
    /// with `repair`, mends them. Examines inodes above `after`. → `Checked`
    ///
    /// Where several nodes have shards, nothing is said of how names and inodes of different nodes
    /// agree: that is compared by who asks, with `Ties` and `Parts`, and mended with `Mend`.
    Check { after: Ino, limit: u32, repair: bool },
    /// Which of these inodes (of one node, at most [`crate::READDIR_MAX`]) are about to change:
    /// open for writing, with a size to be settled, or gone with objects still
    /// to be removed from `node`. What a check finds odd about them is no error. → `InFlux`
    InFlux { node: NodeId, inos: Vec<Ino> },

    // Tiled files, see `tiles`.
    /// Makes pieces, numbered one after the other: on each of the nodes so many, as told. The
    /// file is tiled from now on. The client must have it open for writing, or be allowed
    /// to. Every stamp of a tile of these pieces must be above the one that is told. → `Pieces`
    AddPieces { ino: Ino, nodes: Vec<(NodeId, u32)> },
    /// Replaces the tiles of some pieces and adds cuts, all or nothing; `base` is the state of
    /// piece 0, if that was written. Permission as for `AddPieces`. `ESTALE` where a piece is
    /// gone (the file was cut to nothing) or closed, `EINVAL` for tiles that do not read. → `Attr`
    Publish { ino: Ino, parts: Vec<Part>, cuts: Vec<Cut>, base: Option<DataState> },
    /// The pieces above `after`, at most `limit`. → `Tiles`
    Tiles { ino: Ino, after: u32, limit: u32 },
    /// Housekeeping: objects on `node` that are not needed any more, though their inode is
    /// there. → `GarbagePieces`
    GarbagePieces { node: NodeId, limit: u32 },
    /// Housekeeping: those objects have been removed. → `Done`
    GarbagePiecesDone { node: NodeId, pieces: Vec<(Ino, Piece)> },

    // A file is laid out anew: its bytes are copied into objects that nobody knows yet, which
    // then take the place of those it has.
    /// Sets an object aside on each of these nodes, at most [`RESERVE_MAX`](crate::tiles::RESERVE_MAX):
    /// that of a piece, numbered one after the other. They are garbage as soon as this client has the
    /// file not open for writing any more, which it must have now. `EBUSY` while somebody else
    /// has, or what a writer left is not settled yet. Stamps as for `AddPieces`. → `Pieces`
    Reserve { ino: Ino, nodes: Vec<NodeId> },
    /// Lays the file out anew: these pieces, and as its base the piece with this number, on this
    /// node, of which `state` tells, all set aside by this client. What the file consisted of
    /// becomes garbage, and this client has it not open for writing any more. `EBUSY` where anybody
    /// could have changed the bytes since they were set aside, `EINVAL` where the size would be
    /// another. → `Attr`
    Relayout { ino: Ino, pieces: Vec<NewPiece>, base: (NodeId, u32), state: DataState },

    // Where several nodes have shards.
    /// Housekeeping: what ties names to inodes on the node of `shard`: inodes above `after`, up to `last`, that lie there,
    /// and the entries there that lead to such inodes, wherever these lie; at most `limit` inodes of
    /// each (8 to [`TIES_MAX`]). → `Ties`
    Ties { shard: ShardId, after: Ino, last: Ino, limit: u32 },
    /// In which partitions a directory's entries are. → `Partitions`
    Partitions { dir: Ino },
    /// Housekeeping: splits a partition with more than so many entries, if that spreads it over more
    /// nodes. → `Done`
    Split { part: Ino, above: u64 },
    /// Locks, see [`crate::lock`]: kept by the node, not with the namespace. `session` is the
    /// number of the client's session at the node, 0 while it holds nothing there. → `Locks`
    Locks { ino: Ino, session: u64, op: LockOp },

    // Many at a time, see `act`.
    /// Operations at one node, at most [`ACTS_MAX`](crate::act::ACTS_MAX), each by itself. → `Acted`, in the same order
    Acts { acts: Vec<Act> },
    /// Removes entries of `dir` that are no directories, as `Unlink` does with each: of those that `ReadDir` would tell.
    /// With `tell`, their names are told. Who may not read the directory may not do it. → `Cleared`
    Clear { dir: Ino, after: u64, limit: u32, tell: bool },
    /// Adds up what the entries of `dir` lead to that `ReadDir` would tell, for those who may see their attributes: who
    /// may read and search the directory. → `Summed`
    Sum { dir: Ino, after: u64, limit: u32 },

    // A check of several nodes, see `mend`.
    /// Housekeeping: the entries on the node of `shard` that lead to these inodes, at most [`NAMED_MAX`](crate::mend::NAMED_MAX)
    /// of both. → `Named`
    NamesOf { shard: ShardId, inos: Vec<Ino> },
    /// Housekeeping: mends what ties a name to this inode, if it still is as whoever asks has seen it. → `Mended`
    Mend { ino: Ino, mend: Mend },
    /// Housekeeping: the directories and partitions on the node of `shard`, above `after` in number order, of which the entries are
    /// in several partitions. → `Parts`
    Parts { shard: ShardId, after: Ino },
    /// As `Sync`, on behalf of these inodes, at most [`SYNCED_MAX`]: the answer tells which other executors have a part in what was
    /// done to their names. → `NamesSynced`
    SyncNames { inos: Vec<Ino> },

    /// What the ranks of a collective open share, see [`crate::job`]. `open` is the number of the open, and `joined`
    /// tells that this rank of this client has taken part before: `ESTALE` where the shard does not know it any
    /// more. Who may read or write the file may take part. → `Job`
    Job { ino: Ino, open: u64, rank: u32, joined: bool, op: JobOp },
}

impl MetaOp {
    /// Whether the operation changes something, and so must run once only.
    pub fn is_mutation(&self) -> bool {
        use MetaOp::*;
        match self {
            Lookup { .. }
            | Find { .. }
            | GetAttr { .. }
            | Readlink { .. }
            | ReadDir { .. }
            | GetXattr { .. }
            | ListXattr { .. }
            | StatVolume
            | Sync
            | SyncNames { .. }
            | Garbage { .. }
            | Clients
            | Unsettled { .. }
            | InFlux { .. }
            | Tiles { .. }
            | GarbagePieces { .. }
            | Ties { .. }
            | Partitions { .. }
            // Done twice in a row, they have done the same.
            | Locks { .. }
            | Sum { .. }
            | NamesOf { .. }
            | Parts { .. }
            | ScanInodes { .. } => false,
            Acts { acts } => acts.iter().any(Act::is_mutation),
            Open { access, .. } => access.write,
            Check { repair, .. } => *repair,
            SetAttr { .. }
            | Create { .. }
            | Tmpfile { .. }
            | Commit { .. }
            | Closed { .. }
            | Unlink { .. }
            | Rmdir { .. }
            | Rename { .. }
            | Link { .. }
            | SetXattr { .. }
            | RemoveXattr { .. }
            | Release { .. }
            | GarbageDone { .. }
            | GarbagePiecesDone { .. }
            | AddPieces { .. }
            | Publish { .. }
            | Reserve { .. }
            | Relayout { .. }
            | ExpireClient { .. }
            | Split { .. }
            | Clear { .. }
            | Mend { .. }
            | Job { .. }
            | Settle { .. } => true,
        }
    }

    /// Whether only nodes of the volume may ask for it.
    pub fn is_housekeeping(&self) -> bool {
        use MetaOp::*;
        matches!(
            self,
            Garbage { .. }
                | GarbageDone { .. }
                | GarbagePieces { .. }
                | GarbagePiecesDone { .. }
                | ExpireClient { .. }
                | Clients
                | Unsettled { .. }
                | Settle { .. }
                | ScanInodes { .. }
                | Check { .. }
                | Ties { .. }
                | Split { .. }
                | NamesOf { .. }
                | Parts { .. }
                | Mend { .. }
                | InFlux { .. }
        )
    }

    /// Whether it concerns all shards of the node that it is put to.
    pub fn is_for_all_shards(&self) -> bool {
        use MetaOp::*;
        matches!(
            self,
            Sync | SyncNames { .. }
                | StatVolume
                | Garbage { .. }
                | GarbageDone { .. }
                | GarbagePieces { .. }
                | GarbagePiecesDone { .. }
                | ExpireClient { .. }
                | Clients
                | Unsettled { .. }
                | Ties { .. }
                | NamesOf { .. }
                | Parts { .. }
                | ScanInodes { .. }
        )
    }

    /// The one entry that the operation looks up, makes or removes: its
    /// directory and name. `None` for those that concern none, or two.
    pub fn entry(&self) -> Option<(Ino, &Bytes)> {
        use MetaOp::*;
        match self {
            Lookup { parent, name }
            | Find { parent, name }
            | Create { parent, name, .. }
            | Unlink { parent, name, .. }
            | Rmdir { parent, name, .. }
            | Link { parent, name, .. } => Some((*parent, name)),
            _ => None,
        }
    }

    /// The directory that may be delegated with the answer: the one of [`MetaOp::entry`], or the one that is
    /// listed with attributes, which are about to be asked for one by one.
    pub fn shown_dir(&self) -> Option<Ino> {
        match self {
            MetaOp::ReadDir { dir, plus: true, .. } => Some(*dir),
            _ => self.entry().map(|(dir, _)| dir),
        }
    }

    /// Shows `place` each directory in which the operation does something, with the hash of the name that it concerns (of
    /// a listing: the first one that it may show), to put a partition in its place.
    pub fn for_each_place(&mut self, seed: u64, mut place: impl FnMut(&mut Ino, u64)) {
        use MetaOp::*;
        let mut named = |dir: &mut Ino, name: &Bytes| {
            if !matches!(name.as_slice(), b"." | b"..") {
                place(dir, name_hash(seed, name));
            }
        };
        match self {
            Lookup { parent, name }
            | Find { parent, name }
            | Create { parent, name, .. }
            | Unlink { parent, name, .. }
            | Rmdir { parent, name, .. }
            | Link { parent, name, .. } => named(parent, name),
            Rename { parent, name, new_parent, new_name, .. } => {
                named(parent, name);
                named(new_parent, new_name);
            }
            ReadDir { dir, after, .. } | Clear { dir, after, .. } | Sum { dir, after, .. } => {
                place(dir, after.saturating_add(1));
            }
            Acts { acts } => acts.iter_mut().for_each(|act| act.for_each_place(seed, &mut place)),
            _ => {}
        }
    }

    /// The inode whose shard must answer.
    pub fn target(&self) -> Ino {
        use MetaOp::*;
        match self {
            Lookup { parent, .. }
            | Find { parent, .. }
            | Create { parent, .. }
            | Tmpfile { parent, .. }
            | Unlink { parent, .. }
            | Rmdir { parent, .. }
            | Rename { parent, .. }
            | Link { parent, .. } => *parent,
            GetAttr { ino }
            | SetAttr { ino, .. }
            | Open { ino, .. }
            | Commit { ino, .. }
            | Readlink { ino }
            | GetXattr { ino, .. }
            | SetXattr { ino, .. }
            | ListXattr { ino }
            | RemoveXattr { ino, .. }
            | Release { ino }
            | AddPieces { ino, .. }
            | Publish { ino, .. }
            | Reserve { ino, .. }
            | Relayout { ino, .. }
            | Tiles { ino, .. }
            | Locks { ino, .. }
            | Job { ino, .. }
            | Settle { ino, .. } => *ino,
            ReadDir { dir, .. } | Partitions { dir } | Clear { dir, .. } | Sum { dir, .. } => *dir,
            Acts { acts } => acts.first().map_or(Ino::ROOT, Act::target),
            Split { part, .. } => *part,
            InFlux { inos, .. } => inos.first().copied().unwrap_or(Ino::ROOT),
            Closed { inos, empty, read } => {
                inos.iter().chain(empty).chain(read).next().copied().unwrap_or(Ino::ROOT)
            }
            ScanInodes { after, .. } | Check { after, .. } => *after,
            Ties { shard, .. } | NamesOf { shard, .. } | Parts { shard, .. } => {
                Ino::first_of(*shard)
            }
            Mend { ino, mend } => mend.part().unwrap_or(*ino),
            Sync
            | SyncNames { .. }
            | StatVolume
            | Garbage { .. }
            | GarbageDone { .. }
            | GarbagePieces { .. }
            | GarbagePiecesDone { .. }
            | ExpireClient { .. }
            | Clients
            | Unsettled { .. } => Ino::ROOT,
        }
    }
}

/// The answer to a [`MetaOp`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MetaReply {
    /// The attributes after the operation.
    Attr(Attr),
    /// A new, or found, inode.
    Created {
        /// Its attributes.
        attr: Attr,
        /// Access to its bytes, if it was opened. A file that was there already and whose inode is on
        /// another node than its entry is not opened for writing: that node is to be asked.
        cap: Option<Cap>,
        /// False where it was there already.
        created: bool,
    },
    /// An open file.
    Opened {
        /// Its attributes.
        attr: Attr,
        /// Access to its bytes.
        cap: Cap,
    },
    /// What a removal did to the inode.
    Removed {
        /// The inode that lost a name, if there was one.
        ino: Option<Ino>,
        /// That was its last name.
        last: bool,
    },
    /// Part of a directory.
    Entries {
        /// The entries, in cookie order.
        entries: Vec<DirEntry>,
        /// Nothing follows.
        end: bool,
        /// The parent of the directory (itself, for the root), for `..`. Of a partition other than the
        /// first: the directory.
        parent: Ino,
        /// All up to this cookie is told: where to go on, maybe in another partition.
        upto: u64,
    },
    /// Raw bytes.
    Bytes(Bytes),
    /// Nothing to tell.
    Done,
    /// Counts.
    Volume {
        /// Inodes in use on this shard.
        inodes: u64,
    },
    /// Inodes whose objects on a node can go.
    Garbage(Vec<Ino>),
    /// Clients that hold something.
    Clients(Vec<crate::ClientId>),
    /// Files whose size is not sure.
    Unsettled(Vec<Attr>),
    /// Inodes for checking.
    Inodes {
        /// In number order.
        attrs: Vec<Attr>,
        /// Nothing follows.
        end: bool,
    },
    /// Findings of a check.
    Checked {
        /// What is wrong, or was, a line each.
        findings: Vec<Finding>,
        /// Number of inodes looked at.
        examined: u64,
        /// The last inode looked at; `None` when nothing follows.
        next: Option<Ino>,
    },
    /// Those that are about to change.
    InFlux(Vec<Ino>),
    /// New pieces.
    Pieces {
        /// Number of the first.
        first: u32,
        /// Nothing of the file has a later stamp.
        stamp: u64,
    },
    /// What a tiled file consists of.
    Tiles(Page),
    /// Objects on a node that can go.
    GarbagePieces(Vec<(Ino, Piece)>),
    /// The answer to a request about locks.
    Locks {
        /// The client's session at the node from now on.
        session: u64,
        /// The answer.
        told: LockTold,
    },
    /// The node does not serve this shard: whoever asks has an old map. Nothing was done.
    Elsewhere {
        /// Of the map that the node has.
        epoch: u64,
    },
    /// The inode of an entry: it is on another node than the entry, which is to be asked.
    Leads(Ino),
    /// Other nodes that the operation needs did not answer for long. Nothing was done; the same
    /// request may be sent again.
    Later,
    /// Names and inodes, to be compared with those of other nodes.
    Ties {
        /// In number order.
        inodes: Vec<Tied>,
        /// In the order of the inodes that they lead to.
        names: Vec<Naming>,
        /// Up to here all is told; `None`: all that was asked for.
        upto: Option<Ino>,
    },
    /// The partition that was asked has not got what was asked for: only names with these hashes. Nothing was
    /// done. Ask [where the name is looked for](crate::partition::Partitions).
    Parted {
        /// The partition.
        part: Ino,
        /// What it has.
        range: Range,
    },
    /// The partitions of a directory, in the order of their ranges.
    Partitions(Vec<Partition>),
    /// What became of each act.
    Acted(Vec<Acted>),
    /// A stretch of a directory was cleared.
    Cleared {
        /// Number of entries that were removed.
        removed: u32,
        /// Their names, if they were to be told.
        names: Vec<Bytes>,
        /// What was not removed.
        left: Vec<Left>,
        /// As of [`MetaReply::Entries`].
        end: bool,
        /// As of [`MetaReply::Entries`].
        upto: u64,
    },
    /// A stretch of a directory was added up.
    Summed {
        /// What came of it.
        sum: Sum,
        /// As of [`MetaReply::Entries`].
        end: bool,
        /// As of [`MetaReply::Entries`].
        upto: u64,
    },
    /// What the node knows of names survives a power cut.
    Synced {
        /// Of the map that the node has: a client with a lower one may not have asked all nodes.
        epoch: u64,
    },
    /// Entries that lead to inodes that were asked for, in no order.
    Named {
        /// The entries.
        names: Vec<Named>,
        /// There are more of them.
        more: bool,
    },
    /// Whether it was mended. If not, nothing was done: it is not as it was seen any more.
    Mended(bool),
    /// Directories and partitions of which the entries are in several.
    Parts {
        /// In number order.
        parts: Vec<Parted>,
        /// The last inode looked at; `None` when nothing follows.
        next: Option<Ino>,
    },
    /// The answer to [`MetaOp::SyncNames`].
    NamesSynced {
        /// As of [`MetaReply::Synced`].
        epoch: u64,
        /// Their parts in transactions that the executor has decided are not known to survive a power cut there.
        also: Vec<ExecutorId>,
    },
    /// An entry was moved.
    Renamed {
        /// The inode that was replaced, as of [`MetaReply::Removed`].
        ino: Option<Ino>,
        /// As of [`MetaReply::Removed`].
        last: bool,
        /// The inode that has the new name, and in an exchange that which has the old one. None where both are one.
        moved: Vec<Ino>,
    },
    /// The answer to an operation on what the ranks of an open share.
    Job {
        /// Nobody had shared anything of this open before.
        first: bool,
        /// The answer.
        told: JobTold,
    },
}

/// A part of a directory's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Which names.
    pub range: Range,
    /// Where they are.
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
    /// What the inode is.
    pub kind: Kind,
    /// Its place in the listing: stays the same while the entry lives. Above 0, below 2^63.
    pub cookie: u64,
    /// Its attributes, if they were asked for and are on the node of the entry.
    pub attr: Option<Attr>,
}

/// What an inode says of its names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tied {
    /// Its number.
    pub ino: Ino,
    /// What it is; `None` where its record does not read.
    pub kind: Option<Kind>,
    /// Its link count.
    pub nlink: u32,
    /// Somebody keeps it beyond its last name.
    pub kept: bool,
    /// Of a directory: the one it lies in.
    pub parent: Ino,
    /// Goes up with every change.
    pub version: u64,
    /// A transaction is about to write it.
    pub changing: bool,
}

/// Entries that lead to one inode and say that it is of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Naming {
    /// The inode.
    pub ino: Ino,
    /// What the entries say that it is.
    pub kind: Kind,
    /// The directory of one of them.
    pub dir: Ino,
    /// Number of entries.
    pub count: u32,
    /// A transaction is about to write one of them, or to add one.
    pub changing: bool,
}

/// Something that no crash should leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The inode concerned.
    pub ino: Ino,
    /// What is wrong, in a sentence.
    pub what: String,
    /// It was mended.
    pub repaired: bool,
}

/// What a shard answers: a reply or an error.
pub type MetaResult = Result<MetaReply, Errno>;
