//! Paths and file handles, for tools that work on a volume without a mount.
//!
//! Paths are absolute within the volume; a leading `/` may be left out. Symbolic links are followed
//! as a kernel does, within the volume.

use crate::{Client, Created, DataFile};
use std::fs::File;
use std::io;
use std::sync::Arc;
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::{DataState, DirEntry, InodeTemplate, RenameMode};
use tatami_wire::{
    Access, Attr, Cred, Errno, Ino, InodeKind, NAME_MAX, PATH_MAX, READDIR_MAX, SetAttr,
};

/// Symbolic links followed in one path before it counts as a loop, as in Linux.
const LINKS_MAX: usize = 40;

/// A volume as a tree of paths, seen by one user.
#[derive(Clone)]
pub struct VolumeTree {
    client: Arc<Client>,
    cred: Cred,
}

/// An open file with a position. Its bytes count as written when [`FileHandle::close`] has
/// succeeded.
pub struct FileHandle {
    tree: VolumeTree,
    data: DataFile,
    attr: Attr,
    position: u64,
    wrote: bool,
    writable: bool,
}

/// Each method fails with the error of the system call that it resembles.
#[allow(clippy::missing_errors_doc)] // said once, above
impl VolumeTree {
    /// Returns the volume of `client`, seen by `cred`.
    pub fn new(client: Arc<Client>, cred: Cred) -> VolumeTree {
        VolumeTree { client, cred }
    }

    /// Returns the client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns the user that sees the tree.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// Returns the attributes of a path; of a final link's target with `follow`.
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Attr, Errno> {
        self.resolve(path, follow)
    }

    /// Returns all entries of a directory, sorted by name, without `.` and `..`, with attributes if
    /// `plus`.
    pub fn read_dir(&self, path: &[u8], plus: bool) -> Result<Vec<DirEntry>, Errno> {
        let dir = self.resolve(path, true)?;
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let mut part = self.client.read_dir(&self.cred, dir.ino, after, READDIR_MAX, plus)?;
            if plus {
                self.add_missing_attrs(dir.ino, &mut part.entries)?;
            }
            after = part.entries.last().map_or(after, |e| e.cookie);
            all.extend(part.entries);
            if part.end {
                break;
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Adds the attributes of entries whose inode is on another executor than the entry.
    fn add_missing_attrs(&self, dir: Ino, entries: &mut [DirEntry]) -> Result<(), Errno> {
        if self.client.map().first_shards().len() < 2 {
            return Ok(());
        }
        let rest = entries.iter_mut().filter(|entry| entry.attr.is_none());
        let (names, places): (Vec<_>, Vec<_>) =
            rest.map(|entry| (entry.name.as_slice(), &mut entry.attr)).unzip();
        for (place, found) in places.into_iter().zip(self.client.stat_many(&self.cred, dir, &names))
        {
            *place = match found {
                Ok(attr) => Some(attr),
                Err(Errno::ENOENT) => None,
                // The user may read the names, but not look them up.
                Err(Errno::EACCES) => return Ok(()),
                Err(e) => return Err(e),
            };
        }
        Ok(())
    }

    /// Returns the target of a link.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let attr = self.resolve(path, false)?;
        self.client.readlink(&self.cred, attr.ino)
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: &[u8], mode: u16, umask: u16) -> Result<Attr, Errno> {
        self.make_node(path, InodeTemplate::Dir, mode, umask)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, path: &[u8], target: &[u8]) -> Result<Attr, Errno> {
        self.make_node(path, InodeTemplate::Symlink(target.to_vec().into()), 0o777, 0)
    }

    fn make_node(
        &self,
        path: &[u8],
        node: InodeTemplate,
        mode: u16,
        umask: u16,
    ) -> Result<Attr, Errno> {
        let (parent, name) = self.resolve_parent(path)?;
        let made = self.client.create(&self.cred, parent, name, node, mode, umask, true, None)?;
        Ok(made.attr)
    }

    /// Removes anything but a directory.
    pub fn remove_file(&self, path: &[u8]) -> Result<(), Errno> {
        let (parent, name) = self.resolve_parent(path)?;
        self.client.unlink(&self.cred, parent, name, false).map(drop)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: &[u8]) -> Result<(), Errno> {
        let (parent, name) = self.resolve_parent(path)?;
        self.client.rmdir(&self.cred, parent, name, false).map(drop)
    }

    /// Moves a path; an existing target is replaced.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        self.rename_as(from, to, RenameMode::Replace)
    }

