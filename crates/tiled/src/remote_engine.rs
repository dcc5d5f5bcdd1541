//! A file of another site under the same calls: the I/O process there carries them out on an
//! ordinary file, with the view that this rank has set.
//!
//! A write returns when the other side has made it. MPI would allow to send it behind until the
//! next sync, but libraries rely on more: after a barrier without a sync HDF5 lets one rank write
//! over the fill values of another. Where this process has the file to itself, or the program asks
//! for it (hint `tatami_write_behind`), writes are sent behind, and small ones that follow one
//! another are gathered. They are visible to others and on the disk after a sync or close, and
//! after each access in atomic mode.
//!
//! In such a file, and in one that is opened for reading alone, small reads bring the bytes around
//! them along. They are forgotten at each sync, at a new view, and at a write.

use crate::block_cache::{BLOCK, BlockCache};
use crate::collective_open::CollectiveOpen;
use crate::engine::Engine;
use crate::error::{Result, TiledError};
use crate::flags::Flags;
use crate::hints::Hints;
use crate::machine;
use crate::memory::Buffer;
use crate::token::OpenToken;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_layout::View;
use tatami_remote::{
    BYTES_MAX, FileOpen, RemoteError, RemoteSession, SiteBackend, SiteFile, SiteTicket,
};

/// Most bytes of small writes that are gathered.
const GATHER_MAX: usize = 256 << 10;
/// Bytes of a scattered access that are sent at a time. The other side spreads them while it
/// receives the next ones, and its kernel holds no more of those.
const SCATTERED: usize = 256 << 10;
/// An access is scattered if its pieces are smaller than this, in bytes.
const PIECE: u64 = 16 << 10;
/// A read of at least as many bytes brings no others along.
const AHEAD_BELOW: usize = 4 * BLOCK as usize;
/// Bytes of a scattered buffer that are packed for one read.
const PACK: usize = 16 << 20;

fn fail(operation: &'static str, path: &Path, error: RemoteError) -> TiledError {
    TiledError::with_detail(operation, path, error.errno, error.what)
}

fn describe_open(file: &SiteFile, flags: Flags, hints: &Hints, backend: SiteBackend) -> FileOpen {
    FileOpen {
        path: file.path.as_os_str().as_bytes().to_vec().into(),
        flags: flags.0,
        read_buffer: hints.read_buffer as u64,
        sieve: hints.sieve,
        backend,
    }
}

/// Begins an open of a file of another site, as rank 0.
///
/// # Errors
/// As for open(2) there; `EHOSTDOWN` where the site is not reached.
pub fn begin_remote_open(
    open: &CollectiveOpen<'_>,
    file: SiteFile,
    token: OpenToken,
) -> Result<OpenToken> {
    let wanted = open.hints.backend.clone().or_else(|| open.environment.backend.clone());
    let wanted = wanted.unwrap_or_default();
    if let SiteBackend::Unknown(word) = &wanted {
        let why = format!(
            "{word:?} is no tatami_backend: auto, posix, volume, mpi, mpi:openmpi or mpi:mpich"
        );
        return Err(TiledError::with_detail("open", open.path, Errno::NODEV, why));
    }
    let begun = RemoteSession::with_site(&file.site).and_then(|session| {
        let there = describe_open(&file, open.flags, open.hints, wanted);
        session.begin(there, open.mode, open.ranks)
    });
    let (there, backend) = begun.map_err(|error| fail("open", open.path, error))?;
    let ticket = SiteTicket { file, token: there, backend };
    let token = OpenToken { remote: Some(ticket), ..token };
    match token.encode().len() > crate::token::TOKEN_MAX {
        true => Err(TiledError::new("open", open.path, Errno::NAMETOOLONG)),
        false => Ok(token),
    }
}

/// Removes a file of another site.
///
/// # Errors
/// As for unlink(2) there.
pub fn delete_remote_file(path: &Path, file: &SiteFile) -> Result<()> {
    let session = RemoteSession::with_site(&file.site);
    let removed = session.and_then(|session| session.delete(file.path.as_os_str().as_bytes()));
    removed.map_err(|error| fail("remove", path, error))
}

/// Reads from the start of a file of another site; returns the bytes read.
///
/// # Errors
/// As for open(2) there.
pub fn look_at_remote_file(path: &Path, file: &SiteFile, into: &mut [u8]) -> Result<usize> {
    let session = RemoteSession::with_site(&file.site);
    let read = session.and_then(|session| session.look(file.path.as_os_str().as_bytes(), into));
    read.map_err(|error| fail("open", path, error))
}

/// An open file of another site.
#[derive(Debug)]
pub struct RemoteFile {
    session: Arc<RemoteSession>,
    number: u64,
    path: PathBuf,
}

impl RemoteFile {
    fn check<T>(
        &self,
        operation: &'static str,
        result: std::result::Result<T, RemoteError>,
    ) -> Result<T> {
        result.map_err(|error| fail(operation, &self.path, error))
    }

