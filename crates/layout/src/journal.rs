//! The journal of a piece, as its bytes: the tiles that a writer recorded, readable after its
//! death.
//!
//! This module has the header and the records, for writers and for concurrent readers. It also has
//! a reader of a whole journal, from any source. docs/reference/formats.md draws the format.

mod last_word;

pub use last_word::{LastWord, RecoveredTiles, read_last_word, recover_records};

use crate::hulls::TileHulls;
use crate::piece::PieceTiles;
use crate::tile::{MAX_VIEWS, Tile};
use crate::view::View;

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIJ1");
const VIEW: u64 = 1;
const TILE: u64 = 2;
/// Words of the header.
pub const HEADER_WORDS: usize = 8;
/// Words of the record of a tile. The last one is the tile's length, the only word of a journal
/// that changes after it was written.
pub const TILE_WORDS: usize = 8;
/// Records of a view are at most this long, in words.
const VIEW_WORDS_MAX: usize = 1 << 24;
/// Bits of the last word of a tile that hold the length; the others hold its check.
const LENGTH_BITS: u32 = 48;
/// The longest tile that a journal can record, in bytes.
pub const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;
/// Most bytes of a journal of a volume's file: a writer that comes near takes another piece.
pub const BYTES_MAX: usize = 64 << 20;
/// A search for whole records computes checksums over at most this many words for each word of the
/// journal. The limit keeps a forged journal from occupying its reader for hours.
const SEARCH_EFFORT: usize = 16;

/// A journal, or a part of one, differs from the bytes of its writer. A torn end, which a killed
/// writer or a power cut leaves, is no damage. Damage means that whole records follow, or that the
/// last record is complete and does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged at byte {at}: {what}")]
pub struct Damage {
    /// Where in the journal, in bytes.
    pub at: u64,
    /// The fault.
    pub what: &'static str,
}

/// The header of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// The number of the open in which the journal was written.
    pub open: u64,
    /// The rank that wrote it.
    pub rank: u32,
    /// The checksum of the header. All other checksums begin with it, so a record counts in its own
    /// journal only.
    seed: u32,
}

impl JournalHeader {
    /// The header of a new journal of rank `rank` of open `open`.
    pub fn new(open: u64, rank: u32) -> JournalHeader {
        let mut header = JournalHeader { open, rank, seed: 0 };
        header.seed = checksum_words(0, &header.words()[..HEADER_WORDS - 1]);
        header
    }

    /// Encodes the header.
    pub fn words(self) -> [u64; HEADER_WORDS] {
        let mut words = [MAGIC, self.open, u64::from(self.rank), 0, 0, 0, 0, 0];
        words[HEADER_WORDS - 1] = u64::from(checksum_words(0, &words[..HEADER_WORDS - 1]));
        words
    }

    /// Decodes a header; `None` where it is not complete yet.
    ///
    /// # Errors
    /// [`Damage`], for other words.
    pub fn read(words: &[u64; HEADER_WORDS]) -> Result<Option<JournalHeader>, Damage> {
        // Writers store the first word last, or write from the first byte on.
        if words[0] == 0 || words[HEADER_WORDS - 1] == 0 {
            return Ok(None);
        }
        if words[0] != MAGIC {
            return Err(Damage { at: 0, what: "it does not begin as a journal does" });
        }
        let header = JournalHeader::new(words[1], words[2] as u32);
        match header.words() == *words {
            true => Ok(Some(header)),
            false => Err(Damage { at: 0, what: "the header does not fit its checksum" }),
        }
    }

    /// Finds the header that these words were before one of their bits flipped.
    fn repair_bit_flip(words: &[u64; HEADER_WORDS]) -> Option<JournalHeader> {
        (0..HEADER_WORDS * 64).find_map(|bit| {
            let mut words = *words;
            words[bit / 64] ^= 1 << (bit % 64);
            JournalHeader::read(&words).ok().flatten()
        })
    }

