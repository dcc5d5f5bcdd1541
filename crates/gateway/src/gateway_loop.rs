//! The loop of the I/O process: a call, its reply, and the next call, until the session ends. The
//! calls come over one link after the other where links break.

use crate::gateway_files::GatewayFiles;
use crate::link_watch::watch_link;
use crate::refusal::refuse;
use crate::session_handover::{HandoverFailure, carry_link, hand_over};
use crate::session_link::{CurrentLink, SessionLink};
use crate::session_streams::SessionStreams;
use crate::ssh_silence::SshConnection;
use rustix::io::Errno;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_remote::{
    HandoverWords, RemoteCall, RemoteReply, SiteGreeting, SiteSessionKey, format_greeting,
};
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Bytes that are received at a time where calls are short.
const BUFFER: usize = 256 << 10;
/// Bytes of replies that are collected while more calls are there already.
const REPLIES_MAX: usize = 64 << 10;

/// Why the loop ended before its input.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The input or output failed.
    #[error("the connection to the other site: {0}")]
    Io(#[from] io::Error),
    /// The input is not what a session sends.
    #[error("not a call of a program at another site: {0}")]
    Call(FrameError),
}

/// How the service over one link has ended.
enum LinkEnd {
    /// The link has broken.
    Broken,
    /// The session has ended.
    Finished,
    /// Another process has the streams, until this socket closes.
    HandedOver(OwnedFd),
}

/// Serves one process of another site until its session ends, or carries the streams of a session
/// that another process serves.
///
/// # Errors
/// [`GatewayError`].
pub fn serve_gateway(input: OwnedFd, output: OwnedFd) -> Result<(), GatewayError> {
    // Without it the kernel copies small pieces one by one.
    let _ = tatami_tiled::guard_stores();
    let key = SiteSessionKey::make()?;
    let streams = SessionStreams::new(input, output, None)?;
    let mut greeting = SiteGreeting::of_this_machine(env!("CARGO_PKG_VERSION"));
    greeting.session = Some(key.clone());
    let link = Arc::new(SessionLink::new(key, streams)?);
    // The session can be resumed from its first byte on.
    watch_link(link.clone())?;
    if let Some(first) = link.current() {
        // The loop notices a failure, too.
        let _ = first.streams.send_all(&[format_greeting(&greeting).as_bytes()]);
    }
    let carried = serve_session(&link);
    link.end_session();
    // Nothing of this process holds the streams any more.
    drop(link);
    if let Some(socket) = carried? {
        carry_link(&socket);
    }
    Ok(())
}

/// Serves a session over all its links. Returns the socket of another process that has the streams.
fn serve_session(link: &Arc<SessionLink>) -> Result<Option<OwnedFd>, GatewayError> {
    let mut files = GatewayFiles::new(link.clone());
    let mut number = 0;
    while let Some(current) = link.await_link(number) {
        if current.number > 0 {
            // The other side has given its data connections up, and repeats their calls.
            files.end_connections();
        }
        match serve_link(link, &current, &mut files)? {
            LinkEnd::Broken => link.report_break(current.number),
            LinkEnd::Finished => break,
            LinkEnd::HandedOver(socket) => return Ok(Some(socket)),
        }
        number = current.number + 1;
    }
    Ok(None)
}

fn serve_link(
    link: &SessionLink,
    current: &CurrentLink,
    files: &mut GatewayFiles,
) -> Result<LinkEnd, GatewayError> {
    let mut input = BufReader::with_capacity(BUFFER, &*current.streams);
    let (mut body, mut payload, mut bytes, mut unsent) = (vec![], vec![], vec![], 0);
    loop {
        // One write for the replies to all calls that have arrived.
        if input.buffer().is_empty() || unsent >= REPLIES_MAX {
            if link.send_replies(current).is_err() {
                return Ok(LinkEnd::Broken);
            }
            unsent = 0;
        }
        let header = match frame::read_frame(&mut input, &mut body) {
            Ok(header) if header.class == FrameClass::Remote => header,
            Ok(_) => return Err(GatewayError::Call(FrameError::Unexpected)),
            // A part of a call may have come. The other side sends it again.
            Err(FrameError::Closed | FrameError::Io(_)) => return Ok(LinkEnd::Broken),
            Err(e) => return Err(GatewayError::Call(e)),
        };
        let call: RemoteCall = frame::decode_body(&body).map_err(GatewayError::Call)?;
        payload.resize(header.payload_len as usize, 0);
        if input.read_exact(&mut payload).is_err() {
            return Ok(LinkEnd::Broken);
        }
        match call {
            RemoteCall::Received { count } => {
                link.forget_received(count);
                continue;
            }
            RemoteCall::EndSession => return Ok(LinkEnd::Finished),
            RemoteCall::ResumeSession { key, received, attempt } => {
                if !link.is_new() || !input.buffer().is_empty() {
                    return Err(GatewayError::Call(FrameError::Unexpected));
                }
                let words = HandoverWords::new(key, received, attempt, SshConnection::words());
                match resume_session(current, &words)? {
                    Some(socket) => return Ok(LinkEnd::HandedOver(socket)),
                    None => continue,
                }
            }
            _ => {}
        }
        if !link.count_call(current.number) {
            return Ok(LinkEnd::Broken);
        }
        let reply = files.carry_out(call, &mut payload, &mut bytes);
        let mut out = link.take_buffer();
        frame::encode_frame(&mut out, FrameClass::Remote, header.seq, &reply, bytes.len());
        out.extend_from_slice(&bytes);
        unsent += out.len();
        link.keep_reply(out);
    }
}

/// Gives the streams to the I/O process of an earlier session. `None`: it is not there, and the
/// other side knows it.
fn resume_session(
    current: &CurrentLink,
    words: &HandoverWords,
) -> Result<Option<OwnedFd>, GatewayError> {
    match hand_over(words, current.streams.as_pair()) {
        Ok(socket) => Ok(Some(socket)),
        Err(HandoverFailure::Refused(why)) => {
            let (mut out, reply) = (vec![], RemoteReply::Failed(refuse(Errno::STALE, &why)));
            frame::encode_frame(&mut out, FrameClass::Remote, 0, &reply, 0);
            // A failure is that of the link, which the next read reports.
            let _ = current.streams.send_all(&[&out]);
            Ok(None)
        }
        Err(HandoverFailure::Unknown) => {
            Err(GatewayError::Io(io::Error::other("another process may have the streams")))
        }
    }
}
