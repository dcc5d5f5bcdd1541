//! The directories and files that a mount at the other site uses, below its root here.
//!
//! A directory that was found once stays open, so it is found again after a rename. Their number is
//! bounded. A path is followed name by name, and no symbolic link is followed: the kernel at the
//! other site follows links itself. What a path leads to must have the expected device and inode
//! number.

use crate::path_calls::{SiteListing, attr_of_file, failed, is_kind, read_attr};
use crate::refusal::{FILES_MAX, not_open, refuse};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tatami_remote::{RemoteFailure, RemoteReply, SiteAttr, SiteDir, SiteNode};

/// Most directories that are kept open.
const DIRS_MAX: usize = 512;
/// Most listings of which some pieces have been sent.
const LISTINGS_MAX: usize = 256;

/// Directories, files and listings of a mount.
#[derive(Default)]
pub(crate) struct MountTable {
    root: Option<Rc<OwnedFd>>,
    dirs: HashMap<(u64, u64), KeptDir>,
    /// Counts the uses of directories.
    uses: u64,
    pub(crate) files: HashMap<u64, File>,
    listings: HashMap<u64, SiteListing>,
}

struct KeptDir {
    fd: Rc<OwnedFd>,
    last_use: u64,
}

/// Checks a name of an entry. One that could lead elsewhere is refused.
pub(crate) fn entry_name(name: &[u8]) -> Result<&Path, Errno> {
    match name {
        b"" | b"." | b".." => Err(Errno::INVAL),
        name if name.iter().any(|b| matches!(b, b'/' | 0)) => Err(Errno::INVAL),
        name => Ok(Path::new(OsStr::from_bytes(name))),
    }
}

/// Returns the path by which a call reaches an open inode of any kind.
pub(crate) fn path_of_fd(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// An error of a path that leads to another inode than before.
fn stale_if_gone(errno: Errno) -> Errno {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::STALE,
        other => other,
    }
}

