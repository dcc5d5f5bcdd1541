//! One file of a volume, as a handle of one rank has it open: its names on the mount, its objects
//! on the nodes.

use super::rank_table::OwnRankTable;
use super::session::VolumeSession;
use crate::error::{DaemonErrorContext, ErrorContext, Result, TiledError};
use crate::flags::Flags;
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, StatxFlags, makedev};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tatami_client::DataFile;
use tatami_wire::{Attr, Cap, Cred, Ino, NodeId, Piece};

/// One file of a volume, as a handle of one rank uses it.
#[derive(Debug)]
pub(super) struct OpenVolumeFile {
    pub(super) session: Arc<VolumeSession>,
    pub(super) ino: Ino,
    pub(super) cap: Cap,
    pub(super) path: PathBuf,
    /// The file on the mount, whatever becomes of its name. A lookup costs a mount that does not
    /// know the directory two requests. So ranks other than 0 look the file up only when they read
    /// or need its size.
    pub(super) mounted: OnceLock<OwnedFd>,
    /// The roll of this node, once this handle has it open.
    pub(super) roll: OnceLock<Arc<OwnRankTable>>,
}

/// The bytes of a file besides its pieces.
pub(super) enum BaseSource {
    /// Through the mount.
    Mounted(File),
    /// From its node.
    Object(DataFile),
}

/// A file on a mount that was looked up and not opened: the shard is asked for the name only.
pub(super) struct LookedUpFile {
    pub(super) mounted: OwnedFd,
    pub(super) ino: Ino,
    pub(super) session: Arc<VolumeSession>,
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
    pub(super) fn look_up(path: &Path, flags: Flags) -> Result<LookedUpFile> {
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
            check_open_permission(path, flags)?;
        }
        let session =
            VolumeSession::for_device(makedev(found.stx_dev_major, found.stx_dev_minor), path)?;
        Ok(LookedUpFile { mounted, ino: Ino(found.stx_ino), session })
    }
}

impl OpenVolumeFile {
    pub(super) fn new(found: LookedUpFile, path: &Path, cap: Cap) -> OpenVolumeFile {
        let LookedUpFile { mounted, ino, session } = found;
        let volume = OpenVolumeFile::without_lookup(session, ino, path, cap);
        OpenVolumeFile { mounted: OnceLock::from(mounted), ..volume }
    }

    /// A file that was not looked up on this mount.
    pub(super) fn without_lookup(
        session: Arc<VolumeSession>,
        ino: Ino,
        path: &Path,
        cap: Cap,
    ) -> OpenVolumeFile {
        let (mounted, roll) = (OnceLock::new(), OnceLock::new());
        OpenVolumeFile { session, ino, cap, path: path.to_path_buf(), mounted, roll }
    }

    /// Returns the file on the mount; `None` where its path names another file by now, or none.
    pub(super) fn mounted_file(&self) -> Result<Option<&OwnedFd>> {
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
    pub(super) fn stable_path(&self) -> Result<PathBuf> {
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
    pub(super) fn remove_name(&self) -> Result<()> {
        let name = std::fs::read_link(self.stable_path()?).context("remove", &self.path)?;
        std::fs::remove_file(name).context("remove", &self.path)
    }

    /// Opens the file again on the mount, so that bytes that were cached before are read again.
    pub(super) fn reopen_mounted(&self, write: bool) -> Result<File> {
        OpenOptions::new()
            .read(!write)
            .write(write)
            .open(self.stable_path()?)
            .context("open", &self.path)
    }

    /// Opens the bytes of the file besides its pieces, for reading; as
    /// [`OpenVolumeFile::reopen_mounted`].
    pub(super) fn open_base(&self) -> Result<BaseSource> {
        if self.mounted_file()?.is_some() {
            return self.reopen_mounted(false).map(BaseSource::Mounted);
        }
        let layout = self.fetch_attr()?.layout;
        Ok(BaseSource::Object(self.open_object(layout.node(), layout.base())?))
    }

    /// Returns the size at the mount, or at the shard where the mount has no path to the file.
    pub(super) fn current_size(&self) -> Result<u64> {
        let Some(mounted) = self.mounted_file()? else { return Ok(self.fetch_attr()?.size) };
        let found = rustix::fs::fstat(mounted).context("stat", &self.path)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    pub(super) fn fetch_attr(&self) -> Result<Attr> {
        self.session.client.getattr(&Cred::ROOT, self.ino).daemon_context("stat", &self.path)
    }

    /// Opens one of its objects.
    pub(super) fn open_object(&self, node: NodeId, piece: Piece) -> Result<DataFile> {
        self.session
            .client
            .open_object(self.ino, node, piece, self.cap)
            .daemon_context("open", &self.path)
    }

    /// The roll of this node, once this handle has it open.
    pub(super) fn own_roll_file(&self) -> Option<&File> {
        self.roll.get().and_then(|roll| roll.file())
    }

    /// An object of this node as a file of this process; nothing where it is not there.
    pub(super) fn open_local_object(&self, piece: Piece, create: bool) -> Result<Option<File>> {
        let object = self.open_object(self.session.node, piece)?;
        let found = object.local_file(create).daemon_context("open", &self.path)?;
        let fd = found.map(|fd| fd.try_clone()).transpose().context("open", &self.path)?;
        Ok(fd.map(File::from))
    }

    /// Opens objects of this node with one request; creates those that do not exist.
    pub(super) fn create_objects<const N: usize>(&self, pieces: [Piece; N]) -> Result<[File; N]> {
        let made = self.make_all(&pieces)?;
        made.try_into().map_err(|_| TiledError::new("create a piece of", &self.path, Errno::IO))
    }

    /// As [`OpenVolumeFile::create_objects`], of at most
    /// [`OPEN_MAX`](tatami_wire::object::OPEN_DESCRIPTORS_MAX) objects.
    pub(super) fn make_all(&self, pieces: &[Piece]) -> Result<Vec<File>> {
        let Some((first, more)) = pieces.split_first() else { return Ok(Vec::new()) };
        let object = self.open_object(self.session.node, *first)?;
        let made = object.make_local_files(more).daemon_context("create a piece of", &self.path)?;
        Ok(made.into_iter().map(File::from).collect())
    }
}

/// Checks by open(2) whether the file may be opened with the requested access. Reading and writing
/// are checked by two opens: the mount refuses both at once while a program has the file open since
/// before it had tiles. No bytes pass through these descriptors.
fn check_open_permission(path: &Path, flags: Flags) -> Result<()> {
    let read = match flags.can_read() || !flags.can_write() {
        true => Some(File::open(path).context("open", path)?),
        false => None,
    };
    match (flags.can_write(), read) {
        (false, Some(_)) => Ok(()),
        _ => OpenOptions::new().write(true).open(path).context("open", path).map(drop),
    }
}
