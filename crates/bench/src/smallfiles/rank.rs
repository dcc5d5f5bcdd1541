//! One process that makes, reads and removes its part of a data set of small files.
//!
//! The files are numbered, and directory after directory has the same number of them. Each process
//! makes and removes whole directories. It reads files in an order that is random over the whole
//! data set, so most of them were made by another process, and through another mount.

use crate::error::{BenchError, path_error, volume_error};
use crate::mdtest::names::WorkloadPlace;
use crate::pattern::{fill_pattern, find_mismatch};
use crate::volume_access::own_cred;
use crate::workload::{PhaseTotals, SLOW, Workload};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tatami_client::FilledFile;
use tatami_client::tree::VolumeTree;
use tatami_wire::meta::InodeTemplate;
use tatami_wire::{Access, Errno, Ino};

/// The phases, in the order in which they can run. The first two reads are alike: the second finds
/// in memory what the first has brought there.
pub const PHASES: [&str; 4] = ["make", "read", "read again", "remove"];

const FILE_MODE: u16 = 0o644;
const DIR_MODE: u16 = 0o755;
const UMASK: u16 = 0o022;

/// The task of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SmallFilesPart {
    /// The directory that the starter has made: a path, or one of the library.
    pub place: WorkloadPlace,
    /// The number of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub procs: usize,
    /// The data set.
    pub set: SmallFileSet,
    /// The library makes each file with all its bytes by one call.
    pub as_whole: bool,
}

/// A data set.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SmallFileSet {
    /// Files.
    pub files: u64,
    /// Directories, at least one.
    pub directories: u64,
    /// Bytes of each file.
    pub size: u64,
    /// From which the order of reads follows.
    pub seed: u64,
}

impl SmallFileSet {
    /// Returns the path of the first file, below the directory of the data set.
    pub fn first_path() -> PathBuf {
        file_path(0, 0)
    }

    /// Returns the directory of a file.
    fn directory_of(&self, file: u64) -> u64 {
        file / self.files.div_ceil(self.directories.max(1)).max(1)
    }

    /// Returns the files of the directories that process `rank` of `procs` makes, in order.
    fn own_files(&self, rank: usize, procs: usize) -> Vec<u64> {
        let is_own = |file: &u64| self.directory_of(*file) % procs as u64 == rank as u64;
        (0..self.files).filter(is_own).collect()
    }

    /// Returns the files that process `rank` of `procs` reads, in its order.
    fn files_to_read(&self, rank: usize, procs: usize) -> Vec<u64> {
        let mut all: Vec<u64> = (0..self.files).collect();
        // All processes shuffle alike, and each takes a part: together they read each file once.
        fastrand::Rng::with_seed(self.seed).shuffle(&mut all);
        all.into_iter().skip(rank).step_by(procs).collect()
    }

    /// Returns the seed of the bytes of a file.
    fn bytes_seed(&self, file: u64) -> u64 {
        self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ file.wrapping_add(1)
    }
}

fn directory_name(directory: u64) -> String {
    format!("d{directory:06}")
}

fn file_name(file: u64) -> String {
    format!("f{file:08}")
}

fn file_path(directory: u64, file: u64) -> PathBuf {
    Path::new(&directory_name(directory)).join(file_name(file))
}

/// A file that a phase uses.
struct SmallFile {
    number: u64,
    directory: u64,
    /// Through the library only its name.
    path: PathBuf,
}

/// How the process reaches the directory.
enum SmallFilesAccess {
    Path(PathBuf),
    Library { tree: VolumeTree, dir: String, inodes: HashMap<u64, Ino>, as_whole: bool },
}

/// See the module.
pub struct SmallFilesRank {
    part: SmallFilesPart,
    access: SmallFilesAccess,
    files: Vec<SmallFile>,
    /// One byte longer than a file, so that a file that is too long is noticed.
    buffer: Vec<u8>,
}

