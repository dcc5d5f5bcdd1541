//! Files that a command at the other site copies: sources that are read, and sinks that are
//! written. A new file has no name before it is complete. Where the file system can have files
//! without a name, nothing of it is left even if this process is killed.

use crate::path_calls::{attr_of_file, change_file, failed, is_kind, read_attr};
use crate::refusal::{FILES_MAX, not_open, refuse};
use crate::tree_removal::split_path;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, linkat, openat, renameat, seek, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tatami_remote::{RemoteFailure, SiteAttr, SiteChange, SiteEntry};

/// Bytes of a name that a temporary name keeps.
const STEM_MAX: usize = 200;
/// Tries to find a temporary name that is free.
const NAMES_MAX: u32 = 1000;
/// The permission bit with which the owner may write.
const OWNER_WRITES: u32 = 0o200;

/// The files that are open for copies, by the numbers that the other side has chosen.
#[derive(Default)]
pub(crate) struct CopyFiles(HashMap<u64, CopyFile>);

/// A file that is open for a copy.
pub(crate) struct CopyFile {
    file: File,
    sink: Option<SinkPlace>,
    /// The first failed write: the file must not get its name.
    error: Option<RemoteFailure>,
}

/// Where a file goes that is being written.
struct SinkPlace {
    /// The directory and the name of a new file. `None`: the file keeps its inode.
    new: Option<(OwnedFd, OsString)>,
    /// A name that it has meanwhile, if the file system needs one.
    temporary: Option<OsString>,
    /// The file that it replaces.
    old: Option<SiteAttr>,
}

impl CopyFiles {
    pub(crate) fn find(&mut self, file: u64) -> Option<&mut CopyFile> {
        self.0.get_mut(&file)
    }

    pub(crate) fn close(&mut self, file: u64) {
        self.0.remove(&file);
    }

    fn insert(&mut self, number: u64, file: CopyFile) -> Result<(), RemoteFailure> {
        if self.0.len() >= FILES_MAX {
            return Err(refuse(Errno::MFILE, "too many open files"));
        }
        self.0.insert(number, file);
        Ok(())
    }

    /// Opens a regular file; with `same`, that inode.
    pub(crate) fn open_source(
        &mut self,
        number: u64,
        path: &Path,
        same: Option<(u64, u64)>,
    ) -> Result<SiteEntry, RemoteFailure> {
        // A pipe without a writer must not stop all calls.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(openat(CWD, path, flags, Mode::empty()).map_err(failed)?);
        let attr = attr_of_file(&file).map_err(failed)?;
        if is_kind(&attr, FileType::Directory) {
            return Err(failed(Errno::ISDIR));
        }
        if !is_kind(&attr, FileType::RegularFile) {
            return Err(refuse(Errno::INVAL, "it is a special file"));
        }
        if same.is_some_and(|same| same != (attr.dev, attr.ino)) {
            return Err(refuse(Errno::STALE, "another file has its name by now"));
        }
        self.insert(number, CopyFile { file, sink: None, error: None })?;
        Ok(SiteEntry { name: Vec::new().into(), attr, target: None })
    }

    /// Opens a file to be written.
    pub(crate) fn open_sink(
        &mut self,
        number: u64,
        path: &Path,
        mode: u32,
    ) -> Result<(), RemoteFailure> {
        let file = CopyFile::create(path, mode).map_err(failed)?;
        self.insert(number, file)
    }

    /// Completes a file and closes it.
    pub(crate) fn finish_sink(
        &mut self,
        number: u64,
        change: SiteChange,
        may_replace: bool,
    ) -> Result<(), RemoteFailure> {
        let file = self.0.remove(&number).ok_or_else(not_open)?;
        file.finish(change, may_replace)
    }
}

/// Whether a copy over this file must keep its inode: a new file in its place would lose another
/// name, attributes, or the owner, or it is a device or a pipe.
fn must_keep_inode(path: &Path, old: &SiteAttr) -> bool {
    let own = (geteuid().as_raw(), getegid().as_raw());
    let is_ours = geteuid().is_root() || (old.uid, old.gid) == own;
    let mut none: [u8; 0] = [];
    let mut has_xattrs = || match rustix::fs::listxattr(path, &mut none) {
        Ok(length) => length > 0,
        Err(e) => e != Errno::OPNOTSUPP,
    };
    !is_kind(old, FileType::RegularFile) || old.nlink > 1 || !is_ours || has_xattrs()
}

/// Creates a file in `dir` that has no name of its own yet.
fn create_new(
    dir: &OwnedFd,
    name: &OsStr,
    mode: Mode,
) -> Result<(OwnedFd, Option<OsString>), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    // A file without a name gets one by way of /proc.
    if Path::new("/proc/self/fd").exists() {
        match openat(dir, c".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => return Ok((file, None)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(e) => return Err(e),
        }
    }
    with_free_name(name, |temporary| {
        let only_new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        openat(dir, temporary, flags | only_new, mode)
    })
    .map(|(file, temporary)| (file, Some(temporary)))
}