    /// Moves a path; `mode` is for an existing target.
    pub fn rename_as(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<(), Errno> {
        let (old, name) = self.resolve_parent(from)?;
        let (new, new_name) = self.resolve_parent(to)?;
        self.client.rename(&self.cred, old, name, new, new_name, mode, false).map(drop)
    }

    /// Opens a file for reading.
    pub fn open(&self, path: &[u8]) -> Result<FileHandle, Errno> {
        let found = self.resolve(path, true)?;
        if found.kind == InodeKind::Dir {
            return Err(Errno::EISDIR);
        }
        self.open_inode(found.ino)
    }

    /// Opens a file for reading, by its inode number.
    pub fn open_inode(&self, ino: Ino) -> Result<FileHandle, Errno> {
        let (attr, cap) = self.client.open(&self.cred, ino, Access::READ)?;
        let data = self.client.open_data(&attr, cap)?;
        Ok(self.make_handle(data, attr, false))
    }

    /// Opens a file for writing, and keeps its bytes.
    pub fn open_writable(&self, path: &[u8]) -> Result<FileHandle, Errno> {
        let found = self.resolve(path, true)?;
        if found.kind != InodeKind::File {
            return Err(Errno::EINVAL);
        }
        let (attr, cap) = self.client.open(&self.cred, found.ino, Access::WRITE)?;
        let data = self.client.open_data(&attr, cap)?;
        Ok(self.make_handle(data, attr, true))
    }

    /// Opens a file for writing; makes it, or cuts it to nothing.
    pub fn create(&self, path: &[u8], mode: u16, umask: u16) -> Result<FileHandle, Errno> {
        let access = Access::WRITE;
        // A link at the end is followed to its target.
        let made = match self.resolve(path, true) {
            Ok(found) if found.kind == InodeKind::Dir => return Err(Errno::EISDIR),
            Ok(found) => {
                let (attr, cap) = self.client.open(&self.cred, found.ino, access)?;
                (attr, Some(cap), false)
            }
            Err(Errno::ENOENT) => {
                let (parent, name) = self.resolve_parent(path)?;
                let node = InodeTemplate::File(self.client.new_layout());
                let open = Some(access);
                let c =
                    self.client.create(&self.cred, parent, name, node, mode, umask, false, open)?;
                (c.attr, c.cap, c.created)
            }
            Err(e) => return Err(e),
        };
        let (attr, cap, created) = made;
        self.open_created(Created { attr, cap, created })
    }

    /// Returns a handle for a file that was made, or found, open for writing. A file that was there
    /// is cut to nothing.
    pub fn open_created(&self, made: Created) -> Result<FileHandle, Errno> {
        let Created { attr, cap, created } = made;
        let data = self.client.open_data(&attr, cap.ok_or(Errno::EPROTO)?)?;
        let mut handle = self.make_handle(data, attr, true);
        if !created {
            handle.truncate(0)?;
        }
        Ok(handle)
    }

    /// Changes attributes of a path, but not its size, see [`FileHandle::truncate`].
    pub fn set_attrs(&self, path: &[u8], set: SetAttr) -> Result<Attr, Errno> {
        let attr = self.resolve(path, true)?;
        self.client.setattr(
            &self.cred,
            attr.ino,
            SetAttr { size: None, blocks: None, changed: None, ..set },
        )
    }

    fn make_handle(&self, data: DataFile, attr: Attr, writable: bool) -> FileHandle {
        FileHandle { tree: self.clone(), data, attr, position: 0, wrote: false, writable }
    }

    /// Returns the directory and the last name of a path.
    pub(crate) fn resolve_parent<'a>(&self, path: &'a [u8]) -> Result<(Ino, &'a [u8]), Errno> {
        let end = path.iter().rposition(|b| *b != b'/').ok_or(Errno::EBUSY)? + 1;
        let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        let dir = self.resolve(&path[..start], true)?;
        Ok((dir.ino, &path[start..end]))
    }

