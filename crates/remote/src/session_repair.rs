//! The repair of a broken link. The I/O process there waits with all files, locks and replies, and
//! the next ssh goes on with it: the calls that had not arrived are sent again, and the replies
//! that had not arrived are received. So each call is carried out once.
//!
//! If that process has ended, a new one opens all files again, and the calls without a reply are
//! sent once more. They have the same effect when they are repeated, but for two: a step of the
//! shared pointer, and the making of a file that must not exist. These fail. So do calls for a file
//! of which the ended process wrote a piece.

use crate::call_kinds::{file_of, is_sink, keeps_piece};
use crate::remote_error::RemoteError;
use crate::remote_message::{RemoteCall, RemoteReply};
use crate::remote_session::{RemoteSession, SentCall, SessionState};
use crate::ssh_link::SshLink;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};
use tatami_wire::frame::{self, FrameClass};

/// How long a broken link is repaired before calls fail.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first pause before another attempt. It doubles each time.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Why a link is not in use.
enum RepairFailure {
    /// Another one may do.
    Again(String),
    /// No other one does.
    Final(String),
}

impl RemoteSession {
    /// Replaces a broken link.
    ///
    /// # Errors
    /// The site is not reached within a minute, or what was under way cannot be repeated.
    pub(crate) fn repair(
        &self,
        state: &mut SessionState,
        error: &io::Error,
    ) -> Result<(), RemoteError> {
        state.data.abandon();
        let mut why = match state.link.take() {
            Some(mut link) => link.explain_end(error),
            None => error.to_string(),
        };
        let (start, mut pause) = (Instant::now(), RETRY_PAUSE);
        loop {
            let opened = self.open_link(state).map_err(RepairFailure::Again);
            match opened.and_then(|link| self.use_link(state, link, &why)) {
                Ok(()) => return Ok(()),
                Err(RepairFailure::Again(again)) => why = again,
                Err(RepairFailure::Final(why)) => return Err(self.give_up(state, &why)),
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

    /// Goes on over a new link: with the I/O process of the session, or else with the new one.
    fn use_link(
        &self,
        state: &mut SessionState,
        mut link: SshLink,
        why: &str,
    ) -> Result<(), RepairFailure> {
        if let Some(key) = state.key.clone() {
            state.resumptions += 1;
            match link.resume_session(key, state.received, state.resumptions) {
                Ok(Ok(calls)) => return self.resume(state, link, calls),
                // The new process serves a session of its own.
                Ok(Err(_)) => state.key = None,
                Err(error) => return Err(RepairFailure::Again(link.explain_end(&error))),
            }
        }
        if state.pending.iter().any(|call| !call.is_repeatable) {
            let why = format!("{why}; a call was under way, and its result is unknown");
            return Err(RepairFailure::Final(why));
        }
        self.begin_session(state, link).map_err(RepairFailure::Again)
    }

    /// Sends the calls again that the I/O process has not received: it has received `calls`.
    fn resume(
        &self,
        state: &mut SessionState,
        link: SshLink,
        calls: u64,
    ) -> Result<(), RepairFailure> {
        let arrived = calls.checked_sub(state.received).and_then(|n| usize::try_from(n).ok());
        let Some(arrived) = arrived.filter(|arrived| *arrived <= state.pending.len()) else {
            // It would be an error of one of the two programs. A new process is clear.
            state.key = None;
            return Err(RepairFailure::Again("the two sides count differently".to_owned()));
        };
        state.link = Some(link);
        (state.acknowledged, state.kept_bytes) = (state.received, 0);
        self.send_pending(state, arrived).map_err(RepairFailure::Again)
    }

    /// Sends the calls without a reply, but for the first ones.
    fn send_pending(&self, state: &mut SessionState, skipped: usize) -> Result<(), String> {
        let pending = std::mem::take(&mut state.pending);
        let sent = pending.iter().skip(skipped).try_for_each(|c| state.write_to_link(&c.bytes));
        state.pending = pending;
        sent.map_err(|error| match state.link.take() {
            Some(mut link) => link.explain_end(&error),
            None => error.to_string(),
        })
    }

    /// Begins a session with the process of a new link: opens all files there again, and repeats
    /// the calls without a reply.
    ///
    /// # Errors
    /// A sentence. Then the link is not in use.
    pub(crate) fn begin_session(
        &self,
        state: &mut SessionState,
        link: SshLink,
    ) -> Result<(), String> {
        let key = link.session.clone();
        (state.received, state.acknowledged, state.kept_bytes) = (0, 0, 0);
        // What is restored in parts is not resumed: the next process begins anew.
        state.key = None;
        state.link = Some(link);
        self.restore_files(state).inspect_err(|_| state.link = None)?;
        state.key = key;
        state.pending.iter_mut().for_each(|call| call.repeated = true);
        self.send_pending(state, 0)
    }

    /// Forgets the calls under way after a link that is lost for good. Their files report it.
    fn give_up(&self, state: &mut SessionState, why: &str) -> RemoteError {
        let error = self.lost(why);
        (state.link, state.key) = (None, None);
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

    fn restore_files(&self, state: &mut SessionState) -> Result<(), String> {
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
        Ok(())
    }
}
