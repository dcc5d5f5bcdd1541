//! The session of a mount with a site. Many threads have calls under way at once over one stream:
//! a thread sends its call and waits, and one thread receives all replies. The I/O process there
//! carries out the calls in the order of the stream, so a later call sees an earlier write.
//!
//! If the link breaks, that thread starts ssh again, and goes on with the same I/O process: calls
//! that had not arrived are sent again. If that process has ended, a new one opens the files of the
//! caller again, and gets all calls without a reply once more. A name that a repeated call finds
//! made or removed already was made or removed by the first one. After [`PATIENCE`] the calls fail;
//! further ones fail at once, until the link is there again.

use crate::earlier_processes::EarlierProcesses;
use crate::mount_message::MountCall;
use crate::remote_message::{BYTES_MAX, RemoteCall, RemoteFailure, RemoteReply, sum_bytes};
use crate::remote_session::RemoteError;
use crate::session_key::SiteSessionKey;
use crate::site_address::SiteAddress;
use crate::site_login::log_in;
use crate::ssh_link::SshLink;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Most bytes of calls whose replies have not come. A writer waits for room.
const WINDOW_BYTES: usize = 16 << 20;
/// How long a broken link is repaired before calls fail.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first pause before another attempt. It doubles each time.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Most calls to open files again that are under way at once.
const REOPENS_MAX: usize = 64;
/// Most signals that are kept for calls that have not come yet.
const EARLY_MAX: usize = 64;
/// Replies after which the other side may forget them, and their bytes.
const REPLIES_KEPT: u64 = 64;
const REPLY_BYTES_KEPT: usize = 4 << 20;

/// A reply with the bytes of its payload.
pub type MountBytes = (RemoteReply, Vec<u8>);

type ReplyResult = Result<MountBytes, Errno>;
type ReplyAction = Box<dyn FnOnce(ReplyResult) + Send>;

/// The open files of a mount, for a new I/O process that must open them again.
pub trait ReopenFiles: Send + Sync {
    /// Returns the call that opens each file again, by its number.
    fn list_files(&self) -> Vec<(u64, MountCall)>;
    /// Takes note that a file cannot be opened again.
    fn lose_file(&self, file: u64, errno: Errno);
}

/// A call without a reply.
struct SentMountCall {
    seq: u64,
    bytes: Arc<Vec<u8>>,
    action: ReplyAction,
    /// The error that shows, after a repetition, that the call had been carried out.
    success: Option<Errno>,
    /// The call whose reply replaces that of a repeated call: the new name is searched.
    instead: Option<MountCall>,
    is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkPhase {
    /// Calls are sent.
    Up,
    /// Calls are kept until the link is there again.
    Broken,
    /// Calls fail.
    Down,
    /// The mount has ended.
    Ended,
}

struct MountState {
    phase: LinkPhase,
    /// The number of the link: each new one has a higher number.
    epoch: u64,
    seq: u64,
    pending: VecDeque<SentMountCall>,
    pending_bytes: usize,
    /// The key of the session at the I/O process; `None`: its calls are not those that are pending.
    key: Option<SiteSessionKey>,
    /// Replies that this I/O process has sent, and those of which it knows that they have arrived.
    received: u64,
    acknowledged: u64,
    /// Bytes of replies that it still keeps.
    kept_bytes: usize,
    /// Attempts to go on with an I/O process.
    resumptions: u64,
    /// The calls that wait, by the number of the kernel's request.
    waiting: HashMap<u64, Arc<WaitSlot>>,
    /// Requests that were interrupted before their call came.
    early: VecDeque<u64>,
}

#[derive(Default)]
struct WaitSlot {
    state: Mutex<WaitState>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitState {
    reply: Option<ReplyResult>,
    is_interrupted: bool,
}

/// The session of a mount.
pub struct MountSession {
    site: SiteAddress,
    root: MountCall,
    root_id: (u64, u64),
    /// The near end of the stream. Calls are sent in the order in which they are pending.
    writer: Mutex<Option<UnixStream>>,
    state: Mutex<MountState>,
    changed: Condvar,
    files: OnceLock<Arc<dyn ReopenFiles>>,
    earlier: Mutex<EarlierProcesses>,
}

impl std::fmt::Debug for MountSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountSession").field("site", &self.site).finish_non_exhaustive()
    }
}

