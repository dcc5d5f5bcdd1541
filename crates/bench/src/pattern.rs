//! Bytes that identify their place. Every aligned 8-byte word of a file is computed from its own
//! offset and a seed. So a check finds a block that lands in a wrong place or a wrong file, or that
//! stays old.

/// Returns the word at word number `index` (offset / 8) of a file with this seed. The multiplier is
/// odd, so that words of one file all differ.
fn expected_word(seed: u64, index: u64) -> [u8; 8] {
    (index.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.rotate_left(32))
        .to_le_bytes()
}

/// Returns the byte at `offset` of a file with this seed.
pub fn expected_byte(seed: u64, offset: u64) -> u8 {
    expected_word(seed, offset / 8)[(offset % 8) as usize]
}

/// Fills `buffer` with the bytes that belong at `offset`.
pub fn fill_pattern(seed: u64, offset: u64, buffer: &mut [u8]) {
    let head = ((8 - offset % 8) % 8).min(buffer.len() as u64) as usize;
    let (start, aligned) = buffer.split_at_mut(head);
    for (at, b) in (offset..).zip(start) {
        *b = expected_byte(seed, at);
    }
    let first = (offset + head as u64) / 8;
    for (index, chunk) in (first..).zip(aligned.chunks_mut(8)) {
        let word = expected_word(seed, index);
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// A byte with a wrong value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteMismatch {
    /// The offset in the file.
    pub offset: u64,
    /// The right value.
    pub expected: u8,
    /// The value that was read.
    pub found: u8,
}

/// Compares every byte of `buffer`, read from `offset`, and returns the first wrong one.
pub fn find_mismatch(seed: u64, offset: u64, buffer: &[u8]) -> Option<ByteMismatch> {
    let head = ((8 - offset % 8) % 8).min(buffer.len() as u64) as usize;
    let (start, aligned) = buffer.split_at(head);
    let first = (offset + head as u64) / 8;
    let wrong_start = (offset..).zip(start).any(|(at, b)| expected_byte(seed, at) != *b);
    let wrong_rest = || {
        (first..)
            .zip(aligned.chunks(8))
            .any(|(index, chunk)| chunk != &expected_word(seed, index)[..chunk.len()])
    };
    if !wrong_start && !wrong_rest() {
        return None;
    }
    (offset..).zip(buffer).find_map(|(at, found)| {
        let expected = expected_byte(seed, at);
        (expected != *found).then_some(ByteMismatch { offset: at, expected, found: *found })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_flipped_bit_is_found_where_it_is(
            seed: u64, offset in 0u64..1 << 40, len in 1usize..300, at: usize, bit in 0u32..8,
        ) {
            let mut buffer = vec![0; len];
            fill_pattern(seed, offset, &mut buffer);
            prop_assert_eq!(find_mismatch(seed, offset, &buffer), None);
            let at = at % len;
            let expected = buffer[at];
            buffer[at] ^= 1 << bit;
            let found = buffer[at];
            prop_assert_eq!(
                find_mismatch(seed, offset, &buffer),
                Some(ByteMismatch { offset: offset + at as u64, expected, found })
            );
        }

        #[test]
        fn pieces_make_the_whole(seed: u64, offset in 0u64..1 << 40, cut in 0usize..64) {
            let mut whole = [0; 64];
            fill_pattern(seed, offset, &mut whole);
            let mut pieces = [0; 64];
            let (a, b) = pieces.split_at_mut(cut);
            fill_pattern(seed, offset, a);
            fill_pattern(seed, offset + cut as u64, b);
            prop_assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn another_place_or_another_file_has_other_bytes() {
        let mut here = [0; 4096];
        fill_pattern(1, 0, &mut here);
        assert!(find_mismatch(1, 4096, &here).is_some());
        assert!(find_mismatch(2, 0, &here).is_some());
        assert!(find_mismatch(1, 0, &[0; 4096]).is_some());
    }
}
