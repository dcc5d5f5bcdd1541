//! Requests to a node as such: its health, its map, its objects.

use crate::{ClientId, Errno, ExecutorId, Ino, NodeId, Piece, ShardId, ShardMap, VolumeId};
use serde::{Deserialize, Serialize};

/// A question or an order to one daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each call says what its fields mean
pub enum AdminCall {
    /// Is it there? → `Pong`
    Ping,
    /// Its condition. → `Status`
    Status,
    /// All nodes and which executor serves which shard. → `Map`
    Map,
    /// Finish what is under way, sync, end. Trusted connections only. → `Done`
    Shutdown,
    /// Space on this node's disk. → `Space`
    Space,
    /// A mount tells its condition, to be shown by `Status`; it lasts as long
    /// as the connection. → `Done`
    Announce(MountInfo),
    /// Objects after (`ino`, `piece`), for checking. Trusted only. → `Objects`
    ListObjects { after: Option<(Ino, Piece)>, limit: u32 },
    /// Removes all objects of an inode. Trusted only. → `Done`
    RemoveObjects { ino: Ino },
    /// Size and storage of one object, without a capability. Trusted only. → `Object`
    StatObject { ino: Ino, piece: Piece },
    /// Removes one object. Trusted only. → `Done`
    RemoveObject { ino: Ino, piece: Piece },
    /// What this map knows better is true: nodes that have come. Trusted only. → `Map`, as the node knows it then
    Learn(ClusterMap),
    /// Give shards of one executor here, from `first` on and at most `count`, to another, here or elsewhere. One such order is carried out at
    /// a time; it is done when the map says so, or fails: then the next order is answered with the reason.
    /// Trusted only. → `Done`: it begins; `EBUSY`: another is under way; `ESTALE`: the shards are not all of one executor of this node
    Move { first: u16, count: u16, to: ExecutorId },
    /// Start the executors that were refused since their stores are damaged, with what can be read of these: what was
    /// lost is accepted. Trusted only. → `Told`: what was done, a sentence each; those that do not start even so are
    /// among `refused` of the node's status
    AcceptLoss,
    /// That the node began empty, in the place of what it had before, is settled. Trusted only. → `Done`
    ForgetLost,
}

impl AdminCall {
    /// Whether the asking connection must be trusted.
    pub fn needs_trust(&self) -> bool {
        matches!(
            self,
            AdminCall::Shutdown
                | AdminCall::Announce(_)
                | AdminCall::ListObjects { .. }
                | AdminCall::RemoveObjects { .. }
                | AdminCall::StatObject { .. }
                | AdminCall::RemoveObject { .. }
                | AdminCall::Learn(_)
                | AdminCall::Move { .. }
                | AdminCall::AcceptLoss
                | AdminCall::ForgetLost
        )
    }
}

/// The cluster map: who is in, and which executor serves which shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The volume that the nodes serve together.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Goes up with every change of the map.
    pub epoch: u64,
    /// All nodes, by number.
    pub nodes: Vec<NodeInfo>,
    /// For each shard, by number, the executor that serves it.
    pub shards: Vec<ExecutorId>,
    /// For each shard, how many times it has moved. Who knows of more moves of a shard knows where it is.
    pub moves: Vec<u32>,
}

impl ClusterMap {
    /// The executor that serves `shard`; `None` where there is no such shard.
    pub fn owner(&self, shard: ShardId) -> Option<ExecutorId> {
        self.shards.get(usize::from(shard.0)).copied()
    }

    /// Each executor that serves shards, once, with the first of them.
    pub fn leads(&self) -> Vec<(ShardId, ExecutorId)> {
        crate::shards::leads(&self.shards)
    }

    /// Which executor serves which shard; `None` where that cannot be.
    pub fn shard_map(&self) -> Option<ShardMap> {
        ShardMap::moved(self.epoch, &self.shards, &self.moves)
    }

