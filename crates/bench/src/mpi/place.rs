//! The places of a workload's file, and the route to it.

use crate::error::{BenchError, path_error};
use std::path::{Path, PathBuf};

/// A directory, and the route to it.
#[derive(Clone, Debug)]
pub struct MpiPlace {
    /// The name for people.
    pub name: String,
    /// The directory of the file, as the processes see it.
    pub dir: PathBuf,
    /// Whether the MPI-IO layer is loaded.
    pub layer: bool,
    /// Whether files become containers there.
    pub container: bool,
    /// The folder of the volume, if the file lies on its mounts, each process on one node's mount.
    pub volume: Option<PathBuf>,
    /// Whether each process has a file, instead of one for all.
    pub per_process: bool,
}

impl MpiPlace {
    /// Returns a directory that the MPI library sees as it is.
    pub fn plain_dir(name: &str, dir: &Path) -> MpiPlace {
        let (name, dir) = (name.to_owned(), dir.to_owned());
        MpiPlace { name, dir, layer: false, container: false, volume: None, per_process: false }
    }

    /// Returns a directory on this machine with the layer, for containers.
    pub fn layer_dir(name: &str, dir: &Path) -> MpiPlace {
        MpiPlace { layer: true, container: true, ..MpiPlace::plain_dir(name, dir) }
    }

    /// Returns the path of the shared file, or the beginning of the others' names.
    pub fn file_path(&self) -> PathBuf {
        self.dir.join("shared")
    }

    /// Removes the files of a run. Without the layer, a container is a directory.
    ///
    /// # Errors
    /// A file that can't be removed.
    pub fn clear(&self) -> Result<(), BenchError> {
        let dir = self.local_dir();
        for entry in std::fs::read_dir(&dir).map_err(path_error("reading", &dir))? {
            let path = entry.map_err(path_error("reading", &dir))?.path();
            let removed = match path.is_dir() {
                true => std::fs::remove_dir_all(&path),
                false => std::fs::remove_file(&path),
            };
            removed.map_err(path_error("removing", &path))?;
        }
        Ok(())
    }

    /// Returns the directory as this process sees it: on a volume, through the first node's mount.
    pub fn local_dir(&self) -> PathBuf {
        let Some(volume) = &self.volume else { return self.dir.clone() };
        let mounts = volume.join("mnt");
        match self.dir.strip_prefix(&mounts) {
            Ok(inside) => mounts.join("node0").join(inside),
            Err(_) => self.dir.clone(),
        }
    }
}

/// A program of `mpi-bench` with its arguments, but for the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiWorkload {
    /// Its name.
    pub program: &'static str,
    /// Its arguments.
    pub args: Vec<String>,
}

impl MpiWorkload {
    /// Splits a line with blanks between the arguments.
    pub fn new(program: &'static str, line: &str) -> MpiWorkload {
        MpiWorkload { program, args: line.split_whitespace().map(str::to_owned).collect() }
    }

    /// Returns the workload with more arguments.
    pub fn with_args(&self, line: &str) -> MpiWorkload {
        let mut more = self.clone();
        more.args.extend(line.split_whitespace().map(str::to_owned));
        more
    }

    /// Returns the arguments for a place. For a file per process, they write the same bytes without
    /// anything shared.
    pub fn place_arguments(&self, place: &MpiPlace) -> Vec<String> {
        let mut args = self.args.clone();
        if place.per_process {
            args.retain(|word| word != "--collective");
            match self.program {
                "btio" => args.extend(["--mode".into(), "epio".into()]),
                _ => args.push("--file-per-process".into()),
            }
        }
        args.extend(["--file".into(), place.file_path().to_string_lossy().into_owned()]);
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_per_process_shares_nothing() {
        let place = MpiPlace { per_process: true, ..MpiPlace::plain_dir("n", Path::new("/d")) };
        let ior = MpiWorkload::new("ior", "--view --collective --block 1m");
        assert_eq!(
            ior.place_arguments(&place).join(" "),
            "--view --block 1m --file-per-process --file /d/shared"
        );
        let btio = MpiWorkload::new("btio", "--class S --mode full");
        assert!(btio.place_arguments(&place).join(" ").contains("--mode epio --file"));
        let shared = MpiPlace { per_process: false, ..place };
        assert_eq!(
            ior.place_arguments(&shared).join(" "),
            "--view --collective --block 1m --file /d/shared"
        );
    }

    #[test]
    fn containers_and_files_are_cleared() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("shared.1"), "x").expect("a file");
        std::fs::create_dir(dir.path().join("shared")).expect("a directory");
        std::fs::write(dir.path().join("shared/base"), "x").expect("a file");
        MpiPlace::plain_dir("p", dir.path()).clear().expect("all can go");
        assert_eq!(std::fs::read_dir(dir.path()).expect("it stays").count(), 0);
    }

    #[test]
    fn a_volume_is_seen_through_its_first_mount() {
        let volume = Some(PathBuf::from("/v"));
        let place = MpiPlace { volume, ..MpiPlace::plain_dir("v", Path::new("/v/mnt/work")) };
        assert_eq!(place.local_dir(), Path::new("/v/mnt/node0/work"));
    }
}
