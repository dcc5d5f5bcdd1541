//! The cluster map on disk: `volume.toml`.

use crate::atomic;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use tatami_wire::admin::{ClusterMap, Durability, NodeInfo, NodeState};
use tatami_wire::{EXECUTORS_MAX, ExecutorId, NodeId, SHARDS_MAX, VolumeId};

/// The version of the file that this program writes and reads.
pub const VOLUME_FORMAT: u32 = 1;
/// Most nodes of a volume.
pub const NODES_MAX: usize = 4096;
/// Longest name of a volume or node, in bytes.
const NAME_MAX: usize = 255;
/// Longest path of a UNIX socket, in bytes: the room in `sockaddr_un`.
pub const SOCKET_PATH_MAX: usize = 107;
/// Longest file that is read, in bytes.
const LENGTH_MAX: u64 = 16 << 20;

const HEADER: &str = "\
# The nodes of a Tatami volume. Written by `tatami up`; every node has the same.
# docs/reference/formats.md says what each key means.

";

/// Begins the last line, which ends with the CRC-32C of all bytes before it in hexadecimal digits.
/// A file without it was written by hand.
const CHECKSUM: &str = "# checksum of all above, to be removed by whoever changes something: ";

/// The faults of a `volume.toml`.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The file could not be read or written.
    #[error("volume file {}: cannot {what} it: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// It was written by a later version.
    #[error(
        "volume file {}: it has format {found}, this tatami knows up to {VOLUME_FORMAT}: \
         it was made by a newer tatami; upgrade this one", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Its content is not valid.
    #[error("volume file {}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

/// How the connections between machines are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// Both sides prove that they have the key, and bytes travel as they are.
    #[default]
    None,
    /// TLS 1.3, with certificates of the volume's own authority, and the key as well.
    Tls,
}

impl Encryption {
    /// The names of both values.
    pub const NAMES: [&str; 2] = ["none", "tls"];

    /// Returns the name of the value.
    pub fn name(self) -> &'static str {
        let [none, tls] = Self::NAMES;
        match self {
            Encryption::None => none,
            Encryption::Tls => tls,
        }
    }

    fn is_none(&self) -> bool {
        *self == Encryption::None
    }
}

impl std::str::FromStr for Encryption {
    type Err = ();

    fn from_str(text: &str) -> Result<Encryption, ()> {
        let known = [Encryption::None, Encryption::Tls];
        known.into_iter().find(|encryption| encryption.name() == text).ok_or(())
    }
}

/// One node of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Its number.
    pub id: u16,
    /// Its name, for people.
    pub name: String,
    /// `host:port` of its TCP listener.
    pub address: String,
    /// Its UNIX socket; a relative path starts at the directory of the file.
    pub socket: PathBuf,
    /// Its data directory; a relative path starts at the directory of the file.
    pub dir: PathBuf,
    /// It is about to be removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leaving: bool,
    /// The number of its earlier addresses.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moved: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A volume: its identity, its nodes, and the executor of each shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFile {
    /// The volume's id.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// The failures that acknowledged changes of names survive.
    pub durability: Durability,
    /// The protection of connections between machines.
    pub encryption: Encryption,
    /// Increases with every change of the map.
    pub epoch: u64,
    /// The executor of each shard, by shard number.
    pub shards: Vec<ExecutorId>,
    /// How many times each shard has moved, by shard number.
    pub moves: Vec<u32>,
    /// The nodes, by number, without those that were removed.
    pub nodes: Vec<NodeEntry>,
    /// The numbers of nodes that were removed. No node gets one of them again.
    pub removed: BTreeSet<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeText {
    format: u32,
    volume: String,
    name: String,
    durability: Durability,
    /// Not written for `none`, so that versions without encryption read the file.
    #[serde(skip_serializing_if = "Encryption::is_none", default)]
    encryption: Encryption,
    epoch: u64,
    shards: ShardsText,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed: BTreeSet<u16>,
    #[serde(rename = "node")]
    nodes: Vec<NodeEntry>,
}

/// The executor of each shard, in blocks.
#[derive(Serialize, Deserialize)]
struct ShardsText(Vec<ShardRun>);

/// A number of shards, their node, its executor, and how many times they have moved.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>")]
struct ShardRun(usize, u16, u32, u32);

impl TryFrom<Vec<u64>> for ShardRun {
    type Error = &'static str;

