//! Bytes of a file of another site that were read ahead, so that many small reads of a header or of
//! neighbouring records do not cost a round trip each.
//!
//! Positions are those of the stream of one view, in bytes. The owner clears the cache where MPI
//! says that other processes' bytes become visible, and before its own writes.

use std::collections::{BTreeMap, VecDeque};

/// Bytes of a block.
pub const BLOCK: u64 = 64 << 10;
/// Most blocks that are kept, and that are read at once.
const BLOCKS_MAX: usize = 64;

/// Blocks of the stream of one view.
#[derive(Debug, Default)]
pub struct BlockCache {
    blocks: BTreeMap<u64, Vec<u8>>,
    /// The blocks in the order in which they came.
    order: VecDeque<u64>,
    /// The block after those that were fetched last, and how many these were.
    next: (u64, u64),
}

impl BlockCache {
    /// Forgets all bytes.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.order.clear();
    }

    /// Copies the bytes from `stream` on, as far as they are known. Returns their number.
    pub fn copy_known(&self, stream: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = stream.saturating_add(done as u64);
            let Some(block) = self.blocks.get(&(at / BLOCK)) else { break };
            let Some(known) = block.get((at % BLOCK) as usize..).filter(|k| !k.is_empty()) else {
                break;
            };
            let len = known.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&known[..len]);
            done += len;
        }
        done
    }

    /// Returns the range to be read for bytes that are not known: a start and a length. A reader
    /// that goes on where the last range ended gets ranges that double.
    pub fn choose_range(&self, stream: u64, len: u64) -> (u64, usize) {
        let first = stream / BLOCK;
        let needed = (stream.saturating_add(len)).div_ceil(BLOCK).saturating_sub(first);
        let follows = self.next.0 == first && self.next.1 > 0;
        let ahead = if follows { self.next.1 * 2 } else { 1 };
        let count = needed.max(ahead).min(BLOCKS_MAX as u64);
        (first * BLOCK, (count * BLOCK) as usize)
    }

    /// Keeps the bytes of a range of [`BlockCache::choose_range`], fewer at the end of the file.
    pub fn insert(&mut self, start: u64, bytes: &[u8]) {
        let first = start / BLOCK;
        for (block, number) in bytes.chunks(BLOCK as usize).zip(first..) {
            if self.blocks.insert(number, block.to_vec()).is_none() {
                self.order.push_back(number);
            }
        }
        while self.order.len() > BLOCKS_MAX {
            let oldest = self.order.pop_front();
            oldest.and_then(|number| self.blocks.remove(&number));
        }
        let count = (bytes.len() as u64).div_ceil(BLOCK);
        self.next = (first + count, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads as the owner does; returns how many ranges were fetched.
    fn read(cache: &mut BlockCache, file: &[u8], stream: u64, into: &mut [u8]) -> (usize, usize) {
        let (mut done, mut fetched) = (0, 0);
        while done < into.len() {
            let at = stream + done as u64;
            let known = cache.copy_known(at, &mut into[done..]);
            done += known;
            if known > 0 {
                continue;
            }
            let (start, len) = cache.choose_range(at, (into.len() - done) as u64);
            let from = (start as usize).min(file.len());
            cache.insert(start, &file[from..(from + len).min(file.len())]);
            fetched += 1;
            if cache.copy_known(at, &mut into[done..]) == 0 {
                break;
            }
        }
        (done, fetched)
    }

    #[test]
    fn reads_get_the_bytes_of_the_file_wherever_they_lie() {
        let mut random = fastrand::Rng::with_seed(1);
        let file: Vec<u8> = (0..3_000_001).map(|_| random.u8(..)).collect();
        let mut cache = BlockCache::default();
        for _ in 0..2000 {
            let stream = random.usize(0..file.len() + 1000);
            let mut into = vec![0; random.usize(1..200_000)];
            let (got, _) = read(&mut cache, &file, stream as u64, &mut into);
            let rest = &file[stream.min(file.len())..];
            assert_eq!(got, rest.len().min(into.len()));
            assert!(into[..got] == rest[..got]);
            assert!(cache.blocks.len() <= BLOCKS_MAX && cache.order.len() == cache.blocks.len());
        }
    }

    #[test]
    fn reads_in_order_cost_few_round_trips_and_single_ones_few_bytes() {
        let file = vec![5; 16 << 20];
        let (mut cache, mut ranges) = (BlockCache::default(), 0);
        for at in (0..file.len()).step_by(1000) {
            ranges += read(&mut cache, &file, at as u64, &mut [0; 1000]).1;
        }
        assert!(ranges < 16, "{ranges}");
        let cache = BlockCache::default();
        assert_eq!(cache.choose_range(10 * BLOCK + 7, 8), (10 * BLOCK, BLOCK as usize));
    }
}
