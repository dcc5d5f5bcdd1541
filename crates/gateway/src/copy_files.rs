//! Files that a command at the other site copies: sources that are read, and sinks that are
//! written. A new file has no name before it is complete. Where the file system can have files
//! without a name, nothing of it is left even if this process is killed.

use crate::path_calls::{attr_of_file, change_file, failed, is_kind, read_attr};
use crate::refusal::{FILES_MAX, not_open, refuse};
use crate::tree_removal::split_path;
use parking_lot::{Mutex, RwLock};
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
use std::sync::Arc;
use tatami_remote::{
    BLOCK, BYTES_MAX, BlockSum, PartFile, PartRecord, PartStart, RemoteFailure, SiteAttr,
    SiteChange, SiteEntry, sum_file,
};

/// Bytes of a name that a temporary name keeps.
const STEM_MAX: usize = 200;
/// Tries to find a temporary name that is free.
const NAMES_MAX: u32 = 1000;
/// The permission bit with which the owner may write.
const OWNER_WRITES: u32 = 0o200;
/// Most blocks whose sums are computed by one call.
const SUMS_MAX: u64 = 64;

/// The files that are open for copies, by the numbers that the other side has chosen.
#[derive(Default)]
pub(crate) struct CopyFiles(RwLock<HashMap<u64, Arc<CopyFile>>>);

/// A file that is open for a copy. The threads of data connections use it as well.
pub(crate) struct CopyFile {
    file: File,
    sink: CopyPlace,
    /// The first failed write: the file must not get its name.
    error: Mutex<Option<RemoteFailure>>,
}

/// What a file is open for.
enum CopyPlace {
    Source,
    Sink(Mutex<SinkPlace>),
    /// A sink that a later copy can continue.
    Part {
        part: PartFile,
        /// Permissions of a new file.
        mode: u32,
        /// The file that it replaces.
        old: Option<SiteAttr>,
    },
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
    pub(crate) fn find(&self, file: u64) -> Option<Arc<CopyFile>> {
        self.0.read().get(&file).cloned()
    }

    pub(crate) fn close(&self, file: u64) {
        let removed = self.0.write().remove(&file);
        // Its last steps on the disk happen without the lock of the table.
        drop(removed);
    }

    fn insert(&self, number: u64, file: CopyFile) -> Result<(), RemoteFailure> {
        let mut files = self.0.write();
        if files.len() >= FILES_MAX {
            return Err(refuse(Errno::MFILE, "too many open files"));
        }
        files.insert(number, Arc::new(file));
        Ok(())
    }

    /// Opens a regular file; with `same`, that inode.
    pub(crate) fn open_source(
        &self,
        number: u64,
        path: &Path,
        same: Option<(u64, u64)>,
    ) -> Result<SiteEntry, RemoteFailure> {
        let (file, attr) = open_regular(path)?;
        if same.is_some_and(|same| same != (attr.dev, attr.ino)) {
            return Err(refuse(Errno::STALE, "another file has its name by now"));
        }
        let sink = CopyPlace::Source;
        self.insert(number, CopyFile { file, sink, error: Mutex::default() })?;
        Ok(SiteEntry { name: Vec::new().into(), attr, target: None })
    }

    /// Opens a file to be written.
    pub(crate) fn open_sink(
        &self,
        number: u64,
        path: &Path,
        mode: u32,
    ) -> Result<(), RemoteFailure> {
        let file = CopyFile::create(path, mode).map_err(failed)?;
        self.insert(number, file)
    }

    /// Opens a file to be written that a later copy can continue. `record` is that of the source.
    pub(crate) fn open_part(
        &self,
        number: u64,
        path: &Path,
        mode: u32,
        record: &[u8],
    ) -> Result<PartStart, RemoteFailure> {
        let record = PartRecord::decode(record);
        let record = record.map_err(|e| refuse(Errno::INVAL, &e.to_string()))?;
        let (file, start) = CopyFile::create_part(path, mode, &record).map_err(failed)?;
        self.insert(number, file)?;
        Ok(start)
    }

    /// Completes a file and closes it.
    pub(crate) fn finish_sink(
        &self,
        number: u64,
        change: SiteChange,
        may_replace: bool,
    ) -> Result<(), RemoteFailure> {
        let file = self.0.write().remove(&number).ok_or_else(not_open)?;
        file.finish(change, may_replace)
    }
}

fn open_regular(path: &Path) -> Result<(File, SiteAttr), RemoteFailure> {
    // A pipe without a writer must not stop all calls.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat(CWD, path, flags, Mode::empty()).map_err(failed)?);
    let attr = attr_of_file(&file).map_err(failed)?;
    if is_kind(&attr, FileType::Directory) {
        return Err(failed(Errno::ISDIR));
    }
    match is_kind(&attr, FileType::RegularFile) {
        true => Ok((file, attr)),
        false => Err(refuse(Errno::INVAL, "it is a special file")),
    }
}

/// Makes a whole file.
pub(crate) fn put_file(
    path: &Path,
    mode: u32,
    change: SiteChange,
    may_replace: bool,
    bytes: &[u8],
) -> Result<(), RemoteFailure> {
    let file = CopyFile::create(path, mode).map_err(failed)?;
    file.write(0, bytes)?;
    file.finish(change, may_replace)
}

/// Reads a file from its start, at most `len` bytes.
pub(crate) fn fetch_file(
    path: &Path,
    len: u32,
    out: &mut Vec<u8>,
) -> Result<SiteAttr, RemoteFailure> {
    let (file, attr) = open_regular(path)?;
    out.resize((len as usize).min(BYTES_MAX), 0);
    let read = read_full(&file, 0, out);
    out.truncate(*read.as_ref().unwrap_or(&0));
    read.map(|_| attr)
}

