//! The session of this process with a site: one stream for all files that it has open there.
//!
//! Writes are sent behind: their replies are received later, and a bounded number of them is under
//! way. The stream keeps the order of the calls, so a later read sees them. An error of such a
//! write is reported by the next call for the file, and by the sync or close at the latest.
//!
//! If the link breaks, the session starts a new I/O process, opens all files there again, and sends
//! the calls without a reply once more. They have the same effect when they are repeated, but for
//! two: a step of the shared pointer, and the making of a file that must not exist. These fail.

use crate::data_line::{DataLine, WINDOW_BYTES};
use crate::earlier_processes::EarlierProcesses;
pub use crate::remote_error::RemoteError;
use crate::remote_message::{
    BYTES_MAX, FileOpen, RemoteCall, RemoteFailure, RemoteReply, SiteStat, sum_bytes,
};
use crate::reply_slots::AwaitedReplies;
use crate::session_turn::SessionTurn;
use crate::site_address::SiteAddress;
use crate::site_backend::SiteBackend;
use crate::site_login::log_in;
use crate::site_route::SiteRoute;
use crate::ssh_link::SshLink;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Most calls whose replies have not come.
const WINDOW_CALLS: usize = 128;
/// Calls of one read that are under way at once.
const READ_DEPTH: usize = 16;
/// How long a broken link is repaired before calls fail.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first pause before another attempt. It doubles each time.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The flag of an open that refuses a file that exists (`TIO_EXCL`).
const EXCLUSIVE: u32 = 0x10;
/// The flags of an open that may write (`TIO_RDWR`, `TIO_WRONLY`).
const WRITES: u32 = 0x2 | 0x4;

/// A call without a reply.
#[derive(Debug)]
struct SentCall {
    seq: u64,
    file: Option<u64>,
    /// Frame and payload; `None` where a repetition could have another effect.
    bytes: Option<Vec<u8>>,
    len: usize,
    /// If it was repeated, this error is its success: a missing file for a removal.
    success: Option<Errno>,
    /// It opens a file that is to be written.
    opens: bool,
    repeated: bool,
}

/// A file that is open there.
#[derive(Debug)]
pub(crate) struct KnownFile {
    /// The call that opens it.
    pub(crate) open: RemoteCall,
    /// The view in force.
    view: Option<RemoteCall>,
    /// Whether it has the lock of atomic mode.
    is_locked: bool,
    /// The first error of a write that was sent behind.
    pub(crate) error: Option<RemoteError>,
    /// Why no call for it can be carried out any more.
    lost: Option<RemoteError>,
}

impl KnownFile {
    /// Returns a file that `open` has opened, or will have.
    pub(crate) fn new(open: RemoteCall) -> KnownFile {
        KnownFile { open, view: None, is_locked: false, error: None, lost: None }
    }
}

#[derive(Debug, Default)]
pub(crate) struct SessionState {
    link: Option<SshLink>,
    earlier: EarlierProcesses,
    /// The number of the attempt to reach the site, by which routers are chosen.
    pub(crate) attempt: u32,
    pub(crate) seq: u64,
    pending: VecDeque<SentCall>,
    pending_bytes: usize,
    /// Replies that a caller awaits later.
    pub(crate) slots: AwaitedReplies,
    pub(crate) files: BTreeMap<u64, KnownFile>,
    pub(crate) data: DataLine,
    body: Vec<u8>,
}

/// The session with a site.
#[derive(Debug)]
pub struct RemoteSession {
    pub(crate) site: SiteAddress,
    pub(crate) route: SiteRoute,
    turn: SessionTurn,
    state: Mutex<SessionState>,
}

/// The sessions of this process. Each lasts until the process ends, so that a job that opens many
/// files logs in once.
static SESSIONS: LazyLock<Mutex<HashMap<SiteAddress, Arc<RemoteSession>>>> =
    LazyLock::new(Mutex::default);

