//! Reads the journal of a dead writer: all records, the rest after a power cut, or the whole
//! records of a damaged journal.
//!
//! A power cut leaves holes where bytes were not synced. The form of a hole, and a restart of the
//! machine after the last write, distinguish it from damage. docs/reference/formats.md explains why
//! this needs no mark of the synced length.

use super::{
    Damage, HEADER_WORDS, JournalHeader, JournalReplay, TILE_WORDS, apply_records, decode, to_words,
};
use crate::piece::PieceTiles;
use crate::tile::Tile;

/// Words of a sector, the smallest unit that a disk writes as a whole. After a power cut each
/// sector has its contents of some earlier moment.
const SECTOR_WORDS: usize = 64;

/// The readable rest of a damaged journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredTiles {
    /// The tiles whose records are whole.
    pub tiles: PieceTiles,
    /// Where records are lost; empty for a whole journal.
    pub lost: Vec<Damage>,
    /// Every loss has the form that a power cut leaves: sectors that were not synced, and are zero
    /// from some word to their end. False where other bytes have changed, too, as on a disk that
    /// returns bytes that were never written.
    pub is_torn: bool,
}

/// The final state of a journal after the death of its writer, for the recovery of its piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastWord {
    /// All written records; `None` for a journal that was never begun.
    Whole(Option<PieceTiles>),
    /// A power cut has removed a part that was not synced. No sync had promised that part.
    Torn(RecoveredTiles),
    /// The journal differs from the bytes of its writer.
    Damaged(Damage),
}

/// Reads the journal `bytes` of a piece of `len` bytes after the death of its writer.
/// `is_restarted`: the machine with the journal was restarted after the last change of the journal.
/// Only then can a power cut have left holes.
///
/// A sync ends when the tiles are published and the publication is on the disk. So a synced tile is
/// never in a journal alone, and a hole breaks no promise of a sync.
pub fn read_last_word(bytes: &[u8], len: u64, is_restarted: bool) -> LastWord {
    match decode(bytes) {
        Ok(tiles) => LastWord::Whole(tiles),
        Err(damage) if is_restarted => match recover_records(bytes, None, len) {
            recovered if recovered.is_torn => LastWord::Torn(recovered),
            _ => LastWord::Damaged(damage),
        },
        Err(damage) => LastWord::Damaged(damage),
    }
}

/// Reports whether a sector of `region` has a zero word at its end. A writer leaves no such sector
/// before a later record. `first` is the position of the region in the journal, in words.
fn has_hole(first: usize, region: &[u64]) -> bool {
    let is_end = |place: usize| (first + place + 1).is_multiple_of(SECTOR_WORDS);
    region.iter().enumerate().any(|(place, word)| *word == 0 && is_end(place))
}

impl RecoveredTiles {
    /// Joins the recovered tiles with the published tiles of the piece, which are valid as well.
    pub fn join_published(self, published: &PieceTiles) -> PieceTiles {
        let end_of = |tile: &Tile| tile.at.saturating_add(tile.len);
        let end = published.tiles().iter().map(end_of).max().unwrap_or(0);
        let mut all = published.clone();
        for tile in self.tiles.tiles().iter().filter(|tile| end_of(tile) > end) {
            if let Ok(view) = all.add_view(&self.tiles.views()[tile.view as usize]) {
                // The tile was valid in a piece, so it is valid in this one.
                let _ = all.push(Tile { view, ..*tile });
            }
        }
        all
    }
}

/// Returns the whole records of a damaged journal of a piece that is `len` bytes long. `rank` is
/// the rank of the piece, if the caller knows it.
pub fn recover_records(bytes: &[u8], rank: Option<u32>, len: u64) -> RecoveredTiles {
    let mut lost = Vec::new();
    let words = to_words(bytes);
    let nothing =
        |lost, is_torn| RecoveredTiles { tiles: PieceTiles::new(rank.unwrap_or(0)), lost, is_torn };
    let Some((found, mut rest)) = words.split_first_chunk() else { return nothing(lost, false) };
    let mut is_torn = true;
    let header = match JournalHeader::read(found) {
        Ok(header) => header,
        Err(damage) => {
            lost.push(damage);
            // A header lies in one sector, and its first word is stored last: a power cut leaves
            // the whole header or none.
            is_torn = false;
            JournalHeader::repair_bit_flip(found)
        }
    };
    let Some(header) = header else {
        if lost.is_empty() && rest.iter().any(|word| *word != 0) {
            lost.push(Damage { at: 0, what: "the header is missing" });
        }
        let is_torn = is_torn && !lost.is_empty() && has_hole(0, &words);
        return nothing(lost, is_torn);
    };
    let mut replay = JournalReplay::new(header);
    let mut at = HEADER_WORDS as u64 * 8;
    loop {
        (at, rest) = apply_records(&mut replay, at, rest);
        let Err(damage) = header.check_end(at, rest) else { break };
        lost.push(damage);
        // A tile with a damaged length and a matching checksum is not lost.
        let is_tile = rest.get(..TILE_WORDS).is_some_and(|tile| header.matches_checksum(at, tile));
        let from = usize::from(replay.skipped_words > 0 || !is_tile);
        let next = header.find_intact_record(at, rest, from);
        // In a tile that is whole except for its length, only a length of 0, which was never
        // stored, can be a hole.
        let is_length = next == Some(0);
        let after = if is_length { header.find_intact_record(at, rest, 1) } else { next };
        // If no whole record follows, the zeros behind the last word are unused room.
        let used = || rest.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let region = &rest[..after.unwrap_or_else(used)];
        is_torn &= has_hole((at / 8) as usize, region) && !(is_length && rest[TILE_WORDS - 1] != 0);
        let Some(next) = next else { break };
        replay.skip_words(next.max(1));
        (at, rest) = (at + next as u64 * 8, &rest[next..]);
    }
    replay.bound_lengths(len);
    let is_torn = is_torn && !lost.is_empty();
    RecoveredTiles { tiles: replay.to_piece_tiles(rank.unwrap_or(header.rank)), lost, is_torn }
}

