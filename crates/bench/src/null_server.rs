//! The null server: the baseline of a metadata request. Frames of the same size, over the same kind
//! of socket, through the same kind of event loop, with no work behind them.
//!
//! The server is a process with one thread and an epoll loop, as the executor of a shard is. In the
//! `Messages` depth both sides do all the work of the `wire` crate: encode, checksum, decode. In
//! the `Bytes` depth the frame goes back unread: that measures the socket alone.

use crate::error::{BenchError, io_error};
use crate::workload::{PhaseTotals, Workload};
use rustix::event::epoll;
use rustix::fs::Mode;
use rustix::net::getsockname;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use tatami_net::dial::{self, PlainWait};
use tatami_net::{Endpoint, Listener, NetStream};
use tatami_wire::frame::{self, FrameClass, FrameHeader, HEADER_LEN};
use tatami_wire::meta::{Bytes, InodeTemplate, MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Attr, Cred, Ino, InodeKind, Layout, NodeId, ShardId, Timestamp};

/// The task of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum NullServerPart {
    /// Answers until this many clients have connected and disconnected.
    Server {
        /// Number of connections to wait for.
        clients: usize,
        /// Where the server listens: a path of a UNIX socket, or TCP on the loopback.
        socket: Option<PathBuf>,
        /// Whether the server decodes messages.
        depth: WireDepth,
    },
    /// Sends one request at a time. The phases are `create ADDRESS`, `stat ADDRESS` and `unlink
    /// ADDRESS`. Several addresses are separated by commas. Each request goes to a random one, as
    /// the requests of a client in a spread directory do.
    Client {
        /// Number of requests in a phase.
        requests: u64,
        /// Whether the client encodes and decodes messages.
        depth: WireDepth,
    },
}

/// How much of the work of the `wire` crate is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireDepth {
    /// Encode, checksum and decode on both sides.
    Messages,
    /// The frame goes back unchanged.
    Bytes,
}

/// Returns the endpoint of an address that a server reported.
fn parse_address(address: &str) -> Endpoint {
    match Path::new(address).is_absolute() {
        true => Endpoint::Unix(address.into()),
        false => Endpoint::from_address(address),
    }
}

/// Listens on a UNIX socket, or over TCP on a free port. Returns the address as well.
fn start_listening(socket: Option<&Path>) -> io::Result<(Listener, String)> {
    let address = socket.map_or(Some("127.0.0.1:0"), Path::to_str);
    let address = address.ok_or(io::ErrorKind::InvalidInput)?;
    let listener = Listener::listen(&parse_address(address), Mode::from_raw_mode(0o600), None)?;
    let address = match socket {
        Some(_) => address.to_owned(),
        // The kernel has chosen the port.
        None => SocketAddr::try_from(getsockname(&listener)?)?.to_string(),
    };
    Ok((listener, address))
}

/// Returns attributes such as a small file has: the size of a typical reply.
fn sample_attr() -> Attr {
    let time = Timestamp { sec: 1_790_000_000, nsec: 123_456_789 };
    Attr {
        uid: 1000,
        gid: 1000,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: 12_345,
        ..Attr::with_defaults(Ino(123_456), InodeKind::File)
    }
}

/// Returns the request that an operation of mdtest sends through the library.
fn build_call(operation: &str, number: u64) -> Option<MetaCall> {
    let (parent, name) = (Ino(1234), Bytes::from(format!("file.mdtest.0.{number}").into_bytes()));
    let op = match operation {
        "create" => MetaOp::Create {
            parent,
            name,
            node: InodeTemplate::File(Layout::whole(NodeId(0))),
            mode: 0o664,
            umask: 0o022,
            exclusive: false,
            open: None,
        },
        "stat" => MetaOp::Lookup { parent, name },
        "unlink" => MetaOp::Unlink { parent, name, keep: false },
        _ => return None,
    };
    Some(MetaCall { shard: ShardId(0), cred: Cred::ROOT, op })
}

/// Returns the reply that a shard gives to such a request.
fn build_result(call: &MetaCall) -> MetaResult {
    Ok(match &call.op {
        MetaOp::Create { .. } => {
            MetaReply::Created { attr: sample_attr(), cap: None, created: true }
        }
        MetaOp::Unlink { .. } => MetaReply::Removed { ino: Some(Ino(123_456)), last: true },
        _ => MetaReply::Attr(sample_attr()),
    })
}

/// Most bytes that one read takes.
const READ_MAX: usize = 16 << 10;

