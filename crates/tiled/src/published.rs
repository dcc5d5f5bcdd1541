//! The index of a container: the tiles of all ranks of all opens that have ended or synced. It is
//! one file, replaced as a whole.

use crate::marker::PieceName;
use std::collections::BTreeMap;
use tatami_layout::{PieceTiles, TileCut};

const MAGIC: [u8; 8] = *b"TATAMIX1";
const VERSION: u32 = 1;
/// The index was on the disk before it got its name.
const DURABLE: u32 = 1;
/// Bytes before the pieces: magic, version, flags, generation, base stamp, pieces, cuts.
const HEADER: usize = 8 + 4 + 4 + 8 + 8 + 4 + 4;

/// A piece in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedPiece {
    /// Its name.
    pub name: PieceName,
    /// Changes of its journal when it was sealed: a journal with this count has no more tiles.
    pub changes: u64,
    /// Its tiles.
    pub tiles: PieceTiles,
}

/// The contents of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedIndex {
    /// Whether it was synced before the rename.
    pub durable: bool,
    /// How often it has been replaced.
    pub generation: u64,
    /// Pieces in any order.
    pub pieces: Vec<PublishedPiece>,
    /// Truncations and extensions by stamp.
    pub cuts: Vec<TileCut>,
}

/// Why bytes are no index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIndex {
    /// Shorter than it says, or longer.
    #[error("it has the wrong length")]
    Length,
    /// Not an index, or of another version.
    #[error("it is no index of this version")]
    Kind,
    /// The checksum is not that of the bytes.
    #[error("its checksum is wrong")]
    Sum,
    /// The tiles of a piece make no sense.
    #[error("the piece {name:?} is damaged: {why}")]
    Piece {
        /// The piece.
        name: PieceName,
        /// The fault.
        why: String,
    },
}

struct IndexInput<'a>(&'a [u8]);

impl<'a> IndexInput<'a> {
    fn take_bytes(&mut self, len: usize) -> Result<&'a [u8], BadIndex> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(BadIndex::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take_u32(&mut self) -> Result<u32, BadIndex> {
        self.take_bytes(4)?.try_into().map(u32::from_le_bytes).map_err(|_| BadIndex::Length)
    }

    fn take_u64(&mut self) -> Result<u64, BadIndex> {
        self.take_bytes(8)?.try_into().map(u64::from_le_bytes).map_err(|_| BadIndex::Length)
    }
}

impl PublishedIndex {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(if self.durable { DURABLE } else { 0 }.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        // The base stamp: a container's base has no stamp of its own.
        out.extend(0u64.to_le_bytes());
        out.extend((self.pieces.len() as u32).to_le_bytes());
        out.extend((self.cuts.len() as u32).to_le_bytes());
        for entry in &self.pieces {
            let tiles = entry.tiles.encode();
            out.extend(entry.name.open.to_le_bytes());
            out.extend(entry.changes.to_le_bytes());
            out.extend((tiles.len() as u32).to_le_bytes());
            out.extend(entry.name.rank.to_le_bytes());
            out.extend(tiles);
        }
        for cut in &self.cuts {
            out.extend(cut.stamp.to_le_bytes());
            out.extend(cut.size.to_le_bytes());
        }
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Reads the bytes of an index. Allocates at most a small multiple of their number.
    ///
    /// # Errors
    /// [`BadIndex`].
    pub fn decode(bytes: &[u8]) -> Result<PublishedIndex, BadIndex> {
        if bytes.len() < HEADER + 4 {
            return Err(BadIndex::Length);
        }
        let (body, sum) = bytes.split_at(bytes.len() - 4);
        if body[..8] != MAGIC {
            return Err(BadIndex::Kind);
        }
        if crc32c::crc32c(body).to_le_bytes() != *sum {
            return Err(BadIndex::Sum);
        }
        let mut input = IndexInput(&body[8..]);
        if input.take_u32()? != VERSION {
            return Err(BadIndex::Kind);
        }
        let durable = input.take_u32()? & DURABLE != 0;
        let generation = input.take_u64()?;
        input.take_u64()?;
        let (pieces, cuts) = (input.take_u32()?, input.take_u32()?);
        let mut out = PublishedIndex { durable, generation, ..PublishedIndex::default() };
        for _ in 0..pieces {
            let (open, changes) = (input.take_u64()?, input.take_u64()?);
            let (len, rank) = (input.take_u32()?, input.take_u32()?);
            let name = PieceName { open, rank };
            let tiles = PieceTiles::decode(input.take_bytes(len as usize)?);
            let bad = |e: tatami_layout::DecodeError| BadIndex::Piece { name, why: e.to_string() };
            out.pieces.push(PublishedPiece { name, changes, tiles: tiles.map_err(bad)? });
        }
        for _ in 0..cuts {
            out.cuts.push(TileCut { stamp: input.take_u64()?, size: input.take_u64()? });
        }
        if input.0.is_empty() { Ok(out) } else { Err(BadIndex::Length) }
    }

    /// Returns the position of each entry in [`PublishedIndex::pieces`].
    pub fn entry_positions(&self) -> BTreeMap<PieceName, usize> {
        self.pieces.iter().enumerate().map(|(at, entry)| (entry.name, at)).collect()
    }

    /// Replaces the entry of the same name by each of `new`, or adds it.
    pub fn put_entries(&mut self, new: Vec<PublishedPiece>) {
        let mut places = self.entry_positions();
        for entry in new {
            let at = *places.entry(entry.name).or_insert(self.pieces.len());
            match self.pieces.get_mut(at) {
                Some(old) => *old = entry,
                None => self.pieces.push(entry),
            }
        }
    }

    /// Drops pieces that a truncation to 0 has emptied: all of their tiles are as old as the last
    /// such cut. Returns their names.
    pub fn drop_emptied(&mut self) -> Vec<PieceName> {
        let Some(cut) = self.cuts.iter().filter(|c| c.size == 0).map(|c| c.stamp).max() else {
            return self.drop_without_tiles();
        };
        for entry in &mut self.pieces {
            if entry.tiles.tiles().iter().all(|tile| tile.stamp <= cut) {
                entry.tiles = PieceTiles::new(entry.tiles.rank());
            }
        }
        self.drop_without_tiles()
    }

    fn drop_without_tiles(&mut self) -> Vec<PieceName> {
        let mut gone = Vec::new();
        self.pieces.retain(|entry| {
            let empty = entry.tiles.tiles().is_empty();
            if empty {
                gone.push(entry.name);
            }
            !empty
        });
        gone
    }

    /// Drops cuts without effect: no tile is as old as they are. The last one stays, because it
    /// states the size.
    pub fn drop_stale_cuts(&mut self, oldest_journal: Option<u64>) {
        self.cuts.sort_by_key(|cut| cut.stamp);
        let tiles = self.pieces.iter().flat_map(|entry| entry.tiles.tiles());
        let oldest = tiles.map(|tile| tile.stamp).chain(oldest_journal).min();
        let last = self.cuts.last().copied();
        self.cuts.retain(|cut| oldest.is_some_and(|oldest| oldest <= cut.stamp));
        if self.cuts.is_empty()
            && let Some(last) = last
        {
            self.cuts.push(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_index_or_none(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = PublishedIndex::decode(&bytes);
            let mut sealed = [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat();
            sealed.extend(crc32c::crc32c(&sealed).to_le_bytes());
            let _ = PublishedIndex::decode(&sealed);
        }
    }
}
