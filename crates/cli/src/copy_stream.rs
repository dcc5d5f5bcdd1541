//! The bytes of one file on their way: the source, the destination, and the holes between.
//!
//! A new file gets its name only when it is complete. So nobody finds half a copy, not even after
//! SIGKILL or a power cut.

use crate::error::{CommandFailure, CommandResult};
use crate::files::CHUNK;
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::part_files::{LocalPart, VolumePart};
use crate::site_tree::{SiteReader, SiteWriter};
use crate::term;
use crate::volume_path::{AnyPath, last_component};
use indicatif::ProgressBar;
use rustix::io::Errno as SystemErrno;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tatami_client::UnnamedFile;
use tatami_client::tree::FileHandle;
use tatami_wire::Errno;
use tatami_wire::object::SeekTarget;
use tempfile::NamedTempFile;

/// Bytes of a name that a temporary name keeps: with the rest it is at most 255 long.
const STEM_MAX: usize = 200;
/// Smallest buffer, in bytes.
const BUFFER_MIN: u64 = 64 << 10;
/// Bytes that the kernel copies at a time: as many as it does in some milliseconds.
const IN_KERNEL_STEP: u64 = 16 << 20;
/// Fewest bytes for which that is tried.
const IN_KERNEL_MIN: u64 = 256 << 10;

/// A file being read.
pub enum CopySource {
    Stream(Box<dyn Read>),
    Local(File),
    Volume(Box<FileHandle>),
    Site(Box<SiteReader>),
    /// Bytes that were read before.
    Memory(io::Cursor<Vec<u8>>),
}

/// A file being written.
pub enum CopySink {
    /// Standard output.
    Stream(Box<dyn Write>),
    /// A new file of this machine under a temporary name, and its name.
    LocalNew(NamedTempFile, PathBuf),
    /// An existing file of this machine that keeps its inode.
    LocalOld(File),
    /// A new file of the volume.
    VolumeNew(Box<UnnamedFile>),
    /// An existing file of the volume that keeps its inode.
    VolumeOld(Box<FileHandle>),
    /// A part file of this machine.
    LocalPart(Box<LocalPart>),
    /// A part file of the volume.
    VolumePart(Box<VolumePart>),
    /// A file of another site.
    Site(SiteWriter),
}

/// Each method fails with the error of the system call that it resembles.
impl CopySource {
    /// Returns the next range of data at or after `from`. `None`: only a hole is left, or nothing.
    pub fn find_data(&mut self, from: u64) -> Result<Option<(u64, u64)>, Errno> {
        let found = match self {
            CopySource::Stream(_) => return Err(Errno::EINVAL),
            CopySource::Local(file) => {
                let seek = |to| rustix::fs::seek(&*file, to).map_err(from_system);
                seek(rustix::fs::SeekFrom::Data(from))
                    .and_then(|start| Ok((start, seek(rustix::fs::SeekFrom::Hole(start))?)))
            }
            CopySource::Volume(file) => {
                let data = file.data();
                data.seek(SeekTarget::Data, from)
                    .and_then(|start| Ok((start, data.seek(SeekTarget::Hole, start)?)))
            }
            CopySource::Site(file) => return file.find_data(from),
            CopySource::Memory(bytes) => {
                let size = bytes.get_ref().len() as u64;
                return Ok((from < size).then_some((from, size)));
            }
        };
        match found {
            Ok((start, end)) => Ok((end > start).then_some((start, end))),
            Err(Errno::ENXIO) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Continues at another place.
    pub fn seek_to(&mut self, offset: u64) -> io::Result<()> {
        match self {
            CopySource::Stream(_) => return Err(io::ErrorKind::NotSeekable.into()),
            CopySource::Local(file) => file.seek(SeekFrom::Start(offset))?,
            CopySource::Volume(file) => file.seek(SeekFrom::Start(offset))?,
            CopySource::Site(file) => {
                file.seek_to(offset);
                offset
            }
            CopySource::Memory(bytes) => bytes.seek(SeekFrom::Start(offset))?,
        };
        Ok(())
    }
}

impl Read for CopySource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            CopySource::Stream(stream) => stream.read(buffer),
            CopySource::Local(file) => file.read(buffer),
            CopySource::Volume(file) => file.read(buffer),
            CopySource::Site(file) => file.read(buffer),
            CopySource::Memory(bytes) => bytes.read(buffer),
        }
    }
}

