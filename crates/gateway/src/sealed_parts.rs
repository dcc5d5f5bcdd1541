//! What the ranks of an open have sealed, until rank 0 publishes it.

use crate::refusal::refuse;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use tatami_remote::RemoteFailure;

/// Most bytes for one publication: the tiles of many ranks, and far less than memory.
const SEALED_MAX: usize = 1 << 30;

/// The parts that have arrived, by file and rank.
#[derive(Default)]
pub(crate) struct SealedParts(HashMap<u64, BTreeMap<u32, Vec<u8>>>);

impl SealedParts {
    /// Adds bytes to what a rank has sealed.
    pub(crate) fn add_part(
        &mut self,
        file: u64,
        rank: u32,
        bytes: &[u8],
    ) -> Result<(), RemoteFailure> {
        let ranks = self.0.entry(file).or_default();
        let known: usize = ranks.values().map(Vec::len).sum();
        if known + bytes.len() > SEALED_MAX {
            return Err(refuse(Errno::TOOBIG, "the ranks have sealed too much"));
        }
        ranks.entry(rank).or_default().extend_from_slice(bytes);
        Ok(())
    }

    /// Takes the parts of all `ranks`, which have `len` bytes together.
    pub(crate) fn take_parts(
        &mut self,
        file: u64,
        ranks: u32,
        len: u64,
    ) -> Result<Vec<Vec<u8>>, RemoteFailure> {
        let mut parts = self.0.remove(&file).unwrap_or_default();
        let known: usize = parts.values().map(Vec::len).sum();
        let is_whole = known as u64 == len && parts.keys().all(|rank| *rank < ranks);
        match is_whole {
            // Without any bytes there is nothing to tell apart.
            true if len == 0 => Ok(Vec::new()),
            true => Ok((0..=parts.keys().last().copied().unwrap_or(0))
                .map(|rank| parts.remove(&rank).unwrap_or_default())
                .collect()),
            false => Err(refuse(Errno::STALE, "parts of what the ranks have sealed are missing")),
        }
    }

    /// Forgets a file.
    pub(crate) fn forget_file(&mut self, file: u64) {
        self.0.remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_by_rank_and_missing_ones_are_noticed() {
        let mut parts = SealedParts::default();
        for (rank, bytes) in [(2, b"ab".as_slice()), (0, b"c"), (2, b"d")] {
            parts.add_part(7, rank, bytes).expect("room");
        }
        assert!(parts.take_parts(8, 3, 1).is_err());
        let taken = parts.take_parts(7, 3, 4).expect("all are there");
        assert_eq!(taken, [b"c".to_vec(), Vec::new(), b"abd".to_vec()]);
        assert_eq!(parts.take_parts(7, 3, 0).expect("none"), Vec::<Vec<u8>>::new());
        parts.add_part(7, 5, b"x").expect("room");
        assert!(parts.take_parts(7, 3, 1).is_err(), "no such rank");
    }
}