impl RemoteSession {
    /// Returns the session of this process with a site. The first call starts it.
    ///
    /// # Errors
    /// The site cannot be reached, or has no Tatami.
    pub fn with_site(site: &SiteAddress) -> Result<Arc<RemoteSession>, RemoteError> {
        let new = || {
            let (turn, state) = (SessionTurn::default(), Mutex::default());
            let (site, route) = (site.clone(), site.route.with_environment());
            Arc::new(RemoteSession { site, route, turn, state })
        };
        let session = SESSIONS.lock().entry(site.clone()).or_insert_with(new).clone();
        session.with_state(|state| session.ensure_link(state))?;
        Ok(session)
    }

    fn ensure_link(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        if state.link.is_none() {
            state.link = Some(self.open_link(state).map_err(|why| self.lost(&why))?);
            if let Err(why) = self.restore(state) {
                state.link = None;
                return Err(self.lost(&why));
            }
        }
        Ok(())
    }

    /// Starts the I/O process, through one router after the other where there are some.
    fn open_link(&self, state: &mut SessionState) -> Result<SshLink, String> {
        log_in(&self.site, &self.route, &mut state.attempt)
    }

    fn lost(&self, why: &str) -> RemoteError {
        RemoteError { errno: Errno::HOSTDOWN, what: format!("{}: {why}", self.site) }
    }

    pub(crate) fn refused(&self, failure: RemoteFailure) -> RemoteError {
        let errno = Errno::from_raw_os_error(failure.errno);
        RemoteError { errno, what: format!("{}: {}", self.site, failure.what) }
    }

    pub(crate) fn odd(&self) -> RemoteError {
        RemoteError { errno: Errno::PROTO, what: format!("{}: an odd reply", self.site) }
    }

    /// Returns the id of the machine there, or an empty text.
    pub fn machine(&self) -> String {
        self.with_state(|state| {
            state.link.as_ref().map(|link| link.machine.clone()).unwrap_or_default()
        })
    }

    /// Keeps other threads away from the session until [`RemoteSession::end_turn`] by this thread:
    /// the calls in between belong together.
    pub fn begin_turn(&self) {
        self.turn.enter();
    }

    /// See [`RemoteSession::begin_turn`].
    pub fn end_turn(&self) {
        self.turn.leave();
    }

    /// Runs `work` with the session.
    pub(crate) fn with_state<T>(&self, work: impl FnOnce(&mut SessionState) -> T) -> T {
        self.turn.enter();
        let result = work(&mut self.state.lock());
        self.turn.leave();
        result
    }

    /// Sends a call and waits for its reply.
    ///
    /// # Errors
    /// The call failed there; `EHOSTDOWN`: the link is broken.
    pub(crate) fn call(&self, call: &RemoteCall) -> Result<RemoteReply, RemoteError> {
        self.with_state(|state| {
            let seq = self.send(state, call, &[])?;
            self.receive_until(state, seq, &mut [])?.map(|(reply, _)| reply)
        })
    }

    pub(crate) fn done(&self, call: &RemoteCall) -> Result<(), RemoteError> {
        match self.call(call)? {
            RemoteReply::Done => Ok(()),
            _ => Err(self.odd()),
        }
    }

    /// Begins a collective open as rank 0. Returns the token for all ranks, and the back end.
    ///
    /// # Errors
    /// As for open(2), and those of the link.
    pub fn begin(
        &self,
        open: FileOpen,
        mode: u32,
        ranks: u32,
    ) -> Result<(Vec<u8>, SiteBackend), RemoteError> {
        match self.call(&RemoteCall::Begin { open, mode, ranks })? {
            RemoteReply::Token { token, backend } => Ok((token.into_vec(), backend)),
            _ => Err(self.odd()),
        }
    }

    /// Returns a number that no other file of this session has.
    pub(crate) fn choose_number(&self) -> u64 {
        self.with_state(|state| {
            state.seq += 1;
            state.seq
        })
    }

    /// Opens a file as one rank. Returns its number.
    ///
    /// # Errors
    /// As for open(2), and those of the link.
    pub fn open(&self, open: FileOpen, rank: u32, token: Vec<u8>) -> Result<u64, RemoteError> {
        let file = self.choose_number();
        let call = RemoteCall::Open { file, open, rank, token: token.into() };
        self.done(&call)?;
        self.with_state(|state| {
            state.files.insert(file, KnownFile::new(call));
        });
        Ok(file)
    }

