//! Administrative requests to a node: status, map, objects.

use crate::object::RegionRoom;
use crate::{
    ClientId, Errno, ExecutorId, Ino, NodeId, OLDEST_PROTOCOL, Piece, ShardId, ShardMap, VolumeId,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A request or order to one daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each call documents its fields
pub enum AdminCall {
    /// Checks that the daemon answers. → `Pong`
    Ping,
    /// Returns the node's status. → `Status`
    Status,
    /// Returns all nodes and the shard map. → `Map`
    Map,
    /// Finishes requests under way, syncs and exits. Trusted connections only. → `Done`
    Shutdown,
    /// Returns the space on this node's disk. → `Space`
    Space,
    /// A mount reports its state for `Status`. The report lasts as long as the connection. → `Done`
    Announce(MountInfo),
    /// Returns the objects after (`ino`, `piece`), for a check. Trusted only. → `Objects`
    ListObjects { after: Option<(Ino, Piece)>, limit: u32 },
    /// Removes all objects of an inode. Trusted only. → `Done`
    RemoveObjects { ino: Ino },
    /// Returns size and storage of one object, without a capability. Trusted only. → `Object`
    StatObject { ino: Ino, piece: Piece },
    /// Removes one object. Trusted only. → `Done`
    RemoveObject { ino: Ino, piece: Piece },
    /// Merges this map, which may have new nodes, into the node's map. Trusted only. → `Map`, the
    /// merged map
    MergeMap(ClusterMap),
    /// Migrates at most `count` shards from `first` on from one executor of this node to another,
    /// here or on another node. A node runs one such order at a time. The order is done when the
    /// map shows it. If it fails, the next order's reply has the reason. Trusted only. → `Done`:
    /// started; `EBUSY`: another one is under way; `ESTALE`: the shards are not all of one executor
    /// of this node
    MigrateShards { first: u16, count: u16, to: ExecutorId },
    /// Starts the executors that were refused because their stores are damaged, with the
    /// recoverable records. The operator accepts the loss. Trusted only. → `Told`: a sentence for
    /// each step. Executors that still do not start are in `refused` of the node's status
    AcceptLoss,
    /// The operator has handled the loss of the node's data directory. Trusted only. → `Done`
    DismissLoss,
    /// Uses these certificates for new connections from now on. For a daemon that has a copy of the
    /// file from its start. Trusted only. → `Done`; `EINVAL`: they are none of this volume, or it
    /// is not encrypted
    UseCertificates(CertificatesText),
    /// As `Map`, with the counts of addresses. → `CountedMap`
    CountedMap,
    /// As `MergeMap`, with the counts of addresses. Trusted only. → `CountedMap`
    MergeCountedMap(CountedMap),
    /// Returns the room of the node's region device. → `RegionRoom`
    RegionRoom,
}

/// A cluster map with what version 3 of the protocol does not send: for each node, the number of
/// its earlier addresses ([`NodeInfo::moved`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedMap {
    map: ClusterMap,
    moved: Vec<u32>,
}

impl From<ClusterMap> for CountedMap {
    fn from(map: ClusterMap) -> CountedMap {
        let moved = map.nodes.iter().map(|node| node.moved).collect();
        CountedMap { map, moved }
    }
}

impl From<CountedMap> for ClusterMap {
    fn from(CountedMap { mut map, moved }: CountedMap) -> ClusterMap {
        for (node, moved) in map.nodes.iter_mut().zip(moved) {
            node.moved = moved;
        }
        map
    }
}

/// The content of a `certificates.toml` with the certificate of a machine, which no log shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CertificatesText(pub String);

impl fmt::Debug for CertificatesText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificatesText")
    }
}

impl AdminCall {
    /// Returns the first version of the protocol that has the call.
    pub fn first_protocol(&self) -> u32 {
        match self {
            AdminCall::UseCertificates(_)
            | AdminCall::CountedMap
            | AdminCall::MergeCountedMap(_)
            | AdminCall::RegionRoom => 4,
            _ => OLDEST_PROTOCOL,
        }
    }

