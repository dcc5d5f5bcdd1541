//! Which process touches which bytes: IOR's segments, blocks and transfers.
//!
//! ```text
//! shared file:      segment 0                 segment 1
//!                   ┌──────────┬──────────┬───┬──────────┬──────────┬───
//!                   │ block    │ block    │   │ block    │ block    │
//!                   │ of rank 0│ of rank 1│ … │ of rank 0│ of rank 1│ …
//!                   └──────────┴──────────┴───┴──────────┴──────────┴───
//! file per process: ┌──────────┬──────────┬──
//!                   │ block    │ block    │ …   in file `NAME.<rank, 8 digits>`
//!                   └──────────┴──────────┴──
//! ```
//! A block is read and written in transfers.

use serde::{Deserialize, Serialize};

/// Most transfers of one process.
pub const TRANSFERS_MAX: u64 = 1 << 24;
/// Longest transfer, in bytes: two buffers of it must fit into memory.
pub const TRANSFER_MAX: u64 = 1 << 30;

/// The geometry of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IorShape {
    /// Bytes of one read or write.
    pub transfer: u64,
    /// Bytes of one process in one segment.
    pub block: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of processes.
    pub procs: usize,
    /// Each process has a file of its own.
    pub file_per_process: bool,
    /// Transfers in random order, the same in every run.
    pub random: bool,
}

impl IorShape {
    /// Checks that the geometry can be run.
    ///
    /// # Errors
    /// A sentence that names the fault.
    pub fn validate(&self) -> Result<(), String> {
        if self.transfer == 0 || self.transfer > TRANSFER_MAX {
            return Err("the transfer size must be 1 byte to 1g".into());
        }
        if self.block == 0 || !self.block.is_multiple_of(self.transfer) {
            return Err("the block size must be a multiple of the transfer size".into());
        }
        let transfers = (self.block / self.transfer).checked_mul(self.segments);
        if !transfers.is_some_and(|n| (1..=TRANSFERS_MAX).contains(&n)) {
            return Err(format!(
                "a process makes 1 to {TRANSFERS_MAX} transfers: choose larger ones"
            ));
        }
        let size =
            self.block.checked_mul(self.segments).and_then(|b| b.checked_mul(self.procs as u64));
        match size {
            Some(size) if size <= i64::MAX as u64 => Ok(()),
            _ => Err("the file would be larger than a file can be".into()),
        }
    }

    /// Returns the bytes of one process.
    pub fn bytes_per_process(&self) -> u64 {
        self.block * self.segments
    }

    /// Returns the bytes of the file that `rank` uses.
    pub fn file_size(&self) -> u64 {
        let files = if self.file_per_process { 1 } else { self.procs as u64 };
        self.bytes_per_process() * files
    }

    /// Returns the name of the file with the bytes of `rank`.
    pub fn rank_file(&self, name: &str, rank: usize) -> String {
        if self.file_per_process { format!("{name}.{rank:08}") } else { name.to_owned() }
    }

    /// Returns the offsets of the transfers of `rank`, in the order in which they are made.
    pub fn transfer_offsets(&self, rank: usize) -> Vec<u64> {
        let (stride, start) = if self.file_per_process {
            (self.block, 0)
        } else {
            (self.block * self.procs as u64, self.block * rank as u64)
        };
        let mut offsets: Vec<u64> = (0..self.segments)
            .flat_map(|s| (0..self.block / self.transfer).map(move |t| (s, t)))
            .map(|(s, t)| s * stride + start + t * self.transfer)
            .collect();
        if self.random {
            shuffle_offsets(&mut offsets, 0x7461_7461_6d69 + rank as u64);
        }
        offsets
    }
}

/// Shuffles with Fisher-Yates and a xorshift generator: the same order for the same seed.
fn shuffle_offsets(list: &mut [u64], seed: u64) {
    let mut x = seed | 1;
    for i in (1..list.len()).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        list.swap(i, (x % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_processes_cover_the_file_exactly_once(
            transfer in 1u64..5, per_block in 1u64..5, segments in 1u64..4, procs in 1usize..5,
            file_per_process: bool, random: bool,
        ) {
            let block = transfer * per_block;
            let shape = IorShape { transfer, block, segments, procs, file_per_process, random };
            prop_assert_eq!(shape.validate(), Ok(()));
            let mut hits = std::collections::HashMap::new();
            for rank in 0..procs {
                let file = shape.rank_file("f", rank);
                for offset in shape.transfer_offsets(rank) {
                    for b in offset..offset + transfer {
                        prop_assert!(b < shape.file_size());
                        *hits.entry((file.clone(), b)).or_insert(0) += 1;
                    }
                }
            }
            let files = if file_per_process { procs as u64 } else { 1 };
            prop_assert_eq!(hits.len() as u64, files * shape.file_size());
            prop_assert!(hits.values().all(|n| *n == 1));
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let good = IorShape {
            transfer: 4,
            block: 8,
            segments: 1,
            procs: 1,
            file_per_process: false,
            random: false,
        };
        assert_eq!(good.validate(), Ok(()));
        for bad in [
            IorShape { transfer: 0, ..good },
            IorShape { transfer: 3, ..good },
            IorShape { block: 0, ..good },
            IorShape { segments: 0, ..good },
            IorShape { segments: u64::MAX, ..good },
            IorShape { transfer: 1, block: 1 << 40, ..good },
            IorShape { transfer: 1 << 30, block: 1 << 53, segments: 1, procs: 1024, ..good },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }
}