    /// Sets the view of a file.
    ///
    /// # Errors
    /// Those of the link.
    pub fn set_view(&self, file: u64, view: Vec<u8>) -> Result<(), RemoteError> {
        let call = RemoteCall::SetView { file, view: view.into() };
        self.with_state(|state| {
            self.post(state, &call, &[])?;
            if let Some(known) = state.files.get_mut(&file) {
                known.view = Some(call);
            }
            Ok(())
        })
    }

    /// Sends bytes to be written, at most [`BYTES_MAX`], and does not wait until they are.
    ///
    /// # Errors
    /// Those of the link, and those of earlier writes.
    pub fn write_behind(&self, file: u64, stream: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        self.with_state(|state| {
            match self.uses_data(state, file, bytes.len())? {
                true => self.write_by_data(state, file, stream, bytes)?,
                false => {
                    let call = RemoteCall::Write { file, stream, sum: sum_bytes(bytes) };
                    self.post(state, &call, bytes)?;
                }
            }
            match state.files.get(&file).and_then(|known| known.error.clone()) {
                Some(error) => Err(error),
                None => Ok(()),
            }
        })
    }

    /// Receives the replies to all calls that were sent behind.
    ///
    /// # Errors
    /// Those of the link.
    pub(crate) fn await_replies(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        while !state.pending.is_empty() {
            self.receive_oldest(state)?;
        }
        Ok(())
    }

    /// Waits until all writes of a file have been made.
    ///
    /// # Errors
    /// The first error of the writes since the last call.
    pub fn await_writes(&self, file: u64) -> Result<(), RemoteError> {
        self.with_state(|state| {
            self.finish_data(state)?;
            self.await_replies(state)?;
            match state.files.get_mut(&file).and_then(|known| known.error.take()) {
                Some(error) => Err(error),
                None => Ok(()),
            }
        })
    }

    /// Reads into `into`; returns the bytes read, fewer at the end of the file.
    ///
    /// # Errors
    /// Those of reading, and of the link.
    pub fn read(&self, file: u64, stream: u64, into: &mut [u8]) -> Result<u64, RemoteError> {
        self.with_state(|state| {
            if self.uses_data(state, file, into.len())? {
                return self.read_by_data(state, file, stream, into);
            }
            let mut sent = VecDeque::new();
            let (mut asked, mut done, mut result) = (0, 0, Ok(()));
            while asked < into.len() || !sent.is_empty() {
                while result.is_ok() && asked < into.len() && sent.len() < READ_DEPTH {
                    let len = (into.len() - asked).min(BYTES_MAX);
                    let stream = stream + asked as u64;
                    let call = RemoteCall::Read { file, stream, len: len as u32 };
                    sent.push_back((self.send(state, &call, &[])?, asked, len));
                    asked += len;
                }
                let Some((seq, at, len)) = sent.pop_front() else { break };
                let part = &mut into[at..at + len];
                match self.receive_until(state, seq, part)? {
                    Ok((RemoteReply::Bytes { .. }, got)) => {
                        // A part at the end of the file is short, and those behind it are empty.
                        done += got as u64;
                    }
                    Ok(_) => return Err(self.odd()),
                    Err(error) => result = Err(error),
                }
            }
            result.map(|()| done)
        })
    }

    /// Returns the size of a file, in bytes.
    ///
    /// # Errors
    /// Those of the call.
    pub fn size(&self, file: u64) -> Result<u64, RemoteError> {
        match self.call(&RemoteCall::Size { file })? {
            RemoteReply::Size(size) => Ok(size),
            _ => Err(self.odd()),
        }
    }

    /// Truncates or extends a file.
    ///
    /// # Errors
    /// Those of the call.
    pub fn set_size(&self, file: u64, size: u64) -> Result<(), RemoteError> {
        self.done(&RemoteCall::SetSize { file, size })
    }

    /// Makes a file at least `size` bytes long, with room on the disk.
    ///
    /// # Errors
    /// Those of the call.
    pub fn preallocate(&self, file: u64, size: u64) -> Result<(), RemoteError> {
        self.done(&RemoteCall::Preallocate { file, size })
    }

