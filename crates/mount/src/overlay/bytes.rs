//! The bytes of an open file, ordinary or container.

use super::error::{OverlayResult, io_errno};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tatami_layout::Shape;
use tatami_tiled::{Buffer, CollectiveOpen, Environment, Flags, Hints, machine};

/// An open file.
pub(super) enum OverlayFile {
    Plain(File),
    Container(Box<OpenContainer>),
}

/// A container, opened like by a job of one process.
pub(super) struct OpenContainer {
    file: tatami_tiled::RankFile,
    byte: Shape,
    path: PathBuf,
    /// There are writes that are not yet in the index.
    has_unpublished: Mutex<bool>,
}

fn log_error(error: tatami_tiled::TiledError) -> i32 {
    tracing::debug!(%error, "overlay");
    error.errno.raw_os_error()
}

impl OpenContainer {
    fn new(path: &Path, flags: Flags) -> OverlayResult<OpenContainer> {
        let (hints, environment) = (Hints::default(), Environment::default());
        let begin = CollectiveOpen {
            path,
            flags,
            mode: 0,
            hints: &hints,
            environment: &environment,
            ranks: 1,
            machine: machine::machine_id(),
            nodes: &[],
        };
        let token = tatami_tiled::begin_open(&begin).map_err(log_error)?;
        let file =
            tatami_tiled::RankFile::open(path, flags, &hints, 0, token).map_err(log_error)?;
        let byte = Shape::bytes(1).map_err(|_| libc::EIO)?;
        Ok(OpenContainer {
            file,
            byte,
            path: path.to_path_buf(),
            has_unpublished: Mutex::new(false),
        })
    }

    fn publish(&self, durable: bool, closing: bool) -> OverlayResult<()> {
        let sealed = self.file.seal_piece(durable).map_err(log_error)?;
        self.file.publish_pieces(&[&sealed], durable, closing).map_err(log_error)?;
        self.file.mark_published();
        if !closing {
            self.file.begin_epoch(self.file.next_stamp()).map_err(log_error)?;
        }
        *self.has_unpublished.lock() = false;
        Ok(())
    }

    fn set_size(&self, size: u64) -> OverlayResult<()> {
        self.publish(false, false)?;
        self.file.set_size(size).map_err(log_error)?;
        self.file.begin_epoch(self.file.next_stamp()).map_err(log_error)
    }
}

impl OverlayFile {
    /// Opens the file at `path`, with the flags of open(2).
    pub fn open_path(path: &Path, flags: i32) -> OverlayResult<OverlayFile> {
        let access = flags & libc::O_ACCMODE;
        if tatami_tiled::is_container(path) {
            // A store to a partial page of a mapping reads the page first.
            let rank_flags = if access == libc::O_RDONLY { Flags::RDONLY } else { Flags::RDWR };
            let opened = OpenContainer::new(path, rank_flags)?;
            if flags & libc::O_TRUNC != 0 {
                opened.set_size(0)?;
            }
            return Ok(OverlayFile::Container(Box::new(opened)));
        }
        let file = OpenOptions::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(flags & libc::O_TRUNC | libc::O_NOFOLLOW)
            .open(path);
        file.map(OverlayFile::Plain).map_err(io_errno)
    }

    /// Creates the file at `path` and opens it in one step: `mode` may forbid its owner to open it
    /// for writing afterwards.
    ///
    /// # Errors
    /// `EEXIST`, and those of open(2).
    pub fn create_path(path: &Path, flags: i32, mode: u32) -> OverlayResult<OverlayFile> {
        let access = flags & libc::O_ACCMODE;
        let flags = access | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
        let mode = rustix::fs::Mode::from_raw_mode(mode & 0o7777);
        let file = rustix::fs::open(path, flags, mode).map_err(|e| e.raw_os_error())?;
        // The mask of this process is not that of the caller.
        rustix::fs::fchmod(&file, mode).map_err(|e| e.raw_os_error())?;
        Ok(OverlayFile::Plain(File::from(file)))
    }

    pub fn is_container(&self) -> bool {
        matches!(self, OverlayFile::Container(_))
    }

    /// Returns the ordinary file.
    pub fn as_plain(&self) -> Option<&File> {
        match self {
            OverlayFile::Plain(file) => Some(file),
            OverlayFile::Container(_) => None,
        }
    }

    /// Returns the size of a container.
    pub fn container_size(&self) -> Option<u64> {
        match self {
            OverlayFile::Plain(_) => None,
            OverlayFile::Container(opened) => opened.file.file_size().ok(),
        }
    }

    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> OverlayResult<usize> {
        match self {
            OverlayFile::Plain(file) => {
                let mut done = 0;
                while done < bytes.len() {
                    match file
                        .read_at(&mut bytes[done..], offset + done as u64)
                        .map_err(io_errno)?
                    {
                        0 => break,
                        n => done += n,
                    }
                }
                Ok(done)
            }
            OverlayFile::Container(opened) => {
                let mut into = Buffer::from_slice(bytes, &opened.byte);
                opened.file.read(offset, &mut into).map(|n| n as usize).map_err(log_error)
            }
        }
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> OverlayResult<()> {
        match self {
            OverlayFile::Plain(file) => file.write_all_at(data, offset).map_err(io_errno),
            OverlayFile::Container(opened) => {
                *opened.has_unpublished.lock() = true;
                let mut data = data.to_vec();
                let data = Buffer::from_slice(&mut data, &opened.byte);
                opened.file.write(offset, &data).map(|_| ()).map_err(log_error)
            }
        }
    }

    pub fn set_size(&self, size: u64) -> OverlayResult<()> {
        match self {
            OverlayFile::Plain(file) => file.set_len(size).map_err(io_errno),
            OverlayFile::Container(opened) if opened.file.flags().can_write() => {
                opened.set_size(size)
            }
            OverlayFile::Container(opened) => {
                let writing = OpenContainer::new(&opened.path, Flags::RDWR)?;
                writing.set_size(size)?;
                writing.publish(false, true)
            }
        }
    }

    pub fn allocate_range(&self, offset: u64, len: u64, mode: i32) -> OverlayResult<()> {
        match self {
            OverlayFile::Plain(file) => {
                let flags = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
                rustix::fs::fallocate(file, flags, offset, len).map_err(|e| e.raw_os_error())
            }
            OverlayFile::Container(_) => Err(libc::EOPNOTSUPP),
        }
    }

    /// Makes all writes survive a power cut.
    pub fn sync_file(&self) -> OverlayResult<()> {
        match self {
            OverlayFile::Plain(file) => file.sync_all().map_err(io_errno),
            OverlayFile::Container(opened) if opened.file.flags().can_write() => {
                opened.publish(true, false)
            }
            OverlayFile::Container(_) => Ok(()),
        }
    }

    /// Publishes the writes after a close(2), so that other programs see them in the container.
    pub fn publish_pending(&self) -> OverlayResult<()> {
        match self {
            OverlayFile::Container(opened) if *opened.has_unpublished.lock() => {
                opened.publish(false, false)
            }
            _ => Ok(()),
        }
    }

    /// Closes the file after its last user.
    pub fn close_file(&self) -> OverlayResult<()> {
        match self {
            OverlayFile::Container(opened) if opened.path.exists() => opened.publish(false, true),
            _ => Ok(()),
        }
    }
}

/// Truncates or extends the file at `path`.
pub(super) fn set_size_at(path: &Path, size: u64) -> OverlayResult<()> {
    let handle = OverlayFile::open_path(path, libc::O_WRONLY)?;
    handle.set_size(size)?;
    handle.close_file()
}