impl SmallFilesRank {
    /// Connects to the volume, if the library is used.
    ///
    /// # Errors
    /// A volume that cannot be reached.
    pub fn new(part: SmallFilesPart) -> Result<SmallFilesRank, BenchError> {
        let access = match &part.place {
            WorkloadPlace::Path { dir, .. } | WorkloadPlace::Objects { dir } => {
                SmallFilesAccess::Path(dir.clone())
            }
            WorkloadPlace::Library { reach, dir } => SmallFilesAccess::Library {
                tree: VolumeTree::new(Arc::new(reach.connect_client()?), own_cred()),
                dir: dir.clone(),
                inodes: HashMap::new(),
                as_whole: part.as_whole,
            },
        };
        let buffer = vec![0; part.set.size as usize + 1];
        Ok(SmallFilesRank { part, access, files: Vec::new(), buffer })
    }

    fn make_directory(&self, directory: u64) -> Result<(), BenchError> {
        let name = directory_name(directory);
        match &self.access {
            SmallFilesAccess::Path(dir) => {
                let path = dir.join(name);
                let made = DirBuilder::new().mode(DIR_MODE.into()).create(&path);
                made.map_err(path_error("creating", &path))
            }
            SmallFilesAccess::Library { tree, dir, .. } => {
                let path = format!("{dir}/{name}");
                let made = tree.mkdir(path.as_bytes(), DIR_MODE, UMASK).map(drop);
                made.map_err(volume_error("creating", path.as_bytes()))
            }
        }
    }

    fn remove_directory(&self, directory: u64) -> Result<(), BenchError> {
        let name = directory_name(directory);
        match &self.access {
            SmallFilesAccess::Path(dir) => {
                let path = dir.join(name);
                std::fs::remove_dir(&path).map_err(path_error("removing", &path))
            }
            SmallFilesAccess::Library { tree, dir, .. } => {
                let path = format!("{dir}/{name}");
                let removed = tree.remove_dir(path.as_bytes());
                removed.map_err(volume_error("removing", path.as_bytes()))
            }
        }
    }

    /// Looks up the directories of the phase's files, through the library.
    fn find_directories(&mut self) -> Result<(), BenchError> {
        let SmallFilesAccess::Library { tree, dir, inodes, .. } = &mut self.access else {
            return Ok(());
        };
        for file in &self.files {
            if inodes.contains_key(&file.directory) {
                continue;
            }
            let path = format!("{dir}/{}", directory_name(file.directory));
            let found = tree.stat(path.as_bytes(), true);
            let attr = found.map_err(volume_error("looking up", path.as_bytes()))?;
            inodes.insert(file.directory, attr.ino);
        }
        Ok(())
    }

    /// Returns the directories of the phase's files, each once.
    fn directories(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.files.iter().map(|file| file.directory).collect();
        all.dedup();
        all
    }
}

/// Creates a file with these bytes.
fn make_file(access: &SmallFilesAccess, file: &SmallFile, bytes: &[u8]) -> Result<(), BenchError> {
    match access {
        SmallFilesAccess::Path(_) => {
            let mut options = File::options();
            options.write(true).create_new(true).mode(FILE_MODE.into());
            let made = options.open(&file.path).and_then(|mut file| file.write_all(bytes));
            made.map_err(path_error("writing", &file.path))
        }
        SmallFilesAccess::Library { tree, inodes, as_whole, .. } => {
            let name = file.path.as_os_str().as_encoded_bytes();
            let make = || -> Result<(), Errno> {
                let (client, cred) = (tree.client(), tree.cred());
                let parent = inodes.get(&file.directory).copied().unwrap_or(Ino::ROOT);
                if *as_whole {
                    let (name, bytes) = (name.to_vec(), bytes.to_vec());
                    let file = FilledFile { name, mode: FILE_MODE, bytes, set: None };
                    let made = client.create_filled_many(cred, parent, vec![file], UMASK);
                    return made.into_iter().try_for_each(|made| made.map(drop));
                }
                let node = InodeTemplate::File(client.new_layout());
                let open = Some(Access::WRITE);
                let made = client.create(cred, parent, name, node, FILE_MODE, UMASK, true, open)?;
                let mut handle = tree.open_created(made)?;
                handle.write_all_at_position(bytes)?;
                handle.close().map(drop)
            };
            make().map_err(volume_error("writing", name))
        }
    }
}

