//! A file that is kept through the MPI-IO of an MPI library of this machine. The I/O process of
//! each rank opens it alone (`MPI_COMM_SELF`), and a scattered access is one call through a view.

use crate::mpi_library::{FileRanges, LoadedMpi, MpiFailure, MpiFile, READS, WRITES};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use tatami_layout::View;
use tatami_tiled::{Buffer, Engine, Flags, Result, TiledError, machine};

/// Bytes that are moved by one call.
const PACK: u64 = 4 << 20;

/// The first offset that MPI has no number for.
const OFFSET_END: u64 = i64::MAX as u64;

/// A file in an MPI library, opened by one rank.
pub(crate) struct MpiEngine {
    file: MpiFile,
    path: PathBuf,
    delete: bool,
    scratch: Vec<u8>,
}

fn name_failure(operation: &'static str, path: &Path, failure: MpiFailure) -> TiledError {
    TiledError::with_detail(operation, path, failure.errno, failure.what)
}

/// Returns the ranges of the file behind stream bytes of a view.
fn ranges_of(view: &View, stream: u64, len: u64) -> (FileRanges, u64) {
    let (mut ranges, mut total) = (FileRanges::default(), 0);
    for (offset, len) in view.extents(stream, len) {
        ranges.push(offset, len);
        total += len;
    }
    (ranges, total)
}

impl MpiEngine {
    /// Opens an existing file.
    ///
    /// # Errors
    /// Those of `MPI_File_open`, with its words.
    pub(crate) fn open(
        library: &'static LoadedMpi,
        path: &Path,
        flags: Flags,
    ) -> Result<MpiEngine> {
        let reads = if flags.can_read() { READS } else { 0 };
        let writes = if flags.can_write() { WRITES } else { 0 };
        let opened = library.open_file(path, reads | writes);
        let file = opened.map_err(|failure| name_failure("open", path, failure))?;
        let delete = flags.contains(Flags::DELETE_ON_CLOSE);
        Ok(MpiEngine { file, path: path.to_path_buf(), delete, scratch: Vec::new() })
    }

    fn write_part(&self, view: &View, stream: u64, bytes: &[u8]) -> Result<()> {
        let (ranges, total) = ranges_of(view, stream, bytes.len() as u64);
        // The view has ended: a file has no more offsets.
        if total < bytes.len() as u64 || ranges.end() > OFFSET_END {
            return Err(TiledError::new("write", &self.path, Errno::FBIG));
        }
        let written = self.file.write_ranges(&ranges, bytes);
        written.map_err(|failure| name_failure("write", &self.path, failure))
    }

    fn read_part(&self, view: &View, stream: u64, bytes: &mut [u8]) -> Result<()> {
        let (ranges, total) = ranges_of(view, stream, bytes.len() as u64);
        let read = self.file.read_ranges(&ranges, &mut bytes[..total as usize]);
        let got = read.map_err(|failure| name_failure("read", &self.path, failure))?;
        // Another rank has cut the file since its size was looked at.
        bytes[got..].fill(0);
        Ok(())
    }
}

impl Engine for MpiEngine {
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()> {
        let mut from = 0;
        while from < data.len() {
            let len = (data.len() - from).min(PACK) as usize;
            match data.dense_slice(from, len) {
                Some(bytes) => self.write_part(view, stream + from, bytes)?,
                None => {
                    let mut bytes = std::mem::take(&mut self.scratch);
                    bytes.resize(len, 0);
                    data.gather(from, &mut bytes);
                    self.write_part(view, stream + from, &bytes)?;
                    self.scratch = bytes;
                }
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
            let len = (all - from).min(PACK) as usize;
            if let Some(bytes) = into.dense_slice_mut(from, len) {
                self.read_part(view, stream + from, bytes)?;
            } else {
                let mut bytes = std::mem::take(&mut self.scratch);
                bytes.resize(len, 0);
                self.read_part(view, stream + from, &mut bytes)?;
                into.scatter(from, &bytes);
                self.scratch = bytes;
            }
            from += len as u64;
        }
        Ok(all)
    }

    fn file_size(&mut self) -> Result<u64> {
        self.file.find_size().map_err(|failure| name_failure("stat", &self.path, failure))
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        self.file.set_size(size).map_err(|failure| name_failure("truncate", &self.path, failure))
    }

    /// Writes zeros behind the end, and leaves holes before it. `MPI_File_preallocate` of Open MPI
    /// 4.1 moves bytes of files of more than 32 MiB, and damages them.
    fn preallocate(&mut self, size: u64) -> Result<()> {
        let zeros = vec![0; PACK as usize];
        let mut at = self.file_size()?;
        while at < size {
            let len = (size - at).min(PACK);
            let mut ranges = FileRanges::default();
            ranges.push(at, len);
            let written = self.file.write_ranges(&ranges, &zeros[..len as usize]);
            written.map_err(|failure| name_failure("allocate", &self.path, failure))?;
            at += len;
        }
        Ok(())
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
            self.file.sync_bytes().map_err(|failure| name_failure("sync", &self.path, failure))?;
        }
        Ok(Vec::new())
    }

    fn publish_pieces(&mut self, _sealed: &[&[u8]], _durable: bool, closing: bool) -> Result<()> {
        match closing && self.delete {
            true => {
                let removed = self.file.library().remove_file(&self.path);
                removed.map_err(|failure| name_failure("remove", &self.path, failure))
            }
            false => Ok(()),
        }
    }

    fn mark_published(&mut self) {}
}