/// Opens the link of a mount, through the routers of the environment if there are some.
fn open_link(site: &SiteAddress) -> Result<SshLink, String> {
    log_in(site, &site.route.with_environment(), &mut 0)
}

impl MountSession {
    /// Logs in, and opens the directory `path` there. Returns the session, and the reply
    /// `Mounted`.
    ///
    /// # Errors
    /// The site cannot be reached, or the directory cannot be opened.
    pub fn start(
        site: &SiteAddress,
        path: &[u8],
    ) -> Result<(Arc<MountSession>, RemoteReply), RemoteError> {
        let named = |errno, why: String| RemoteError { errno, what: format!("{site}: {why}") };
        let lost = |why: String| named(Errno::HOSTDOWN, why);
        let mut link = open_link(site).map_err(lost)?;
        let root = MountCall::Root { path: path.to_vec().into() };
        let reply = ask_directly(&mut link, &root).map_err(|e| lost(link.explain_end(&e)))?;
        let root_id = match &reply {
            RemoteReply::Mounted { attr, .. } => (attr.dev, attr.ino),
            RemoteReply::Failed(failure) => {
                return Err(named(Errno::from_raw_os_error(failure.errno), failure.what.clone()));
            }
            _ => return Err(named(Errno::PROTO, "an odd reply".to_owned())),
        };
        let mut earlier = EarlierProcesses::default();
        earlier.add_link(&link);
        let writer = link.stream.get_ref().clone_socket().map_err(|e| lost(e.to_string()))?;
        let session = Arc::new(MountSession {
            site: site.clone(),
            root,
            root_id,
            writer: Mutex::new(Some(writer)),
            state: Mutex::new(MountState {
                phase: LinkPhase::Up,
                epoch: 0,
                seq: 1,
                pending: VecDeque::new(),
                pending_bytes: 0,
                key: link.session.clone(),
                // That of the root.
                received: 1,
                acknowledged: 0,
                kept_bytes: 0,
                resumptions: 0,
                waiting: HashMap::new(),
                early: VecDeque::new(),
            }),
            changed: Condvar::new(),
            files: OnceLock::new(),
            earlier: Mutex::new(earlier),
        });
        let served = session.clone();
        let body = move || served.receive_replies(link);
        let thread = std::thread::Builder::new().name("site-replies".to_owned());
        thread.spawn(body).map_err(|e| lost(e.to_string()))?;
        Ok((session, reply))
    }

    /// Sets the table of the open files. The first call counts.
    pub fn watch_files(&self, files: Arc<dyn ReopenFiles>) {
        // A second table would be an error of this program, and the first stays.
        let _ = self.files.set(files);
    }

    /// Sends a call and does not wait. `action` gets the reply in the thread that receives all
    /// replies, so it must neither wait nor send. It gets `EHOSTDOWN` at once if the link is broken
    /// for longer than a minute.
    pub fn send_call(
        &self,
        call: MountCall,
        payload: &[u8],
        action: impl FnOnce(ReplyResult) + Send + 'static,
    ) {
        let mut state = self.state.lock();
        while state.pending_bytes > WINDOW_BYTES && !state.phase.is_lost() {
            self.changed.wait(&mut state);
        }
        drop(state);
        self.send_boxed(call, payload, Box::new(action));
    }