/// Opens, reads and closes a file, and returns how many bytes it has, up to one too many.
fn read_file(
    access: &SmallFilesAccess,
    file: &SmallFile,
    buffer: &mut [u8],
) -> Result<usize, BenchError> {
    let wanted = buffer.len() - 1;
    match access {
        SmallFilesAccess::Path(_) => {
            let mut read = || -> std::io::Result<usize> {
                let mut open = File::open(&file.path)?;
                let mut got = open.read(buffer)?;
                // One call suffices for a file of the right length.
                while got > 0 && got < wanted {
                    match open.read(&mut buffer[got..])? {
                        0 => break,
                        more => got += more,
                    }
                }
                Ok(got)
            };
            read().map_err(path_error("reading", &file.path))
        }
        SmallFilesAccess::Library { tree, inodes, .. } => {
            let name = file.path.as_os_str().as_encoded_bytes();
            let mut read = || -> Result<usize, Errno> {
                let parent = inodes.get(&file.directory).copied().unwrap_or(Ino::ROOT);
                let found = tree.client().lookup(tree.cred(), parent, name)?;
                let handle = tree.open_inode(found.ino)?;
                let got = handle.data().read_at(buffer, 0)?;
                handle.close().map(|_| got)
            };
            read().map_err(volume_error("reading", name))
        }
    }
}

fn remove_file(access: &SmallFilesAccess, file: &SmallFile) -> Result<(), BenchError> {
    match access {
        SmallFilesAccess::Path(_) => {
            std::fs::remove_file(&file.path).map_err(path_error("removing", &file.path))
        }
        SmallFilesAccess::Library { tree, inodes, .. } => {
            let name = file.path.as_os_str().as_encoded_bytes();
            let parent = inodes.get(&file.directory).copied().unwrap_or(Ino::ROOT);
            let removed = tree.client().unlink(tree.cred(), parent, name, false);
            removed.map(drop).map_err(volume_error("removing", name))
        }
    }
}

/// Compares all bytes of a file.
fn check_bytes(path: &Path, seed: u64, size: u64, bytes: &[u8]) -> Result<(), BenchError> {
    let path = || path.display().to_string();
    if bytes.len() as u64 != size {
        let wanted = size as usize;
        return Err(BenchError::Short { path: path(), offset: 0, wanted, got: bytes.len() });
    }
    match find_mismatch(seed, 0, bytes) {
        None => Ok(()),
        Some(wrong) => Err(BenchError::Verify {
            path: path(),
            offset: wrong.offset,
            expected: wrong.expected,
            found: wrong.found,
        }),
    }
}

/// Returns the value below which a share of sorted values lies: 0 without values.
fn find_percentile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(0)
}

fn summarize_times(mut times: Vec<u64>, size: u64) -> PhaseTotals {
    times.sort_unstable();
    PhaseTotals {
        ops: times.len() as u64,
        bytes: times.len() as u64 * size,
        slow_ops: times.iter().filter(|ns| u128::from(**ns) > SLOW.as_nanos()).count() as u64,
        slowest_ns: times.last().copied().unwrap_or(0),
        median_ns: find_percentile(&times, 50),
        p99_ns: find_percentile(&times, 99),
    }
}

fn unknown_phase(phase: &str) -> BenchError {
    BenchError::Usage(format!("small files have no phase '{phase}'"))
}

impl Workload for SmallFilesRank {
    fn prepare_phase(&mut self, phase: &str) -> Result<String, BenchError> {
        let SmallFilesPart { rank, procs, set, .. } = self.part;
        let numbers = match phase {
            "make" | "remove" => set.own_files(rank, procs),
            "read" | "read again" => set.files_to_read(rank, procs),
            other => return Err(unknown_phase(other)),
        };
        let file = |number: u64| {
            let directory = set.directory_of(number);
            let path = match &self.access {
                SmallFilesAccess::Path(dir) => dir.join(file_path(directory, number)),
                SmallFilesAccess::Library { .. } => file_name(number).into(),
            };
            SmallFile { number, directory, path }
        };
        self.files = numbers.into_iter().map(file).collect();
        if phase == "make" {
            for directory in self.directories() {
                self.make_directory(directory)?;
            }
        }
        self.find_directories()?;
        Ok(String::new())
    }