/// Reads at an offset until `into` is full or the file ends. Returns the number of bytes.
fn read_full(file: &File, offset: u64, into: &mut [u8]) -> Result<usize, RemoteFailure> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(Errno::from_io_error(&e).unwrap_or(Errno::IO))),
        }
    }
    Ok(done)
}

/// Returns the umask of this process. No call returns it without a change of it.
fn read_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    mask.unwrap_or(0o077)
}

/// Returns the path behind a link at its end, and the file there.
fn find_target(path: &Path) -> Result<(PathBuf, Option<SiteAttr>), Errno> {
    // A link at the end stays: the file that it leads to is replaced.
    let is_link = |attr: &SiteAttr| is_kind(attr, FileType::Symlink);
    let path = match read_attr(CWD, path, false) {
        Ok(attr) if is_link(&attr) => {
            path.canonicalize().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?
        }
        _ => PathBuf::from(path),
    };
    match read_attr(CWD, &path, true) {
        Ok(old) if is_kind(&old, FileType::Directory) => Err(Errno::ISDIR),
        Ok(old) => Ok((path, Some(old))),
        Err(Errno::NOENT) => Ok((path, None)),
        Err(e) => Err(e),
    }
}

/// Opens the directory of a file that gets a new inode. Returns its name, too.
fn open_parent<'a>(path: &'a Path, old: Option<&SiteAttr>) -> Result<(OwnedFd, &'a OsStr), Errno> {
    if old.is_some_and(|old| old.mode & OWNER_WRITES == 0) && !geteuid().is_root() {
        return Err(Errno::ACCESS);
    }
    let (dir, name) = split_path(path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((openat(CWD, dir, flags, Mode::empty())?, name))
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
        let (path, old) = find_target(path)?;
        let sink = |file, place| CopyFile {
            file,
            sink: CopyPlace::Sink(Mutex::new(place)),
            error: Mutex::default(),
        };
        if old.as_ref().is_some_and(|old| must_keep_inode(&path, old)) {
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = File::from(openat(CWD, &path, flags | OFlags::NOCTTY, Mode::empty())?);
            return Ok(sink(file, SinkPlace { new: None, temporary: None, old }));
        }
        let (dir, name) = open_parent(&path, old.as_ref())?;
        let (file, temporary) = create_new(&dir, name, Mode::from_raw_mode(mode & 0o777))?;
        let new = Some((dir, name.to_owned()));
        Ok(sink(File::from(file), SinkPlace { new, temporary, old }))
    }

    fn create_part(
        path: &Path,
        mode: u32,
        record: &PartRecord,
    ) -> Result<(CopyFile, PartStart), Errno> {
        let (target, old) = find_target(path)?;
        if old.as_ref().is_some_and(|old| must_keep_inode(&target, old)) {
            return Ok((CopyFile::create(path, mode)?, PartStart::InPlace));
        }
        let (dir, name) = open_parent(&target, old.as_ref())?;
        let (part, start) = PartFile::open(dir, name, record)?;
        let file = part.file().try_clone().map_err(|_| Errno::MFILE)?;
        let sink = CopyPlace::Part { part, mode: mode & 0o777 & !read_umask(), old };
        Ok((CopyFile { file, sink, error: Mutex::default() }, start))
    }

    /// Reads at an offset until `into` is full or the file ends. Returns the number of bytes.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, RemoteFailure> {
        read_full(&self.file, offset, into)
    }

    /// Returns the sums of the blocks of a range, which has an upper bound.
    pub(crate) fn sum_blocks(
        &self,
        from: u64,
        end: u64,
    ) -> Result<Vec<Option<BlockSum>>, RemoteFailure> {
        match end.saturating_sub(from) > SUMS_MAX * BLOCK {
            true => Err(refuse(Errno::INVAL, "too many blocks at once")),
            false => sum_file(&self.file, from, end).map_err(failed),
        }
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), RemoteFailure> {
        let written = self.file.write_all_at(bytes, offset);
        self.keep_error(written)
    }

    pub(crate) fn set_size(&self, size: u64) -> Result<(), RemoteFailure> {
        let set = self.file.set_len(size);
        self.keep_error(set)
    }

    fn keep_error(&self, result: std::io::Result<()>) -> Result<(), RemoteFailure> {
        result.map_err(|e| {
            let failure = failed(Errno::from_io_error(&e).unwrap_or(Errno::IO));
            self.error.lock().get_or_insert(failure).clone()
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

    fn finish(&self, change: SiteChange, may_replace: bool) -> Result<(), RemoteFailure> {
        if let Some(error) = self.error.lock().take() {
            return Err(error);
        }
        let change_as = |old: Option<SiteAttr>, new_mode: Option<u32>| {
            let owner = old.filter(|_| geteuid().is_root()).map(|old| (old.uid, old.gid));
            let mode = change.mode.or(old.map(|old| old.mode & 0o7777)).or(new_mode);
            change_file(&self.file, owner, SiteChange { mode, ..change })
        };
        match &self.sink {
            CopyPlace::Source => Err(not_open()),
            CopyPlace::Sink(place) => {
                let mut place = place.lock();
                change_as(place.old.filter(|_| place.new.is_some()), None).map_err(failed)?;
                place.give_name(&self.file, may_replace).map_err(failed)
            }
            CopyPlace::Part { part, mode, old } => {
                let set_attrs = |_: &File| Ok(change_as(*old, Some(*mode))?);
                part.finish(may_replace, set_attrs)
                    .map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))
            }
        }
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
