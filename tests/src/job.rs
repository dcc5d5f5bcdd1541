//! A job with one rank on each node. The ranks write a tiled file, piece by piece, through the
//! client.

use crate::Cluster;
use std::fs;
use std::sync::Arc;
use tatami_client::{Client, ClientOptions, Endpoint, TlsTrust};
use tatami_cluster::VolumeFile;
use tatami_layout::{PieceTiles, Shape, View, journal};
use tatami_wire::meta::{DataState, InodeTemplate};
use tatami_wire::tiles::PieceUpdate;
use tatami_wire::{Access, Cap, Cred, Ino, NodeId, Piece, VolumeKey};

/// Nodes, and ranks.
pub const NODES: u16 = 4;
/// Bytes of a block.
const BLOCK: usize = 1000;
/// Blocks of a rank.
const BLOCKS: usize = 50;
/// Bytes of a file after all ranks have written once.
pub const SIZE: usize = NODES as usize * BLOCK * BLOCKS;

/// Returns a client of a node.
pub fn client(cluster: &Cluster, node: u16) -> Arc<Client> {
    let socket = cluster.dir().join(format!("node{node}/socket"));
    let key = fs::read_to_string(cluster.dir().join("key")).expect("the key");
    let digits = key.split_whitespace().next().expect("its digits, before their checksum");
    let key = VolumeKey::from_hex(digits).expect("a key");
    let volume = VolumeFile::load(&cluster.dir().join("volume.toml")).expect("a volume");
    let tls = TlsTrust::open(cluster.dir(), &volume).expect("certificates");
    let endpoint = Endpoint::Unix(socket);
    let options = ClientOptions { key: Some(key), tls, ..ClientOptions::new(endpoint) };
    Arc::new(Client::connect(options).expect("connects"))
}

/// One open of a file by a rank on each node.
pub struct Job {
    /// One client per node.
    pub clients: Vec<Arc<Client>>,
    /// The file.
    pub ino: Ino,
    /// Access to its bytes.
    pub cap: Cap,
    /// Number of the first rank's piece.
    pub first: u32,
    /// The stamps of its tiles must be above this one.
    pub stamp: u64,
}

impl Job {
    /// Opens a file for new pieces, one per node.
    pub fn open(cluster: &Cluster, ino: Ino) -> Job {
        let clients: Vec<_> = (0..NODES).map(|node| client(cluster, node)).collect();
        let (_, cap) = clients[0].open(&Cred::ROOT, ino, Access::BOTH).expect("open");
        let nodes = (0..NODES).map(|node| (NodeId(node), 1)).collect();
        let (first, stamp) = clients[0].add_pieces(&Cred::ROOT, ino, nodes).expect("pieces");
        Job { clients, ino, cap, first, stamp }
    }

    /// Creates a file and opens it.
    pub fn create(cluster: &Cluster, name: &str) -> Job {
        let maker = client(cluster, 0);
        let node = InodeTemplate::File(maker.new_layout());
        let name = name.as_bytes();
        let made = maker.create(&Cred::ROOT, Ino::ROOT, name, node, 0o644, 0, true, None);
        Job::open(cluster, made.expect("create").attr.ino)
    }

    /// Every rank writes its blocks of `bytes`, one behind the other in its piece, in two calls.
    /// Returns the parts that each rank would publish.
    pub fn write(&self, bytes: &[u8]) -> Vec<PieceUpdate> {
        (0..u32::from(NODES)).map(|rank| self.write_rank(rank, bytes).0).collect()
    }

    /// Does one rank's part of [`Job::write`]. Returns it with its tiles.
    pub fn write_rank(&self, rank: u32, bytes: &[u8]) -> (PieceUpdate, PieceTiles) {
        let start = rank as usize * BLOCK;
        let mine: Vec<u8> = bytes[start..]
            .chunks(NODES as usize * BLOCK)
            .flat_map(|chunk| chunk[..BLOCK.min(chunk.len())].to_vec())
            .collect();
        let block = Shape::bytes(BLOCK as u64).expect("shape");
        let block = Shape::resized(0, NODES as i64 * BLOCK as i64, &block).expect("shape");
        let view = View::new(start as u64, 1, block).expect("view");
        let mut tiles = PieceTiles::new(rank);
        let view = tiles.add_view(&view).expect("added");
        let piece = self.first + rank;
        let client = &self.clients[rank as usize];
        let node = NodeId(rank as u16);
        let data =
            client.open_object(self.ino, node, Piece::of_bytes(piece), self.cap).expect("piece");
        let (head, tail) = mine.split_at(mine.len() / 3);
        for (at, part) in [(0, head), (head.len(), tail)] {
            assert_eq!(data.write_at(part, at as u64), Ok(part.len()));
            let (at, len) = (at as u64, part.len() as u64);
            tiles.append(self.stamp + 1, view, at, len, at).expect("appended");
        }
        let blocks = data.stat().expect("stat").blocks;
        (PieceUpdate { piece, tiles: tiles.encode().into(), blocks, close: true }, tiles)
    }

    /// Writes the file and the journal of each rank, and publishes nothing: the state that a killed
    /// job leaves.
    pub fn write_unpublished(&self, bytes: &[u8]) {
        for rank in 0..u32::from(NODES) {
            let (part, tiles) = self.write_rank(rank, bytes);
            let object = Piece::of_journal(part.piece);
            let client = &self.clients[rank as usize];
            let file = client
                .open_object(self.ino, NodeId(rank as u16), object, self.cap)
                .expect("journal");
            let records = journal::encode(&tiles);
            assert_eq!(file.write_at(&records, 0), Ok(records.len()));
            file.flush().expect("flushed");
        }
    }

    /// Publishes the parts at the shard.
    pub fn publish(&self, parts: Vec<PieceUpdate>) {
        self.clients[0]
            .publish_tiles(&Cred::ROOT, self.ino, parts, Vec::new(), None)
            .expect("published");
    }

    /// Closes the file.
    pub fn close(self) {
        self.clients[0].commit(&Cred::ROOT, self.ino, None::<DataState>, true).expect("closed");
    }
}

/// Creates a tiled file with these bytes, at most [`SIZE`], on all nodes.
pub fn tiled_file(cluster: &Cluster, name: &str, bytes: &[u8]) {
    let job = Job::create(cluster, name);
    let parts = job.write(bytes);
    job.publish(parts);
    job.close();
}