    /// Takes the first error of the writes to a file that were sent behind.
    pub(crate) fn take_error(&self, file: u64) -> Option<RemoteError> {
        self.with_state(|state| state.files.get_mut(&file).and_then(|known| known.error.take()))
    }

    /// Waits for the lock of atomic mode. This thread has the session to itself until
    /// [`RemoteSession::unlock`]: the other side serves one call after the other, so a call that
    /// another thread needs to give up its lock must not wait behind this one.
    ///
    /// # Errors
    /// Those of the call.
    pub fn lock(&self, file: u64) -> Result<(), RemoteError> {
        self.begin_turn();
        self.done(&RemoteCall::Lock { file }).inspect_err(|_| self.end_turn())?;
        self.record_lock(file, true);
        Ok(())
    }

    /// Gives up the lock, after all writes under it.
    ///
    /// # Errors
    /// Those of the call.
    pub fn unlock(&self, file: u64) -> Result<(), RemoteError> {
        let unlocked = self.done(&RemoteCall::Unlock { file });
        self.record_lock(file, false);
        self.end_turn();
        unlocked
    }

    fn record_lock(&self, file: u64, is_locked: bool) {
        self.with_state(|state| {
            if let Some(known) = state.files.get_mut(&file) {
                known.is_locked = is_locked;
            }
        });
    }

    /// Adds to the shared pointer; returns its value before.
    ///
    /// # Errors
    /// Those of the call.
    pub fn add_to_pointer(&self, file: u64, delta: i64) -> Result<i64, RemoteError> {
        match self.call(&RemoteCall::AddToPointer { file, delta })? {
            RemoteReply::Pointer(value) => Ok(value),
            _ => Err(self.odd()),
        }
    }

    /// Sets the shared pointer.
    ///
    /// # Errors
    /// Those of the call.
    pub fn set_pointer(&self, file: u64, value: i64) -> Result<(), RemoteError> {
        self.done(&RemoteCall::SetPointer { file, value })
    }

    /// Ends this rank's part in an open, and does not wait for it.
    pub fn close(&self, file: u64) {
        self.with_state(|state| {
            state.files.remove(&file);
            // Without a link the other side has closed it.
            let _ = self.post(state, &RemoteCall::Close { file }, &[]);
        });
    }

    /// Removes a file by its path.
    ///
    /// # Errors
    /// As for unlink(2), and those of the link.
    pub fn delete(&self, path: &[u8]) -> Result<(), RemoteError> {
        self.done(&RemoteCall::Delete { path: path.to_vec().into() })
    }

    /// Reads from the start of a file by its path; returns the bytes read.
    ///
    /// # Errors
    /// As for open(2), and those of the link.
    pub fn look(&self, path: &[u8], into: &mut [u8]) -> Result<usize, RemoteError> {
        let len = into.len().min(BYTES_MAX);
        let call = RemoteCall::Look { path: path.to_vec().into(), len: len as u32 };
        self.with_state(|state| {
            let seq = self.send(state, &call, &[])?;
            match self.receive_until(state, seq, &mut into[..len])?? {
                (RemoteReply::Bytes { .. }, got) => Ok(got),
                _ => Err(self.odd()),
            }
        })
    }

    /// Returns the metadata of a file by its path.
    ///
    /// # Errors
    /// As for stat(2), and those of the link.
    pub fn stat(&self, path: &[u8]) -> Result<SiteStat, RemoteError> {
        match self.call(&RemoteCall::Stat { path: path.to_vec().into() })? {
            RemoteReply::Stat(stat) => Ok(stat),
            _ => Err(self.odd()),
        }
    }

    /// Sends a call whose reply is received later.
    pub(crate) fn post(
        &self,
        state: &mut SessionState,
        call: &RemoteCall,
        payload: &[u8],
    ) -> Result<(), RemoteError> {
        self.send(state, call, payload)?;
        self.keep_window(state)
    }

    /// Receives replies until no more calls are under way than may be.
    pub(crate) fn keep_window(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        while state.pending.len() > WINDOW_CALLS || state.pending_bytes > WINDOW_BYTES {
            self.receive_oldest(state)?;
        }
        Ok(())
    }

