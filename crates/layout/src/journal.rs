//! The journal of a piece, as its bytes: what a writer that died had told of its tiles.
//!
//! Its header and records, for those who write one or read it while it is written, and a reader of a
//! journal as a whole, from wherever it lies. docs/FORMAT.md draws it.

use crate::piece::PieceTiles;
use crate::reach::Reach;
use crate::tile::Tile;
use crate::view::View;

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIJ1");
const VIEW: u64 = 1;
const TILE: u64 = 2;
/// Words of the header.
pub const HEADER_WORDS: usize = 8;
/// Words of the record of a tile. The last one is the tile's length, the only word of a
/// journal that changes after it was written.
pub const TILE_WORDS: usize = 8;

/// The header of the journal of rank `rank` of open `open`.
pub fn header(open: u64, rank: u32) -> [u64; HEADER_WORDS] {
    let mut words = [MAGIC, open, u64::from(rank), 0, 0, 0, 0, 0];
    words[HEADER_WORDS - 1] = u64::from(sum(&words[..HEADER_WORDS - 1]));
    words
}

/// The record of the next view.
pub fn view_record(view: &View) -> Vec<u64> {
    let mut bytes = Vec::new();
    view.encode(&mut bytes);
    let mut record = vec![0, bytes.len() as u64];
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    record.extend(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
    record[0] = front(VIEW, record.len(), &record[1..]);
    record
}

/// The record of the tile with number `slot`, new or in the place of the one that had it.
pub fn tile_record(slot: usize, tile: &Tile) -> [u64; TILE_WORDS] {
    let names = (slot as u64) << 32 | u64::from(tile.view);
    let mut record = [0, names, tile.stamp, tile.start, tile.block, tile.stride, tile.at, tile.len];
    record[0] = front(TILE, TILE_WORDS, &record[1..TILE_WORDS - 1]);
    record
}

/// The length of a record in words, by its first word. Not to be believed before
/// [`Told::take`] has seen the record.
pub fn record_len(first: u64) -> usize {
    ((first >> 8) & 0xff_ffff) as usize
}

/// Kind, length in words, checksum of the fixed part.
fn front(kind: u64, words: usize, fixed: &[u64]) -> u64 {
    kind | (words as u64) << 8 | u64::from(sum(fixed)) << 32
}

fn sum(words: &[u64]) -> u32 {
    words.iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
}

/// What the records so far have told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    views: Vec<View>,
    tiles: Vec<Tile>,
    reach: Reach,
}

impl Told {
    /// Takes a whole record. `None` where it makes no sense, or is not there as a whole yet: the journal ends
    /// before it. Tells whether it was that of the last tile, the only one that still grows.
    ///
    /// Who reads while the journal is written may have looked at the length of the last tile before it
    /// grew for the last time, and see the tile after it. A piece has no gaps: a tile is at least as long
    /// as the place of the one after it says.
    pub fn take(&mut self, record: &[u64]) -> Option<bool> {
        let (&first, body) = record.split_first()?;
        match first & 0xff {
            VIEW if first == front(VIEW, record.len(), body) => {
                let bytes: Vec<u8> = body.get(1..)?.iter().flat_map(|w| w.to_le_bytes()).collect();
                let mut encoded = bytes.get(..usize::try_from(body[0]).ok()?)?;
                self.views.push(View::decode(&mut encoded).ok()?);
                Some(false)
            }
            TILE => {
                let &[ref fixed @ .., len] = <&[u64; TILE_WORDS - 1]>::try_from(body).ok()?;
                // Where a record is no single store, its last word may come last; no tile is empty.
                if first != front(TILE, TILE_WORDS, fixed) || len == 0 {
                    return None;
                }
                let [names, stamp, start, block, stride, at] = *fixed;
                let (slot, view) = ((names >> 32) as usize, names as u32);
                let tile = Tile { stamp, view, start, block, stride, len, at };
                let known = self.tiles.len();
                match self.tiles.get_mut(slot) {
                    Some(old) => *old = tile,
                    None if slot == known => {
                        if let Some(last) = self.tiles.last() {
                            self.grow_last(at.saturating_sub(last.at));
                        }
                        self.tiles.push(tile);
                    }
                    None => return None,
                }
                self.widen(slot);
                Some(slot + 1 == self.tiles.len())
            }
            _ => None,
        }
    }