/// Runs `create` with temporary names until one is free.
fn with_free_name<T>(
    name: &OsStr,
    mut create: impl FnMut(&OsStr) -> Result<T, Errno>,
) -> Result<(T, OsString), Errno> {
    let stem = &name.as_bytes()[..name.len().min(STEM_MAX)];
    for number in 0..NAMES_MAX {
        let end = format!(".{}-{number}", std::process::id());
        let temporary = OsString::from_vec([b".", stem, end.as_bytes()].concat());
        match create(&temporary) {
            Ok(made) => return Ok((made, temporary)),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}

impl CopyFile {
    fn create(path: &Path, mode: u32) -> Result<CopyFile, Errno> {
        // A link at the end stays: the file that it leads to is replaced.
        let is_link = |attr: &SiteAttr| is_kind(attr, FileType::Symlink);
        let path = match read_attr(CWD, path, false) {
            Ok(attr) if is_link(&attr) => {
                path.canonicalize().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?
            }
            _ => PathBuf::from(path),
        };
        let old = match read_attr(CWD, &path, true) {
            Ok(old) if is_kind(&old, FileType::Directory) => return Err(Errno::ISDIR),
            Ok(old) => Some(old),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(e),
        };
        if old.as_ref().is_some_and(|old| must_keep_inode(&path, old)) {
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = File::from(openat(CWD, &path, flags | OFlags::NOCTTY, Mode::empty())?);
            let sink = Some(SinkPlace { new: None, temporary: None, old });
            return Ok(CopyFile { file, sink, error: None });
        }
        if old.is_some_and(|old| old.mode & OWNER_WRITES == 0) && !geteuid().is_root() {
            return Err(Errno::ACCESS);
        }
        let (dir, name) = split_path(&path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, dir, flags, Mode::empty())?;
        let (file, temporary) = create_new(&dir, name, Mode::from_raw_mode(mode & 0o777))?;
        let sink = Some(SinkPlace { new: Some((dir, name.to_owned())), temporary, old });
        Ok(CopyFile { file: File::from(file), sink, error: None })
    }

    /// Reads at an offset until `into` is full or the file ends. Returns the number of bytes.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, RemoteFailure> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(Errno::from_io_error(&e).unwrap_or(Errno::IO))),
            }
        }
        Ok(done)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RemoteFailure> {
        let written = self.file.write_all_at(bytes, offset);
        self.keep_error(written)
    }

    pub(crate) fn set_size(&mut self, size: u64) -> Result<(), RemoteFailure> {
        let set = self.file.set_len(size);
        self.keep_error(set)
    }

    fn keep_error(&mut self, result: std::io::Result<()>) -> Result<(), RemoteFailure> {
        result.map_err(|e| {
            let failure = failed(Errno::from_io_error(&e).unwrap_or(Errno::IO));
            self.error.get_or_insert(failure).clone()
        })
    }

    /// Returns the next range of data at or after `from`.
    pub(crate) fn find_data(&self, from: u64) -> Result<Option<(u64, u64)>, RemoteFailure> {
        let start = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        match seek(&self.file, SeekFrom::Hole(start)) {
            Ok(end) => Ok((end > start).then_some((start, end))),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(failed(e)),
        }
    }

    fn finish(mut self, change: SiteChange, may_replace: bool) -> Result<(), RemoteFailure> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(sink) = &mut self.sink else { return Err(not_open()) };
        let old = sink.old.filter(|_| sink.new.is_some());
        let owner = old.filter(|_| geteuid().is_root()).map(|old| (old.uid, old.gid));
        let mode = change.mode.or(old.map(|old| old.mode & 0o7777));
        change_file(&self.file, owner, SiteChange { mode, ..change }).map_err(failed)?;
        sink.give_name(&self.file, may_replace).map_err(failed)
    }
}

impl SinkPlace {
    fn give_name(&mut self, file: &File, may_replace: bool) -> Result<(), Errno> {
        let Some((dir, name)) = &self.new else { return Ok(()) };
        let link_as = |name: &OsStr| match &self.temporary {
            Some(temporary) => linkat(dir, temporary, dir, name, AtFlags::empty()),
            None => {
                let own = format!("/proc/self/fd/{}", file.as_raw_fd());
                linkat(CWD, own, dir, name, AtFlags::SYMLINK_FOLLOW)
            }
        };
        if !may_replace || self.temporary.is_none() {
            match link_as(name) {
                Err(Errno::EXIST) if may_replace => {
                    let ((), temporary) = with_free_name(name, link_as)?;
                    self.temporary = Some(temporary);
                }
                // A temporary name is removed when this value ends.
                linked => return linked,
            }
        }
        let Some((dir, name)) = &self.new else { return Ok(()) };
        if let Some(temporary) = &self.temporary {
            renameat(dir, temporary, dir, name)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for SinkPlace {
    fn drop(&mut self) {
        if let (Some((dir, _)), Some(temporary)) = (&self.new, &self.temporary) {
            // Nothing can be done about a name that cannot be removed.
            let _ = unlinkat(dir, temporary, AtFlags::empty());
        }
    }
}
