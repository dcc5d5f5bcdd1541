//! One ordinary file under the same calls: nothing is tiled, and file offsets are offsets of the
//! file. It is the reference for the other engines, and serves files that must stay ordinary.

use crate::engine::Engine;
use crate::error::{ErrorContext, Result, TiledError};
use crate::flags::Flags;
use crate::hints::Hints;
use crate::machine;
use crate::memory::Buffer;
use crate::small_pieces::{PieceWriter, for_each_stretch};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tatami_layout::View;

/// An ordinary file, opened by one rank.
#[derive(Debug)]
pub struct PlainEngine {
    file: File,
    path: PathBuf,
    delete: bool,
    hints: Hints,
    scratch: Vec<u8>,
    writer: PieceWriter,
    /// A stretch of the file around pieces that are read together.
    stretch: Vec<u8>,
}

/// Bytes that are packed at a time.
const PACK: usize = 4 << 20;

/// Creates the file if requested, and checks that it can be opened.
///
/// # Errors
/// As for open(2).
pub fn begin_plain_open(path: &Path, flags: Flags, mode: u32) -> Result<()> {
    open_options(flags)
        .create(flags.contains(Flags::CREATE) && flags.can_write())
        .create_new(
            flags.contains(Flags::CREATE) && flags.contains(Flags::EXCL) && flags.can_write(),
        )
        .mode(mode)
        .open(path)
        .context("open", path)
        .map(|_| ())
}

fn open_options(flags: Flags) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(flags.can_read()).write(flags.can_write());
    options
}

impl PlainEngine {
    /// Opens a file that [`begin_plain_open`] has made or found.
    ///
    /// # Errors
    /// As for open(2).
    pub fn open(path: &Path, flags: Flags, hints: &Hints) -> Result<PlainEngine> {
        let file = open_options(flags).open(path).context("open", path)?;
        let delete = flags.contains(Flags::DELETE_ON_CLOSE);
        let (path, hints) = (path.to_path_buf(), hints.clone());
        let writer = PieceWriter::new(&file, flags.can_read());
        let (scratch, stretch) = (Vec::new(), Vec::new());
        Ok(PlainEngine { file, path, delete, hints, scratch, writer, stretch })
    }

    /// Reads the pieces of the view. Pieces that lie close together are read at once, with what is
    /// between them.
    fn read_pieces(&mut self, view: &View, stream: u64, bytes: &mut [u8]) -> Result<()> {
        let (file, stretch) = (&self.file, &mut self.stretch);
        let longest = if self.hints.sieve { self.hints.read_buffer } else { 0 };
        let mut done = 0;
        for_each_stretch(view.extents(stream, bytes.len() as u64), longest, |first, pieces| {
            let [.., (last, len)] = *pieces else { return Ok(()) };
            if pieces.len() == 1 {
                read_full(file, &mut bytes[done..][..len as usize], first)?;
                done += len as usize;
                return Ok(());
            }
            stretch.resize((last + len - first) as usize, 0);
            read_full(file, stretch, first)?;
            for (offset, len) in pieces {
                let (at, len) = ((offset - first) as usize, *len as usize);
                bytes[done..done + len].copy_from_slice(&stretch[at..at + len]);
                done += len;
            }
            Ok(())
        })
        .context("read", &self.path)
    }
}

/// Reads all of `bytes`; bytes past the end of the file are zeros.
///
/// # Errors
/// Those of pread(2).
pub fn read_full(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => {
                bytes[done..].fill(0);
                break;
            }
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl Engine for PlainEngine {
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()> {
        let mut from = 0;
        while from < data.len() {
            let len = (data.len() - from).min(PACK as u64) as usize;
            let bytes = match data.dense_slice(from, len) {
                Some(bytes) => bytes,
                None => {
                    self.scratch.resize(len, 0);
                    data.gather(from, &mut self.scratch);
                    &self.scratch[..]
                }
            };
            let pieces = view.extents(stream + from, len as u64);
            let done = self.writer.write_pieces(&self.file, pieces, bytes);
            let done = done.context("write", &self.path)?;
            // The view has ended: a file has no more offsets.
            if done < len {
                return Err(TiledError::new("write", &self.path, Errno::FBIG));
            }
            from += len as u64;
        }
        Ok(())
    }

    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64> {
        let visible = view.stream_before(self.file_size()?).0;
        let all = into.len().min(visible.saturating_sub(stream));
        let mut from = 0;
        while from < all {
            let len = (all - from).min(self.hints.read_buffer as u64) as usize;
            if let Some(bytes) = into.dense_slice_mut(from, len) {
                self.read_pieces(view, stream + from, bytes)?;
            } else {
                let mut bytes = std::mem::take(&mut self.scratch);
                bytes.resize(len, 0);
                let read = self.read_pieces(view, stream + from, &mut bytes);
                into.scatter(from, &bytes);
                self.scratch = bytes;
                read?;
            }
            from += len as u64;
        }
        Ok(all)
    }

    fn file_size(&mut self) -> Result<u64> {
        Ok(self.file.metadata().context("stat", &self.path)?.len())
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        self.file.set_len(size).context("truncate", &self.path)
    }

    fn preallocate(&mut self, size: u64) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, size) {
            // Without fallocate(2) only the length can be set, and it must not shrink.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if size > self.file_size()? => self.set_size(size),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => other.context("allocate", &self.path),
        }
    }

    fn next_stamp(&self) -> u64 {
        machine::now()
    }

    fn begin_epoch(&mut self, _stamp: u64) -> Result<()> {
        Ok(())
    }

    fn set_atomic(&mut self, _on: bool) {}

    fn seal_piece(&mut self, durable: bool) -> Result<Vec<u8>> {
        if durable {
            self.file.sync_all().context("sync", &self.path)?;
        }
        Ok(Vec::new())
    }

    fn publish_pieces(&mut self, _sealed: &[&[u8]], _durable: bool, closing: bool) -> Result<()> {
        match closing && self.delete {
            true => std::fs::remove_file(&self.path).context("remove", &self.path),
            false => Ok(()),
        }
    }

    fn mark_published(&mut self) {}
}
