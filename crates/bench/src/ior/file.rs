//! The open test file of one process: by system calls, through a mapping, or
//! through the client library.

use crate::error::{BenchError, path_error, volume_error};
use crate::missing_dirs::{make_local_dir, make_volume_dir};
use crate::volume_access::{VolumeAccess, own_cred};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::{Client, DataFile};
use tatami_wire::meta::{DataState, InodeTemplate};
use tatami_wire::{Access, Ino};

/// How system calls reach the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoMethod {
    /// pread and pwrite.
    Buffered,
    /// pread and pwrite with `O_DIRECT`.
    Direct,
    /// A shared mapping of the whole file.
    Mapped,
}

/// The place of the test file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TestFilePlace {
    /// By path.
    Path(PathBuf, IoMethod),
    /// In the volume, by a path from its root.
    Library(VolumeAccess, String),
}

/// An open test file.
pub enum TestFile {
    /// pread and pwrite.
    Path(File, PathBuf),
    /// A mapping.
    Mapped(FileMapping, File, PathBuf),
    /// Library calls.
    Library {
        /// The session.
        client: Arc<Client>,
        /// The bytes.
        data: DataFile,
        /// The inode.
        ino: Ino,
        /// Its path.
        path: String,
    },
}

/// Returns the directory and the last name of a path from the volume's root.
fn resolve_parent(client: &Client, path: &str) -> Result<(Ino, Vec<u8>), BenchError> {
    let mut names: Vec<&str> = path.split('/').filter(|n| !n.is_empty()).collect();
    let last = names.pop().ok_or_else(|| BenchError::Usage(format!("'{path}' names no file")))?;
    let mut dir = Ino::ROOT;
    for name in names {
        dir = client
            .lookup(&own_cred(), dir, name.as_bytes())
            .map_err(volume_error("looking up", name.as_bytes()))?
            .ino;
    }
    Ok((dir, last.as_bytes().to_vec()))
}

/// Makes the directory of the test file, if it is missing.
///
/// # Errors
/// Those of mkdir(2), or of the library's calls.
pub fn make_parent(place: &TestFilePlace) -> Result<(), BenchError> {
    match place {
        TestFilePlace::Path(path, _) => path.parent().map_or(Ok(()), |parent| {
            // The parent of a bare name is the empty path: the current directory.
            if parent.as_os_str().is_empty() { Ok(()) } else { make_local_dir(parent) }
        }),
        TestFilePlace::Library(reach, path) => {
            let tree =
                tatami_client::tree::VolumeTree::new(Arc::new(reach.connect_client()?), own_cred());
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            make_volume_dir(&tree, parent)
        }
    }
}

/// Removes the test file, if it exists.
///
/// # Errors
/// When it exists and can't be removed.
pub fn remove_file(place: &TestFilePlace) -> Result<(), BenchError> {
    match place {
        TestFilePlace::Path(path, _) => match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(path_error("removing", path)(e))
            }
            _ => Ok(()),
        },
        TestFilePlace::Library(reach, path) => {
            let client = reach.connect_client()?;
            let (dir, name) = resolve_parent(&client, path)?;
            match client.unlink(&own_cred(), dir, &name, false) {
                Err(e) if e != tatami_wire::Errno::ENOENT => {
                    Err(volume_error("removing", &name)(e))
                }
                _ => Ok(()),
            }
        }
    }
}

/// Truncates the test file to 0 bytes, creating it if need be.
///
/// # Errors
/// Those of open(2) and ftruncate(2), or of the library's calls.
pub fn truncate_file(place: &TestFilePlace) -> Result<(), BenchError> {
    match place {
        TestFilePlace::Path(path, _) => {
            std::fs::File::create(path).map(drop).map_err(path_error("cutting", path))
        }
        TestFilePlace::Library(reach, path) => {
            let tree =
                tatami_client::tree::VolumeTree::new(Arc::new(reach.connect_client()?), own_cred());
            let done = tree.create(path.as_bytes(), 0o664, 0o022).and_then(|f| f.close());
            done.map(drop).map_err(volume_error("cutting", path.as_bytes()))
        }
    }
}

