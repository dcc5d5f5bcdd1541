//! The file system under test as the [`model`](crate::model) sees it: the same operations as system
//! calls, the same outcomes.

use crate::model::{Model, Op, Outcome, Renaming, SLOTS, pattern};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A folder for the operations, and the open files.
pub struct Subject {
    root: PathBuf,
    slots: [Option<OwnedFd>; SLOTS],
}

type Result<T> = std::result::Result<T, Errno>;

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn attribute(name: u8) -> String {
    format!("user.tatami-{name}")
}

fn write_all(fd: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let n = rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, bytes, offset))?;
        bytes = &bytes[n..];
        offset += n as u64;
    }
    Ok(())
}

fn read_all(fd: &OwnedFd, len: usize, offset: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut got = 0;
    while got < len {
        match rustix::io::pread(fd, &mut bytes[got..], offset + got as u64)? {
            0 => break,
            n => got += n,
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}

/// Calls close(2) and returns its result: a writer learns there whether its bytes are safe.
fn close(fd: OwnedFd) -> Result<()> {
    // SAFETY: this function owns the descriptor and gives it up here.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(errno(io::Error::last_os_error())),
    }
}

impl Subject {
    /// Returns a subject that works below `root`, an existing folder.
    pub fn new(root: impl Into<PathBuf>) -> Subject {
        Subject { root: root.into(), slots: [const { None }; SLOTS] }
    }

    /// Returns the folder of the operations.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Does `op` and returns the answer of the file system.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.attempt(op).unwrap_or_else(Outcome::Error)
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let mode = Mode::from_raw_mode(0o644);
        let flags = flags | OFlags::CLOEXEC;
        rustix::io::retry_on_intr(|| rustix::fs::open(self.root.join(path), flags, mode))
    }

    fn attempt(&mut self, op: &Op) -> Result<Outcome> {
        let at = |path: &str| self.root.join(path);
        match op {
            Op::Mkdir { path } => rustix::fs::mkdir(at(path), Mode::from_raw_mode(0o755))?,
            Op::Rmdir { path } => fs::remove_dir(at(path)).map_err(errno)?,
            Op::Create { path } => {
                close(self.open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?)?;
            }
            Op::Write { path, offset, len, fill } => {
                let fd = self.open(path, OFlags::WRONLY | OFlags::CREATE)?;
                write_all(&fd, &pattern(*fill, *offset, *len), *offset)?;
                close(fd)?;
            }
            Op::Append { path, len, fill } => {
                let fd = self.open(path, OFlags::WRONLY | OFlags::APPEND)?;
                let bytes = pattern(*fill, 0, *len);
                let n = rustix::io::retry_on_intr(|| rustix::io::write(&fd, &bytes))?;
                assert_eq!(n, bytes.len(), "an append to {path} was cut short");
                close(fd)?;
            }
            Op::Empty { path } => {
                close(self.open(path, OFlags::WRONLY | OFlags::TRUNC)?)?;
            }
            Op::Truncate { path, size } => {
                // truncate(2) itself, not open + ftruncate.
                let path = std::ffi::CString::new(at(path).into_os_string().into_encoded_bytes())
                    .expect("names of the model hold no zero byte");
                // SAFETY: `path` is a C string that outlives the call.
                if unsafe { libc::truncate(path.as_ptr(), *size as libc::off_t) } != 0 {
                    return Err(errno(io::Error::last_os_error()));
                }
            }
            Op::Read { path } => {
                let fd = self.open(path, OFlags::RDONLY)?;
                let mut bytes = Vec::new();
                loop {
                    let more = read_all(&fd, 1 << 20, bytes.len() as u64)?;
                    if more.is_empty() {
                        return Ok(Outcome::Bytes(bytes));
                    }
                    bytes.extend(more);
                }
            }
            Op::Stat { path } => return Ok(stat(&fs::symlink_metadata(at(path)).map_err(errno)?)),
            Op::List { path } => {
                let entries = fs::read_dir(at(path)).map_err(errno)?;
                let mut names = Vec::new();
                for entry in entries {
                    let name = entry.map_err(errno)?.file_name();
                    names.push(name.to_string_lossy().into_owned());
                }
                let count = names.len();
                let names: std::collections::BTreeSet<_> = names.into_iter().collect();
                assert_eq!(count, names.len(), "{path}: an entry was listed twice");
                return Ok(Outcome::Names(names));
            }
            Op::Unlink { path } => fs::remove_file(at(path)).map_err(errno)?,
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Renaming::Replace => RenameFlags::empty(),
                    Renaming::NoReplace => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                };
                let rename = || rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
                let mut result = rename();
                // After another mount has renamed a directory, the kernel can move it under its old
                // name only after a lookup (see `__d_unalias` in Linux' fs/dcache.c).
                for _ in 0..3 {
                    if result != Err(rustix::io::Errno::STALE) {
                        break;
                    }
                    for path in [from, to] {
                        // The rename reports whether the name exists.
                        let _ = rustix::fs::lstat(at(path));
                    }
                    result = rename();
                }
                result?;
            }
            Op::Link { from, to } => {
                rustix::fs::linkat(CWD, at(from), CWD, at(to), AtFlags::empty())?;
            }
            Op::Symlink { target, path } => rustix::fs::symlink(target.as_str(), at(path))?,
            Op::Readlink { path } => {
                let target = rustix::fs::readlink(at(path), Vec::new())?;
                return Ok(Outcome::Bytes(target.into_bytes()));
            }
            Op::Chmod { path, mode } => {
                rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode))?;
            }
            Op::SetXattr { path, name, value } => {
                rustix::fs::setxattr(at(path), attribute(*name), value, XattrFlags::empty())?;
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 65536];
                let len = rustix::fs::getxattr(at(path), attribute(*name), &mut value)?;
                value.truncate(len);
                return Ok(Outcome::Bytes(value));
            }
            Op::RemoveXattr { path, name } => {
                rustix::fs::removexattr(at(path), attribute(*name))?;
            }
            Op::Open { slot, path } => {
                self.slots[*slot] = None;
                self.slots[*slot] = Some(self.open(path, OFlags::RDWR)?);
            }
            Op::Close { slot } => self.slots[*slot] = None,
            Op::WriteAt { slot, offset, len, fill } => {
                let Some(fd) = &self.slots[*slot] else { return Ok(Outcome::Nothing) };
                write_all(fd, &pattern(*fill, *offset, *len), *offset)?;
            }
            Op::ReadAt { slot, offset, len } => {
                let Some(fd) = &self.slots[*slot] else { return Ok(Outcome::Nothing) };
                return Ok(Outcome::Bytes(read_all(fd, *len, *offset)?));
            }
            Op::TruncateAt { slot, size } => {
                let Some(fd) = &self.slots[*slot] else { return Ok(Outcome::Nothing) };
                rustix::fs::ftruncate(fd, *size)?;
            }
            Op::StatAt { slot } => {
                let Some(fd) = &self.slots[*slot] else { return Ok(Outcome::Nothing) };
                let file = fs::File::from(fd.try_clone().map_err(errno)?);
                return Ok(stat(&file.metadata().map_err(errno)?));
            }
            Op::Fsync { slot } => {
                let Some(fd) = &self.slots[*slot] else { return Ok(Outcome::Nothing) };
                rustix::fs::fsync(fd)?;
            }
        }
        Ok(Outcome::Done)
    }
}