    /// Learns what another map of the volume knows better: shards that have moved, nodes that have come.
    /// Whether there was something.
    pub fn merge(&mut self, other: &ClusterMap) -> bool {
        let count = self.shards.len();
        if self.volume != other.volume || other.shards.len() != count || other.moves.len() != count
        {
            return false;
        }
        let before = self.epoch;
        // Nobody takes a node out, and numbers have no gaps.
        for node in &other.nodes {
            if usize::from(node.id.0) == self.nodes.len() {
                self.nodes.push(node.clone());
                self.epoch += 1;
            }
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

    /// Gives `count` shards from `first` on to `executor`.
    pub fn give(&mut self, (first, count): (u16, u16), executor: ExecutorId) {
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

/// A node, as its peers reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number.
    pub id: NodeId,
    /// Its name, for people.
    pub name: String,
    /// `host:port` of its TCP listener.
    pub address: String,
    /// Path of its UNIX socket, of use on its own machine only.
    pub socket: String,
}

/// Space on a node's disk, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Size of the disk.
    pub total: u64,
    /// Free for the superuser.
    pub free: u64,
    /// Free for users.
    pub available: u64,
    /// Names the disk (a hash of machine and device number): nodes on one disk
    /// tell the same, and it is counted once.
    pub disk: u64,
    /// Inodes in the shards of the node.
    pub inodes: u64,
}

/// What a mount tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountInfo {
    /// Where it is mounted.
    pub path: String,
    /// Process number.
    pub pid: u32,
    /// Whether local files bypass the daemon.
    pub passthrough: bool,
    /// If not, why not.
    pub why_not: Option<String>,
}

/// What an acknowledged change of names survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The death of the daemon: it is in the log, in the hands of the kernel. After an fsync of a file also a
    /// power cut. The promise of ext4.
    #[default]
    Log,
    /// A power cut, always: one fsync for all requests of a round, before their answers (group commit).
    Sync,
}

impl Durability {
    /// Both, as they are written.
    pub const NAMES: [&str; 2] = ["log", "sync"];

    /// How it is written.
    pub fn name(self) -> &'static str {
        let [log, sync] = Self::NAMES;
        match self {
            Durability::Log => log,
            Durability::Sync => sync,
        }
    }

    /// What is promised, as a sentence without its end.
    pub fn promise(self) -> &'static str {
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

/// The condition of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// [`crate::PROTOCOL_VERSION`] it speaks.
    pub protocol: u32,
    /// Process number.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_sec: u64,
    /// What is wrong with it; empty when it is healthy.
    pub trouble: Vec<String>,
    /// Why executors do not run whose stores are damaged, a sentence each. It is part of `trouble`.
    pub refused: Vec<String>,
    /// Its disk.
    pub space: Space,
    /// Number of shards it serves.
    pub shards: u32,
    /// Number of executors that run.
    pub executors: u32,
    /// What its acknowledgements promise.
    pub durability: Durability,
    /// Inodes on those shards.
    pub inodes: u64,
    /// Open connections.
    pub connections: u32,
    /// Requests answered since its start: metadata.
    pub meta_requests: u64,
    /// Messages that other nodes have sent it since its start, about operations that need several.
    pub peer_messages: u64,
    /// Requests answered since its start: bytes.
    pub object_requests: u64,
    /// Bytes read from and written to objects for remote clients.
    pub bytes_read: u64,
    /// See `bytes_read`.
    pub bytes_written: u64,
    /// Mounts that live on this node.
    pub mounts: Vec<MountInfo>,
    /// Clients that are connected here, without those that were to say that they are there and have not for a lease.
    pub clients: Vec<ClientId>,
    /// Connections that it has not let in since its start.
    pub turned_away: TurnedAway,
    /// Since when, in seconds since 1970, the node is there without what it had before: its data directory was lost.
    pub lost_since: Option<u64>,
}

/// Connections that a node has not let in, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnedAway {
    /// They did not say in time who they are.
    pub silent: u64,
    /// Newer ones needed their place before they had said who they are.
    pub crowded_out: u64,
    /// They broke off, or did not speak the protocol.
    pub broken: u64,
    /// They speak another version of it.
    pub other_version: u64,
    /// They had another key than the volume's, or none.
    pub wrong_key: u64,
    /// They were told why not: no place was left, another volume, no permission.
    pub refused: u64,
}

/// The answer to an [`AdminCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminReply {
    /// It is there.
    Pong,
    /// Its condition.
    Status(Box<NodeStatus>),
    /// All nodes.
    Map(ClusterMap),
    /// Done as ordered.
    Done,
    /// Space on the disk.
    Space(Space),
    /// Objects for checking.
    Objects {
        /// In (inode, piece) order, with size in bytes and storage in units of 512 bytes.
        objects: Vec<(Ino, Piece, u64, u64)>,
        /// Nothing follows.
        end: bool,
    },
    /// One object.
    Object(crate::object::ObjectState),
    /// What was done, a sentence each.
    Told(Vec<String>),
}

/// What a node answers: a reply or an error.
pub type AdminResult = Result<AdminReply, Errno>;
