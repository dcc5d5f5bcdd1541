//! A striped file: successive units of bytes go to the pieces in turn.
//!
//! It is a tiled file whose pieces have one tile each, of a strided view.

use crate::{PieceTiles, Shape, ShapeError, View, ViewError};

/// How a file is striped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Number of pieces, at least 1.
    count: u64,
    /// Bytes of one stripe, at least 1.
    unit: u64,
}

/// Why there are no such stripes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripesError {
    /// No piece, or no byte.
    #[error("stripes of {unit} bytes over {count} pieces")]
    Nothing {
        /// Pieces.
        count: u64,
        /// Bytes.
        unit: u64,
    },
    /// One round does not fit a file.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// One round does not fit a file.
    #[error(transparent)]
    View(#[from] ViewError),
}

impl Stripes {
    /// Stripes of `unit` bytes over `count` pieces.
    ///
    /// # Errors
    /// Those of [`StripesError`]: none of either, or a round that is longer than any file.
    pub fn new(count: u64, unit: u64) -> Result<Stripes, StripesError> {
        if count == 0 || unit == 0 {
            return Err(StripesError::Nothing { count, unit });
        }
        let stripes = Stripes { count, unit };
        stripes.piece_view(count - 1).map(|_| stripes)
    }

    /// The view through which piece `number`, from 0, sees the file.
    ///
    /// # Errors
    /// As for [`Stripes::new`].
    pub fn piece_view(&self, number: u64) -> Result<View, StripesError> {
        let round = self.unit.checked_mul(self.count).ok_or(ShapeError::Overflow)?;
        let extent = i64::try_from(round).map_err(|_| ShapeError::Overflow)?;
        let shape = Shape::resized(0, extent, &Shape::bytes(self.unit)?)?;
        Ok(View::new(number * self.unit, 1, shape)?)
    }

    /// Bytes that piece `number` has of a file of `size` bytes.
    pub fn piece_len(&self, number: u64, size: u64) -> u64 {
        let round = self.unit * self.count;
        let rest = (size % round).saturating_sub(number * self.unit).min(self.unit);
        size / round * self.unit + rest
    }

    /// Returns the piece that has byte `offset` of the file, the byte's place in it, and how many
    /// bytes of the same stripe lie there, itself included.
    pub fn locate_offset(&self, offset: u64) -> (u64, u64, u64) {
        let (stripe, within) = (offset / self.unit, offset % self.unit);
        let at = stripe / self.count * self.unit + within;
        (stripe % self.count, at, self.unit - within)
    }

    /// The tiles of piece `number` of a file of `size` bytes, written at `stamp`.
    ///
    /// # Errors
    /// As for [`Stripes::new`].
    pub fn piece_tiles(
        &self,
        number: u64,
        size: u64,
        stamp: u64,
    ) -> Result<PieceTiles, StripesError> {
        let mut tiles = PieceTiles::new(u32::try_from(number).unwrap_or(u32::MAX));
        let view = tiles.add_view(&self.piece_view(number)?).map_err(|_| ShapeError::Overflow)?;
        let len = self.piece_len(number, size);
        if len > 0 {
            tiles.append(stamp, view, 0, len, 0).map_err(|_| ShapeError::Overflow)?;
        }
        Ok(tiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Piece, TileIndex};
    use proptest::prelude::*;

    #[test]
    fn nothing_and_too_much_are_refused() {
        assert!(Stripes::new(0, 1).is_err());
        assert!(Stripes::new(1, 0).is_err());
        assert!(Stripes::new(u64::MAX, 2).is_err());
        assert!(Stripes::new(4, 1 << 62).is_err());
    }

    proptest! {
        /// Places, lengths and tiles agree on every byte.
        #[test]
        fn every_byte_is_where_its_tile_says(
            count in 1u64..6, unit in 1u64..9, size in 1u64..200, probe in 0u64..200,
        ) {
            let stripes = Stripes::new(count, unit).expect("stripes");
            let pieces = (0..count).map(|k| {
                (Piece::of_bytes(k as u32 + 1), stripes.piece_tiles(k, size, 5).expect("tiles"))
            });
            let index = TileIndex::with_base(pieces.collect(), Vec::new(), 0, u64::MAX);
            prop_assert_eq!(index.size(), size);
            prop_assert_eq!((0..count).map(|k| stripes.piece_len(k, size)).sum::<u64>(), size);
            if probe < size {
                let (number, at, run) = stripes.locate_offset(probe);
                let found = index.lookup(probe, 1);
                prop_assert_eq!(found.len(), 1);
                prop_assert_eq!(found[0].piece, Some(Piece::of_bytes(number as u32 + 1)));
                prop_assert_eq!(found[0].at, at);
                prop_assert!(at < stripes.piece_len(number, size));
                prop_assert!(stripes.locate_offset(probe + run - 1).0 == number);
                prop_assert!(count == 1 || stripes.locate_offset(probe + run).0 != number);
            }
        }
    }
}