    /// The record at byte `at` of view number `number`.
    pub fn view_record(self, at: u64, number: usize, view: &View) -> Vec<u64> {
        let mut bytes = Vec::new();
        view.encode(&mut bytes);
        let len = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let encoded = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut record = vec![0, (number as u64) << 32 | len];
        record.extend(encoded);
        // No record ends with a word of zeros, so that a torn record differs from a damaged one.
        record.push(!len);
        // `JournalHeader::check_end` takes another length for damage.
        assert_eq!(
            record.len() as u64,
            len.div_ceil(8) + 3,
            "the record of a view has another length than it states"
        );
        assert!(number < MAX_VIEWS, "the number of a view exceeds its bound");
        record[0] = self.first_word(at, VIEW, record.len(), &record[1..]);
        record
    }

    /// The record at byte `at` of the tile with number `slot`, which is new or replaces the earlier
    /// one.
    pub fn tile_record(self, at: u64, slot: usize, tile: &Tile) -> [u64; TILE_WORDS] {
        // A reader takes a tile without bytes for one that is not complete yet.
        assert!(tile.len > 0, "a recorded tile has no bytes");
        let names = (slot as u64) << 32 | u64::from(tile.view);
        let len = self.length_word(at, tile.len);
        let mut record = [0, names, tile.stamp, tile.start, tile.block, tile.stride, tile.at, len];
        record[0] = self.first_word(at, TILE, TILE_WORDS, &record[1..TILE_WORDS - 1]);
        record
    }

    /// The last word of the record at byte `at` of a tile of `len` bytes, at most [`LENGTH_MAX`].
    /// Each write that makes the tile longer stores it by itself, so it has its own check.
    pub fn length_word(self, at: u64, len: u64) -> u64 {
        assert!(len <= LENGTH_MAX, "the length of a tile exceeds its word");
        len | self.length_check(at, len) << LENGTH_BITS
    }

    fn length_check(self, at: u64, len: u64) -> u64 {
        let sum = checksum_words(self.seed, &[at, len]);
        u64::from((sum ^ sum >> 16) as u16)
    }

    /// The length of the tile whose record at byte `at` ends with this word. `None` where it does
    /// not fit its check.
    fn decode_length(self, at: u64, word: u64) -> Option<u64> {
        let len = word & LENGTH_MAX;
        (self.length_word(at, len) == word).then_some(len)
    }

    /// The first word of a record: kind, length in words, checksum of the fixed part.
    fn first_word(self, at: u64, kind: u64, words: usize, fixed: &[u64]) -> u64 {
        let sum = checksum_words(checksum_words(self.seed, &[at]), fixed);
        kind | (words as u64) << 8 | u64::from(sum) << 32
    }

    /// Checks the record at byte `at` against its checksum, except for the length of a tile.
    fn matches_checksum(self, at: u64, record: &[u64]) -> bool {
        let Some((&first, body)) = record.split_first() else { return false };
        match first & 0xff {
            VIEW => first == self.first_word(at, VIEW, record.len(), body),
            TILE if record.len() == TILE_WORDS => {
                first == self.first_word(at, TILE, TILE_WORDS, &body[..TILE_WORDS - 2])
            }
            _ => false,
        }
    }

    /// Finds the next whole record; returns its position in words. `words` begin at byte `at`.
    fn find_intact_record(self, at: u64, words: &[u64], from: usize) -> Option<usize> {
        let mut effort = words.len().saturating_mul(SEARCH_EFFORT);
        (from..words.len()).find(|&place| {
            let len = record_len(words[place]);
            let record = words.get(place..place + len).filter(|_| can_begin_record(words[place]));
            let Some(left) = record.and_then(|record| effort.checked_sub(record.len())) else {
                return false;
            };
            effort = left;
            record.is_some_and(|record| self.matches_checksum(at + place as u64 * 8, record))
        })
    }

