//! One process of IOR.

use super::file::{self, IoMethod, TestFile, TestFilePlace};
use super::shape::IorShape;
use crate::error::BenchError;
use crate::pattern;
use crate::workload::{PhaseTotals, Workload};
use serde::{Deserialize, Serialize};

/// The treatment of an existing file before the write, outside the time that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExistingFile {
    /// The file is removed, so that the write creates it.
    Remove,
    /// The file is truncated, so that the write allocates.
    Cut,
    /// The file stays, so that the write replaces bytes.
    Keep,
}

/// The task of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IorPart {
    /// The test file; a file per process gets its number added.
    pub place: TestFilePlace,
    /// The geometry.
    pub shape: IorShape,
    /// The number of this process, from 0.
    pub rank: usize,
    /// Read the bytes of the next process.
    pub reorder: bool,
    /// Sync before close.
    pub fsync: bool,
    /// The treatment of an existing file before the write.
    pub before: ExistingFile,
    /// Stamp every byte with its place, so that it can be verified.
    pub stamp: bool,
    /// Distinguishes the bytes of one run from those of another.
    pub seed: u64,
}

/// Alignment that `O_DIRECT` may ask for, in bytes.
const ALIGN: usize = 4096;

/// A process with its buffer and its list of transfers.
pub struct IorRank {
    part: IorPart,
    memory: Vec<u8>,
    start: usize,
    offsets: Vec<u64>,
}

impl IorRank {
    /// Allocates the buffer.
    ///
    /// # Errors
    /// A geometry that can't be run.
    pub fn new(part: IorPart) -> Result<IorRank, BenchError> {
        part.shape.validate().map_err(BenchError::Usage)?;
        let transfer = part.shape.transfer as usize;
        if matches!(part.place, TestFilePlace::Path(_, IoMethod::Direct))
            && !transfer.is_multiple_of(512)
        {
            return Err(BenchError::Usage("with --direct, sizes are multiples of 512".into()));
        }
        let memory = vec![0xa5; transfer + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        Ok(IorRank { part, memory, start, offsets: Vec::new() })
    }

    /// Returns the rank that owns the bytes of a phase.
    fn bytes_owner(&self, phase: &str) -> usize {
        let shift = usize::from(self.part.reorder && phase != "write");
        (self.part.rank + shift) % self.part.shape.procs
    }

    fn rank_place(&self, rank: usize) -> TestFilePlace {
        let shape = &self.part.shape;
        match &self.part.place {
            TestFilePlace::Path(path, method) => {
                let mut name = path.clone().into_os_string();
                name.push(shape.rank_file("", rank));
                TestFilePlace::Path(name.into(), *method)
            }
            TestFilePlace::Library(reach, path) => {
                TestFilePlace::Library(reach.clone(), shape.rank_file(path, rank))
            }
        }
    }

    fn rank_seed(&self, rank: usize) -> u64 {
        let file = if self.part.shape.file_per_process { rank as u64 } else { 0 };
        self.part.seed.wrapping_add(file.wrapping_mul(0x1_0000_0001))
    }

    fn transfer_all(&mut self, phase: &str) -> Result<(), BenchError> {
        let owner = self.bytes_owner(phase);
        let seed = self.rank_seed(owner);
        let write = phase == "write";
        let place = self.rank_place(owner);
        let mut file = TestFile::open(&place, write, self.part.shape.file_size())?;
        let len = self.part.shape.transfer as usize;
        let buffer = &mut self.memory[self.start..self.start + len];
        for offset in &self.offsets {
            match phase {
                "write" => {
                    if self.part.stamp {
                        pattern::fill_pattern(seed, *offset, buffer);
                    }
                    file.write(buffer, *offset)?;
                }
                _ => file.read(buffer, *offset)?,
            }
            if phase == "verify"
                && let Some(wrong) = pattern::find_mismatch(seed, *offset, buffer)
            {
                return Err(BenchError::Verify {
                    path: match &place {
                        TestFilePlace::Path(path, _) => path.display().to_string(),
                        TestFilePlace::Library(_, path) => path.clone(),
                    },
                    offset: wrong.offset,
                    expected: wrong.expected,
                    found: wrong.found,
                });
            }
        }
        file.close(write, write && self.part.fsync)
    }
}

impl Workload for IorRank {
    fn prepare_phase(&mut self, phase: &str) -> Result<String, BenchError> {
        let owner = self.bytes_owner(phase);
        let mine = self.part.shape.file_per_process || self.part.rank == 0;
        match phase {
            "write" if mine && self.part.before == ExistingFile::Remove => {
                file::remove_file(&self.rank_place(owner))?;
            }
            "write" if mine && self.part.before == ExistingFile::Cut => {
                file::truncate_file(&self.rank_place(owner))?
            }
            "write" | "read" => {}
            "verify" if self.part.stamp => {}
            "verify" => return Err(BenchError::Usage("only stamped bytes can be verified".into())),
            "remove" => {
                if mine {
                    file::remove_file(&self.rank_place(self.part.rank))?;
                }
                return Ok(String::new());
            }
            other => return Err(BenchError::Usage(format!("ior has no phase '{other}'"))),
        }
        self.offsets = self.part.shape.transfer_offsets(owner);
        Ok(String::new())
    }

