//! The messages between a process here and its I/O process at the other site: frames over one
//! stream, after a greeting line of the I/O process. Each call has one reply, in the order of the
//! calls. A caller need not wait for a reply before it sends the next call.

use crate::compression_form::CompressionForm;
use crate::data_proof::DataSecret;
use crate::mount_message::{MountCall, SiteSpace};
use crate::part_record::{BlockSum, PartStart};
pub use crate::session_key::REMOTE_PROTOCOL;
use crate::session_key::SiteSessionKey;
use crate::site_backend::SiteBackend;
use serde::{Deserialize, Serialize};
use tatami_wire::meta::Bytes;

/// The first word of the greeting line. Lines before it come from the login shell.
pub const GREETING: &str = "tatami-gateway";
/// Most bytes of a file in one call or reply.
pub const BYTES_MAX: usize = 1 << 20;

/// The facts in the greeting line, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteGreeting {
    /// The version of `tatami` there.
    pub version: String,
    /// [`REMOTE_PROTOCOL`] there.
    pub protocol: u32,
    /// The name that the machine gives itself.
    pub name: String,
    /// Its machine id, or an empty text: two addresses may lead to one machine.
    #[serde(default)]
    pub machine: String,
    /// The process that has written the greeting.
    #[serde(default)]
    pub process: Option<SiteProcess>,
    /// The key with which a later ssh goes on with this session.
    #[serde(default)]
    pub session: Option<SiteSessionKey>,
}

/// A process, in the words of its own machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteProcess {
    /// Its number.
    pub pid: u32,
    /// When it was started, in the ticks of proc_pid_stat(5). Another process that gets the number
    /// later has another start.
    pub started: u64,
}

/// Returns when a process of this machine was started; `None`: it does not exist.
pub fn find_process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may have blanks and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

impl SiteGreeting {
    /// Returns the greeting of this machine. `version` is that of `tatami`.
    pub fn of_this_machine(version: &str) -> SiteGreeting {
        SiteGreeting {
            version: version.to_owned(),
            protocol: REMOTE_PROTOCOL,
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            machine: own_machine_id(),
            process: find_process_start(std::process::id())
                .map(|started| SiteProcess { pid: std::process::id(), started }),
            session: None,
        }
    }
}

/// Returns the id of this machine, or an empty text.
pub fn own_machine_id() -> String {
    std::fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned()
}

/// Returns the greeting of a line; `None`: the line is another one, from the login shell.
///
/// # Errors
/// The greeting cannot be read.
pub fn parse_greeting(line: &[u8]) -> Option<serde_json::Result<SiteGreeting>> {
    let facts = line.strip_prefix(GREETING.as_bytes())?.strip_prefix(b" ")?;
    Some(serde_json::from_slice(facts))
}

/// Returns the greeting line.
pub fn format_greeting(greeting: &SiteGreeting) -> String {
    let facts = serde_json::to_string(greeting).unwrap_or_default();
    format!("{GREETING} {facts}\n")
}

/// The checksum of bytes of a file, from the memory of one side to that of the other.
pub fn sum_bytes(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// A collective open of a file there, as one rank takes part in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOpen {
    /// The path there.
    pub path: Bytes,
    /// The flags of the open, those of `tio_open`.
    pub flags: u32,
    /// Bytes that are read at a time for scattered requests.
    pub read_buffer: u64,
    /// Whether a gap may be read to save a call.
    pub sieve: bool,
    /// The back end: the wish in `Begin`, the one in force in `Open`.
    pub backend: SiteBackend,
}

