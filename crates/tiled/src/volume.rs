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
mod rank_table;
mod session;
mod state;

pub use begin::begin_volume_open;
pub use engine::VolumeEngine;
pub use inbox::inbox_number;
pub use session::{VolumeSession, is_on_volume, node_of};
pub(crate) use session::{device_of, parent_dir};

use self::rank_table::OwnRankTable;
use crate::error::{ErrorContext, Result, TiledError};
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
fn to_system_errno(errno: tatami_wire::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

/// Adds the operation and the path to the error of a daemon.
pub(crate) trait DaemonErrorContext<T> {
    fn daemon_context(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> DaemonErrorContext<T> for std::result::Result<T, tatami_wire::Errno> {
    fn daemon_context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|errno| TiledError::new(operation, path, to_system_errno(errno)))
    }
}

/// One file of a volume, as a handle of one rank uses it.
#[derive(Debug)]
struct OpenVolumeFile {
    session: Arc<VolumeSession>,
    ino: Ino,
    cap: Cap,
    path: PathBuf,
    /// The file on the mount, whatever becomes of its name. A lookup costs a mount that does not
    /// know the directory two requests. So ranks other than 0 look the file up only when they read
    /// or need its size.
    mounted: OnceLock<OwnedFd>,
    /// The roll of this node, once this handle has it open.
    roll: OnceLock<Arc<OwnRankTable>>,
}

/// The bytes of a file besides its pieces.
enum BaseSource {
    /// Through the mount.
    Mounted(File),
    /// From its node.
    Object(DataFile),
}

/// A file on a mount that was looked up and not opened: the shard is asked for the name only.
struct LookedUpFile {
    mounted: OwnedFd,
    ino: Ino,
    session: Arc<VolumeSession>,
}

/// Returns a path to an open file that stays valid whatever becomes of its name.
fn descriptor_path(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl LookedUpFile {
    /// Looks up the file at `path`, and checks that this process may access it as `flags` request.
    ///
    /// # Errors
    /// As for open(2); `EINVAL` for a file that is not an ordinary one.
    fn look_up(path: &Path, flags: Flags) -> Result<LookedUpFile> {
        let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let mounted = found.context("open", path)?;
        // The number and the type of a file never change, so the mount need not ask the shard.
        let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::INO | StatxFlags::TYPE;
        let found = rustix::fs::statx(&mounted, "", known, wanted).context("stat", path)?;
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
            return Err(TiledError::with_detail(
                "open",
                path,
                Errno::INVAL,
                "it is no ordinary file",
            ));
        }
        let mut wanted = Access::empty();
        wanted.set(Access::READ_OK, flags.can_read());
        wanted.set(Access::WRITE_OK, flags.can_write());
        let itself = descriptor_path(&mounted);
        let may = || rustix::fs::accessat(rustix::fs::CWD, &itself, wanted, AtFlags::EACCESS);
        if !wanted.is_empty() && may().is_err() {
            // The answer of open(2) decides; a kernel before Linux 5.8 has no other way.
            begin::check_open_permission(path, flags)?;
        }
        let session =
            VolumeSession::for_device(makedev(found.stx_dev_major, found.stx_dev_minor), path)?;
        Ok(LookedUpFile { mounted, ino: Ino(found.stx_ino), session })
    }
}

impl OpenVolumeFile {
    fn new(found: LookedUpFile, path: &Path, cap: Cap) -> OpenVolumeFile {
        let LookedUpFile { mounted, ino, session } = found;
        let volume = OpenVolumeFile::without_lookup(session, ino, path, cap);
        OpenVolumeFile { mounted: OnceLock::from(mounted), ..volume }
    }

    /// A file that was not looked up on this mount.
    fn without_lookup(
        session: Arc<VolumeSession>,
        ino: Ino,
        path: &Path,
        cap: Cap,
    ) -> OpenVolumeFile {
        let (mounted, roll) = (OnceLock::new(), OnceLock::new());
        OpenVolumeFile { session, ino, cap, path: path.to_path_buf(), mounted, roll }
    }

    /// Returns the file on the mount; `None` where its path names another file by now, or none.
    fn mounted_file(&self) -> Result<Option<&OwnedFd>> {
        if let Some(mounted) = self.mounted.get() {
            return Ok(Some(mounted));
        }
        match LookedUpFile::look_up(&self.path, Flags::default()) {
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
    fn stable_path(&self) -> Result<PathBuf> {
        let stale = || {
            TiledError::with_detail(
                "open",
                &self.path,
                Errno::STALE,
                "its path is another file's by now",
            )
        };
        let mounted = self.mounted_file()?.ok_or_else(stale)?;
        Ok(descriptor_path(mounted))
    }

    /// Removes the present name of the file.
    fn remove_name(&self) -> Result<()> {
        let name = std::fs::read_link(self.stable_path()?).context("remove", &self.path)?;
        std::fs::remove_file(name).context("remove", &self.path)
    }

    /// Opens the file again on the mount, so that bytes that were cached before are read again.
    fn reopen_mounted(&self, write: bool) -> Result<File> {
        OpenOptions::new()
            .read(!write)
            .write(write)
            .open(self.stable_path()?)
            .context("open", &self.path)
    }

    /// Opens the bytes of the file besides its pieces, for reading; as
    /// [`OpenVolumeFile::reopen_mounted`].
    fn open_base(&self) -> Result<BaseSource> {
        if self.mounted_file()?.is_some() {
            return self.reopen_mounted(false).map(BaseSource::Mounted);
        }
        let layout = self.fetch_attr()?.layout;
        Ok(BaseSource::Object(self.open_object(layout.node(), layout.base())?))
    }

    /// Returns the size at the mount, or at the shard where the mount has no path to the file.
    fn current_size(&self) -> Result<u64> {
        let Some(mounted) = self.mounted_file()? else { return Ok(self.fetch_attr()?.size) };
        let found = rustix::fs::fstat(mounted).context("stat", &self.path)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    fn fetch_attr(&self) -> Result<Attr> {
        self.session.client.getattr(&Cred::ROOT, self.ino).daemon_context("stat", &self.path)
    }

    /// Opens one of its objects.
    fn open_object(&self, node: NodeId, piece: Piece) -> Result<DataFile> {
        self.session
            .client
            .open_object(self.ino, node, piece, self.cap)
            .daemon_context("open", &self.path)
    }

    /// The roll of this node, once this handle has it open.
    fn own_roll_file(&self) -> Option<&File> {
        self.roll.get().and_then(|roll| roll.file())
    }

    /// An object of this node as a file of this process; nothing where it is not there.
    fn open_local_object(&self, piece: Piece, create: bool) -> Result<Option<File>> {
        let object = self.open_object(self.session.node, piece)?;
        let found = object.local_file(create).daemon_context("open", &self.path)?;
        let fd = found.map(|fd| fd.try_clone()).transpose().context("open", &self.path)?;
        Ok(fd.map(File::from))
    }

    /// Opens objects of this node with one request; creates those that do not exist.
    fn create_objects<const N: usize>(&self, pieces: [Piece; N]) -> Result<[File; N]> {
        let made = self.make_all(&pieces)?;
        made.try_into().map_err(|_| TiledError::new("create a piece of", &self.path, Errno::IO))
    }

    /// As [`OpenVolumeFile::create_objects`], of at most
    /// [`OPEN_MAX`](tatami_wire::object::OPEN_DESCRIPTORS_MAX) objects.
    fn make_all(&self, pieces: &[Piece]) -> Result<Vec<File>> {
        let Some((first, more)) = pieces.split_first() else { return Ok(Vec::new()) };
        let object = self.open_object(self.session.node, *first)?;
        let made = object.make_local_files(more).daemon_context("create a piece of", &self.path)?;
        Ok(made.into_iter().map(File::from).collect())
    }
}