    /// Sends a call; returns its number.
    pub(crate) fn send(
        &self,
        state: &mut SessionState,
        call: &RemoteCall,
        payload: &[u8],
    ) -> Result<u64, RemoteError> {
        // The calls of data connections come first. This one may depend on them.
        self.finish_data(state)?;
        self.send_at_once(state, call, payload)
    }

    /// As [`RemoteSession::send`], also while calls are under way on data connections.
    pub(crate) fn send_at_once(
        &self,
        state: &mut SessionState,
        call: &RemoteCall,
        payload: &[u8],
    ) -> Result<u64, RemoteError> {
        self.ensure_link(state)?;
        state.seq += 1;
        let (seq, mut bytes) = (state.seq, Vec::with_capacity(128 + payload.len()));
        frame::encode_frame(&mut bytes, FrameClass::Remote, seq, call, payload.len());
        bytes.extend_from_slice(payload);
        let sent = state.write_to_link(&bytes);
        let (file, len) = (file_of(call), bytes.len());
        let bytes = is_repeatable(call).then_some(bytes);
        let opens = matches!(call, RemoteCall::OpenSink { .. });
        let (success, repeated) = (sign_of_success(call), false);
        state.pending_bytes += len;
        state.pending.push_back(SentCall { seq, file, bytes, len, success, opens, repeated });
        match sent {
            Ok(()) => Ok(seq),
            Err(e) => self.repair(state, &e).map(|()| seq),
        }
    }

    /// Receives replies up to that of call `seq`, whose payload goes to `into`. Errors of earlier
    /// calls are kept with their files.
    pub(crate) fn receive_until(
        &self,
        state: &mut SessionState,
        seq: u64,
        into: &mut [u8],
    ) -> Result<Result<(RemoteReply, usize), RemoteError>, RemoteError> {
        while state.pending.front().is_some_and(|oldest| oldest.seq < seq) {
            self.receive_oldest(state)?;
        }
        let file = state.pending.front().and_then(|call| call.file);
        loop {
            match state.receive_reply(seq, into) {
                Ok((RemoteReply::Failed(failure), _)) => {
                    let known = file.and_then(|file| state.files.get(&file));
                    let lost = known.and_then(|known| known.lost.clone());
                    return Ok(Err(lost.unwrap_or_else(|| self.refused(failure))));
                }
                Ok(reply) => return Ok(Ok(reply)),
                Err(e) => self.repair(state, &e)?,
            }
        }
    }

    /// Receives the reply to the oldest call that was sent behind.
    pub(crate) fn receive_oldest(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        let Some(oldest) = state.pending.front() else { return Ok(()) };
        let (seq, file) = (oldest.seq, oldest.file);
        if state.slots.has(seq) {
            return self.receive_awaited(state, seq, file);
        }
        loop {
            match state.receive_reply(seq, &mut []) {
                Ok((RemoteReply::Failed(failure), _)) => {
                    let known = file.and_then(|file| state.files.get_mut(&file));
                    if let Some(known) = known.filter(|known| known.error.is_none()) {
                        known.error = Some(self.refused(failure));
                    }
                    return Ok(());
                }
                Ok(_) => return Ok(()),
                Err(e) => self.repair(state, &e)?,
            }
        }
    }

    /// Receives the reply to the oldest call, which a caller awaits.
    fn receive_awaited(
        &self,
        state: &mut SessionState,
        seq: u64,
        file: Option<u64>,
    ) -> Result<(), RemoteError> {
        let mut room = state.slots.take_room(seq);
        loop {
            let reply = match state.receive_reply(seq, &mut room) {
                Ok((RemoteReply::Failed(failure), _)) => {
                    Err(self.explain_failure(state, file, failure))
                }
                Ok(reply) => Ok(reply),
                Err(e) => {
                    self.repair(state, &e)?;
                    continue;
                }
            };
            state.slots.fill(seq, reply, room);
            return Ok(());
        }
    }

