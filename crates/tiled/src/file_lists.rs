//! Many small files of one directory by few requests: written as a whole, or read.
//!
//! On a mount of a volume, in a directory with the policy `inline`, up to 1,024 files share a
//! request. All other files, also those of other file systems, are opened and written or read one
//! by one, so a program can use these calls for any directory.

use crate::error::{ErrorContext, Result, TiledError};
use crate::volume::VolumeSession;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use tatami_client::FilledFile;
use tatami_wire::{Cred, GROUPS_MAX, Ino, InodeKind};

/// A file to write: its name in the directory, and all its bytes.
#[derive(Clone, Copy, Debug)]
pub struct NewContent<'a> {
    /// A name without `/`.
    pub name: &'a [u8],
    /// All bytes.
    pub bytes: &'a [u8],
}

/// A directory whose files are written or read.
struct ListedDir<'a> {
    path: &'a Path,
    handle: OwnedFd,
    /// The volume of the directory, and its inode there.
    volume: Option<(Arc<VolumeSession>, Ino)>,
}

/// Writes files into a directory. A file that exists gets these bytes instead of its own. `mode`
/// are permission bits, before the umask is applied. Returns a result for each file.
///
/// # Errors
/// Those of the directory; for each file those of open(2) and write(2).
pub fn write_files(dir: &Path, files: &[NewContent<'_>], mode: u16) -> Result<Vec<Result<()>>> {
    let dir = ListedDir::open(dir)?;
    let mut results: Vec<Option<Result<()>>> = vec![None; files.len()];
    if let Some((session, ino)) = &dir.volume {
        let (client, cred) = (&session.client, own_cred());
        // Without an answer the files are written one by one, which gives the right error.
        let limit = client.find_inline_limit(&cred, *ino).unwrap_or(0);
        let is_small = |file: &NewContent<'_>| limit > 0 && file.bytes.len() as u64 <= limit;
        let which: Vec<usize> = (0..files.len()).filter(|at| is_small(&files[*at])).collect();
        let new = which.iter().map(|at| FilledFile {
            name: files[*at].name.to_vec(),
            mode,
            bytes: files[*at].bytes.to_vec(),
            set: None,
        });
        let made = client.create_filled_many(&cred, *ino, new.collect(), read_umask());
        for (at, made) in which.into_iter().zip(made) {
            results[at] = made.is_ok().then_some(Ok(()));
        }
    }
    let each = files.iter().zip(results);
    Ok(each.map(|(file, done)| done.unwrap_or_else(|| dir.write_file(file, mode))).collect())
}

/// Reads all bytes of files of a directory. Returns a result for each name.
///
/// # Errors
/// Those of the directory; for each file those of open(2) and read(2).
pub fn read_files(dir: &Path, names: &[&[u8]]) -> Result<Vec<Result<Vec<u8>>>> {
    let dir = ListedDir::open(dir)?;
    let mut results: Vec<Option<Result<Vec<u8>>>> = vec![None; names.len()];
    if let Some((session, ino)) = &dir.volume {
        let (client, cred) = (&session.client, own_cred());
        let found = client.stat_many(&cred, *ino, names);
        let mut small = Vec::new();
        for (at, attr) in found.into_iter().enumerate() {
            if let Ok(attr) = attr
                && attr.kind == InodeKind::File
                && attr.layout.is_inline()
            {
                small.push((at, (attr.ino, attr.size)));
            }
        }
        let (which, files): (Vec<_>, Vec<_>) = small.into_iter().unzip();
        for (at, bytes) in which.into_iter().zip(client.read_inline_many(&cred, &files)) {
            results[at] = bytes.ok().map(Ok);
        }
    }
    let each = names.iter().zip(results);
    Ok(each.map(|(name, done)| done.unwrap_or_else(|| dir.read_file(name))).collect())
}

impl<'a> ListedDir<'a> {
    fn open(path: &'a Path) -> Result<ListedDir<'a>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty()).context("open", path)?;
        let found = rustix::fs::fstat(&handle).context("stat", path)?;
        // A directory that is on no mount of a volume has no session, and needs none.
        let session = VolumeSession::for_device(found.st_dev, path).ok();
        Ok(ListedDir { path, handle, volume: session.map(|s| (s, Ino(found.st_ino))) })
    }

    fn open_file(&self, name: &[u8], flags: OFlags, mode: u16) -> Result<File> {
        let path = self.path.join(OsStr::from_bytes(name));
        // The name must not lead out of the directory.
        if name.contains(&b'/') || name.is_empty() {
            return Err(TiledError::with_detail("open", &path, Errno::INVAL, "it is no name"));
        }
        let mode = Mode::from_raw_mode(u32::from(mode));
        let file = rustix::fs::openat(&self.handle, name, flags | OFlags::CLOEXEC, mode);
        Ok(File::from(file.context("open", &path)?))
    }

    fn write_file(&self, file: &NewContent<'_>, mode: u16) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut to = self.open_file(file.name, flags, mode)?;
        let path = || self.path.join(OsStr::from_bytes(file.name));
        to.write_all(file.bytes).context("write", &path())?;
        // A network file system reports a full disk as late as here.
        close_file(to).context("close", &path())
    }

    fn read_file(&self, name: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = self.open_file(name, OFlags::RDONLY, 0)?;
        let path = || self.path.join(OsStr::from_bytes(name));
        file.read_to_end(&mut bytes).context("read", &path())?;
        Ok(bytes)
    }
}

fn close_file(file: File) -> rustix::io::Result<()> {
    let fd = std::os::fd::IntoRawFd::into_raw_fd(file);
    // SAFETY: the descriptor is owned, and not used afterwards.
    match unsafe { libc::close(fd) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Returns the user of this process, for a session that the volume trusts.
fn own_cred() -> Cred {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let groups = rustix::process::getgroups().unwrap_or_default();
    Cred { uid, gid, groups: groups.iter().map(|g| g.as_raw()).take(GROUPS_MAX).collect() }
}

/// Returns the umask. The kernel shows it in `/proc`; umask(2) could only be asked by a change that
/// other threads would see.
fn read_umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u16::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}