    fn resolve(&self, path: &[u8], follow: bool) -> Result<Attr, Errno> {
        if path.len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        // The names that are left to walk, last name first; and the directories above, for `..`.
        let mut todo = split_path(path);
        let must_be_dir = path.ends_with(b"/");
        let mut above = Vec::new();
        let mut at = self.client.getattr(&self.cred, Ino::ROOT)?;
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if at.kind != InodeKind::Dir {
                return Err(Errno::ENOTDIR);
            }
            if name == b"." {
                continue;
            }
            if name == b".." {
                at = above.pop().unwrap_or(at);
                continue;
            }
            if name.len() > NAME_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            let next = self.client.lookup(&self.cred, at.ino, &name)?;
            if next.kind == InodeKind::Symlink && (follow || must_be_dir || !todo.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let target = self.client.readlink(&self.cred, next.ino)?;
                if target.starts_with(b"/") {
                    above.clear();
                    at = self.client.getattr(&self.cred, Ino::ROOT)?;
                }
                todo.extend(split_path(&target));
                if todo.len() > PATH_MAX {
                    return Err(Errno::ENAMETOOLONG);
                }
            } else {
                above.push(std::mem::replace(&mut at, next));
            }
        }
        if must_be_dir && at.kind != InodeKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        Ok(at)
    }
}

/// Returns the names of a path, last first.
fn split_path(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/').filter(|n| !n.is_empty()).rev().map(<[u8]>::to_vec).collect()
}

