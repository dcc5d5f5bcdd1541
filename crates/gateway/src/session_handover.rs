//! How the process of a later ssh gives its streams to the I/O process of a session.
//!
//! ```text
//! later process ── connects ─────────────────────────▶ I/O process, on its socket
//!               ◀─ ready ─────────────────────────────
//!               ── key, count of replies, streams ────▶ compares the key, takes over
//!               ◀─ taken, or a sentence why not ───────
//!               ◀─ the socket closes with the link ────
//! ```
//!
//! The streams are sent only to a process that says it is ready. One that is stopped would
//! otherwise find them in its socket when it goes on, while another process serves them.

use crate::passed_streams::{accept_own, connect_to, receive_streams, send_streams};
use crate::session_link::SessionLink;
use crate::session_streams::SessionStreams;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;
use tatami_remote::{HANDOVER_MAX, HandoverWords, SiteSessionKey};

/// Longest wait for the other process.
const WORDS_WAIT: Duration = Duration::from_secs(10);
/// The words of the I/O process. Another first byte begins a sentence.
const READY: &[u8] = b"\x01";
const TAKEN: &[u8] = b"\x02";
/// Most bytes of a sentence.
const SENTENCE_MAX: usize = 256;

/// Why streams were not handed over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandoverFailure {
    /// The I/O process does not have them: this process may go on with them.
    Refused(String),
    /// The I/O process may have them, or get them later.
    Unknown,
}

/// Gives the streams of this process to the I/O process of a session. Returns the socket that
/// closes when the streams are not needed any more.
///
/// # Errors
/// [`HandoverFailure`].
pub(crate) fn hand_over(
    words: &HandoverWords,
    streams: [BorrowedFd<'_>; 2],
) -> Result<OwnedFd, HandoverFailure> {
    let refused = |errno: Errno| HandoverFailure::Refused(explain(errno));
    let socket = connect_to(&words.key.socket_name()).map_err(refused)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(WORDS_WAIT)).map_err(refused)?;
    let mut said = [0; SENTENCE_MAX];
    match recv(&socket, &mut said[..], RecvFlags::empty()).map_err(refused)? {
        (len, _) if &said[..len] == READY => {}
        _ => return Err(refused(Errno::NOENT)),
    }
    send_streams(&socket, &words.encode(), streams).map_err(refused)?;
    match recv(&socket, &mut said[..], RecvFlags::empty()) {
        Ok((len, _)) if &said[..len] == TAKEN => {
            let forever = set_socket_timeout(&socket, Timeout::Recv, None);
            forever.map(|()| socket).map_err(|_| HandoverFailure::Unknown)
        }
        Ok((len, _)) if len > 0 => {
            let sentence = String::from_utf8_lossy(&said[..len]).into_owned();
            Err(HandoverFailure::Refused(sentence))
        }
        _ => Err(HandoverFailure::Unknown),
    }
}

fn explain(errno: Errno) -> String {
    match errno {
        Errno::CONNREFUSED | Errno::NOENT => "the I/O process has ended".to_owned(),
        Errno::AGAIN => "the I/O process does not answer".to_owned(),
        Errno::PERM => "the I/O process belongs to another user".to_owned(),
        other => format!("the I/O process is not reached: {other}"),
    }
}

/// Takes the streams of a later ssh from the process that calls at `listener`. Returns the text
/// with which its sshd describes the connection; `None`: nothing was taken.
pub(crate) fn receive_handover(link: &SessionLink, listener: &OwnedFd) -> Option<String> {
    let socket = accept_own(listener).ok()??;
    set_socket_timeout(&socket, Timeout::Recv, Some(WORDS_WAIT)).ok()?;
    send(&socket, READY, SendFlags::NOSIGNAL).ok()?;
    let mut bytes = [0; HANDOVER_MAX];
    let (len, [input, output]) = receive_streams(&socket, &mut bytes).ok()?;
    let answer = |words: &[u8]| send(&socket, words, SendFlags::NOSIGNAL).is_ok();
    let words = HandoverWords::parse(&bytes[..len]);
    let Some(words) = words.filter(|words| has_key(&words.key, link.key())) else {
        answer(b"the key is that of another session");
        return None;
    };
    let carrier = socket.try_clone().ok()?;
    let streams = SessionStreams::new(input, output, Some(carrier)).ok()?;
    match link.take_over(streams, words.received, words.attempt) {
        Ok(()) => {
            answer(TAKEN);
            Some(words.connection)
        }
        Err(why) => {
            answer(why.as_bytes());
            None
        }
    }
}

/// Compares keys. Only processes of this user get here, so the time of it gives nothing away that
/// they could not read from the memory of this process.
fn has_key(given: &SiteSessionKey, own: &SiteSessionKey) -> bool {
    given == own
}

/// Keeps this process, which sshd has started, until the I/O process needs its link no more: sshd
/// ends a session with the process that it has started.
pub(crate) fn carry_link(socket: &OwnedFd) {
    loop {
        match recv(socket, &mut [0; 1], RecvFlags::empty()) {
            Ok((1.., _)) | Err(Errno::INTR) => {}
            _ => return,
        }
    }
}
