//! Memory at block boundaries, as reads and writes past the kernel's page cache need it.

use crate::class::BLOCK;

/// Zeroed bytes that begin at a multiple of [`BLOCK`].
#[derive(Debug)]
pub struct AlignedBuffer {
    /// Never grows, so its memory stays where it is.
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// Makes a buffer of `len` bytes, rounded up to whole blocks.
    pub fn new(len: usize) -> AlignedBuffer {
        let len = len.next_multiple_of(BLOCK);
        let memory = vec![0; len + BLOCK].into_boxed_slice();
        let start = memory.as_ptr().align_offset(BLOCK);
        assert!(start <= BLOCK, "no address within a block is aligned");
        AlignedBuffer { memory, start, len }
    }

    /// Returns its length, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// Returns the bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_at_a_block_and_has_whole_blocks() {
        for len in [1, BLOCK - 1, BLOCK, 3 * BLOCK + 1] {
            let mut buffer = AlignedBuffer::new(len);
            assert_eq!(buffer.bytes().as_ptr().align_offset(BLOCK), 0);
            assert_eq!(buffer.len(), len.next_multiple_of(BLOCK));
            buffer.bytes_mut().fill(7);
            assert!(buffer.bytes().iter().all(|b| *b == 7));
        }
    }
}
