//! A directory of a benchmark's own within one that the user names.

use crate::error::{BenchError, path_error};
use std::path::{Path, PathBuf};

/// A directory for volumes and files that go at the end. A drop removes it, too.
pub struct WorkDir {
    /// Its path, absolute: daemons and mounts have other working directories.
    pub path: PathBuf,
    parent: PathBuf,
}

impl WorkDir {
    /// Makes the directory `name` below `parent`, which is made if it is missing.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn make(parent: &Path, name: &str) -> Result<WorkDir, BenchError> {
        std::fs::create_dir_all(parent).map_err(path_error("creating", parent))?;
        let parent = parent.canonicalize().map_err(path_error("finding", parent))?;
        let path = parent.join(name);
        std::fs::create_dir_all(&path).map_err(path_error("creating", &path))?;
        Ok(WorkDir { path, parent })
    }

    /// Removes it with all that it has.
    ///
    /// # Errors
    /// Those of the removal.
    pub fn remove(self) -> Result<(), BenchError> {
        std::fs::remove_dir_all(&self.path).map_err(path_error("removing", &self.path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // After `remove` there is nothing left. After a failure, that failure is reported.
        let _ = std::fs::remove_dir_all(&self.path);
        // The parent goes only if it is empty: the user may keep other files there.
        let _ = std::fs::remove_dir(&self.parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_beside_it_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let parent = dir.path().join("new/work");
        let work = WorkDir::make(&parent, "own").expect("made");
        std::fs::write(work.path.join("file"), "x").expect("written");
        work.remove().expect("removed");
        assert!(!parent.exists() && dir.path().join("new").exists());
        std::fs::create_dir(&parent).expect("made");
        std::fs::write(parent.join("mine"), "x").expect("written");
        drop(WorkDir::make(&parent, "own").expect("made"));
        assert_eq!(std::fs::read_dir(&parent).expect("listed").count(), 1);
    }
}