/// A call to the I/O process. `file` is a number that the caller chooses for an open file. Stream
/// positions and lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteCall {
    /// Begins a collective open as rank 0: makes or finds the file. → `Token`
    Begin {
        /// The open.
        open: FileOpen,
        /// Permissions of a new file, before the umask there.
        mode: u32,
        /// Ranks that take part.
        ranks: u32,
    },
    /// Opens the file as one rank. → `Done`
    Open {
        /// The number of the file.
        file: u64,
        /// The open.
        open: FileOpen,
        /// The rank.
        rank: u32,
        /// The token that rank 0 got.
        token: Bytes,
    },
    /// Sets the view of the file. → `Done`
    SetView {
        /// The file.
        file: u64,
        /// The encoded view.
        view: Bytes,
    },
    /// Writes the bytes of the payload through the view. → `Done`
    Write {
        /// The file.
        file: u64,
        /// The stream position.
        stream: u64,
        /// The checksum of the payload.
        sum: u32,
    },
    /// Reads through the view, at most [`BYTES_MAX`]. → `Bytes`, fewer at the end of the file
    Read {
        /// The file.
        file: u64,
        /// The stream position.
        stream: u64,
        /// The number of bytes.
        len: u32,
    },
    /// Asks for the size of the file. → `Size`
    Size {
        /// The file.
        file: u64,
    },
    /// Truncates or extends the file. → `Done`
    SetSize {
        /// The file.
        file: u64,
        /// Its new size.
        size: u64,
    },
    /// Makes the file at least that long, with room on the disk. → `Done`
    Preallocate {
        /// The file.
        file: u64,
        /// Its least size.
        size: u64,
    },
    /// Completes the writes of this rank. → `Sealed`
    Seal {
        /// The file.
        file: u64,
        /// Whether the bytes must be on the disk.
        durable: bool,
    },
    /// Adds the payload to what a rank has sealed, for the next `Publish`. → `Done`
    AddSealed {
        /// The file.
        file: u64,
        /// The rank.
        rank: u32,
    },
    /// Asks for a stamp for a new view epoch. → `Stamp`
    NextStamp {
        /// The file.
        file: u64,
    },
    /// Begins a view epoch. → `Done`
    BeginEpoch {
        /// The file.
        file: u64,
        /// Its stamp.
        stamp: u64,
    },
    /// Switches atomic mode. → `Done`
    SetAtomic {
        /// The file.
        file: u64,
        /// Whether each access is made under the lock.
        on: bool,
    },
    /// Records that what this rank sealed last was published. → `Done`
    MarkPublished {
        /// The file.
        file: u64,
    },
    /// Ends a sync or an open as rank 0, after all ranks have sealed. → `Done`
    Publish {
        /// The file.
        file: u64,
        /// Whether the bytes must be on the disk.
        durable: bool,
        /// Whether the open ends.
        closing: bool,
        /// Ranks of the open.
        ranks: u32,
        /// Bytes that the ranks have sealed, all together.
        sealed: u64,
    },
    /// Waits for the lock of atomic mode. → `Done`
    Lock {
        /// The file.
        file: u64,
    },
    /// Gives up the lock of atomic mode. → `Done`
    Unlock {
        /// The file.
        file: u64,
    },
    /// Adds to the shared pointer. → `Pointer`, the value before
    AddToPointer {
        /// The file.
        file: u64,
        /// The summand.
        delta: i64,
    },
    /// Sets the shared pointer. → `Done`
    SetPointer {
        /// The file.
        file: u64,
        /// The new value.
        value: i64,
    },
    /// Ends this rank's part in the open. → `Done`
    Close {
        /// The file.
        file: u64,
    },
    /// Removes a file by its path. → `Done`
    Delete {
        /// The path.
        path: Bytes,
    },
    /// Reads from the start of a file by its path, at most [`BYTES_MAX`]. → `Bytes`
    Look {
        /// The path.
        path: Bytes,
        /// The number of bytes.
        len: u32,
    },
    /// Asks for the metadata of a file by its path. → `Stat`
    Stat {
        /// The path.
        path: Bytes,
    },
    /// Asks for all attributes of a path of any kind. → `Entry`, without a name
    LookAt {
        /// The path.
        path: Bytes,
        /// Whether a symbolic link at its end is followed.
        follow: bool,
    },
    /// Lists one piece of a directory. → `Entries`; `ESTALE`: the pieces before it are forgotten
    List {
        /// The path.
        path: Bytes,
        /// The number of this listing, chosen by the caller.
        listing: u64,
        /// The number of the piece. Piece 0 begins the listing.
        piece: u32,
    },
    /// Makes a directory. → `Done`
    MakeDir {
        /// The path.
        path: Bytes,
        /// Its permissions.
        mode: u32,
        /// Whether the umask there is ignored.
        is_exact: bool,
    },
    /// Makes a symbolic link. → `Done`
    MakeLink {
        /// The path.
        path: Bytes,
        /// The target.
        target: Bytes,
    },
    /// Changes the attributes of a path. → `Done`
    Change {
        /// The path.
        path: Bytes,
        /// The new attributes.
        change: SiteChange,
    },
    /// Removes an empty directory. → `Done`
    RemoveDir {
        /// The path.
        path: Bytes,
    },
    /// Removes some entries of a tree, and its top at last. → `Removed`
    RemoveTree {
        /// The path.
        path: Bytes,
        /// The number of this removal, chosen by the caller.
        removal: u64,
    },
    /// Opens a regular file to be read by `Read` and `FindData`. → `Entry`, without a name
    OpenSource {
        /// The number of the file.
        file: u64,
        /// The path.
        path: Bytes,
        /// Device and inode of the file that it must still be.
        same: Option<(u64, u64)>,
    },
    /// Searches for bytes that are no hole. → `Data`
    FindData {
        /// The file.
        file: u64,
        /// Where the search begins.
        from: u64,
    },
    /// Opens a file for `Write` and `SetSize`. It gets its name by `FinishSink`. → `Done`
    OpenSink {
        /// The number of the file.
        file: u64,
        /// The path.
        path: Bytes,
        /// Permissions of a new file, before the umask there.
        mode: u32,
    },
    /// Completes a file: its attributes, and then its name. → `Done`
    FinishSink {
        /// The file.
        file: u64,
        /// The attributes.
        change: SiteChange,
        /// Whether a file of that name is replaced.
        may_replace: bool,
    },
    /// Makes a whole file of the payload. → `Done`
    PutFile {
        /// The path.
        path: Bytes,
        /// Permissions of a new file, before the umask there.
        mode: u32,
        /// The attributes.
        change: SiteChange,
        /// Whether a file of that name is replaced.
        may_replace: bool,
        /// The checksum of the payload.
        sum: u32,
    },
    /// Reads a regular file from its start, at most [`BYTES_MAX`]. → `Fetched`
    FetchFile {
        /// The path.
        path: Bytes,
        /// The number of bytes.
        len: u32,
    },
    /// As `OpenSink`, for a file that a later copy can continue. → `Part`
    OpenPart {
        /// The number of the file.
        file: u64,
        /// The path.
        path: Bytes,
        /// Permissions of a new file, before the umask there.
        mode: u32,
        /// The encoded record of the source.
        record: Bytes,
    },
    /// Asks for the sums of the blocks of a range. → `Sums`
    SumBlocks {
        /// The file, a source or a part.
        file: u64,
        /// The start of the first block.
        from: u64,
        /// The end of the last block.
        end: u64,
    },
    /// A call of a mount.
    Mount(MountCall),
    /// Asks for one data connection beside ssh. → `Offer`
    OpenData {
        /// Whether it has TLS.
        encrypt: bool,
    },
    /// Ends a data connection, and waits until no call of it is carried out any more. → `Done`
    CloseData {
        /// Its number.
        connection: u32,
    },
    /// As `Write`, with a payload that is compressed. Over data connections alone. → `Done`
    WriteCompressed {
        /// The file.
        file: u64,
        /// The stream position.
        stream: u64,
        /// The checksum of the bytes of the file.
        sum: u32,
        /// How they are compressed.
        form: CompressionForm,
        /// Their number, at most [`BYTES_MAX`].
        len: u32,
    },
    /// As `Read`, with a reply that may be compressed. Over data connections alone.
    /// → `CompressedBytes`
    ReadCompressed {
        /// The file.
        file: u64,
        /// The stream position.
        stream: u64,
        /// The number of bytes.
        len: u32,
    },
    /// Ends the I/O process that the session had before, and waits until it is gone. → `Done`
    EndProcess(SiteProcess),
    /// Asks a relay for one way to the first of these addresses that it reaches. → `Offer`
    OpenRelay {
        /// Addresses, without ports.
        addresses: Vec<String>,
        /// The port at all of them.
        port: u16,
    },
    /// Lets this link carry a session after its link broke. The first message of a link, and no
    /// call of the session. → `Resumed`
    ResumeSession {
        /// The key of the session.
        key: SiteSessionKey,
        /// Replies that have been received.
        received: u64,
        /// The number of this attempt: a later one has a higher number.
        attempt: u64,
    },
    /// Says how many replies have been received. No call, and without a reply.
    Received {
        /// Their number since the session began.
        count: u64,
    },
    /// Ends the session. No call, and without a reply.
    EndSession,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteReply {
    /// It is done.
    Done,
    /// The open has begun.
    Token {
        /// The token for all ranks.
        token: Bytes,
        /// The back end that was chosen.
        backend: SiteBackend,
    },
    /// What this rank has sealed, for rank 0.
    Sealed(Bytes),
    /// A stamp.
    Stamp(u64),
    /// The bytes of the payload, with their checksum.
    Bytes {
        /// The checksum.
        sum: u32,
    },
    /// The bytes of the payload, which may be compressed.
    CompressedBytes {
        /// The checksum of the bytes of the file.
        sum: u32,
        /// How they are compressed.
        form: CompressionForm,
        /// Their number.
        len: u32,
    },
    /// A size, in bytes.
    Size(u64),
    /// A value of the shared pointer.
    Pointer(i64),
    /// The metadata of a file.
    Stat(SiteStat),
    /// The attributes of a path.
    Entry(SiteEntry),
    /// A piece of a directory.
    Entries {
        /// The entries, in the order of the directory.
        entries: Vec<SiteEntry>,
        /// Whether the listing is complete.
        is_last: bool,
    },
    /// The next range of data: start and end. `None`: a hole up to the end of the file.
    Data(Option<(u64, u64)>),
    /// A whole file, with its bytes in the payload.
    Fetched {
        /// Its attributes.
        attr: SiteAttr,
        /// The checksum.
        sum: u32,
    },
    /// How a part file begins.
    Part(PartStart),
    /// The sums of blocks; `None`: the block is a hole.
    Sums(Vec<Option<BlockSum>>),
    /// What one step of a removal has removed.
    Removed(SiteRemoval),
    /// The root of a mount.
    Mounted {
        /// Its attributes.
        attr: SiteAttr,
        /// The user there, as which all calls run.
        uid: u32,
        /// The group of that user.
        gid: u32,
    },
    /// An open file of a mount.
    Opened {
        /// Its attributes.
        attr: SiteAttr,
        /// Whether its last change is so old that another one would have another time.
        is_settled: bool,
    },
    /// The room of a file system.
    Space(SiteSpace),
    /// A place where one data connection is accepted, for a short time.
    Offer(DataOffer),
    /// It failed.
    Failed(RemoteFailure),
    /// The link carries the session from now on. No reply to a call of the session.
    Resumed {
        /// Calls that have been received. The others are to be sent again.
        received: u64,
    },
}