/// A process of the null server: the server itself or a client.
pub struct NullServer {
    part: NullServerPart,
    listener: Option<Listener>,
    connections: Vec<NetStream>,
}

impl NullServer {
    /// Returns a process that has not started anything yet.
    pub fn new(part: NullServerPart) -> NullServer {
        NullServer { part, listener: None, connections: Vec::new() }
    }
}

impl Workload for NullServer {
    fn prepare_phase(&mut self, phase: &str) -> Result<String, BenchError> {
        match &self.part {
            NullServerPart::Server { socket, .. } => {
                let bound = start_listening(socket.as_deref()).map_err(io_error("listening"))?;
                self.listener = Some(bound.0);
                Ok(bound.1)
            }
            NullServerPart::Client { .. } => {
                let (_, addresses) = parse_phase(phase)?;
                let connections = addresses
                    .split(',')
                    .map(|address| dial::connect(&parse_address(address), None, &PlainWait));
                let connections = connections.collect::<io::Result<_>>();
                self.connections = connections.map_err(io_error("connecting"))?;
                Ok(String::new())
            }
        }
    }

    fn run_phase(&mut self, phase: &str) -> Result<PhaseTotals, BenchError> {
        match &self.part {
            NullServerPart::Server { clients, depth, .. } => {
                let listener = self.listener.take().expect("prepared before it runs");
                serve_clients(&listener, *clients, *depth).map_err(io_error("serving the echo"))
            }
            NullServerPart::Client { requests, depth } => {
                let sockets = std::mem::take(&mut self.connections);
                let (operation, _) = parse_phase(phase)?;
                let done = match depth {
                    WireDepth::Messages => send_requests(&sockets, operation, *requests),
                    WireDepth::Bytes => send_frames(&sockets, operation, *requests),
                };
                done.map_err(io_error("asking the echo"))?;
                Ok(PhaseTotals { ops: *requests, ..PhaseTotals::default() })
            }
        }
    }
}

fn parse_phase(phase: &str) -> Result<(&str, &str), BenchError> {
    phase
        .split_once(' ')
        .filter(|(operation, _)| build_call(operation, 0).is_some())
        .ok_or_else(|| BenchError::Usage(format!("the echo has no phase '{phase}'")))
}

fn invalid_data(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

/// Picks the server of the next request.
fn pick_socket<'a>(sockets: &'a [NetStream], order: &mut fastrand::Rng) -> &'a NetStream {
    &sockets[order.usize(..sockets.len())]
}

/// Sends one request at a time. Encodes each request and decodes each reply.
fn send_requests(sockets: &[NetStream], operation: &str, requests: u64) -> io::Result<()> {
    let mut out = Vec::new();
    let mut input = vec![0; READ_MAX];
    let mut order = fastrand::Rng::new();
    for number in 0..requests {
        let mut socket = pick_socket(sockets, &mut order);
        let call = build_call(operation, number).expect("checked when the phase was prepared");
        out.clear();
        frame::encode_frame(&mut out, FrameClass::Meta, number, &call, 0);
        socket.write_all(&out)?;
        let mut end = 0;
        let (header, reply) = loop {
            match socket.read(&mut input[end..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => end += n,
            }
            if let Some((header, body)) = frame::split_frame(&input[..end]).map_err(invalid_data)? {
                break (header, frame::decode_body::<MetaResult>(body).map_err(invalid_data)?);
            }
        };
        if header.seq != number || reply.is_err() {
            return Err(invalid_data("the answer fits no request"));
        }
    }
    Ok(())
}

/// Sends the same frame again and again.
fn send_frames(sockets: &[NetStream], operation: &str, requests: u64) -> io::Result<()> {
    let call = build_call(operation, 0).expect("checked when the phase was prepared");
    let mut out = Vec::new();
    frame::encode_frame(&mut out, FrameClass::Meta, 0, &call, 0);
    let mut input = vec![0; out.len()];
    let mut order = fastrand::Rng::new();
    for _ in 0..requests {
        let mut socket = pick_socket(sockets, &mut order);
        socket.write_all(&out)?;
        socket.read_exact(&mut input)?;
    }
    Ok(())
}

struct NullServerConnection {
    socket: NetStream,
    input: Vec<u8>,
    end: usize,
}

/// Answers `clients` connections until all are closed.
fn serve_clients(listener: &Listener, clients: usize, depth: WireDepth) -> io::Result<PhaseTotals> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let accepting = epoll::EventData::new_u64(u64::MAX);
    epoll::add(&poll, listener.as_fd(), accepting, epoll::EventFlags::IN)?;
    let mut conversations: Vec<Option<NullServerConnection>> = Vec::with_capacity(clients);
    let mut open = 0;
    let mut ops = 0;
    let mut out = Vec::new();
    let mut events = Vec::with_capacity(64);
    while conversations.len() < clients || open > 0 {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        for event in events.drain(..) {
            let key = event.data.u64();
            if key == accepting.u64() {
                let socket = listener.accept()?;
                socket.prepare_for_daemon()?;
                socket.set_nonblocking()?;
                let data = epoll::EventData::new_u64(conversations.len() as u64);
                epoll::add(&poll, socket.as_fd(), data, epoll::EventFlags::IN)?;
                conversations.push(Some(NullServerConnection {
                    socket,
                    input: vec![0; READ_MAX],
                    end: 0,
                }));
                open += 1;
                continue;
            }
            let place = &mut conversations[key as usize];
            let Some(conversation) = place else { continue };
            match conversation.answer_requests(&mut out, depth)? {
                Some(answered) => ops += answered,
                None => {
                    // Closing the descriptor takes it out of the poll.
                    *place = None;
                    open -= 1;
                }
            }
        }
    }
    Ok(PhaseTotals { ops, ..PhaseTotals::default() })
}