fn stat(meta: &fs::Metadata) -> Outcome {
    let kind = if meta.is_dir() {
        'd'
    } else if meta.is_symlink() {
        'l'
    } else {
        'f'
    };
    let size = if meta.is_dir() { 0 } else { meta.size() };
    Outcome::Stat { kind, size, links: meta.nlink(), mode: meta.mode() & 0o7777 }
}

/// Does `op` on both and compares the results.
///
/// # Errors
/// A sentence, if they differ.
pub fn step(model: &mut Model, subject: &mut Subject, op: &Op) -> std::result::Result<(), String> {
    let expected = model.apply(op);
    let found = subject.apply(op);
    if expected == found {
        return Ok(());
    }
    let root = subject.root().display();
    Err(format!("{op:?} in {root}: {found:?} where a file system answers {expected:?}"))
}

/// Compares the whole model, names, bytes and attributes, with the tree below `root`.
///
/// # Errors
/// A sentence, at the first difference.
pub fn compare(model: &Model, root: &Path) -> std::result::Result<(), String> {
    let mut model = model.clone();
    let mut subject = Subject::new(root);
    let mut paths = model.paths();
    for path in &paths {
        for op in [Op::Stat { path: path.clone() }, Op::Read { path: path.clone() }] {
            step(&mut model, &mut subject, &op)?;
        }
    }
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        let list = fs::read_dir(root.join(&dir))
            .map_err(|e| format!("{}: {e}", root.join(&dir).display()))?;
        for entry in list {
            let entry = entry.map_err(|e| format!("{}: {e}", root.join(&dir).display()))?;
            let path = dir.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(path.clone());
            }
            found.push(path.display().to_string());
        }
    }
    paths.sort();
    found.sort();
    if paths != found {
        return Err(format!("{}: the tree is {found:?}, should be {paths:?}", root.display()));
    }
    Ok(())
}