    fn run_phase(&mut self, phase: &str) -> Result<PhaseTotals, BenchError> {
        let set = self.part.set;
        let size = set.size as usize;
        let mut times = Vec::with_capacity(self.files.len());
        let mut record = |start: Instant| times.push(start.elapsed().as_nanos() as u64);
        match phase {
            "make" => {
                for file in &self.files {
                    fill_pattern(set.bytes_seed(file.number), 0, &mut self.buffer[..size]);
                    let start = Instant::now();
                    make_file(&self.access, file, &self.buffer[..size])?;
                    record(start);
                }
            }
            "read" | "read again" => {
                for file in &self.files {
                    let start = Instant::now();
                    let got = read_file(&self.access, file, &mut self.buffer)?;
                    record(start);
                    let seed = set.bytes_seed(file.number);
                    check_bytes(&file.path, seed, set.size, &self.buffer[..got])?;
                }
            }
            "remove" => {
                for file in &self.files {
                    let start = Instant::now();
                    remove_file(&self.access, file)?;
                    record(start);
                }
                for directory in self.directories() {
                    self.remove_directory(directory)?;
                }
            }
            other => return Err(unknown_phase(other)),
        }
        Ok(summarize_times(times, set.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: SmallFileSet = SmallFileSet { files: 10, directories: 4, size: 5000, seed: 3 };

    fn start_ranks(dir: &Path) -> Vec<SmallFilesRank> {
        let part = |rank| SmallFilesPart {
            place: WorkloadPlace::Path { dir: dir.to_owned(), relative: false },
            rank,
            procs: 3,
            set: SET,
            as_whole: false,
        };
        (0..3).map(|rank| SmallFilesRank::new(part(rank)).expect("a path needs nothing")).collect()
    }

    fn run_all(ranks: &mut [SmallFilesRank], phase: &str) -> Result<u64, BenchError> {
        for rank in ranks.iter_mut() {
            rank.prepare_phase(phase)?;
        }
        ranks.iter_mut().map(|rank| rank.run_phase(phase).map(|totals| totals.ops)).sum()
    }

    #[test]
    fn processes_make_read_and_remove_each_file_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ranks = start_ranks(dir.path());
        for phase in PHASES {
            assert_eq!(run_all(&mut ranks, phase).expect("no error"), SET.files, "{phase}");
            if phase == "make" {
                let last = dir.path().join("d000003/f00000009");
                assert_eq!(std::fs::metadata(last).expect("it is there").len(), SET.size);
            }
        }
        assert!(std::fs::read_dir(dir.path()).expect("listed").next().is_none());
        assert!(ranks[0].prepare_phase("dance").is_err());
    }

    #[test]
    fn a_wrong_byte_and_a_wrong_length_are_failures() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ranks = start_ranks(dir.path());
        run_all(&mut ranks, "make").expect("no error");
        let path = dir.path().join("d000001/f00000004");
        let right = std::fs::read(&path).expect("it is there");
        let mut flipped = right.clone();
        flipped[4999] ^= 1;
        let longer = [&right[..], &[0]].concat();
        for (bytes, message) in
            [(&flipped[..], "byte 4999"), (&right[1..], "4999 bytes"), (&longer, "5001 bytes")]
        {
            std::fs::write(&path, bytes).expect("writable");
            let error = run_all(&mut ranks, "read").expect_err("it is wrong").to_string();
            assert!(error.contains(message) && error.contains("f00000004"), "{error}");
        }
        std::fs::write(&path, right).expect("writable");
        run_all(&mut ranks, "read again").expect("all is right again");
    }

    #[test]
    fn the_order_of_reads_is_random_and_follows_from_the_seed() {
        let set = SmallFileSet { files: 1000, ..SET };
        let first = set.files_to_read(0, 2);
        assert_eq!((first.len(), &first), (500, &set.files_to_read(0, 2)));
        assert!(!first.is_sorted());
        assert_ne!(first, SmallFileSet { seed: 4, ..set }.files_to_read(0, 2));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<u64> = (1..=200).collect();
        assert_eq!((find_percentile(&times, 50), find_percentile(&times, 99)), (100, 198));
        assert_eq!((find_percentile(&[7], 99), find_percentile(&[], 50)), (7, 0));
        let totals = summarize_times(vec![3, 30_000_000, 1], 10);
        assert_eq!((totals.ops, totals.bytes, totals.slow_ops), (3, 30, 1));
        assert_eq!((totals.median_ns, totals.slowest_ns), (3, 30_000_000));
    }
}