/// A place where one data connection is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataOffer {
    /// The number of the connection.
    pub connection: u32,
    /// Addresses, the best one first.
    pub addresses: Vec<String>,
    /// The TCP port at all of them.
    pub port: u16,
    /// The secret that both sides prove to each other.
    pub secret: DataSecret,
    /// The certificate in DER of the side that accepts; empty: there is no TLS.
    pub certificate: Bytes,
}

/// All attributes of a file of any kind, as in stat(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteAttr {
    /// The device that has the inode.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Storage, in units of 512 bytes.
    pub blocks: u64,
    /// Last access: seconds since 1970, nanoseconds.
    pub accessed: (i64, u32),
    /// Last change of the bytes.
    pub modified: (i64, u32),
    /// Last change of the inode.
    pub changed: (i64, u32),
    /// Creation; zero where the file system does not record it.
    pub born: (i64, u32),
}

/// A name with its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteEntry {
    /// The name in its directory.
    pub name: Bytes,
    /// The attributes; a link is not followed.
    pub attr: SiteAttr,
    /// The target of a symbolic link.
    pub target: Option<Bytes>,
}

/// New attributes of a file. The others stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteChange {
    /// Permissions.
    pub mode: Option<u32>,
    /// Last change of the bytes.
    pub modified: Option<(i64, u32)>,
}

/// What one step of a removal has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRemoval {
    /// Removed paths, from the top of the tree on.
    pub removed: Vec<Bytes>,
    /// Paths that could not be removed, and the error numbers of the system there.
    pub failed: Vec<(Bytes, i32)>,
    /// Whether nothing is left to be done.
    pub is_last: bool,
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteStat {
    /// Bytes.
    pub size: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Last change of the bytes: seconds since 1970, nanoseconds.
    pub modified: (i64, i64),
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFailure {
    /// The error number of the system there.
    pub errno: i32,
    /// A sentence of the other side.
    pub what: String,
}
