//! The errors of a measurement. A figure that misses its goal is not an error; a figure that cannot
//! be taken is.

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
    Connect(#[from] tatami_client::ClientError),
    #[error(transparent)]
    Mount(#[from] tatami_mount::MountError),
    #[error(transparent)]
    Unmount(#[from] tatami_fuse::UnmountError),
    #[error("{0}")]
    Usage(String),
    #[error("it was interrupted, and has removed what it made")]
    Interrupted,
    #[error("process {rank} of the workload: {message}")]
    Worker { rank: usize, message: String },
    #[error(
        "{path}: byte {offset} is {found:#04x} and should be {expected:#04x}: \
         the file system returned other bytes than were written"
    )]
    Verify { path: String, offset: u64, expected: u8, found: u8 },
    #[error("{path}: {got} bytes instead of {wanted} at offset {offset}")]
    Short { path: String, offset: u64, wanted: usize, got: usize },
    #[error("drawing {0}")]
    Plot(#[from] tatami_plot::PlotError),
    #[error("'{program}' {problem}")]
    Program { program: String, problem: String },
}

/// Adds the operation and the path to an I/O error.
pub(crate) fn path_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BenchError {
    move |source| BenchError::Path { what, path: path.to_owned(), source }
}

/// Adds the operation to an I/O error.
pub(crate) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> BenchError {
    move |source| BenchError::Io { what, source }
}

/// Adds the operation and the name to an error number of the volume.
pub(crate) fn volume_error(what: &'static str, name: &[u8]) -> impl FnOnce(Errno) -> BenchError {
    // The name is made only on failure: a workload's time counts everything it does.
    move |errno| {
        let name = String::from_utf8_lossy(name).into_owned();
        BenchError::Volume { what, name, errno }
    }
}
