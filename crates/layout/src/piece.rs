//! The contents of one writer's piece: tiles over views, found as the writes come.

use crate::code::{DecodeError, decode_byte, decode_count, decode_number, encode_number};
use crate::compact::compact_tiles;
use crate::own_extents::{OldTileIndexes, OwnExtent, find_own_extents};
use crate::tile::{MAX_VIEWS, Tile, TileError, WriteFit};
use crate::tile_code::{BEFORE_FIRST, decode_tile, encode_tile};
use crate::view::View;

/// The change that [`PieceTiles::append`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The last tile's `len` went up. Nothing else changed.
    Grown,
    /// The tiles from this number on are new, or have another form than before. The tile before
    /// them may have lost its last block to them. Earlier statements stay true: every byte is where
    /// it was.
    Changed(usize),
}

/// The tiles of one piece: the writer keeps them, and publishes them at sync and close.
#[derive(Clone, Debug)]
pub struct PieceTiles {
    rank: u32,
    views: Vec<View>,
    tiles: Vec<Tile>,
    older: OldTileIndexes,
}

impl PartialEq for PieceTiles {
    fn eq(&self, other: &PieceTiles) -> bool {
        (self.rank, &self.views, &self.tiles) == (other.rank, &other.views, &other.tiles)
    }
}

impl Eq for PieceTiles {}

impl PieceTiles {
    /// A piece of this rank, with nothing in it.
    pub fn new(rank: u32) -> PieceTiles {
        PieceTiles { rank, views: Vec::new(), tiles: Vec::new(), older: OldTileIndexes::default() }
    }

    /// The rank that writes the piece: of tiles with equal stamps the one of the lowest rank wins.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The views that the tiles refer to, by number.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// The tiles, in the order of their places in the piece as long as they were appended.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Returns the number of `view`; adds the view if it is not there yet.
    ///
    /// # Errors
    ///
    /// More than [`MAX_VIEWS`].
    pub fn add_view(&mut self, view: &View) -> Result<u32, TileError> {
        // The last ones first: programs that set many views use them in turn.
        if let Some(known) = self.views.iter().rposition(|v| v == view) {
            return Ok(known as u32);
        }
        let number = self.views.len();
        if number >= MAX_VIEWS {
            return Err(TileError::View(number as u32));
        }
        self.views.push(view.clone());
        Ok(number as u32)
    }

    /// Adds a tile as it is, such as one from a journal. Where the last tiles have its stamp and
    /// view and name places in the piece from `tile.at` on, they lose them to it. So a journal that
    /// records the tiles of each [`Appended::Changed`] is read back as it was.
    ///
    /// # Errors
    ///
    /// A tile over a view that is not there, or that is empty or out of range.
    pub fn push(&mut self, tile: Tile) -> Result<(), TileError> {
        tile.validate_tile(self.views.get(tile.view as usize))?;
        while let Some(last) = self.tiles.last_mut() {
            let same = last.stamp == tile.stamp && last.view == tile.view;
            if !same || last.at + last.len <= tile.at {
                break;
            }
            if last.at < tile.at {
                last.truncate_to(tile.at - last.at);
                break;
            }
            self.tiles.pop();
        }
        self.tiles.push(tile);
        self.older.index_old_tiles(&self.views, &self.tiles);
        Ok(())
    }

