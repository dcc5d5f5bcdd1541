//! The token of an open: the facts that rank 0 sends to the other ranks.

use crate::error::{Result, TiledError};
use crate::machine;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use tatami_remote::SiteTicket;
use tatami_wire::cap::CAP_LEN;
use tatami_wire::{Cap, ClientId, NodeId};

/// The longest encoded token, bytes.
pub const TOKEN_MAX: usize = 4096;

/// Which engine serves an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// One ordinary file.
    Plain,
    /// A directory of pieces.
    Container,
    /// A file of a Tatami volume, with pieces on the nodes of the ranks.
    Volume,
    /// A file of another site.
    Remote,
}

/// An open that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenToken {
    /// Which engine.
    pub kind: EngineKind,
    /// A number of the open, drawn.
    pub open: u64,
    /// The stamp of its first view epoch.
    pub stamp: u64,
    /// Processes that take part.
    pub ranks: u32,
    /// The machine of all ranks, or 0 if they are on several.
    pub machine: u32,
    /// The container's number, or the inode of a volume's file; 0 for an ordinary file.
    pub id: u64,
    /// The piece of rank 0, where a volume's file is opened for writing. The pieces of the other
    /// ranks follow, and then one for each node.
    pub first: u32,
    /// Nodes of a volume on which the ranks of such an open run.
    pub nodes: u32,
    /// The facts of a volume's file that rank 0 has from the shard, so that the other ranks need no
    /// request.
    pub volume: Option<OpenedVolumeFile>,
    /// The file of another site, and its open there.
    pub remote: Option<SiteTicket>,
}

/// A file of a volume, as rank 0 has it open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedVolumeFile {
    /// The capability by which nodes know that the ranks may use its objects.
    pub cap: Cap,
    /// The client that has it open.
    pub client: ClientId,
    /// Whether the program names it by a link, which may lead to another file system than its
    /// directory's.
    pub linked: bool,
    /// The node of the rank table, where the pieces lie on all nodes in turn. All ranks are on that
    /// node then.
    pub table: Option<NodeId>,
    /// The node of each rank's piece. Empty for an open without writers, and where the token has no
    /// room; then the shard has the list.
    pub rank_nodes: Vec<NodeId>,
}

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIO1");
const WORDS: usize = 7;
/// Bytes of a run of ranks on one node: the node, and how many.
const RUN: usize = 2 + 4;
/// Runs for which there is room.
const RUNS_MAX: usize = (TOKEN_MAX - WORDS * 8 - CAP_LEN - 16 - 1 - 2 - 4) / RUN;

impl OpenedVolumeFile {
    /// Encodes the facts. Most jobs fill one node after the other, or go round all nodes. So the
    /// nodes of the first ranks are encoded as runs, and the runs repeat.
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.cap.to_bytes());
        out.extend(self.client.0);
        out.push(u8::from(self.linked) | u8::from(self.table.is_some()) << 1);
        out.extend(self.table.map_or(0, |node| node.0).to_le_bytes());
        // The position of the first node's next appearance, behind its first run.
        let starts = self.rank_nodes.iter().skip_while(|home| **home == self.rank_nodes[0]);
        let run = self.rank_nodes.len() - starts.clone().count();
        let again =
            starts.into_iter().position(|home| *home == self.rank_nodes[0]).map(|at| at + run);
        let round = again.filter(|period| {
            self.rank_nodes.iter().zip(self.rank_nodes.iter().skip(*period)).all(|(a, b)| a == b)
        });
        let first = &self.rank_nodes[..round.unwrap_or(self.rank_nodes.len())];
        let runs: Vec<&[NodeId]> = first.chunk_by(|a, b| a == b).collect();
        // A longer list is left out, and the ranks ask the shard.
        if runs.len() <= RUNS_MAX {
            for run in runs {
                out.extend(run[0].0.to_le_bytes());
                out.extend((run.len() as u32).to_le_bytes());
            }
        }
    }

    fn decode(bytes: &[u8], ranks: u32) -> Option<OpenedVolumeFile> {
        let (cap, bytes) = bytes.split_first_chunk::<CAP_LEN>()?;
        let (client, bytes) = bytes.split_first_chunk::<16>()?;
        let (facts, bytes) = bytes.split_first()?;
        let (table, runs) = bytes.split_first_chunk::<2>()?;
        let table = (facts & 2 != 0).then_some(NodeId(u16::from_le_bytes(*table)));
        let (runs, []) = runs.as_chunks::<RUN>() else { return None };
        let mut homes = Vec::new();
        for run in runs {
            let node = NodeId(u16::from_le_bytes([run[0], run[1]]));
            let count = u32::from_le_bytes([run[2], run[3], run[4], run[5]]) as usize;
            // A forged count must not make us allocate more than one node per rank.
            if count > ranks as usize - homes.len() {
                return None;
            }
            homes.resize(homes.len() + count, node);
        }
        let period = homes.len();
        if period > 0 {
            homes = homes.into_iter().cycle().take(ranks as usize).collect();
        }
        Some(OpenedVolumeFile {
            cap: Cap::from_bytes(cap),
            client: ClientId(*client),
            linked: facts & 1 != 0,
            table,
            rank_nodes: homes,
        })
    }
}

