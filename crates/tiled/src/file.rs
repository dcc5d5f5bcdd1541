//! One rank's handle of one collective open: views, stream positions, the shared pointer and the
//! lock of atomic mode, over an engine that stores the bytes.

use crate::claim::{self, Claim};
use crate::collective_open::CollectiveOpen;
use crate::container_backing::{self, ContainerBacking};
use crate::engine::Engine;
use crate::error::{ErrorContext, Result, TiledError};
use crate::flags::Flags;
use crate::hints::{Environment, Hints};
use crate::memory::Buffer;
use crate::plain::{self, PlainEngine};
use crate::pointer::{self, SharedPointer};
use crate::rank_table::OpenHeader;
use crate::remote_engine::{self, RemoteEngine, RemoteFile, RemoteTurn, begin_remote_open};
use crate::tiled_engine::TiledEngine;
use crate::token::{EngineKind, OpenToken};
use crate::unordered;
use crate::volume::{self, VolumeBacking};
use crate::wholelock::WholeLock;
use crate::{machine, marker, stat};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tatami_client::JobMember;
use tatami_layout::{ProgramView, Shape, View};

/// Begins an open: creates the file if requested, checks that it can be opened, and recovers dead
/// opens.
///
/// # Errors
/// As for open(2); `EINVAL` for flags that contradict each other, `EREMOTE` for a path that is not
/// ours.
pub fn begin_open(open: &CollectiveOpen<'_>) -> Result<OpenToken> {
    if !open.flags.are_valid() || open.ranks == 0 {
        return Err(TiledError::with_detail(
            "open",
            open.path,
            Errno::INVAL,
            "flags that do not fit",
        ));
    }
    let number = machine::draw_number().context("open", open.path)?;
    let token = |kind, id, stamp| OpenToken {
        kind,
        open: number,
        stamp,
        ranks: open.ranks,
        machine: open.machine,
        id,
        first: 0,
        nodes: 0,
        volume: None,
        remote: None,
    };
    let container = |real: &Path, exists: bool| {
        let of = OpenHeader { open: number, ranks: open.ranks, machine: open.machine };
        let (id, stamp) =
            container_backing::begin_container_open(real, exists, open.flags, open.mode, of)?;
        Ok(token(EngineKind::Container, id, stamp))
    };
    // The claim counts for the first attempt only: after `ESTALE` the path must be examined again.
    let mut known = take_last_claim(open);
    for _ in 0..TRIES {
        let claim = match known.take() {
            Some(claim) => claim,
            None => claim::decide_claim(open.path, open.flags, open.hints, open.environment)?,
        };
        let begun: Result<OpenToken> = match claim {
            Claim::NotOurs => {
                let why = "the path was not claimed: ask tio_claims first";
                return Err(TiledError::with_detail("open", open.path, Errno::REMOTE, why));
            }
            Claim::Plain(real) => {
                plain::begin_plain_open(&real, open.flags, open.mode)?;
                Ok(token(EngineKind::Plain, 0, machine::now()))
            }
            Claim::Volume { place, linked } => {
                let token = token(EngineKind::Volume, 0, 0);
                volume::begin_volume_open(open, &place, linked, token)
            }
            Claim::Remote(file) => {
                begin_remote_open(open, file, token(EngineKind::Remote, 0, machine::now()))
            }
            Claim::Container(real) => container(&real, true),
            Claim::NewContainer(real) => container(&real, false),
        };
        match begun {
            // The path became an ordinary file, or another container: decide again.
            Err(error) if error.errno == Errno::STALE => {}
            other => return other,
        }
    }
    Err(TiledError::new("open", open.path, Errno::STALE))
}

thread_local! {
    /// The last claim of this thread, if it was for a file of a volume. Rank 0 claims the path,
    /// sends the answer to the other ranks, and then begins the open. A second look at the path
    /// would cost requests to the shard.
    static CLAIMED: RefCell<Option<(PathBuf, Flags, Hints, Claim)>> = const { RefCell::new(None) };
}