    // Not derived: the derived reader of a tuple ignores the numbers behind the last one.
    fn try_from(numbers: Vec<u64>) -> Result<ShardRun, &'static str> {
        let &[count, node, index, moves] = numbers.as_slice() else {
            return Err("a block of shards has four numbers");
        };
        let block = || {
            let (count, node) = (count.try_into().ok()?, node.try_into().ok()?);
            Some(ShardRun(count, node, index.try_into().ok()?, moves.try_into().ok()?))
        };
        block().ok_or("a number of a block of shards is too large")
    }
}

impl ShardsText {
    fn from_map(executors: &[ExecutorId], moves: &[u32]) -> ShardsText {
        let each: Vec<_> = executors.iter().zip(moves).collect();
        let block = |block: &[(&ExecutorId, &u32)]| {
            let (executor, moves) = block.first()?;
            Some(ShardRun(block.len(), executor.node.0, executor.index.into(), **moves))
        };
        ShardsText(each.chunk_by(|a, b| a == b).filter_map(block).collect())
    }

    /// Returns the executor of each shard, and how many times it has moved. A list that is too long
    /// is cut off after the first shard too many.
    fn executors_and_moves(&self) -> (Vec<ExecutorId>, Vec<u32>) {
        let each = self.0.iter().flat_map(|ShardRun(n, node, index, moves)| {
            // A number that is too large stays too large, so that `check` refuses it.
            let index = u8::try_from(*index).unwrap_or(u8::MAX);
            std::iter::repeat_n((ExecutorId { node: NodeId(*node), index }, *moves), *n)
        });
        each.take(SHARDS_MAX + 1).unzip()
    }
}

/// The part that every version of the file has.
#[derive(Deserialize)]
struct FormatVersion {
    format: u32,
}

enum VolumeFault {
    Newer(u32),
    Invalid(String),
}