impl NullServerConnection {
    /// Answers the requests that have arrived. `None` when the client has closed the connection.
    fn answer_requests(&mut self, out: &mut Vec<u8>, depth: WireDepth) -> io::Result<Option<u64>> {
        match (&self.socket).read(&mut self.input[self.end..]) {
            Ok(0) => return Ok(None),
            Ok(n) => self.end += n,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                return Ok(Some(0));
            }
            Err(e) => return Err(e),
        }
        out.clear();
        let (mut start, mut answered) = (0, 0);
        while let Some(len) = append_reply(&self.input[start..self.end], out, depth)? {
            start += len;
            answered += 1;
        }
        self.input.copy_within(start..self.end, 0);
        self.end -= start;
        // A client has one request under way, so its socket has room for the answer.
        (&self.socket).write_all(out)?;
        Ok(Some(answered))
    }
}

/// Appends the reply to the first frame in `input` to `out` and returns the length of that frame,
/// if it is complete.
fn append_reply(input: &[u8], out: &mut Vec<u8>, depth: WireDepth) -> io::Result<Option<usize>> {
    match depth {
        WireDepth::Messages => {
            let Some((header, body)) = frame::split_frame(input).map_err(invalid_data)? else {
                return Ok(None);
            };
            let call: MetaCall = frame::decode_body(body).map_err(invalid_data)?;
            frame::encode_frame(out, FrameClass::Meta, header.seq, &build_result(&call), 0);
            Ok(Some(HEADER_LEN + body.len()))
        }
        WireDepth::Bytes => {
            let Some((head, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
                return Ok(None);
            };
            let len = FrameHeader::decode(head).map_err(invalid_data)?.body_len as usize;
            if rest.len() < len {
                return Ok(None);
            }
            out.extend_from_slice(&input[..HEADER_LEN + len]);
            Ok(Some(HEADER_LEN + len))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_answered_over_both_sockets_and_depths() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for socket in [None, Some(dir.path().join("echo"))] {
            for depth in [WireDepth::Messages, WireDepth::Bytes] {
                let mut server = NullServer::new(NullServerPart::Server {
                    clients: 2,
                    socket: socket.clone(),
                    depth,
                });
                let address = server.prepare_phase("serve").expect("a free port or path");
                let served = std::thread::spawn(move || server.run_phase("serve").map(|d| d.ops));
                let clients: Vec<_> = ["create", "unlink"]
                    .into_iter()
                    .map(|operation| {
                        let phase = format!("{operation} {address}");
                        let mut client =
                            NullServer::new(NullServerPart::Client { requests: 50, depth });
                        client.prepare_phase(&phase).expect("the server listens");
                        std::thread::spawn(move || client.run_phase(&phase).map(|d| d.ops))
                    })
                    .collect();
                for client in clients {
                    assert_eq!(client.join().expect("no panic").expect("answers fit"), 50);
                }
                assert_eq!(served.join().expect("no panic").expect("it ends well"), 100);
            }
        }
    }

    #[test]
    fn unknown_phases_are_refused() {
        let mut client =
            NullServer::new(NullServerPart::Client { requests: 1, depth: WireDepth::Bytes });
        assert!(client.prepare_phase("dance 127.0.0.1:1").is_err());
        assert!(client.prepare_phase("create").is_err());
    }
}