impl OpenToken {
    /// Whether ranks of several mounts of a volume have the file open. Then no lock or memory of
    /// one machine is enough.
    pub fn is_across(&self) -> bool {
        self.kind == EngineKind::Volume && self.machine != machine::machine_id()
    }

    /// Returns its bytes, at most [`TOKEN_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            EngineKind::Plain => 1,
            EngineKind::Container => 2,
            EngineKind::Volume => 3,
            EngineKind::Remote => 4,
        };
        let counts = u64::from(self.ranks) << 32 | u64::from(self.machine);
        let pieces = u64::from(self.first) << 32 | u64::from(self.nodes);
        let words = [MAGIC, kind, self.open, self.stamp, counts, self.id, pieces];
        let mut bytes: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        if let Some(opened) = &self.volume {
            opened.encode(&mut bytes);
        }
        if let Some(ticket) = &self.remote {
            bytes.extend(ticket.encode());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a token.
    ///
    /// # Errors
    /// `EINVAL` for bytes that are no token.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<OpenToken> {
        let bad = || {
            TiledError::with_detail("open", path, Errno::INVAL, "the token is none of tio_begin's")
        };
        let mut words = [0u64; WORDS];
        let (bytes, sum) = bytes.split_last_chunk::<4>().ok_or_else(bad)?;
        let (head, rest) = bytes.split_at_checked(WORDS * 8).ok_or_else(bad)?;
        for (word, bytes) in words.iter_mut().zip(head.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [magic, kind, open, stamp, counts, id, pieces] = words;
        if magic != MAGIC || u32::from_le_bytes(*sum) != crc32c::crc32c(bytes) {
            return Err(bad());
        }
        let kind = match kind {
            1 => EngineKind::Plain,
            2 => EngineKind::Container,
            3 => EngineKind::Volume,
            4 => EngineKind::Remote,
            _ => return Err(bad()),
        };
        let (ranks, machine) = ((counts >> 32) as u32, counts as u32);
        let (first, nodes) = ((pieces >> 32) as u32, pieces as u32);
        let (mut volume, mut remote) = (None, None);
        match (kind, rest) {
            (EngineKind::Remote, rest) => {
                remote = Some(SiteTicket::decode(rest).ok_or_else(bad)?);
            }
            (_, []) => {}
            (_, rest) => volume = Some(OpenedVolumeFile::decode(rest, ranks).ok_or_else(bad)?),
        }
        Ok(OpenToken { kind, open, stamp, ranks, machine, id, first, nodes, volume, remote })
    }

    /// The path of the shared pointer of an open of an ordinary file: beside it.
    pub fn pointer_beside(&self, file: &Path) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        name.push(format!(".tatami.{:016x}", self.open));
        file.with_file_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_written_and_nothing_else_is_one() {
        let path = Path::new("/f");
        let (ranks, machine, first, nodes) = (7, 8, 10, 11);
        let of = |kind, volume| {
            let (open, stamp, id) = (5, 6, 9);
            let remote = None;
            OpenToken { kind, open, stamp, ranks, machine, id, first, nodes, volume, remote }
        };
        for kind in [EngineKind::Plain, EngineKind::Container, EngineKind::Volume] {
            assert_eq!(OpenToken::decode(&of(kind, None).encode(), path), Ok(of(kind, None)));
        }
        let key = tatami_wire::VolumeKey::new([7; 32]);
        let now = tatami_wire::Timestamp::from_sec(1);
        let cap = Cap::sign(&key, tatami_wire::Ino(9), tatami_wire::Access::BOTH, now);
        for homes in [
            &[][..],
            &[5; 7],
            &[0, 1, 2, 3, 0, 1, 2],
            &[4, 4, 4, 1, 1, 2, 2],
            &[0, 0, 1, 0, 0, 1, 1],
        ] {
            let homes = homes.iter().map(|node| NodeId(*node)).collect();
            let volume = Some(OpenedVolumeFile {
                cap,
                client: ClientId([3; 16]),
                linked: true,
                table: Some(NodeId(3)),
                rank_nodes: homes,
            });
            let token = of(EngineKind::Volume, volume);
            assert_eq!(OpenToken::decode(&token.encode(), path), Ok(token));
        }
        let homes = (0..RUNS_MAX as u16 + 1).map(NodeId).collect::<Vec<_>>();
        let volume = |homes| {
            Some(OpenedVolumeFile {
                cap,
                client: ClientId([3; 16]),
                linked: false,
                table: None,
                rank_nodes: homes,
            })
        };
        let many = |homes: &[NodeId]| OpenToken {
            ranks: homes.len() as u32,
            ..of(EngineKind::Volume, volume(homes.to_vec()))
        };
        let (most, more) = (many(&homes[1..]), many(&homes));
        assert!(most.encode().len() <= TOKEN_MAX);
        assert_eq!(OpenToken::decode(&most.encode(), path), Ok(most));
        let without = OpenToken { volume: volume(Vec::new()), ..more.clone() };
        assert_eq!(
            OpenToken::decode(&more.encode(), path),
            Ok(without),
            "there is no room for all nodes"
        );
        let bytes = of(EngineKind::Volume, volume(vec![NodeId(2); 7])).encode();
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            assert!(OpenToken::decode(&wrong, path).is_err());
            assert!(OpenToken::decode(&bytes[..at], path).is_err());
        }
    }
}