impl CopySink {
    /// Creates a new file of this machine. It gets the name `path` when it is finished.
    pub fn create_local(path: &Path, mode: u32) -> io::Result<CopySink> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let stem = String::from_utf8_lossy(&name[..name.len().min(STEM_MAX)]).into_owned();
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        let file = tempfile::Builder::new()
            .prefix(&format!(".{stem}."))
            .permissions(mode)
            .tempfile_in(dir.unwrap_or(Path::new(".")))?;
        Ok(CopySink::LocalNew(file, path.to_owned()))
    }

    /// Whether holes can be left in it.
    fn has_holes(&self) -> bool {
        !matches!(self, CopySink::Stream(_))
    }

    /// Continues at another place.
    pub fn seek_to(&mut self, offset: u64) -> io::Result<()> {
        match self {
            CopySink::Stream(_) => return Err(io::ErrorKind::NotSeekable.into()),
            CopySink::LocalNew(file, _) => file.seek(SeekFrom::Start(offset))?,
            CopySink::LocalOld(file) => file.seek(SeekFrom::Start(offset))?,
            CopySink::VolumeNew(file) => file.handle().seek(SeekFrom::Start(offset))?,
            CopySink::VolumeOld(file) => file.seek(SeekFrom::Start(offset))?,
            CopySink::LocalPart(part) => part.part.file().seek(SeekFrom::Start(offset))?,
            CopySink::VolumePart(part) => part.handle().seek(SeekFrom::Start(offset))?,
            CopySink::Site(file) => {
                file.seek_to(offset);
                offset
            }
        };
        Ok(())
    }

    /// Sets the size of a file that ends in a hole.
    pub fn set_size(&mut self, size: u64) -> Result<(), Errno> {
        match self {
            CopySink::Stream(_) => Err(Errno::EINVAL),
            CopySink::LocalNew(file, _) => Ok(file.as_file().set_len(size)?),
            CopySink::LocalOld(file) => Ok(file.set_len(size)?),
            CopySink::VolumeNew(file) => file.handle().truncate(size),
            CopySink::VolumeOld(file) => file.truncate(size),
            // It has its size from the start.
            CopySink::LocalPart(_) | CopySink::VolumePart(_) => Ok(()),
            CopySink::Site(file) => file.set_size(size),
        }
    }
}

impl Write for CopySink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            CopySink::Stream(stream) => stream.write(bytes),
            CopySink::LocalNew(file, _) => file.write(bytes),
            CopySink::LocalOld(file) => file.write(bytes),
            CopySink::VolumeNew(file) => file.handle().write(bytes),
            CopySink::VolumeOld(file) => file.write(bytes),
            CopySink::LocalPart(part) => part.part.file().write(bytes),
            CopySink::VolumePart(part) => part.handle().write(bytes),
            CopySink::Site(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            CopySink::Stream(stream) => stream.flush(),
            CopySink::LocalNew(file, _) => file.flush(),
            CopySink::LocalOld(file) => file.flush(),
            // Closing it reports what could not be written.
            CopySink::VolumeNew(_) | CopySink::VolumeOld(_) | CopySink::Site(_) => Ok(()),
            CopySink::LocalPart(_) | CopySink::VolumePart(_) => Ok(()),
        }
    }
}

/// Copies the bytes of one file. `size` is its expected size, and bounds the buffer. With `sparse`,
/// the file has holes, and the copy gets them, too.
///
/// # Errors
/// Those of reading and writing; Ctrl-C.
pub fn copy_bytes(
    (from, to): (&AnyPath, &AnyPath),
    (size, sparse): (u64, bool),
    source: &mut CopySource,
    sink: &mut CopySink,
    bar: &ProgressBar,
) -> CommandResult {
    bar.set_message(term::escape_name(&last_name(from)));
    let mut buffer = vec![0; CHUNK.min(size.max(BUFFER_MIN) as usize)];
    if !sparse || !sink.has_holes() || matches!(source, CopySource::Stream(_)) {
        let range = (u64::MAX, size >= IN_KERNEL_MIN);
        return copy_range((from, to), range, source, sink, &mut buffer, bar);
    }
    let read_failed = |e| from.operation_failure("cannot read", e);
    let mut at = 0;
    while let Some((start, end)) = source.find_data(at).map_err(read_failed)? {
        source.seek_to(start).map_err(|e| read_failed(e.into()))?;
        sink.seek_to(start).map_err(|e| write_failure(to, e))?;
        bar.inc(start.saturating_sub(at));
        let range = (end - start, end - start >= IN_KERNEL_MIN);
        copy_range((from, to), range, source, sink, &mut buffer, bar)?;
        at = end;
    }
    bar.inc(size.saturating_sub(at));
    if at < size {
        sink.set_size(size).map_err(|e| to.operation_failure("cannot write", e))?;
    }
    Ok(())
}

