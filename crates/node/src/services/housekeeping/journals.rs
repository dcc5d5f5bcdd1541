//! The last pass over the journals of pieces whose writers are gone: their tiles are published on
//! behalf of the writers, and the pieces are closed. A piece with a damaged journal stays open
//! until an operator accepts the loss: a file must not silently lack part of its bytes.

use super::{CALL_TIMEOUT, Housekeeper, NodeAway, ShardAddress};
use crate::clock::current_time;
use std::collections::BTreeMap;
use tatami_client::clip_tiles;
use tatami_client::connection::Connection;
use tatami_layout::PieceTiles;
use tatami_layout::journal::{self, BYTES_MAX, LastWord};
use tatami_net::Endpoint;
use tatami_wire::frame::{FrameClass, PAYLOAD_MAX};
use tatami_wire::handshake::Role;
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply, ObjectResult};
use tatami_wire::tiles::{PIECE_UPDATES_MAX, PieceGrowth, PieceInfo, PieceUpdate, TILES_MAX};
use tatami_wire::{Access, Attr, Cap, Ino, NodeId, Piece};

/// Most bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;
const _: () = assert!(READ_BYTES <= PAYLOAD_MAX);
/// Most pieces that are requested, and published, at a time.
const PIECES_STEP: u32 = 1024;
/// Bytes of tiles after which a batch is published.
const TILES_STEP_BYTES: usize = 256 * 1024;

