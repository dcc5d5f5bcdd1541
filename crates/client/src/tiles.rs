//! What a tiled file consists of, as its shard tells it: which object has which byte.
//!
//! It is asked for once, and kept for all handles of a file, as long as the inode is in the
//! version that it was asked at. Whether it is, a mount to which the inode is delegated knows
//! without asking.

use crate::Client;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use tatami_layout::{Cut, Index, PieceTiles};
use tatami_wire::meta::{DataState, MetaOp, MetaReply};
use tatami_wire::tiles::{Growth, PAGE_PIECES, Page, Part, PieceInfo};
use tatami_wire::{Attr, Cred, Errno, Ino, Layout, NodeId, Piece};

/// How often the pages of a file are asked for anew because they changed in between.
const ATTEMPTS: usize = 16;

/// Pieces, tiles and cuts of one file.
#[derive(Clone, Debug)]
pub struct Tiles {
    /// Goes up with every change of the rest.
    pub version: u64,
    /// Of each piece, by number: the node that keeps it, whether it grows, how many
    /// bytes of its object the tiles refer to.
    pub pieces: BTreeMap<u32, PlacedPiece>,
    /// The node and number of the base.
    pub base: (NodeId, Piece),
    /// Bytes that the base has at least; 0 where it does not go beyond the tiles, and nothing is known.
    pub base_size: u64,
    /// Storage of all pieces, in units of 512 bytes.
    pub blocks: u64,
    /// Which object has which byte. The base is not in it: what no tile covers is there.
    pub index: Index,
}

/// Where a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedPiece {
    /// The node that keeps its objects.
    pub node: NodeId,
    /// Whether more may be learnt of it.
    pub growth: Growth,
    /// Bytes that its object has at least.
    pub len: u64,
    /// Lowest offset in the file, in bytes, of what it has.
    pub from: u64,
}

impl Tiles {
    /// Objects that the file has besides the base, and how long each is at least.
    pub fn objects(&self) -> impl Iterator<Item = ((NodeId, Piece), u64)> + '_ {
        self.pieces.iter().flat_map(|(number, piece)| {
            let bytes = ((piece.node, Piece::bytes_of(*number)), piece.len);
            let journal = (piece.growth != Growth::Closed)
                .then_some(((piece.node, Piece::journal_of(*number)), 0));
            std::iter::once(bytes).chain(journal)
        })
    }

    /// The size of the file with a base of so many bytes.
    pub fn size(&self, base: u64) -> u64 {
        self.index.size().max(base)
    }

    fn of(page: Page, base: (NodeId, Piece)) -> Result<Tiles, Errno> {
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
                decoded.push((Piece::bytes_of(piece), tiles));
            }
            pieces.insert(piece, PlacedPiece { node, growth, len, from });
        }
        let cuts = page.cuts.iter().map(|cut| Cut { stamp: cut.stamp, size: cut.size }).collect();
        // Cuts have been carried out on the base.
        let index = Index::with_base(decoded, cuts, 0, u64::MAX);
        let Page { version, blocks, base_size, .. } = page;
        // Who writes a tiled file tells how long all of it is: only what goes beyond the tiles is the base's for sure.
        let base_size = if base_size > index.size() { base_size } else { 0 };
        Ok(Tiles { version, pieces, base, base_size, blocks, index })
    }
}

/// The tiles of one file, shared by all its handles.
#[derive(Default)]
pub(crate) struct SharedTiles {
    known: Mutex<Option<(u64, Arc<Tiles>)>>,
}

/// Those of all files that are open.
#[derive(Default)]
pub(crate) struct TiledFiles {
    open: Mutex<HashMap<Ino, Weak<SharedTiles>>>,
}

impl TiledFiles {
    /// What all handles of `ino` share.
    pub(crate) fn of(&self, ino: Ino) -> Arc<SharedTiles> {
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
    /// The tiles of `ino` as they are now, from memory where they have not changed.
    ///
    /// # Errors
    /// Those of the shard; `EIO` for tiles that do not read.
    pub(crate) fn now(&self, client: &Client, ino: Ino) -> Result<Arc<Tiles>, Errno> {
        let version = client.getattr(&Cred::ROOT, ino)?.version;
        let mut known = self.known.lock();
        if let Some((at, tiles)) = &mut *known {
            if *at == version {
                return Ok(tiles.clone());
            }
            // The inode has changed; most such changes do not concern its tiles.
            if client.tiles_page(ino, 0, 1)?.version == tiles.version {
                *at = version;
                return Ok(tiles.clone());
            }
        }
        let tiles = Arc::new(client.tiles(ino)?);
        *known = Some((version, tiles.clone()));
        Ok(tiles)
    }
}

impl Client {
    /// What a tiled file consists of. A whole file has no pieces.
    ///
    /// # Errors
    /// Those of the shard; `EIO` for tiles that do not read, `EBUSY` where they change
    /// all the time.
    pub fn tiles(&self, ino: Ino) -> Result<Tiles, Errno> {
        let (page, layout) = self.pieces(ino)?;
        Tiles::of(page, (layout.node(), layout.base()))
    }

