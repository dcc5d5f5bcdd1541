//! Names and attributes: those of the shown directory, except for containers.

use super::bytes::{self, OverlayFile};
use super::error::{OverlayResult, io_errno};
use parking_lot::RwLock;
use rustix::fs::{AtFlags, CWD, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tatami_fuse::abi::ROOT_ID;
use tatami_fuse::request::{FuseSetAttr, FuseSetTime};
use tatami_fuse::{FuseAttr, FuseTime};

fn system_errno(errno: rustix::io::Errno) -> i32 {
    errno.raw_os_error()
}

#[derive(Default)]
struct PathMaps {
    paths: HashMap<u64, PathBuf>,
    /// The last assigned number.
    last: u64,
    numbers: HashMap<PathBuf, u64>,
}

/// The mapping between inode numbers and paths. A name keeps its number while it exists.
pub(super) struct PathTable {
    root: PathBuf,
    table: RwLock<PathMaps>,
}

type UidGid = (u32, u32);

fn to_fuse_time(sec: i64, nsec: i64) -> FuseTime {
    FuseTime { sec, nsec: nsec as u32 }
}

impl PathTable {
    pub fn new(root: PathBuf) -> PathTable {
        let mut table = PathMaps { last: ROOT_ID, ..PathMaps::default() };
        table.paths.insert(ROOT_ID, root.clone());
        table.numbers.insert(root.clone(), ROOT_ID);
        PathTable { root, table: RwLock::new(table) }
    }

    /// Returns the path of an inode number.
    pub fn path_of(&self, node: u64) -> OverlayResult<PathBuf> {
        self.table.read().paths.get(&node).cloned().ok_or(libc::ESTALE)
    }

    fn child_path(&self, parent: u64, name: &[u8]) -> OverlayResult<PathBuf> {
        Ok(self.path_of(parent)?.join(OsStr::from_bytes(name)))
    }

    fn assign_number(&self, path: &Path) -> u64 {
        if let Some(number) = self.table.read().numbers.get(path) {
            return *number;
        }
        let mut table = self.table.write();
        if let Some(number) = table.numbers.get(path) {
            return *number;
        }
        table.last += 1;
        let number = table.last;
        table.paths.insert(number, path.to_path_buf());
        table.numbers.insert(path.to_path_buf(), number);
        number
    }

    fn forget_path(&self, path: &Path) {
        let mut table = self.table.write();
        let gone: Vec<PathBuf> =
            table.numbers.keys().filter(|known| known.starts_with(path)).cloned().collect();
        for path in gone {
            // Keep the path of the number for open files. The number is never reused.
            table.numbers.remove(&path);
        }
    }

    fn move_paths(&self, from: &Path, to: &Path) {
        let mut table = self.table.write();
        let moved: Vec<(PathBuf, u64)> = table
            .numbers
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, number)| (path.clone(), *number))
            .collect();
        for (old, number) in moved {
            let Ok(rest) = old.strip_prefix(from) else { continue };
            let new = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            table.numbers.remove(&old);
            table.numbers.insert(new.clone(), number);
            table.paths.insert(number, new);
        }
    }

    pub fn lookup(&self, parent: u64, name: &[u8]) -> OverlayResult<FuseAttr> {
        self.entry_attr(&self.child_path(parent, name)?)
    }

    fn entry_attr(&self, path: &Path) -> OverlayResult<FuseAttr> {
        let attr = read_attr(path, None)?;
        Ok(FuseAttr { ino: self.assign_number(path), ..attr })
    }

    /// Returns the attributes of a number. Those of an open file do not need the file's name.
    pub fn get_attr(&self, node: u64, open: Option<&OverlayFile>) -> OverlayResult<FuseAttr> {
        let attr = read_attr(&self.path_of(node)?, open)?;
        Ok(FuseAttr { ino: node, ..attr })
    }

    pub fn set_attr(
        &self,
        node: u64,
        set: &FuseSetAttr,
        open: Option<&OverlayFile>,
    ) -> OverlayResult<FuseAttr> {
        let path = self.path_of(node)?;
        let container = tatami_tiled::is_container(&path);
        if let Some(size) = set.size {
            match open {
                Some(handle) => handle.set_size(size)?,
                None => bytes::set_size_at(&path, size)?,
            }
        }
        if let Some(mode) = set.mode {
            // A user with read or write permission on a container must be able to enter its
            // directory.
            let enter = if container { mode >> 2 & 0o111 } else { 0 };
            let mode = Mode::from_raw_mode(mode & 0o7777 | enter);
            rustix::fs::chmod(&path, mode).map_err(system_errno)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            change_owner(&path, (set.uid, set.gid))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let spec = |time: Option<FuseSetTime>| match time {
                None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
                Some(FuseSetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                Some(FuseSetTime::At(at)) => Timespec { tv_sec: at.sec, tv_nsec: at.nsec.into() },
            };
            let times =
                Timestamps { last_access: spec(set.atime), last_modification: spec(set.mtime) };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(system_errno)?;
        }
        self.get_attr(node, open)
    }

    pub fn symlink(
        &self,
        parent: u64,
        name: &[u8],
        target: &[u8],
        owner: UidGid,
    ) -> OverlayResult<FuseAttr> {
        let path = self.child_path(parent, name)?;
        std::os::unix::fs::symlink(OsStr::from_bytes(target), &path).map_err(io_errno)?;
        self.give_to_caller(&path, owner)
    }

    pub fn mknod(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
        owner: UidGid,
    ) -> OverlayResult<FuseAttr> {
        let path = self.child_path(parent, name)?;
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let permissions = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::mknodat(CWD, &path, kind, permissions, rdev.into()).map_err(system_errno)?;
        rustix::fs::chmod(&path, permissions).map_err(system_errno)?;
        self.give_to_caller(&path, owner)
    }

    /// Creates and opens a file. A file that exists is opened, unless `flags` contain `O_EXCL`.
    pub fn create(
        &self,
        parent: u64,
        name: &[u8],
        (mode, flags): (u32, i32),
        owner: UidGid,
    ) -> OverlayResult<(FuseAttr, OverlayFile)> {
        let path = self.child_path(parent, name)?;
        match OverlayFile::create_path(&path, flags, mode) {
            Ok(file) => Ok((self.give_to_caller(&path, owner)?, file)),
            Err(libc::EEXIST) if flags & libc::O_EXCL == 0 => {
                let file = OverlayFile::open_path(&path, flags)?;
                Ok((self.entry_attr(&path)?, file))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Returns the number of the directory above `node`, as a listing shows it.
    pub fn parent_number(&self, node: u64) -> OverlayResult<u64> {
        let path = self.path_of(node)?;
        if path == self.root {
            return Ok(ROOT_ID);
        }
        Ok(path.parent().map_or(ROOT_ID, |above| self.assign_number(above)))
    }

    pub fn mkdir(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        owner: UidGid,
    ) -> OverlayResult<FuseAttr> {
        let path = self.child_path(parent, name)?;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::mkdir(&path, mode).map_err(system_errno)?;
        rustix::fs::chmod(&path, mode).map_err(system_errno)?;
        self.give_to_caller(&path, owner)
    }

    /// Gives a new inode to the caller.
    fn give_to_caller(&self, path: &Path, owner: UidGid) -> OverlayResult<FuseAttr> {
        if rustix::process::geteuid().is_root() && owner != (0, 0) {
            change_owner(path, (Some(owner.0), Some(owner.1)))?;
        }
        self.entry_attr(path)
    }

    pub fn unlink(&self, parent: u64, name: &[u8]) -> OverlayResult<()> {
        let path = self.child_path(parent, name)?;
        remove_path(&path)?;
        self.forget_path(&path);
        Ok(())
    }

    pub fn rmdir(&self, parent: u64, name: &[u8]) -> OverlayResult<()> {
        let path = self.child_path(parent, name)?;
        if tatami_tiled::is_container(&path) {
            return Err(libc::ENOTDIR);
        }
        std::fs::remove_dir(&path).map_err(io_errno)?;
        self.forget_path(&path);
        Ok(())
    }

    pub fn link(&self, node: u64, parent: u64, name: &[u8]) -> OverlayResult<FuseAttr> {
        let from = self.path_of(node)?;
        if tatami_tiled::is_container(&from) {
            return Err(libc::EPERM);
        }
        let path = self.child_path(parent, name)?;
        rustix::fs::linkat(CWD, &from, CWD, &path, AtFlags::empty()).map_err(system_errno)?;
        self.entry_attr(&path)
    }

    pub fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> OverlayResult<()> {
        let (from, to) = (self.child_path(from.0, from.1)?, self.child_path(to.0, to.1)?);
        let flags = RenameFlags::from_bits(flags).ok_or(libc::EINVAL)?;
        let containers = [&from, &to].map(|path| tatami_tiled::is_container(path));
        if flags.is_empty() && containers.contains(&true) && to.symlink_metadata().is_ok() {
            self.replace_target(&from, &to)?;
        } else {
            rustix::fs::renameat_with(CWD, &from, CWD, &to, flags).map_err(system_errno)?;
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            // The three moves go through a reserved path, so that neither subtree overwrites the
            // other.
            let middle = self.root.join(".exchanged");
            self.move_paths(&from, &middle);
            self.move_paths(&to, &from);
            self.move_paths(&middle, &to);
        } else {
            self.forget_path(&to);
            self.move_paths(&from, &to);
        }
        Ok(())
    }

    /// Renames over an existing target if either is a container. In the shown directory one of them
    /// is a directory, so rename(2) would fail. So the two are exchanged first, and then the old
    /// target is removed.
    fn replace_target(&self, from: &Path, to: &Path) -> OverlayResult<()> {
        if to.symlink_metadata().map_err(io_errno)?.is_dir() && !tatami_tiled::is_container(to) {
            return Err(libc::EISDIR);
        }
        if from.symlink_metadata().map_err(io_errno)?.is_dir() && !tatami_tiled::is_container(from)
        {
            return Err(libc::ENOTDIR);
        }
        rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE)
            .map_err(system_errno)?;
        remove_path(from)
    }
}

fn remove_path(path: &Path) -> OverlayResult<()> {
    if !tatami_tiled::is_container(path) || path.is_symlink() {
        return std::fs::remove_file(path).map_err(io_errno);
    }
    tatami_tiled::stat::delete_file(path).map_err(|e| e.errno.raw_os_error())
}

fn change_owner(path: &Path, owner: (Option<u32>, Option<u32>)) -> OverlayResult<()> {
    let (uid, gid) = (owner.0.map(Uid::from_raw), owner.1.map(Gid::from_raw));
    rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(system_errno)
}

/// Returns attributes without the inode number.
fn read_attr(path: &Path, open: Option<&OverlayFile>) -> OverlayResult<FuseAttr> {
    let meta = match open.and_then(OverlayFile::as_plain) {
        Some(file) => file.metadata(),
        None => path.symlink_metadata(),
    };
    let meta = meta.map_err(io_errno)?;
    let mut attr = FuseAttr {
        size: meta.size(),
        blocks: meta.blocks(),
        atime: to_fuse_time(meta.atime(), meta.atime_nsec()),
        mtime: to_fuse_time(meta.mtime(), meta.mtime_nsec()),
        ctime: to_fuse_time(meta.ctime(), meta.ctime_nsec()),
        mode: meta.mode(),
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: meta.rdev() as u32,
        ..FuseAttr::default()
    };
    if meta.is_dir() && tatami_tiled::is_container(path) {
        let found = tatami_tiled::stat::stat_file(path).map_err(|e| e.errno.raw_os_error())?;
        attr.size = open.and_then(OverlayFile::container_size).unwrap_or(found.size);
        attr.blocks = attr.size.div_ceil(512);
        attr.mtime = to_fuse_time(found.modified.0, found.modified.1);
        attr.mode = found.mode;
        attr.nlink = 1;
    }
    Ok(attr)
}