impl TestFile {
    /// Opens the file for reading or writing. For writing, creates the file if need be, and makes
    /// it `size` bytes long if it is to be mapped.
    ///
    /// # Errors
    /// Those of open(2), ftruncate(2), mmap(2), or of the library's calls.
    pub fn open(place: &TestFilePlace, write: bool, size: u64) -> Result<TestFile, BenchError> {
        let (path, method) = match place {
            TestFilePlace::Path(path, method) => (path, *method),
            TestFilePlace::Library(reach, path) => return Self::open_library(reach, path, write),
        };
        let flags = if method == IoMethod::Direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        options.read(true).write(write).create(write).custom_flags(flags);
        let file = options.open(path).map_err(path_error("opening", path))?;
        if method != IoMethod::Mapped {
            return Ok(TestFile::Path(file, path.clone()));
        }
        if write {
            file.set_len(size).map_err(path_error("setting the size of", path))?;
        }
        let there = file.metadata().map_err(path_error("looking at", path))?.len();
        if there < size {
            return Err(short_error(path.display(), there, size as usize, 0));
        }
        let map =
            FileMapping::new(&file, size as usize, write).map_err(path_error("mapping", path))?;
        Ok(TestFile::Mapped(map, file, path.clone()))
    }

    fn open_library(reach: &VolumeAccess, path: &str, write: bool) -> Result<TestFile, BenchError> {
        let client = Arc::new(reach.connect_client()?);
        let (dir, name) = resolve_parent(&client, path)?;
        let (attr, cap) = if write {
            let node = InodeTemplate::File(client.new_layout());
            let made = client.create(
                &own_cred(),
                dir,
                &name,
                node,
                0o664,
                0o022,
                false,
                Some(Access::BOTH),
            );
            let made = made.map_err(volume_error("creating", &name))?;
            (made.attr, made.cap)
        } else {
            let attr = client
                .lookup(&own_cred(), dir, &name)
                .map_err(volume_error("looking up", &name))?;
            let (attr, cap) = client
                .open(&own_cred(), attr.ino, Access::READ)
                .map_err(volume_error("opening", &name))?;
            (attr, Some(cap))
        };
        let cap = cap.ok_or(tatami_wire::Errno::EPROTO).map_err(volume_error("opening", &name))?;
        let data = client.open_data(&attr, cap).map_err(volume_error("opening", &name))?;
        Ok(TestFile::Library { client, data, ino: attr.ino, path: path.into() })
    }

