//! The loop of the I/O process: a call, its reply, and the next call, until the input ends.

use crate::gateway_files::GatewayFiles;
use crate::input_watch::InputWatch;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use tatami_remote::{RemoteCall, SiteGreeting, format_greeting};
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Bytes that are received at a time where calls are short.
const BUFFER: usize = 256 << 10;
/// Replies that are collected while more calls are there already.
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

/// Serves one process of another site until `input` ends.
///
/// # Errors
/// [`GatewayError`].
pub fn serve_gateway(input: impl Read + AsFd, mut output: impl Write) -> Result<(), GatewayError> {
    // Without it the kernel copies small pieces one by one.
    let _ = tatami_tiled::guard_stores();
    let watch = InputWatch::start(input.as_fd().try_clone_to_owned()?)?;
    let greeting = SiteGreeting::of_this_machine(env!("CARGO_PKG_VERSION"));
    output.write_all(format_greeting(&greeting).as_bytes())?;
    output.flush()?;
    let mut input = BufReader::with_capacity(BUFFER, input);
    let mut files = GatewayFiles::new(watch);
    let (mut body, mut payload, mut bytes, mut replies) = (vec![], vec![], vec![], vec![]);
    loop {
        let header = match frame::read_frame(&mut input, &mut body) {
            Ok(header) if header.class == FrameClass::Remote => header,
            Ok(_) => return Err(GatewayError::Call(FrameError::Unexpected)),
            // A program that was killed may have sent a part of a call.
            Err(FrameError::Closed | FrameError::Io(_)) => return Ok(()),
            Err(e) => return Err(GatewayError::Call(e)),
        };
        let call: RemoteCall = frame::decode_body(&body).map_err(GatewayError::Call)?;
        payload.resize(header.payload_len as usize, 0);
        match input.read_exact(&mut payload) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            received => received?,
        }
        let reply = files.carry_out(call, &mut payload, &mut bytes);
        frame::encode_frame(&mut replies, FrameClass::Remote, header.seq, &reply, bytes.len());
        replies.extend_from_slice(&bytes);
        // One write for the replies to all calls that have arrived.
        if input.buffer().is_empty() || replies.len() >= REPLIES_MAX {
            output.write_all(&replies)?;
            output.flush()?;
            replies.clear();
        }
    }
}
