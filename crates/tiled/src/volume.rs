//! Files on a mount of a Tatami volume. The pieces are objects of the file, on the disks of the
//! nodes on which its ranks run; the shard has the index; every mount shows one ordinary file.
//!
//! A rank gets descriptors of its own node's objects from the daemon there and uses them directly:
//! a write is one pwrite(2) and a store into the mapped journal. Names, permissions, the base,
//! truncation and locks go through the mount by which the program named the file.

mod begin;
mod engine;
mod inbox;
mod joined;
mod mounts;
mod neighbors;
mod roll;
mod session;
mod world;

pub use begin::begin;
pub use engine::Native;
pub use inbox::inbox_number;
pub use session::{Session, is_on_volume, node_of};
pub(crate) use session::{device_of, parent};

use self::roll::OwnRoll;
use crate::error::{Context, Error, Result};
use crate::flags::Flags;
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, StatxFlags, makedev};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tatami_client::DataFile;
use tatami_wire::{Attr, Cap, Cred, Ino, NodeId, Piece};

/// Converts the error number of a daemon to that of a system call.
fn said(errno: tatami_wire::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

/// Adds the operation and the path to the error of a daemon.
pub(crate) trait Told<T> {
    fn told(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> Told<T> for std::result::Result<T, tatami_wire::Errno> {
    fn told(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|errno| Error::new(operation, path, said(errno)))
    }
}

/// One file of a volume, as a handle of one rank uses it.
#[derive(Debug)]
struct Volume {
    session: Arc<Session>,
    ino: Ino,
    cap: Cap,
    path: PathBuf,
    /// The file on the mount, whatever becomes of its name. A lookup costs a mount that does not
    /// know the directory two requests. So ranks other than 0 look the file up only when they read
    /// or need its size.
    mounted: OnceLock<OwnedFd>,
    /// The roll of this node, once this handle has it open.
    roll: OnceLock<Arc<OwnRoll>>,
}

/// The bytes of a file besides its pieces.
enum Base {
    /// Through the mount.
    Mounted(File),
    /// From its node.
    Object(DataFile),
}

/// A file on a mount that was looked up and not opened: the shard is asked for the name only.
struct Found {
    mounted: OwnedFd,
    ino: Ino,
    session: Arc<Session>,
}

/// Returns a path to an open file that stays valid whatever becomes of its name.
fn magic(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl Found {
    /// Looks up the file at `path`, and checks that this process may access it as `flags` request.
    ///
    /// # Errors
    /// As for open(2); `EINVAL` for a file that is not an ordinary one.
    fn at(path: &Path, flags: Flags) -> Result<Found> {
        let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let mounted = found.context("open", path)?;
        // The number and the type of a file never change, so the mount need not ask the shard.
        let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::INO | StatxFlags::TYPE;
        let found = rustix::fs::statx(&mounted, "", known, wanted).context("stat", path)?;
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
            return Err(Error::because("open", path, Errno::INVAL, "it is no ordinary file"));
        }
        let mut wanted = Access::empty();
        wanted.set(Access::READ_OK, flags.reads());
        wanted.set(Access::WRITE_OK, flags.writes());
        let itself = magic(&mounted);
        let may = || rustix::fs::accessat(rustix::fs::CWD, &itself, wanted, AtFlags::EACCESS);
        if !wanted.is_empty() && may().is_err() {
            // The answer of open(2) decides; a kernel before Linux 5.8 has no other way.
            begin::open(path, flags)?;
        }
        let session = Session::of(makedev(found.stx_dev_major, found.stx_dev_minor), path)?;
        Ok(Found { mounted, ino: Ino(found.stx_ino), session })
    }
}

impl Volume {
    fn new(found: Found, path: &Path, cap: Cap) -> Volume {
        let Found { mounted, ino, session } = found;
        let volume = Volume::unseen(session, ino, path, cap);
        Volume { mounted: OnceLock::from(mounted), ..volume }
    }

    /// A file that was not looked up on this mount.
    fn unseen(session: Arc<Session>, ino: Ino, path: &Path, cap: Cap) -> Volume {
        let (mounted, roll) = (OnceLock::new(), OnceLock::new());
        Volume { session, ino, cap, path: path.to_path_buf(), mounted, roll }
    }

    /// Returns the file on the mount; `None` where its path names another file by now, or none.
    fn mounted(&self) -> Result<Option<&OwnedFd>> {
        if let Some(mounted) = self.mounted.get() {
            return Ok(Some(mounted));
        }
        match Found::at(&self.path, Flags::default()) {
            Ok(found) if found.ino == self.ino => {
                Ok(Some(self.mounted.get_or_init(|| found.mounted)))
            }
            // The name leads to another file. The handle keeps the inode, and reads it from the
            // nodes.
            Ok(_) => Ok(None),
            Err(e)
                if matches!(
                    e.errno,
                    Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::INVAL
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Returns a path to the file that stays valid when it is renamed or removed.
    fn magic(&self) -> Result<PathBuf> {
        let stale = || {
            Error::because("open", &self.path, Errno::STALE, "its path is another file's by now")
        };
        let mounted = self.mounted()?.ok_or_else(stale)?;
        Ok(magic(mounted))
    }

    /// Removes the present name of the file.
    fn remove(&self) -> Result<()> {
        let name = std::fs::read_link(self.magic()?).context("remove", &self.path)?;
        std::fs::remove_file(name).context("remove", &self.path)
    }

    /// Opens the file again on the mount, so that bytes that were cached before are read again.
    fn reopen(&self, write: bool) -> Result<File> {
        OpenOptions::new().read(!write).write(write).open(self.magic()?).context("open", &self.path)
    }

    /// Opens the bytes of the file besides its pieces, for reading; as [`Volume::reopen`].
    fn base(&self) -> Result<Base> {
        if self.mounted()?.is_some() {
            return self.reopen(false).map(Base::Mounted);
        }
        let layout = self.attr()?.layout;
        Ok(Base::Object(self.object(layout.node(), layout.base())?))
    }

    /// Returns the size at the mount, or at the shard where the mount has no path to the file.
    fn size(&self) -> Result<u64> {
        let Some(mounted) = self.mounted()? else { return Ok(self.attr()?.size) };
        let found = rustix::fs::fstat(mounted).context("stat", &self.path)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    fn attr(&self) -> Result<Attr> {
        self.session.client.getattr(&Cred::ROOT, self.ino).told("stat", &self.path)
    }

    /// Opens one of its objects.
    fn object(&self, node: NodeId, piece: Piece) -> Result<DataFile> {
        self.session.client.object(self.ino, node, piece, self.cap).told("open", &self.path)
    }

    /// The roll of this node, once this handle has it open.
    fn own_roll_file(&self) -> Option<&File> {
        self.roll.get().and_then(|roll| roll.file())
    }

    /// An object of this node as a file of this process; nothing where it is not there.
    fn local(&self, piece: Piece, create: bool) -> Result<Option<File>> {
        let object = self.object(self.session.node, piece)?;
        let found = object.local_file(create).told("open", &self.path)?;
        let fd = found.map(|fd| fd.try_clone()).transpose().context("open", &self.path)?;
        Ok(fd.map(File::from))
    }

    /// Opens objects of this node with one request; creates those that do not exist.
    fn make<const N: usize>(&self, pieces: [Piece; N]) -> Result<[File; N]> {
        let made = self.make_all(&pieces)?;
        made.try_into().map_err(|_| Error::new("create a piece of", &self.path, Errno::IO))
    }

    /// As [`Volume::make`], of at most [`OPEN_MAX`](tatami_wire::object::OPEN_MAX) objects.
    fn make_all(&self, pieces: &[Piece]) -> Result<Vec<File>> {
        let Some((first, more)) = pieces.split_first() else { return Ok(Vec::new()) };
        let object = self.object(self.session.node, *first)?;
        let made = object.make_local_files(more).told("create a piece of", &self.path)?;
        Ok(made.into_iter().map(File::from).collect())
    }
}