    fn send_boxed(&self, call: MountCall, payload: &[u8], action: ReplyAction) {
        let (success, instead) = (sign_of_success(&call), replacement_of(&call));
        let call = RemoteCall::Mount(call);
        // The writer comes first: the order of the stream is that of the calls without a reply.
        let mut writer = self.writer.lock();
        let mut state = self.state.lock();
        if state.phase.is_lost() {
            drop((state, writer));
            return action(Err(Errno::HOSTDOWN));
        }
        state.seq += 1;
        let (seq, mut bytes) = (state.seq, Vec::with_capacity(256 + payload.len()));
        frame::encode_frame(&mut bytes, FrameClass::Remote, seq, &call, payload.len());
        bytes.extend_from_slice(payload);
        let bytes = Arc::new(bytes);
        state.pending_bytes += bytes.len();
        let received = state.count_unknown_replies();
        let is_up = state.phase == LinkPhase::Up;
        state.pending.push_back(SentMountCall {
            seq,
            bytes: bytes.clone(),
            action,
            success,
            instead,
            is_repeated: false,
        });
        drop(state);
        // A failure is that of the link, and the thread that receives notices it, too. While the
        // link is made again, the call goes with those that are sent once more.
        if let Some(stream) = writer.as_mut().filter(|_| is_up) {
            if let Some(count) = received {
                let _ = stream.write_all(&frame_alone(&RemoteCall::Received { count }));
            }
            let _ = stream.write_all(&bytes);
        }
    }

    /// Sends a call for request `unique` of the kernel, and waits for its reply. `inspect` sees the
    /// reply before any later reply is received. It must neither wait nor send.
    ///
    /// # Errors
    /// Those of the call there; `EHOSTDOWN`: the link is broken for longer than a minute; `EINTR`:
    /// the caller got a signal while it was broken.
    pub fn call_for(
        &self,
        unique: u64,
        call: MountCall,
        payload: &[u8],
        inspect: impl FnOnce(&ReplyResult) + Send + 'static,
    ) -> ReplyResult {
        let slot = Arc::new(WaitSlot::default());
        {
            let mut state = self.state.lock();
            if let Some(at) = state.early.iter().position(|early| *early == unique) {
                state.early.remove(at);
                slot.state.lock().is_interrupted = true;
            }
            state.waiting.insert(unique, slot.clone());
        }
        let of_reply = slot.clone();
        self.send_call(call, payload, move |reply| {
            inspect(&reply);
            of_reply.state.lock().reply = Some(reply);
            of_reply.changed.notify_all();
        });
        let reply = self.wait_for_reply(&slot);
        self.state.lock().waiting.remove(&unique);
        reply
    }

    /// As [`MountSession::call_for`], without a look at the reply.
    ///
    /// # Errors
    /// As there.
    pub fn call(&self, unique: u64, call: MountCall) -> ReplyResult {
        self.call_for(unique, call, &[], |_| {})
    }

    fn wait_for_reply(&self, slot: &WaitSlot) -> ReplyResult {
        let mut waited = slot.state.lock();
        loop {
            if let Some(reply) = waited.reply.take() {
                return reply;
            }
            // With a link that works the reply comes soon, and its effect is known.
            if waited.is_interrupted {
                let is_up =
                    MutexGuard::unlocked(&mut waited, || self.state.lock().phase == LinkPhase::Up);
                if !is_up && waited.reply.is_none() {
                    return Err(Errno::INTR);
                }
                if waited.reply.is_some() {
                    continue;
                }
            }
            slot.changed.wait(&mut waited);
        }
    }