impl VolumeFile {
    /// Reads and checks the file at `path`. Relative paths in it become paths below the directory
    /// of the file.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn load(path: &Path) -> Result<VolumeFile, VolumeError> {
        use std::io::Read;
        let failed = |what| {
            let path = path.to_owned();
            move |source| VolumeError::Io { path, what, source }
        };
        let file = std::fs::File::open(path).map_err(failed("open"))?;
        let mut text = String::new();
        file.take(LENGTH_MAX).read_to_string(&mut text).map_err(failed("read"))?;
        let parsed =
            verify_checksum(&text).map_err(VolumeFault::Invalid).and_then(|()| parse(&text));
        let mut file = parsed.map_err(|wrong| match wrong {
            VolumeFault::Newer(found) => VolumeError::Newer { path: path.to_owned(), found },
            VolumeFault::Invalid(what) => VolumeError::Invalid { path: path.to_owned(), what },
        })?;
        let base = std::path::absolute(path).map_err(failed("find"))?;
        let base = base.parent().unwrap_or(Path::new("/"));
        for node in &mut file.nodes {
            node.socket = base.join(&node.socket);
            node.dir = base.join(&node.dir);
        }
        file.check_contents()
            .map_err(|what| VolumeError::Invalid { path: path.to_owned(), what })?;
        Ok(file)
    }

    /// Writes the file, so that a crash leaves the old one or the new one.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] for a file that could not be loaded again, [`VolumeError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), VolumeError> {
        // The same check as in `load`: a file that is saved can always be read again.
        self.check_contents()
            .map_err(|what| VolumeError::Invalid { path: path.to_owned(), what })?;
        let text =
            self.to_text().map_err(|what| VolumeError::Invalid { path: path.to_owned(), what })?;
        let text = format!("{text}\n{CHECKSUM}{:08x}\n", crc32c::crc32c(text.as_bytes()));
        atomic::write_atomically(path, text.as_bytes(), Mode::from_raw_mode(0o644))
            .map_err(|source| VolumeError::Io { path: path.to_owned(), what: "write", source })
    }

    /// Returns the map that nodes and clients exchange.
    pub fn map(&self) -> ClusterMap {
        ClusterMap {
            volume: self.volume,
            name: self.name.clone(),
            epoch: self.epoch,
            nodes: (0..self.next_node()).map(|id| self.describe_node(id)).collect(),
            shards: self.shards.clone(),
            moves: self.moves.clone(),
        }
    }

    fn describe_node(&self, id: u16) -> NodeInfo {
        let Some(entry) = self.node(NodeId(id)) else {
            let (name, state) = (format!("removed-{id}"), NodeState::Removed);
            let (address, socket) = (String::new(), String::new());
            return NodeInfo { id: NodeId(id), state, name, address, moved: 0, socket };
        };
        NodeInfo {
            id: NodeId(id),
            state: if entry.leaving { NodeState::Leaving } else { NodeState::Serving },
            name: entry.name.clone(),
            address: entry.address.clone(),
            moved: entry.moved,
            socket: entry.socket.to_string_lossy().into_owned(),
        }
    }

    /// Takes a node out of the volume. It must have no shards.
    pub fn remove_node(&mut self, id: NodeId) {
        let mut ours = self.map();
        ours.advance_node(id, NodeState::Removed);
        let map = ours;
        self.merge_map(&map);
    }

    /// Returns the number of the next new node.
    pub fn next_node(&self) -> u16 {
        let last = self.nodes.last().map(|entry| entry.id).max(self.removed.last().copied());
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// Merges the newer entries for shards of a map of the volume, and the nodes that leave it.
    /// Returns whether there were any.
    pub fn merge_map(&mut self, map: &ClusterMap) -> bool {
        let mut ours = self.map();
        let known = |executor: &ExecutorId| self.node(executor.node).is_some();
        // A map with an unknown node would make a file that cannot be loaded again.
        if !map.shards.iter().all(known) || !ours.merge_newer(map) {
            return false;
        }
        let state_of = |id: u16| ours.nodes.get(usize::from(id)).map(|node| node.state);
        let is_removed = |entry: &NodeEntry| state_of(entry.id) == Some(NodeState::Removed);
        let leaves = |entry: &NodeEntry| state_of(entry.id) == Some(NodeState::Leaving);
        self.removed.extend(self.nodes.iter().filter(|entry| is_removed(entry)).map(|e| e.id));
        self.nodes.retain(|entry| !is_removed(entry));
        for entry in &mut self.nodes {
            entry.leaving = leaves(entry);
            if let Some(node) = ours.nodes.get(usize::from(entry.id)) {
                (entry.address, entry.moved) = (node.address.clone(), node.moved);
            }
        }
        (self.epoch, self.shards, self.moves) = (ours.epoch, ours.shards, ours.moves);
        true
    }

    /// Returns the entry of a node.
    pub fn node(&self, id: NodeId) -> Option<&NodeEntry> {
        self.nodes.iter().find(|n| n.id == id.0)
    }

    /// Returns the name of a node for people, also of one that is not listed.
    pub fn node_name(&self, id: NodeId) -> String {
        self.node(id).map_or_else(|| format!("node {id}"), |entry| entry.name.clone())
    }

    fn to_text(&self) -> Result<String, String> {
        let text = toml::to_string(&VolumeText {
            format: VOLUME_FORMAT,
            volume: self.volume.to_string(),
            name: self.name.clone(),
            durability: self.durability,
            encryption: self.encryption,
            epoch: self.epoch,
            shards: ShardsText::from_map(&self.shards, &self.moves),
            removed: self.removed.clone(),
            nodes: self.nodes.clone(),
        });
        Ok(format!("{HEADER}{}", text.map_err(|e| e.to_string())?))
    }

    fn check_contents(&self) -> Result<(), String> {
        let name = |what: &str, name: &str| match name.len() {
            1..=NAME_MAX if !name.contains(char::is_control) => Ok(()),
            _ => Err(format!("the name of {what} must have 1 to {NAME_MAX} plain characters")),
        };
        name("the volume", &self.name)?;
        if self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            return Err(format!("it must list 1 to {NODES_MAX} nodes"));
        }
        if usize::from(self.next_node()) > NODES_MAX {
            return Err(format!("numbers of nodes are less than {NODES_MAX}"));
        }
        if let Some(node) = self.nodes.iter().find(|node| self.removed.contains(&node.id)) {
            return Err(format!("node {} is listed, and removed", node.id));
        }
        if !self.shards.len().is_power_of_two() || self.shards.len() > SHARDS_MAX {
            return Err(format!("`shards` must be a power of two, 1 to {SHARDS_MAX}"));
        }
        if self.moves.len() != self.shards.len() {
            return Err("not all shards have a number of moves".to_owned());
        }
        let mut ids = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        let mut paths = BTreeSet::new();
        for node in &self.nodes {
            let id = node.id;
            name(&format!("node {id}"), &node.name)?;
            if ids.last().is_some_and(|last| *last >= id) {
                return Err(format!("node {id} is out of order, or there twice"));
            }
            ids.insert(id);
            let port = node.address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none() {
                return Err(format!(
                    "node {id}: the address {:?} is not `host:port`",
                    node.address
                ));
            }
            if !addresses.insert(&node.address) {
                return Err(format!("two nodes have the address {}", node.address));
            }
            let length = node.socket.as_os_str().len();
            if length == 0 || length > SOCKET_PATH_MAX {
                return Err(format!(
                    "node {id}: the socket's path {} has {length} bytes, the system allows 1 to \
                     {SOCKET_PATH_MAX}: choose a shorter directory",
                    node.socket.display()
                ));
            }
            for path in [&node.socket, &node.dir] {
                if path.to_str().is_none() {
                    return Err(format!("node {id}: the path {} is not UTF-8", path.display()));
                }
                if !paths.insert(path) {
                    return Err(format!("{} is used twice", path.display()));
                }
            }
        }
        for (shard, ExecutorId { node, index }) in self.shards.iter().enumerate() {
            if !ids.contains(&node.0) {
                return Err(format!("shard {shard} is given to node {node}, which is not listed"));
            }
            if *index >= EXECUTORS_MAX {
                return Err(format!(
                    "shard {shard} is given to an executor that node {node} cannot have: their numbers are 0 to {}",
                    EXECUTORS_MAX - 1
                ));
            }
        }
        Ok(())
    }
}