/// Returns the path of `name` below `path`.
pub fn join_path(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

/// Each method fails with the error of the system call that it resembles.
#[allow(clippy::missing_errors_doc)] // said once, above
impl FileHandle {
    /// Returns the attributes at opening.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Returns the bytes, by offset.
    pub fn data(&self) -> &DataFile {
        &self.data
    }

    /// Writes all of `data` at the position and moves the position.
    pub fn write_all_at_position(&mut self, data: &[u8]) -> Result<usize, Errno> {
        let n = self.data.write_at(data, self.position)?;
        self.wrote = true;
        self.position += n as u64;
        Ok(n)
    }

    /// Copies up to `len` bytes from the position of `source`, a file of this machine, to that of
    /// this one, in the kernel. `None`: the kernel cannot; the caller must read and write.
    pub fn copy_in(&mut self, source: &File, len: usize) -> Result<Option<usize>, Errno> {
        let Some(object) = self.data.local_file(true)? else { return Ok(None) };
        self.data.check_changeable()?;
        let mut to = self.position;
        let copied = rustix::fs::copy_file_range(source, None, &*object, Some(&mut to), len);
        let n = copied_bytes(copied)?;
        if let Some(n) = n {
            self.wrote = true;
            self.position += n as u64;
        }
        Ok(n)
    }

    /// As [`FileHandle::copy_in`], from this file to `target`. It may copy less than there is, and
    /// nothing at the end of the object: only a read then tells a lost byte from the end.
    pub fn copy_out(&mut self, target: &File, len: usize) -> Result<Option<usize>, Errno> {
        let Some(object) = self.data.local_file(false)? else { return Ok(None) };
        let mut from = self.position;
        let copied = rustix::fs::copy_file_range(&*object, Some(&mut from), target, None, len);
        let n = copied_bytes(copied)?;
        self.position += n.unwrap_or(0) as u64;
        Ok(n.filter(|n| *n > 0))
    }

    /// Cuts or extends the file.
    pub fn truncate(&mut self, size: u64) -> Result<(), Errno> {
        // The objects first, then the inode: an object is never shorter than its inode says.
        let state = self.data.truncate(size)?;
        let set = SetAttr {
            size: Some(size),
            blocks: Some(state.blocks),
            changed: Some(state.changed),
            by_handle: true,
            ..SetAttr::default()
        };
        self.attr = self.tree.client.setattr(&self.tree.cred, self.attr.ino, set)?;
        Ok(())
    }

    /// Ends the use of the file. Then every client that opens the file sees the written bytes.
    pub fn close(mut self) -> Result<Attr, Errno> {
        self.commit_close()
    }

    /// As [`FileHandle::close`], but without the request that reports the file's state: the caller
    /// must send it, perhaps in a batch with those of other files.
    pub fn close_deferred(mut self) -> (Result<(), Errno>, BatchOp) {
        self.writable = false;
        let mut flushed = self.data.flush();
        self.data.end_changes();
        let reports = self.wrote && !self.data.records_changes();
        let state = match reports.then(|| self.data.stat()) {
            Some(Ok(now)) => Some(DataState::from(now)),
            Some(Err(e)) => {
                flushed = flushed.and(Err(e));
                None
            }
            None => None,
        };
        (flushed, BatchOp::Commit { ino: self.attr.ino, state, close: true })
    }

    fn commit_close(&mut self) -> Result<Attr, Errno> {
        // Taken first, so that the drop of this handle does not commit a second time.
        if !std::mem::take(&mut self.writable) {
            return Ok(self.attr.clone());
        }
        let flushed = self.data.flush();
        self.data.end_changes();
        let state = if self.wrote && !self.data.records_changes() {
            let now = self.data.stat()?;
            Some(DataState::from(now))
        } else {
            None
        };
        let attr = self.tree.client.commit(&self.tree.cred, self.attr.ino, state, true)?;
        flushed.map(|()| attr)
    }
}

impl Drop for FileHandle {
    /// A handle that is dropped without [`FileHandle::close`] still reports the size, but an error
    /// goes only to the log.
    fn drop(&mut self) {
        if let Err(e) = self.commit_close() {
            tracing::warn!(ino = %self.attr.ino, error = %e, "file not closed well");
        }
    }
}

/// Returns the copied bytes; `None` where this kernel or these file systems cannot copy so.
fn copied_bytes(copied: rustix::io::Result<usize>) -> Result<Option<usize>, Errno> {
    use rustix::io::Errno as SystemErrno;
    match copied {
        Ok(n) => Ok(Some(n)),
        Err(
            SystemErrno::XDEV
            | SystemErrno::INVAL
            | SystemErrno::NOSYS
            | SystemErrno::OPNOTSUPP
            // A descriptor that is open for one direction, or appends.
            | SystemErrno::BADF
            | SystemErrno::INTR,
        ) => Ok(None),
        Err(e) => Err(Errno(e.raw_os_error())),
    }
}

fn to_io_error(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e.0)
}

impl io::Read for FileHandle {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.data.read_at(buf, self.position).map_err(to_io_error)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl io::Write for FileHandle {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_all_at_position(data).map_err(to_io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.data.flush().map_err(to_io_error)
    }
}

impl io::Seek for FileHandle {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let position = match to {
            io::SeekFrom::Start(n) => Some(n),
            io::SeekFrom::Current(n) => self.position.checked_add_signed(n),
            io::SeekFrom::End(n) => {
                self.data.stat().map_err(to_io_error)?.size.checked_add_signed(n)
            }
        };
        self.position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_walked_name_by_name() {
        assert_eq!(split_path(b"/a//b/c/"), vec![b"c".to_vec(), b"b".to_vec(), b"a".to_vec()]);
        assert!(split_path(b"///").is_empty());
        assert_eq!(join_path(b"/", b"a"), b"/a");
        assert_eq!(join_path(b"/a", b"b"), b"/a/b");
    }
}