    /// Returns the error of a failed call for a file. A file that was lost with its link is not
    /// known there: what happened to it says more.
    pub(crate) fn explain_failure(
        &self,
        state: &SessionState,
        file: Option<u64>,
        failure: RemoteFailure,
    ) -> RemoteError {
        let known = file.and_then(|file| state.files.get(&file));
        known.and_then(|known| known.error.clone()).unwrap_or_else(|| self.refused(failure))
    }

    /// Replaces a broken link: opens all files again and repeats the calls without a reply.
    fn repair(&self, state: &mut SessionState, error: &io::Error) -> Result<(), RemoteError> {
        state.data.abandon();
        let mut why = match state.link.take() {
            Some(mut link) => link.explain_end(error),
            None => error.to_string(),
        };
        if state.pending.iter().any(|call| call.bytes.is_none()) {
            why.push_str("; a call was under way, and its result is unknown");
            return Err(self.give_up(state, &why));
        }
        let (start, mut pause) = (Instant::now(), RETRY_PAUSE);
        loop {
            match self.open_link(state) {
                Ok(link) => {
                    state.link = Some(link);
                    match self.restore(state) {
                        Ok(()) => return Ok(()),
                        Err(again) => why = again,
                    }
                }
                Err(again) => why = again,
            }
            if start.elapsed() > PATIENCE {
                return Err(self.give_up(state, &why));
            }
            // Nothing tells when the other side can be reached again.
            #[allow(clippy::disallowed_methods)]
            std::thread::sleep(pause);
            pause = (pause * 2).min(PATIENCE / 8);
        }
    }

    /// Forgets the calls under way after a link that is lost for good. Their files report it.
    fn give_up(&self, state: &mut SessionState, why: &str) -> RemoteError {
        let error = self.lost(why);
        let tasks = state.data.forget_tasks().into_iter().map(Some);
        let calls = state.pending.drain(..).map(|call| call.file);
        for file in calls.chain(tasks) {
            let known = file.and_then(|file| state.files.get_mut(&file));
            if let Some(known) = known {
                known.error.get_or_insert_with(|| error.clone());
            }
        }
        state.pending_bytes = 0;
        state.slots.fail_all(&error);
        error
    }

    /// The bytes of a file without a name ended with their I/O process. Such a file is written anew
    /// by the caller. If its open is still without a reply, all its calls are sent once more.
    fn drop_lost_sinks(&self, state: &mut SessionState) {
        let error = RemoteError {
            errno: Errno::STALE,
            what: format!("{}: the connection ended while a file was written", self.site),
        };
        let SessionState { files, pending, .. } = state;
        for (file, known) in files.iter_mut() {
            let opens = |call: &SentCall| call.opens && call.file == Some(*file);
            if is_sink(&known.open) && !pending.iter().any(opens) {
                known.error.get_or_insert_with(|| error.clone());
            }
        }
    }

    /// The state of a rank that writes its piece of a file ended with its I/O process. The bytes so
    /// far are kept there, but no other process can go on with the piece.
    fn drop_lost_pieces(&self, state: &mut SessionState) {
        let what = "the connection ended while the file was written on a volume; what was written \
                    before is kept there";
        let (errno, what) = (Errno::HOSTDOWN, format!("{}: {what}", self.site));
        for known in state.files.values_mut().filter(|known| keeps_piece(&known.open)) {
            let error = RemoteError { errno, what: what.clone() };
            known.error.get_or_insert_with(|| error.clone());
            known.lost = Some(error);
        }
    }

