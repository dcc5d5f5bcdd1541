//! The tiles of a file, as its shard reports them: which object has which byte.
//!
//! The client asks for them once, and keeps them for all handles of a file while the inode's
//! version stays the same. A mount to which the inode is delegated knows the version without a
//! request.

use crate::Client;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use tatami_layout::{PieceTiles, TileCut, TileIndex};
use tatami_wire::meta::{DataState, MetaOp, MetaReply};
use tatami_wire::tiles::{PieceGrowth, PieceInfo, PieceUpdate, TILE_PAGE_PIECES, TilePage};
use tatami_wire::{Attr, Cred, Errno, Ino, Layout, NodeId, Piece};

/// How often the pages of a file are fetched again because they changed in between.
const ATTEMPTS: usize = 16;

/// Pieces, tiles and cuts of one file.
#[derive(Clone, Debug)]
pub struct Tiles {
    /// Goes up with every change of the other fields.
    pub version: u64,
    /// Each piece, by number: the node that stores it, whether it grows, and how many bytes of its
    /// object the tiles refer to.
    pub pieces: BTreeMap<u32, PlacedPiece>,
    /// The node and number of the base.
    pub base: (NodeId, Piece),
    /// Bytes that the base has at least; 0 where it does not extend beyond the tiles, and nothing
    /// is known.
    pub base_size: u64,
    /// Storage of all pieces, in units of 512 bytes.
    pub blocks: u64,
    /// Which object has which byte. The base is not in it: it has the bytes that no tile covers.
    pub index: TileIndex,
}

/// The place of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedPiece {
    /// The node that stores its objects.
    pub node: NodeId,
    /// Whether its tiles may still grow.
    pub growth: PieceGrowth,
    /// Bytes that its object has at least.
    pub len: u64,
    /// Lowest offset in the file, in bytes, that it covers.
    pub from: u64,
}

impl Tiles {
    /// Returns the objects that the file has besides the base, and the least length of each.
    pub fn objects(&self) -> impl Iterator<Item = ((NodeId, Piece), u64)> + '_ {
        self.pieces.iter().flat_map(|(number, piece)| {
            let bytes = ((piece.node, Piece::of_bytes(*number)), piece.len);
            let journal = (piece.growth != PieceGrowth::Closed)
                .then_some(((piece.node, Piece::of_journal(*number)), 0));
            std::iter::once(bytes).chain(journal)
        })
    }

    /// Returns the size of the file with a base of `base` bytes.
    pub fn size(&self, base: u64) -> u64 {
        self.index.size().max(base)
    }

    fn from_page(page: TilePage, base: (NodeId, Piece)) -> Result<Tiles, Errno> {
        let mut pieces = BTreeMap::new();
        let mut decoded = Vec::with_capacity(page.pieces.len());
        for PieceInfo { piece, node, growth, tiles } in page.pieces {
            let (mut len, mut from) = (0, 0);
            if !tiles.is_empty() {
                let tiles = PieceTiles::decode(&tiles).map_err(|_| Errno::EIO)?;
                len = tiles.tiles().iter().map(|t| t.at.saturating_add(t.len)).max().unwrap_or(0);
                let views = tiles.views();
                let starts = tiles
                    .tiles()
                    .iter()
                    .filter_map(|tile| Some(views.get(tile.view as usize)?.offset_of(tile.start)));
                from = starts.min().unwrap_or(0);
                decoded.push((Piece::of_bytes(piece), tiles));
            }
            pieces.insert(piece, PlacedPiece { node, growth, len, from });
        }
        let cuts =
            page.cuts.iter().map(|cut| TileCut { stamp: cut.stamp, size: cut.size }).collect();
        // The base itself was cut at each truncation, so the index cuts only the tiles.
        let index = TileIndex::with_base(decoded, cuts, 0, u64::MAX);
        let TilePage { version, blocks, base_size, .. } = page;
        // A writer of a tiled file reports the length of the whole file. Only a length beyond the
        // tiles is surely that of the base.
        let base_size = if base_size > index.size() { base_size } else { 0 };
        Ok(Tiles { version, pieces, base, base_size, blocks, index })
    }
}

/// The tiles of one file, shared by all its handles.
#[derive(Default)]
pub(crate) struct SharedTiles {
    known: Mutex<Option<(u64, Arc<Tiles>)>>,
}

/// The tiles of all open files.
#[derive(Default)]
pub(crate) struct TiledFiles {
    open: Mutex<HashMap<Ino, Weak<SharedTiles>>>,
}

impl TiledFiles {
    /// Returns the state that all handles of `ino` share.
    pub(crate) fn get_shared(&self, ino: Ino) -> Arc<SharedTiles> {
        let mut open = self.open.lock();
        if let Some(shared) = open.get(&ino).and_then(Weak::upgrade) {
            return shared;
        }
        if open.len() >= 1024 && open.len().is_power_of_two() {
            open.retain(|_, shared| shared.strong_count() > 0);
        }
        let shared = Arc::new(SharedTiles::default());
        open.insert(ino, Arc::downgrade(&shared));
        shared
    }
}

