//! The parts of an object that have bytes. An object in a region is kept with zeros where a file
//! has holes. When it becomes a file of the disk, it must get its holes again: a sparse file would
//! take the space of all its zeros otherwise.

use std::ops::Range;

/// Zeros become a hole in whole blocks of this size, in bytes: what file systems allocate.
const BLOCK: usize = 4096;

/// Returns the ranges without the blocks that have only zeros, in order and with gaps between them.
pub(crate) fn find_data_ranges(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (start, end) = (number * BLOCK, number * BLOCK + block.len());
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_of_ranges(bytes: &[u8]) -> Vec<(usize, usize)> {
        find_data_ranges(bytes).into_iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn blocks_of_zeros_are_left_out() {
        assert!(ends_of_ranges(&[]).is_empty());
        assert!(ends_of_ranges(&[0; 3 * BLOCK + 7]).is_empty());
        let mut bytes = vec![0; 5 * BLOCK + 7];
        for at in [BLOCK, 3 * BLOCK - 1, 5 * BLOCK + 6] {
            bytes[at] = 1;
        }
        let ends = [(BLOCK, 3 * BLOCK), (5 * BLOCK, 5 * BLOCK + 7)];
        assert_eq!(ends_of_ranges(&bytes), ends);
        assert_eq!(ends_of_ranges(&[1; BLOCK + 1]), [(0, BLOCK + 1)]);
    }

    #[test]
    fn zeros_within_a_block_of_data_stay() {
        let mut bytes = vec![0; 2 * BLOCK];
        bytes[BLOCK - 1] = 1;
        assert_eq!(ends_of_ranges(&bytes), [(0, BLOCK)]);
    }
}
