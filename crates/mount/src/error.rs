//! Errors of a mount's start, with a remedy in each text.

use std::path::PathBuf;

/// The reason why a volume could not be mounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MountError {
    #[error("mount point {path} does not exist: create it (mkdir -p {path})")]
    NoMountpoint { path: PathBuf },
    #[error("mount point {path} is not a directory")]
    NotADirectory { path: PathBuf },
    #[error("a volume is mounted on {path} already: `tatami umount {path}` ends that mount")]
    AlreadyMounted { path: PathBuf },
    #[error(
        "{path} has a {kind} file system mounted on it: choose another directory, \
         or unmount that first"
    )]
    Occupied { path: PathBuf, kind: String },
    #[error("{path} holds a mount whose process is gone: `tatami umount {path}` clears it away")]
    Dead { path: PathBuf },
    #[error("mount point {path}: {source}")]
    Mountpoint { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Mount(#[from] tatami_fuse::FuseMountError),
    #[error(transparent)]
    Init(#[from] tatami_fuse::init::InitError),
    #[error("serving {path}: {source}")]
    Serve { path: PathBuf, source: std::io::Error },
    #[error("the volume's root cannot be read: {0}")]
    Root(tatami_wire::Errno),
}
