//! Where a workload keeps its file, and what it goes through.

use crate::error::{BenchError, at};
use std::path::{Path, PathBuf};

/// A directory, and the way to it.
#[derive(Clone, Debug)]
pub struct Place {
    /// For people.
    pub name: String,
    /// Where the file lies, as the processes see it.
    pub dir: PathBuf,
    /// With the MPI-IO layer.
    pub layer: bool,
    /// Files become containers there.
    pub container: bool,
    /// On the mounts of the volume in this folder, each process on a node's.
    pub volume: Option<PathBuf>,
    /// A file for each process instead of one for all.
    pub per_process: bool,
}

impl Place {
    /// A directory that the MPI library sees as it is.
    pub fn plain(name: &str, dir: &Path) -> Place {
        let (name, dir) = (name.to_owned(), dir.to_owned());
        Place { name, dir, layer: false, container: false, volume: None, per_process: false }
    }

    /// A directory on this machine with the layer, for containers.
    pub fn layer(name: &str, dir: &Path) -> Place {
        Place { layer: true, container: true, ..Place::plain(name, dir) }
    }

    /// Where the shared file lies, or the names of the others begin.
    pub fn file(&self) -> PathBuf {
        self.dir.join("shared")
    }

    /// Removes what a run has left: files, or a container, which is a directory
    /// to those who don't know what it is.
    ///
    /// # Errors
    /// What can't be removed.
    pub fn clear(&self) -> Result<(), BenchError> {
        let dir = self.seen_from_here();
        for entry in std::fs::read_dir(&dir).map_err(at("reading", &dir))? {
            let path = entry.map_err(at("reading", &dir))?.path();
            let removed = match path.is_dir() {
                true => std::fs::remove_dir_all(&path),
                false => std::fs::remove_file(&path),
            };
            removed.map_err(at("removing", &path))?;
        }
        Ok(())
    }

    /// The directory as this process sees it: on a volume, through the first node's mount.
    pub fn seen_from_here(&self) -> PathBuf {
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
pub struct Workload {
    /// Its name.
    pub program: &'static str,
    /// Its arguments.
    pub args: Vec<String>,
}

impl Workload {
    /// From a line with blanks between the arguments.
    pub fn new(program: &'static str, line: &str) -> Workload {
        Workload { program, args: line.split_whitespace().map(str::to_owned).collect() }
    }

    /// With more arguments.
    pub fn with(&self, line: &str) -> Workload {
        let mut more = self.clone();
        more.args.extend(line.split_whitespace().map(str::to_owned));
        more
    }

    /// The arguments for a place: for a file per process, those of the same
    /// bytes without anything shared.
    pub fn arguments(&self, place: &Place) -> Vec<String> {
        let mut args = self.args.clone();
        if place.per_process {
            args.retain(|word| word != "--collective");
            match self.program {
                "btio" => args.extend(["--mode".into(), "epio".into()]),
                _ => args.push("--file-per-process".into()),
            }
        }
        args.extend(["--file".into(), place.file().to_string_lossy().into_owned()]);
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_per_process_shares_nothing() {
        let place = Place { per_process: true, ..Place::plain("n", Path::new("/d")) };
        let ior = Workload::new("ior", "--view --collective --block 1m");
        assert_eq!(
            ior.arguments(&place).join(" "),
            "--view --block 1m --file-per-process --file /d/shared"
        );
        let btio = Workload::new("btio", "--class S --mode full");
        assert!(btio.arguments(&place).join(" ").contains("--mode epio --file"));
        let shared = Place { per_process: false, ..place };
        assert_eq!(
            ior.arguments(&shared).join(" "),
            "--view --collective --block 1m --file /d/shared"
        );
    }

    #[test]
    fn containers_and_files_are_cleared() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("shared.1"), "x").expect("a file");
        std::fs::create_dir(dir.path().join("shared")).expect("a directory");
        std::fs::write(dir.path().join("shared/base"), "x").expect("a file");
        Place::plain("p", dir.path()).clear().expect("all can go");
        assert_eq!(std::fs::read_dir(dir.path()).expect("it stays").count(), 0);
    }

    #[test]
    fn a_volume_is_seen_through_its_first_mount() {
        let volume = Some(PathBuf::from("/v"));
        let place = Place { volume, ..Place::plain("v", Path::new("/v/mnt/work")) };
        assert_eq!(place.seen_from_here(), Path::new("/v/mnt/node0/work"));
    }
}