    /// Returns the fullest form of the call that a connection with this version of the protocol
    /// carries.
    #[must_use]
    pub fn for_protocol(&self, protocol: u32) -> AdminCall {
        match self {
            AdminCall::Map if protocol >= 4 => AdminCall::CountedMap,
            AdminCall::MergeMap(map) if protocol >= 4 => {
                AdminCall::MergeCountedMap(map.clone().into())
            }
            other => other.clone(),
        }
    }

    /// Checks whether the connection must be trusted.
    pub fn needs_trust(&self) -> bool {
        matches!(
            self,
            AdminCall::Shutdown
                | AdminCall::Announce(_)
                | AdminCall::ListObjects { .. }
                | AdminCall::RemoveObjects { .. }
                | AdminCall::StatObject { .. }
                | AdminCall::RemoveObject { .. }
                | AdminCall::MergeMap(_)
                | AdminCall::MigrateShards { .. }
                | AdminCall::AcceptLoss
                | AdminCall::DismissLoss
                | AdminCall::UseCertificates(_)
                | AdminCall::MergeCountedMap(_)
        )
    }
}

/// The cluster map: the nodes, and the executor of each shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The volume that the nodes serve together.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Increases with every change of the map.
    pub epoch: u64,
    /// All nodes, by number.
    pub nodes: Vec<NodeInfo>,
    /// For each shard, by number, the executor that serves it.
    pub shards: Vec<ExecutorId>,
    /// For each shard, the number of its migrations. Of two maps, the one with more migrations of a
    /// shard is newer for this shard.
    pub moves: Vec<u32>,
}

impl ClusterMap {
    /// Returns the executor that serves `shard`; `None` if the shard does not exist.
    pub fn owner(&self, shard: ShardId) -> Option<ExecutorId> {
        self.shards.get(usize::from(shard.0)).copied()
    }

    /// Returns each executor of the map once, with its first shard.
    pub fn first_shards(&self) -> Vec<(ShardId, ExecutorId)> {
        crate::shards::first_shards(&self.shards)
    }

    /// Returns the shard map; `None` if it is invalid.
    pub fn shard_map(&self) -> Option<ShardMap> {
        ShardMap::with_moves(self.epoch, &self.shards, &self.moves)
    }

    /// Returns the nodes of the volume, without those that were removed.
    pub fn members(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.iter().filter(|node| node.state != NodeState::Removed)
    }

    /// Returns a node of the volume; `None` for one that was removed or never added.
    pub fn find_member(&self, id: NodeId) -> Option<&NodeInfo> {
        let node = self.nodes.get(usize::from(id.0)).filter(|node| node.id == id)?;
        (node.state != NodeState::Removed).then_some(node)
    }

    /// Returns whether a node may get new files and shards.
    pub fn is_serving(&self, id: NodeId) -> bool {
        self.find_member(id).is_some_and(|node| node.state == NodeState::Serving)
    }