    /// Takes note of a signal to the caller of a request of the kernel.
    pub fn interrupt_call(&self, unique: u64) {
        let mut state = self.state.lock();
        match state.waiting.get(&unique).cloned() {
            Some(slot) => {
                drop(state);
                slot.state.lock().is_interrupted = true;
                slot.changed.notify_all();
            }
            None => {
                if state.early.len() >= EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
    }

    /// Ends the session, and with it the I/O process there. Calls under way fail.
    pub fn end_session(&self) {
        let writer = self.writer.lock().take();
        self.fail_calls(LinkPhase::Ended);
        if let Some(stream) = writer {
            // Without it, the I/O process finds out by the end of the stream.
            let (end, flags) = (frame_alone(&RemoteCall::EndSession), SendFlags::DONTWAIT);
            let _ = send(&stream, &end, flags | SendFlags::NOSIGNAL);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Fails all calls, with a link that is lost or has ended.
    fn fail_calls(&self, phase: LinkPhase) {
        let mut state = self.state.lock();
        state.phase = phase;
        // Replies to these calls would fit no call.
        (state.pending_bytes, state.key) = (0, None);
        let calls = std::mem::take(&mut state.pending);
        drop(state);
        self.changed.notify_all();
        calls.into_iter().for_each(|call| (call.action)(Err(Errno::HOSTDOWN)));
    }

    /// Receives replies until the session ends.
    fn receive_replies(self: Arc<Self>, mut link: SshLink) {
        let mut body = Vec::new();
        loop {
            let error = match self.receive_reply(&mut link, &mut body) {
                Ok(()) => continue,
                Err(error) => error,
            };
            if self.state.lock().phase == LinkPhase::Ended {
                return;
            }
            // Also collects the process of ssh.
            link.explain_end(&error);
            drop(link);
            match self.repair_link() {
                Some(repaired) => link = repaired,
                None => return,
            }
        }
    }

    fn receive_reply(self: &Arc<Self>, link: &mut SshLink, body: &mut Vec<u8>) -> io::Result<()> {
        let (seq, reply, bytes) = read_reply(link, body)?;
        let mut state = self.state.lock();
        if state.pending.front().is_none_or(|oldest| oldest.seq != seq) {
            return Err(io::Error::other("a reply that fits no call"));
        }
        let Some(mut call) = state.pending.pop_front() else { return Ok(()) };
        state.pending_bytes -= call.bytes.len();
        state.received += 1;
        state.kept_bytes += bytes.len();
        drop(state);
        self.changed.notify_all();
        let result = match reply {
            RemoteReply::Failed(RemoteFailure { errno, .. }) => {
                let errno = Errno::from_raw_os_error(errno);
                match call.is_repeated && call.success == Some(errno) {
                    false => Err(errno),
                    true => match call.instead.take() {
                        None => Ok((RemoteReply::Done, Vec::new())),
                        Some(instead) => return self.ask_instead(instead, call.action),
                    },
                }
            }
            reply => Ok((reply, bytes)),
        };
        (call.action)(result);
        Ok(())
    }

    /// Gets the reply to a name that had been made before its call was repeated. A thread of its
    /// own sends the call: the thread that receives must never wait for room in the stream.
    fn ask_instead(self: &Arc<Self>, call: MountCall, action: ReplyAction) -> io::Result<()> {
        let session = self.clone();
        let body = move || session.send_boxed(call, &[], action);
        std::thread::Builder::new().name("site-lookup".to_owned()).spawn(body).map(drop)
    }

    /// Makes the link again. `None`: the session has ended.
    fn repair_link(self: &Arc<Self>) -> Option<SshLink> {
        // A thread that sends sees the end of the stream by now, and gives the lock up.
        *self.writer.lock() = None;
        let mut state = self.state.lock();
        if state.phase == LinkPhase::Up {
            state.phase = LinkPhase::Broken;
        }
        let waiting: Vec<Arc<WaitSlot>> = state.waiting.values().cloned().collect();
        drop(state);
        // A caller with a signal need not wait any more.
        waiting.iter().for_each(|slot| slot.wake());
        let (start, mut pause) = (Instant::now(), RETRY_PAUSE);
        loop {
            let restored = open_link(&self.site).and_then(|link| self.use_link(link));
            let why = match restored {
                Ok(link) => return Some(link),
                Err(why) => why,
            };
            let phase = self.state.lock().phase;
            if phase == LinkPhase::Broken && start.elapsed() > PATIENCE {
                eprintln!("tatami: {}: {why}", self.site);
                self.fail_calls(LinkPhase::Down);
            }
            let mut state = self.state.lock();
            let until = Instant::now() + pause;
            // Nothing tells when the other side can be reached again. The end of the mount does.
            while state.phase != LinkPhase::Ended {
                if self.changed.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            if state.phase == LinkPhase::Ended {
                return None;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Goes on over a new link: with the I/O process of the session, or else with the new one.
    fn use_link(self: &Arc<Self>, mut link: SshLink) -> Result<SshLink, String> {
        let (key, received, attempt) = {
            let mut state = self.state.lock();
            state.resumptions += 1;
            (state.key.clone(), state.received, state.resumptions)
        };
        let Some(key) = key else { return self.restore_calls(link) };
        match link.resume_session(key, received, attempt) {
            Ok(Ok(calls)) => self.resume_calls(link, calls),
            Ok(Err(_)) => {
                self.state.lock().key = None;
                self.restore_calls(link)
            }
            Err(error) => Err(link.explain_end(&error)),
        }
    }

    /// Begins to send the calls that the I/O process has not received: it has received `calls`.
    fn resume_calls(self: &Arc<Self>, link: SshLink, calls: u64) -> Result<SshLink, String> {
        let mut state = self.state.lock();
        let arrived = calls.checked_sub(state.received).and_then(|n| usize::try_from(n).ok());
        let Some(arrived) = arrived.filter(|arrived| *arrived <= state.pending.len()) else {
            state.key = None;
            return Err("the two sides count differently".to_owned());
        };
        let last = arrived.checked_sub(1).map_or(0, |at| state.pending[at].seq);
        (state.acknowledged, state.kept_bytes) = (state.received, 0);
        drop(state);
        self.start_repeats(link, last)
    }

    /// Ends the I/O processes before, which may still have calls in their inputs.
    /// Returns their number.
    fn end_earlier(&self, link: &mut SshLink) -> Result<usize, String> {
        let mut earlier = self.earlier.lock();
        let processes = earlier.add_link(link);
        for process in &processes {
            match link.call(&RemoteCall::EndProcess(*process)) {
                Ok(RemoteReply::Failed(failure)) => return Err(failure.what),
                Ok(_) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        earlier.forget_ended(&processes);
        Ok(processes.len())
    }

    /// Opens root and files in a new I/O process, and begins to send the calls without a reply once
    /// more.
    fn restore_calls(self: &Arc<Self>, mut link: SshLink) -> Result<SshLink, String> {
        let failed = |e: io::Error| e.to_string();
        let ended = self.end_earlier(&mut link)?;
        match ask_directly(&mut link, &self.root).map_err(failed)? {
            RemoteReply::Mounted { attr, .. } if (attr.dev, attr.ino) == self.root_id => {}
            RemoteReply::Failed(failure) => return Err(failure.what),
            _ => return Err("another directory has the path of the mount now".to_owned()),
        }
        let files = self.files.get();
        let opens = files.map(|table| table.list_files()).unwrap_or_default();
        for some in opens.chunks(REOPENS_MAX) {
            let mut bytes = Vec::new();
            for (_, open) in some {
                let call = RemoteCall::Mount(open.clone());
                frame::encode_frame(&mut bytes, FrameClass::Remote, 1, &call, 0);
            }
            link.send_bytes(&bytes).map_err(failed)?;
            for (file, _) in some {
                let (_, reply, _) = read_reply(&mut link, &mut Vec::new()).map_err(failed)?;
                if let (RemoteReply::Failed(failure), Some(table)) = (reply, files) {
                    table.lose_file(*file, Errno::from_raw_os_error(failure.errno));
                }
            }
        }
        let mut state = self.state.lock();
        state.key = link.session.clone();
        state.received = (ended + 1 + opens.len()) as u64;
        (state.acknowledged, state.kept_bytes) = (0, 0);
        state.pending.iter_mut().for_each(|call| call.is_repeated = true);
        drop(state);
        self.start_repeats(link, 0)
    }

    /// Begins to send the pending calls behind call `last` over a new link.
    fn start_repeats(self: &Arc<Self>, link: SshLink, last: u64) -> Result<SshLink, String> {
        let failed = |e: io::Error| e.to_string();
        let stream = link.stream.get_ref().clone_socket().map_err(failed)?;
        let mut state = self.state.lock();
        if state.phase == LinkPhase::Ended {
            return Err("the mount has ended".to_owned());
        }
        // Calls are accepted again, and go with those that are sent once more.
        state.phase = LinkPhase::Broken;
        state.epoch += 1;
        let epoch = state.epoch;
        drop(state);
        // Replies arrive meanwhile, so another thread sends.
        let session = self.clone();
        let body = move || session.repeat_calls(stream, epoch, last);
        let thread = std::thread::Builder::new().name("site-repeats".to_owned());
        thread.spawn(body).map_err(failed)?;
        Ok(link)
    }

    /// Sends all pending calls behind call `last`, also those that come meanwhile, and then lets
    /// callers send.
    fn repeat_calls(&self, mut stream: UnixStream, epoch: u64, mut last: u64) {
        loop {
            let mut writer = self.writer.lock();
            let mut state = self.state.lock();
            if state.epoch != epoch || state.phase != LinkPhase::Broken {
                return;
            }
            match state.pending.iter().find(|call| call.seq > last) {
                Some(next) => {
                    let bytes = next.bytes.clone();
                    last = next.seq;
                    drop((state, writer));
                    if stream.write_all(&bytes).is_err() {
                        return;
                    }
                }
                None => {
                    *writer = Some(stream);
                    state.phase = LinkPhase::Up;
                    drop(state);
                    self.changed.notify_all();
                    return;
                }
            }
        }
    }
}

impl MountState {
    /// Returns the number of replies of which the other side should know now that they have
    /// arrived; it keeps them until then. `None`: they are few.
    fn count_unknown_replies(&mut self) -> Option<u64> {
        let unknown = self.received - self.acknowledged;
        if unknown < REPLIES_KEPT && self.kept_bytes < REPLY_BYTES_KEPT {
            return None;
        }
        (self.acknowledged, self.kept_bytes) = (self.received, 0);
        Some(self.received)
    }
}

impl LinkPhase {
    fn is_lost(self) -> bool {
        matches!(self, LinkPhase::Down | LinkPhase::Ended)
    }
}

impl WaitSlot {
    /// Lets the waiting thread look at the state of the link.
    fn wake(&self) {
        // Behind the lock, so that the thread is either before its look or waits.
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}

/// Returns a message without a payload that is no call.
fn frame_alone(message: &RemoteCall) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode_frame(&mut bytes, FrameClass::Remote, 0, message, 0);
    bytes
}

/// Sends a call over a link that is in no other use, and receives its reply.
fn ask_directly(link: &mut SshLink, call: &MountCall) -> io::Result<RemoteReply> {
    let mut bytes = Vec::new();
    frame::encode_frame(&mut bytes, FrameClass::Remote, 1, &RemoteCall::Mount(call.clone()), 0);
    link.send_bytes(&bytes)?;
    Ok(read_reply(link, &mut Vec::new())?.1)
}

fn read_reply(link: &mut SshLink, body: &mut Vec<u8>) -> io::Result<(u64, RemoteReply, Vec<u8>)> {
    let broken = |e: FrameError| match e {
        FrameError::Io(e) => e,
        FrameError::Closed => io::ErrorKind::UnexpectedEof.into(),
        other => io::Error::other(other.to_string()),
    };
    let header = frame::read_frame(&mut link.stream, body).map_err(broken)?;
    let reply: RemoteReply = frame::decode_body(body).map_err(broken)?;
    let len = header.payload_len as usize;
    if header.class != FrameClass::Remote || len > BYTES_MAX {
        return Err(io::Error::other("a reply that fits no call"));
    }
    let mut bytes = vec![0; len];
    link.stream.read_exact(&mut bytes)?;
    match reply {
        RemoteReply::Bytes { sum } if sum != sum_bytes(&bytes) => {
            Err(io::Error::other("bytes were damaged on the way"))
        }
        reply => Ok((header.seq, reply, bytes)),
    }
}

/// Returns the error of a repeated call that shows that it has been carried out before.
fn sign_of_success(call: &MountCall) -> Option<Errno> {
    match call {
        MountCall::Remove { .. } => Some(Errno::NOENT),
        // Renamed before: an exchange would take place twice, and fails for a missing name alone.
        MountCall::Rename { .. } => Some(Errno::NOENT),
        MountCall::Make { .. } => Some(Errno::EXIST),
        MountCall::RemoveXattr { .. } => Some(Errno::NODATA),
        // The file was closed with its I/O process.
        MountCall::Release { .. } => Some(Errno::BADF),
        _ => None,
    }
}

/// Returns the call whose reply is that of a call which had been carried out before.
fn replacement_of(call: &MountCall) -> Option<MountCall> {
    match call {
        MountCall::Make { dir, name, .. } => {
            Some(MountCall::Lookup { dir: dir.clone(), name: name.clone() })
        }
        _ => None,
    }
}