#[cfg(test)]
mod tests {
    use super::super::encode_with_header;
    use super::*;
    use crate::shape::Shape;
    use crate::view::View;
    use proptest::prelude::*;

    /// Returns the journal after each store of one writer, and the tiles of its last state.
    fn written(header: JournalHeader, views: u64, tiles: usize) -> (Vec<Vec<u8>>, PieceTiles) {
        let mut piece = PieceTiles::new(3);
        let view = piece.add_view(&View::all_bytes()).expect("added");
        // View records of different lengths, so that tile records begin anywhere in a sector.
        let block = Shape::resized(0, 32, &Shape::bytes(8).expect("shape")).expect("shape");
        for number in 0..views {
            let view = View::new(number << 36, 1, block.clone()).expect("view");
            piece.add_view(&view).expect("added");
        }
        let mut versions = Vec::new();
        for tile in 0..tiles as u64 {
            // Irregular starts, so that no tile continues the one before.
            let start = tile * 1000 + tile * tile * 37 % 501;
            piece.append(7 + tile, view, start, 10, tile * 10).expect("appended");
            let mut bytes = encode_with_header(header, &piece);
            bytes.resize(16 << 10, 0);
            versions.push(bytes);
        }
        assert_eq!(piece.tiles().len(), tiles);
        (versions, piece)
    }

    proptest! {
        /// After a power cut each sector of a journal has its contents of some moment since the
        /// last sync. The reader does not report damage. It returns all synced records, and no tile
        /// that was never written.
        #[test]
        fn what_a_power_cut_leaves_of_a_journal_is_torn_and_no_damage(
            views in 0u64..9,
            synced in 0usize..60,
            more in 1usize..120,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 32),
        ) {
            let header = JournalHeader::new(1, 3);
            let (versions, piece) = written(header, views, synced + more);
            let empty = vec![0; versions[0].len()];
            let at = |time: usize| if time == 0 { &empty } else { &versions[time - 1] };
            let mut left = Vec::new();
            for (sector, choice) in (0..empty.len()).step_by(512).zip(&choices) {
                let time = synced + choice.index(more + 1);
                left.extend(&at(time)[sector..sector + 512]);
            }
            let replay = match read_last_word(&left, u64::MAX, true) {
                LastWord::Whole(replay) => replay.map_or(Vec::new(), |replay| replay.tiles().to_vec()),
                LastWord::Torn(recovered) => recovered.tiles.tiles().to_vec(),
                LastWord::Damaged(damage) => panic!("{damage}"),
            };
            prop_assert!(replay.iter().all(|tile| piece.tiles().contains(tile)), "{replay:?}");
            prop_assert!(piece.tiles()[..synced].iter().all(|tile| replay.contains(tile)), "{replay:?}");
            // A machine that was not restarted had no power cut.
            let is_whole = decode(&left).is_ok();
            let live = read_last_word(&left, u64::MAX, false);
            prop_assert_eq!(matches!(live, LastWord::Damaged(_)), !is_whole);
        }

        /// One flipped bit is damage after a power cut, too, anywhere in a journal of many sectors.
        /// The exception is a flip that clears the only bit of the last word of a sector: a power
        /// cut can leave the same bytes.
        #[test]
        fn a_flipped_bit_is_no_hole(
            views in 0u64..9,
            tiles in 1usize..100,
            bit: prop::sample::Index,
        ) {
            let (versions, piece) = written(JournalHeader::new(1, 3), views, tiles);
            let mut bytes = versions.into_iter().next_back().expect("one");
            let end = encode_with_header(JournalHeader::new(1, 3), &piece).len();
            let bit = bit.index(end * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            match read_last_word(&bytes, u64::MAX, true) {
                LastWord::Whole(replay) => prop_assert_eq!(replay, Some(piece)),
                LastWord::Torn(recovered) => {
                    let word = bit / 64;
                    let is_zero = bytes[word * 8..][..8] == [0; 8];
                    let is_like_hole = is_zero && (word + 1) % SECTOR_WORDS == 0;
                    prop_assert!(is_like_hole, "bit {}: {:?}", bit, recovered.lost);
                    prop_assert_eq!(recovered.lost.len(), 1);
                    let is_written = |tile: &Tile| piece.tiles().contains(tile);
                    prop_assert!(recovered.tiles.tiles().iter().all(is_written));
                }
                LastWord::Damaged(_) => {}
            }
        }
    }
}