/// Decides which engine serves the file at `path`. A later [`begin_open`] by the same thread uses
/// the answer.
///
/// # Errors
/// As for [`place::decide_claim`].
pub fn claim_path(path: &Path, flags: Flags, hints: &Hints, env: &Environment) -> Result<Claim> {
    let claim = claim::decide_claim(path, flags, hints, env)?;
    // The path of a removal has no hints, so the claim tells which site is meant.
    let is_kept = matches!(claim, Claim::Volume { .. } | Claim::Remote(_));
    let kept = is_kept.then(|| (path.to_path_buf(), flags, hints.clone(), claim.clone()));
    CLAIMED.set(kept);
    Ok(claim)
}

/// Reports whether the last claim of this thread was for the file at `path`, as a file of a volume.
/// This holds for rank 0 of an open that is to begin.
pub fn has_claimed(path: &Path) -> bool {
    CLAIMED.with_borrow(|claimed| {
        let of_volume = |claim: &Claim| matches!(claim, Claim::Volume { .. });
        claimed.as_ref().is_some_and(|(of, .., claim)| of == path && of_volume(claim))
    })
}

/// Returns a file in memory with the first bytes of a file of another site; `None` for a file of
/// this site.
///
/// # Errors
/// As for open(2).
pub fn look_at_file(path: &Path, hints: &Hints, env: &Environment) -> Result<Option<File>> {
    let Some(file) = claim::find_on_site(path, hints, env)? else { return Ok(None) };
    let mut bytes = vec![0; LOOK_MAX];
    let got = remote_engine::look_at_remote_file(path, &file, &mut bytes)?;
    let copy = rustix::fs::memfd_create("tatami-look", MemfdFlags::CLOEXEC);
    let copy = File::from(copy.context("open", path)?);
    copy.write_all_at(&bytes[..got], 0).context("open", path)?;
    Ok(Some(copy))
}

/// Removes the file at a path, here or on another site. After [`claim_path`] by the same thread the
/// hints of that call count.
///
/// # Errors
/// As for unlink(2); `EISDIR` for a directory that is no container.
pub fn delete_file(path: &Path) -> Result<()> {
    let claimed = CLAIMED.take().filter(|(of, ..)| of == path);
    let file = match claimed {
        Some((.., Claim::Remote(file))) => Some(file),
        _ => claim::find_on_site(path, &Hints::default(), &Environment::read())?,
    };
    match file {
        Some(file) => remote_engine::delete_remote_file(path, &file),
        None => stat::delete_file(path),
    }
}

/// Returns the claim that this thread made for this very open, once.
fn take_last_claim(open: &CollectiveOpen<'_>) -> Option<Claim> {
    let (path, flags, hints, claim) = CLAIMED.take()?;
    let same = path == open.path && flags == open.flags && hints == *open.hints;
    same.then_some(claim)
}

/// Most bytes that [`look_at_file`] reads.
const LOOK_MAX: usize = 64 << 10;
/// Attempts to begin an open while other processes replace the file.
const TRIES: usize = 10;

struct RankFileState {
    engine: Box<dyn Engine>,
    view: ProgramView,
}

/// A file opened by one rank.
pub struct RankFile {
    path: PathBuf,
    flags: Flags,
    token: OpenToken,
    hints: Hints,
    inner: Mutex<RankFileState>,
    lock: OnceLock<WholeLock>,
    pointer: OnceLock<SharedPointer>,
    /// The ranks' shared state at the shard that owns the file, if the ranks are on several mounts.
    job: Option<Arc<JobMember>>,
    /// The file at the other site, which has the lock and the pointer, too.
    remote: Option<Arc<RemoteFile>>,
}

/// Returns the view of a program's arguments.
///
/// # Errors
/// `EINVAL`, as [`ProgramView::new`].
pub fn make_view(path: &Path, disp: u64, etype_size: u64, filetype: Shape) -> Result<ProgramView> {
    ProgramView::new(disp, etype_size, filetype)
        .map_err(|e| TiledError::with_detail("set the view of", path, Errno::INVAL, e.to_string()))
}

