//! The relay on a login host (`tatami relay`). A process on a compute host without a route to the
//! other site starts it by ssh, and asks it for ways there. Each way takes one connection that
//! proves its secret, and moves its bytes to one address. The relay ends with its input.

use crate::data_place::open_place;
use crate::gateway_loop::GatewayError;
use crate::refusal::refuse;
use crate::relay_pipe::pass_bytes;
use crate::relay_watch::watch_silence;
use rustix::io::Errno;
use std::io::{BufReader, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use tatami_net::wrap_plain_socket;
use tatami_remote::{
    DataOffer, RemoteCall, RemoteFailure, RemoteReply, SiteGreeting, connect_to_any,
    format_greeting,
};
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Most ways of one relay at once.
const WAYS_MAX: usize = 64;

/// Serves one process until `input` ends.
///
/// # Errors
/// [`GatewayError`].
pub fn serve_relay(input: impl Read + AsFd, mut output: impl Write) -> Result<(), GatewayError> {
    watch_silence(input.as_fd().try_clone_to_owned()?)?;
    let greeting = SiteGreeting::of_this_machine(env!("CARGO_PKG_VERSION"));
    output.write_all(format_greeting(&greeting).as_bytes())?;
    output.flush()?;
    let mut input = BufReader::new(input);
    let (mut body, mut replies, ways) = (Vec::new(), Vec::new(), Arc::new(()));
    loop {
        let header = match frame::read_frame(&mut input, &mut body) {
            Ok(header) if header.class == FrameClass::Remote && header.payload_len == 0 => header,
            Ok(_) => return Err(GatewayError::Call(FrameError::Unexpected)),
            Err(FrameError::Closed | FrameError::Io(_)) => return Ok(()),
            Err(e) => return Err(GatewayError::Call(e)),
        };
        let call: RemoteCall = frame::decode_body(&body).map_err(GatewayError::Call)?;
        let offered = match call {
            RemoteCall::OpenRelay { addresses, port } => open_way(&addresses, port, &ways),
            _ => Err(refuse(Errno::NOSYS, "a relay opens no files")),
        };
        let reply = offered.map_or_else(RemoteReply::Failed, RemoteReply::Offer);
        replies.clear();
        frame::encode_frame(&mut replies, FrameClass::Remote, header.seq, &reply, 0);
        output.write_all(&replies)?;
        output.flush()?;
    }
}

/// Connects to the first address that answers, and offers the way to it. Each way holds `ways`.
fn open_way(addresses: &[String], port: u16, ways: &Arc<()>) -> Result<DataOffer, RemoteFailure> {
    if Arc::strong_count(ways) > WAYS_MAX {
        return Err(refuse(Errno::MFILE, "too many connections through this relay"));
    }
    let there = connect_to_any(addresses, port).map_err(|e| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::HOSTUNREACH);
        refuse(errno, &format!("port {port} of {}: {e}", addresses.join(" or ")))
    })?;
    let way = ways.clone();
    // TLS is between the two sites, and passes through. This side proves the secret in the clear
    // part, which gives away nothing.
    let place = open_place(0, false, move |stream| {
        pass_bytes(&stream, &wrap_plain_socket(there));
        drop(way);
    });
    place.map(|(offer, _)| offer)
}
