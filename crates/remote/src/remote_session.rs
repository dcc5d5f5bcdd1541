//! The session of this process with a site: one stream for all files that it has open there.
//!
//! Writes are sent behind: their replies are received later, and a bounded number of them is under
//! way. The stream keeps the order of the calls, so a later read sees them. An error of such a
//! write is reported by the next call for the file, and by the sync or close at the latest.
//!
//! If the link breaks, the next one goes on with the same I/O process (`session_repair.rs`).

use crate::call_kinds::{file_of, is_repeatable, sign_of_success};
use crate::data_line::{DataLine, WINDOW_BYTES};
use crate::earlier_processes::EarlierProcesses;
pub use crate::remote_error::RemoteError;
use crate::remote_message::{
    BYTES_MAX, FileOpen, RemoteCall, RemoteFailure, RemoteReply, SiteStat, sum_bytes,
};
use crate::reply_slots::AwaitedReplies;
use crate::session_goodbye::end_at_exit;
use crate::session_key::SiteSessionKey;
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
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Most calls whose replies have not come.
const WINDOW_CALLS: usize = 128;
/// Calls of one read that are under way at once.
const READ_DEPTH: usize = 16;
/// Replies after which the other side may forget them, and their bytes.
const REPLIES_KEPT: u64 = 64;
const REPLY_BYTES_KEPT: usize = 4 << 20;

/// A call without a reply.
#[derive(Debug)]
pub(crate) struct SentCall {
    seq: u64,
    pub(crate) file: Option<u64>,
    /// Frame and payload.
    pub(crate) bytes: Vec<u8>,
    /// Whether another I/O process can carry it out once more, with the same effect.
    pub(crate) is_repeatable: bool,
    /// If it was repeated, this error is its success: a missing file for a removal.
    success: Option<Errno>,
    /// It opens a file that is to be written.
    pub(crate) opens: bool,
    pub(crate) repeated: bool,
}

/// A file that is open there.
#[derive(Debug)]
pub(crate) struct KnownFile {
    /// The call that opens it.
    pub(crate) open: RemoteCall,
    /// The view in force.
    pub(crate) view: Option<RemoteCall>,
    /// Whether it has the lock of atomic mode.
    pub(crate) is_locked: bool,
    /// The first error of a write that was sent behind.
    pub(crate) error: Option<RemoteError>,
    /// Why no call for it can be carried out any more.
    pub(crate) lost: Option<RemoteError>,
}

impl KnownFile {
    /// Returns a file that `open` has opened, or will have.
    pub(crate) fn new(open: RemoteCall) -> KnownFile {
        KnownFile { open, view: None, is_locked: false, error: None, lost: None }
    }
}

#[derive(Debug, Default)]
pub(crate) struct SessionState {
    pub(crate) link: Option<SshLink>,
    /// The key of the session at the I/O process, after its files are open there.
    pub(crate) key: Option<SiteSessionKey>,
    /// Replies that this I/O process has sent, and those of which it knows that they have arrived.
    pub(crate) received: u64,
    pub(crate) acknowledged: u64,
    /// Bytes of replies that it still keeps.
    pub(crate) kept_bytes: usize,
    /// Attempts to go on with an I/O process.
    pub(crate) resumptions: u64,
    pub(crate) earlier: EarlierProcesses,
    /// The number of the attempt to reach the site, by which routers are chosen.
    pub(crate) attempt: u32,
    pub(crate) seq: u64,
    pub(crate) pending: VecDeque<SentCall>,
    pub(crate) pending_bytes: usize,
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
            end_at_exit(end_all_sessions);
            Arc::new(RemoteSession { site, route, turn, state })
        };
        let session = SESSIONS.lock().entry(site.clone()).or_insert_with(new).clone();
        session.with_state(|state| session.ensure_link(state))?;
        Ok(session)
    }

    /// Says goodbye to the I/O process if nothing is under way here.
    fn end_at_once(&self) {
        if let Some(mut state) = self.state.try_lock()
            && let Some(link) = &mut state.link
        {
            link.say_end();
        }
    }

    fn ensure_link(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        if state.link.is_none() {
            let link = self.open_link(state).map_err(|why| self.lost(&why))?;
            self.begin_session(state, link).map_err(|why| self.lost(&why))?;
        }
        Ok(())
    }

    /// Starts ssh and a process there, through one router after the other where there are some.
    pub(crate) fn open_link(&self, state: &mut SessionState) -> Result<SshLink, String> {
        log_in(&self.site, &self.route, &mut state.attempt)
    }

    pub(crate) fn lost(&self, why: &str) -> RemoteError {
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
        state.pending_bytes += bytes.len();
        state.pending.push_back(SentCall {
            seq,
            file: file_of(call),
            bytes,
            is_repeatable: is_repeatable(call),
            success: sign_of_success(call),
            opens: matches!(call, RemoteCall::OpenSink { .. }),
            repeated: false,
        });
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
}

/// Ends the sessions of this process, as its last act. Nothing is waited for.
fn end_all_sessions() {
    if let Some(sessions) = SESSIONS.try_lock() {
        sessions.values().for_each(|session| session.end_at_once());
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

    pub(crate) fn write_to_link(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.link {
            Some(link) => link.send_bytes(bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Counts a reply that has arrived, and lets the other side forget some at a time.
    fn count_reply(&mut self, bytes: usize) {
        self.received += 1;
        self.kept_bytes += bytes;
        let count = self.received;
        if count - self.acknowledged < REPLIES_KEPT && self.kept_bytes < REPLY_BYTES_KEPT {
            return;
        }
        (self.acknowledged, self.kept_bytes) = (count, 0);
        let mut frame = Vec::new();
        frame::encode_frame(&mut frame, FrameClass::Remote, 0, &RemoteCall::Received { count }, 0);
        // A failure is that of the link, which the next reply reports.
        let _ = self.write_to_link(&frame);
    }

    /// Receives the reply to the oldest call, which is call `seq`.
    fn receive_reply(&mut self, seq: u64, into: &mut [u8]) -> io::Result<(RemoteReply, usize)> {
        let (reply, len) = self.receive_frame(seq, into)?;
        let Some(call) = self.pending.pop_front() else { return Ok((reply, len)) };
        self.pending_bytes -= call.bytes.len();
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

    pub(crate) fn receive_frame(
        &mut self,
        seq: u64,
        into: &mut [u8],
    ) -> io::Result<(RemoteReply, usize)> {
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
            reply => {
                self.count_reply(len);
                Ok((reply, len))
            }
        }
    }
}