    /// Records that the stream bytes `stream .. stream + len` of `view` lie at `at` in the piece. A
    /// write that continues the last one, in stream and piece, makes its tile longer; blocks at
    /// equal distances become one strided tile. Only writes with equal stamps are combined.
    ///
    /// # Errors
    ///
    /// As [`PieceTiles::push`]; then nothing has changed.
    pub fn append(
        &mut self,
        stamp: u64,
        view: u32,
        stream: u64,
        len: u64,
        at: u64,
    ) -> Result<Appended, TileError> {
        let new = Tile::contiguous(stamp, view, stream, len, at);
        new.validate_tile(self.views.get(view as usize))?;
        let mut changed = self.tiles.len();
        loop {
            let number = self.tiles.len();
            let Some(last) = self.tiles.last_mut() else { break };
            let follows = last.stamp == stamp && last.view == view && last.at + last.len == at;
            if !follows || stream < last.end() {
                break;
            }
            match last.fit_write(stream, len) {
                WriteFit::Grows => {
                    last.len += len;
                    let only = changed == number;
                    return Ok(if only { Appended::Grown } else { Appended::Changed(changed) });
                }
                WriteFit::Strides => {
                    last.block = last.len;
                    last.stride = stream - last.start;
                    last.len += len;
                    return Ok(Appended::Changed(number - 1));
                }
                WriteFit::Split => {
                    changed = number;
                    let tail = last.split_last();
                    // The loop continues with the block that was split off: it may be the first one
                    // of another pattern.
                    self.tiles.push(tail);
                }
                WriteFit::New => break,
            }
        }
        self.tiles.push(new);
        self.older.index_old_tiles(&self.views, &self.tiles);
        Ok(Appended::Changed(changed))
    }

    /// Makes the last tile, which has no gaps, `len` bytes longer, for a write that continues it in
    /// stream and piece, with its stamp. The caller has checked that the file has room for the
    /// bytes. Without a tile nothing happens.
    pub fn extend_last_tile(&mut self, len: u64) {
        let Some(last) = self.tiles.last_mut() else { return };
        debug_assert!(last.block == last.stride, "the tile has gaps");
        last.len += len;
    }

    /// Returns where the writer's own piece has the stream bytes `stream .. stream + len` of
    /// `view`: without gaps, in stream order. Of several tiles over a byte the winning one counts.
    pub fn own_extents(&self, view: &View, stream: u64, len: u64) -> Vec<OwnExtent> {
        find_own_extents((&self.views, &self.tiles), &self.older, view, stream, len)
    }

    /// Returns the encoding: see docs/reference/formats.md. It states the same place for each byte
    /// as the tiles do. Explicit offsets that follow a nested pattern become a view and one tile.
    pub fn encode(&self) -> Vec<u8> {
        let compact = compact_tiles(&self.views, &self.tiles);
        let (views, tiles) = match &compact {
            Some((views, tiles)) => (views, tiles),
            None => (&self.views, &self.tiles),
        };
        let mut out = vec![VERSION];
        encode_number(&mut out, u64::from(self.rank));
        encode_number(&mut out, views.len() as u64);
        for view in views {
            view.encode(&mut out);
        }
        encode_number(&mut out, tiles.len() as u64);
        let mut last = BEFORE_FIRST;
        for tile in tiles {
            encode_tile(&mut out, tile, &last);
            last = *tile;
        }
        out
    }

    /// Decodes what [`PieceTiles::encode`] made.
    ///
    /// # Errors
    ///
    /// Bytes that are anything else. What is allocated is bounded by their number.
    pub fn decode(mut from: &[u8]) -> Result<PieceTiles, DecodeError> {
        let from = &mut from;
        match decode_byte(from)? {
            VERSION => {}
            other => return Err(DecodeError::Kind(other)),
        }
        let rank =
            u32::try_from(decode_number(from)?).map_err(|_| DecodeError::Invalid("a rank"))?;
        let mut new = PieceTiles::new(rank);
        for _ in 0..decode_count(from, 7)? {
            let view = View::decode(from)?;
            if new.views.len() >= MAX_VIEWS {
                return Err(DecodeError::Invalid("no view for tiles"));
            }
            new.views.push(view);
        }
        let count = decode_count(from, 2)?;
        new.tiles.reserve_exact(count);
        let mut last = BEFORE_FIRST;
        for _ in 0..count {
            last = decode_tile(from, &last)?;
            new.push(last).map_err(|_| DecodeError::Invalid("no valid tile"))?;
        }
        match from.len() {
            0 => Ok(new),
            n => Err(DecodeError::Trailing(n)),
        }
    }
}

const VERSION: u8 = 1;
