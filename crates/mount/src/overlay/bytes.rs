//! The bytes of an open file, ordinary or container.

use super::Answer;
use super::names::errno;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tatami_layout::Shape;
use tatami_tiled::{Begin, Buffer, Environment, Flags, Hints, machine};

/// An open file.
pub(super) enum Handle {
    Plain(File),
    Container(Box<Opened>),
}

/// A container, opened like by a job of one process.
pub(super) struct Opened {
    file: tatami_tiled::File,
    byte: Shape,
    path: PathBuf,
    /// There are writes that are not yet in the index.
    news: Mutex<bool>,
}

fn failed(error: tatami_tiled::Error) -> i32 {
    tracing::debug!(%error, "overlay");
    error.errno.raw_os_error()
}

impl Opened {
    fn new(path: &Path, flags: Flags) -> Answer<Opened> {
        let (hints, environment) = (Hints::default(), Environment::default());
        let begin = Begin {
            path,
            flags,
            mode: 0,
            hints: &hints,
            environment: &environment,
            ranks: 1,
            machine: machine::id(),
            nodes: &[],
        };
        let token = tatami_tiled::begin(&begin).map_err(failed)?;
        let file = tatami_tiled::File::open(path, flags, &hints, 0, token).map_err(failed)?;
        let byte = Shape::bytes(1).map_err(|_| libc::EIO)?;
        Ok(Opened { file, byte, path: path.to_path_buf(), news: Mutex::new(false) })
    }

    fn publish(&self, durable: bool, closing: bool) -> Answer<()> {
        let sealed = self.file.seal(durable).map_err(failed)?;
        self.file.publish(&[&sealed], durable, closing).map_err(failed)?;
        self.file.published();
        if !closing {
            self.file.epoch(self.file.stamp()).map_err(failed)?;
        }
        *self.news.lock() = false;
        Ok(())
    }

    fn set_size(&self, size: u64) -> Answer<()> {
        self.publish(false, false)?;
        self.file.set_size(size).map_err(failed)?;
        self.file.epoch(self.file.stamp()).map_err(failed)
    }
}

impl Handle {
    /// Opens the file at `path`, with the flags of open(2).
    pub fn open(path: &Path, flags: i32) -> Answer<Handle> {
        let access = flags & libc::O_ACCMODE;
        if tatami_tiled::is_container(path) {
            // A store to a partial page of a mapping reads the page first.
            let flags = if access == libc::O_RDONLY { Flags::RDONLY } else { Flags::RDWR };
            return Opened::new(path, flags).map(Box::new).map(Handle::Container);
        }
        let file = OpenOptions::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(flags & libc::O_TRUNC | libc::O_NOFOLLOW)
            .open(path);
        file.map(Handle::Plain).map_err(errno)
    }

    pub fn is_container(&self) -> bool {
        matches!(self, Handle::Container(_))
    }

    /// Returns the ordinary file.
    pub fn plain(&self) -> Option<&File> {
        match self {
            Handle::Plain(file) => Some(file),
            Handle::Container(_) => None,
        }
    }

    /// Returns the size of a container.
    pub fn container_size(&self) -> Option<u64> {
        match self {
            Handle::Plain(_) => None,
            Handle::Container(opened) => opened.file.size().ok(),
        }
    }

    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Answer<usize> {
        match self {
            Handle::Plain(file) => {
                let mut done = 0;
                while done < bytes.len() {
                    match file.read_at(&mut bytes[done..], offset + done as u64).map_err(errno)? {
                        0 => break,
                        n => done += n,
                    }
                }
                Ok(done)
            }
            Handle::Container(opened) => {
                let mut into = Buffer::of(bytes, &opened.byte);
                opened.file.read(offset, &mut into).map(|n| n as usize).map_err(failed)
            }
        }
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Answer<()> {
        match self {
            Handle::Plain(file) => file.write_all_at(data, offset).map_err(errno),
            Handle::Container(opened) => {
                *opened.news.lock() = true;
                let mut data = data.to_vec();
                let data = Buffer::of(&mut data, &opened.byte);
                opened.file.write(offset, &data).map(|_| ()).map_err(failed)
            }
        }
    }

    pub fn set_size(&self, size: u64) -> Answer<()> {
        match self {
            Handle::Plain(file) => file.set_len(size).map_err(errno),
            Handle::Container(opened) if opened.file.flags().writes() => opened.set_size(size),
            Handle::Container(opened) => {
                let writing = Opened::new(&opened.path, Flags::RDWR)?;
                writing.set_size(size)?;
                writing.publish(false, true)
            }
        }
    }

    pub fn allocate(&self, offset: u64, len: u64, mode: i32) -> Answer<()> {
        match self {
            Handle::Plain(file) => {
                let flags = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
                rustix::fs::fallocate(file, flags, offset, len).map_err(|e| e.raw_os_error())
            }
            Handle::Container(_) => Err(libc::EOPNOTSUPP),
        }
    }

    /// Makes all writes survive a power cut.
    pub fn sync(&self) -> Answer<()> {
        match self {
            Handle::Plain(file) => file.sync_all().map_err(errno),
            Handle::Container(opened) if opened.file.flags().writes() => {
                opened.publish(true, false)
            }
            Handle::Container(_) => Ok(()),
        }
    }

    /// Publishes the writes after a close(2), so that other programs see them in the container.
    pub fn tell(&self) -> Answer<()> {
        match self {
            Handle::Container(opened) if *opened.news.lock() => opened.publish(false, false),
            _ => Ok(()),
        }
    }

    /// Closes the file after its last user.
    pub fn close(&self) -> Answer<()> {
        match self {
            Handle::Container(opened) if opened.path.exists() => opened.publish(false, true),
            _ => Ok(()),
        }
    }
}

/// Truncates or extends the file at `path`.
pub(super) fn set_size(path: &Path, size: u64) -> Answer<()> {
    let handle = Handle::open(path, libc::O_WRONLY)?;
    handle.set_size(size)?;
    handle.close()
}
