//! Files of another site, as the commands for files see them: through an I/O process there, with
//! the error numbers and the attributes of a volume.

use crate::error::{CommandFailure, ExitStatus};
use crate::interrupt::is_interrupted;
use parking_lot::Mutex;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tatami_remote::{
    BYTES_MAX, RemoteError, RemoteSession, SiteAttr, SiteChange, SiteEntry, SiteFile, SiteRemoval,
};
use tatami_wire::{Attr, Errno, Ino, InodeKind, Timestamp};

/// The cause of the last link that was lost. A process works with few sites, and reports a loss at
/// once.
static LAST_LOSS: Mutex<Option<String>> = Mutex::new(None);

/// Calls that failed because a link broke while a file was open.
static BROKEN_FILES: AtomicU64 = AtomicU64::new(0);

/// Returns how many calls have failed because a link broke while a file was open. The link is there
/// again, and the file can be copied once more.
pub fn count_broken_files() -> u64 {
    BROKEN_FILES.load(Relaxed)
}

/// Returns the error number of a failed call. The cause of a lost link is kept for the report.
pub fn errno_of(error: RemoteError) -> Errno {
    let errno = Errno(error.errno.raw_os_error());
    if errno == Errno::ESTALE {
        BROKEN_FILES.fetch_add(1, Relaxed);
    }
    if matches!(errno, Errno::EHOSTDOWN | Errno::EPROTO) {
        *LAST_LOSS.lock() = Some(error.what);
    }
    errno
}

/// Returns a failure of an operation on another site, with a remedy for the error number.
pub fn site_failure(file: &SiteFile, what: &str, errno: Errno) -> CommandFailure {
    match errno {
        Errno::EHOSTDOWN | Errno::EPROTO => {
            let why = LAST_LOSS.lock().clone().unwrap_or_else(|| errno.to_string());
            let failure = CommandFailure::new(what).because(why);
            CommandFailure { exit: ExitStatus::Degraded, ..failure }.try_this(format!(
                "a login without a password, and tatami there: ssh {} tatami --version",
                file.site
            ))
        }
        Errno::ENAMETOOLONG => CommandFailure::new(format!("{what}: {errno}"))
            .because("a name has at most 255 bytes, a path 4096"),
        _ => CommandFailure::new(format!("{what}: {errno}")),
    }
}

/// The session with the site of a path.
pub fn session_of(file: &SiteFile) -> Result<Arc<RemoteSession>, Errno> {
    RemoteSession::with_site(&file.site).map_err(errno_of)
}

/// The path there, as the messages have it.
pub fn path_of(file: &SiteFile) -> &[u8] {
    file.path.as_os_str().as_bytes()
}

/// Returns attributes as those of a volume, with those that a volume has beyond at their defaults.
pub fn attr_of(found: &SiteAttr) -> Result<Attr, Errno> {
    let kind = InodeKind::from_mode(found.mode).ok_or(Errno::EPROTO)?;
    let time = |(sec, nsec): (i64, u32)| Timestamp { sec, nsec: nsec.min(999_999_999) };
    Ok(Attr {
        mode: (found.mode & 0o7777) as u16,
        nlink: found.nlink,
        uid: found.uid,
        gid: found.gid,
        rdev: found.rdev,
        size: found.size,
        blocks: found.blocks,
        atime: time(found.accessed),
        mtime: time(found.modified),
        ctime: time(found.changed),
        btime: time(found.born),
        ..Attr::with_defaults(Ino(found.ino), kind)
    })
}

/// Returns the attributes of a path.
pub fn look_at(file: &SiteFile, follow: bool) -> Result<SiteEntry, Errno> {
    session_of(file)?.look_at(path_of(file), follow).map_err(errno_of)
}