    fn restore(&self, state: &mut SessionState) -> Result<(), String> {
        self.drop_lost_sinks(state);
        self.drop_lost_pieces(state);
        // Nothing of an earlier I/O process is under way any more when its calls are repeated.
        let earlier = match &state.link {
            Some(link) => state.earlier.add_link(link),
            None => Vec::new(),
        };
        let files = state
            .files
            .values()
            .filter(|known| !is_sink(&known.open))
            .filter(|known| known.lost.is_none())
            .flat_map(|known| {
                let file = file_of(&known.open).filter(|_| known.is_locked);
                let lock = file.map(|file| RemoteCall::Lock { file });
                [Some(known.open.clone()), known.view.clone(), lock].into_iter().flatten()
            });
        let ends = earlier.iter().map(|process| RemoteCall::EndProcess(*process));
        let calls: Vec<RemoteCall> = ends.chain(files).collect();
        for call in &calls {
            state.seq += 1;
            let (seq, mut bytes) = (state.seq, Vec::new());
            frame::encode_frame(&mut bytes, FrameClass::Remote, seq, call, 0);
            state.write_to_link(&bytes).map_err(|e| e.to_string())?;
            let reply = state.receive_frame(seq, &mut []).map_err(|e| e.to_string())?.0;
            match (reply, call) {
                // It was replaced or removed meanwhile, which is a failure of this file alone.
                (RemoteReply::Failed(failure), RemoteCall::OpenSource { file, .. }) => {
                    let error = self.refused(failure);
                    let known = state.files.get_mut(file);
                    if let Some(known) = known {
                        known.error.get_or_insert(error);
                    }
                }
                (RemoteReply::Failed(failure), _) => return Err(failure.what),
                _ => {}
            }
        }
        state.earlier.forget_ended(&earlier);
        let mut pending = std::mem::take(&mut state.pending);
        pending.iter_mut().for_each(|call| call.repeated = true);
        let sent = pending
            .iter()
            .filter_map(|call| call.bytes.as_ref())
            .try_for_each(|bytes| state.write_to_link(bytes));
        state.pending = pending;
        sent.map_err(|e| e.to_string())
    }
}

/// Whether a call opens a file that is written anew if its I/O process ends.
fn is_sink(open: &RemoteCall) -> bool {
    matches!(open, RemoteCall::OpenSink { .. } | RemoteCall::OpenPart { .. })
}

/// Whether a call opens a file of which the I/O process writes a piece.
fn keeps_piece(open: &RemoteCall) -> bool {
    let RemoteCall::Open { open, .. } = open else { return false };
    open.backend == SiteBackend::Volume && open.flags & WRITES != 0
}

/// The file that a call concerns.
fn file_of(call: &RemoteCall) -> Option<u64> {
    use RemoteCall::*;
    match call {
        Begin { .. } | Delete { .. } | Look { .. } | Stat { .. } => None,
        LookAt { .. } | List { .. } | MakeDir { .. } | MakeLink { .. } | Change { .. } => None,
        RemoveDir { .. } | RemoveTree { .. } | Mount(_) => None,
        PutFile { .. } | FetchFile { .. } => None,
        OpenData { .. } | CloseData { .. } | OpenRelay { .. } | EndProcess(_) => None,
        Open { file, .. }
        | SetView { file, .. }
        | Write { file, .. }
        | Read { file, .. }
        | Size { file }
        | SetSize { file, .. }
        | Preallocate { file, .. }
        | Seal { file, .. }
        | Publish { file, .. }
        | AddSealed { file, .. }
        | NextStamp { file }
        | BeginEpoch { file, .. }
        | SetAtomic { file, .. }
        | MarkPublished { file }
        | Lock { file }
        | Unlock { file }
        | AddToPointer { file, .. }
        | SetPointer { file, .. }
        | WriteCompressed { file, .. }
        | ReadCompressed { file, .. }
        | OpenSource { file, .. }
        | FindData { file, .. }
        | OpenSink { file, .. }
        | OpenPart { file, .. }
        | SumBlocks { file, .. }
        | FinishSink { file, .. }
        | Close { file } => Some(*file),
    }
}

