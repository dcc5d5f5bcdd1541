//! What can go wrong in a measurement. A figure that misses its goal is not an
//! error; a figure that cannot be taken is.

use std::io;
use std::path::{Path, PathBuf};
use tatami_wire::Errno;

/// Why a workload did not run to its end.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say what each means
pub enum BenchError {
    #[error("{what} {path}: {source}")]
    Path { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("the report cannot be written: {0}")]
    Output(io::Error),
    #[error("{what} '{name}': {errno}")]
    Volume { what: &'static str, name: String, errno: Errno },
    #[error(transparent)]
    Connect(#[from] tatami_client::Error),
    #[error(transparent)]
    Mount(#[from] tatami_mount::MountError),
    #[error(transparent)]
    Unmount(#[from] tatami_mount::UnmountError),
    #[error("{0}")]
    Usage(String),
    #[error("process {rank} of the workload: {message}")]
    Worker { rank: usize, message: String },
    #[error(
        "{path}: byte {offset} is {found:#04x} and should be {expected:#04x}: \
         the file system returned other bytes than were written"
    )]
    Verify { path: String, offset: u64, expected: u8, found: u8 },
    #[error("{path}: {got} bytes instead of {wanted} at offset {offset}")]
    Short { path: String, offset: u64, wanted: usize, got: usize },
    #[error("'{program}' {problem}")]
    Program { program: String, problem: String },
}

/// Gives an I/O error the operation and the path that it lacks.
pub(crate) fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BenchError {
    move |source| BenchError::Path { what, path: path.to_owned(), source }
}

/// Gives an I/O error the operation that it lacks.
pub(crate) fn doing(what: &'static str) -> impl FnOnce(io::Error) -> BenchError {
    move |source| BenchError::Io { what, source }
}

/// Gives an error number of the volume the operation and the name that it lacks.
pub(crate) fn on(what: &'static str, name: &[u8]) -> impl FnOnce(Errno) -> BenchError {
    // Not before it fails: a workload counts what it costs.
    move |errno| {
        let name = String::from_utf8_lossy(name).into_owned();
        BenchError::Volume { what, name, errno }
    }
}
