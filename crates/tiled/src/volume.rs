//! Files on a mount of a Tatami volume: the pieces are objects of the file, on the disks of the nodes
//! on which its ranks run, the index is the shard's, and every mount shows one ordinary file.
//!
//! A rank gets descriptors of its own node's objects from the daemon there and uses them itself: a
//! write is one pwrite(2) and a store into the mapped journal. Names, permissions, the base, truncation
//! and locks are matters of the mount, through which the program named the file.

mod begin;
mod engine;
mod joined;
mod roll;
mod session;
mod world;

pub use begin::begin;
pub use engine::Native;
pub use session::{Session, is_on_volume, node_of};

use crate::error::{Context, Error, Result};
use crate::token::Token;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::{DataFile, JobMember};
use tatami_wire::{Cap, Ino, NodeId, Piece};

/// What a daemon said, as a system call would.
fn said(errno: tatami_wire::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

/// Adds the operation and the path to what a daemon said.
pub(crate) trait Told<T> {
    fn told(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> Told<T> for std::result::Result<T, tatami_wire::Errno> {
    fn told(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|errno| Error::new(operation, path, said(errno)))
    }
}

/// What the ranks of the open `token` of the file at `path` share, for one of them.
///
/// # Errors
/// As for [`Session::of`].
pub(crate) fn join_job(path: &Path, token: &Token, rank: u32) -> Result<JobMember> {
    let session = Session::of(path)?;
    Ok(JobMember::new(session.client.clone(), Ino(token.id), token.open, rank))
}

/// One file of a volume, as a handle of one rank reaches it.
#[derive(Debug)]
struct Volume {
    session: Arc<Session>,
    ino: Ino,
    cap: Cap,
    path: PathBuf,
    /// The file on the mount, whatever becomes of its name.
    mounted: OwnedFd,
}

impl Volume {
    /// The file at `path`, which is `ino`.
    fn new(session: Arc<Session>, path: &Path, ino: Ino, cap: Cap) -> Result<Volume> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let mounted = rustix::fs::open(path, flags, Mode::empty()).context("open", path)?;
        let volume = Volume { session, ino, cap, path: path.to_path_buf(), mounted };
        match rustix::fs::fstat(&volume.mounted).context("stat", path)?.st_ino == ino.0 {
            true => Ok(volume),
            false => {
                let why = "another file has this path by now";
                Err(Error::because("open", path, Errno::STALE, why))
            }
        }
    }

    /// A path to the file that stays right when it is renamed or removed.
    fn magic(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.mounted.as_raw_fd()))
    }

    /// Opens it once more on the mount: what was read before is read again.
    fn reopen(&self, write: bool) -> Result<File> {
        OpenOptions::new().read(!write).write(write).open(self.magic()).context("open", &self.path)
    }

    /// The size that the mount tells.
    fn size(&self) -> Result<u64> {
        let found = rustix::fs::fstat(&self.mounted).context("stat", &self.path)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    /// One of its objects.
    fn object(&self, node: NodeId, piece: Piece) -> Result<DataFile> {
        self.session.client.object(self.ino, node, piece, self.cap).told("open", &self.path)
    }

    /// An object of this node as a file of this process; nothing where it is not there.
    fn local(&self, piece: Piece, create: bool) -> Result<Option<File>> {
        let object = self.object(self.session.node, piece)?;
        let found = object.local_file(create).told("open", &self.path)?;
        let fd = found.map(|fd| fd.try_clone()).transpose().context("open", &self.path)?;
        Ok(fd.map(File::from))
    }
}