/// Returns the entries of a directory, by name.
pub fn list_dir(file: &SiteFile) -> Result<Vec<SiteEntry>, Errno> {
    let mut entries = session_of(file)?.list_dir(path_of(file)).map_err(errno_of)?;
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Makes a directory. The umask there counts, unless the mode is exact.
pub fn make_dir(file: &SiteFile, mode: u16, is_exact: bool) -> Result<(), Errno> {
    session_of(file)?.make_dir(path_of(file), mode.into(), is_exact).map_err(errno_of)
}

/// Makes a symbolic link.
pub fn make_link(file: &SiteFile, target: &[u8]) -> Result<(), Errno> {
    session_of(file)?.make_link(path_of(file), target).map_err(errno_of)
}

/// Changes the attributes of a path.
pub fn change_attrs(file: &SiteFile, change: SiteChange) -> Result<(), Errno> {
    session_of(file)?.change_attrs(path_of(file), change).map_err(errno_of)
}

/// Removes an empty directory.
pub fn remove_dir(file: &SiteFile) -> Result<(), Errno> {
    session_of(file)?.remove_dir(path_of(file)).map_err(errno_of)
}

/// Removes a path with everything below it.
pub fn remove_all(file: &SiteFile, on_step: &mut dyn FnMut(SiteRemoval)) -> Result<(), Errno> {
    let session = session_of(file)?;
    let mut go_on = |step| {
        on_step(step);
        !is_interrupted()
    };
    session.remove_tree(path_of(file), &mut go_on).map_err(errno_of)
}

/// Returns the path with a name appended.
pub fn append_name(file: &SiteFile, name: &[u8]) -> SiteFile {
    SiteFile { site: file.site.clone(), path: file.path.join(std::ffi::OsStr::from_bytes(name)) }
}

/// Returns another path of the same site.
pub fn with_path(file: &SiteFile, path: &[u8]) -> SiteFile {
    SiteFile { site: file.site.clone(), path: std::ffi::OsStr::from_bytes(path).into() }
}

/// Bytes that are read ahead: as many as the session has under way at once.
const READ_AHEAD: u64 = 16 << 20;
/// Fewest bytes that are asked for.
const READ_MIN: u64 = 64 << 10;

/// A file of another site that is read from its start on.
pub struct SiteReader {
    session: Arc<RemoteSession>,
    number: u64,
    size: u64,
    /// Where the next byte for the caller lies, and the end of the file if it was found.
    at: u64,
    end: Option<u64>,
    buffer: Vec<u8>,
    /// The place of the buffer in the file.
    start: u64,
}

impl SiteReader {
    /// Opens a regular file.
    ///
    /// # Errors
    /// As for open(2), and those of the link.
    pub fn open(file: &SiteFile) -> Result<SiteReader, Errno> {
        let session = session_of(file)?;
        let (number, attr) = session.open_source(path_of(file)).map_err(errno_of)?;
        let (buffer, size) = (Vec::new(), attr.size);
        Ok(SiteReader { session, number, size, at: 0, end: None, buffer, start: 0 })
    }

    /// Continues at another place.
    pub fn seek_to(&mut self, offset: u64) {
        self.at = offset;
    }

    /// Returns the next range of data at or after `from`.
    pub fn find_data(&self, from: u64) -> Result<Option<(u64, u64)>, Errno> {
        self.session.find_data(self.number, from).map_err(errno_of)
    }

    fn fill(&mut self) -> std::io::Result<()> {
        // One byte more than is expected: a short reply shows the end, and saves a call.
        let len = self.size.saturating_sub(self.at).saturating_add(1);
        self.buffer.resize(len.clamp(READ_MIN, READ_AHEAD) as usize, 0);
        self.start = self.at;
        let read = self.session.read(self.number, self.at, &mut self.buffer);
        let read = read.map_err(|e| std::io::Error::from_raw_os_error(errno_of(e).0))?;
        if read < self.buffer.len() as u64 {
            self.end = Some(self.at + read);
        }
        self.buffer.truncate(read as usize);
        Ok(())
    }
}

impl std::io::Read for SiteReader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let inside = |r: &SiteReader| (r.at >= r.start).then(|| (r.at - r.start) as usize);
        let mut from = inside(self).filter(|from| *from < self.buffer.len());
        if from.is_none() && self.end.is_none_or(|end| self.at < end) {
            self.fill()?;
            from = Some(0);
        }
        let rest = from.and_then(|from| self.buffer.get(from..)).unwrap_or_default();
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        self.at += n as u64;
        Ok(n)
    }
}

impl Drop for SiteReader {
    fn drop(&mut self) {
        self.session.close(self.number);
    }
}

/// A file of another site that is being written. It gets its name when it is finished.
pub struct SiteWriter {
    session: Arc<RemoteSession>,
    number: u64,
    at: u64,
}

impl SiteWriter {
    /// Begins a file. Its errors are those of later calls.
    ///
    /// # Errors
    /// Those of the link.
    pub fn create(file: &SiteFile, mode: u16) -> Result<SiteWriter, Errno> {
        let session = session_of(file)?;
        let number = session.open_sink(path_of(file), mode.into()).map_err(errno_of)?;
        Ok(SiteWriter { session, number, at: 0 })
    }

    /// Continues at another place.
    pub fn seek_to(&mut self, offset: u64) {
        self.at = offset;
    }

    /// Sets the size of a file that ends in a hole.
    pub fn set_size(&mut self, size: u64) -> Result<(), Errno> {
        self.session.set_size(self.number, size).map_err(errno_of)
    }

    /// Completes the file with these attributes, and gives it its name.
    ///
    /// # Errors
    /// The first of all calls for the file.
    pub fn finish(self, change: SiteChange, may_replace: bool) -> Result<(), Errno> {
        self.session.finish_sink(self.number, change, may_replace).map_err(errno_of)
    }
}

impl std::io::Write for SiteWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let part = &bytes[..bytes.len().min(BYTES_MAX)];
        let sent = self.session.write_behind(self.number, self.at, part);
        sent.map_err(|e| std::io::Error::from_raw_os_error(errno_of(e).0))?;
        self.at += part.len() as u64;
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for SiteWriter {
    fn drop(&mut self) {
        // Without effect after its end. Before that, nothing of the file is left there.
        self.session.close(self.number);
    }
}