    /// All pieces of a file as the shard tells them, and its layout at the same time.
    ///
    /// # Errors
    /// As for [`Client::tiles`].
    pub fn pieces(&self, ino: Ino) -> Result<(Page, Layout), Errno> {
        let mut before = self.getattr(&Cred::ROOT, ino)?.layout;
        for _ in 0..ATTEMPTS {
            let page = self.all_pages(ino)?;
            let layout = self.getattr(&Cred::ROOT, ino)?.layout;
            match page {
                // A base never comes back, so there was no other in between.
                Some(page) if layout == before => return Ok((page, layout)),
                _ => before = layout,
            }
        }
        Err(Errno::EBUSY)
    }

    /// All pieces of a file as the shard tells them.
    ///
    /// # Errors
    /// Those of the shard; `EBUSY` where they change all the time.
    pub fn raw_tiles(&self, ino: Ino) -> Result<Page, Errno> {
        for _ in 0..ATTEMPTS {
            if let Some(page) = self.all_pages(ino)? {
                return Ok(page);
            }
        }
        Err(Errno::EBUSY)
    }

    /// Goes up with every change of a file's pieces, tiles and cuts.
    ///
    /// # Errors
    /// Those of the shard.
    pub fn tiles_version(&self, ino: Ino) -> Result<u64, Errno> {
        Ok(self.tiles_page(ino, 0, 1)?.version)
    }

    /// Makes pieces of a file that is, or could be, open for writing by `cred`: on each of the
    /// nodes so many. Returns the number of the first, and a stamp that all their tiles
    /// must be above.
    ///
    /// # Errors
    /// Those of the shard: `EACCES`, `EFBIG` for too many.
    pub fn add_pieces(
        &self,
        cred: &Cred,
        ino: Ino,
        nodes: Vec<(NodeId, u32)>,
    ) -> Result<(u32, u64), Errno> {
        match self.meta(cred, MetaOp::AddPieces { ino, nodes })? {
            MetaReply::Pieces { first, stamp } => Ok((first, stamp)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Replaces the tiles of some pieces, in number order, and adds cuts; `base` is what piece 0
    /// is now, if it was written. All or nothing, so all of it must fit a frame.
    ///
    /// # Errors
    /// Those of the shard: `EACCES`, `ESTALE` for a piece that is gone or closed.
    pub fn publish(
        &self,
        cred: &Cred,
        ino: Ino,
        parts: Vec<Part>,
        cuts: Vec<tatami_wire::tiles::Cut>,
        base: Option<DataState>,
    ) -> Result<Attr, Errno> {
        match self.meta(cred, MetaOp::Publish { ino, parts, cuts, base })? {
            MetaReply::Attr(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    /// All pages in one; `None` when they do not belong together.
    fn all_pages(&self, ino: Ino) -> Result<Option<Page>, Errno> {
        let mut all = self.tiles_page(ino, 0, PAGE_PIECES)?;
        while !all.end {
            let after = all.pieces.last().map_or(u32::MAX, |piece| piece.piece);
            let page = self.tiles_page(ino, after, PAGE_PIECES)?;
            if page.version != all.version {
                return Ok(None);
            }
            // Forward, or a broken shard would be asked for ever.
            if page.pieces.first().is_none_or(|piece| piece.piece <= after) && !page.end {
                return Err(Errno::EPROTO);
            }
            all.pieces.extend(page.pieces);
            all.end = page.end;
        }
        Ok(Some(all))
    }

    fn tiles_page(&self, ino: Ino, after: u32, limit: u32) -> Result<Page, Errno> {
        match self.meta(&Cred::ROOT, MetaOp::Tiles { ino, after, limit })? {
            MetaReply::Tiles(page) => Ok(page),
            _ => Err(Errno::EPROTO),
        }
    }
}
