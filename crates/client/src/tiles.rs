//! The tiles of a file, as its shard reports them: which object has which byte.
//!
//! The client asks for them once, and keeps them for all handles of a file while the inode's
//! version stays the same. A mount to which the inode is delegated knows the version without a
//! request.

use crate::Client;
use crate::tiled_files::{SharedTiles, Tiles};
use std::sync::Arc;
use tatami_wire::meta::{DataState, MetaOp, MetaReply};
use tatami_wire::tiles::{PieceUpdate, TILE_PAGE_PIECES, TilePage};
use tatami_wire::{Attr, Cred, Errno, Ino, Layout, NodeId};

/// How often the pages of a file are fetched again because they changed in between.
const ATTEMPTS: usize = 16;

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
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        nodes: Vec<(NodeId, u32)>,
    ) -> Result<(u32, u64), Errno> {
        let op = MetaOp::AddPieces { ino, nodes };
        let reply = match self.send_meta(cred, op.clone()) {
            // A file of several writers has no bytes beside its inode.
            Err(Errno::EXDEV) => {
                self.move_out_of_inode(ino)?;
                self.send_meta(cred, op)
            }
            reply => reply,
        };
        match reply? {
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