    /// The last tile is `len` bytes long by now. One that was longer stays so.
    pub fn grow_last(&mut self, len: u64) {
        if let Some(tile) = self.tiles.last_mut()
            && tile.len < len
        {
            tile.len = len;
            self.widen(self.tiles.len() - 1);
        }
    }

    /// The tile of a number and its view, if it can be one.
    fn tile(&self, slot: usize) -> Option<(&View, &Tile)> {
        let tile = self.tiles.get(slot)?;
        let view = self.views.get(tile.view as usize)?;
        tile.check(Some(view)).is_ok().then_some((view, tile))
    }

    fn widen(&mut self, slot: usize) {
        if let Some((view, tile)) = self.tile(slot) {
            let hull = (view.offset_of(tile.start), view.offset_of(tile.end() - 1) + 1);
            let stamp = tile.stamp;
            self.reach.widen(slot, hull, stamp);
        }
    }

    /// Does a tile with a stamp of `since` or later have any of the bytes `from .. to` of the file? In
    /// O(log) of the number of tiles, as long as they are about in the order of the file.
    pub fn wrote(&self, from: u64, to: u64, since: u64) -> bool {
        self.reach.any((from, to), since, |slot| {
            let found = self.tile(slot).filter(|(_, tile)| tile.stamp >= since);
            found.is_some_and(|(view, tile)| tile.meets(view, from, to))
        })
    }

    /// All that was told, of the piece of rank `rank`. Tiles that cannot be are left out.
    pub fn piece(&self, rank: u32) -> PieceTiles {
        let mut piece = PieceTiles::new(rank);
        let numbers: Vec<Option<u32>> = self.views.iter().map(|v| piece.add_view(v).ok()).collect();
        for tile in &self.tiles {
            if let Some(Some(view)) = numbers.get(tile.view as usize) {
                // A tile that is out of range is one that nobody wrote.
                let _ = piece.push(Tile { view: *view, ..*tile });
            }
        }
        piece
    }
}

/// What a journal that is read as a whole tells, up to the first record that makes no sense; `None` for
/// what is no journal. What is allocated is bounded by the length of `bytes`.
pub fn decode(bytes: &[u8]) -> Option<PieceTiles> {
    let words: Vec<u64> =
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (found, mut rest) = words.split_at_checked(HEADER_WORDS)?;
    let rank = u32::try_from(found[2]).ok()?;
    if found != header(found[1], rank) {
        return None;
    }
    let mut told = Told::default();
    while let Some(record) = rest.first().and_then(|first| rest.get(..record_len(*first)))
        && told.take(record).is_some()
    {
        rest = &rest[record.len()..];
    }
    Some(told.piece(rank))
}

/// The bytes of a journal that tells of these tiles. For tests.
#[doc(hidden)]
pub fn encode(piece: &PieceTiles) -> Vec<u8> {
    let mut words = header(1, piece.rank()).to_vec();
    piece.views().iter().for_each(|view| words.extend(view_record(view)));
    for (slot, tile) in piece.tiles().iter().enumerate() {
        words.extend(tile_record(slot, tile));
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

    #[test]
    fn what_was_written_since_is_known_to_the_byte() {
        let mut told = Told::default();
        let piece = piece();
        for view in piece.views() {
            told.take(&view_record(view)).expect("a view");
        }
        for (slot, tile) in piece.tiles().iter().enumerate() {
            told.take(&tile_record(slot, tile)).expect("a tile");
        }
        // Ten blocks of 8 bytes from 24 on, 32 apart, with stamp 7; bytes 5 to 15 with stamp 8.
        for at in 0..400 {
            let block = at >= 24 && (at - 24) % 32 < 8 && (at - 24) / 32 < 10;
            let run = (5..15).contains(&at);
            assert_eq!(told.wrote(at, at + 1, 7), block || run, "byte {at}");
            assert_eq!(told.wrote(at, at + 1, 8), run, "byte {at}");
            assert!(!told.wrote(at, at + 1, 9));
        }
        assert!(!told.wrote(32, 56, 0));
        assert!(told.wrote(32, 57, 0));
        told.grow_last(20);
        assert!(told.wrote(20, 21, 8));
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