    /// Checks that the journal ends at byte `at`, where no whole record is. `words` are all that
    /// follow.
    ///
    /// A killed writer leaves a record without its first word. A writer on a full disk, or on a
    /// machine that lost its power, leaves a record that ends with zeros. No whole record can
    /// follow either.
    ///
    /// # Errors
    /// [`Damage`]: it is no end.
    pub fn check_end(self, at: u64, words: &[u64]) -> Result<(), Damage> {
        let damaged = |what| Err(Damage { at, what });
        if self.find_intact_record(at, words, 1).is_some() {
            return damaged("a record there does not read, and whole ones follow it");
        }
        let Some(&first) = words.first().filter(|first| **first != 0) else { return Ok(()) };
        if !can_begin_record(first) {
            return damaged("no record begins in this way");
        }
        let len = record_len(first);
        let word = |place: usize| words.get(place).copied().unwrap_or(0);
        let whole = word(len - 1) != 0;
        if first & 0xff == VIEW && word(1) != 0 {
            let bytes = view_len(word(1));
            if bytes.is_none_or(|bytes| bytes.div_ceil(8) + 3 != len) {
                return damaged("the record of a view does not have the length that it tells");
            }
        }
        if whole {
            return damaged("a record does not fit its checksum");
        }
        Ok(())
    }
}

/// Returns the length of an encoded view in bytes, from the second word of its record.
fn view_len(word: u64) -> Option<usize> {
    usize::try_from(word & 0xffff_ffff).ok().filter(|len| *len <= VIEW_WORDS_MAX * 8)
}

/// Reports whether a record can begin with this word.
fn can_begin_record(first: u64) -> bool {
    let len = record_len(first);
    match first & 0xff {
        VIEW => (3..=VIEW_WORDS_MAX).contains(&len),
        TILE => len == TILE_WORDS,
        _ => false,
    }
}

/// The length of a record in words, by its first word; 0 for other words. The caller must not rely
/// on it before [`JournalReplay::apply_record`] has checked the record.
pub fn record_len(first: u64) -> usize {
    ((first >> 8) & 0xff_ffff) as usize
}