/// Whether a repetition of the call has the same effect and the same reply.
fn is_repeatable(call: &RemoteCall) -> bool {
    use RemoteCall::*;
    match call {
        Begin { open, .. } => open.flags & EXCLUSIVE == 0,
        AddToPointer { .. } => false,
        Open { .. } | SetView { .. } | Write { .. } | Read { .. } | Size { .. } | Seal { .. } => {
            true
        }
        SetSize { .. } | Preallocate { .. } | Publish { .. } | SetPointer { .. } => true,
        // A file in pieces is lost with its link, so these are carried out at most once.
        AddSealed { .. } | NextStamp { .. } | BeginEpoch { .. } | SetAtomic { .. } => true,
        MarkPublished { .. } => true,
        // A lock ends with the process that holds it, and is taken again with the file.
        Lock { .. } | Unlock { .. } | Close { .. } | Delete { .. } => true,
        Look { .. } | Stat { .. } | WriteCompressed { .. } | ReadCompressed { .. } => true,
        // An offer of a link that has ended is worth nothing, and its connections have ended.
        OpenData { .. } | CloseData { .. } | OpenRelay { .. } | EndProcess(_) => true,
        // A listing that a new I/O process does not know begins anew, and so does a removal.
        LookAt { .. } | List { .. } | Change { .. } | RemoveTree { .. } => true,
        MakeDir { .. } | MakeLink { .. } | RemoveDir { .. } => true,
        // A new I/O process does not know the file, and the caller copies it once more.
        OpenSource { .. } | FindData { .. } | OpenSink { .. } | FinishSink { .. } => true,
        PutFile { .. } | FetchFile { .. } | OpenPart { .. } | SumBlocks { .. } => true,
        // These belong to sessions of their own.
        Mount(_) => false,
    }
}

/// Returns the error of a repeated call that shows that it has been carried out before.
fn sign_of_success(call: &RemoteCall) -> Option<Errno> {
    use RemoteCall::*;
    match call {
        Delete { .. } | Publish { closing: true, .. } => Some(Errno::NOENT),
        RemoveDir { .. } | RemoveTree { .. } => Some(Errno::NOENT),
        MakeDir { .. } | MakeLink { .. } => Some(Errno::EXIST),
        PutFile { may_replace: false, .. } | FinishSink { may_replace: false, .. } => {
            Some(Errno::EXIST)
        }
        _ => None,
    }
}

impl SessionState {
    /// Whether no call on the stream of ssh is without a reply.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether call `seq` on the stream of ssh is without a reply.
    pub(crate) fn awaits_call(&self, seq: u64) -> bool {
        self.pending.iter().any(|call| call.seq == seq)
    }

    /// Whether a call for a file on the stream of ssh is without a reply.
    pub(crate) fn awaits_file(&self, file: u64) -> bool {
        self.pending.iter().any(|call| call.file == Some(file))
    }

    fn write_to_link(&mut self, bytes: &[u8]) -> io::Result<()> {
        use std::io::Write;
        match &mut self.link {
            Some(link) => link.stream.get_mut().write_all(bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Receives the reply to the oldest call, which is call `seq`.
    fn receive_reply(&mut self, seq: u64, into: &mut [u8]) -> io::Result<(RemoteReply, usize)> {
        let (reply, len) = self.receive_frame(seq, into)?;
        let Some(call) = self.pending.pop_front() else { return Ok((reply, len)) };
        self.pending_bytes -= call.len;
        match reply {
            RemoteReply::Failed(failure)
                if call.repeated
                    && call.success == Some(Errno::from_raw_os_error(failure.errno)) =>
            {
                Ok((RemoteReply::Done, 0))
            }
            reply => Ok((reply, len)),
        }
    }

    fn receive_frame(&mut self, seq: u64, into: &mut [u8]) -> io::Result<(RemoteReply, usize)> {
        let link = self.link.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let broken = |e: FrameError| match e {
            FrameError::Io(e) => e,
            FrameError::Closed => io::ErrorKind::UnexpectedEof.into(),
            other => io::Error::other(other.to_string()),
        };
        let header = frame::read_frame(&mut link.stream, &mut self.body).map_err(broken)?;
        let reply: RemoteReply = frame::decode_body(&self.body).map_err(broken)?;
        let len = header.payload_len as usize;
        if header.class != FrameClass::Remote || header.seq != seq || len > into.len() {
            return Err(io::Error::other("a reply that fits no call"));
        }
        link.stream.read_exact(&mut into[..len])?;
        match reply {
            RemoteReply::Bytes { sum } | RemoteReply::Fetched { sum, .. }
                if sum != sum_bytes(&into[..len]) =>
            {
                Err(io::Error::other("bytes were damaged on the way"))
            }
            reply => Ok((reply, len)),
        }
    }
}