    /// Keeps other threads away from the session until the result is dropped.
    pub fn take_turn(&self) -> RemoteTurn<'_> {
        self.session.begin_turn();
        RemoteTurn(&self.session)
    }

    /// Waits for the lock of atomic mode.
    ///
    /// # Errors
    /// Those of flock(2) there.
    pub fn lock(&self) -> Result<()> {
        self.check("lock", self.session.lock(self.number))
    }

    /// Gives up the lock.
    ///
    /// # Errors
    /// Those of flock(2) there.
    pub fn unlock(&self) -> Result<()> {
        self.check("unlock", self.session.unlock(self.number))
    }

    /// Adds to the shared pointer; returns its old value.
    ///
    /// # Errors
    /// Those of the disk there.
    pub fn add_to_pointer(&self, delta: i64) -> Result<i64> {
        self.check("move the shared pointer of", self.session.add_to_pointer(self.number, delta))
    }

    /// Sets the shared pointer.
    ///
    /// # Errors
    /// Those of the disk there.
    pub fn set_pointer(&self, value: i64) -> Result<()> {
        self.check("move the shared pointer of", self.session.set_pointer(self.number, value))
    }
}

/// The turn of a thread on the session of a file.
pub struct RemoteTurn<'a>(&'a RemoteSession);

impl Drop for RemoteTurn<'_> {
    fn drop(&mut self) {
        self.0.end_turn();
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        self.session.close(self.number);
    }
}

/// A file of another site, opened by one rank.
pub struct RemoteEngine {
    file: Arc<RemoteFile>,
    /// The view that the other side has; none before the first access.
    view: Option<View>,
    /// Writes are sent behind.
    behind: bool,
    /// The file lies there in pieces of the ranks, on a volume. So the other side knows epochs, and
    /// publishes what the ranks have sealed.
    in_pieces: bool,
    /// Small writes that follow one another, from this stream position on.
    gathered: (u64, Vec<u8>),
    scratch: Vec<u8>,
    /// Bytes that were read ahead; `None` where other ranks of the open may write.
    ahead: Option<BlockCache>,
}

impl RemoteEngine {
    /// Opens a file that [`begin_remote_open`] of rank 0 has made or found.
    ///
    /// # Errors
    /// As for open(2) there; `EHOSTDOWN` where the site is not reached.
    pub fn open(
        path: &Path,
        flags: Flags,
        hints: &Hints,
        rank: u32,
        token: &OpenToken,
    ) -> Result<RemoteEngine> {
        let missing = || TiledError::new("open", path, Errno::INVAL);
        let is_alone = token.ranks == 1;
        let behind = hints.write_behind.unwrap_or(is_alone);
        let SiteTicket { file, token, backend } = token.remote.clone().ok_or_else(missing)?;
        let in_pieces = backend == SiteBackend::Volume;
        let opened = RemoteSession::with_site(&file.site).and_then(|session| {
            let number = session.open(describe_open(&file, flags, hints, backend), rank, token)?;
            Ok((session, number))
        });
        let (session, number) = opened.map_err(|error| fail("open", path, error))?;
        let file = Arc::new(RemoteFile { session, number, path: path.to_path_buf() });
        let (gathered, scratch) = ((0, Vec::new()), Vec::new());
        let ahead = (is_alone || !flags.can_write()).then(BlockCache::default);
        Ok(RemoteEngine { file, view: None, behind, in_pieces, gathered, scratch, ahead })
    }

    /// The open file, for its lock and pointer.
    pub fn file(&self) -> Arc<RemoteFile> {
        self.file.clone()
    }

    fn send_gathered(&mut self) -> Result<()> {
        let (stream, bytes) = std::mem::take(&mut self.gathered);
        match bytes.is_empty() {
            true => Ok(()),
            false => self.send_bytes(stream, &bytes),
        }
    }

    fn send_bytes(&self, stream: u64, bytes: &[u8]) -> Result<()> {
        let mut stream = stream;
        let first = self.view.as_ref().and_then(|view| view.extents(stream, PIECE).next());
        let is_scattered = first.is_some_and(|(_, len)| len < PIECE);
        for part in bytes.chunks(if is_scattered { SCATTERED } else { BYTES_MAX }) {
            let sent = self.file.session.write_behind(self.file.number, stream, part);
            self.file.check("write", sent)?;
            stream += part.len() as u64;
        }
        Ok(())
    }

    /// Sends the view, unless the other side has it.
    fn use_view(&mut self, view: &View) -> Result<()> {
        if self.view.as_ref() == Some(view) {
            return Ok(());
        }
        self.send_gathered()?;
        self.forget_ahead();
        let mut bytes = Vec::new();
        view.encode(&mut bytes);
        let sent = self.file.session.set_view(self.file.number, bytes);
        self.file.check("set the view of", sent)?;
        self.view = Some(view.clone());
        Ok(())
    }