impl SharedTiles {
    /// Returns the present tiles of `ino`, from memory where they have not changed.
    ///
    /// # Errors
    /// Those of the shard; `EIO` for tiles that cannot be decoded.
    pub(crate) fn current_tiles(&self, client: &Client, ino: Ino) -> Result<Arc<Tiles>, Errno> {
        // Read before the tiles: a change in between makes the version old, and the next call
        // fetches again.
        let version = client.getattr(&Cred::ROOT, ino)?.version;
        let mut known = self.known.lock();
        if let Some((at, tiles)) = &mut *known {
            if *at == version {
                return Ok(tiles.clone());
            }
            // The inode has changed, but most such changes do not concern its tiles.
            if client.fetch_tiles_page(ino, 0, 1)?.version == tiles.version {
                *at = version;
                return Ok(tiles.clone());
            }
        }
        let tiles = Arc::new(client.fetch_tiles(ino)?);
        *known = Some((version, tiles.clone()));
        Ok(tiles)
    }
}

impl Client {
    /// Fetches the tiles of a file. A whole file has no pieces.
    ///
    /// # Errors
    /// Those of the shard; `EIO` for tiles that cannot be decoded, `EBUSY` where they change all
    /// the time.
    pub fn fetch_tiles(&self, ino: Ino) -> Result<Tiles, Errno> {
        let (page, layout) = self.fetch_pieces(ino)?;
        Tiles::from_page(page, (layout.node(), layout.base()))
    }

    /// Fetches all pieces of a file, and its layout at the same time.
    ///
    /// # Errors
    /// As for [`Client::fetch_tiles`].
    pub fn fetch_pieces(&self, ino: Ino) -> Result<(TilePage, Layout), Errno> {
        let mut before = self.getattr(&Cred::ROOT, ino)?.layout;
        for _ in 0..ATTEMPTS {
            let page = self.fetch_all_pages(ino)?;
            let layout = self.getattr(&Cred::ROOT, ino)?.layout;
            match page {
                // A base never returns, so the layout was the same in between (a double collect).
                Some(page) if layout == before => return Ok((page, layout)),
                _ => before = layout,
            }
        }
        Err(Errno::EBUSY)
    }

    /// Fetches all pieces of a file as the shard reports them.
    ///
    /// # Errors
    /// Those of the shard; `EBUSY` where they change all the time.
    pub fn fetch_raw_tiles(&self, ino: Ino) -> Result<TilePage, Errno> {
        for _ in 0..ATTEMPTS {
            if let Some(page) = self.fetch_all_pages(ino)? {
                return Ok(page);
            }
        }
        Err(Errno::EBUSY)
    }

    /// Returns a number that goes up with every change of a file's pieces, tiles and cuts.
    ///
    /// # Errors
    /// Those of the shard.
    pub fn fetch_tiles_version(&self, ino: Ino) -> Result<u64, Errno> {
        Ok(self.fetch_tiles_page(ino, 0, 1)?.version)
    }

    /// Makes new pieces, a number for each node, of a file that is, or could be, open for writing
    /// by `cred`. Returns the number of the first piece, and a stamp that the stamps of all their
    /// tiles must exceed.
    ///
    /// # Errors
    /// Those of the shard: `EACCES`, `EFBIG` for too many.
    pub fn add_pieces(
        &self,
        cred: &Cred,
        ino: Ino,
        nodes: Vec<(NodeId, u32)>,
    ) -> Result<(u32, u64), Errno> {
        match self.send_meta(cred, MetaOp::AddPieces { ino, nodes })? {
            MetaReply::Pieces { first, stamp } => Ok((first, stamp)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Replaces the tiles of some pieces, in number order, and adds cuts; `base` is the present
    /// state of piece 0, if it was written. The shard does all or nothing, so all of it must fit a
    /// frame.
    ///
    /// # Errors
    /// Those of the shard: `EACCES`, `ESTALE` for a piece that is removed or closed.
    pub fn publish_tiles(
        &self,
        cred: &Cred,
        ino: Ino,
        parts: Vec<PieceUpdate>,
        cuts: Vec<tatami_wire::tiles::Cut>,
        base: Option<DataState>,
    ) -> Result<Attr, Errno> {
        match self.send_meta(cred, MetaOp::Publish { ino, updates: parts, cuts, base })? {
            MetaReply::Attr(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Fetches all pages as one; `None` when they are of different versions.
    fn fetch_all_pages(&self, ino: Ino) -> Result<Option<TilePage>, Errno> {
        let mut all = self.fetch_tiles_page(ino, 0, TILE_PAGE_PIECES)?;
        while !all.end {
            let after = all.pieces.last().map_or(u32::MAX, |piece| piece.piece);
            let page = self.fetch_tiles_page(ino, after, TILE_PAGE_PIECES)?;
            if page.version != all.version {
                return Ok(None);
            }
            // The number must advance: otherwise a broken shard would be asked for ever.
            if page.pieces.first().is_none_or(|piece| piece.piece <= after) && !page.end {
                return Err(Errno::EPROTO);
            }
            all.pieces.extend(page.pieces);
            all.end = page.end;
        }
        Ok(Some(all))
    }

    fn fetch_tiles_page(&self, ino: Ino, after: u32, limit: u32) -> Result<TilePage, Errno> {
        match self.send_meta(&Cred::ROOT, MetaOp::ListTiles { ino, after, limit })? {
            MetaReply::Tiles(page) => Ok(page),
            _ => Err(Errno::EPROTO),
        }
    }
}