/// Verifies the checksum, if there is one.
fn verify_checksum(text: &str) -> Result<(), String> {
    let Some((above, sum)) = text.rsplit_once(CHECKSUM) else { return Ok(()) };
    let above = above.strip_suffix('\n').unwrap_or(above);
    if sum.trim_end() == format!("{:08x}", crc32c::crc32c(above.as_bytes())) {
        return Ok(());
    }
    Err("it does not match its checksum: the disk gives other bytes back than were written, or somebody changed it by \
         hand. Compare it with another node's; when it is right, remove its last line"
        .to_owned())
}

fn parse(text: &str) -> Result<VolumeFile, VolumeFault> {
    let invalid = |e: toml::de::Error| VolumeFault::Invalid(e.to_string().trim_end().to_owned());
    let FormatVersion { format } = toml::from_str(text).map_err(invalid)?;
    if format > VOLUME_FORMAT {
        return Err(VolumeFault::Newer(format));
    }
    if format == 0 {
        return Err(VolumeFault::Invalid("there is no format 0".to_owned()));
    }
    let text: VolumeText = toml::from_str(text).map_err(invalid)?;
    let volume = text
        .volume
        .parse()
        .map_err(|e| VolumeFault::Invalid(format!("volume {:?}: {e}", text.volume)))?;
    let (shards, moves) = text.shards.executors_and_moves();
    let file = VolumeFile {
        volume,
        name: text.name,
        durability: text.durability,
        encryption: text.encryption,
        epoch: text.epoch,
        shards,
        moves,
        nodes: text.nodes,
        removed: text.removed,
    };
    file.check_contents().map_err(VolumeFault::Invalid)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARDS: &str = "shards = [[3, 0, 0, 0], [2, 0, 1, 0], [3, 1, 63, 2]]";

    fn on(node: u16, index: u8) -> ExecutorId {
        ExecutorId { node: NodeId(node), index }
    }

    fn sample() -> VolumeFile {
        let node = |id: u16| NodeEntry {
            id,
            name: format!("node{id}"),
            address: format!("127.0.0.1:{}", 7000 + id),
            socket: format!("/run/tatami/node{id}/socket").into(),
            dir: format!("/run/tatami/node{id}").into(),
            leaving: id == 2,
            moved: u32::from(id == 3),
        };
        VolumeFile {
            volume: VolumeId([0xab; 16]),
            name: "scratch".into(),
            durability: Durability::Sync,
            encryption: Encryption::Tls,
            epoch: 3,
            shards: [vec![on(0, 0); 3], vec![on(0, 1); 2], vec![on(1, 63); 3]].concat(),
            moves: [vec![0; 5], vec![2; 3]].concat(),
            nodes: (0..4).map(node).collect(),
            removed: BTreeSet::from([4]),
        }
    }

    fn refusal(text: &str) -> String {
        match parse(text) {
            Err(VolumeFault::Invalid(what)) => what,
            Err(VolumeFault::Newer(n)) => format!("newer {n}"),
            Ok(_) => panic!("accepted: {text}"),
        }
    }

    #[test]
    fn a_file_loads_as_it_was_saved() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("volume.toml");
        sample().save(&path).expect("saved");
        assert_eq!(VolumeFile::load(&path).expect("loaded"), sample());
        let left = std::fs::read_dir(dir.path()).expect("listed").count();
        assert_eq!(left, 1, "nothing is left over");
        let map = sample().map();
        assert_eq!(map.nodes[2].address, "127.0.0.1:7002");
        assert_eq!(map.shards, sample().shards);
    }

    #[test]
    fn a_flipped_bit_is_told_or_changes_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("volume.toml");
        sample().save(&path).expect("saved");
        let whole = std::fs::read(&path).expect("read");
        let mut refused = 0;
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).expect("written");
            match VolumeFile::load(&path) {
                Ok(file) => assert_eq!(file, sample(), "bit {bit}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > whole.len() * 4, "{refused} of {} bits", whole.len() * 8);
    }

    #[test]
    fn what_somebody_changed_by_hand_counts_without_its_checksum() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("volume.toml");
        sample().save(&path).expect("saved");
        let text = std::fs::read_to_string(&path).expect("read").replace("scratch", "changed");
        std::fs::write(&path, &text).expect("written");
        let message = VolumeFile::load(&path).expect_err("refused").to_string();
        assert!(message.contains("remove its last line"), "{message}");
        let end = text.find(CHECKSUM).expect("a checksum");
        std::fs::write(&path, &text[..end]).expect("written");
        assert_eq!(VolumeFile::load(&path).expect("loads").name, "changed");
    }

    #[test]
    fn shards_are_written_in_blocks() {
        let text = sample().to_text().expect("text");
        assert!(text.contains("format = 1\n") && text.contains(SHARDS), "{text}");
        let text = text.replacen(SHARDS, "shards = [[5, 0, 0, 0], [2, 1, 2, 7], [1, 1, 2, 7]]", 1);
        let file = parse(&text).map_err(|_| "refused").expect("reads");
        assert_eq!(
            (file.shards[4], file.shards[5], file.shards[7]),
            (on(0, 0), on(1, 2), on(1, 2))
        );
        assert_eq!((file.moves[4], file.moves[5], file.moves[7]), (0, 7, 7));
        let anew = file.to_text().expect("text");
        assert!(anew.contains("shards = [[5, 0, 0, 0], [3, 1, 2, 7]]"), "{anew}");
    }

    #[test]
    fn what_a_map_knows_better_is_learnt() {
        let mut file = sample();
        let mut map = file.map();
        assert!(!file.merge_map(&map), "it knows nothing better");
        map.assign_shards((4, 2), on(2, 1));
        assert!(file.merge_map(&map));
        assert_eq!((file.epoch, file.shards[4], file.shards[5]), (5, on(2, 1), on(2, 1)));
        assert_eq!((file.moves[3], file.moves[4], file.moves[5]), (0, 1, 3));
        assert!(!sample().map().merge_newer(&sample().map()));
        assert_eq!(file.map(), map);
        file.remove_node(NodeId(3));
        assert!(file.node(NodeId(3)).is_none() && file.map().find_member(NodeId(3)).is_none());
        assert_eq!((file.epoch, file.next_node()), (7, 5), "two steps of its state");
        assert!(map.merge_newer(&file.map()) && file.epoch == map.epoch);
        assert!(map.find_member(NodeId(3)).is_none() && !file.merge_map(&map));
        assert!(map.is_serving(NodeId(1)) && !map.is_serving(NodeId(2)));
        let text = file.to_text().expect("text");
        assert!(text.contains("removed = [3, 4]"), "{text}");
        assert_eq!(parse(&text).map_err(|_| "refused").expect("reads"), file);
        map.assign_shards((0, 1), on(9, 0));
        assert!(!file.merge_map(&map), "of a node that is not listed");
    }

    #[test]
    fn relative_paths_start_where_the_file_lies() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("volume.toml");
        let mut file = sample();
        file.nodes.truncate(1);
        (file.shards, file.moves) = (vec![on(0, 0)], vec![0]);
        file.nodes[0].socket = "node0/socket".into();
        file.nodes[0].dir = "node0".into();
        file.save(&path).expect("saved");
        let loaded = VolumeFile::load(&path).expect("loaded");
        assert_eq!(loaded.nodes[0].socket, dir.path().join("node0/socket"));
        assert_eq!(loaded.nodes[0].dir, dir.path().join("node0"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = sample().to_text().map_err(VolumeFault::Invalid).ok().expect("text");
        let with = |from: &str, to: &str| {
            assert!(good.contains(from), "{from} is in {good}");
            refusal(&good.replacen(from, to, 1))
        };
        assert_eq!(with("format = 1", "format = 2\nfuture = true"), "newer 2");
        assert!(with("format = 1", "format = 0").contains("there is no format 0"));
        assert!(with("durability = \"sync\"\n", "").contains("missing field `durability`"));
        assert!(with("epoch = 3", "epoch = 3\ncolour = 1").contains("unknown field `colour`"));
        assert!(with(SHARDS, "shards = [[1, 9, 1, 0]]").contains("node 9, which is not listed"));
        for beyond in [64, 256, u32::MAX] {
            let what = with(SHARDS, &format!("shards = [[1, 0, 0, 0], [1, 1, {beyond}, 0]]"));
            let said = "shard 1 is given to an executor that node 1 cannot have: their numbers are 0 to 63";
            assert!(what.contains(said), "{what}");
        }
        for other in [
            "[0]",
            "[[1]]",
            "[[1, 0]]",
            "[[1, 0, 0]]",
            "[[1, 0, 0, 0, 0]]",
            "[[1, 0, -1, 0]]",
            "[[1, 0, 0], [1, 1, 0, 0]]",
        ] {
            assert!(with(SHARDS, &format!("shards = {other}")).contains("shards"), "{other}");
        }
        let mut file = sample();
        file.shards[2].index = EXECUTORS_MAX;
        assert!(
            file.save(Path::new("/nowhere/volume.toml"))
                .is_err_and(|e| e.to_string().contains("0 to 63"))
        );
        for few in [
            "[]",
            "[[3, 0, 1, 0]]",
            "[[4096, 0, 0, 0], [4096, 1, 0, 0]]",
            "[[1000000000000, 0, 0, 0]]",
        ] {
            let what = with(SHARDS, &format!("shards = {few}"));
            assert!(what.contains("a power of two"), "{what}");
        }
        assert!(with("id = 1", "id = 0").contains("node 0 is out of order, or there twice"));
        assert!(with("127.0.0.1:7001", "127.0.0.1").contains("is not `host:port`"));
        assert!(with("127.0.0.1:7001", "127.0.0.1:7000").contains("two nodes have the address"));
        assert!(with("abab", "abxy").contains("32 hexadecimal digits"));
        assert!(with("\"scratch\"", "\"\"").contains("name of the volume"));
        let long = format!("/{}", "x".repeat(200));
        assert!(with("/run/tatami/node1/socket", &long).contains("choose a shorter directory"));
        assert!(with("node1/socket", "node2/socket").contains("is used twice"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = VolumeFile::load(Path::new("/nowhere/volume.toml")).expect_err("absent");
        assert!(error.to_string().contains("/nowhere/volume.toml"), "{error}");
    }

    proptest! {
        #[test]
        fn whoever_serves_a_shard_is_read_as_written(
            blocks in prop::collection::vec((0..4u16, 0..EXECUTORS_MAX, any::<u32>()), 8),
            each in 0..3u32,
        ) {
            let mut file = sample();
            let all = blocks.iter().flat_map(|(node, index, moves)| {
                std::iter::repeat_n((on(*node, *index), *moves), 1 << each)
            });
            (file.shards, file.moves) = all.unzip();
            let text = file.to_text().map_err(TestCaseError::fail)?;
            let read = parse(&text).map_err(|_| TestCaseError::fail(text))?;
            prop_assert_eq!(read, file);
        }

        #[test]
        fn mutated_text_is_an_error_or_a_file_that_saves(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let good = sample().to_text().map_err(VolumeFault::Invalid).ok().expect("text");
            let mut bytes = good.into_bytes();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            let part = String::from_utf8_lossy(&bytes[..cut.index(bytes.len())]).into_owned();
            for text in [whole, part] {
                if let Ok(file) = parse(&text) {
                    prop_assert!(file.check_contents().is_ok());
                    prop_assert!(file.to_text().is_ok());
                }
            }
        }
    }
}