fn checksum_words(seed: u32, words: &[u64]) -> u32 {
    words.iter().fold(seed, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
}

/// Stands for a tile whose record is lost.
const LOST: Tile = Tile { stamp: 0, view: u32::MAX, start: 0, block: 1, stride: 1, len: 0, at: 0 };
/// The length of a tile whose length word is damaged: all bytes up to the next tile.
const UNKNOWN: u64 = u64::MAX;

/// The tiles of the records that were applied so far.
#[derive(Clone, Debug)]
pub struct JournalReplay {
    header: JournalHeader,
    views: Vec<Option<View>>,
    tiles: Vec<Tile>,
    reach: TileHulls,
    /// Damaged words that were skipped.
    skipped_words: u64,
}

impl JournalReplay {
    /// The state before the first record of a journal with this header.
    pub fn new(header: JournalHeader) -> JournalReplay {
        let (views, tiles, reach) = (Vec::new(), Vec::new(), TileHulls::default());
        JournalReplay { header, views, tiles, reach, skipped_words: 0 }
    }

    /// Applies the whole record at byte `at`. Returns whether it was the record of the last tile,
    /// the only tile that still grows. `None` where the record is invalid or not complete yet: then
    /// [`JournalHeader::check_end`] decides whether the journal ends before it.
    ///
    /// A concurrent reader may load the length of the last tile before its last growth, and then
    /// see the tile after it. A piece has no gaps: a tile is at least as long as the place of the
    /// next one requires.
    pub fn apply_record(&mut self, at: u64, record: &[u64]) -> Option<bool> {
        let (&first, body) = record.split_first()?;
        if !self.header.matches_checksum(at, record) {
            return None;
        }
        match first & 0xff {
            VIEW => {
                let bytes: Vec<u8> = body.get(1..)?.iter().flat_map(|w| w.to_le_bytes()).collect();
                let mut encoded = bytes.get(..view_len(body[0])?)?;
                let number = (body[0] >> 32) as usize;
                // Lost views have no more numbers than damaged words, so a forged number cannot
                // claim much memory.
                let missing = number.checked_sub(self.views.len())?;
                let view = View::decode(&mut encoded).ok()?;
                if missing as u64 > self.skipped_words {
                    return None;
                }
                self.views.resize(number, None);
                self.views.push(Some(view));
                Some(false)
            }
            _ => self.apply_tile(at, body),
        }
    }

    fn apply_tile(&mut self, record: u64, body: &[u64]) -> Option<bool> {
        let &[names, stamp, start, block, stride, at, word] =
            <&[u64; TILE_WORDS - 1]>::try_from(body).ok()?;
        let len = match self.header.decode_length(record, word) {
            // Where a record is no single store, its last word may arrive last; no tile is empty.
            None | Some(0) if self.skipped_words == 0 || word == 0 => return None,
            None => UNKNOWN,
            Some(len) => len,
        };
        let (slot, view) = ((names >> 32) as usize, names as u32);
        let tile = Tile { stamp, view, start, block, stride, len, at };
        let known = self.tiles.len();
        match self.tiles.get_mut(slot) {
            Some(old) => *old = tile,
            None if slot == known && self.skipped_words == 0 => {
                if let Some(last) = self.tiles.last() {
                    self.extend_last_tile(at.saturating_sub(last.at));
                }
                self.tiles.push(tile);
            }
            // The bytes in between may belong to lost tiles.
            None if (slot - known) as u64 <= self.skipped_words => {
                self.tiles.resize(slot, LOST);
                self.tiles.push(tile);
            }
            None => return None,
        }
        self.widen_hulls(slot);
        Some(slot + 1 == self.tiles.len())
    }

    /// Updates the length of the last tile, whose record at byte `at` now ends with this word. A
    /// tile never becomes shorter.
    ///
    /// # Errors
    /// [`Damage`], where the word does not fit its check.
    pub fn update_last_length(&mut self, at: u64, word: u64) -> Result<(), Damage> {
        let what = "the length of the last tile does not fit its check";
        let place = at + (TILE_WORDS as u64 - 1) * 8;
        let len = self.header.decode_length(at, word).ok_or(Damage { at: place, what })?;
        self.extend_last_tile(len);
        Ok(())
    }

    fn extend_last_tile(&mut self, len: u64) {
        if let Some(tile) = self.tiles.last_mut()
            && tile.len < len
        {
            tile.len = len;
            self.widen_hulls(self.tiles.len() - 1);
        }
    }

    /// Records that `words` damaged words are skipped. From here on no tile is made longer than its
    /// own record states: the bytes before the next one may belong to a lost tile.
    fn skip_words(&mut self, words: usize) {
        self.skipped_words += words as u64;
    }

    /// The tile of a number and its view, if it is valid.
    fn valid_tile(&self, slot: usize) -> Option<(&View, &Tile)> {
        let tile = self.tiles.get(slot)?;
        let view = self.views.get(tile.view as usize)?.as_ref()?;
        tile.validate_tile(Some(view)).is_ok().then_some((view, tile))
    }

    fn widen_hulls(&mut self, slot: usize) {
        if let Some((view, tile)) = self.valid_tile(slot) {
            let hull = (view.offset_of(tile.start), view.offset_of(tile.end() - 1) + 1);
            let stamp = tile.stamp;
            self.reach.add_tile(slot, hull, stamp);
        }
    }

    /// Reports whether a tile with a stamp of `since` or later has any of the bytes `from .. to` of
    /// the file. Takes O(log) of the number of tiles, as long as the tiles are roughly in the order
    /// of the file.
    pub fn has_written(&self, from: u64, to: u64, since: u64) -> bool {
        self.reach.any_tile((from, to), since, |slot| {
            let found = self.valid_tile(slot).filter(|(_, tile)| tile.stamp >= since);
            found.is_some_and(|(view, tile)| tile.overlaps_file_range(view, from, to))
        })
    }

    /// Returns all tiles, as the piece of rank `rank`. Invalid tiles are left out.
    pub fn to_piece_tiles(&self, rank: u32) -> PieceTiles {
        let mut piece = PieceTiles::new(rank);
        let add = |view: &Option<View>| piece.add_view(view.as_ref()?).ok();
        let numbers: Vec<Option<u32>> = self.views.iter().map(add).collect();
        for tile in &self.tiles {
            if let Some(Some(view)) = numbers.get(tile.view as usize) {
                // A tile that is out of range was never written.
                let _ = piece.push(Tile { view: *view, ..*tile });
            }
        }
        piece
    }

    /// Ends tiles of unknown length at the next tile, or at the end of the piece, which is `len`
    /// bytes long.
    fn bound_lengths(&mut self, len: u64) {
        // Where tiles begin in the piece, and where it ends, in order.
        let mut ends: Vec<u64> = self.tiles.iter().map(|tile| tile.at).collect();
        ends.push(len);
        ends.sort_unstable();
        for tile in self.tiles.iter_mut().filter(|tile| tile.len == UNKNOWN) {
            let next = ends.partition_point(|end| *end <= tile.at);
            tile.len = ends.get(next).map_or(0, |end| (*end).min(len).saturating_sub(tile.at));
        }
    }
}

/// Decodes a whole journal; `None` for one that was never begun. The length of `bytes` bounds the
/// allocated memory.
///
/// # Errors
/// [`Damage`]: it differs from the bytes of its writer. [`recover_records`] returns the whole
/// records.
pub fn decode(bytes: &[u8]) -> Result<Option<PieceTiles>, Damage> {
    if bytes.len() > BYTES_MAX {
        return Err(Damage { at: BYTES_MAX as u64, what: "it is longer than journals are" });
    }
    let words = to_words(bytes);
    let Some((found, rest)) = words.split_first_chunk() else { return Ok(None) };
    let at = HEADER_WORDS as u64 * 8;
    let Some(header) = JournalHeader::read(found)? else {
        // A journal without its first page is damaged, too.
        return match rest.iter().any(|word| *word != 0) {
            true => Err(Damage { at: 0, what: "the header is missing" }),
            false => Ok(None),
        };
    };
    let mut replay = JournalReplay::new(header);
    let (at, rest) = apply_records(&mut replay, at, rest);
    header.check_end(at, rest)?;
    Ok(Some(replay.to_piece_tiles(header.rank)))
}

fn to_words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Applies records from byte `at` on, where `words` begin, up to the first unreadable one. Returns
/// the rest and its position.
fn apply_records<'a>(
    replay: &mut JournalReplay,
    mut at: u64,
    mut words: &'a [u64],
) -> (u64, &'a [u64]) {
    while let Some(record) = words.first().and_then(|first| words.get(..record_len(*first)))
        && replay.apply_record(at, record).is_some()
    {
        assert!(!record.is_empty(), "a record brings the reader no further");
        at += record.len() as u64 * 8;
        words = &words[record.len()..];
    }
    (at, words)
}