    /// Moves a node on to a later state. An earlier state changes nothing: nodes never come back.
    pub fn advance_node(&mut self, id: NodeId, state: NodeState) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) {
            self.epoch += u64::from((state as u8).saturating_sub(node.state as u8));
            node.state = node.state.max(state);
        }
    }

    /// Gives a node another address, its `moved`th after the first. An earlier one changes nothing,
    /// and neither does one of a removed node, of which only the state is kept.
    pub fn move_node(&mut self, id: NodeId, address: &str, moved: u32) {
        let is_older = |node: &NodeInfo| node.state != NodeState::Removed && node.moved < moved;
        let known = self.nodes.iter_mut().find(|node| node.id == id);
        if let Some(node) = known.filter(|node| is_older(node)) {
            self.epoch += u64::from(moved - node.moved);
            (node.address, node.moved) = (address.to_owned(), moved);
        }
    }

    /// Merges the newer parts of another map of the volume: migrated shards, new nodes, their new
    /// addresses, and nodes that leave. Returns whether this map has changed.
    pub fn merge_newer(&mut self, other: &ClusterMap) -> bool {
        let count = self.shards.len();
        if self.volume != other.volume || other.shards.len() != count || other.moves.len() != count
        {
            return false;
        }
        // Each change adds 1 to the epoch, so that maps with the same changes have the same epoch.
        let before = self.epoch;
        // A removed node stays in the list, so that numbers have no gaps and none is used twice.
        for node in &other.nodes {
            if usize::from(node.id.0) == self.nodes.len() {
                self.nodes.push(NodeInfo { state: NodeState::Serving, ..node.clone() });
                self.epoch += 1;
            }
            self.move_node(node.id, &node.address, node.moved);
            self.advance_node(node.id, node.state);
        }
        for shard in 0..count {
            let more = other.moves[shard].saturating_sub(self.moves[shard]);
            if more > 0 {
                self.shards[shard] = other.shards[shard];
                self.moves[shard] = other.moves[shard];
                self.epoch += u64::from(more);
            }
        }
        self.epoch > before
    }

    /// Assigns `count` shards from `first` on to `executor`.
    pub fn assign_shards(&mut self, (first, count): (u16, u16), executor: ExecutorId) {
        for shard in usize::from(first)..usize::from(first) + usize::from(count) {
            if let (Some(owner), Some(moves)) =
                (self.shards.get_mut(shard), self.moves.get_mut(shard))
            {
                *owner = executor;
                *moves += 1;
                self.epoch += 1;
            }
        }
    }
}

/// The part that a node plays in its volume. A node only moves on to later states.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It serves files and names.
    #[default]
    Serving,
    /// It is about to be removed: it serves what it has, and gets no new files.
    Leaving,
    /// It was removed, and nothing is on it.
    Removed,
}

/// A node with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number.
    pub id: NodeId,
    /// Its part in the volume.
    pub state: NodeState,
    /// Name of the node, for people.
    pub name: String,
    /// `host:port` of its TCP listener.
    pub address: String,
    /// The number of its earlier addresses. Of two addresses, the one with more is newer. Only a
    /// [`CountedMap`] carries it.
    #[serde(skip)]
    pub moved: u32,
    /// Path of its UNIX socket, only useful on its own machine.
    pub socket: String,
}

/// Space on a node's disk, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpace {
    /// Size of the disk.
    pub total: u64,
    /// Free for the superuser.
    pub free: u64,
    /// Free for users.
    pub available: u64,
    /// Id of the disk (a hash of machine and device number). Nodes on one disk return the same id,
    /// so that the disk is counted once.
    pub disk: u64,
    /// Inodes in the shards of the node.
    pub inodes: u64,
}

/// The state of a mount, as the mount reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountInfo {
    /// Path of the mount point.
    pub path: String,
    /// Process id.
    pub pid: u32,
    /// Whether reads and writes of local files bypass the daemon.
    pub passthrough: bool,
    /// The reason, if not.
    pub why_not: Option<String>,
    /// Whether the kernel's requests come over io_uring.
    pub io_uring: bool,
    /// The reason, if not.
    pub why_no_io_uring: Option<String>,
}

/// The failures that an acknowledged change of names survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The death of the daemon: the log record is in the kernel's page cache. After an fsync of a
    /// file also a power cut. The same guarantee as ext4's.
    #[default]
    Log,
    /// A power cut, always: one fsync for all requests of a round, before their replies (group
    /// commit).
    Sync,
}

impl Durability {
    /// The names of both values.
    pub const NAMES: [&str; 2] = ["log", "sync"];