    fn display_name(&self) -> String {
        match self {
            TestFile::Path(_, path) | TestFile::Mapped(_, _, path) => path.display().to_string(),
            TestFile::Library { path, .. } => path.clone(),
        }
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// Those of the write.
    pub fn write(&mut self, mut data: &[u8], mut offset: u64) -> Result<(), BenchError> {
        match self {
            TestFile::Path(file, path) => {
                file.write_all_at(data, offset).map_err(path_error("writing", path))
            }
            TestFile::Mapped(map, _, _) => {
                map.write(data, offset as usize);
                Ok(())
            }
            TestFile::Library { data: file, path, .. } => {
                while !data.is_empty() {
                    let n = file
                        .write_at(data, offset)
                        .map_err(volume_error("writing", path.as_bytes()))?;
                    if n == 0 {
                        return Err(short_error(path, offset, data.len(), 0));
                    }
                    data = &data[n..];
                    offset += n as u64;
                }
                Ok(())
            }
        }
    }

    /// Reads as many bytes as `buffer` has.
    ///
    /// # Errors
    /// Those of the read, and a file that ends before.
    pub fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<(), BenchError> {
        let mut got = 0;
        while got < buffer.len() {
            let n = match self {
                TestFile::Path(file, path) => {
                    match file.read_at(&mut buffer[got..], offset + got as u64) {
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                        n => n.map_err(path_error("reading", path))?,
                    }
                }
                TestFile::Mapped(map, _, _) => map.read(&mut buffer[got..], offset as usize + got),
                TestFile::Library { data, path, .. } => data
                    .read_at(&mut buffer[got..], offset + got as u64)
                    .map_err(volume_error("reading", path.as_bytes()))?,
            };
            if n == 0 {
                return Err(short_error(self.display_name(), offset, buffer.len(), got));
            }
            got += n;
        }
        Ok(())
    }

    /// Closes the file. With `sync`, the written bytes are on the disk first.
    ///
    /// # Errors
    /// Those of fsync(2), msync(2) and close(2).
    pub fn close(self, written: bool, sync: bool) -> Result<(), BenchError> {
        match self {
            TestFile::Path(file, path) => {
                if sync {
                    file.sync_all().map_err(path_error("syncing", &path))?;
                }
                close_file(file, &path)
            }
            TestFile::Mapped(map, file, path) => {
                if sync {
                    map.sync().map_err(path_error("syncing", &path))?;
                    file.sync_all().map_err(path_error("syncing", &path))?;
                }
                drop(map);
                close_file(file, &path)
            }
            TestFile::Library { client, data, ino, path } => {
                if !written {
                    return Ok(());
                }
                let state = if sync { data.sync(false) } else { data.stat() };
                let state = state.map_err(volume_error("syncing", path.as_bytes()))?;
                client
                    .commit(&own_cred(), ino, Some(DataState::from(state)), true)
                    .map(drop)
                    .map_err(volume_error("closing", path.as_bytes()))
            }
        }
    }
}

/// Calls close(2) and returns its error, which `drop` would hide: a network file system reports
/// failed writes there.
fn close_file(file: File, path: &Path) -> Result<(), BenchError> {
    use std::os::fd::IntoRawFd;
    let fd = file.into_raw_fd();
    // SAFETY: the descriptor was owned by `file`, which has just given it up, and no code uses it
    // afterwards.
    match unsafe { libc::close(fd) } {
        0 => Ok(()),
        _ => Err(path_error("closing", path)(std::io::Error::last_os_error())),
    }
}

fn short_error(path: impl ToString, offset: u64, wanted: usize, got: usize) -> BenchError {
    BenchError::Short { path: path.to_string(), offset, wanted, got }
}

/// Returns the unit of the page cache and of mappings, in bytes.
pub fn page_bytes() -> u64 {
    // SAFETY: the call reads a constant of the system and touches no memory of this process.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// A shared mapping of a file.
pub struct FileMapping {
    start: *mut u8,
    len: usize,
}

impl FileMapping {
    fn new(file: &File, len: usize, write: bool) -> std::io::Result<FileMapping> {
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no
        // existing memory.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)?
        };
        Ok(FileMapping { start: start.cast(), len })
    }

    fn write(&mut self, data: &[u8], offset: usize) {
        assert!(
            offset.checked_add(data.len()).is_some_and(|end| end <= self.len),
            "within the mapping"
        );
        // SAFETY: the range was checked to lie in the mapping, which was made
        // writable by `TestFile::open(write = true)`, the only way to a
        // `write`; the caller's memory is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start.add(offset), data.len()) }
    }

    fn read(&self, buffer: &mut [u8], offset: usize) -> usize {
        let n = buffer.len().min(self.len.saturating_sub(offset));
        // SAFETY: the range lies in the mapping; bytes that others change meanwhile may be read old
        // or new, and are plain bytes either way.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset), buffer.as_mut_ptr(), n) }
        n
    }

    fn sync(&self) -> std::io::Result<()> {
        // SAFETY: the range is exactly the mapping.
        unsafe { rustix::mm::msync(self.start.cast(), self.len, MsyncFlags::SYNC) }?;
        Ok(())
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping, and no reference into it is ever given out. An
        // error would mean that it is not mapped: then there is nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
    }
}
