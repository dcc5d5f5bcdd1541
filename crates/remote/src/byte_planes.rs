//! Bytes of the same significance side by side.
//!
//! Neighbouring numbers of a field have nearly the same sign, exponent and first digits, and their
//! last digits differ. A general compressor finds next to nothing in them. So the first bytes of
//! all words of 8 bytes come first, then the second bytes, and so on: HDF5 and Blosc call this
//! *shuffle*. Where a number begins does not matter, and numbers of 4 bytes gain as well.

/// Bytes of a word.
const WIDTH: usize = 8;
/// Words that are moved at a time.
const BLOCK: usize = 8;

/// Exchanges rows and columns of 8 times 8 bytes.
fn transpose(rows: &mut [u64; BLOCK]) {
    for (step, mask) in
        [(4, 0x0000_0000_FFFF_FFFF_u64), (2, 0x0000_FFFF_0000_FFFF), (1, 0x00FF_00FF_00FF_00FF)]
    {
        for row in (0..BLOCK).filter(|row| row & step == 0) {
            let swapped = ((rows[row] >> (8 * step)) ^ rows[row + step]) & mask;
            rows[row + step] ^= swapped;
            rows[row] ^= swapped << (8 * step);
        }
    }
}

/// Moves the bytes of `words` to planes: the first bytes of all words, then the second ones. Bytes
/// behind the last whole word stay at the end. Both must have the same length.
pub(crate) fn split_planes(words: &[u8], planes: &mut [u8]) {
    assert_eq!(words.len(), planes.len());
    let count = words.len() / WIDTH;
    let blocked = count - count % BLOCK;
    for (at, block) in words[..blocked * WIDTH].chunks_exact(BLOCK * WIDTH).enumerate() {
        let mut rows = [0; BLOCK];
        for (row, bytes) in rows.iter_mut().zip(block.as_chunks::<WIDTH>().0) {
            *row = u64::from_le_bytes(*bytes);
        }
        transpose(&mut rows);
        for (plane, row) in rows.iter().enumerate() {
            let to = plane * count + at * BLOCK;
            planes[to..to + BLOCK].copy_from_slice(&row.to_le_bytes());
        }
    }
    for word in blocked..count {
        for plane in 0..WIDTH {
            planes[plane * count + word] = words[word * WIDTH + plane];
        }
    }
    planes[count * WIDTH..].copy_from_slice(&words[count * WIDTH..]);
}

/// Undoes [`split_planes`].
pub(crate) fn join_planes(planes: &[u8], words: &mut [u8]) {
    assert_eq!(words.len(), planes.len());
    let count = words.len() / WIDTH;
    let blocked = count - count % BLOCK;
    for (at, block) in words[..blocked * WIDTH].chunks_exact_mut(BLOCK * WIDTH).enumerate() {
        let mut rows = [0; BLOCK];
        for (plane, row) in rows.iter_mut().enumerate() {
            let from = plane * count + at * BLOCK;
            let mut bytes = [0; BLOCK];
            bytes.copy_from_slice(&planes[from..from + BLOCK]);
            *row = u64::from_le_bytes(bytes);
        }
        transpose(&mut rows);
        for (bytes, row) in block.as_chunks_mut::<WIDTH>().0.iter_mut().zip(rows) {
            *bytes = row.to_le_bytes();
        }
    }
    for word in blocked..count {
        for plane in 0..WIDTH {
            words[word * WIDTH + plane] = planes[plane * count + word];
        }
    }
    words[count * WIDTH..].copy_from_slice(&planes[count * WIDTH..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_the_bytes_of_one_significance_and_come_back() {
        let mut random = fastrand::Rng::with_seed(1);
        for len in (0..200).chain([4096, 65_543]) {
            let words: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            let (mut planes, mut back) = (vec![0; len], vec![0; len]);
            split_planes(&words, &mut planes);
            let count = len / WIDTH;
            for (at, byte) in words[..count * WIDTH].iter().enumerate() {
                assert_eq!(planes[at % WIDTH * count + at / WIDTH], *byte);
            }
            join_planes(&planes, &mut back);
            assert_eq!(words, back, "{len} bytes");
        }
    }
}