fn identity_of(fd: impl AsFd) -> Result<(u64, u64), Errno> {
    let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
    Ok((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

impl MountTable {
    /// Opens the root. All permissions of new files are decided at the other site from then on.
    pub(crate) fn open_root(&mut self, path: &Path) -> Result<RemoteReply, RemoteFailure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let attr = attr_of_file(&root).map_err(failed)?;
        rustix::process::umask(Mode::empty());
        // Each file that the mount has open takes a descriptor here. Fewer are no error.
        let maximum = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        *self = MountTable { root: Some(Rc::new(root)), ..MountTable::default() };
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        Ok(RemoteReply::Mounted { attr, uid, gid })
    }

    /// Returns the root.
    pub(crate) fn root(&self) -> Result<Rc<OwnedFd>, Errno> {
        self.root.clone().ok_or(Errno::BADF)
    }

    /// Returns an open file.
    pub(crate) fn file(&self, number: u64) -> Result<&File, RemoteFailure> {
        self.files.get(&number).ok_or_else(not_open)
    }

    /// Keeps an open file, which must be a regular one.
    pub(crate) fn keep_file(&mut self, number: u64, file: OwnedFd) -> Result<SiteAttr, Errno> {
        let attr = attr_of_file(&file)?;
        match attr {
            attr if is_kind(&attr, FileType::Directory) => Err(Errno::ISDIR),
            attr if !is_kind(&attr, FileType::RegularFile) => Err(Errno::INVAL),
            _ if self.files.len() >= FILES_MAX => Err(Errno::MFILE),
            attr => {
                self.files.insert(number, File::from(file));
                Ok(attr)
            }
        }
    }

    /// Finds a directory.
    pub(crate) fn find_dir(&mut self, dir: &SiteDir) -> Result<Rc<OwnedFd>, Errno> {
        self.uses += 1;
        if let Some(kept) = self.dirs.get_mut(&dir.id) {
            kept.last_use = self.uses;
            return Ok(kept.fd.clone());
        }
        let mut fd = self.root()?;
        for name in dir.path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = openat(&*fd, entry_name(name)?, flags, Mode::empty());
            fd = Rc::new(next.map_err(stale_if_gone)?);
        }
        if identity_of(&*fd)? != dir.id {
            return Err(Errno::STALE);
        }
        self.keep_dir(dir.id, fd.clone());
        Ok(fd)
    }

    fn keep_dir(&mut self, id: (u64, u64), fd: Rc<OwnedFd>) {
        if self.dirs.len() >= DIRS_MAX {
            let oldest = self.dirs.iter().min_by_key(|(_, kept)| kept.last_use);
            if let Some(id) = oldest.map(|(id, _)| *id) {
                self.dirs.remove(&id);
            }
        }
        self.dirs.insert(id, KeptDir { fd, last_use: self.uses });
    }

    /// Keeps a directory that a search has found, so that later calls find it without its path.
    pub(crate) fn keep_found(&mut self, at: &OwnedFd, name: &Path, attr: &SiteAttr) {
        let id = (attr.dev, attr.ino);
        if !is_kind(attr, FileType::Directory) || self.dirs.contains_key(&id) {
            return;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Another directory can have the name by now, and then a later call finds this one.
        if let Ok(fd) = openat(at, name, flags, Mode::empty())
            && identity_of(&fd) == Ok(id)
        {
            self.uses += 1;
            self.keep_dir(id, Rc::new(fd));
        }
    }

    /// Returns the directory of an inode and its name there, after a check of its numbers. The name
    /// of a directory is `.` in itself.
    pub(crate) fn find_node(
        &mut self,
        node: &SiteNode,
    ) -> Result<(Rc<OwnedFd>, PathBuf, SiteAttr), Errno> {
        let dir = self.find_dir(&node.dir)?;
        let name = match node.name.is_empty() {
            true => Path::new("."),
            false => entry_name(&node.name)?,
        };
        let attr = read_attr(&*dir, name, false).map_err(stale_if_gone)?;
        match (attr.dev, attr.ino) == node.id {
            true => Ok((dir, name.to_owned(), attr)),
            false => Err(Errno::STALE),
        }
    }

    /// Opens an inode.
    pub(crate) fn open_node(&mut self, node: &SiteNode, flags: OFlags) -> Result<OwnedFd, Errno> {
        let dir = self.find_dir(&node.dir)?;
        let name = match node.name.is_empty() {
            true => Path::new("."),
            false => entry_name(&node.name)?,
        };
        // A pipe or a device must not stop all calls.
        let always = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = openat(&*dir, name, flags | always, Mode::empty()).map_err(stale_if_gone)?;
        match identity_of(&fd)? == node.id {
            true => Ok(fd),
            false => Err(Errno::STALE),
        }
    }

    /// Lists one piece of a directory.
    pub(crate) fn list_piece(
        &mut self,
        dir: &SiteDir,
        number: u64,
        piece: u32,
    ) -> Result<RemoteReply, RemoteFailure> {
        let mut listing = match (self.listings.remove(&number), piece) {
            (_, 0) if self.listings.len() >= LISTINGS_MAX => return Err(failed(Errno::MFILE)),
            (_, 0) => {
                let fd = self.find_dir(dir).map_err(failed)?;
                SiteListing::begin(&*fd, Path::new("."), number).map_err(failed)?
            }
            (Some(known), piece) if known.next() == piece => known,
            _ => return Err(refuse(Errno::STALE, "the listing is not known")),
        };
        let (entries, is_last) = listing.read_piece()?;
        if !is_last {
            self.listings.insert(number, listing);
        }
        Ok(RemoteReply::Entries { entries, is_last })
    }

    /// Forgets a listing.
    pub(crate) fn end_listing(&mut self, number: u64) {
        self.listings.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn dir_at(base: &Path, path: &str) -> SiteDir {
        let found = fs::symlink_metadata(base.join(path)).expect("it is there");
        SiteDir { path: path.as_bytes().to_vec().into(), id: (found.dev(), found.ino()) }
    }

    fn node_at(base: &Path, dir: &str, name: &str) -> SiteNode {
        let found = fs::symlink_metadata(base.join(dir).join(name)).expect("it is there");
        let id = (found.dev(), found.ino());
        SiteNode { dir: dir_at(base, dir), name: name.as_bytes().to_vec().into(), id }
    }

    fn open_root(base: &Path) -> MountTable {
        let mut table = MountTable::default();
        table.open_root(base).expect("the root is there");
        table
    }

    #[test]
    fn a_planted_link_is_not_followed() {
        let (base, other) =
            (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
        fs::write(other.path().join("secret"), "x").expect("written");
        fs::create_dir(base.path().join("d")).expect("made");
        fs::write(base.path().join("d/secret"), "y").expect("written");
        let node = node_at(base.path(), "d", "secret");
        fs::rename(base.path().join("d"), base.path().join("e")).expect("renamed");
        symlink(other.path(), base.path().join("d")).expect("made");
        let mut table = open_root(base.path());
        assert_eq!(table.open_node(&node, OFlags::RDONLY).err(), Some(Errno::STALE));
        for path in ["../d", "/d", "a/../../etc"] {
            let id = node.dir.id;
            let dir = SiteDir { path: path.as_bytes().to_vec().into(), id };
            assert!(table.find_dir(&dir).is_err(), "{path}");
        }
    }

    #[test]
    fn a_known_directory_is_found_after_a_rename_and_another_file_is_stale() {
        let base = tempfile::tempdir().expect("made");
        fs::create_dir(base.path().join("d")).expect("made");
        fs::write(base.path().join("d/f"), "one").expect("written");
        let node = node_at(base.path(), "d", "f");
        let mut table = open_root(base.path());
        table.find_node(&node).expect("it is there");
        fs::rename(base.path().join("d"), base.path().join("moved")).expect("renamed");
        let fd = table.open_node(&node, OFlags::RDONLY).expect("its directory is open");
        assert_eq!(identity_of(&fd), Ok(node.id));
        // The old inode stays open, so the new one has another number.
        fs::remove_file(base.path().join("moved/f")).expect("removed");
        fs::write(base.path().join("moved/f"), "two").expect("written");
        assert_eq!(table.open_node(&node, OFlags::RDONLY).err(), Some(Errno::STALE));
        assert_eq!(table.find_node(&node).err(), Some(Errno::STALE));
        assert_eq!(open_root(base.path()).find_node(&node).err(), Some(Errno::STALE));
    }

    #[test]
    fn the_number_of_open_directories_is_bounded() {
        let base = tempfile::tempdir().expect("made");
        let mut table = open_root(base.path());
        for number in 0..DIRS_MAX + 100 {
            let name = number.to_string();
            fs::create_dir(base.path().join(&name)).expect("made");
            table.find_dir(&dir_at(base.path(), &name)).expect("it is there");
        }
        assert_eq!(table.dirs.len(), DIRS_MAX);
        table.find_dir(&dir_at(base.path(), "0")).expect("found by its path");
    }
}