/// Copies up to `left` bytes from and to the current positions; many bytes `in_kernel` if possible.
fn copy_range(
    (from, to): (&AnyPath, &AnyPath),
    (mut left, mut in_kernel): (u64, bool),
    source: &mut CopySource,
    sink: &mut CopySink,
    buffer: &mut [u8],
    bar: &ProgressBar,
) -> CommandResult {
    while left > 0 {
        check_interrupt()?;
        if in_kernel {
            let most = usize::try_from(left.min(IN_KERNEL_STEP)).unwrap_or(buffer.len());
            let copied = copy_in_kernel(source, sink, most);
            match copied.map_err(|e| to.operation_failure("cannot write", e))? {
                Some(n) if n > 0 => {
                    bar.inc(n as u64);
                    left -= n as u64;
                    continue;
                }
                // The end, or the kernel cannot: reading shows which.
                _ => in_kernel = false,
            }
        }
        let part = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = match source.read(&mut buffer[..part]) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted && !is_interrupted() => continue,
            Err(_) if is_interrupted() => return check_interrupt(),
            Err(e) => return Err(from.operation_failure("cannot read", Errno::from(e))),
        };
        sink.write_all(&buffer[..n]).map_err(|e| write_failure(to, e))?;
        bar.inc(n as u64);
        left -= n as u64;
    }
    Ok(())
}

/// Copies bytes without a buffer of this process, where both files are on disks of this machine.
/// `None`: that is not so.
fn copy_in_kernel(
    source: &mut CopySource,
    sink: &mut CopySink,
    most: usize,
) -> Result<Option<usize>, Errno> {
    match (source, sink) {
        (CopySource::Local(file), CopySink::VolumeNew(to)) => to.handle().copy_in(file, most),
        (CopySource::Local(file), CopySink::VolumeOld(to)) => to.copy_in(file, most),
        (CopySource::Volume(file), CopySink::LocalNew(to, _)) => file.copy_out(to.as_file(), most),
        (CopySource::Volume(file), CopySink::LocalOld(to)) => file.copy_out(to, most),
        _ => Ok(None),
    }
}

/// Returns whether two files have the same bytes.
///
/// # Errors
/// Those of reading; Ctrl-C.
pub fn have_same_bytes(
    (from, to): (&AnyPath, &AnyPath),
    mut one: CopySource,
    mut other: CopySource,
) -> CommandResult<bool> {
    let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        check_interrupt()?;
        let n = read_full(&mut one, &mut a)
            .map_err(|e| from.operation_failure("cannot read", Errno::from(e)))?;
        let m = read_full(&mut other, &mut b)
            .map_err(|e| to.operation_failure("cannot read", Errno::from(e)))?;
        if a[..n] != b[..m] {
            return Ok(false);
        }
        if n == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(source: &mut CopySource, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted && !is_interrupted() => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// Returns the failure of a write to `to`. A reader of standard output that has gone is reported to
/// nobody, as after `SIGPIPE`.
pub fn write_failure(to: &AnyPath, error: io::Error) -> CommandFailure {
    match is_standard_stream(to) {
        true => error.into(),
        false => to.operation_failure("cannot write", Errno::from(error)),
    }
}

/// The path that names standard input as a source, and standard output as a destination.
pub fn is_standard_stream(path: &AnyPath) -> bool {
    matches!(path, AnyPath::Local(path) if path.as_os_str() == "-")
}

/// Returns the last name of the path. It is empty for the root.
pub fn last_name(path: &AnyPath) -> Vec<u8> {
    match path {
        AnyPath::Volume(path) => last_component(path).to_vec(),
        AnyPath::Local(path) => last_component(path.as_os_str().as_bytes()).to_vec(),
        AnyPath::Site(file) => last_component(file.path.as_os_str().as_bytes()).to_vec(),
    }
}

fn from_system(errno: SystemErrno) -> Errno {
    Errno(errno.raw_os_error())
}
