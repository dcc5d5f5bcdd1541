//! The files that a command makes in the directory of a volume. If the command fails, they are
//! removed again.

use crate::term;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tatami_cluster::mountinfo;

/// The content of a directory before a command made files in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct MadeFiles {
    dir: PathBuf,
    /// The directories on its path that were missing, the outermost first.
    missing: Vec<PathBuf>,
    /// Its entries.
    kept: BTreeSet<OsString>,
    /// The entries that were empty directories, such as a disk for a node's data.
    empty: BTreeSet<OsString>,
}

impl MadeFiles {
    /// Records the entries of `dir`, which may be missing.
    pub fn record_before(dir: &Path) -> MadeFiles {
        let is_missing = |dir: &&Path| dir.symlink_metadata().is_err();
        let mut missing: Vec<PathBuf> =
            dir.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        missing.reverse();
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let kept: BTreeSet<OsString> = entries.map(|entry| entry.file_name()).collect();
        let is_empty = |name: &&OsString| {
            std::fs::read_dir(dir.join(name)).is_ok_and(|mut entries| entries.next().is_none())
        };
        let empty = kept.iter().filter(is_empty).cloned().collect();
        MadeFiles { dir: dir.to_owned(), missing, kept, empty }
    }

    /// Returns whether this is the record of `dir`.
    pub fn is_of(&self, dir: &Path) -> bool {
        self.dir == dir
    }

    /// Removes what was made since.
    pub fn remove_all(&self) {
        // A mount that could not be ended shows the files of the volume.
        let mounts = mountinfo::mount_table();
        let is_mounted = |path: &Path| mounts.iter().any(|mount| mount.path.starts_with(path));
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            if self.empty.contains(&entry.file_name()) {
                let inner = std::fs::read_dir(&path).into_iter().flatten().flatten();
                inner.for_each(|entry| remove_entry(&entry.path()));
            } else if !self.kept.contains(&entry.file_name()) && !is_mounted(&path) {
                remove_entry(&path);
            }
        }
        for dir in self.missing.iter().rev() {
            // A directory in which another process has made a file stays.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn remove_entry(path: &Path) {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
        _ => std::fs::remove_file(path),
    };
    if let Err(error) = removed {
        term::print_note(&format!("{} is left: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_new_files_are_removed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dir = root.path().join("a/volume");
        let made = MadeFiles::record_before(&dir);
        fs::create_dir_all(dir.join("node0/objects")).expect("made");
        fs::write(dir.join("key"), "secret").expect("written");
        made.remove_all();
        assert!(!root.path().join("a").exists() && root.path().exists());

        fs::create_dir_all(dir.join("node1")).expect("made");
        fs::create_dir_all(dir.join("own")).expect("made");
        fs::write(dir.join("own/file"), "kept").expect("written");
        fs::write(dir.join("tatami.toml"), "kept").expect("written");
        let made = MadeFiles::record_before(&dir);
        fs::write(dir.join("node1/FORMAT"), "new").expect("written");
        fs::write(dir.join("own/another"), "of another program").expect("written");
        fs::write(dir.join("key"), "new").expect("written");
        made.remove_all();
        let mut left: Vec<_> =
            fs::read_dir(&dir).expect("there").map(|e| e.expect("an entry").file_name()).collect();
        left.sort();
        assert_eq!(left, ["node1", "own", "tatami.toml"]);
        assert!(fs::read_dir(dir.join("node1")).expect("there").next().is_none());
        assert!(dir.join("own/file").exists() && dir.join("own/another").exists());
    }
}
