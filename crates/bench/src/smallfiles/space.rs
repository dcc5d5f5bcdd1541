//! The room that a data set takes on the disk.

use crate::error::{BenchError, path_error};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a block in stat(2).
const STAT_BLOCK: u64 = 512;
/// Bytes of the head of a region of up to 1 MiB.
const REGION_HEAD: u64 = 128;

/// Where the used room is read.
#[derive(Clone, Debug)]
pub enum SpaceSource {
    /// The file system with this path: it counts what all others use there as well.
    FileSystem(PathBuf),
    /// The directory of a volume of this machine. Its region devices have all their room from the
    /// beginning, and do not count.
    Volume(PathBuf),
}

impl SpaceSource {
    /// Returns the used bytes, once all is written to the disk.
    ///
    /// # Errors
    /// A path that cannot be read.
    pub fn used_bytes(&self) -> Result<u64, BenchError> {
        rustix::fs::sync();
        match self {
            SpaceSource::FileSystem(path) => {
                let space = rustix::fs::statvfs(path)
                    .map_err(|e| path_error("measuring the space of", path)(e.into()))?;
                Ok((space.f_blocks - space.f_bfree) * space.f_frsize)
            }
            SpaceSource::Volume(dir) => {
                sum_tree(dir, &|name| name != "mnt" && !name.starts_with("regions-node"))
            }
        }
    }
}

/// Returns the bytes that all files below a directory take. `wants_entry` chooses the entries of
/// the directory itself.
fn sum_tree(dir: &Path, wants_entry: &dyn Fn(&str) -> bool) -> Result<u64, BenchError> {
    let mut sum = 0;
    let list = std::fs::read_dir(dir).map_err(path_error("listing", dir))?;
    for entry in list.flatten() {
        if !wants_entry(&entry.file_name().to_string_lossy()) {
            continue;
        }
        // A daemon may remove a file meanwhile.
        let Ok(found) = entry.metadata() else { continue };
        sum += found.blocks() * STAT_BLOCK;
        if found.is_dir() {
            sum += sum_tree(&entry.path(), &|_| true)?;
        }
    }
    Ok(sum)
}

/// Returns the bytes that a file in a region takes on the device, with the head of the region.
///
/// # Errors
/// Those of stat(2).
pub fn region_bytes(path: &Path) -> Result<u64, BenchError> {
    let found = std::fs::metadata(path).map_err(path_error("looking at", path))?;
    Ok(found.blocks() * STAT_BLOCK + REGION_HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_volume_do_not_count() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = SpaceSource::Volume(dir.path().to_owned());
        let write = |name: &str, len: usize| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, vec![7; len]).expect("written");
        };
        write("node0/objects/00/file", 40_000);
        let first = source.used_bytes().expect("measured");
        assert!((40_000..200_000).contains(&first), "{first}");
        write("regions-node0", 1 << 20);
        write("mnt/node0/file", 1 << 20);
        assert_eq!(source.used_bytes().expect("measured"), first);
        write("node0/objects/01/file", 400_000);
        assert!(source.used_bytes().expect("measured") >= first + 400_000);
        let whole = SpaceSource::FileSystem(dir.path().to_owned());
        assert!(whole.used_bytes().expect("measured") > 0);
    }
}
