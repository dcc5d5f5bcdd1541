//! The link of a session, as the loop of calls and the thread that watches the link see it. A link
//! that breaks does not end the session: the next link carries what the broken one has lost.
//!
//! Both sides count. A call counts when it has arrived whole, and each call has one reply, in the
//! order of the calls. When a link takes over, the other side says how many replies it has
//! received, and this side how many calls. So each side sends again exactly what has not arrived,
//! and each call is carried out once.

use crate::kept_replies::KeptReplies;
use crate::session_streams::SessionStreams;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tatami_remote::{RemoteReply, SiteSessionKey};
use tatami_wire::frame::{self, FrameClass};

/// Most replies that are sent by one system call.
const BATCH_MAX: usize = 64;

/// The streams of one link, and its number: each link of a session has a higher one.
#[derive(Clone, Debug)]
pub(crate) struct CurrentLink {
    pub(crate) number: u64,
    pub(crate) streams: Arc<SessionStreams>,
}

#[derive(Debug)]
struct LinkState {
    number: u64,
    /// The number that the other side has given to the attempt that made the link.
    attempt: u64,
    /// The streams; `None` after the link has broken.
    streams: Option<Arc<SessionStreams>>,
    /// Calls that have arrived whole.
    calls: u64,
    /// Replies that have been given to the current link.
    sent: u64,
    kept: KeptReplies,
    /// No other link will come: the session ends with its input.
    is_last: bool,
    has_ended: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct SessionLink {
    key: SiteSessionKey,
    state: Mutex<LinkState>,
    changed: Condvar,
    /// Wakes the thread that watches the link.
    wake: OwnedFd,
    /// Whether the loop waits for a lock, and whether the session has ended: then the process ends
    /// inside the wait.
    is_waiting: AtomicBool,
    has_ended: AtomicBool,
}

impl SessionLink {
    /// Returns the link of a new session.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub(crate) fn new(key: SiteSessionKey, streams: SessionStreams) -> io::Result<SessionLink> {
        Ok(SessionLink {
            key,
            state: Mutex::new(LinkState {
                number: 0,
                attempt: 0,
                streams: Some(Arc::new(streams)),
                calls: 0,
                sent: 0,
                kept: KeptReplies::default(),
                is_last: false,
                has_ended: false,
            }),
            changed: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_waiting: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    /// The key of the session.
    pub(crate) fn key(&self) -> &SiteSessionKey {
        &self.key
    }

    /// A descriptor that is readable after [`SessionLink::report_break`] and at the end.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Returns the link that is in use; `None`: it has broken.
    pub(crate) fn current(&self) -> Option<CurrentLink> {
        let state = self.state.lock();
        let streams = state.streams.clone()?;
        Some(CurrentLink { number: state.number, streams })
    }

    /// Waits for a link with a number that is not below `number`. `None`: the session has ended.
    pub(crate) fn await_link(&self, number: u64) -> Option<CurrentLink> {
        let mut state = self.state.lock();
        loop {
            if state.has_ended || (state.is_last && state.streams.is_none()) {
                return None;
            }
            match &state.streams {
                Some(streams) if state.number >= number => {
                    return Some(CurrentLink { number: state.number, streams: streams.clone() });
                }
                _ => self.changed.wait(&mut state),
            }
        }
    }

    /// Lets the thread that watches the link know that it has broken.
    pub(crate) fn report_break(&self, number: u64) {
        let mut state = self.state.lock();
        let broken = if state.number == number { state.streams.take() } else { None };
        drop(state);
        if let Some(streams) = broken {
            streams.stop();
        }
        self.wake_watch();
    }

    /// Lets the session end when all calls have been read that are in its input.
    pub(crate) fn end_with_input(&self) {
        self.state.lock().is_last = true;
        self.changed.notify_all();
        self.end_lock_wait();
    }

    fn wake_watch(&self) {
        // It fails only where the thread is late by very many wakes.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Counts a call that has arrived whole. `false`: another link has taken over meanwhile, and
    /// the other side sends the call again.
    pub(crate) fn count_call(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let is_current = state.number == number && !state.has_ended;
        state.calls += u64::from(is_current);
        is_current
    }

    /// Returns an empty buffer for the next reply.
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.state.lock().kept.take_buffer()
    }

    /// Keeps the reply to the call that was counted last. [`SessionLink::send_replies`] sends it.
    pub(crate) fn keep_reply(&self, frame: Vec<u8>) {
        let mut state = self.state.lock();
        state.kept.add_reply(frame);
        assert_eq!(state.kept.next_number(), state.calls, "each call has one reply");
    }

    /// Forgets replies that the other side has received.
    pub(crate) fn forget_received(&self, count: u64) {
        let mut state = self.state.lock();
        // Only what was sent can have been received.
        let count = count.min(state.sent);
        state.kept.forget_received(count);
    }

    /// Sends all replies that the link has not got yet.
    ///
    /// # Errors
    /// Those of the streams, also where another link has taken over.
    pub(crate) fn send_replies(&self, link: &CurrentLink) -> io::Result<()> {
        loop {
            let (from, frames) = {
                let state = self.state.lock();
                if state.number != link.number {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                (state.sent, state.kept.list_from(state.sent, BATCH_MAX))
            };
            if frames.is_empty() {
                return Ok(());
            }
            let parts: Vec<&[u8]> = frames.iter().map(|frame| frame.as_slice()).collect();
            link.streams.send_all(&parts)?;
            let mut state = self.state.lock();
            if state.number == link.number {
                state.sent = from + frames.len() as u64;
            }
        }
    }

    /// Lets other streams carry the session, from the reply on that is number `received`. What the
    /// streams before still carry does not count any more.
    ///
    /// # Errors
    /// A sentence why it is refused. Then the session is as it was before.
    pub(crate) fn take_over(
        &self,
        streams: SessionStreams,
        received: u64,
        attempt: u64,
    ) -> Result<(), &'static str> {
        let mut state = self.state.lock();
        // A process that comes late has the streams of a link that was given up.
        if attempt <= state.attempt {
            return Err("a later link carries the session already");
        }
        if state.has_ended || state.is_last {
            return Err("the session has ended");
        }
        if !state.kept.has_all_from(received) {
            return Err("replies are missing that the other side has not received");
        }
        let mut frame = Vec::new();
        let reply = RemoteReply::Resumed { received: state.calls };
        frame::encode_frame(&mut frame, FrameClass::Remote, 0, &reply, 0);
        // New streams have room for it, so this does not wait.
        streams.send_all(&[&frame]).map_err(|_| "the new link has broken already")?;
        state.kept.forget_received(received);
        state.sent = received;
        state.number += 1;
        state.attempt = attempt;
        let before = state.streams.replace(Arc::new(streams));
        drop(state);
        if let Some(before) = before {
            before.stop();
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the session. The loop returns, or the process ends in its wait for a lock.
    pub(crate) fn end_session(&self) {
        let streams = {
            let mut state = self.state.lock();
            state.has_ended = true;
            state.streams.take()
        };
        if let Some(streams) = streams {
            streams.stop();
        }
        self.changed.notify_all();
        self.wake_watch();
        self.end_lock_wait();
    }

    fn end_lock_wait(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if self.is_waiting.load(Ordering::SeqCst) {
            end_this_process();
        }
    }

    /// Whether no call of the session has come, and no second link.
    pub(crate) fn is_new(&self) -> bool {
        let state = self.state.lock();
        state.calls == 0 && state.number == 0
    }

    /// Whether the session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    /// Runs a wait for a lock. This process ends if the session ends meanwhile.
    pub(crate) fn run_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.is_waiting.store(true, Ordering::SeqCst);
        if self.has_ended.load(Ordering::SeqCst) {
            end_this_process();
        }
        let result = wait();
        self.is_waiting.store(false, Ordering::SeqCst);
        result
    }
}

/// Ends this process, with all that it holds.
fn end_this_process() {
    // The call fails only for a process that does not exist.
    let _ = kill_process(getpid(), Signal::TERM);
}
