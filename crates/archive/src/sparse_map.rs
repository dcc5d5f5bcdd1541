//! Where the stored bytes of a member belong in its file. Between them are holes.

use crate::pax_records::parse_decimal;
use crate::tar_header::{BLOCK, parse_number};

/// Most segments of a file, for the bound on memory: 16 MiB.
pub(crate) const SEGMENTS_MAX: usize = 1 << 20;
/// Bytes of a segment in a map of GNU tar: offset and length, of 12 bytes each.
const GNU_SEGMENT: usize = 24;
/// Segments in a header, and in each block that continues it.
const GNU_FIRST: usize = 4;
const GNU_NEXT: usize = 21;
/// Most digits of a number in a map, for a bound on the search for the end of a line.
const DIGITS_MAX: usize = 20;

/// A segment of data: its offset in the file and its length, in bytes.
pub(crate) type DataSegment = (u64, u64);

/// Checks that the segments are in order, within a file of `size` bytes, and `stored` bytes long
/// together. Returns those that have bytes.
pub(crate) fn check_segments(
    segments: Vec<DataSegment>,
    size: u64,
    stored: u64,
) -> Option<Vec<DataSegment>> {
    let (mut end, mut sum) = (0_u64, 0_u64);
    for (offset, length) in &segments {
        if *offset < end {
            return None;
        }
        end = offset.checked_add(*length).filter(|end| *end <= size)?;
        sum += length;
    }
    let has_bytes = |segment: &DataSegment| segment.1 > 0;
    (sum == stored).then(|| segments.into_iter().filter(has_bytes).collect())
}

/// Returns the segments of the numbers of a map: offsets and lengths in turn.
pub(crate) fn pair_numbers(numbers: &[u64]) -> Option<Vec<DataSegment>> {
    let (pairs, rest) = numbers.as_chunks::<2>();
    let is_whole = rest.is_empty() && pairs.len() <= SEGMENTS_MAX;
    is_whole.then(|| pairs.iter().map(|[offset, length]| (*offset, *length)).collect())
}

/// Adds the segments in a header of GNU tar. Returns whether a block with more of them follows, and
/// the size of the file.
pub(crate) fn add_header_segments(
    block: &[u8; BLOCK],
    segments: &mut Vec<DataSegment>,
) -> Option<(bool, u64)> {
    add_segments(&block[386..386 + GNU_FIRST * GNU_SEGMENT], segments)?;
    let size = u64::try_from(parse_number(&block[483..495])?).ok()?;
    Some((block[482] != 0, size))
}

/// Adds the segments in a block that continues a header. Returns whether another one follows.
pub(crate) fn add_further_segments(
    block: &[u8; BLOCK],
    segments: &mut Vec<DataSegment>,
) -> Option<bool> {
    if segments.len() > SEGMENTS_MAX {
        return None;
    }
    add_segments(&block[..GNU_NEXT * GNU_SEGMENT], segments)?;
    Some(block[GNU_NEXT * GNU_SEGMENT] != 0)
}

fn add_segments(fields: &[u8], segments: &mut Vec<DataSegment>) -> Option<()> {
    for field in fields.as_chunks::<GNU_SEGMENT>().0 {
        // A segment that is not used has only zeros.
        if field.iter().all(|byte| *byte == 0) {
            continue;
        }
        let number = |part: &[u8]| u64::try_from(parse_number(part)?).ok();
        segments.push((number(&field[..12])?, number(&field[12..])?));
    }
    Some(())
}

/// The map before the bytes of a member: decimal numbers, one a line. The first is their count.
#[derive(Default)]
pub(crate) struct MapReader {
    line: Vec<u8>,
    expected: Option<usize>,
    numbers: Vec<u64>,
}

impl MapReader {
    /// Takes a block. Returns the segments if it is the last one of the map.
    ///
    /// # Errors
    /// A malformed map.
    pub(crate) fn take_block(
        &mut self,
        block: &[u8; BLOCK],
    ) -> Result<Option<Vec<DataSegment>>, MalformedMap> {
        for byte in block {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() > DIGITS_MAX {
                    return Err(MalformedMap);
                }
                continue;
            }
            let number = parse_decimal(&self.line).ok_or(MalformedMap)?;
            self.line.clear();
            match self.expected {
                None => {
                    let count = usize::try_from(number).ok().filter(|n| *n <= SEGMENTS_MAX);
                    self.expected = Some(count.ok_or(MalformedMap)? * 2);
                }
                Some(_) => self.numbers.push(number),
            }
            // The rest of the block is filled up.
            if self.expected == Some(self.numbers.len()) {
                return pair_numbers(&self.numbers).map(Some).ok_or(MalformedMap);
            }
        }
        Ok(None)
    }
}

/// See [`MapReader::take_block`].
#[derive(Debug)]
pub(crate) struct MalformedMap;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_contradict_the_size_are_refused() {
        let check = |segments: &[DataSegment], size, stored| {
            check_segments(segments.to_vec(), size, stored)
        };
        assert_eq!(check(&[(0, 5), (5, 0), (8, 2)], 10, 7), Some(vec![(0, 5), (8, 2)]));
        assert_eq!(check(&[], 10, 0), Some(Vec::new()));
        for (segments, size, stored) in [
            (&[(0, 5)][..], 4, 5),
            (&[(0, 5), (4, 1)], 10, 6),
            (&[(5, 1), (0, 1)], 10, 2),
            (&[(0, 5)], 10, 6),
            (&[(1, u64::MAX)], u64::MAX, u64::MAX),
        ] {
            assert_eq!(check(segments, size, stored), None, "{segments:?}");
        }
    }

    #[test]
    fn a_map_before_the_bytes_fills_whole_blocks() {
        let block = |text: &str| {
            let mut block = [0; BLOCK];
            block[..text.len()].copy_from_slice(text.as_bytes());
            block
        };
        let read = |text: &str| MapReader::default().take_block(&block(text)).map_err(|_| ());
        assert_eq!(read("2\n0\n5\n512\n10\n"), Ok(Some(vec![(0, 5), (512, 10)])));
        assert_eq!(read("0\n"), Ok(Some(Vec::new())));
        for wrong in ["\n", "x\n", "1\n0\n", "99999999999\n", "-1\n"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        // A number may lie in two blocks.
        let (mut map, mut text) = (MapReader::default(), String::from("100\n"));
        (0..100).for_each(|n| text.push_str(&format!("{}\n1\n", n * 1000)));
        let bytes = text.as_bytes();
        let mut found = None;
        for part in bytes.chunks(BLOCK) {
            let mut block = [0; BLOCK];
            block[..part.len()].copy_from_slice(part);
            assert!(found.is_none());
            found = map.take_block(&block).expect("a part of the map");
        }
        assert_eq!(found.map(|segments| segments.len()), Some(100));
    }
}