    fn forget_ahead(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.clear();
        }
    }

    /// Reads into `bytes`; returns the bytes read, fewer at the end of the file.
    fn read_bytes(&mut self, stream: u64, bytes: &mut [u8]) -> Result<u64> {
        let file = &self.file;
        let read = |stream: u64, bytes: &mut [u8]| {
            let read = file.session.read(file.number, stream, bytes);
            file.check("read", read)
        };
        let Some(ahead) = self.ahead.as_mut().filter(|_| bytes.len() < AHEAD_BELOW) else {
            return read(stream, bytes);
        };
        let mut done = 0;
        loop {
            done += ahead.copy_known(stream + done as u64, &mut bytes[done..]);
            if done == bytes.len() {
                return Ok(done as u64);
            }
            let at = stream + done as u64;
            let (start, len) = ahead.choose_range(at, (bytes.len() - done) as u64);
            self.scratch.resize(len, 0);
            let got = read(start, &mut self.scratch)?;
            ahead.insert(start, &self.scratch[..got as usize]);
            if start + got <= at {
                return Ok(done as u64);
            }
        }
    }

    fn is_next(&self, stream: u64, len: u64) -> bool {
        let (start, bytes) = &self.gathered;
        let follows = bytes.is_empty() || start + bytes.len() as u64 == stream;
        self.behind && follows && bytes.len() as u64 + len <= GATHER_MAX as u64
    }
}

impl Engine for RemoteEngine {
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()> {
        self.use_view(view)?;
        self.forget_ahead();
        if !self.is_next(stream, data.len()) {
            self.send_gathered()?;
        }
        if self.is_next(stream, data.len()) {
            let (start, bytes) = &mut self.gathered;
            if bytes.is_empty() {
                *start = stream;
            }
            let from = bytes.len();
            bytes.resize(from + data.len() as usize, 0);
            data.gather(0, &mut bytes[from..]);
            return Ok(());
        }
        let mut from = 0;
        while from < data.len() {
            let len = (data.len() - from).min(BYTES_MAX as u64) as usize;
            match data.dense_slice(from, len) {
                Some(bytes) => self.send_bytes(stream + from, bytes)?,
                None => {
                    let mut bytes = std::mem::take(&mut self.scratch);
                    bytes.resize(len, 0);
                    data.gather(from, &mut bytes);
                    self.send_bytes(stream + from, &bytes)?;
                    self.scratch = bytes;
                }
            }
            from += len as u64;
        }
        match self.behind {
            true => Ok(()),
            false => {
                let made = self.file.session.await_writes(self.file.number);
                self.file.check("write", made)
            }
        }
    }

    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64> {
        self.use_view(view)?;
        self.send_gathered()?;
        let mut from = 0;
        while from < into.len() {
            // Bytes that go to their place directly are asked for at once: each wait in between
            // would cost a round trip.
            let rest = usize::try_from(into.len() - from).unwrap_or(usize::MAX);
            let len = match into.dense_slice_mut(from, rest) {
                Some(_) => rest,
                None => rest.min(PACK),
            };
            let got = match into.dense_slice_mut(from, len) {
                Some(bytes) => self.read_bytes(stream + from, bytes)?,
                None => {
                    let mut bytes = vec![0; len];
                    let got = self.read_bytes(stream + from, &mut bytes)?;
                    into.scatter(from, &bytes[..got as usize]);
                    got
                }
            };
            from += got;
            if got < len as u64 {
                break;
            }
        }
        Ok(from)
    }

    fn file_size(&mut self) -> Result<u64> {
        self.send_gathered()?;
        self.file.check("stat", self.file.session.size(self.file.number))
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        self.send_gathered()?;
        self.forget_ahead();
        self.file.check("truncate", self.file.session.set_size(self.file.number, size))
    }

    fn preallocate(&mut self, size: u64) -> Result<()> {
        self.send_gathered()?;
        self.file.check("allocate", self.file.session.preallocate(self.file.number, size))
    }

    fn next_stamp(&self) -> u64 {
        let asked = self.in_pieces.then(|| self.file.session.next_stamp(self.file.number));
        // A failed link is the error of the next call.
        asked.and_then(std::result::Result::ok).unwrap_or_else(machine::now)
    }

    fn begin_epoch(&mut self, stamp: u64) -> Result<()> {
        if !self.in_pieces {
            return Ok(());
        }
        self.send_gathered()?;
        self.file.check("sync", self.file.session.begin_epoch(self.file.number, stamp))
    }

    fn set_atomic(&mut self, on: bool) {
        if on {
            self.ahead = None;
        }
        if self.in_pieces {
            // A failed link is the error of the next call.
            let _ = self.send_gathered();
            let _ = self.file.session.set_atomic(self.file.number, on);
        }
    }

    fn seal_piece(&mut self, durable: bool) -> Result<Vec<u8>> {
        let sent = self.send_gathered();
        self.forget_ahead();
        let sealed = self.file.session.seal(self.file.number, durable);
        self.file.check("sync", sealed).and_then(|sealed| sent.map(|()| sealed))
    }

    fn publish_pieces(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        let published = self.file.session.publish(self.file.number, sealed, durable, closing);
        self.file.check("sync", published)
    }

    fn mark_published(&mut self) {
        self.forget_ahead();
        if self.in_pieces {
            // A failed link is the error of the next call.
            let _ = self.file.session.mark_published(self.file.number);
        }
    }
}