/// Encodes a journal with these tiles. For tests.
#[doc(hidden)]
pub fn encode(piece: &PieceTiles) -> Vec<u8> {
    encode_with_header(JournalHeader::new(1, piece.rank()), piece)
}

/// The same with another header. For tests.
#[doc(hidden)]
pub fn encode_with_header(header: JournalHeader, piece: &PieceTiles) -> Vec<u8> {
    let mut words = header.words().to_vec();
    for (number, view) in piece.views().iter().enumerate() {
        words.extend(header.view_record(words.len() as u64 * 8, number, view));
    }
    for (slot, tile) in piece.tiles().iter().enumerate() {
        words.extend(header.tile_record(words.len() as u64 * 8, slot, tile));
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
        let plain = piece.add_view(&View::all_bytes()).expect("added");
        piece.append(8, plain, 5, 10, 80).expect("appended");
        piece
    }

    /// Three tiles of two views, with room that is not used yet.
    fn journal(header: JournalHeader) -> (PieceTiles, Vec<u8>) {
        let mut piece = piece();
        piece.append(9, 0, 200, 300, 90).expect("appended");
        let mut bytes = encode_with_header(header, &piece);
        bytes.extend([0; 256]);
        (piece, bytes)
    }

    const LEN: u64 = 390;

    #[test]
    fn a_journal_tells_what_was_written() {
        let mut bytes = encode_with_header(JournalHeader::new(1, 3), &piece());
        assert_eq!(bytes[..8], *b"TATAMIJ1");
        assert_eq!(decode(&bytes), Ok(Some(piece())));
        // Room that is not used yet.
        bytes.extend([0; 4096]);
        assert_eq!(decode(&bytes), Ok(Some(piece())));
        let recovered = recover_records(&bytes, None, 90);
        let right = RecoveredTiles { tiles: piece(), lost: Vec::new(), is_torn: false };
        assert_eq!(recovered, right);
        assert_eq!(decode(&[]), Ok(None));
        assert_eq!(decode(&[0; 4096]), Ok(None));
    }

    #[test]
    fn a_flipped_bit_of_a_journal_is_told() {
        let (piece, good) = journal(JournalHeader::new(1, 3));
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            match decode(&bytes) {
                Ok(replay) => assert_eq!(replay.as_ref(), Some(&piece), "bit {bit}"),
                Err(damage) => assert!(damage.at <= bit as u64 / 8, "bit {bit}: {damage}"),
            }
        }
    }

    #[test]
    fn a_flipped_bit_costs_one_record_at_most() {
        let header = JournalHeader::new(1, 3);
        let (piece, good) = journal(header);
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let RecoveredTiles { tiles, lost, is_torn } = recover_records(&bytes, None, LEN);
            assert!(!is_torn, "bit {bit}: no power cut flips one bit");
            assert_eq!(lost.is_empty(), decode(&bytes).is_ok(), "bit {bit}");
            assert!(lost.len() <= 1, "bit {bit}: {lost:?}");
            // All recovered tiles are true: no byte is at another place than where it was written.
            let known = |tile: &Tile| {
                let view = &tiles.views()[tile.view as usize];
                let is_it = |old: &&Tile| {
                    let same = Tile { view: tile.view, ..**old };
                    piece.views()[old.view as usize] == *view && same == *tile
                };
                piece.tiles().iter().find(is_it).is_some()
            };
            assert!(tiles.tiles().iter().all(known), "bit {bit}: {tiles:?}");
            // A view that is lost may have two tiles.
            let (left, at) = (tiles.tiles().len(), bit / 64 * 8);
            let views = encode(&self::piece()).len() - 2 * TILE_WORDS * 8;
            assert!(left >= if at < views { 1 } else { 2 }, "bit {bit}: {tiles:?}");
            if at < HEADER_WORDS * 8 {
                assert_eq!(tiles, piece, "bit {bit} of the header is found");
            }
        }
    }

    #[test]
    fn a_torn_end_is_no_damage() {
        let (piece, good) = journal(JournalHeader::new(1, 3));
        let end = good.len() - 256;
        let end_of = |tiles: &PieceTiles| tiles.tiles().len();
        for cut in (0..end).step_by(8) {
            // The rest of the last record after a full disk or a power cut: sectors, so whole
            // words.
            let mut bytes = good[..cut].to_vec();
            bytes.resize(good.len(), 0);
            let replay = decode(&bytes).unwrap_or_else(|damage| panic!("{cut}: {damage}"));
            let tiles = replay.as_ref().map_or(0, end_of);
            assert!(tiles <= end_of(&piece));
            let found = replay.map_or(Vec::new(), |replay| replay.tiles().to_vec());
            let whole = found.iter().zip(piece.tiles()).filter(|(a, b)| a != b).count();
            // A cut within the length of a tile leaves a part of it.
            assert!(whole <= 1, "{cut}");
        }
        // The rest after a kill: the first word is stored last.
        let mut bytes = good.clone();
        bytes[end - TILE_WORDS * 8..][..8].fill(0);
        let replay = decode(&bytes).expect("torn").expect("a journal");
        assert_eq!(end_of(&replay), end_of(&piece) - 1);
    }

    #[test]
    fn records_count_in_their_journal_and_place_only() {
        let (_, mut bytes) = journal(JournalHeader::new(1, 3));
        let (_, other) = journal(JournalHeader::new(2, 3));
        let tail = bytes.len() - 256 - TILE_WORDS * 8;
        bytes[tail..].copy_from_slice(&other[tail..]);
        assert!(decode(&bytes).is_err(), "a record of another journal");
        let (_, mut bytes) = journal(JournalHeader::new(1, 3));
        bytes.copy_within(tail - TILE_WORDS * 8..tail, tail);
        assert!(decode(&bytes).is_err(), "a record of another place");
    }

    #[test]
    fn a_journal_without_its_first_page_is_damaged() {
        let (_, mut bytes) = journal(JournalHeader::new(1, 3));
        bytes[..HEADER_WORDS * 8].fill(0);
        assert!(decode(&bytes).is_err());
        let recovered = recover_records(&bytes, None, LEN);
        assert_eq!((recovered.tiles.tiles().len(), recovered.lost.len()), (0, 1));
    }

    /// The check is linear in the length, so one length is enough for the proof.
    #[test]
    fn one_or_two_flipped_bits_of_a_length_are_noticed() {
        let header = JournalHeader::new(1, 3);
        for len in [1, 4096, LENGTH_MAX] {
            let word = header.length_word(64, len);
            assert_eq!(header.decode_length(64, word), Some(len));
            for one in 0..64 {
                assert_eq!(header.decode_length(64, word ^ 1 << one), None, "bit {one}");
                for other in 0..one {
                    let flipped = word ^ 1 << one ^ 1 << other;
                    assert_eq!(header.decode_length(64, flipped), None, "bits {one} and {other}");
                }
            }
        }
    }

    #[test]
    fn what_was_written_since_is_known_to_the_byte() {
        let header = JournalHeader::new(1, 3);
        let mut replay = JournalReplay::new(header);
        let piece = piece();
        let mut at = 64;
        for (number, view) in piece.views().iter().enumerate() {
            let record = header.view_record(at, number, view);
            replay.apply_record(at, &record).expect("a view");
            at += record.len() as u64 * 8;
        }
        for (slot, tile) in piece.tiles().iter().enumerate() {
            replay.apply_record(at, &header.tile_record(at, slot, tile)).expect("a tile");
            at += TILE_WORDS as u64 * 8;
        }
        // Ten blocks of 8 bytes from 24 on, 32 apart, with stamp 7; bytes 5 to 15 with stamp 8.
        for at in 0..400 {
            let block = at >= 24 && (at - 24) % 32 < 8 && (at - 24) / 32 < 10;
            let run = (5..15).contains(&at);
            assert_eq!(replay.has_written(at, at + 1, 7), block || run, "byte {at}");
            assert_eq!(replay.has_written(at, at + 1, 8), run, "byte {at}");
            assert!(!replay.has_written(at, at + 1, 9));
        }
        assert!(!replay.has_written(32, 56, 0));
        assert!(replay.has_written(32, 57, 0));
        let last = at - TILE_WORDS as u64 * 8;
        replay.update_last_length(last, header.length_word(last, 20)).expect("longer");
        assert!(replay.has_written(20, 21, 8));
        assert!(replay.update_last_length(last, 21).is_err(), "a length without its check");
    }

    proptest! {
        #[test]
        fn mutated_journals_are_read_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
            cut: prop::sample::Index,
        ) {
            let (_, mut bytes) = journal(JournalHeader::new(1, 3));
            let n = bytes.len();
            for (at, to) in changes {
                bytes[at.index(n)] = to;
            }
            bytes.truncate(cut.index(n + 1));
            let _ = decode(&bytes);
            let _ = read_last_word(&bytes, LEN, true);
            recover_records(&bytes, None, LEN);
        }

        #[test]
        fn any_words_behind_a_header_are_read_or_refused(
            kinds in prop::collection::vec((0u64..3, 0u64..20, any::<u64>(), 0u64..4), 0..40),
        ) {
            // Records with a right checksum and random contents.
            let header = JournalHeader::new(1, 3);
            let mut words = header.words().to_vec();
            for (kind, len, word, small) in kinds {
                let at = words.len() as u64 * 8;
                let mut record = vec![word >> (16 * small); len as usize + 2];
                record[1] = small << 32 | word & 0xff;
                let fixed = if kind == TILE { (TILE_WORDS - 1).min(record.len()) } else { record.len() };
                record[0] = header.first_word(at, kind, record.len(), &record[1..fixed]);
                words.extend(record);
            }
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let _ = decode(&bytes);
            recover_records(&bytes, None, LEN);
        }
    }
}
