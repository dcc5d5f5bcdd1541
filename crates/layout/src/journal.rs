//! The journal of a piece, as its bytes: what a writer that died had told of its tiles.
//!
//! Who writes one, and reads it while it is written, has it mapped; here it is read as a whole,
//! from wherever it lies. docs/FORMAT.md draws it.

use crate::piece::PieceTiles;
use crate::tile::Tile;
use crate::view::View;

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIJ1");
/// Words of the header.
const HEADER: usize = 8;
const VIEW: u64 = 1;
const TILE: u64 = 2;
const TILE_WORDS: usize = 8;

/// What the journal tells, up to the first record that makes no sense; `None` for what is no
/// journal. What is allocated is bounded by the length of `bytes`.
pub fn decode(bytes: &[u8]) -> Option<PieceTiles> {
    let words: Vec<u64> =
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (header, mut rest) = words.split_at_checked(HEADER)?;
    if header[0] != MAGIC || header[HEADER - 1] != u64::from(sum(&header[..HEADER - 1])) {
        return None;
    }
    let mut told = Told::default();
    while let Some(len) = told.record(rest) {
        rest = &rest[len..];
    }
    let mut piece = PieceTiles::new(u32::try_from(header[2]).ok()?);
    let numbers: Vec<Option<u32>> = told.views.iter().map(|v| piece.add_view(v).ok()).collect();
    for tile in told.tiles {
        if let Some(Some(view)) = numbers.get(tile.view as usize) {
            // A tile that is out of range is one that nobody wrote.
            let _ = piece.push(Tile { view: *view, ..tile });
        }
    }
    Some(piece)
}

#[derive(Default)]
struct Told {
    views: Vec<View>,
    tiles: Vec<Tile>,
}

impl Told {
    /// Takes the record at the beginning of `words`. Returns its length, in words.
    fn record(&mut self, words: &[u64]) -> Option<usize> {
        let first = *words.first()?;
        let len = usize::try_from((first >> 8) & 0xff_ffff).ok()?;
        let body = words.get(1..len)?;
        let fixed = if first & 0xff == TILE { body.get(..TILE_WORDS - 2)? } else { body };
        if u64::from(sum(fixed)) != first >> 32 {
            return None;
        }
        match first & 0xff {
            VIEW => {
                let bytes: Vec<u8> = body.get(1..)?.iter().flat_map(|w| w.to_le_bytes()).collect();
                let mut encoded = bytes.get(..usize::try_from(body[0]).ok()?)?;
                self.views.push(View::decode(&mut encoded).ok()?);
            }
            TILE => {
                let &[names, stamp, start, block, stride, at, len] = body else { return None };
                let (slot, view) = ((names >> 32) as usize, names as u32);
                let tile = Tile { stamp, view, start, block, stride, len, at };
                let known = self.tiles.len();
                match self.tiles.get_mut(slot) {
                    Some(old) => *old = tile,
                    None if slot == known => self.tiles.push(tile),
                    None => return None,
                }
            }
            _ => return None,
        }
        Some(len)
    }
}

fn sum(words: &[u64]) -> u32 {
    words.iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
}

/// The bytes of a journal that tells of these tiles. For tests.
#[doc(hidden)]
pub fn encode(piece: &PieceTiles) -> Vec<u8> {
    let mut words = vec![MAGIC, 1, u64::from(piece.rank()), 0, 0, 0, 0];
    words.push(u64::from(sum(&words)));
    for view in piece.views() {
        let mut bytes = Vec::new();
        view.encode(&mut bytes);
        let mut body = vec![bytes.len() as u64];
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        body.extend(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
        words.push(VIEW | (body.len() as u64 + 1) << 8 | u64::from(sum(&body)) << 32);
        words.extend(body);
    }
    for (slot, tile) in piece.tiles().iter().enumerate() {
        let names = (slot as u64) << 32 | u64::from(tile.view);
        let fixed = [names, tile.stamp, tile.start, tile.block, tile.stride, tile.at];
        words.push(TILE | (TILE_WORDS as u64) << 8 | u64::from(sum(&fixed)) << 32);
        words.extend(fixed);
        words.push(tile.len);
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;
    use proptest::prelude::*;

    fn piece() -> PieceTiles {
        let block = Shape::resized(0, 32, &Shape::bytes(8).expect("shape")).expect("shape");
        let mut piece = PieceTiles::new(3);
        let strided = piece.add_view(&View::new(24, 1, block).expect("view")).expect("added");
        piece.append(7, strided, 0, 80, 0).expect("appended");
        let plain = piece.add_view(&View::bytes()).expect("added");
        piece.append(8, plain, 5, 10, 80).expect("appended");
        piece
    }

    #[test]
    fn a_journal_tells_what_was_written() {
        let mut bytes = encode(&piece());
        assert_eq!(decode(&bytes), Some(piece()));
        // Room that is not used yet.
        bytes.extend([0; 4096]);
        assert_eq!(decode(&bytes), Some(piece()));
        assert_eq!(decode(&[]), None);
    }

    proptest! {
        #[test]
        fn mutated_journals_decode_or_do_not(at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
            let mut bytes = encode(&piece());
            let n = bytes.len();
            bytes[at.index(n)] = to;
            bytes.truncate(cut.index(n + 1));
            let _ = decode(&bytes);
        }
    }
}