impl Housekeeper<'_> {
    /// Closes all pieces of a file that have no writer any more. Fails if a journal is damaged,
    /// after it has closed the others.
    pub(super) fn read_journals(&mut self, at: ShardAddress, attr: &Attr) -> Result<(), NodeAway> {
        let ino = attr.ino;
        let mut nodes = DataConnections { connections: BTreeMap::new() };
        let (mut after, mut end, mut damaged) = (0, false, false);
        while !end && !self.shared.stop.is_set() {
            let op = MetaOp::ListTiles { ino, after, limit: PIECES_STEP };
            let Ok(MetaReply::Tiles(page)) = self.call_shard(at, op)? else {
                return Ok(());
            };
            end = page.end || page.pieces.is_empty();
            after = page.pieces.last().map_or(after, |piece| piece.piece);
            let lost = page.pieces.into_iter().filter(|p| p.growth == PieceGrowth::Abandoned);
            let (mut parts, mut bytes) = (Vec::new(), 0);
            for piece in lost {
                let Some(part) = self.final_part(&mut nodes, ino, piece)? else {
                    damaged = true;
                    continue;
                };
                bytes += part.tiles.len();
                parts.push(part);
                if bytes >= TILES_STEP_BYTES || parts.len() >= PIECE_UPDATES_MAX {
                    self.publish_pieces(at, ino, std::mem::take(&mut parts))?;
                    bytes = 0;
                }
            }
            self.publish_pieces(at, ino, parts)?;
        }
        if damaged { Err(NodeAway) } else { Ok(()) }
    }

    fn publish_pieces(
        &mut self,
        at: ShardAddress,
        ino: Ino,
        parts: Vec<PieceUpdate>,
    ) -> Result<(), NodeAway> {
        if parts.is_empty() {
            return Ok(());
        }
        let count = parts.len();
        let op = MetaOp::Publish { ino, updates: parts, cuts: Vec::new(), base: None };
        match self.call_shard(at, op)? {
            Ok(_) => tracing::info!(%ino, count, "pieces of writers that are gone were closed"),
            Err(e) => {
                tracing::error!(%ino, error = %e, "cannot close the pieces of writers that are gone");
                return Err(NodeAway);
            }
        }
        Ok(())
    }

    /// Returns the final state of a piece whose writer is gone; `None` if its journal is damaged.
    fn final_part(
        &mut self,
        nodes: &mut DataConnections,
        ino: Ino,
        info: PieceInfo,
    ) -> Result<Option<PieceUpdate>, NodeAway> {
        let (bytes, journal) = (Piece::of_bytes(info.piece), Piece::of_journal(info.piece));
        // Only tiles within this size count: a journal may be ahead of the bytes that reached the
        // disk before the writer died.
        let state = self.stat_object(info.node, ino, bytes)?;
        let content = self.read_object(nodes, ino, info.node, journal)?;
        let mut last = journal::read_last_word(&content, state.size, false);
        if matches!(last, LastWord::Damaged(_)) {
            let is_restarted = self.stat_object(info.node, ino, journal)?.is_restarted;
            last = journal::read_last_word(&content, state.size, is_restarted);
        }
        let tiles = match last {
            LastWord::Whole(tiles) => tiles.map(|tiles| clip_tiles(&tiles, state.size)),
            LastWord::Torn(recovered) => {
                let torn: Vec<String> = recovered.lost.iter().map(ToString::to_string).collect();
                tracing::warn!(%ino, piece = info.piece, node = %info.node, lost = torn.join(", "),
                    "a power cut has taken a part of the journal of a piece that was not synced: its whole records are published, \
                     and what was synced of the file is there");
                let all = match info.tiles.is_empty() {
                    true => recovered.tiles,
                    false => match PieceTiles::decode(&info.tiles) {
                        Ok(published) => recovered.join_published(&published),
                        // The shard's own check tells of it; nothing is put in its place.
                        Err(_) => return Ok(None),
                    },
                };
                Some(clip_tiles(&all, state.size))
            }
            LastWord::Damaged(damage) => {
                // It is looked at every few seconds.
                if self.logged_damage.insert((ino, info.piece)) {
                    tracing::error!(%ino, piece = info.piece, node = %info.node,
                        object = format!("{:016x}.{:08x}", ino.0, journal.0),
                        "the journal of a piece whose writer is gone is {damage}: the file lacks what was not published \
                         of it. Restore the file from a copy, or keep what is whole: tatami recover --accept-loss");
                }
                return Ok(None);
            }
        };
        let tiles = tiles.filter(|tiles| !tiles.tiles().is_empty()).map(|tiles| tiles.encode());
        let tiles = match tiles {
            Some(tiles) if tiles.len() <= TILES_MAX => tiles,
            Some(_) => {
                tracing::error!(%ino, piece = info.piece, "a journal tells of too many tiles");
                info.tiles.into_vec()
            }
            None if info.tiles.is_empty() => PieceTiles::new(info.piece).encode(),
            None => info.tiles.into_vec(),
        };
        let blocks = state.blocks;
        Ok(Some(PieceUpdate { piece: info.piece, tiles: tiles.into(), blocks, close: true }))
    }

    fn read_object(
        &mut self,
        nodes: &mut DataConnections,
        ino: Ino,
        node: NodeId,
        piece: Piece,
    ) -> Result<Vec<u8>, NodeAway> {
        let mut all = Vec::new();
        loop {
            let (offset, before) = (all.len() as u64, all.len());
            all.resize(before + READ_BYTES, 0);
            let got = match node == self.shared.settings.node() {
                true => {
                    let objects = &self.shared.disk.objects;
                    objects.read_at(ino, piece, &mut all[before..], offset).map_err(|_| NodeAway)?
                }
                false => {
                    let op = ObjectOp::Read { offset, len: (all.len() - before) as u32 };
                    let cap = Cap::sign(
                        &self.shared.settings.identity.key,
                        ino,
                        Access::READ,
                        current_time(),
                    );
                    let call = ObjectCall { cap, piece, op };
                    self.call_node(nodes, node, &call, &mut all[before..])?
                }
            };
            all.truncate(before + got);
            // Stops here: a journal of this length is refused anyway.
            if got == 0 || all.len() > BYTES_MAX {
                return Ok(all);
            }
        }
    }

    fn call_node(
        &mut self,
        nodes: &mut DataConnections,
        node: NodeId,
        call: &ObjectCall,
        into: &mut [u8],
    ) -> Result<usize, NodeAway> {
        let mut connection = match nodes.connections.remove(&node) {
            Some(connection) => connection,
            None => self.data_connection(node)?,
        };
        let asked = connection.send(FrameClass::Object, 0, call, &[]);
        let answer =
            asked.and_then(|()| connection.receive::<ObjectResult>(FrameClass::Object, 0, into));
        match answer {
            Ok((Ok(ObjectReply::Data), got)) => {
                nodes.connections.insert(node, connection);
                Ok(got)
            }
            Ok(_) | Err(_) => Err(self.mark_away(node)),
        }
    }

    fn data_connection(&mut self, node: NodeId) -> Result<Connection, NodeAway> {
        let map = self.shared.map.current();
        let info = map.find_member(node).ok_or(NodeAway)?;
        let endpoint = Endpoint::from_address(&info.address);
        let opened = Connection::open(&endpoint, &self.caller, Role::Data, 0, CALL_TIMEOUT);
        opened.map_err(|_| self.mark_away(node))
    }
}

/// Connections for bytes, for as long as one file is processed.
struct DataConnections {
    connections: BTreeMap<NodeId, Connection>,
}