/// Returns the path by which a file is opened, independent of the working directory. Of a file of a
/// volume rank 0 has sent the inode, so the kernel resolves the links.
fn resolve_file_path(path: &Path, kind: EngineKind) -> Result<PathBuf> {
    match kind {
        EngineKind::Volume => std::path::absolute(path).context("resolve", path),
        EngineKind::Plain | EngineKind::Container => claim::resolve_links(path),
        EngineKind::Remote => Ok(path.to_path_buf()),
    }
}

/// The state of a handle, locked.
struct LockedState<'a> {
    state: MutexGuard<'a, RankFileState>,
    /// Given up after the lock.
    _turn: Option<RemoteTurn<'a>>,
}

impl Deref for LockedState<'_> {
    type Target = RankFileState;

    fn deref(&self) -> &RankFileState {
        &self.state
    }
}

impl DerefMut for LockedState<'_> {
    fn deref_mut(&mut self) -> &mut RankFileState {
        &mut self.state
    }
}

impl RankFile {
    /// Locks the state of this handle. On a session with another site the turn comes first: a
    /// thread with the lock of atomic mode has the turn, and takes this lock next.
    fn lock_state(&self) -> LockedState<'_> {
        let _turn = self.remote.as_deref().map(RemoteFile::take_turn);
        LockedState { state: self.inner.lock(), _turn }
    }

    /// Opens a file that rank 0 has begun to open.
    ///
    /// # Errors
    /// As for open(2).
    pub fn open(
        path: &Path,
        flags: Flags,
        hints: &Hints,
        rank: u32,
        token: OpenToken,
    ) -> Result<RankFile> {
        RankFile::open_among(path, flags, hints, rank, token, &[])
    }

    /// Opens the file as [`RankFile::open`]. Of the ranks on one node of a volume, one may then
    /// request the descriptors of all. `inboxes` are the results of
    /// [`inbox_number`](volume::inbox_number) in each rank. No rank writes before all have opened.
    ///
    /// # Errors
    /// As for open(2).
    pub fn open_among(
        path: &Path,
        flags: Flags,
        hints: &Hints,
        rank: u32,
        token: OpenToken,
        inboxes: &[u64],
    ) -> Result<RankFile> {
        let real = resolve_file_path(claim::without_prefix(path).0, token.kind)?;
        if rank >= token.ranks {
            return Err(TiledError::with_detail(
                "open",
                path,
                Errno::INVAL,
                "no such rank in this open",
            ));
        }
        let (mut job, mut remote) = (None, None);
        let engine: Box<dyn Engine> = match token.kind {
            EngineKind::Plain => Box::new(PlainEngine::open(&real, flags, hints)?),
            EngineKind::Container => {
                let backing = ContainerBacking::open(&real, flags, rank, &token)?;
                Box::new(TiledEngine::new(backing, &real, hints, rank, &token))
            }
            EngineKind::Volume => {
                let backing = VolumeBacking::open(&real, flags, rank, &token, inboxes)?;
                job = token.is_across().then(|| Arc::new(backing.job_member(&token, rank)));
                Box::new(TiledEngine::new(backing, &real, hints, rank, &token))
            }
            EngineKind::Remote => {
                let engine = RemoteEngine::open(&real, flags, hints, rank, &token)?;
                remote = Some(engine.file());
                Box::new(engine)
            }
        };
        let file = RankFile::with_engine(real, flags, hints, token, engine);
        Ok(RankFile { job, remote, ..file })
    }

    /// Returns the handle of one rank over an engine of the caller. The shared pointer and the lock
    /// are those of an ordinary file at `path`, a real path, for which `token` is.
    pub fn with_engine(
        path: PathBuf,
        flags: Flags,
        hints: &Hints,
        token: OpenToken,
        engine: Box<dyn Engine>,
    ) -> RankFile {
        RankFile {
            path,
            flags,
            token,
            hints: hints.clone(),
            inner: Mutex::new(RankFileState { engine, view: View::all_bytes().into() }),
            lock: OnceLock::new(),
            pointer: OnceLock::new(),
            job: None,
            remote: None,
        }
    }

    /// The file's real path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The requested access.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Returns a stamp for a new view epoch; the caller sends it to all ranks.
    pub fn next_stamp(&self) -> u64 {
        self.lock_state().engine.next_stamp()
    }

    /// Begins a view epoch.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn begin_epoch(&self, stamp: u64) -> Result<()> {
        self.lock_state().engine.begin_epoch(stamp)
    }

    /// Sets this rank's view.
    pub fn set_view(&self, view: impl Into<ProgramView>) {
        self.lock_state().view = view.into();
    }

    /// Writes all of `data` from stream position `stream` on.
    ///
    /// # Errors
    /// `EBADF` for a file not open for writing, `ENOSPC` and others of the disk;
    /// a part may have been written.
    pub fn write(&self, stream: u64, data: &Buffer<'_>) -> Result<u64> {
        if !self.flags.can_write() {
            let why = "the file is open for reading only";
            return Err(TiledError::with_detail("write", &self.path, Errno::BADF, why));
        }
        if data.is_empty() {
            return Ok(0);
        }
        let mut inner = self.lock_state();
        let RankFileState { engine, view } = &mut *inner;
        if stream.checked_add(data.len()).is_none() {
            return Err(TiledError::new("write", &self.path, Errno::FBIG));
        }
        match view.direct_view(stream, data.len()) {
            Some(view) => engine.write(view, stream, data)?,
            None => unordered::write_unordered(&mut **engine, view, stream, data, &self.path)?,
        }
        Ok(data.len())
    }

    /// Fills `into` from stream position `stream` on, less at the end of the file; returns the
    /// bytes read.
    ///
    /// # Errors
    /// `EBADF` for a file not open for reading; those of the disk.
    pub fn read(&self, stream: u64, into: &mut Buffer<'_>) -> Result<u64> {
        if !self.flags.can_read() {
            let why = "the file is open for writing only";
            return Err(TiledError::with_detail("read", &self.path, Errno::BADF, why));
        }
        if into.is_empty() {
            return Ok(0);
        }
        let mut inner = self.lock_state();
        let RankFileState { engine, view } = &mut *inner;
        match view.direct_view(stream, into.len()) {
            Some(view) => engine.read(view, stream, into),
            None => unordered::read_unordered(&mut **engine, view, stream, into, &self.path),
        }
    }

    /// The file offset of a stream position.
    pub fn offset_of(&self, stream: u64) -> u64 {
        self.lock_state().view.offset_of(stream)
    }

    /// The stream position of the first etype that begins at or past the end of the file.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn stream_at_end(&self) -> Result<u64> {
        let mut inner = self.lock_state();
        let size = inner.engine.file_size()?;
        let etype = inner.view.etype_size().max(1);
        Ok(inner.view.stream_before(size).div_ceil(etype) * etype)
    }

    /// The size of the file now, in bytes.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn file_size(&self) -> Result<u64> {
        self.lock_state().engine.file_size()
    }

    /// Truncates or extends the file. One rank calls this, after all have sealed and it has
    /// published.
    ///
    /// # Errors
    /// `EBADF` for a file not open for writing; those of the disk.
    pub fn set_size(&self, size: u64) -> Result<()> {
        self.check_writes("truncate")?;
        self.lock_state().engine.set_size(size)
    }

    /// Makes the file at least `size` bytes long; as [`RankFile::set_size`].
    ///
    /// # Errors
    /// `EBADF`, `ENOSPC`; those of the disk.
    pub fn preallocate(&self, size: u64) -> Result<()> {
        self.check_writes("allocate")?;
        self.lock_state().engine.preallocate(size)
    }

    fn check_writes(&self, operation: &'static str) -> Result<()> {
        match self.flags.can_write() {
            true => Ok(()),
            false => Err(TiledError::new(operation, &self.path, Errno::BADF)),
        }
    }

    /// Seals this rank's piece for a sync or close: returns the bytes that rank 0 must publish.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn seal_piece(&self, durable: bool) -> Result<Vec<u8>> {
        self.lock_state().engine.seal_piece(durable)
    }

    /// Publishes the sealed pieces of all ranks; rank 0 calls this.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn publish_pieces(&self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        if closing && self.remote.is_none() {
            pointer::remove_pointer(&self.pointer_path(), &self.token);
        }
        self.lock_state().engine.publish_pieces(sealed, durable, closing)
    }

    /// Records that the sealed bytes have been published.
    pub fn mark_published(&self) {
        self.lock_state().engine.mark_published();
    }

    /// Switches atomic mode.
    pub fn set_atomic(&self, on: bool) {
        self.lock_state().engine.set_atomic(on);
    }

    /// Acquires the whole-file lock.
    ///
    /// # Errors
    /// Those of flock(2), of the shard, and of opening the file that is locked.
    pub fn lock(&self) -> Result<()> {
        match &self.remote {
            // The bytes that are gathered here belong to before the lock.
            Some(remote) => {
                self.lock_state().engine.seal_piece(false)?;
                remote.lock()
            }
            None => self.whole_lock()?.lock(),
        }
    }

    /// Releases the whole-file lock.
    ///
    /// # Errors
    /// `EPERM` where this handle does not hold the lock.
    pub fn unlock(&self) -> Result<()> {
        match &self.remote {
            Some(remote) => {
                let sealed = self.lock_state().engine.seal_piece(false);
                let unlocked = remote.unlock();
                sealed.and(unlocked)
            }
            None => self.whole_lock()?.unlock(),
        }
    }

    fn whole_lock(&self) -> Result<&WholeLock> {
        if let Some(lock) = self.lock.get() {
            return Ok(lock);
        }
        if let Some(job) = &self.job {
            return Ok(self.lock.get_or_init(|| WholeLock::at_shard(job.clone(), &self.path)));
        }
        let path = match self.token.kind {
            EngineKind::Plain | EngineKind::Volume | EngineKind::Remote => self.path.clone(),
            EngineKind::Container => self.path.join(marker::ATOMIC),
        };
        // Read access is enough for flock(2), so a handle without write permission still gets the
        // lock.
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(self.token.kind == EngineKind::Container)
            .truncate(false)
            .open(&path)
            .or_else(|_| std::fs::File::open(&path))
            .context("lock", &path)?;
        let lock = WholeLock::new(file, path)?;
        // Two threads may both come here. The first one stores its lock, and the other descriptor
        // is closed.
        Ok(self.lock.get_or_init(|| lock))
    }

    /// Adds to the shared pointer; returns its old value.
    ///
    /// # Errors
    /// `EOVERFLOW`; those of the disk.
    pub fn shared_add(&self, delta: i64) -> Result<i64> {
        match &self.remote {
            Some(remote) => remote.add_to_pointer(delta),
            None => self.shared_pointer()?.add_delta(delta),
        }
    }

    /// Sets the shared pointer.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn shared_set(&self, value: i64) -> Result<()> {
        match &self.remote {
            Some(remote) => remote.set_pointer(value),
            None => self.shared_pointer()?.set_value(value),
        }
    }

    fn shared_pointer(&self) -> Result<&SharedPointer> {
        if let Some(pointer) = self.pointer.get() {
            return Ok(pointer);
        }
        let pointer = match &self.job {
            Some(job) => SharedPointer::at_shard(job.clone(), &self.path),
            None => SharedPointer::open(&self.pointer_path(), &self.token)?,
        };
        Ok(self.pointer.get_or_init(|| pointer))
    }

    fn pointer_path(&self) -> PathBuf {
        match self.token.kind {
            EngineKind::Plain => self.token.pointer_beside(&self.path),
            EngineKind::Volume | EngineKind::Remote => self.path.clone(),
            EngineKind::Container => self.path.join(marker::pointer_name(self.token.open)),
        }
    }

    /// The hints in force, as lines `key=value`.
    pub fn hint_lines(&self) -> String {
        let mut lines = self.hints.to_lines(self.token.kind);
        if let Some(ticket) = &self.token.remote {
            // The key is not `host`: PnetCDF opens the path once more with these hints, and that of
            // a site with the path here is another file where the environment names the site.
            let (site, backend) = (&ticket.file.site, &ticket.backend);
            let compression = site.route.with_environment().compression_in_force();
            lines += &format!(
                "tatami_site={site}\ntatami_backend={backend}\ntatami_compression={compression}\n"
            );
        }
        lines
    }
}