    fn run_phase(&mut self, phase: &str) -> Result<PhaseTotals, BenchError> {
        if phase == "remove" {
            return Ok(PhaseTotals::default());
        }
        self.transfer_all(phase)?;
        let ops = self.offsets.len() as u64;
        Ok(PhaseTotals { ops, bytes: ops * self.part.shape.transfer, ..PhaseTotals::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(dir: &std::path::Path, method: IoMethod) -> IorPart {
        IorPart {
            place: TestFilePlace::Path(dir.join("data"), method),
            shape: IorShape {
                transfer: 512,
                block: 4096,
                segments: 3,
                procs: 2,
                file_per_process: false,
                random: true,
            },
            rank: 0,
            reorder: true,
            fsync: true,
            before: ExistingFile::Remove,
            stamp: true,
            seed: 42,
        }
    }

    fn run(ranks: &mut [IorRank], phase: &str) -> Result<(), BenchError> {
        ranks.iter_mut().try_for_each(|r| r.prepare_phase(phase).map(drop))?;
        ranks.iter_mut().try_for_each(|r| r.run_phase(phase).map(drop))
    }

    #[test]
    fn what_is_written_verifies_and_a_flipped_byte_does_not() {
        for method in [IoMethod::Buffered, IoMethod::Mapped] {
            for file_per_process in [false, true] {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let mut ranks: Vec<IorRank> = (0..2)
                    .map(|rank| {
                        let mut p = IorPart { rank, ..part(dir.path(), method) };
                        p.shape.file_per_process = file_per_process;
                        IorRank::new(p).expect("a good geometry")
                    })
                    .collect();
                for phase in ["write", "read", "verify"] {
                    run(&mut ranks, phase).expect("a local disk works");
                }
                let name = if file_per_process { "data.00000001" } else { "data" };
                let path = dir.path().join(name);
                let mut bytes = std::fs::read(&path).expect("it was written");
                bytes[5000] ^= 1;
                std::fs::write(&path, &bytes).expect("writable");
                match run(&mut ranks, "verify") {
                    Err(BenchError::Verify { offset: 5000, .. }) => {}
                    other => panic!("the flipped byte was not found: {other:?}"),
                }
                std::fs::write(&path, &bytes[..6000]).expect("writable");
                assert!(run(&mut ranks, "read").is_err(), "a short file is no good read");
                run(&mut ranks, "remove").expect("removable");
                assert!(!path.exists());
            }
        }
    }

    #[test]
    fn a_file_can_be_cut_or_kept_before_it_is_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("data");
        for (before, size) in [(ExistingFile::Cut, 24576), (ExistingFile::Keep, 40000)] {
            std::fs::write(&path, vec![1; 40000]).expect("writable");
            let mut p = part(dir.path(), IoMethod::Buffered);
            (p.before, p.shape.segments) = (before, 6);
            p.shape.procs = 1;
            let mut ranks = [IorRank::new(p).expect("a good geometry")];
            run(&mut ranks, "write").expect("a local disk works");
            assert_eq!(std::fs::metadata(&path).expect("it is there").len(), size);
        }
    }

    #[test]
    fn phases_and_sizes_that_make_no_sense_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut plain = part(dir.path(), IoMethod::Buffered);
        plain.stamp = false;
        let mut rank = IorRank::new(plain).expect("a good geometry");
        assert!(rank.prepare_phase("verify").is_err());
        assert!(rank.prepare_phase("dance").is_err());
        let mut odd = part(dir.path(), IoMethod::Direct);
        odd.shape.transfer = 64;
        assert!(IorRank::new(odd).is_err());
    }
}