    /// Returns the name of the value.
    pub fn name(self) -> &'static str {
        let [log, sync] = Self::NAMES;
        match self {
            Durability::Log => log,
            Durability::Sync => sync,
        }
    }

    /// Returns the guarantee, as a sentence without its end.
    pub fn describe_guarantee(self) -> &'static str {
        match self {
            Durability::Log => {
                "an acknowledged change survives the death of a daemon, and after fsync a power cut"
            }
            Durability::Sync => "an acknowledged change survives a power cut",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = ();

    fn from_str(text: &str) -> Result<Durability, ()> {
        let known = [Durability::Log, Durability::Sync];
        known.into_iter().find(|durability| durability.name() == text).ok_or(())
    }
}

/// The status of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// The newest version of the protocol that it speaks.
    pub protocol: u32,
    /// Process id.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_sec: u64,
    /// Its machine's clock, in milliseconds since 1970.
    pub clock_ms: u64,
    /// Descriptions of faults; empty if the node is healthy.
    pub trouble: Vec<String>,
    /// One sentence for each executor that does not run because its store is damaged. These are
    /// also in `trouble`.
    pub refused: Vec<String>,
    /// Its disk.
    pub space: DiskSpace,
    /// Number of shards it serves.
    pub shards: u32,
    /// Number of running executors.
    pub executors: u32,
    /// The guarantee of its acknowledgements.
    pub durability: Durability,
    /// Inodes on those shards.
    pub inodes: u64,
    /// Open connections.
    pub connections: u32,
    /// Metadata requests answered since its start.
    pub meta_requests: u64,
    /// Messages from other nodes since its start, for transactions.
    pub peer_messages: u64,
    /// Object requests answered since its start.
    pub object_requests: u64,
    /// Bytes read from and written to objects for remote clients.
    pub bytes_read: u64,
    /// See `bytes_read`.
    pub bytes_written: u64,
    /// The mounts on this node.
    pub mounts: Vec<MountInfo>,
    /// Connected clients, without those with an expired lease.
    pub clients: Vec<ClientId>,
    /// Connections that the node has refused since its start.
    pub turned_away: RefusedConnections,
    /// Time, in seconds since 1970, at which the node restarted without its former data directory,
    /// which was lost.
    pub lost_since: Option<u64>,
}

/// Refused connections, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedConnections {
    /// The client did not finish its hello in time.
    pub silent: u64,
    /// Dropped before the hello, to make room for newer connections.
    pub crowded_out: u64,
    /// The client broke off, or did not speak the protocol.
    pub broken: u64,
    /// The client has another version of the protocol.
    pub other_version: u64,
    /// The client had no key, or another volume's.
    pub wrong_key: u64,
    /// The client got another reason: no free place, another volume, no permission.
    pub refused: u64,
}

/// The answer to an [`AdminCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminReply {
    /// The daemon answers.
    Pong,
    /// The node's status.
    Status(Box<NodeStatus>),
    /// The cluster map.
    Map(ClusterMap),
    /// Done.
    Done,
    /// Space on the disk.
    Space(DiskSpace),
    /// Objects for checking.
    Objects {
        /// In (inode, piece) order, with size in bytes and storage in units of 512 bytes.
        objects: Vec<(Ino, Piece, u64, u64)>,
        /// The listing is complete.
        end: bool,
    },
    /// One object.
    Object(crate::object::ObjectState),
    /// The steps that were done, a sentence each.
    Report(Vec<String>),
    /// The cluster map, with the counts of addresses.
    CountedMap(CountedMap),
    /// The room of the region device.
    RegionRoom(RegionRoom),
}

impl AdminReply {
    /// Returns the reply in the form of version 3 of the protocol, with all that came.
    #[must_use]
    pub fn simplify(self) -> AdminReply {
        match self {
            AdminReply::CountedMap(map) => AdminReply::Map(map.into()),
            other => other,
        }
    }
}

/// A reply, or an error.
pub type AdminResult = Result<AdminReply, Errno>;
