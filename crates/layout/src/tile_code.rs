//! The encoding of a tile: the difference from the tile before it.

use crate::code::{
    DecodeError, decode_byte, decode_number, decode_signed, encode_number, encode_signed,
};
use crate::tile::Tile;

/// The first tile is encoded as a difference from this one.
pub(crate) const BEFORE_FIRST: Tile =
    Tile { stamp: 0, view: 0, start: 0, block: 1, stride: 1, len: 0, at: 0 };

/// The tile has the stamp of the one before it.
const SAME_STAMP: u8 = 1;
/// The tile has the view of the one before it.
const SAME_VIEW: u8 = 2;
/// Block and stride are 1.
const CONTIGUOUS: u8 = 4;
/// The tile has block, stride and length of the one before it.
const SAME_FORM: u8 = 8;
/// The tile follows the one before it in the piece.
const FOLLOWS: u8 = 16;

/// Appends a tile, as a difference from the one before it.
pub(crate) fn encode_tile(out: &mut Vec<u8>, tile: &Tile, last: &Tile) {
    let form = |t: &Tile| (t.block, t.stride, t.len);
    let mut flags = 0;
    for (flag, set) in [
        (SAME_STAMP, tile.stamp == last.stamp),
        (SAME_VIEW, tile.view == last.view),
        (CONTIGUOUS, tile.block == 1 && tile.stride == 1),
        (SAME_FORM, form(tile) == form(last)),
        (FOLLOWS, tile.at == last.at + last.len),
    ] {
        if set {
            flags |= flag;
        }
    }
    out.push(flags);
    if flags & SAME_STAMP == 0 {
        encode_signed(out, tile.stamp.wrapping_sub(last.stamp) as i64);
    }
    if flags & SAME_VIEW == 0 {
        encode_number(out, u64::from(tile.view));
    }
    encode_signed(out, tile.start.wrapping_sub(last.start) as i64);
    if flags & SAME_FORM == 0 {
        if flags & CONTIGUOUS == 0 {
            encode_number(out, tile.block);
            encode_number(out, tile.stride);
        }
        encode_number(out, tile.len);
    }
    if flags & FOLLOWS == 0 {
        encode_number(out, tile.at);
    }
}

/// Decodes a tile that [`encode_tile`] made.
pub(crate) fn decode_tile(from: &mut &[u8], last: &Tile) -> Result<Tile, DecodeError> {
    let flags = decode_byte(from)?;
    let has = |flag: u8| flags & flag != 0;
    let mut tile = *last;
    if !has(SAME_STAMP) {
        tile.stamp = last.stamp.wrapping_add(decode_signed(from)? as u64);
    }
    if !has(SAME_VIEW) {
        tile.view =
            u32::try_from(decode_number(from)?).map_err(|_| DecodeError::Invalid("a view"))?;
    }
    tile.start = last.start.wrapping_add(decode_signed(from)? as u64);
    if !has(SAME_FORM) {
        (tile.block, tile.stride) = match has(CONTIGUOUS) {
            true => (1, 1),
            false => (decode_number(from)?, decode_number(from)?),
        };
        tile.len = decode_number(from)?;
    }
    tile.at = match has(FOLLOWS) {
        true => last.at.wrapping_add(last.len),
        false => decode_number(from)?,
    };
    Ok(tile)
}
